"""Lets the line down: collects evidence level by level, only as deep as the three tests ask, and grades what the rules claim."""

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from leadline.diagnose.gather import Gatherer
from leadline.diagnose.ranking import expected_gain, ranked
from leadline.errors import KernelError
from leadline.model import Hypothesis, Launch, LaunchSample, Level, ProbeOutcome, Record, Rewrite, Trace, Unavailable
from leadline.rules.base import Rule, View

Progress = Callable[[str, int, int], None]

MIN_SHARE = 0.05  # launches below this share of the case's time are not compiled
MAX_COMPILED = 6
MAX_PROBED = 8  # hypotheses, best first
MAX_REWRITTEN = 10
NOTHING_LEFT = "no cause that the rules know is worth 3 %; the limit says how far the floor is"


class Diagnosis(Record, frozen=True):
    """What the engine found out; `hypotheses` are ranked, `rewrites` keyed by "RULE:key"."""

    view: View
    hypotheses: tuple[Hypothesis, ...]
    refuted: tuple[Hypothesis, ...]
    unavailable: tuple[Unavailable, ...]
    levels: tuple[Level, ...]
    rewrites: dict[str, tuple[Rewrite, ...]] = {}
    errors: tuple[str, ...] = ()


class Engine:
    """One diagnosis of one case. `deepest` is 1 to 4; `auto` stops as soon as the three tests hold."""

    def __init__(
        self,
        gather: Gatherer,
        rules: Sequence[Rule],
        *,
        target: str,
        auto: bool = True,
        deepest: int = 4,
        progress: Progress = lambda *_: None,
    ) -> None:
        family = target.split(":", 1)[0]
        self.gather, self.target, self.auto, self.deepest, self.progress = gather, target, auto, deepest, progress
        self.rules = [r for r in rules if family in r.targets]
        self.hypotheses: dict[str, Hypothesis] = {}
        self.unavailable: list[Unavailable] = []
        self.errors: list[str] = []
        self.levels: list[Level] = []

    def run(self, case_name: str, others: Sequence[str] = ()) -> Diagnosis:
        """Diagnose `case_name`; `others` are traced too, for causes that only show across cases."""
        started = time.monotonic()
        view = self._first(case_name, others)
        steps = {1: lambda v: v, 2: self._second, 3: self._third, 4: self._fourth}
        for level in range(1, self.deepest + 1):
            started = started if level == 1 else time.monotonic()  # tracing and sampling belong to level 1
            self.progress(("", "reading the source", "timing", "compiling", "asking the compiler")[level], level, self.deepest)
            view = msgspec.structs.replace(steps[level](view), level=level)
            self._apply(view)
            if level == 4:
                view = self._probe(view)
            passed, why = self._tests(level)
            last = level == self.deepest
            if last and not all(passed):
                if level < 4:
                    why = f"stopped at level {level} as asked: {why}"
                else:
                    why = f"inconclusive: {why}" if self._open() else NOTHING_LEFT
            self.levels.append(
                Level(
                    level=level,
                    located=passed[0],
                    narrowed=passed[1],
                    explained=passed[2],
                    why_deeper=why,
                    seconds=round(time.monotonic() - started, 3),
                )
            )
            if self.auto and all(passed):
                break
        order = ranked(list(self.hypotheses.values()))
        return Diagnosis(
            view=view,
            hypotheses=tuple(order),
            refuted=tuple(h for h in self.hypotheses.values() if h.refuted),
            unavailable=tuple(self.unavailable),
            levels=tuple(self.levels),
            rewrites=self._rewrites(view, order),
            errors=tuple(self.errors),
        )

    # -- levels -------------------------------------------------------------------------------------------------------

    def _first(self, case_name: str, others: Sequence[str]) -> View:
        trace = self.gather.trace(case_name)
        if not trace.launches:
            raise KernelError(
                "launch starts no Triton kernel",
                where=f"{self.gather.source(trace).path}, case {case_name}",
                remedy="name a case whose launch runs one",
            )
        if trace.fallback:
            self.unavailable.append(
                Unavailable(what=f"full-size launch of {case_name}", reason=trace.fallback, remedy="shapes of a small case stand in")
            )
        samples = self.gather.samples(trace.launches)
        if isinstance(samples, Unavailable):
            self.unavailable.append(samples)
            samples = ()
        sampled = {s.launch: s for s in samples}
        self.unavailable += _partial(trace, samples)
        costs = {x.index: self.gather.cost(x, sampled[x.index]) for x in trace.launches if x.index in sampled}
        trace = settled(trace, {i: c.total_us for i, c in costs.items()})
        kept = {x.index for x in trace.launches}
        sampled = {i: s for i, s in sampled.items() if i in kept}
        rest: list[Trace] = []
        for name in others:
            try:
                rest.append(self.gather.trace(name))
            except KernelError as error:
                self.unavailable.append(Unavailable(what=f"launches of case {name}", reason=str(error)))
        return View(
            source=self.gather.source(trace),
            target=self.target,
            trace=trace,
            others=tuple(rest),
            samples=sampled,
            costs={i: c for i, c in costs.items() if i in kept},
            limit=self.gather.limit(trace, sampled),
            ceilings=self.gather.ceilings(),
        )

    def _second(self, view: View) -> View:
        assert view.trace is not None
        profile = self.gather.profile(view.trace.case)
        if isinstance(profile, Unavailable):
            self.unavailable.append(profile)
            return view
        limit = view.limit
        if limit is not None and profile.total_us > 0:
            measured = self.gather.limit(view.trace, view.samples)
            seconds = profile.total_us * 1e-6
            limit = msgspec.structs.replace(
                measured,
                time_us=profile.total_us,
                fraction=measured.floor_us / profile.total_us,
                bytes_per_s=measured.bytes / seconds,
                flops_per_s=measured.flops / seconds,
            )
        return msgspec.structs.replace(view, profile=profile, limit=limit, ceilings=self.gather.ceilings())

    def _third(self, view: View) -> View:
        chosen = self._worth_compiling(view)
        compiled = dict(view.compiled)
        for index, answer in self.gather.compile(chosen).items():
            if isinstance(answer, Unavailable):
                self.unavailable.append(answer)
            else:
                compiled[index] = answer
                if answer.error:
                    launch = next(x for x in chosen if x.index == index)
                    raise KernelError(
                        f"kernel {launch.kernel} does not compile for {self.target}: {answer.error}",
                        where=f"{launch.kernel_file}:{answer.error_line or launch.kernel_line}",
                        remedy="mend the kernel first",
                    )
        return msgspec.structs.replace(view, compiled=compiled)

    def _fourth(self, view: View) -> View:
        wanted = {h.launch for h in self._open() if h.launch >= 0}
        messages, steps = dict(view.messages), dict(view.steps)
        for launch in self._worth_compiling(view):
            if wanted and launch.index not in wanted:
                continue
            answer = self.gather.explain(launch)
            if isinstance(answer, Unavailable):
                self.unavailable.append(answer)
                continue
            if not answer.debug_channel:
                self.unavailable.append(
                    Unavailable(
                        what="the passes' own debug output",
                        reason="this build of triton has none",
                        remedy="remarks and signatures are used instead",
                    )
                )
            messages[launch.index], steps[launch.index] = answer.messages, answer.steps
        return msgspec.structs.replace(view, messages=messages, steps=steps)

    def _worth_compiling(self, view: View) -> list[Launch]:
        """The launches that carry the time, one of each kind (same kernel and arguments up to sizes that do not specialise)."""
        seen: dict[tuple[object, ...], Launch] = {}
        for launch in sorted(view.launches, key=lambda x: view.share(x.index), reverse=True):
            kind = (
                launch.kernel_file,
                launch.kernel,
                tuple((a.type, a.divisible, a.value if a.constexpr else None) for a in launch.arguments),
            )
            if kind not in seen and (not seen or view.share(launch.index) >= MIN_SHARE):
                seen[kind] = launch
        return list(seen.values())[:MAX_COMPILED]

    # -- rules --------------------------------------------------------------------------------------------------------

    def _open(self) -> list[Hypothesis]:
        return ranked(list(self.hypotheses.values()))

    def _guarded(self, rule: Rule, what: str, call: Callable[[], object]) -> object:
        """A rule that crashes becomes a line of `errors`; the run goes on."""
        try:
            return call()
        except Exception as error:
            where = error.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            line = f"{where.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{where.tb_lineno}" if where else "?"
            self.errors.append(f"rule {rule.code} failed in {what}: {type(error).__name__}: {error} ({line})")
            return None

    def _apply(self, view: View) -> None:
        for rule in self.rules:
            for found in _listed(self._guarded(rule, "suspect", lambda r=rule: list(r.suspect(view)))):
                if not _suppressed(view, rule, found):
                    self.hypotheses.setdefault(f"{found.rule}:{found.key}", found)
            for name, hypothesis in list(self.hypotheses.items()):
                if hypothesis.rule == rule.code and not hypothesis.refuted:
                    better = self._guarded(rule, "explain", lambda r=rule, h=hypothesis: r.explain(view, h))
                    if isinstance(better, Hypothesis):
                        self.hypotheses[name] = better

    def _probe(self, view: View) -> View:
        outcomes: list[ProbeOutcome] = []
        launches = {x.index: x for x in view.launches}
        by_code = {r.code: r for r in self.rules}
        wanted = self._open()[:MAX_PROBED]
        for position, hypothesis in enumerate(wanted):
            self.progress("probing", position, len(wanted))
            rule = by_code[hypothesis.rule]
            mine: list[ProbeOutcome] = []
            for probe in _listed(self._guarded(rule, "probes", lambda r=rule, h=hypothesis: list(r.probes(view, h)))):
                launch = launches.get(hypothesis.launch if hypothesis.launch >= 0 else probe.launch)
                if launch is None:
                    continue
                answer = self.gather.probe(probe, launch)
                if isinstance(answer, Unavailable):
                    self.unavailable.append(answer)
                else:
                    mine.append(answer)
            if mine:
                outcomes += mine
                settled_now = self._guarded(rule, "conclude", lambda r=rule, h=hypothesis, m=tuple(mine): r.conclude(view, h, m))
                if isinstance(settled_now, Hypothesis):
                    self.hypotheses[f"{hypothesis.rule}:{hypothesis.key}"] = settled_now
        return msgspec.structs.replace(view, outcomes=tuple(outcomes))

    def _rewrites(self, view: View, order: list[Hypothesis]) -> dict[str, tuple[Rewrite, ...]]:
        by_code = {r.code: r for r in self.rules}
        out: dict[str, tuple[Rewrite, ...]] = {}
        for hypothesis in order[:MAX_REWRITTEN]:
            rule = by_code[hypothesis.rule]
            made = _listed(self._guarded(rule, "rewrite", lambda r=rule, h=hypothesis: list(r.rewrite(view, h))))
            if made:
                name = f"{hypothesis.rule}:{hypothesis.key}"
                out[name] = tuple(msgspec.structs.replace(r, finding=name) for r in made)
        return out

    # -- the three tests ----------------------------------------------------------------------------------------------

    def _tests(self, level: int) -> tuple[tuple[bool, bool, bool], str]:
        """(located, narrowed, explained) of the best hypothesis at this level, and the first test that failed in words."""
        order = self._open()
        if not order:
            return (False, False, False), "nothing known explains the cost yet"
        best = order[0]
        located = best.span.line > 0 and best.grade != "suspected"
        rivals = [h for h in order[1:] if h.cause != best.cause]
        narrowed = not rivals or expected_gain(best) >= 1.5 * expected_gain(rivals[0])
        explained = best.grade in ("confirmed", "verified") or (best.sufficient_level <= level and best.grade != "suspected")
        if not located:
            why = f"{best.rule} is only suspected"
        elif not narrowed:
            why = f"{best.rule} and {rivals[0].rule} explain about as much"
        elif not explained:
            why = f"{best.rule} needs evidence of level {max(best.sufficient_level, level + 1)}"
        else:
            why = ""
        return (located, narrowed, explained), why


