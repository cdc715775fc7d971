"""TIL101: live values exceed the registers."""

from collections.abc import Iterable

import msgspec

from leadline.model import Hypothesis, KernelFacts, Launch, Option, Probe, Rewrite
from leadline.rules.base import Rule, View, located, metric, raised, refuted
from leadline.rules.grid.work import depth_trips, launched, threads
from leadline.rules.tile.examples.register_spill import EXAMPLES
from leadline.rules.tile.pressure import pressure

SPILL = ("sass.STL", "sass.LDL")
# Bytes a spilled byte costs, in units of DRAM bandwidth: local memory lives in L1 and L2, so it is cheaper than DRAM.
LOCAL_FACTOR = 3.0


class RegisterSpill(Rule):
    """Live values exceed the registers.

    What it finds
        Tiles whose elements per thread exceed the registers a thread may have; after compiling, spill stores and loads in the machine code.

    Why it is slow
        Spilled values make a round trip through local memory, in a loop on every iteration, and compete for the cache with the data.

    How it is proved
        The assembler's spill bytes and the STL/LDL instructions with their source lines; compiled again with two and four times the warps,
        the spills must vanish.

    Rewrite and its safety
        More warps for the same tile (the meaning does not change, reductions may add in another order), or a smaller tile.

    References
        CUDA C++ Programming Guide, section on local memory.
    """

    code = "TIL101"
    slug = "register-spill"
    cause = "register_spill"
    family = "tile"
    examples = EXAMPLES

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch, facts in launched(view):
            spilled = _spill_bytes(view, launch)
            wanted, line, lanes = pressure(view, launch, facts)
            if spilled == 0 or (spilled is None and wanted < 1.1):
                continue
            low, high = self._estimate(view, launch, facts, spilled, wanted)
            at = _line(view, launch) or line
            yield self.hypothesis(
                view,
                launch,
                line=at,
                low=low,
                high=high,
                key=f"{launch.kernel}:spill",
                sufficient_level=3,
                claim=f"tiles of up to {lanes} elements on {threads(launch)} threads "
                f"want {wanted * 100:.0f}% of the registers a thread has left",
                grade="suspected",
                prediction="no spill bytes with more threads per tile",
                facts=[metric("register_demand", wanted, "x", launch, line, collector="source")],
            )

    def _estimate(self, view: View, launch: Launch, facts: KernelFacts, spilled: int | None, wanted: float) -> tuple[float, float]:
        if spilled is None:
            high = min(5.0, 1.0 + 2.0 * (wanted - 1.0))
            return 1.0 + (high - 1.0) * 0.25, high
        cost = view.costs.get(launch.index)
        rate = view.ceilings.copy_bytes_per_s if view.ceilings else 4e12
        repeats = 1.0
        line = _line(view, launch)
        for loop in facts.loops:
            if loop.line <= line <= loop.end_line:
                repeats = max(repeats, depth_trips(view, launch, loop, facts) / 2)
        spill_us = spilled * threads(launch) * launch.programs * repeats / (rate * LOCAL_FACTOR) * 1e6
        base = cost.total_us if cost and cost.total_us > 0 else spill_us
        # A thread that spills has all its registers in use: few warps are left to hide the round trips.
        high = min(5.0, 1.0 + 2.0 * spill_us / max(base, 1e-9), 1.0 + spilled / 32)
        if wanted > 1.3:
            high = max(high, min(4.0, wanted))
        return 1.0 + (high - 1.0) * 0.4, high

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        facts = view.kernel(launch) if launch else None
        spilled = _spill_bytes(view, launch) if launch else None
        if launch is None or facts is None or spilled is None or hypothesis.grade not in ("suspected", "observed"):
            return hypothesis
        compiled = view.compiled[launch.index]
        if spilled == 0:
            text = f"{compiled.resources.registers} registers, no spills"
            return refuted(hypothesis, f"the assembler needs {text}", located("ptxas", text, launch, hypothesis.span.line, 0))
        at = _line(view, launch) or hypothesis.span.line
        low, high = self._estimate(view, launch, facts, spilled, pressure(view, launch, facts)[0])
        better = self.hypothesis(view, launch, line=at, low=low, high=high, claim="")
        moved = msgspec.structs.replace(
            hypothesis,
            span=better.span,
            estimate=better.estimate,
            claim=f"{spilled} bytes per thread are spilled: {hypothesis.claim}",
        )
        return raised(moved, "located", located("ptxas", f"{spilled} bytes of spill stores and loads per thread", launch, at, spilled))

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        if launch is None or not _spill_bytes(view, launch):
            return
        warps = launch.option("num_warps", 4)
        for factor in (2, 4):
            if warps * factor <= 32:
                yield Probe(
                    claim=f"{warps * factor} warps hold the tile in registers",
                    grants=(Option(name="num_warps", value=warps * factor),),
                    signature="spill_bytes",
                    expect="decrease",
                    stage="sass",
                    launch=launch.index,
                )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        from leadline.rules.grid.launch_text import with_options

        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        if launch is None:
            return
        warps = launch.option("num_warps", 4)
        for value in (warps * 2, warps * 4):
            source = with_options(view, launch, {"num_warps": str(value)}) if value <= 32 else None
            if source and 65536 // (32 * value) >= 32:
                yield Rewrite(
                    id="",
                    rule=self.code,
                    title=f"num_warps = {value}",
                    source=source,
                    precondition="the launch names its number of warps",
                    prediction="no spills",
                    signature="spill_bytes",
                    expect="decrease",
                    finding=f"{self.code}:{hypothesis.key}",
                    choices={"num_warps": value},
                )


def _spill_bytes(view: View, launch: Launch) -> int | None:
    """Spilled bytes per thread, None before level 3."""
    compiled = view.compiled.get(launch.index)
    if compiled is None or compiled.error or compiled.stopped_at != "sass":
        return None
    return compiled.resources.spill_store_bytes + compiled.resources.spill_load_bytes


def _line(view: View, launch: Launch) -> int:
    """The line with most local-memory instructions; 0 when there is none."""
    compiled = view.compiled.get(launch.index)
    if compiled is None:
        return 0
    counts = {line: sum(c.get(name, 0) for name in SPILL) for line, c in compiled.line_counters.items()}
    best = max(counts, key=lambda x: counts[x], default=0)
    return best if counts.get(best) else 0
