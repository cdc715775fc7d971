"""Instructions: PTX, SASS and AMD assembly text -> counts per source line of the kernel's own file."""

import os
import re
from collections import Counter, defaultdict

from leadline.model import MachineLine, Resources
from leadline.model.base import Record

_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)([^/\n]*)(?://\s*(.*))?$")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+(?:"([^"]*)"\s+)?"([^"]*)"')
_FRAME = re.compile(r"([^\s\[\]@]+):(\d+):(\d+)")
_PTX = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)\s*([^;{]*(?:\{[^}]*\})?[^;]*);")
_SASS_FILE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')
_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_LABEL = re.compile(r"^(\.L_x?_?\d+):")
_GCN = re.compile(r"^\s+((?:[svdb]_|global_|buffer_|flat_|ds_)\w+)\b")
_ATOMIC = re.compile(r"^(ATOMG?|REDG?|RED)(\.|$)")


class Instruction(Record, frozen=True):
    """One instruction. `line` is that of the kernel's file, 0 when it belongs to none; `file` and `own_line` say where it really is."""

    mnemonic: str
    operands: str = ""
    line: int = 0
    file: str = ""
    own_line: int = 0
    in_loop: bool = False


def attribute_to_kernel(ptx: str, file: str) -> str:
    """PTX whose `.loc` lines point into `file` wherever the code was inlined there from another file.

    LLVM prints the chain of callers as a comment; ptxas keeps only the innermost position. Rewriting it changes the debug lines of
    the machine code and nothing else.
    """
    files = _files(ptx)
    own = next((number for number, path in files.items() if path == file), None)
    if own is None:
        base = os.path.basename(file)
        own = next((number for number, path in files.items() if os.path.basename(path) == base), None)
    if own is None:
        return ptx
    base = os.path.basename(file)
    lines = ptx.split("\n")
    for i, text in enumerate(lines):
        found = _LOC.match(text) if ".loc" in text else None
        if found and int(found[1]) != own:
            frame = next((f for f in _FRAME.finditer(found[5] or "") if f[1] == base), None)
            if frame:
                lines[i] = f"\t.loc\t{own} {frame[2]} {frame[3]}{found[4].rstrip()}"
    return "\n".join(lines)


def read_ptx(ptx: str, file: str) -> list[Instruction]:
    """Instructions of PTX whose `.loc` lines were attributed by `attribute_to_kernel`."""
    files = _files(ptx)
    out: list[Instruction] = []
    path, line = "", 0
    for text in ptx.split("\n"):
        if ".loc" in text and (found := _LOC.match(text)):
            path, line = files.get(int(found[1]), ""), int(found[2])
        elif found := _PTX.match(text):
            out.append(_at(found[1], found[2], path, line, file))
    return out


def read_gcn(text: str, file: str) -> list[Instruction]:
    """Instructions of AMD assembly text; `.loc` comments carry the callers as in PTX."""
    return [
        _at(found[1], "", path, line, file) for path, line, row in _located(attribute_to_kernel(text, file)) if (found := _GCN.match(row))
    ]


def read_sass(sass: str, file: str) -> list[Instruction]:
    """Instructions of `nvdisasm -g -c` output. A backward branch makes everything since its target `in_loop`."""
    rows: list[Instruction] = []
    labels: dict[str, int] = {}
    backward: list[tuple[int, int]] = []
    path, line = "", 0
    for text in sass.split("\n"):
        if found := _SASS.match(text):
            if found[1].startswith("BRA") and (target := re.search(r"\(?(\.L_x?_?\d+)", found[2])):
                start = labels.get(target[1])
                if start is not None and start < len(rows):  # a branch to itself is the trap after the end
                    backward.append((start, len(rows)))
            rows.append(_at(found[1], found[2], path, line, file))
        elif found := _SASS_FILE.match(text):
            path, line = found[1], int(found[2])
        elif found := _LABEL.match(text):
            labels[found[1]] = len(rows)
    inside = set()
    for start, end in backward:
        inside.update(range(start, end + 1))
    return [
        Instruction(mnemonic=r.mnemonic, operands=r.operands, line=r.line, file=r.file, own_line=r.own_line, in_loop=i in inside)
        for i, r in enumerate(rows)
        if r.mnemonic != "NOP"
    ]


