"""The base of all records: frozen, keyword-only, serialisable; content hashing."""

import hashlib
from typing import TypeVar

import msgspec

R = TypeVar("R")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen record. Sequences are tuples, mappings are plain dicts that nobody changes after construction."""


def content_hash(record: object, length: int = 16) -> str:
    """Hex digest (`length` characters of SHA-256) of a record's canonical JSON: same content, same id, on any machine."""
    return hashlib.sha256(msgspec.json.encode(record, order="deterministic")).hexdigest()[:length]


class Span(Record, frozen=True):
    """A place in a source file; lines are 1-based, columns 0-based; `end_line` is inclusive."""

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
