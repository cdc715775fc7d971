"""Counterfactual compiles: grant the compiler facts and see whether the predicted signature moves. Runs in the compile worker."""

import difflib
import hashlib
import time
from pathlib import Path

from leadline.backends.base import CompileRequest, ProbeRequest
from leadline.backends.nvidia.compile import compile_launch
from leadline.backends.nvidia.signature import read, stage_of
from leadline.errors import UsageError
from leadline.model import Compiled, Fact, ProbeOutcome, SourceEdit
from leadline.model.base import content_hash
from leadline.model.probe import moved

EXPECTED = ("decrease", "increase", "zero", "nonzero")
_KEPT = 64
_compiled: dict[str, Compiled] = {}  # probes on one launch share their baseline and each other's steps


def run_probe(request: ProbeRequest) -> ProbeOutcome:
    """Compile with all grants, compare with the unchanged kernel, and find the smallest set of grants that still suffices.

    A kernel that does not compile, with or without the grants, gives an outcome with `error`; so does a control that differs from
    `before`. Raises `UsageError` for an unknown direction, target or argument.
    """
    started = time.perf_counter()
    probe = request.probe
    if probe.expect not in EXPECTED:
        raise UsageError(f"unknown direction {probe.expect!r}", remedy=f"use one of {', '.join(EXPECTED)}")
    experiment = _Experiment(request)
    before = experiment.measure(())
    after: int | None = None
    control: int | None = None
    left_out: dict[str, int | None] = {}
    minimal: tuple[Fact, ...] = ()
    flipped = False
    if before is not None:
        control = experiment.control()
        after = experiment.measure(probe.grants) if control == before else None
        if control != before:
            experiment.error = f"not reproducible: {probe.signature} was {before} and then {control} for the same kernel"
        elif after is not None and (flipped := moved(probe.expect, before, after)):
            minimal = probe.grants
            if len(probe.grants) > 1:
                minimal, left_out = experiment.reduce(probe.grants, after)
    return ProbeOutcome(
        id=f"probe:{request.launch.index}:{content_hash(probe, 10)}",
        probe=probe,
        before=before,
        after=after,
        flipped=flipped,
        control=control,
        minimal=tuple(fact.describe() for fact in minimal),
        left_out=dict(left_out),
        error=experiment.error,
        seconds=time.perf_counter() - started,
        launch=request.launch.index,
    )


def as_far(expect: str, reached: int, value: int) -> bool:
    """Whether `value` is at least as far in the expected direction as `reached`: withholding the fact lost nothing."""
    if expect == "decrease":
        return value <= reached
    if expect == "increase":
        return value >= reached
    return value == 0 if expect == "zero" else value != 0


class _Experiment:
    def __init__(self, request: ProbeRequest) -> None:
        self.request, self.error = request, ""
        self.stage = stage_of(request.probe.signature, request.probe.stage)
        try:
            self.text = Path(request.launch.kernel_file).read_text(encoding="utf-8")
        except OSError:
            self.text = ""
        digest = hashlib.sha256(self.text.encode()).hexdigest()
        self._base = content_hash([request.launch, request.target, digest], 32)

    def measure(self, grants: tuple[Fact, ...]) -> int | None:
        """The signature with these grants; None when that kernel does not compile (`error` says why)."""
        key = self._key(grants)
        if key not in _compiled:
            if len(_compiled) >= _KEPT:
                del _compiled[next(iter(_compiled))]
            _compiled[key] = self._compile(grants, self.stage)
        compiled = _compiled[key]
        if compiled.error:
            what = "with the facts granted the kernel does not compile" if grants else "the kernel does not compile"
            self.error = f"{what}: {compiled.error}"
            return None
        return read(compiled, self.request.probe.signature, self._line(grants))

    def control(self) -> int | None:
        """The signature of the unchanged kernel compiled once more, from nothing.

        ptxas is a function of its input, so at stage "sass" an identical PTX text is control enough and saves the slowest second.
        """
        probe = self.request.probe
        first = _compiled[self._key(())]
        again = self._compile((), "ptx" if self.stage == "sass" else self.stage)
        if self.stage == "sass" and "ptx" in again.stages:
            if again.stages["ptx"] == first.stages.get("ptx"):
                return read(first, probe.signature, probe.line)
            again = self._compile((), self.stage)
        return read(again, probe.signature, probe.line)

    def reduce(self, grants: tuple[Fact, ...], reached: int) -> tuple[tuple[Fact, ...], dict[str, int | None]]:
        """(smallest set that gets as far as all grants, signature when only that fact is withheld). First come, first dropped."""
        error = self.error
        left_out: dict[str, int | None] = {}
        kept = list(grants)
        for fact in grants:
            without = tuple(g for g in grants if g is not fact)
            value = left_out[fact.describe()] = self.measure(without)
            smaller = tuple(g for g in kept if g is not fact)
            if smaller and len(smaller) < len(without):
                value = self.measure(smaller)
            if smaller and value is not None and as_far(self.request.probe.expect, reached, value):
                kept = list(smaller)
        self.error = error  # a kernel that fails without one fact only shows that the fact is needed
        return tuple(kept), left_out

    def _key(self, grants: tuple[Fact, ...]) -> str:
        return content_hash([self._base, self.stage, grants], 32)

    def _compile(self, grants: tuple[Fact, ...], stage: str) -> Compiled:
        request = self.request
        edits = any(isinstance(grant, SourceEdit) for grant in grants)
        launch = request.edited if edits and request.edited is not None else request.launch
        return compile_launch(CompileRequest(launch=launch, target=request.target, stage=stage, grants=grants, fresh=True))

    def _line(self, grants: tuple[Fact, ...]) -> int:
        """The probed line, in the edited text when a grant edits the source."""
        line = self.request.probe.line
        edit = next((grant for grant in reversed(grants) if isinstance(grant, SourceEdit)), None)
        return line if edit is None or not line else moved_line(self.text, edit.text, line)


def moved_line(old: str, new: str, line: int) -> int:
    """Where line `line` of `old` is in `new`; a changed line is taken to be the one at the same place of the changed block."""
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    for _, start, end, new_start, new_end in matcher.get_opcodes():
        if start < line <= end:
            return min(new_start + line - start, max(new_end, new_start + 1))
    return line
