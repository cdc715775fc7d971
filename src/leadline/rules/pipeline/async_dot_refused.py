"""PIP103: the matrix instruction is issued and waited for at once."""

from collections.abc import Iterable

from leadline.model import Hypothesis
from leadline.rules.base import Example, Rule, View, located, raised

REASONS = {
    "dot_operand_not_multibuffered": "an operand does not come straight from an asynchronous copy (computed, re-laid or not pipelined), "
    "so it has a single buffer in shared memory",
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


_CASE = """import torch, triton
import triton.language as tl

CASES = {"square": dict(m=2048, n=2048, k=2048)}
SMALL = {"tiny": dict(m=128, n=128, k=128)}
TOLERANCE = dict(rtol=2e-2, atol=2e-1)


@triton.jit
def scaled_matmul_kernel(a_ptr, b_ptr, s_ptr, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    scale = tl.load(s_ptr + cols)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        a = tl.load(a_ptr + rows[:, None] * K + (start + inner)[None, :])
        b = tl.load(b_ptr + (start + inner)[:, None] * N + cols[None, :])
        total = tl.dot(a, b * scale[None, :], total)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], total.to(tl.float16))


def launch(a, b, s):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=torch.float16)
    scaled_matmul_kernel[(m // 128, n // 128)](a, b, s, c, n, k, BM=128, BN=128, BK=64, num_warps=8, num_stages=3)
    return c


def reference(a, b, s):
    return ((a.float() @ b.float()) * s.float()).half()


def make_inputs(*, device, seed, m, n, k):
    torch.manual_seed(seed)
    half = lambda *shape: torch.randn(*shape, device=device, dtype=torch.float16)
    return dict(a=half(m, k), b=half(k, n), s=half(n))
"""

_CLEAN = _CASE.replace("tl.dot(a, b * scale[None, :], total)", "tl.dot(a, b, total)").replace(
    "total.to(tl.float16))", "(total * scale[None, :]).to(tl.float16))"
)

AsyncDotRefused.examples = (
    Example(title="an operand scaled in the loop", line=19, grade="located", before=_CASE),
    Example(title="the result scaled after the loop", before=_CLEAN),
)
