"""GRD102: one program walks items that other programs could do."""

import ast
from collections.abc import Iterable

from leadline.model import Hypothesis, KernelFacts, Launch, Loop, Probe, Rewrite, SourceEdit
from leadline.rules.base import Rule, View, metric
from leadline.rules.grid.body import function, loop_node, reset_by
from leadline.rules.grid.examples.serial_loop import EXAMPLES
from leadline.rules.grid.grid_underfill import persistent, wanted_programs
from leadline.rules.grid.work import depth_trips, gain, launched, trips


class SerialLoop(Rule):
    """One program walks independent work items one after another.

    What it finds
        A loop whose iterations hand nothing to the next one and store to places that depend on the loop variable; or whose carried values
        start afresh at boundaries that the data mark (segments, sequences).

    Why it is slow
        The items wait for each other though nothing asks for it; the grid stays small and every load's latency is paid in full.

    How it is proved
        The loop carries no value and its stores depend on its variable (source); the sampled trip count and the grid of the launch.

    Rewrite and its safety
        The loop becomes a factor of the grid: its variable is taken from the program id. Safe when no value is carried, the loop ends the
        kernel and its bounds are known on the host.

    References
        CUDA C++ Best Practices Guide, section on exposing sufficient parallelism.
    """

    code = "GRD102"
    slug = "serial-loop"
    cause = "serial_loop"
    family = "grid"
    examples = EXAMPLES

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch, facts in launched(view):
            for loop in facts.loops:
                yield from self._loop(view, launch, facts, loop)

    def _loop(self, view: View, launch: Launch, facts: KernelFacts, loop: Loop) -> Iterable[Hypothesis]:
        stores = [a for a in facts.accesses if a.kind == "store" and loop.line <= a.line <= loop.end_line and loop.id in a.loops]
        count = trips(view, launch, loop, facts)
        if not stores or count < 2 or loop.kind == "while" or persistent(loop, view, launch, facts):
            return
        resets = reset_by(view, facts, loop) if loop.carried else ""
        if loop.carried and not resets:
            return
        wanted = wanted_programs(view, launch, facts)
        split = min(depth_trips(view, launch, loop, facts), max(1.0, 2 * wanted / max(1, launch.programs)))
        if resets:
            split = min(split, max(2.0, count / 8))  # how many segments there are is known to the data only
        if split < 1.5:
            return
        factor = gain(view, launch, split=split, chain=split)
        high = min(factor if factor is not None else split**0.5, split)
        if high < 1.03:
            return
        claim = (
            f"the loop walks {count:.0f} items and starts afresh where {resets}: "
            "the segments are independent, yet one program does them all"
            if resets
            else f"the loop walks {count:.0f} independent items (nothing is carried from one to the next) in {launch.programs} programs"
        )
        yield self.hypothesis(
            view,
            launch,
            line=loop.line,
            low=1.0 + (high - 1.0) * 0.5,
            high=high * 1.02,
            claim=claim,
            key=f"{launch.kernel}:{loop.line}",
            grade="observed" if view.loop_trips(launch.index, loop.line) else "suspected",
            sufficient_level=1,
            prediction="a grid as many times larger; the loop is gone",
            notes=("segmented",) if resets else (),
            facts=[
                metric("trips", count, "iterations", launch, loop.line),
                metric("programs", launch.programs, "programs", launch, loop.line, predicted=False, collector="trace"),
            ],
        )

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        for made in self.rewrite(view, hypothesis):
            yield Probe(
                claim="without the loop every item has its own program",
                grants=(SourceEdit(text=made.source, label=made.title),),
                signature="ttgir.for",
                expect="decrease",
                launch=hypothesis.launch,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        from leadline.rules.grid.unroll_to_grid import loop_to_grid

        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        facts = view.kernel(launch) if launch else None
        if launch is None or facts is None or "segmented" in hypothesis.notes:
            return
        node = function(view, facts)
        loop = loop_node(node, hypothesis.span.line) if node else None
        source = loop_to_grid(view, facts, node, loop) if node is not None and isinstance(loop, ast.For) else None
        if source:
            yield Rewrite(
                id="",
                rule=self.code,
                title="take the loop's variable from the program id",
                source=source,
                precondition="no value is carried, the loop ends the kernel, its bounds are arguments of the launch",
                prediction="the loop is gone from the compiled kernel",
                signature="ttgir.for",
                expect="decrease",
                finding=f"{self.code}:{hypothesis.key}",
            )
