"""Hypotheses, findings and rewrites."""

from leadline.model.base import Record, Span
from leadline.model.evidence import Evidence
from leadline.model.probe import Probe

GRADES = ("suspected", "observed", "located", "confirmed", "verified")


class Estimate(Record, frozen=True):
    """Expected speedup of the case if the cause is removed, as a range; `local` means of this launch alone."""

    kind: str  # local | global
    low: float
    high: float

    @property
    def mid(self) -> float:
        return (self.low * self.high) ** 0.5


class Hypothesis(Record, frozen=True):
    """A claim that a rule makes, with what it predicts. `key` tells one place from another within a rule."""

    rule: str
    cause: str
    claim: str
    span: Span
    estimate: Estimate
    kernel: str = ""
    launch: int = -1
    key: str = ""
    prediction: str = ""
    facts: tuple[Evidence, ...] = ()  # evidence for, as the rule read it; the engine gives it ids
    counter: tuple[Evidence, ...] = ()  # evidence against
    evidence: tuple[str, ...] = ()  # ids, filled by the engine
    against: tuple[str, ...] = ()
    grade: str = "suspected"
    refuted: str = ""  # the reason, when evidence refuted it
    root_of: tuple[str, ...] = ()  # keys of consequences, "RULE:key"
    sufficient_level: int = 3  # the level whose evidence can explain this cause
    notes: tuple[str, ...] = ()


class Edit(Record, frozen=True):
    """Replace the text of `span` in `file`; spans of one rewrite do not overlap."""

    file: str
    start: int  # character offset
    end: int
    text: str


class Rewrite(Record, frozen=True):
    """A deterministic change of kernel and wrapper together.

    `applicability`: safe | guarded | changes_numerics | unsafe. `precondition` is the machine-checked sentence; `guard` is the host
    expression that dispatches to the original when false. `source` is the whole file after the rewrite.
    """

    id: str
    rule: str
    title: str
    source: str
    applicability: str = "safe"
    precondition: str = ""
    guard: str = ""
    prediction: str = ""
    signature: str = ""  # counter that must move
    expect: str = "decrease"
    diff: str = ""
    finding: str = ""  # key of the finding it mends, "RULE:key"
    choices: dict[str, int] = {}  # constants chosen among variants


class Finding(Record, frozen=True):
    """A hypothesis that survived, as users see it."""

    rule: str
    cause: str
    grade: str
    file: str
    line: int
    summary: str
    estimate: Estimate
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    kernel: str = ""
    launch: int = -1
    key: str = ""
    why: str = ""
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    rewrite: str = ""
    rewrites: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()
