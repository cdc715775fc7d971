"""CMP103: arithmetic in float64 that nobody asked for."""

from collections.abc import Iterable

from leadline.model import Hypothesis
from leadline.rules.base import Example, Rule, View, located, raised, seen

# A multiprocessor of the data-centre parts does float64 at half the float32 rate, but conversions and the doubled registers add to
# that; consumer parts do a sixty-fourth.
SLOWDOWN = 2.5


class DtypePromotion(Rule):
    """Arithmetic that is silently done in double precision.

    What it finds
        Machine instructions on float64 in a kernel none of whose tensors is float64: a float64 constant, a scalar argument passed as
        double, a cast.
    Why it is slow
        Double precision runs at half the rate or less, doubles the registers of every value it touches and adds conversions.
    How it is proved
        The lines that carry DADD, DMUL, DFMA or conversions from and to float64 are named from the machine code.
    Rewrite and its safety
        None is made: dropping to float32 changes numerics. The finding names the constant or cast to change.
    References
        Triton's promotion rules follow NumPy for scalars and tiles of one kind.
    """

    code, slug, cause, family = "CMP103", "float64-arithmetic", "dtype_promotion", "compute"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            compiled = view.compiled.get(launch.index)
            if compiled is None or compiled.error or any(a.tensor and a.tensor.dtype == "fp64" for a in launch.arguments):
                continue
            lines = {line: counts["fp64"] for line, counts in compiled.line_counters.items() if counts.get("fp64")}
            if not lines:
                continue
            total = max(compiled.counters.get("instructions", 0), 1)
            share = min(0.9, sum(lines.values()) * 2 / total)
            worst = max(lines, key=lambda line: lines[line])
            high = 1.0 / (1.0 - share + share / SLOWDOWN)
            kernel = view.kernel(launch)
            made = [o for o in (kernel.operations if kernel else ()) if o.line == worst and "float64" in o.text]
            yield self.hypothesis(
                view,
                launch,
                line=worst,
                low=1.0 + (high - 1) * 0.3,
                high=high,
                grade="located",
                claim=f"{lines[worst]} float64 instructions on this line although no tensor is float64",
                facts=[
                    located("sass", "float64 instructions", launch, worst, lines[worst]),
                    *[seen(o.text, launch.kernel_file, o.line) for o in made[:1]],
                ],
            )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        return raised(hypothesis, "located")


_CASE = """import torch, triton
import triton.language as tl

CASES = {"long": dict(n=1 << 24)}
SMALL = {"tiny": dict(n=300)}


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    half = tl.full((BLOCK,), 0.5, TYPE)
    y = x * half + 1.0
    tl.store(y_ptr + i, y.to(tl.float32), mask=i < n)


def launch(x):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


def reference(x):
    return x * 0.5 + 1.0


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device))
"""

DtypePromotion.examples = (
    Example(title="a float64 constant", line=13, grade="located", before=_CASE.replace("TYPE", "tl.float64")),
    Example(title="a float32 constant", before=_CASE.replace("TYPE", "tl.float32")),
)
