"""What the judge asks of its workers, and what they answer."""

from leadline.model import KernelCase, Record


class Tolerances(Record, frozen=True):
    """How much worse than the original a candidate's error may be.

    `factor` bounds the candidate's root-mean-square error by the original's; `floor` scales what reassociation alone may cost.
    """

    factor: float = 4.0
    floor: float = 1.0


class InterpretRequest(Record, frozen=True):
    """Check `candidate` on the small cases in the interpreter. An empty `candidate` checks the original alone."""

    case: KernelCase
    original: str
    candidate: str = ""
    small: tuple[str, ...] = ()  # () = all of SMALL
    seeds: tuple[int, ...] = (0,)
    allow_numerics: bool = False
    tolerances: Tolerances = Tolerances()


class CaseResult(Record, frozen=True):
    """One case of one gate. `reason` is one line, empty when it passed; `gate` says which check failed."""

    case: str
    passed: bool
    reason: str = ""
    gate: str = ""
    error: float = 0.0  # candidate's largest error in units of the tolerance (1 = at the limit)
    original_error: float = 0.0
    launches: int = 0
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


class InterpretResult(Record, frozen=True):
    """All small cases; `unsupported` is set when the original itself cannot be interpreted (inline assembly, libdevice ...)."""

    cases: tuple[CaseResult, ...] = ()
    unsupported: str = ""


class DeviceRequest(Record, frozen=True):
    """Check and time `candidate` against `original` on the device."""

    case: KernelCase
    original: str
    candidate: str
    cases: tuple[str, ...] = ()  # () = all of CASES
    seeds: tuple[int, ...] = (0,)
    allow_numerics: bool = False
    tolerances: Tolerances = Tolerances()
    per_case_budget_s: float = 2.0
    order_seed: int = 0
    timing: bool = True


class CaseTiming(Record, frozen=True):
    """Paired samples of one case in microseconds: block i ran the original twice and the candidate twice in a random ABBA order."""

    case: str
    original_us: tuple[tuple[float, float], ...] = ()
    candidate_us: tuple[tuple[float, float], ...] = ()
    original_wall_us: float = 0.0
    candidate_wall_us: float = 0.0
    late_us: float = 0.0  # device work of the candidate that went on after its end event (median)
    output_bytes: int = 0
    seconds: float = 0.0


class DeviceResult(Record, frozen=True):
    device: str
    correctness: tuple[CaseResult, ...] = ()
    timings: tuple[CaseTiming, ...] = ()
    write_bytes_per_s: float = 0.0  # measured on the flush buffer
    l2_bytes: int = 0
    clocks_mhz: float = 0.0


class ColdRequest(Record, frozen=True):
    """Call `launch` once on each case with an empty compile cache, in a fresh process."""

    case: KernelCase
    text: str
    cases: tuple[str, ...] = ()
    seed: int = 0


class ColdResult(Record, frozen=True):
    """`seconds` of the first call per case, in the order they ran; `compiled` counts kernels compiled."""

    seconds: dict[str, float] = {}
    compiled: int = 0
