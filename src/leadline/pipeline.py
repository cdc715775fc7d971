"""The stages in order and the loop over rounds: the file to read first.

    case -> evidence -> diagnosis -> proposal -> verification -> report

`diagnose` lets the line down once. `optimize` does so for every parent, proposes one change at a time, and lets the judge decide.
`verify` is the judge alone.
"""

import contextlib
import datetime
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from leadline.diagnose.engine import Diagnosis, Engine
from leadline.diagnose.findings import Numbered, findings, unified
from leadline.diagnose.gather import LiveGatherer, Workers
from leadline.errors import EvidenceError, KernelError, LeadlineError, UsageError, WorkerDied, WorkerError, WorkerTimeout
from leadline.execution.device import device_present
from leadline.execution.environment import Environment, EnvironmentRequest
from leadline.execution.store import Store
from leadline.ingest.case import read_source, read_target
from leadline.ingest.dry import CaseNames, TraceRequest
from leadline.model import Candidate, Finding, KernelCase, Round, Run, Unavailable, Verdict, content_hash
from leadline.model.probe import moved
from leadline.propose.base import Proposal, proposer
from leadline.rules.base import Rule, all_rules
from leadline.settings import DiagnoseOptions, OptimizeOptions, Progress, VerifyOptions
from leadline.verify.judge import JudgeRequest, judge

IMPORT_TIMEOUT_S = 60.0  # torch and triton are imported by then; what takes longer does work that belongs into launch
MAX_OTHERS = 4  # further cases traced for causes that only show across cases
SCREEN_BUDGET_S = 0.3  # device time per case when candidates are compared with each other
FINAL_BUDGET_S = 2.0
PLATEAU = 1.02  # three accepted rounds that together gain less than this end the search


def silent(stage: str, done: int, total: int) -> None:
    """Progress for nobody."""


class Session:
    """What one command needs: the case, its names, the store, the workers and the versions of what runs in them."""

    def __init__(self, options: DiagnoseOptions, stack: contextlib.ExitStack) -> None:
        if options.profile:
            raise EvidenceError("profiles cannot be imported yet", where=options.profile, remedy="run on a machine with a device")
        self.options = options
        self.store = Store(options.home or None)
        self.case = read_target(options.target_file, options.case_file or None)
        self.folder = str(Path(self.case.path).parent)
        with_device = options.device != "none" and device_present()
        self.workers = stack.enter_context(Workers(folder=self.folder, device=with_device, home=self.store.folder))
        self.workers.wake(self.case)
        self.scratch = Path(stack.enter_context(_scratch()))
        asked = EnvironmentRequest(target=options.target)
        self.environment = self.workers.compile.call("leadline.execution.environment:inspect", asked, Environment, timeout=120)
        self.versions = self.environment.versions
        if "triton" not in self.versions:
            raise EvidenceError(
                "triton is not installed in this Python", remedy="install triton beside leadline; leadline doctor says more"
            )
        self.names = self.describe(self.case)
        self.case_name = self._chosen(options.case)

    def describe(self, case: KernelCase) -> CaseNames:
        request = TraceRequest(case=case, case_name="", target=self.options.target)
        try:
            return self.workers.compile.call("leadline.ingest.dry:describe", request, CaseNames, timeout=IMPORT_TIMEOUT_S)
        except WorkerError as error:
            what = f"importing the file did not finish within {IMPORT_TIMEOUT_S:g} s" if isinstance(error, WorkerTimeout) else error.what
            if isinstance(error, WorkerDied):
                how = error.what.removeprefix("worker compile ").partition(" in leadline.")[0]
                what = f"importing the file ended the process: it {how}"
            raise KernelError(what, where=error.where or case.path, remedy="make the file import on its own") from None

    def _chosen(self, asked: str) -> str:
        if asked and asked not in (*self.names.cases, *self.names.small):
            raise UsageError(f"no case named '{asked}'", where=self.case.path, remedy=f"use one of {', '.join(self.names.cases)}")
        return asked or self.names.cases[0]

    def as_file(self, text: str) -> KernelCase:
        """A case whose file is this text, under a name that its content decides."""
        if text == self.case.source:
            return self.case
        path = self.scratch / content_hash(text) / Path(self.case.path).name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return msgspec.structs.replace(self.case, path=str(path), source=text)

    def start(self, command: str) -> Run:
        case = self.case
        return Run(
            id=content_hash((case.source, time.time_ns(), os.getpid()), 10),
            command=command,
            target=self.options.target,
            path=case.path,
            case=self.case_name,
            kernel=case.selected,
            versions=self.versions,
            source=case.source,
            device=self.environment.device if self.workers.device else None,
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )

    def spent(self, began: float) -> float:
        """Seconds since `began` that count against the budget: waiting for another process's use of the device does not."""
        return time.monotonic() - began - self.workers.waited_s

    def rules(self) -> list[Rule]:
        chosen, ignored = self.options.select, self.options.ignore
        known = {name for r in all_rules() for name in (r.code, r.slug)}
        for name in (*chosen, *ignored):
            if name not in known:
                raise UsageError(f"no rule '{name}'", remedy="leadline rules lists them")
        return [r for r in all_rules() if (not chosen or {r.code, r.slug} & set(chosen)) and not {r.code, r.slug} & set(ignored)]

    def diagnose(self, case: KernelCase, *, level: str, progress: Progress) -> Diagnosis:
        gather = LiveGatherer(case, self.workers, self.store, target=self.options.target, versions=self.versions)
        engine = Engine(
            gather,
            self.rules(),
            target=self.options.target,
            auto=level == "auto",
            progress=progress,
            deepest=4 if level == "auto" else int(level),
        )
        others = [name for name in self.names.cases if name != self.case_name][:MAX_OTHERS]
        return engine.run(self.case_name, others)


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="leadline-") as folder:
        yield folder


