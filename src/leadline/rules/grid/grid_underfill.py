"""GRD101: too few programs for the multiprocessors while each has much to do."""

from collections.abc import Iterable

from leadline.model import Hypothesis, KernelFacts, Launch, Loop, Rewrite, SourceFact
from leadline.rules.base import Rule, View, metric, raised, seen
from leadline.rules.grid.examples.grid_underfill import EXAMPLES
from leadline.rules.grid.work import depth_trips, gain, launched, program_bytes, threads, trips, widest

# Warps that a multiprocessor wants: enough loads in flight for its share of the memory; products need fewer.
WARPS_WANTED = 16
WARPS_WANTED_DOT = 8


def wanted_programs(view: View, launch: Launch, facts: KernelFacts) -> float:
    """Programs that it takes to give every multiprocessor the warps it wants."""
    warps = WARPS_WANTED_DOT if facts.of_kind("dot") else WARPS_WANTED
    return view.sms * max(1.0, warps * 32 / threads(launch))


class GridUnderfill(Rule):
    """Too few programs to fill the device.

    What it finds
        A launch of fewer programs than the device has multiprocessors (or than it takes to give each of them eight warps), in which every
        program walks a long loop or holds a large tile.

    Why it is slow
        Programs do not move: multiprocessors without one stay idle, and one program keeps too few loads in flight to use the memory.

    How it is proved
        The grid of the traced launch, the sampled trip counts and the cost model: the same work on all multiprocessors, bounded below by
        the bytes it must move.

    Rewrite and its safety
        An accumulation over a long axis is split over a second grid axis; partial results go to a buffer that a second kernel combines
        (softmax statistics by their maximum, sums by addition). The order of additions changes (changes_numerics).

    References
        Dao et al., Flash-Decoding for long-context inference, 2023; split-K and stream-K in NVIDIA CUTLASS.
    """

    code = "GRD101"
    slug = "grid-underfill"
    cause = "grid_underfill"
    family = "grid"
    examples = EXAMPLES

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch, facts in launched(view):
            yield from self._launch(view, launch, facts)

    def _launch(self, view: View, launch: Launch, facts: KernelFacts) -> Iterable[Hypothesis]:
        wanted = wanted_programs(view, launch, facts)
        if launch.programs >= wanted or launch.programs == 0:
            return
        loop, count = longest_loop(view, launch, facts)
        lanes, line = widest(view, launch, facts)
        # A tile whose lanes meet in a reduction cannot simply be cut.
        whole = bool(facts.of_kind("sum", "max", "min", "argmax", "argmin", "reduce", "scan", "dot"))
        units = count if loop else 1.0 if whole else lanes / (threads(launch) * 4)
        split = min(wanted / launch.programs, units)
        if split < 1.5:
            return
        extra = 0.0
        if loop and loop.carried:
            # Partial results need a second, small kernel: a launch and one more trip through memory.
            extra = (view.ceilings.launch_us if view.ceilings else 3.0) + 1.0
        factor = gain(view, launch, split=split, chain=split, overhead_us=extra, overlap=bool(facts.of_kind("dot")))
        high = min(factor if factor is not None else split**0.5, split)
        if launch.programs >= view.sms:
            # Every multiprocessor has work; whether its warps suffice is less certain than whether it has any.
            high = 1.0 + (high - 1.0) * 0.5
        if high < 1.03:
            return
        at = loop.line if loop else line or facts.line
        work = f"a loop of about {count:.0f} iterations" if loop else f"a tile of {lanes} elements"
        axis = split_axis(loop, facts)
        yield self.hypothesis(
            view,
            launch,
            line=at,
            low=1.0 + (high - 1.0) * 0.5,
            high=high,
            grade="observed" if launch.index in view.samples else "suspected",
            claim=f"{launch.programs} programs for {view.sms} multiprocessors, each with {work}; "
            f"splitting {axis} would give {split:.0f} times as many",
            key=f"{launch.kernel}:{at}",
            sufficient_level=1,
            prediction="more programs, shorter loops; the time falls towards the memory floor",
            facts=[
                metric("programs", launch.programs, "programs", launch, at, predicted=False, collector="trace"),
                metric("trips", count, "iterations", launch, at),
                metric("bytes_per_program", program_bytes(view, launch), "B", launch, at),
            ],
        )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        cost = view.costs.get(hypothesis.launch)
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        measured = view.measured_us(hypothesis.launch)
        if measured is not None and cost and launch and hypothesis.grade == "suspected":
            floor = max(cost.dram_us, 1e-3) + cost.launch_us
            if measured > 1.3 * floor:
                return raised(
                    hypothesis,
                    "observed",
                    metric("time_over_memory_floor", measured / floor, "x", launch, predicted=False, collector="timing"),
                )
        if view.level >= 3 and launch and not any(isinstance(f, SourceFact) for f in hypothesis.facts):
            text = f"the grid {launch.grid} is chosen on the host; no compiler pass changes it"
            return raised(hypothesis, hypothesis.grade, seen(text, launch.call_file, launch.call_line))
        return hypothesis

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        from leadline.rules.grid.smaller_block import smaller_blocks
        from leadline.rules.grid.split_loop import split

        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        facts = view.kernel(launch) if launch else None
        loop, count = longest_loop(view, launch, facts) if launch and facts else (None, 1.0)
        if launch is None or facts is None:
            return
        for title, source, choices in list(smaller_blocks(view, launch, facts, 2 * view.sms / max(launch.programs, 1)))[:3]:
            yield Rewrite(
                id="",
                rule=self.code,
                title=title,
                source=source,
                precondition="the block is a literal of the launch and divides an axis of the grid",
                prediction="more programs with the same work a thread",
                finding=f"{self.code}:{hypothesis.key}",
                choices=choices,
            )
        if loop is None:
            return
        # Four programs a multiprocessor hide each other's latency; more only make more partial results.
        for most, wanted in ((64, 4 * view.sms), (32, 8 * view.sms), (16, 2 * view.sms)):
            ways = min(most, 1 << max(0, int(count / 2)).bit_length())
            source = split(view, launch, facts, loop.line, ways, wanted)
            if source:
                yield Rewrite(
                    id="",
                    rule=self.code,
                    title=f"split the loop over the grid, at most {ways} ways, and combine",
                    source=source,
                    applicability="changes_numerics",
                    precondition="everything the loop carries is a sum, a maximum or the statistics of a softmax",
                    prediction="more programs, shorter loops, one small launch more",
                    finding=f"{self.code}:{hypothesis.key}",
                    choices={"splits": ways},
                )


