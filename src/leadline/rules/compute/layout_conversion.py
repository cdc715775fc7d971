"""CMP106: data moved through shared memory in a loop because two operations want different layouts."""

from collections.abc import Iterable

from leadline.model import Hypothesis
from leadline.rules.base import Example, Rule, View, located


class LayoutConversion(Rule):
    """A layout conversion that stays inside a loop.

    What it finds
        `ttg.convert_layout` in the body of a loop, on the source line that needs it.
    Why it is slow
        The tile is written to shared memory, the program waits at a barrier, and it is read back in another order, every iteration.
    How it is proved
        The operation is named from the compiler's IR, with the pass that could not remove it.
    Rewrite and its safety
        None is made here: give both operations the same order of axes, hoist the converted value out of the loop, or accept it where
        it is the transposition the algorithm needs. Conversions of a dot's operand or result are part of using the matrix unit.
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


_CASE = """import torch, triton
import triton.language as tl

CASES = {"tall": dict(m=8192, n=4096)}
SMALL = {"tiny": dict(m=64, n=128)}
TOLERANCE = dict(rtol=1e-5, atol=1e-5)


@triton.jit
def add_transposed_kernel(x_ptr, y_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    for start in range(0, N, BN):
        cols = start + tl.arange(0, BN)
        x = tl.load(x_ptr + rows[:, None] * N + cols[None, :])
        y = tl.load(y_ptr + cols[:, None] * M + rows[None, :])
        tl.store(out_ptr + rows[:, None] * N + cols[None, :], x + tl.trans(y))


def launch(x, y):
    m, n = x.shape
    out = torch.empty_like(x)
    add_transposed_kernel[(m // 64,)](x, y, out, m, n, BM=64, BN=64)
    return out


def reference(x, y):
    return x + y.t()


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(m, n, device=device), y=torch.randn(n, m, device=device))
"""

_CLEAN = (
    _CASE.replace("y_ptr + cols[:, None] * M + rows[None, :]", "y_ptr + rows[:, None] * N + cols[None, :]")
    .replace("x + tl.trans(y)", "x + y")
    .replace("x + y.t()", "x + y")
    .replace("y=torch.randn(n, m", "y=torch.randn(m, n")
    .replace("add_transposed", "add")
)

LayoutConversion.examples = (
    Example(title="a tile transposed in the loop", line=16, grade="located", before=_CASE),
    Example(title="both tiles in the order of memory", before=_CLEAN),
)