def diagnose(options: DiagnoseOptions, progress: Progress = silent) -> Run:
    """Findings of one case, ranked, with their evidence. Raises `LeadlineError` subclasses only."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        session = Session(options, stack)
        run = session.start("diagnose")
        diagnosis = session.diagnose(session.case, level=options.level, progress=progress)
        if options.level == "2" and diagnosis.view.profile is None:
            reason = next((u for u in diagnosis.unavailable if "level 2" in u.what), None)
            raise EvidenceError("level 2 was asked for and no device can be timed here", remedy=reason.remedy if reason else "")
        numbered = Numbered()
        run = _described(run, session.case, diagnosis, numbered)
        run = msgspec.structs.replace(run, seconds=round(time.monotonic() - began, 3))
        session.store.save_run(run)
        return run


def _described(run: Run, case: KernelCase, diagnosis: Diagnosis, numbered: Numbered) -> Run:
    """`run` with the diagnosis of the original file in it."""
    found, refuted = findings(diagnosis, case.source, case.path, numbered)
    return msgspec.structs.replace(
        run,
        levels=diagnosis.levels,
        findings=found,
        refuted=refuted,
        unavailable=diagnosis.unavailable,
        limit=diagnosis.view.limit,
        evidence=numbered.evidence,
        rewrites=numbered.rewrites,
        errors=diagnosis.errors,
    )


class _Node(msgspec.Struct):
    """A candidate that was accepted (or the original), with its diagnosis when it has been made."""

    candidate: Candidate
    round: int = 0
    gain: float = 1.0


def optimize(options: OptimizeOptions, progress: Progress = silent) -> Run:
    """The best verified rewrite of the file. Without a device nothing is measured: candidates are checked and ranked only."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        session = Session(options, stack)
        run = session.start("optimize")
        numbered = Numbered()
        original = Candidate(id=content_hash(session.case.source), source=session.case.source, proposer="original")
        strays = _check_original(session)
        parent = _Node(original)
        rounds: list[Round] = []
        tried = {original.id}
        gains: list[float] = []
        while len(rounds) < options.rounds * 8 and len(gains) < options.rounds and session.spent(began) < options.budget_s:
            case = session.as_file(parent.candidate.source)
            try:
                diagnosis = session.diagnose(case, level=options.level, progress=progress)
            except KernelError:
                if parent.round == 0:
                    raise
                break  # an accepted candidate that cannot be diagnosed is still the best so far
            if parent.round == 0:
                run = _described(run, session.case, diagnosis, numbered)
                run = msgspec.structs.replace(run, unavailable=(*run.unavailable, *strays))
                found = run.findings
            else:
                found, _ = findings(diagnosis, parent.candidate.source, session.case.path, numbered)
            proposals = [p for p in _proposals(session, options, parent.candidate, found, numbered) if p.candidate.id not in tried]
            if not proposals:
                break
            best = _best_of(session, options, parent, proposals, rounds, tried, began, progress)
            if best is None:
                break
            gains.append(best.gain / parent.gain)
            parent = best
            run = msgspec.structs.replace(run, rounds=tuple(rounds), best=parent.candidate.source)
            session.store.save_run(run)  # a crash from here on loses nothing
            if len(gains) >= 3 and gains[-1] * gains[-2] * gains[-3] < PLATEAU:
                break
        run = msgspec.structs.replace(run, rounds=tuple(rounds), evidence=numbered.evidence, rewrites=numbered.rewrites)
        if parent.candidate is not original:
            run = _settled(session, options, run, original, parent, progress)
        run = msgspec.structs.replace(run, findings=_graded(run), seconds=round(time.monotonic() - began, 3))
        session.store.save_run(run)
        return run


