"""What level 1 reads in the source: facts of kernels and wrappers, each with its line. Texts are exact source excerpts."""

from leadline.model.base import Record


class Parameter(Record, frozen=True):
    name: str
    constexpr: bool = False
    default: str | None = None
    annotation: str = ""
    uses: int = 0  # how often the body names it


class Symbol(Record, frozen=True):
    """A name assigned in a kernel body: its defining text and what it depends on, transitively.

    `axes`: program axes (0, 1, 2); `ranges`: lines of the `tl.arange` calls; `loops`: ids of loops whose variable it depends on;
    `params`: parameters; `loaded`: depends on loaded data. `rank` is the number of tile dimensions as far as the source tells
    (0 scalar; -1 unknown). `carried` names are assigned in a loop and live into its next iteration.
    """

    name: str
    line: int
    text: str
    axes: tuple[int, ...] = ()
    ranges: tuple[int, ...] = ()
    loops: tuple[int, ...] = ()
    params: tuple[str, ...] = ()
    loaded: bool = False
    rank: int = -1


class Access(Record, frozen=True):
    """A tl.load, tl.store or tl.atomic_*; `expanded` is the index with all local names replaced by their definitions."""

    kind: str  # load store atomic_add atomic_max ... descriptor_load descriptor_store
    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    pointer: str
    base: str | None = None  # the pointer parameter, None when several or unknown
    expanded: str = ""
    mask: str | None = None
    mask_expanded: str | None = None
    other: str | None = None
    value: str | None = None
    target: str | None = None  # the name a load is assigned to
    keywords: dict[str, str] = {}  # eviction_policy, cache_modifier, sem ...
    loop: int = -1  # id of the innermost loop, -1 outside
    branch: int = -1  # id of the innermost branch, -1 outside
    axes: tuple[int, ...] = ()  # program axes the address depends on
    loops: tuple[int, ...] = ()  # loops the address depends on
    ranges: tuple[int, ...] = ()
    indirect: bool = False  # the address depends on loaded data
    divmod: bool = False  # the address contains // or % of a tile
    result_used: bool = False  # for atomics
    rank: int = -1


class Loop(Record, frozen=True):
    id: int
    kind: str  # range tl.range static_range while
    line: int
    end_line: int
    target: str = ""
    start: str = "0"
    stop: str = ""
    step: str = "1"
    parent: int = -1
    carried: tuple[str, ...] = ()  # names whose value flows from one iteration to the next
    options: dict[str, str] = {}
    bound_axes: tuple[int, ...] = ()  # program axes the bounds depend on
    bound_params: tuple[str, ...] = ()
    bound_loaded: bool = False


class Branch(Record, frozen=True):
    id: int
    line: int
    end_line: int
    test: str
    loop: int = -1
    parent: int = -1  # enclosing branch
    invariant: bool = False  # the test does not change inside the innermost loop
    axes: tuple[int, ...] = ()
    loaded: bool = False
    has_else: bool = False


class Operation(Record, frozen=True):
    """Anything else with a line: dot, reduction, cast, arange, program_id, division, math call, where, trans, barrier ...

    `kind`: dot sum max min argmax reduce scan cast arange program_id floordiv mod truediv exp log sqrt sin tanh erf pow where
    trans reshape cat split broadcast barrier inline_asm assume hint constant. `operands` are source texts; `detail` holds what
    the kind needs (axis, dtype, size, input_precision, out_dtype, acc ...). `tile` is True when an operand is a tile.
    """

    kind: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    text: str = ""
    operands: tuple[str, ...] = ()
    detail: dict[str, str] = {}
    loop: int = -1
    branch: int = -1
    tile: bool = False
    target: str | None = None


class KernelFacts(Record, frozen=True):
    name: str
    file: str
    line: int
    end_line: int
    decorators: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    accesses: tuple[Access, ...] = ()
    loops: tuple[Loop, ...] = ()
    branches: tuple[Branch, ...] = ()
    operations: tuple[Operation, ...] = ()
    calls: tuple[str, ...] = ()  # other @triton.jit functions it calls

    def of_kind(self, *kinds: str) -> tuple[Operation, ...]:
        """All operations of these kinds, in source order."""
        return tuple(o for o in self.operations if o.kind in kinds)

    def loop(self, ident: int) -> Loop | None:
        return next((loop for loop in self.loops if loop.id == ident), None)

    def symbol(self, name: str) -> Symbol | None:
        """The last definition of `name`."""
        return next((s for s in reversed(self.symbols) if s.name == name), None)


class HostCall(Record, frozen=True):
    """A call in the wrapper that matters to the device: copy, cast, allocation, sync, layout change, reduction.

    `kind`: sync copy cast contiguous alloc_zeros alloc_empty view reduce other.
    """

    kind: str
    line: int
    text: str
    column: int = 0
    end_column: int = 0
    receiver: str = ""
    loop: bool = False  # inside a Python loop
    target: str | None = None


class LaunchSite(Record, frozen=True):
    """One `kernel[grid](...)` statement in the wrapper."""

    kernel: str
    line: int
    end_line: int
    grid: str
    grid_axes: tuple[str, ...] = ()  # texts of its elements when it is a tuple (or a lambda returning one)
    positional: tuple[str, ...] = ()
    keywords: dict[str, str] = {}
    arguments: dict[str, str] = {}  # kernel parameter -> argument text
    options: dict[str, str] = {}  # num_warps ...
    loop: bool = False
    branch: bool = False


class WrapperFacts(Record, frozen=True):
    name: str
    file: str
    line: int
    end_line: int
    calls: tuple[HostCall, ...] = ()
    launches: tuple[LaunchSite, ...] = ()
    assignments: dict[str, str] = {}  # name -> last assigned text
    functions: tuple[str, ...] = ()  # functions of the same file that it calls (helpers are followed)


class SourceFacts(Record, frozen=True):
    """All facts of one file. `texts` maps every file that facts point into to its text (kernels may live in other modules)."""

    path: str
    kernels: tuple[KernelFacts, ...] = ()
    wrapper: WrapperFacts | None = None
    texts: dict[str, str] = {}
    suppressions: dict[int, tuple[str, ...]] = {}  # line -> rule codes or slugs ignored there

    def kernel(self, name: str) -> KernelFacts | None:
        return next((k for k in self.kernels if k.name == name), None)
