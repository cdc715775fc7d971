"""What passes print about their own decisions -> typed messages with the source line of the operation they name.

Debug text names operations by their `%N` in the module without locations; `OperationLines` pairs that module, line for line, with the
same module printed with locations. Passes also print while they change the module: then the printed operation is looked for in the
module after the pass, and last by its name alone, where all operations of that name are on one line.
"""

import re
from collections import defaultdict

from leadline.ir.locations import Locations, same_file
from leadline.model.base import Record

DEBUG_TYPES = (
    "tritongpu-coalesce", "triton-loop-pipeline", "triton-wgmma-pipeline", "triton-licm", "nvgpu-warp-specialization", "tritongpu-prefetch",
)  # fmt: skip
LAYOUT_TYPE = "tritongpu-remove-layout-conversions"  # prints 0.4 MB for a matrix product: listened to only when conversions remain

_DEBUG = re.compile(r"^\[([\w-]+)\]: (.*)$")
_OPERATION = re.compile(r'(?:(%\w+)(?::\d+)? = )?"?([a-z_]+\.[\w.]+)"?(.*)$')
_DIAGNOSTIC = re.compile(r"^(.*?):(\d+):\d+: (remark|warning|note): (.*)$")
_VECTOR = re.compile(r"vectorization fails vec = (\d+) origin vec = (\d+) (?:numElems|elemsPerThread|packed) = (\d+) mask is (-?\d+)")

_CONSIDERED = "Considering whether to make MMAv3 dot properly async: "

# Text of a debug line that names its own operation -> kind.
_LOADS = (
    ("is too small for pipelining", "load_too_narrow_to_pipeline"),
    ("considered for pipelining", "load_considered"),
    ("has multiple uses at different distances", "load_at_different_distances"),
    ("cannot have shared encoding", "load_without_shared_encoding"),
    ("will not be pipelined because it's not used by a dot", "load_not_used_by_dot"),
)
# Text of a debug line about the dot named before it -> kind.
_DOTS = (
    ("shmem operands aren't multi-buffered", "dot_operand_not_multibuffered"),
    ("its result from i-1 is used by something other", "dot_result_used"),
    ("dot is unconditionally used", "dot_unconditional"),
    ("the accumulator is not fp32", "dot_accumulator_not_fp32"),
    ("dot is used by multiple ops", "dot_used_by_several"),
)
_DIAGNOSTICS = (
    ("MMA version 3 acceleration not applied", "mma_v3_refused"),
    ("MMA version 5 acceleration not applied", "mma_v5_refused"),
    ("has been deprecated", "mma_deprecated"),
    ("Forcing a different order", "forced_order"),
    ("Pipelining load with different use encodings", "load_encodings_differ"),
    ("Pipelining load that cannot use vectorized copy", "load_copy_not_vectorized"),
    ("operation scheduled before its operands", "scheduled_before_operands"),
)


class Found(Record, frozen=True):
    """One message before it gets an id. `operation` is the printed operation it is about, "" when `line` is known already."""

    channel: str  # debug | remark | warning
    kind: str
    text: str
    operation: str = ""
    line: int = 0
    position: int = -1  # among the dots one pass considered, in order; -1 for other messages


class OperationLines:
    """Printed operation -> line of the kernel's file, for one state of a module."""

    def __init__(self, bare: str, located: str, file: str) -> None:
        self._exact: dict[tuple[str, str, str], int] = {}
        self._by_name: defaultdict[str, list[int]] = defaultdict(list)
        self._converted: dict[str, int] = {}
        table = Locations.of_text(located)
        rows = [r for r in located.splitlines() if r.startswith("  ")]
        bare_rows = [r for r in bare.splitlines() if r.startswith("  ")]
        if len(rows) != len(bare_rows):
            return  # nothing is mapped rather than wrongly
        for without, with_location in zip(bare_rows, rows, strict=True):
            key = operation_key(without.strip())
            place = with_location.rfind(" loc(")
            if key is None or place < 0:
                continue
            line = table.line_in(with_location[place + 1 :].rstrip(), file)
            self._exact[key] = line
            self._by_name[key[1]].append(line)
            if key[1] == "ttg.convert_layout":
                self._converted[key[2]] = line

    def exact(self, operation: str) -> int:
        """The line of the operation with this result, name and first operand; 0 when there is none."""
        key = operation_key(operation)
        return self._exact.get(key, 0) if key else 0

    def converted(self, operation: str) -> int:
        """The line of the layout conversion that takes this operation's result; 0 when there is none."""
        key = operation_key(operation)
        return self._converted.get(key[0], 0) if key and key[0] else 0

    def at(self, name: str, position: int, of: int) -> int:
        """The line of the operation at this position among those of its name, when there are exactly `of` of them; else 0."""
        lines = self._by_name.get(name, [])
        return lines[position] if len(lines) == of and 0 <= position < of else 0

    def by_name(self, operation: str) -> int:
        """The line all operations of this name share; 0 when they are on several."""
        key = operation_key(operation)
        lines = set(self._by_name.get(key[1], ())) if key else set()
        return lines.pop() if len(lines) == 1 else 0


