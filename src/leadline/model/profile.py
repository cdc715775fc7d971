"""Level 2 records: what a launch must move, what it was sampled to move, what a device measured."""

from leadline.model.base import Record


class AccessSample(Record, frozen=True):
    """Addresses of one source access, computed for sampled programs with the launch's real strides and grid.

    Nothing is loaded: values read from memory are unknown, so `indirect` accesses carry no address figures. Lanes are taken in the
    order of the fastest axis the compiler could choose. `sector_efficiency` = useful bytes / (32 B sectors touched * 32) over groups
    of 32 lanes; `active` = share of lanes the mask lets through; `repeat` = times the same address is touched again by the same
    program (1 = once); `shared` = for each program axis, the share of addresses also touched by the next program on that axis;
    `per_program` and `total` are bytes requested (not unique); `unique` is distinct bytes over the whole launch, extrapolated.
    """

    line: int
    kind: str  # load | store | atomic
    pointer: str = ""  # parameter whose storage is accessed, "" when unknown
    file: str = ""
    itemsize: int = 4
    lanes: int = 0  # elements of one execution of the access
    executions: float = 0.0  # per program, averaged
    active: float = 1.0
    dead: float = 0.0  # share of executions whose mask lets nothing through
    sector_efficiency: float = 1.0
    contiguous: int = 1  # longest run of consecutive addresses along the best axis
    alignment: int = 1  # largest power of two (bytes, at most 16) that divides every run's start
    per_program: float = 0.0
    total: float = 0.0
    unique: float = 0.0
    repeat: float = 1.0
    shared: dict[int, float] = {}
    indirect: bool = False
    scattered: float = 1.0  # for `indirect`: the sector efficiency if neighbouring loaded indices lie far apart (rows stay whole)


class LoopSample(Record, frozen=True):
    line: int
    trips_min: int
    trips_max: int
    trips_mean: float
    data_dependent: bool = False


class LaunchSample(Record, frozen=True):
    """The access sampler's picture of one launch."""

    launch: int
    programs: int
    sampled: int
    accesses: tuple[AccessSample, ...] = ()
    loops: tuple[LoopSample, ...] = ()
    dot_flops: float = 0.0  # over the whole launch
    dot_dtype: str = ""
    other_flops: float = 0.0  # elementwise and reduction operations over the whole launch
    seconds: float = 0.0
    note: str = ""  # why parts are missing


class LaunchCost(Record, frozen=True):
    """A coarse, static prediction for one launch; for ranking, never to be shown as a measurement. Times in microseconds.

    `dram_us`: bytes that must come from or go to DRAM (`dram_bytes`: distinct sectors, plus re-reads that L2 cannot hold) over the
    bandwidth that so many programs can draw.
    `l2_us`: sectors requested (`sector_bytes`) and estimated register spills (`spill_bytes`) over L2 bandwidth.
    `compute_us`: matrix and elementwise operations over their rates, times idle SMs.
    `latency_us`: the chain of dependent loads of one program (`steps` of them) times the rounds of resident programs.
    `atomics_us`: atomic updates, serial where programs share addresses.
    `resident`: programs an SM holds at once; `waves`: rounds of them; `fill`: programs over what the device holds at once, at most 1;
    `tail`: share of the last wave that idles.
    `total_us`: launch plus the root of the sum of squares (the plain sum where few warps run). `bound`: memory, l2, compute, latency,
    atomics or launch, the largest part.
    """

    launch: int
    dram_us: float = 0.0
    l2_us: float = 0.0
    compute_us: float = 0.0
    latency_us: float = 0.0
    atomics_us: float = 0.0
    launch_us: float = 0.0
    total_us: float = 0.0
    dram_bytes: float = 0.0
    sector_bytes: float = 0.0
    spill_bytes: float = 0.0
    steps: float = 0.0
    resident: int = 1
    waves: int = 1
    fill: float = 1.0
    tail: float = 0.0
    bound: str = "launch"


class Ceilings(Record, frozen=True):
    """What a device can do, measured or (predicted=True) from a table."""

    device: str
    copy_bytes_per_s: float
    l2_bytes_per_s: float
    matmul_flops: dict[str, float]  # dtype -> FLOP/s
    fma_flops: float
    launch_us: float
    sms: int
    l2_bytes: int
    smem_per_sm: int
    regs_per_sm: int
    threads_per_sm: int
    predicted: bool = True


class LaunchTiming(Record, frozen=True):
    launch: int
    kernel: str
    median_us: float
    low_us: float
    high_us: float
    runs: int


class Profile(Record, frozen=True):
    """Device measurements of one case."""

    device: str
    case: str
    launches: tuple[LaunchTiming, ...] = ()
    total_us: float = 0.0  # the wrapper's device time, first event to last
    wall_us: float = 0.0  # host time of one call, synchronised
    ceilings: Ceilings | None = None
    clocks_mhz: float = 0.0
    noise: float = 0.0  # relative spread of the same code against itself


class Limit(Record, frozen=True):
    """The bound of a whole case. `time_us` is None where nothing was measured; then `fraction` is None too."""

    bound: str  # memory | compute | latency | launch
    floor_us: float
    time_us: float | None = None
    fraction: float | None = None
    predicted: bool = True
    bytes: float = 0.0
    flops: float = 0.0
    launches: int = 0
    # Achieved: what must be moved and done, over the measured time. The ceilings are the device's, for this mix of operations.
    bytes_per_s: float | None = None
    flops_per_s: float | None = None
    ceiling_bytes_per_s: float = 0.0
    ceiling_flops_per_s: float = 0.0