def _check_original(session: Session) -> tuple[Unavailable, ...]:
    """The user's own file must agree with its reference before anything is compared with it.

    An original that leaves its memory is reported, not refused: its lanes may be dead, and its rewrites are held to the same.
    """
    request = _request(session, session.case.source, session.case.source)
    verdict = judge(msgspec.structs.replace(request, baseline_only=True), session.workers)
    strays = [(c.case, note) for c in verdict.checks for note in c.detail.split("; ") if "out of bounds" in note]
    found = [
        Unavailable(
            what=f"proof that the original stays within its memory (case {case})", reason=note, remedy="mask the lanes beyond the end"
        )
        for case, note in strays
    ]
    for check in verdict.checks:
        if check.passed is None and check.name in ("interpreter", "device"):
            remedy = "give SMALL cases that end within seconds in the interpreter"
            found.append(Unavailable(what="check of the original against its reference", reason=check.detail, remedy=remedy))
    return tuple(found)


def _proposals(
    session: Session, options: OptimizeOptions, parent: Candidate, found: tuple[Finding, ...], numbered: Numbered
) -> list[Proposal]:
    out: list[Proposal] = []
    for name in options.proposers:
        if name == "search" and session.workers.device is None:
            continue  # a choice among constants that only a clock can make
        out += proposer(name).propose(parent, found, numbered.rewrites)
    return out


def _best_of(
    session: Session,
    options: OptimizeOptions,
    parent: _Node,
    proposals: list[Proposal],
    rounds: list[Round],
    tried: set[str],
    began: float,
    progress: Progress,
) -> _Node | None:
    """Judge proposals against the parent until one is accepted, then its alternatives; the best accepted one, or None.

    Without a device the first that keeps the semantics is taken as a step, unmeasured, once per finding.
    """
    best: _Node | None = None
    group = ""
    for position, proposal in enumerate(proposals):
        if best is not None and proposal.group != group:
            break
        if session.spent(began) > options.budget_s:
            break
        if proposal.candidate.id in tried:
            continue
        tried.add(proposal.candidate.id)
        progress(f"judging {proposal.candidate.title}", position, len(proposals))
        started = time.monotonic()
        verdict = _judged(session, options, parent.candidate.source, proposal, SCREEN_BUDGET_S)
        unmeasured = not verdict.measured and verdict.outcome == "inconclusive" and verdict.correct
        taken = verdict.outcome == "accepted" or unmeasured
        seen = _signature_seen(session, parent.candidate.source, proposal) if taken else ""
        rounds.append(
            Round(
                round=len(rounds) + 1,
                parent=parent.round,
                hypothesis=proposal.hypothesis,
                rewrite=proposal.candidate.rewrite or proposal.candidate.title,
                verdict=verdict.outcome,
                evidence=proposal.evidence,
                reason=verdict.reason,
                speedup=verdict.speedup,
                prediction=proposal.prediction,
                observed=seen,
                details=msgspec.structs.replace(verdict, predicted=proposal.prediction, observed=seen),
                seconds=round(time.monotonic() - started, 3),
            )
        )
        if taken:
            gain = parent.gain * (verdict.speedup.mid if verdict.speedup else 1.0)
            if best is None or gain > best.gain:
                best = _Node(proposal.candidate, len(rounds), gain)
            group = proposal.group
            if unmeasured:
                break
    return best


def _signature_seen(session: Session, parent: str, proposal: Proposal) -> str:
    """What the compiler shows of the prediction: the signature before and after, and whether it moved as it had to. "" without one.

    A gain whose predicted signature did not move was won for another reason than the one given; a reader must be told.
    """
    if not proposal.signature:
        return ""
    values: list[int] = []
    for text in (parent, proposal.candidate.source):
        gather = LiveGatherer(
            session.as_file(text), session.workers, session.store, target=session.options.target, versions=session.versions
        )
        try:
            trace = gather.trace(session.case_name)
            launch = next((x for x in trace.launches if x.kernel == proposal.kernel), trace.launches[0])
            compiled = gather.compile([launch])[launch.index]
        except (LeadlineError, IndexError) as error:
            return f"{proposal.signature} not seen: {error}"
        if isinstance(compiled, Unavailable) or compiled.error:
            return f"{proposal.signature} not seen: {compiled.reason if isinstance(compiled, Unavailable) else compiled.error}"
        values.append(compiled.counters.get(proposal.signature, 0))
    verdict = "as predicted" if moved(proposal.expect, *values) else "not as predicted"
    return f"{proposal.signature} {values[0]} → {values[1]}, {verdict}"


