"""TIL104: num_warps does not fit the tile."""

from collections.abc import Iterable

from leadline.model import Hypothesis, Launch, Option, Probe, Rewrite
from leadline.rules.base import Rule, View, metric
from leadline.rules.grid.work import LIFETIME_US, launched, threads, widest
from leadline.rules.tile.examples.warp_count import EXAMPLES


class WarpCount(Rule):
    """num_warps does not fit the tile.

    What it finds
        A program whose largest tile has fewer elements than the program has threads, so that threads hold copies of
        the same elements.

    Why it is slow
        Copies occupy slots that other programs could use, stores are predicated off, reductions cross warps through shared memory.

    How it is proved
        The sampled number of lanes against the threads of the launch; with fewer warps the barriers and shuffles of the reduction fall.

    Rewrite and its safety
        The option `num_warps` at the launch; the meaning does not change.

    References
        Triton language reference, `num_warps`.
    """

    code = "TIL104"
    slug = "warp-count"
    cause = "warp_count"
    family = "tile"
    examples = EXAMPLES

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch, facts in launched(view):
            lanes, line = widest(view, launch, facts)
            if facts.of_kind("dot") or lanes < 2 or launch.index not in view.samples:
                continue
            warps = launch.option("num_warps", 4)
            fitting = fitting_warps(lanes, min((a.itemsize for a in view.samples[launch.index].accesses if a.lanes == lanes), default=4))
            high = self._fewer(view, launch, warps, fitting) if lanes < threads(launch) else 1.0
            if high < 1.03:
                continue
            yield self.hypothesis(
                view,
                launch,
                line=line or facts.line,
                low=1.0 + (high - 1.0) * 0.3,
                high=high,
                key=f"{launch.kernel}:warps",
                sufficient_level=3,
                grade="observed",
                claim=f"the largest tile has {lanes} elements, "
                f"the program has {threads(launch)} threads: {threads(launch) / lanes:.0f} hold the same one",
                notes=(f"warps={fitting}",),
                prediction="fewer threads, none idle",
                facts=[
                    metric("lanes", lanes, "elements", launch, line),
                    metric("threads", threads(launch), "threads", launch, line, predicted=False),
                ],
            )

    def _fewer(self, view: View, launch: Launch, warps: int, fitting: int) -> float:
        """Speedup when more programs fit a multiprocessor: only a launch of several waves of short programs gains."""
        cost = view.costs.get(launch.index)
        held, could = min(32, 64 // warps), min(32, 64 // fitting)
        waves = launch.programs / (view.sms * held)
        if cost is None or cost.total_us <= 0 or waves < 2:
            return 1.0
        slots = waves * LIFETIME_US + cost.launch_us
        base = max(cost.dram_us, cost.l2_us, cost.compute_us) + cost.launch_us
        return max(base, slots) / max(base, slots * held / could)

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        fitting = _noted(hypothesis)
        if fitting and view.counter(hypothesis.launch, "barrier"):
            yield Probe(
                claim=f"{fitting} warps need no barrier",
                grants=(Option(name="num_warps", value=fitting),),
                signature="barrier",
                expect="decrease",
                stage="sass",
                launch=hypothesis.launch,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        from leadline.rules.grid.launch_text import with_options

        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        fitting = _noted(hypothesis)
        if launch is None or not fitting:
            return
        waits = bool(view.counter(launch.index, "barrier"))  # else nothing that is compiled shows the change
        for value in sorted({fitting, min(fitting * 2, max(1, launch.option("num_warps", 4) // 2))}):
            source = with_options(view, launch, {"num_warps": str(value)})
            if source:
                yield Rewrite(
                    id="",
                    rule=self.code,
                    title=f"num_warps = {value}",
                    source=source,
                    precondition="the launch names its number of warps",
                    prediction="fewer threads, fewer barriers" if waits else "fewer threads",
                    signature="barrier" if waits else "",
                    expect="decrease",
                    finding=f"{self.code}:{hypothesis.key}",
                    choices={"num_warps": value},
                )


def fitting_warps(lanes: int, itemsize: int) -> int:
    """Warps (a power of two, 1 to 16) that give each thread about four bytes to sixteen of the tile."""
    wanted = max(1, lanes * itemsize // (32 * 8))
    return min(16, 1 << (wanted.bit_length() - 1))


def _noted(hypothesis: Hypothesis) -> int:
    return next((int(n.split("=")[1]) for n in hypothesis.notes if n.startswith("warps=")), 0)
