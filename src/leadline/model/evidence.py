"""Evidence: what was seen, where, by which collector, and how to see it again. Absent evidence is a value too."""

from leadline.model.base import Record
from leadline.model.probe import Probe

Value = int | float | bool | str | None


class SourceFact(Record, frozen=True, tag="source_fact"):
    """Something read in the source (level 1)."""

    id: str
    what: str  # one line for a person
    file: str = ""
    line: int = 0
    collector: str = "source"
    reproduce: str = ""


class Metric(Record, frozen=True, tag="metric"):
    """A number about a launch (level 1 access sampling, level 2 timing, counters, predicted floors)."""

    id: str
    name: str
    value: float
    unit: str
    predicted: bool = False  # True: computed, not measured
    launch: int = -1
    file: str = ""
    line: int = 0
    collector: str = ""
    reproduce: str = ""


class IrFact(Record, frozen=True, tag="ir_fact"):
    """A count or an operation in one stage of the compile (level 3)."""

    id: str
    stage: str  # ttir ttgir llir ptx sass ptxas
    what: str
    value: Value = None
    launch: int = -1
    file: str = ""
    line: int = 0
    collector: str = "ir"
    reproduce: str = ""


class PassStep(Record, frozen=True, tag="pass_step"):
    """What one compiler pass did to a watched counter (level 4)."""

    id: str
    pass_name: str
    stage: str
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    seconds: float = 0.0
    launch: int = -1
    collector: str = "passes"
    reproduce: str = ""


class CompilerMessage(Record, frozen=True, tag="compiler_message"):
    """A line a pass printed about its own decision, mapped to the source line of the operation it names."""

    id: str
    channel: str  # debug | remark | warning | ptxas
    text: str
    kind: str = ""  # a stable slug for the message, e.g. "load_too_narrow_to_pipeline"; "" when it is not one we know
    pass_name: str = ""
    file: str = ""
    line: int = 0
    launch: int = -1
    collector: str = "passes"
    reproduce: str = ""


class ProbeOutcome(Record, frozen=True, tag="probe_outcome"):
    """A counterfactual compile: the facts granted, the signature before and after, and whether the prediction came true.

    `minimal` is the smallest set of granted facts that still flips the signature (leave-one-out); `control` is the signature of
    the unchanged kernel compiled again without the cache, which must equal `before`.
    """

    id: str
    probe: Probe
    before: Value
    after: Value
    flipped: bool
    control: Value = None
    minimal: tuple[str, ...] = ()
    left_out: dict[str, Value] = {}  # fact -> signature when only that fact is withheld
    error: str = ""
    seconds: float = 0.0
    launch: int = -1
    collector: str = "probes"
    reproduce: str = ""


class Unavailable(Record, frozen=True, tag="unavailable"):
    """Evidence that could not be had, why, and how to get it."""

    what: str
    reason: str
    remedy: str = ""
    id: str = ""


Evidence = SourceFact | Metric | IrFact | PassStep | CompilerMessage | ProbeOutcome | Unavailable
