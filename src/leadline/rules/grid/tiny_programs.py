"""GRD103: very many programs that each do next to nothing."""

from collections.abc import Iterable

from leadline.model import Hypothesis, KernelFacts, Launch, Rewrite
from leadline.rules.base import Rule, View, metric
from leadline.rules.grid.examples.tiny_programs import EXAMPLES
from leadline.rules.grid.work import LIFETIME_US, launched, program_bytes, resident, trips, widest

SMALL_BYTES = 4096
MANY_WAVES = 8
GROUPS = (8, 4, 16)


class TinyPrograms(Rule):
    """Very many programs that each do very little work.

    What it finds
        A grid of more than eight full waves whose programs have no loop and move less than about 4 KiB each, so that starting programs and
        waiting for one short chain of loads takes longer than moving the data.

    Why it is slow
        A program costs about a microsecond of a slot on its multiprocessor whatever it does; tables that neighbours share are read again.

    How it is proved
        The grid, the sampled bytes per program and how many programs a multiprocessor holds give the time of all the waves; the bytes give
        the floor.

    Rewrite and its safety
        Neighbours along one grid axis are joined: one program takes GROUP of them in an unrolled loop; what does not depend on that axis is
        loaded once. GROUP is 1 when it does not divide the axis, so no bound is needed.

    References
        unslothai/unsloth pull request 238 (a group of heads per program).
    """

    code = "GRD103"
    slug = "tiny-programs"
    cause = "tiny_programs"
    family = "grid"
    examples = EXAMPLES

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch, facts in launched(view):
            found = self._launch(view, launch, facts)
            if found:
                yield found

    def _launch(self, view: View, launch: Launch, facts: KernelFacts) -> Hypothesis | None:
        held = resident(launch, view)
        waves = launch.programs / (view.sms * held)
        asked = program_bytes(view, launch)
        lanes, _ = widest(view, launch, facts)
        size = asked or lanes * 4.0 * max(1, len(facts.accesses))
        if waves < MANY_WAVES or size > SMALL_BYTES or any(trips(view, launch, loop, facts) > 8 for loop in facts.loops):
            return None
        slots_us = waves * LIFETIME_US
        cost = view.costs.get(launch.index)
        if cost is None or cost.total_us <= 0:
            low, high = 1.1, min(3.0, 1.0 + waves / 50)
        else:
            # Starting programs overlaps with moving bytes: it counts only where it is the longer of the two.
            rest = max(cost.dram_us, cost.l2_us, cost.compute_us)
            high = (max(slots_us, rest) + cost.launch_us) / (max(rest, slots_us / GROUPS[0]) + cost.launch_us)
            low = 1.0 + (high - 1.0) * 0.5
        if high < 1.03:
            return None
        line = _line(facts)
        return self.hypothesis(
            view,
            launch,
            line=line,
            low=low,
            high=high,
            key=f"{launch.kernel}:{line}",
            sufficient_level=1,
            claim=f"{launch.programs} programs of about {size:.0f} bytes each: {waves:.0f} waves, "
            f"whose start alone takes about {slots_us:.0f} us",
            grade="observed" if asked else "suspected",
            prediction="fewer programs, each with several loads in flight",
            facts=[
                metric("programs", launch.programs, "programs", launch, line, predicted=False, collector="trace"),
                metric("bytes_per_program", size, "B", launch, line),
                metric("waves", waves, "waves", launch, line),
            ],
        )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        from leadline.rules.grid.coarsen import coarsened

        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        facts = view.kernel(launch) if launch else None
        if launch is None or facts is None:
            return
        for group in GROUPS:
            for axis, source in coarsened(view, launch, facts, group):
                yield Rewrite(
                    id="",
                    rule=self.code,
                    title=f"one program for {group} neighbours along grid axis {axis}",
                    source=source,
                    precondition=f"the kernel's statements depend on program_id({axis}) through names only; no early return",
                    prediction="the grid is smaller; loads shared by neighbours are made once",
                    finding=f"{self.code}:{hypothesis.key}",
                    choices={"GROUP": group},
                )


def _line(facts: KernelFacts) -> int:
    ids = facts.of_kind("program_id")
    return ids[-1].line if ids else facts.line
