"""A run as JSON: the schema of docs/run.schema.json."""

import msgspec

from leadline.errors import UsageError
from leadline.model import Run


def encode(run: Run) -> bytes:
    """Pretty JSON, fields in the order of the records, so that two runs can be compared line by line."""
    return msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"


def text(run: Run) -> str:
    """`encode` as text."""
    return encode(run).decode()


def decode(data: bytes | str, *, where: str = "") -> Run:
    """The run that `encode` wrote; UsageError when the text is not one or has another schema version."""
    remedy = "give a file written by --json or by report --format json"
    try:
        run = msgspec.json.decode(data, type=Run)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not a run: {error}", where=where, remedy=remedy) from None
    expected = Run().schema
    if run.schema != expected:
        raise UsageError(f"schema is '{run.schema}', this version reads '{expected}'", where=where, remedy=remedy)
    return run


def schema() -> bytes:
    """JSON schema of a run, as stored in docs/run.schema.json."""
    described = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Run)}
    return msgspec.json.format(msgspec.json.encode(described, order="deterministic"), indent=2) + b"\n"


if __name__ == "__main__":
    import sys

    sys.stdout.buffer.write(schema())