def longest_loop(view: View, launch: Launch, facts: KernelFacts) -> tuple[Loop | None, float]:
    """The loop of the kernel with the most iterations (of all nested ones together) and that number; (None, 1) without a loop of two."""
    best: tuple[Loop | None, float] = (None, 1.0)
    for loop in facts.loops:
        # An unrolled loop has no chain: its loads are all in flight at once.
        if loop.kind == "static_range" or persistent(loop, view, launch, facts):
            continue
        count = depth_trips(view, launch, loop, facts)
        if count > max(best[1], 1.5) and trips(view, launch, loop, facts) > 1.5:
            best = (loop, count)
    return best


def persistent(loop: Loop, view: View, launch: Launch, facts: KernelFacts) -> bool:
    """Whether the loop strides over the grid: its step is the number of programs, so its length already follows the grid."""
    if "num_programs" in loop.step or "num_programs" in loop.start:
        return True
    return "program_id" in loop.start and loop.step not in ("1", "") and loop.start.strip().startswith("tl.program_id")


def split_axis(loop: Loop | None, facts: KernelFacts) -> str:
    """What a split would cut, in words."""
    if loop is None:
        return "the tile"
    what = f"`{loop.target}` in [{loop.start}, {loop.stop})" if loop.target else "the loop"
    if any(o.kind == "dot" and o.loop == loop.id for o in facts.operations):
        return f"{what} (partial products, summed by a second kernel)" if len(loop.carried) <= 3 else f"{what} (partial results)"
    return f"{what} (partial results, combined by a second kernel)" if loop.carried else what
