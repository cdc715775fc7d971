"""Level 3 records: one launch compiled ahead of time, operation by operation, counter by counter."""

from leadline.model.base import Record


class Resources(Record, frozen=True):
    """As ptxas -v prints them, plus dynamic shared memory from the kernel's metadata."""

    registers: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    static_smem: int = 0
    smem: int = 0
    barriers: int = 0


class IrOp(Record, frozen=True):
    """One operation of the ttir or ttgir stage, mapped to its source line.

    `detail` holds, where they apply: type, shape, dtype, layout (blocked|nvidia_mma|...), size_per_thread, order, warps, vector_bits,
    in_loop (depth as text), masked, async, version (of the MMA).
    """

    stage: str
    name: str
    line: int
    file: str = ""
    loop_depth: int = 0
    detail: dict[str, str] = {}


class MachineLine(Record, frozen=True):
    """Machine instructions attributed to one source line: mnemonic -> count (static, not executed)."""

    file: str
    line: int
    counts: dict[str, int]


class Compiled(Record, frozen=True):
    """One launch compiled for `target`. `counters` are the signatures (docs/signatures.md); `line_counters` the same per source line.

    Counter names: "ttir.<op>", "ttgir.<op>", "loop.<op>" (inside loops of the ttgir), "ptx.<mnemonic>", "sass.<mnemonic>",
    "res.<resource>", plus derived: "global.load.bits" (narrowest), "global.store.bits", "async_copy", "mma.version", "convert_layout",
    "barrier", "spill_bytes", "atomic", "fp64", "int_div", "wgmma_wait0".
    """

    launch: int
    target: str
    triton: str
    kernel: str
    options: dict[str, int | float | bool | str | None] = {}
    resources: Resources = Resources()
    counters: dict[str, int] = {}
    line_counters: dict[int, dict[str, int]] = {}  # lines of the kernel's own file
    operations: tuple[IrOp, ...] = ()
    machine: tuple[MachineLine, ...] = ()
    stages: dict[str, str] = {}  # stage -> SHA-256 of its text in the artefact store
    seconds: float = 0.0
    stopped_at: str = "sass"
    error: str = ""
    error_line: int = 0
