"""A back-end that answers from recordings: no compiler, the same interface. It keeps that interface honest.

Target "replay:DIR" answers from the JSON files in DIR. Target "record:DIR@cuda:90" asks the back-end of "cuda:90" and keeps its answers
in DIR. Recordings are keyed by the content of the request without machine-specific paths.
"""

import importlib
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from leadline.backends.base import CompileRequest, ExplainRequest, Explanation, ProbeRequest, select
from leadline.errors import EvidenceError, UsageError
from leadline.model import Compiled, Launch, ProbeOutcome
from leadline.model.base import content_hash

A = TypeVar("A", Compiled, Explanation, ProbeOutcome)
Request = CompileRequest | ExplainRequest | ProbeRequest


class ReplayBackend:
    """Recorded Compiled, Explanation and ProbeOutcome records."""

    name = "replay"
    targets = ("replay:*", "record:*@*")
    functions = {
        "compile": "leadline.backends.replay:compile_launch",
        "explain": "leadline.backends.replay:explain",
        "probe": "leadline.backends.replay:run_probe",
    }


def compile_launch(request: CompileRequest) -> Compiled:
    """The recorded compile of this launch. Raises `EvidenceError` naming the missing recording."""
    return _answer("compile", request, Compiled)


def explain(request: ExplainRequest) -> Explanation:
    """The recorded explanation of this launch. Raises `EvidenceError` naming the missing recording."""
    return _answer("explain", request, Explanation)


def run_probe(request: ProbeRequest) -> ProbeOutcome:
    """The recorded outcome of this probe. Raises `EvidenceError` naming the missing recording."""
    return _answer("probe", request, ProbeOutcome)


def recording(directory: str, what: str, request: Request) -> Path:
    """The file that holds, or would hold, the answer to `request`."""
    launch = _anywhere(request.launch)
    plain = msgspec.structs.replace(request, launch=launch, target="")
    if isinstance(plain, ProbeRequest) and plain.edited is not None:
        plain = msgspec.structs.replace(plain, edited=_anywhere(plain.edited))
    if isinstance(plain, CompileRequest):
        plain = msgspec.structs.replace(plain, store="", fresh=False)
    return Path(directory, f"{what}-{launch.kernel}-{content_hash([what, plain])}.json")


def _anywhere(launch: Launch) -> Launch:
    """The launch without the folders of this machine."""
    files = {"kernel_file": os.path.basename(launch.kernel_file), "call_file": os.path.basename(launch.call_file)}
    return msgspec.structs.replace(launch, **files)


def record(directory: str, what: str, request: Request, answer: Compiled | Explanation | ProbeOutcome) -> Path:
    """Keep `answer` so that "replay:<directory>" gives it to the same request."""
    path = recording(directory, what, request)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode({"request": _named(request), "answer": answer}), indent=1)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)
    return path


def _answer(what: str, request: Request, kind: type[A]) -> A:
    mode, _, rest = request.target.partition(":")
    if mode == "record":
        directory, _, inner = rest.partition("@")
        function = select(inner).functions[what]
        module, _, name = function.partition(":")
        answer: A = getattr(importlib.import_module(module), name)(msgspec.structs.replace(request, target=inner))
        record(directory, what, request, answer)
        return answer
    if mode != "replay":
        raise UsageError(f"unknown target {request.target!r}", remedy="use replay:DIR or record:DIR@TARGET")
    path = recording(rest, what, request)
    try:
        data = path.read_bytes()
    except OSError:
        raise EvidenceError(
            f"no recording of {what} for {request.launch.kernel} (launch {request.launch.index})",
            where=str(path),
            remedy=f"record it with target record:{rest}@cuda:90",
        ) from None
    try:
        return msgspec.convert(msgspec.json.decode(data)["answer"], kind, strict=False)
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError) as error:
        raise EvidenceError(f"the recording cannot be read: {error}", where=str(path), remedy="record it again") from None


def _named(request: Request) -> dict[str, Any]:
    launch: Launch = request.launch
    return {"kernel": launch.kernel, "launch": launch.index, "options": launch.options, "constexprs": launch.constexprs}
