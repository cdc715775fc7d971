"""CMP101: a `tl.dot` that runs on FMA units or on an older matrix instruction than the target has."""

from collections.abc import Iterable

from leadline.model import Compiled, Constant, Hypothesis, Launch, Option, Probe, ProbeOutcome, Rewrite
from leadline.rules.base import Example, Rule, View, located, metric, raised, refuted, seen
from leadline.rules.editing import SourceFile

# Rate of the matrix units in use, relative to the newest instruction of the target (dense, same type), from the vendor's tables.
OLDER_MMA = 0.6
FMA_ON_HALF = 1 / 16
FMA_ON_FLOAT = 1 / 7


class NoTensorCore(Rule):
    """A dot that does not use the target's matrix instruction.

    What it finds
        A `tl.dot` whose machine code has no matrix instruction (float32 operands at full precision, float64), or that runs on the
        generation before the target's own (on Hopper `mma.sync` in place of `wgmma`).
    Why it is slow
        FMA units do a sixteenth of the matrix units' 16-bit rate. `mma.sync` reads operands through registers and reaches about 60 %
        of `wgmma`.
    How it is proved
        `wgmma` needs four or eight warps, at least 64 rows per program, 16 columns, and a supported type. The missing one is granted
        and the kernel is compiled again: the version of the matrix instruction must rise.
    Rewrite and its safety
        `num_warps` at the launch is changed (safe). Precision is the user's choice: changing `input_precision` alters numerics and is
        only named, never done unasked.
    References
        Triton: AccelerateMatmul (`BlockedToMMA`), `supportMMA`.
    """

    code, slug, cause, family = "CMP101", "dot-without-tensor-core", "no_tensor_core", "compute"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        newest = newest_version(view.target)
        for launch in view.launches:
            compiled, kernel = view.compiled.get(launch.index), view.kernel(launch)
            if compiled is None or compiled.error or kernel is None or not newest:
                continue
            for dot in kernel.of_kind("dot"):
                version = _version(compiled, dot.line)
                if version is None or version >= newest:
                    continue
                share = _compute_share(view, launch)
                rate = OLDER_MMA if version else (FMA_ON_HALF if "16" in str(dot.detail) else FMA_ON_FLOAT)
                high = 1.0 / (1.0 - share + share * rate)
                what = f"MMA version {version}" if version else "FMA units"
                yield self.hypothesis(
                    view,
                    launch,
                    line=dot.line,
                    column=dot.column,
                    end_line=dot.end_line,
                    end_column=dot.end_column,
                    low=1.0 + (high - 1.0) * 0.25,
                    high=high,
                    claim=f"this dot runs on {what}; the target has version {newest}",
                    prediction="the version of the matrix instruction rises",
                    grade="located",
                    facts=[
                        located("ttgir", f"dot on {what}", launch, dot.line, version),
                        metric("share of time in arithmetic", share, "of launch", launch, dot.line),
                    ],
                )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        message = view.message(hypothesis.launch, "mma_v3_refused", "mma_refused")
        if message and message not in hypothesis.facts:
            return raised(hypothesis, "located", message)
        return hypothesis

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        if launch is None:
            return
        if launch.option("num_warps", 4) < 4:
            yield Probe(
                claim="wgmma needs a group of four warps",
                grants=(Option(name="num_warps", value=4),),
                signature="mma.version",
                expect="increase",
                stage="ttgir",
                launch=launch.index,
            )
            return
        small = [
            a
            for a in launch.arguments
            if a.constexpr and isinstance(a.value, int) and not isinstance(a.value, bool) and a.value in (16, 32)
        ]
        for argument in small[:3]:
            yield Probe(
                claim=f"{argument.name} is below what the matrix instruction needs",
                grants=(Constant(argument=argument.name, value=64),),
                signature="mma.version",
                expect="increase",
                stage="ttgir",
                launch=launch.index,
            )

    def conclude(self, view: View, hypothesis: Hypothesis, outcomes: tuple[ProbeOutcome, ...]) -> Hypothesis:
        flipped = [o for o in outcomes if o.flipped]
        if flipped:
            return raised(hypothesis, "confirmed", *flipped)
        kernel = hypothesis.kernel
        if outcomes and all(not o.error for o in outcomes):
            notes = f"no option or tile size of {kernel} makes the compiler use it: the operands' type or precision excludes it"
            return raised(hypothesis, "located", seen(notes, hypothesis.span.file, hypothesis.span.line))
        return hypothesis if not hypothesis.refuted else refuted(hypothesis, hypothesis.refuted)

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        if launch is None or launch.call_file != view.source.path or launch.option("num_warps", 4) >= 4:
            return
        file = SourceFile(view.text(view.source.path))
        file.set_launch_option(launch.call_line, "num_warps", "4")
        yield Rewrite(
            id="",
            rule=self.code,
            title="num_warps=4",
            source=file.apply(),
            precondition="num_warps changes no result",
            prediction="the dot becomes a wgmma",
            signature="mma.version",
            expect="increase",
        )


def newest_version(target: str) -> int:
    """Version of the matrix instruction that the target's compiler can use; 0 when the rule does not apply."""
    family, _, arch = target.partition(":")
    if family != "cuda" or not arch.isdigit():
        return 0
    return {8: 2, 9: 3, 10: 5}.get(int(arch) // 10, 0)


def _version(compiled: Compiled, line: int) -> int | None:
    """MMA version of the dot on that line (0: none), None when the line holds no dot any more."""
    for operation in compiled.operations:
        if operation.line == line and operation.stage == "ttgir" and "dot" in operation.name:
            return int(operation.detail.get("version", "0") or 0)
    return None


def _compute_share(view: View, launch: Launch) -> float:
    cost = view.costs.get(launch.index)
    if cost is None or cost.total_us <= 0:
        return 0.3
    return max(0.02, min(0.95, cost.compute_us / (cost.compute_us + max(cost.dram_us, cost.l2_us, cost.latency_us, cost.launch_us))))


_CASE = """import torch, triton
import triton.language as tl

CASES = {"square": dict(m=2048, n=2048, k=2048)}
SMALL = {"tiny": dict(m=128, n=128, k=64)}
TOLERANCE = dict(rtol=2e-2, atol=2e-1)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        a = tl.load(a_ptr + rows[:, None] * K + (start + inner)[None, :])
        b = tl.load(b_ptr + (start + inner)[:, None] * N + cols[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], total.to(tl.float16))


def launch(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=torch.float16)
    matmul_kernel[(m // 128, n // 128)](a, b, c, n, k, BM=128, BN=128, BK=64, num_warps=WARPS)
    return c


def reference(a, b):
    return (a.float() @ b.float()).half()


def make_inputs(*, device, seed, m, n, k):
    torch.manual_seed(seed)
    return dict(a=torch.randn(m, k, device=device, dtype=torch.float16), b=torch.randn(k, n, device=device, dtype=torch.float16))
"""

NoTensorCore.examples = (
    Example(
        title="two warps exclude wgmma", line=18, grade="confirmed", before=_CASE.replace("WARPS", "2"), after=_CASE.replace("WARPS", "4")
    ),
    Example(title="four warps use wgmma", before=_CASE.replace("WARPS", "4")),
)