def resources(log: str, smem: int) -> Resources:
    """`ptxas -v` text -> Resources; `smem` is the dynamic shared memory of the kernel's metadata, in bytes."""

    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found[1]) if found else 0

    return Resources(
        registers=number(r"Used (\d+) registers"),
        spill_store_bytes=number(r"(\d+) bytes spill stores"),
        spill_load_bytes=number(r"(\d+) bytes spill loads"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        static_smem=number(r"(\d+) bytes smem"),
        smem=smem,
        barriers=number(r"used (\d+) barriers"),
    )


def access(instruction: Instruction) -> tuple[str, int]:
    """("load" | "store" | "copy" | "", bits per thread) of a global access in PTX, SASS or AMD assembly."""
    name, parts = instruction.mnemonic, instruction.mnemonic.split(".")
    if name.startswith("ld.global"):
        return "load", _ptx_bits(parts)
    if name.startswith("st.global"):
        return "store", _ptx_bits(parts)
    if parts[0] == "cp" and parts[1:2] == ["async"] and len(parts) > 2 and parts[2] in ("ca", "cg"):
        size = re.search(r"\],\s*(0x[0-9a-f]+|\d+)", instruction.operands.split("[", 2)[-1])
        return "copy", int(size[1], 0) * 8 if size else 0
    if parts[0] == "LDGSTS":
        return "copy", _sass_bits(parts)
    if parts[0] == "LDG":
        return "load", _sass_bits(parts)
    if parts[0] == "STG":
        return "store", _sass_bits(parts)
    if found := re.match(r"(?:global|buffer|flat)_(load|store)_(dwordx(\d)|dword|[su]?(?:short|byte)\w*|b(\d+)|[ui](8|16)|d16\w*)", name):
        width = found[2]
        if width.startswith("dword"):
            return found[1], 32 * int(found[3] or 1)
        return found[1], int(found[4] or found[5] or (8 if "byte" in width else 16))
    return "", 0


def is_atomic(instruction: Instruction) -> bool:
    return bool(_ATOMIC.match(instruction.mnemonic)) or instruction.mnemonic.startswith(("atom.", "red.", "global_atomic", "buffer_atomic"))


def count(stage: str, instructions: list[Instruction], scalar_lines: set[int], tile_lines: set[int]) -> tuple[Counter, dict[int, Counter]]:
    """Counters of one machine stage, total and per line. Lines that load or store single elements only have no widths."""
    total: Counter[str] = Counter()
    lines: defaultdict[int, Counter[str]] = defaultdict(Counter)
    scalar_only = scalar_lines - tile_lines
    for instruction in instructions:
        into = (total, lines[instruction.line]) if instruction.line else (total,)
        names = [f"{stage}.{instruction.mnemonic}", *_derived(stage, instruction)]
        kind, bits = access(instruction)
        if kind and bits and instruction.line not in scalar_only:
            name = "global.store" if kind == "store" else "global.load"
            names.append(name + ".count")
            for counts in into:
                counts[name + ".bits"] = min(counts.get(name + ".bits", bits), bits)
                if kind == "copy":
                    counts["async_copy.bits"] = min(counts.get("async_copy.bits", bits), bits)
        for counts in into:
            for name in names:
                counts[name] += 1
    return total, lines


def machine_lines(instructions: list[Instruction], file: str, shown_file: str) -> tuple[MachineLine, ...]:
    """Mnemonic counts by the line they are attributed to (the kernel's where there is one); `file` is shown as `shown_file`."""
    grouped: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for i in instructions:
        grouped[shown_file if i.line or i.file == file else i.file, i.own_line][i.mnemonic] += 1
    return tuple(MachineLine(file=f, line=n, counts=dict(c)) for (f, n), c in sorted(grouped.items()))


def _derived(stage: str, instruction: Instruction) -> list[str]:
    name = instruction.mnemonic
    head = name.split(".")[0]
    names: list[str] = []
    if is_atomic(instruction):
        names.append("atomic.instructions")
        if re.search(r"\.v[248]\b|x2\b|\.(64|128)\b", name) and ".b64" not in name:
            names.append("atomic.vector")
    if head in ("BAR",) or name.startswith(("bar.sync", "barrier.sync", "barrier.cta.sync", "s_barrier")):
        names.append("barrier")
    if head == "SHFL" or name.startswith("shfl."):
        names.append("shfl")
    if stage == "sass":
        names.append("instructions")
        if instruction.in_loop:
            names.append("loop.instructions")
        if head == "MUFU":
            names.append("mufu")
        if head in ("DFMA", "DMUL", "DADD", "DSETP"):
            names.append("fp64.instructions")
        if head in ("STL", "LDL"):
            names.append("spill")
    return names


def _ptx_bits(parts: list[str]) -> int:
    count = next((int(p[1:]) for p in parts if re.fullmatch(r"v[248]", p)), 1)
    width = next((int(p[1:]) for p in reversed(parts) if re.fullmatch(r"[bsuf]\d+", p)), 0)
    return count * width


def _sass_bits(parts: list[str]) -> int:
    for part in parts:
        if part in ("128", "64"):
            return int(part)
        if re.fullmatch(r"[US](8|16)", part):
            return int(part[1:])
    return 32


def _files(text: str) -> dict[int, str]:
    out: dict[int, str] = {}
    for row in text.split("\n"):
        if ".file" in row and (found := _FILE.match(row)):
            out[int(found[1])] = os.path.join(found[2], found[3]) if found[2] else found[3]
    return out


def _located(text: str):
    files = _files(text)
    path, line = "", 0
    for row in text.split("\n"):
        if ".loc" in row and (found := _LOC.match(row)):
            path, line = files.get(int(found[1]), ""), int(found[2])
        yield path, line, row


def _at(mnemonic: str, operands: str, path: str, line: int, file: str) -> Instruction:
    own = path == file or (os.path.basename(path) == os.path.basename(file) and os.path.realpath(path) == os.path.realpath(file))
    return Instruction(mnemonic=mnemonic, operands=operands, line=line if own else 0, file=path, own_line=line)