def operation_key(text: str) -> tuple[str, str, str] | None:
    """(result, name, first operand) of a printed operation."""
    found = _OPERATION.match(text)
    if found is None:
        return None
    operand = re.search(r"%\w+", found[3])
    return found[1] or "", found[2], operand[0] if operand else ""


def considered_dots(log: str) -> list[str]:
    """The printed dots that the wgmma pass considered, in order, each once."""
    return list(dict.fromkeys(row.split(_CONSIDERED, 1)[1] for row in log.splitlines() if _CONSIDERED in row))


def read_debug(log: str) -> list[Found]:
    """Messages of the debug channel in what one pass printed; anything not understood is left out."""
    out: list[Found] = []
    considered = dot = source = costs = axis = ""
    dots = considered_dots(log)
    for row in log.splitlines():
        found = _DEBUG.match(row)
        if found is None:
            continue
        channel, text = found[1], found[2].strip()
        if channel == "tritongpu-coalesce":
            if text.startswith("Considering op: "):
                considered, axis = text.removeprefix("Considering op: "), ""
            elif text.startswith("axis info of pointer: "):
                axis = text.removeprefix("axis info of pointer: ")
                out.append(Found(channel="debug", kind="axis_info", text=axis, operation=considered))
            elif text.startswith("order="):
                costs = text.removeprefix("order=")
            elif text.startswith("perThread: "):
                choice = f"order {costs}, {text.removeprefix('perThread: ')} elements per thread"
                out.append(Found(channel="debug", kind="coalesce_choice", text=choice, operation=considered))
        elif channel == "triton-loop-pipeline":
            for pattern, kind in _LOADS:
                if pattern in text:
                    named = re.sub(r"^Load ", "", text.split(pattern)[0].strip())
                    out.append(Found(channel="debug", kind=kind, text=_short(text), operation=named))
            if text.startswith("Loop not safe to pipeline"):
                out.append(Found(channel="debug", kind="loop_not_safe_to_pipeline", text=_short(text)))
        elif channel == "triton-wgmma-pipeline":
            if text.startswith(_CONSIDERED):
                dot = text.removeprefix(_CONSIDERED)
            elif text.startswith("Can't make dot async"):
                kind = next((k for pattern, k in _DOTS if pattern in text), "dot_not_async")
                position = dots.index(dot) if dot in dots else -1
                out.append(Found(channel="debug", kind=kind, text=text, operation=dot, position=position))
        elif channel == LAYOUT_TYPE:
            if text.startswith("check backward remat with source "):
                source, costs = text.removeprefix("check backward remat with source "), ""
            elif text.startswith(("convert layout cost: ", "rematerialisation cost: ")):
                costs = f"{costs}{', ' if costs else ''}{text}"
            elif "getRematerializableSlice failed" in text:
                out.append(Found(channel="debug", kind="remat_failed", text=text, operation=source))
            elif "skipped rematerialization" in text:
                out.append(Found(channel="debug", kind="remat_cost", text=f"{text} ({costs})" if costs else text, operation=source))
    return out


def read_diagnostics(log: str, file: str) -> list[Found]:
    """Remarks and warnings; a message located in another file gets the line of the caller in `file` when the notes name it."""
    out: list[Found] = []
    for row in log.splitlines():
        found = _DIAGNOSTIC.match(row)
        if found is None:
            continue
        path, line, channel, text = found[1], int(found[2]), found[3], found[4]
        own = line if same_file(path, file) else 0
        if channel == "note":
            if own and out and not out[-1].line and "called from" in text:
                out[-1] = Found(channel=out[-1].channel, kind=out[-1].kind, text=out[-1].text, line=own)
            continue
        kind = next((k for pattern, k in _DIAGNOSTICS if pattern in text), "")
        if vector := _VECTOR.search(text):
            width, origin, elements, mask = (int(n) for n in vector.groups())
            if elements == 1:
                continue  # one element per thread: there is nothing to vectorise
            kind = "vectorization_fails"
            culprit = "the mask" if origin > width and mask >= 0 else "the pointer"
            text = f"{culprit} limits the access to {width} of {elements} elements per thread (pointer alone: {origin}, mask: {mask})"
        out.append(Found(channel=channel, kind=kind, text=text, line=own))
    return out


def _short(text: str) -> str:
    """The text without printed layouts, which fill a screen and are in the IR anyway."""
    return re.sub(r", #ttg\.\w+<\{.*?\}>(?:\}>)*", "", re.sub(r" \{[^{}]*\}", "", text))[:300]
