"""Turns a diagnosis into what a run stores: findings, evidence by id, rewrites by id with their diffs."""

import re
from collections.abc import Iterable

import msgspec

from leadline.diagnose.engine import Diagnosis
from leadline.model import Evidence, Finding, Hypothesis, IrFact, Rewrite, Unavailable
from leadline.rules.editing import unified_diff

# Counters of a source line that are worth keeping by themselves (docs/signatures.md).
LINE_COUNTERS = (
    "global.load.bits", "global.store.bits", "async_copy", "mma.version", "convert_layout", "barrier", "spill", "atomic", "fp64", "int_div",
)  # fmt: skip
MACHINE_NOTE = re.compile(r"\w+=")  # "name=value": what a rule keeps for its own later steps
MOST_UNCITED = 60  # steps and messages of one launch that are kept although no finding cites them


class Numbered:
    """Gives evidence and rewrites their ids; equal evidence gets one id."""

    def __init__(self) -> None:
        self.evidence: dict[str, Evidence] = {}
        self.rewrites: dict[str, Rewrite] = {}
        self._known: dict[bytes, str] = {}

    def add(self, fact: Evidence) -> str:
        content = msgspec.json.encode(msgspec.structs.replace(fact, id=""))
        if content not in self._known:
            self._known[content] = f"e{len(self.evidence) + 1}"
            self.evidence[self._known[content]] = msgspec.structs.replace(fact, id=self._known[content])
        return self._known[content]

    def add_all(self, facts: Iterable[Evidence]) -> tuple[str, ...]:
        """Ids of the facts; what is unavailable is no evidence."""
        return tuple(self.add(f) for f in facts if not isinstance(f, Unavailable))

    def add_rewrite(self, rewrite: Rewrite, original: str, path: str) -> str:
        name = f"r{len(self.rewrites) + 1}"
        self.rewrites[name] = msgspec.structs.replace(rewrite, id=name, diff=rewrite.diff or unified(original, rewrite.source, path))
        return name


def unified(old: str, new: str, path: str) -> str:
    """Unified diff of two texts of one file, under the file's name; "" when they are equal."""
    return unified_diff(old, new, path.rsplit("/", 1)[-1])


def findings(diagnosis: Diagnosis, original: str, path: str, numbered: Numbered) -> tuple[tuple[Finding, ...], tuple[Hypothesis, ...]]:
    """(findings, refuted hypotheses) with ids filled in; their evidence and rewrites go into `numbered`."""
    names = {f"{h.rule}:{h.key}" for h in diagnosis.hypotheses}
    out: list[Finding] = []
    for h in diagnosis.hypotheses:
        name = f"{h.rule}:{h.key}"
        rewrites = tuple(numbered.add_rewrite(r, original, path) for r in diagnosis.rewrites.get(name, ()))
        out.append(
            Finding(
                rule=h.rule,
                cause=h.cause,
                grade=h.grade,
                file=h.span.file,
                line=h.span.line,
                column=h.span.column,
                end_line=h.span.end_line,
                end_column=h.span.end_column,
                summary=h.claim,
                estimate=h.estimate,
                kernel=h.kernel,
                launch=h.launch,
                key=h.key,
                why=" ".join(note for note in h.notes if not MACHINE_NOTE.match(note)),
                evidence=numbered.add_all(h.facts),
                against=numbered.add_all(h.counter),
                rewrite=rewrites[0] if rewrites else "",
                rewrites=rewrites,
                consequences=tuple(c for c in h.root_of if c in names),
            )
        )
    refuted = tuple(
        msgspec.structs.replace(h, evidence=numbered.add_all(h.facts), against=numbered.add_all(h.counter), facts=(), counter=())
        for h in diagnosis.refuted
    )
    _uncited(diagnosis, numbered)
    return tuple(out), refuted


def _uncited(diagnosis: Diagnosis, numbered: Numbered) -> None:
    """What levels 3 and 4 saw of each launch, whether a finding cites it or not: a run must answer questions that no rule asked."""
    view = diagnosis.view
    for index, compiled in view.compiled.items():
        launch = next((x for x in view.launches if x.index == index), None)
        if launch is None or compiled.error:
            continue
        used = compiled.resources
        for name, value in (("registers", used.registers), ("spill bytes", used.spill_store_bytes), ("shared memory bytes", used.smem)):
            numbered.add(
                IrFact(id="", stage="ptxas", what=name, value=value, launch=index, file=launch.kernel_file, line=launch.kernel_line)
            )
        for line, counts in sorted(compiled.line_counters.items()):
            for name, value in sorted(counts.items()):
                if name in LINE_COUNTERS and value:
                    fact = IrFact(id="", stage="line", what=name, value=value, launch=index, file=launch.kernel_file, line=line)
                    numbered.add(fact)
    for steps in view.steps.values():
        for step in steps[:MOST_UNCITED]:
            numbered.add(step)
    for messages in view.messages.values():
        for message in messages[:MOST_UNCITED]:
            numbered.add(message)