def settled(trace: Trace, predicted_us: dict[int, float]) -> Trace:
    """The trace with one variant per autotuned launch: the one predicted fastest (the first when nothing is predicted)."""
    kept: list[Launch] = []
    groups: dict[tuple[object, ...], list[Launch]] = {}
    for launch in trace.launches:
        if launch.variants <= 1:
            kept.append(launch)
        else:
            order = launch.index - launch.variant_index
            groups.setdefault((order, launch.kernel, launch.call_line), []).append(launch)
    for variants in groups.values():
        kept.append(min(variants, key=lambda x: (predicted_us.get(x.index, float("inf")), x.variant_index)))
    return msgspec.structs.replace(trace, launches=tuple(sorted(kept, key=lambda x: x.index)))


def _partial(trace: Trace, samples: Sequence[LaunchSample]) -> list[Unavailable]:
    """One entry per kernel whose programs could not be run to their end: floors and predictions then count only what did run."""
    names = {launch.index: launch.kernel for launch in trace.launches}
    reasons = {(names.get(s.launch, ""), s.note): None for s in samples if "stopped: " in s.note or s.note.startswith("cannot sample")}
    remedy = "read its floor and predictions as those of a part"
    return [Unavailable(what=f"all accesses of {kernel}", reason=note, remedy=remedy) for kernel, note in reasons]


def _suppressed(view: View, rule: Rule, hypothesis: Hypothesis) -> bool:
    names = view.source.suppressions.get(hypothesis.span.line, ())
    return hypothesis.span.file == view.source.path and (rule.code in names or rule.slug in names)


def _listed(value: object) -> Iterable:
    return value if isinstance(value, list) else ()
