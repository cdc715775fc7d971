"""TIL105: registers or shared memory leave too few blocks on a multiprocessor."""

from collections.abc import Iterable

from leadline.model import Hypothesis, Option, Probe, ProbeOutcome
from leadline.rules.base import Rule, View, located, metric
from leadline.rules.grid.work import launched, resident, threads
from leadline.rules.tile.examples.low_occupancy import EXAMPLES


class LowOccupancy(Rule):
    """Registers or shared memory leave too few blocks on a multiprocessor.

    What it finds
        A compiled kernel without matrix products of which one multiprocessor holds one block, or at most a quarter of its warps, in a
        launch of several waves.

    Why it is slow
        While the block waits for its loads nothing else runs, and at its end the multiprocessor is empty until the next one has loaded.

    How it is proved
        Registers and shared memory from the assembler; compiled for more warps it takes fewer registers a thread, and then more warps
        fit on a multiprocessor. Fewer registers that hold no more warps prove nothing.

    Rewrite and its safety
        None of its own: tile-too-large and register-spill change the tile.

    References
        CUDA C++ Best Practices Guide, section on occupancy.
    """

    code = "TIL105"
    slug = "low-occupancy"
    cause = "low_occupancy"
    family = "tile"
    examples = EXAMPLES

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch, facts in launched(view):
            compiled = view.compiled.get(launch.index)
            if compiled is None or compiled.error or not compiled.resources.registers or facts.of_kind("dot"):
                continue
            held = resident(launch, view)
            warps = held * threads(launch) // 32
            waves = launch.programs / (view.sms * held)
            if waves < 2 or not (held <= 1 or warps <= 16):
                continue
            spilled = compiled.resources.spill_store_bytes + compiled.resources.spill_load_bytes
            # With the whole multiprocessor in one block, its start and its end are not overlapped by anything.
            high = 1.1 if held <= 1 else 1.05
            if warps <= 4:
                high += 0.15
            line = max(facts.accesses, key=lambda a: a.rank, default=None)
            at = line.line if line else facts.line
            yield self.hypothesis(
                view,
                launch,
                line=at,
                low=1.0,
                high=high,
                key=f"{launch.kernel}:occupancy",
                grade="located",
                sufficient_level=3,
                claim=f"{compiled.resources.registers} registers a thread and "
                f"{compiled.resources.smem} bytes of shared memory leave {held} block(s), "
                f"{warps} of 64 warps, on a multiprocessor",
                facts=[
                    located(
                        "ptxas",
                        f"{compiled.resources.registers} registers, {spilled} bytes spilled",
                        launch,
                        at,
                        compiled.resources.registers,
                    ),
                    metric("blocks_per_sm", held, "blocks", launch, at, collector="occupancy"),
                ],
            )

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        if launch is not None and launch.option("num_warps", 4) <= 8:
            warps = launch.option("num_warps", 4) * 2
            yield Probe(
                claim=f"{warps} warps need fewer registers a thread",
                grants=(Option(name="num_warps", value=warps),),
                signature="res.registers",
                expect="decrease",
                stage="sass",
                launch=hypothesis.launch,
            )

    def conclude(self, view: View, hypothesis: Hypothesis, outcomes: tuple[ProbeOutcome, ...]) -> Hypothesis:
        """Confirms only where the registers of the probe let more warps reside than now; else the finding stays as it is."""
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        compiled = view.compiled.get(hypothesis.launch)
        if launch is None or compiled is None or compiled.error:
            return hypothesis
        smem, warps = compiled.resources.smem, launch.option("num_warps", 4)
        now = resident_warps(view, compiled.resources.registers, smem, warps)
        fuller = tuple(
            o
            for o in outcomes
            for fact in o.probe.grants
            if isinstance(fact, Option) and isinstance(o.after, int)
            if resident_warps(view, o.after, smem, fact.value) > now
        )
        return super().conclude(view, hypothesis, fuller) if fuller else hypothesis


def resident_warps(view: View, registers: int, smem: int, warps: int) -> int:
    """Warps that one multiprocessor holds of blocks of `warps` warps with so many registers a thread and bytes of shared memory."""
    ceilings = view.ceilings
    blocks = min(32, (ceilings.threads_per_sm if ceilings else 2048) // (32 * warps))
    if registers:
        blocks = min(blocks, (ceilings.regs_per_sm if ceilings else 65536) // (-(-registers * 32 // 256) * 256 * warps))
    if smem:
        blocks = min(blocks, (ceilings.smem_per_sm if ceilings else 228 * 1024) // (smem + 1024))
    return blocks * warps
