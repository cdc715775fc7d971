"""PIP103: the matrix instruction is issued and waited for at once."""

from collections.abc import Iterable

from leadline.model import Hypothesis
from leadline.rules.base import Rule, View, located, raised

REASONS = {
    "dot_operand_not_multibuffered": "an operand is computed in the loop, so it has a single buffer in shared memory",
    "dot_result_used": "its result of the iteration before is used by something other than the dot",
    "dot_unconditional": "its result is used in the same iteration",
    "dot_accumulator_not_fp32": "its accumulator is not float32",
}


class AsyncDotRefused(Rule):
    """A `wgmma` that is waited for in the iteration that issues it.

    What it finds
        A dot on Hopper's asynchronous matrix instruction for which the compiler inserted a wait for all outstanding products.
    Why it is slow
        The matrix unit idles while the loop's other work runs, and the other way round.
    How it is proved
        The pass says which of its rules failed; the message is mapped to the dot's line.
    Rewrite and its safety
        None is made at this place: what mends it depends on the reason (scale the accumulator after the loop, fold elementwise work
        on an operand into the other operand, accumulate in float32). When a narrow load is the root, that finding comes first.
    References
        Triton: WGMMAPipeline (`dotCanBeProperlyAsync`).
    """

    code, slug, cause, family = "PIP103", "synchronous-dot", "async_dot_refused", "pipeline"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            cost = view.costs.get(launch.index)
            for message in view.messages.get(launch.index, ()):
                if message.kind not in REASONS or not message.line:
                    continue
                waits = view.counter(launch.index, "wgmma_wait0") or 0
                if not waits:
                    continue
                busy = cost.compute_us / cost.total_us if cost and cost.total_us > 0 else 0.5
                # Attention uses the result at once by its nature; then only part of the wait can be hidden.
                part = 0.1 if message.kind == "dot_unconditional" else 0.35
                yield self.hypothesis(
                    view,
                    launch,
                    line=message.line,
                    low=1.0 + 0.1 * part * min(busy, 1.0),
                    high=1.0 + part * min(busy, 1.0),
                    grade="located",
                    sufficient_level=4,
                    claim=f"this dot is synchronous: {REASONS[message.kind]}",
                    facts=[message, located("ptx", "waits for all products", launch, message.line, waits)],
                )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        return raised(hypothesis, "located")
