"""Counters of the IR stages (docs/signatures.md), for the whole kernel and per line of its own file; and reading any counter by name."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from leadline.ir.layouts import parse_type, root_layout
from leadline.ir.parse import Module, Op
from leadline.model import Compiled, IrOp

Counts = dict[str, int]

DOTS = ("tt.dot", "tt.dot_scaled", "ttng.warp_group_dot", "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled", "amdgpu.mfma")
COPIES = (
    "ttg.async_copy_global_to_local",
    "ttng.async_tma_copy_global_to_local",
    "amdgpu.buffer_load_to_local",
    "amdg.buffer_load_to_local",
)
LOADS = ("tt.load", "amdgpu.buffer_load", "amdg.buffer_load")
STORES = ("tt.store", "amdgpu.buffer_store", "amdg.buffer_store")
ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas", "amdgpu.buffer_atomic_rmw", "amdg.buffer_atomic_rmw")
DIVISIONS = ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "arith.floordivsi", "arith.ceildivsi")
STRUCTURE = ("module", "tt.func", "tt.return", "scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return", "arith.constant")
# Operations that IrOp records keep: what a rule may want to point at. Address arithmetic is left out, it is most of the text.
SHOWN = {
    *DOTS, *COPIES, *LOADS, *STORES, *ATOMICS, *DIVISIONS, "ttng.warp_group_dot_wait", "ttg.async_wait", "ttg.convert_layout",
    "ttg.local_alloc", "ttg.local_load", "ttg.local_store", "tt.reduce", "tt.scan", "scf.for", "scf.while", "scf.if", "tt.trans",
    "ttg.memdesc_trans", "tt.reshape", "tt.cat", "tt.join", "tt.split", "tt.gather", "tt.histogram", "arith.extf", "arith.truncf",
    "arith.sitofp", "arith.fptosi", "arith.divf", "math.exp", "math.exp2", "math.log", "math.log2", "math.sqrt", "math.rsqrt", "math.erf",
    "math.sin", "math.cos", "tt.precise_divf", "tt.precise_sqrt", "tt.extern_elementwise", "tt.elementwise_inline_asm",
    "tt.descriptor_load", "tt.descriptor_store", "ttng.async_tma_copy_local_to_global", "ttg.barrier", "gpu.barrier", "tt.print",
    "ttg.warp_specialize", "tt.atomic_cas",
}  # fmt: skip


class IrCounts:
    """Counters of one parsed stage. `scalar_lines` and `tile_lines`: lines whose loads and stores are of one element, or of tiles.

    `file` is the kernel's file as locations print it; records say `shown_file` instead when the kernel was compiled from a copy.
    """

    def __init__(self, stage: str, module: Module, file: str, shown_file: str = "") -> None:
        self.stage, self.module, self.file, self.shown_file = stage, module, file, shown_file or file
        self.total: Counter[str] = Counter()
        self.lines: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.scalar_lines: set[int] = set()
        self.tile_lines: set[int] = set()
        about = module.ops[0].attributes if module.ops else {}
        self._threads = _integer(about.get("ttg.num-warps", "")) * _integer(about.get("ttg.threads-per-warp", ""))
        self._arguments = {name for op in module.named("tt.func") for name in op.operands}
        for op in module.ops:
            if op.name not in STRUCTURE:
                self._count(op)

    def add(self, name: str, op: Op, line: int, amount: int = 1) -> None:
        self.total[name] += amount
        if line:
            self.lines[line][name] += amount
        if op.loop_depth and not name.startswith(self.stage + "."):
            self.total["loop." + name] += amount
            if line:
                self.lines[line]["loop." + name] += amount

    def _count(self, op: Op) -> None:
        line = self.module.line(op, self.file)
        short = op.short_name
        self.add(f"{self.stage}.{short}", op, line)
        if self.stage != "ttgir":
            return
        if op.loop_depth and op.name not in DOTS[:1]:  # "loop.dot" counts dots of any form, below
            self._only_in_loop(short, line)
        first = parse_type(op.types[0]) if op.types else None
        last = parse_type(op.result_types[-1]) if op.result_types else None
        if op.name in COPIES:
            self.add("async_copy", op, line)
        if op.name in (*LOADS, *STORES, *COPIES):
            tile = first is not None and (first.numel > 1 or "tensordesc" in first.text)
            (self.tile_lines if tile else self.scalar_lines).add(line)
            if not tile and op.name in LOADS:
                self.add("global.load.scalar", op, line)
            if tile and first is not None and 0 < first.numel < self._threads:
                self.add("threads.replicated", op, line)
        if op.name in LOADS and op.loop_depth and self._invariant(op):
            self._only_in_loop("load.invariant", line)
        if op.name in DOTS:
            self.add("dot", op, line)
            version = self._mma_version(op)
            for counts in (self.total, *([self.lines[line]] if line else [])):
                counts["mma.version"] = min(counts.get("mma.version", version), version)
        if op.name == "ttng.warp_group_dot_wait" and op.loop_depth and _integer(op.attributes.get("pendings", "")) == 0:
            self._everywhere("wgmma_wait0", line)
        if op.name == "ttg.convert_layout" and last is not None:
            self.add("convert_layout.bytes", op, line, last.numel * last.bits // 8)
            self._everywhere("convert_layout", line)  # "loop.convert_layout" is counted as an operation
        if op.name in ATOMICS:
            self.add("atomic", op, line)
        if op.name in DIVISIONS and not self._constant(op.operands[1]):
            tile = first is not None and first.kind == "tensor"
            self.add("int_div" if tile else "int_div.scalar", op, line)
        if op.name.startswith(("arith.", "math.")) and any(parse_type(t).element == "f64" for t in op.types):
            self.add("fp64", op, line)
        if op.name.startswith("arith.") and last is not None and last.kind == "tensor" and last.element == "i64":
            self.add("i64_tensor", op, line)

    def _only_in_loop(self, name: str, line: int) -> None:
        self._everywhere("loop." + name, line)

    def _everywhere(self, name: str, line: int) -> None:
        self.total[name] += 1
        if line:
            self.lines[line][name] += 1

    def _constant(self, value: str, depth: int = 0) -> bool:
        source = self.module.definition(value)
        if source is None or depth > 4:
            return False
        if source.name in ("tt.splat", "arith.extsi", "arith.extui", "arith.trunci", "ttg.convert_layout"):
            return self._constant(source.operands[0], depth + 1)
        return source.name == "arith.constant"

    def _invariant(self, op: Op) -> bool:
        """All operands are defined outside the innermost loop (its own arguments have no defining operation)."""
        sources = [self.module.definition(value) for value in op.operands if value not in self._arguments]
        return all(source is not None and source.loop_depth < op.loop_depth for source in sources)

    def _mma_version(self, op: Op) -> int:
        if op.name.startswith("ttng.tc_gen5"):
            return 5
        text = op.result_types[-1] if op.result_types else op.types[-1]
        layout = root_layout(parse_type(text).layout, self.module.aliases)
        if layout.kind in ("nvidia_mma", "amd_mfma", "amd_wmma"):
            return layout.version
        return 1

    def operations(self) -> tuple[IrOp, ...]:
        """The operations worth pointing at, with what their types say."""
        return tuple(self._described(op) for op in self.module.ops if op.name in SHOWN)

    def _described(self, op: Op) -> IrOp:
        frames = self.module.locations.frames(op.location)
        line = self.module.line(op, self.file)
        detail: dict[str, str] = {}
        text = (op.result_types or op.types or ("",))[-1]
        if op.name in (*LOADS, *STORES, *COPIES, *ATOMICS) and op.types:
            text = op.types[0]
            detail["masked"] = str(_masked(op)).lower()
        kind = parse_type(text)
        if text:
            detail["type"] = kind.text[:120]
            detail["shape"] = "x".join(map(str, kind.shape))
            detail["dtype"] = kind.element
        if kind.layout:
            layout = root_layout(kind.layout, self.module.aliases)
            detail["layout"] = layout.kind
            for name, values in (("size_per_thread", layout.size_per_thread), ("order", layout.order), ("warps", layout.warps)):
                if values:
                    detail[name] = ",".join(map(str, values))
        if op.name in DOTS:
            detail["version"] = str(self._mma_version(op)) if self.stage == "ttgir" else ""
        if op.loop_depth:
            detail["in_loop"] = str(op.loop_depth)
        if op.name in COPIES or op.attributes.get("isAsync") == "true":
            detail["async"] = "true"
        for name in ("axis", "pendings", "num", "contiguity", "tt.num_stages"):
            if name in op.attributes:
                detail[name.removeprefix("tt.")] = op.attributes[name].split(" ")[0]
        file = self.shown_file if line else (frames[0].file if frames else "")
        return IrOp(
            stage=self.stage, name=op.name, line=line or (frames[0].line if frames else 0), file=file, loop_depth=op.loop_depth,
            detail={k: v for k, v in detail.items() if v},
        )  # fmt: skip


def _masked(op: Op) -> bool:
    if op.name in COPIES:
        return " mask " in op.text
    values = 2 if op.name in (*STORES, *ATOMICS) else 1
    return len(op.operands) > values


def _integer(text: str) -> int:
    digits = text.split(" ")[0]
    return int(digits) if digits.lstrip("-").isdigit() else 0


def read(compiled: Compiled, signature: str, line: int = 0) -> int:
    """The value of a signature, of one line when `line` is given; 0 when it did not occur.

    `name*` sums over all counters that start with `name`. `ttgir.tt.load` and `ttgir.tt_load` read `ttgir.load`.
    """
    counters: Mapping[str, int] = compiled.line_counters.get(line, {}) if line else compiled.counters
    if signature.endswith("*"):
        return sum(value for name, value in counters.items() if name.startswith(signature[:-1]))
    if signature in counters:
        return counters[signature]
    for stage in ("ttir.", "ttgir.", "loop."):
        if signature.startswith(stage):
            rest = signature[len(stage) :]
            for prefix in ("tt.", "ttg.", "ttng.", "scf.", "arith.", "math.", "tt_", "ttg_", "ttng_", "scf_", "arith_"):
                if rest.startswith(prefix) and stage + rest[len(prefix) :] in counters:
                    return counters[stage + rest[len(prefix) :]]
    return 0


def stage_of(signature: str, stage: str) -> str:
    """The stage a probe must compile to so that `signature` exists: `stage`, or a later one when that is too early."""
    order = ("ttgir", "ptx", "sass")
    needed = "ttgir"
    if signature.startswith(("ptx.", "amdgcn.", "global.load.bits", "global.store.bits", "global.load.count", "global.store.count",
                             "async_copy.bits", "atomic.", "barrier", "shfl")):  # fmt: skip
        needed = "ptx"
    if signature.startswith(("sass.", "res.", "spill", "instructions", "loop.instructions", "mufu", "fp64.instructions")):
        needed = "sass"
    if stage not in order:
        return needed
    return order[max(order.index(needed), order.index(stage))]