def _request(session: Session, original: str, candidate: str) -> JudgeRequest:
    return JudgeRequest(
        case=session.case,
        original=original,
        candidate=candidate,
        device=session.workers.device is not None,
        target=session.options.target,
    )


def _judged(
    session: Session, options: OptimizeOptions, original: str, proposal: Proposal, budget_s: float, *, first_call: bool = False
) -> Verdict:
    request = msgspec.structs.replace(
        _request(session, original, proposal.candidate.source),
        threshold=options.threshold - 1.0,
        allow_numerics=options.allow_numerics,
        applicability=proposal.applicability,
        per_case_budget_s=budget_s,
        compile_cost=first_call or any(r.first_call for r in all_rules() if r.code == proposal.rule),
    )
    return judge(request, session.workers)


def _settled(session: Session, options: OptimizeOptions, run: Run, original: Candidate, best: _Node, progress: Progress) -> Run:
    """The final candidate judged from scratch against the original: only this verdict is the run's result."""
    progress("judging the result against the original", 0, 1)
    cold = any(r.verdict == "accepted" and r.details and any(c.name == "compile_cost" for c in r.details.checks) for r in run.rounds)
    proposal = Proposal(candidate=best.candidate, hypothesis="all accepted changes together")
    verdict = _judged(session, options, original.source, proposal, FINAL_BUDGET_S, first_call=cold)
    number = len(run.rounds) + 1
    last = Round(
        round=number,
        parent=0,
        hypothesis=proposal.hypothesis,
        rewrite="final",
        verdict=verdict.outcome,
        reason=verdict.reason,
        speedup=verdict.speedup,
        details=verdict,
    )
    keep = verdict.outcome == "accepted" or (not verdict.measured and verdict.outcome == "inconclusive" and verdict.correct)
    source = best.candidate.source if keep else ""
    return msgspec.structs.replace(
        run, rounds=(*run.rounds, last), best=source, best_diff=unified(original.source, source, run.path) if source else ""
    )


def _graded(run: Run) -> tuple[Finding, ...]:
    """Findings whose rewrite was accepted on the clock are `verified`, when the final candidate was accepted too."""
    if not run.rounds or run.rounds[-1].rewrite != "final" or run.rounds[-1].verdict != "accepted":
        return run.findings
    won = {r.rewrite for r in run.rounds if r.verdict == "accepted"}
    return tuple(msgspec.structs.replace(f, grade="verified") if won & set(f.rewrites) else f for f in run.findings)


def verify(options: VerifyOptions, progress: Progress = silent) -> Run:
    """Judge NEW against OLD, wherever NEW came from. The verdict is the run's only round."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        old = DiagnoseOptions(
            target_file=options.old,
            case_file=options.case_file,
            case=options.case,
            target=options.target,
            device=options.device,
            home=options.home,
        )
        session = Session(old, stack)
        run = session.start("verify")
        new = Path(options.new)
        if not new.is_file():
            raise UsageError("no such file", where=options.new, remedy="give the path of the rewritten file")
        text = read_source(str(new))
        progress("judging", 0, 1)
        request = msgspec.structs.replace(
            _request(session, session.case.source, text),
            threshold=options.threshold - 1.0,
            allow_numerics=options.allow_numerics,
            per_case_budget_s=FINAL_BUDGET_S,
            compile_cost=options.first_call,
            cases=(options.case,) if options.case in session.names.cases else (),
        )
        verdict = judge(request, session.workers)
        entry = Round(
            round=1,
            parent=0,
            hypothesis=f"the candidate {new.name}",
            rewrite=options.new,
            verdict=verdict.outcome,
            reason=verdict.reason,
            speedup=verdict.speedup,
            details=verdict,
        )
        best = text if verdict.outcome == "accepted" else ""
        run = msgspec.structs.replace(
            run,
            rounds=(entry,),
            best=best,
            best_diff=unified(session.case.source, text, run.path),
            seconds=round(time.monotonic() - began, 3),
        )
        session.store.save_run(run)
        return run


__all__ = ["diagnose", "optimize", "verify"]
