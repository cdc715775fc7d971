"""GRD107: the last wave of programs leaves most of the device idle."""

import math
from collections.abc import Iterable

from leadline.model import Hypothesis, Launch
from leadline.rules.base import Rule, View, metric, refuted
from leadline.rules.grid.examples.tail_wave import EXAMPLES
from leadline.rules.grid.work import depth_trips, launched, resident


class TailWave(Rule):
    """The last wave leaves most of the device idle.

    What it finds
        A grid of a few waves (1 to 6) of long programs, of which the last wave is less than two thirds full.

    Why it is slow
        Every program takes equally long, so a wave of a few programs takes as long as a full one.

    How it is proved
        Programs, multiprocessors and programs per multiprocessor (from registers and shared memory, once compiled) give the waves.

    Rewrite and its safety
        None of its own: a smaller tile, a split or a persistent grid change the waves; the search over tiles measures them.

    References
        NVIDIA, Matrix multiplication background user's guide, section on wave quantization.
    """

    code = "GRD107"
    slug = "tail-wave"
    cause = "tail_wave"
    family = "grid"
    examples = EXAMPLES

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch, facts in launched(view):
            waves = self._waves(view, launch)
            cost = view.costs.get(launch.index)
            long = any(depth_trips(view, launch, loop, facts) >= 8 for loop in facts.loops)
            if launch.index not in view.compiled or not long or cost is None or not 1.0 < waves < 6.0 or launch.programs <= view.sms:
                continue
            lost = math.ceil(waves) / waves
            if waves - math.floor(waves) > 0.66 or lost < 1.08:
                continue
            # Memory-bound work fills the bandwidth in the last wave with fewer programs; only the rest of the time has a tail.
            bound = max(cost.compute_us, cost.latency_us)
            if bound <= cost.dram_us:
                continue
            high = min(lost, bound / max(cost.dram_us, 1e-9))
            yield self.hypothesis(
                view,
                launch,
                line=launch.call_line,
                file=launch.call_file,
                low=1.0 + (high - 1.0) * 0.15,
                high=1.0 + (high - 1.0) * 0.6,
                key=f"{launch.kernel}:tail",
                grade="observed",
                sufficient_level=3,
                claim=f"{launch.programs} programs are {waves:.2f} waves: "
                f"the last one leaves {1 - (waves - math.floor(waves)):.0%} of the device idle",
                facts=[metric("waves", waves, "waves", launch, launch.call_line)],
            )

    def _waves(self, view: View, launch: Launch) -> float:
        return launch.programs / (view.sms * resident(launch, view))

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        if launch is None or launch.index not in view.compiled:
            return hypothesis
        waves = self._waves(view, launch)
        if waves <= 1.0 or waves - math.floor(waves) > 0.66:
            return refuted(hypothesis, f"with the compiled kernel's registers and shared memory the grid is {waves:.2f} waves")
        return hypothesis
