"""A kernel case: the user's file, and every launch its wrapper makes as the JIT would see it."""

from leadline.model.base import Record


class TensorSpec(Record, frozen=True):
    """A tensor argument without its data. Strides in elements, `offset` in bytes from the storage's start."""

    dtype: str  # triton's short name: fp32, fp16, bf16, fp64, i1, i8, u8, i16, i32, i64, fp8e4nv ...
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage: int  # arguments with the same number share memory
    offset: int = 0
    storage_bytes: int = 0
    origin: str = ""  # "input:x", "empty", "zeros", "clone(input:x)" ...: who made the storage

    @property
    def numel(self) -> int:
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @property
    def itemsize(self) -> int:
        return ITEMSIZE.get(self.dtype, 4)


ITEMSIZE = {"fp64": 8, "i64": 8, "u64": 8, "fp32": 4, "i32": 4, "u32": 4, "fp16": 2, "bf16": 2, "i16": 2, "u16": 2, "i8": 1, "u8": 1,
            "i1": 1, "fp8e4nv": 1, "fp8e5": 1, "fp8e4b15": 1, "fp8e4b8": 1, "fp8e5b16": 1}  # fmt: skip


class Argument(Record, frozen=True):
    """One argument of a launch, in declaration order of the kernel.

    `type` is the signature's: "*fp16", "i32", "fp32", "constexpr", "nvTmaDesc" ... An integer equal to 1 that the JIT folds has type
    "constexpr" and `folded=True`. `divisible` is the largest power of two (at most 16) that the JIT records: 16 or 1.
    """

    name: str
    type: str
    tensor: TensorSpec | None = None
    # Scalars and constexprs. Other constexprs are text: "tl.float16" for a dtype, "jit:<module or file>:<name>" for a @triton.jit function.
    value: int | float | bool | str | None = None
    constexpr: bool = False
    folded: bool = False
    divisible: int = 1


class Launch(Record, frozen=True):
    """One kernel launch, specialised as the installed JIT would, without a device."""

    index: int
    kernel: str  # function name
    kernel_file: str
    kernel_line: int  # line of `def`
    kernel_module: str  # importable module name, "" when the kernel lives in the user's file itself
    call_file: str
    call_line: int
    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    options: dict[str, int | float | bool | str | None] = {}  # num_warps, num_stages, maxnreg ... as given or by default
    variant: str = ""  # which autotune configuration, "" when the kernel is not autotuned
    variant_index: int = 0
    variants: int = 1  # how many configurations the autotuner would try
    repeats: int = 1  # identical launches folded into this one
    heuristics: tuple[str, ...] = ()
    autotune_key: tuple[str, ...] = ()

    def argument(self, name: str) -> Argument | None:
        """The argument called `name`, or None."""
        return next((a for a in self.arguments if a.name == name), None)

    @property
    def programs(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def constexprs(self) -> dict[str, int | float | bool | str | None]:
        return {a.name: a.value for a in self.arguments if a.constexpr}

    def option(self, name: str, default: int) -> int:
        value = self.options.get(name)
        return value if isinstance(value, int) else default


class HostOp(Record, frozen=True):
    """One torch operation the wrapper performed while it was traced."""

    name: str  # aten name: clone, _to_copy, zeros, permute ...
    line: int  # line of the case file
    reads: tuple[int, ...] = ()  # storages
    writes: tuple[int, ...] = ()
    bytes: int = 0  # read plus written
    view: bool = False
    order: int = 0  # position among launches: after how many launches it ran


class Trace(Record, frozen=True):
    """What `launch` does for one case. `values_read` lists host reads of device data: they are evidence, not an error.

    `fallback` says why a small case stands in for the asked one (empty when it does not).
    """

    case: str
    launches: tuple[Launch, ...]
    inputs: dict[str, TensorSpec] = {}
    outputs: tuple[TensorSpec, ...] = ()
    host_ops: tuple[HostOp, ...] = ()
    values_read: tuple[HostOp, ...] = ()
    fallback: str = ""
    assumptions: tuple[str, ...] = ()  # values the wrapper reads that only a run would give, and what they were taken to be
    seconds: float = 0.0


class KernelCase(Record, frozen=True):
    """A user's file taken in: text, names, and where its oracle comes from. The content hash is its id."""

    path: str  # as the user gave it, resolved
    source: str
    kernels: tuple[str, ...]  # @triton.jit functions defined in the file, in order
    selected: str = ""  # `file.py::kernel`
    wrapper: str = "launch"
    oracle: str = "reference"  # "reference", or "launch" when the original launch is the oracle
    kind: str = "case"  # case | kernelbench | recorded
    cases: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    case_file: str = ""  # where CASES and make_inputs live when not in `path` (--case other.py)
