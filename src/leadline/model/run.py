"""A run: everything one invocation learnt and did, in order; the only thing reports read."""

from leadline.model.base import Record
from leadline.model.evidence import Evidence, Unavailable
from leadline.model.finding import Finding, Hypothesis, Rewrite
from leadline.model.profile import Limit

SCHEMA = "leadline.run/1"


class Level(Record, frozen=True):
    """One level of the line let down: which of the three tests it passed, and why the engine went deeper (or stopped)."""

    level: int
    located: bool
    narrowed: bool
    explained: bool
    why_deeper: str = ""
    seconds: float = 0.0


class Interval(Record, frozen=True):
    low: float
    mid: float
    high: float


class Check(Record, frozen=True):
    """One gate of the judge: passed, failed or not run, and the figure it read."""

    name: str
    passed: bool | None  # None: could not be run here
    detail: str = ""
    case: str = ""


class Verdict(Record, frozen=True):
    """The judge's answer on one candidate. `accepted` needs a measured gain; without a device it is never True."""

    outcome: str  # accepted | rejected | inconclusive
    reason: str
    compiled: bool = False
    correct: bool | None = None
    checks: tuple[Check, ...] = ()
    speedup: Interval | None = None
    per_case: dict[str, Interval] = {}
    original_us: dict[str, float] = {}
    candidate_us: dict[str, float] = {}
    noise: float = 0.0
    predicted: str = ""
    observed: str = ""
    measured: bool = False


class Candidate(Record, frozen=True):
    """A whole file proposed in place of the original."""

    id: str
    source: str
    proposer: str
    rewrite: str = ""  # id of its last rewrite
    parent: str = ""  # id of the candidate it was made from, "" for the original
    title: str = ""


class Round(Record, frozen=True):
    round: int
    parent: int
    hypothesis: str
    rewrite: str
    verdict: str  # accepted | rejected | inconclusive
    evidence: tuple[str, ...] = ()
    reason: str = ""
    speedup: Interval | None = None
    prediction: str = ""
    observed: str = ""
    details: Verdict | None = None
    seconds: float = 0.0


class Run(Record, frozen=True):
    """See docs/run.schema.json. `evidence` and `rewrites` are keyed by id."""

    schema: str = SCHEMA
    id: str = ""
    command: str = ""
    target: str = "cuda:90"
    path: str = ""
    case: str = ""
    kernel: str = ""
    device: str | None = None
    versions: dict[str, str] = {}
    started: str = ""
    seconds: float = 0.0
    levels: tuple[Level, ...] = ()
    findings: tuple[Finding, ...] = ()
    refuted: tuple[Hypothesis, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    limit: Limit | None = None
    evidence: dict[str, Evidence] = {}
    rewrites: dict[str, Rewrite] = {}
    rounds: tuple[Round, ...] = ()
    best: str = ""  # source of the accepted candidate, "" when there is none
    best_diff: str = ""
    source: str = ""  # the original file
    errors: tuple[str, ...] = ()  # rules that crashed, with the line; the run goes on
