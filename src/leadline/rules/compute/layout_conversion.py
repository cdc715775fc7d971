"""CMP106: data moved through shared memory in a loop because two operations want different layouts."""

from collections.abc import Iterable

from leadline.model import Hypothesis
from leadline.rules.base import Rule, View, located


class LayoutConversion(Rule):
    """A layout conversion that stays inside a loop.

    What it finds
        `ttg.convert_layout` in the body of a loop, on the source line that needs it.
    Why it is slow
        The tile is written to shared memory, the program waits at a barrier, and it is read back in another order, every iteration.
    How it is proved
        The operation is named from the compiler's IR, with the pass that could not remove it.
    Rewrite and its safety
        None is made here: give both operations the same order of axes, hoist the converted value out of the loop, or accept it where it is the
        transposition the algorithm needs. Conversions of a dot's operand or result are part of using the matrix unit.
    References
        Triton: RemoveLayoutConversions.
    """

    code, slug, cause, family = "CMP106", "conversion-in-loop", "layout_conversion", "compute"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            compiled, cost = view.compiled.get(launch.index), view.costs.get(launch.index)
            if compiled is None or compiled.error:
                continue
            hits = [
                o for o in compiled.operations if o.stage == "ttgir" and o.name.endswith("convert_layout") and o.loop_depth > 0 and o.line
            ]
            dots = {o.line for o in compiled.operations if "dot" in o.name}
            hits = [o for o in hits if o.line not in dots]
            if not hits:
                continue
            line = max({o.line for o in hits}, key=lambda at: sum(o.line == at for o in hits))
            idle = 1.0 - min(1.0, max(cost.dram_us, cost.compute_us) / cost.total_us) if cost and cost.total_us > 0 else 0.3
            high = 1.0 + min(0.3, 0.04 * len(hits)) * (0.3 + idle)
            yield self.hypothesis(
                view,
                launch,
                line=line,
                low=1.0,
                high=high,
                grade="located",
                sufficient_level=3,
                claim=f"{len(hits)} layout conversions go through shared memory in every iteration",
                facts=[located("ttgir", f"convert_layout of {o.detail.get('type', 'a tile')}", launch, o.line) for o in hits[:3]],
            )
