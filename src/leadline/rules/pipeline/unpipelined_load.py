"""PIP101: loads of a loop that the software pipeliner left alone."""

import ast
from collections.abc import Iterable

from leadline.model import Access, Hypothesis, KernelFacts, Launch, Loop, Option, Probe, Rewrite, SourceEdit
from leadline.rules.base import Example, Rule, View, located, metric, raised, refuted, seen
from leadline.rules.editing import SourceFile
from leadline.rules.pipeline.counted_while import counted

MIN_TRIPS = 4
_LATENCY_S = 0.65e-6  # of a load that misses L2


class UnpipelinedLoad(Rule):
    """A loop whose loads wait for memory in every iteration.

    What it finds
        A loop with loads and at least four trips of which no load became an asynchronous copy: it is a `while`, it is unrolled
        (`tl.static_range`), the launch has `num_stages=1`, or there is no dot and the loop itself asks for no stages.
    Why it is slow
        Each iteration pays the latency of global memory; only other warps can hide it.
    How it is proved
        The loop form or option that stops the pipeliner is changed and the kernel compiled: asynchronous copies appear.
    Rewrite and its safety
        `tl.static_range` becomes `range`, so does a `while` that counts in fixed steps; `num_stages` is raised, or
        `tl.range(..., num_stages=3)` is written. The order of operations stays the same. The gain must be measured: copies through
        shared memory are not always better than registers.
    References
        Triton: AssignLatencies; kernel-level `num_stages` is ignored in loops without a dot.
    """

    code, slug, cause, family = "PIP101", "unpipelined-load", "not_pipelined", "pipeline"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            kernel = view.kernel(launch)
            for loop in kernel.loops if kernel else ():
                if kernel is None or any(x.parent == loop.id for x in kernel.loops):
                    continue  # only innermost loops are pipelined
                loads = [a for a in kernel.accesses if a.loop == loop.id and a.kind == "load" and a.rank != 0]
                trips = view.loop_trips(launch.index, loop.line)
                if not loads or (trips is not None and trips.trips_mean < MIN_TRIPS):
                    continue
                reason = _reason(kernel, loop, launch)
                if not reason:
                    continue
                cost = view.costs.get(launch.index)
                latency = min(0.8, cost.latency_us / cost.total_us) if cost and cost.total_us > 0 else 0.2
                dots = any(o.loop == loop.id for o in kernel.of_kind("dot"))
                # Without a dot other warps hide latency well unless they ask for too little; a dot loop waits on its operands.
                high = 1.0 + (0.45 + 0.6 * latency if dots else (0.08 + 0.25 * latency) * _exposed(view, launch, loop, loads))
                yield self.hypothesis(
                    view,
                    launch,
                    line=loop.line,
                    low=1.0 + (high - 1.0) * 0.1,
                    high=high,
                    key=f"{loop.line}:{reason[0]}",
                    claim=f"the loads of this loop are not pipelined: {reason[1]}",
                    prediction="asynchronous copies appear",
                    facts=[
                        seen(f"{len(loads)} loads in a {loop.kind} loop", launch.kernel_file, loop.line),
                        *([metric("trips", trips.trips_mean, "iterations", launch, loop.line)] if trips else []),
                    ],
                )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        compiled = view.compiled.get(hypothesis.launch)
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        kernel = view.kernel(launch) if launch else None
        if compiled is None or launch is None or kernel is None or hypothesis.grade != "suspected":
            return hypothesis
        loop = next((x for x in kernel.loops if x.line == hypothesis.span.line), None)
        lines = {a.line for a in kernel.accesses if loop and a.loop == loop.id}
        copies = [o for o in compiled.operations if o.stage == "ttgir" and o.line in lines and ("async_copy" in o.name or "tma" in o.name)]
        plain = [o for o in compiled.operations if o.stage == "ttgir" and o.line in lines and o.name.endswith("tt.load")]
        if copies and not plain:
            return refuted(
                hypothesis, "the compiler pipelines these loads", located("ttgir", "async copy", launch, copies[0].line, len(copies))
            )
        if plain:
            return raised(hypothesis, "located", located("ttgir", "tt.load in the loop, no async copy", launch, plain[0].line, len(plain)))
        return hypothesis

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        if hypothesis.key.endswith(":stages"):
            yield Probe(
                claim="one stage leaves nothing to overlap",
                grants=(Option(name="num_stages", value=3),),
                signature="async_copy",
                expect="increase",
                stage="ttgir",
                launch=hypothesis.launch,
            )
            return
        for made in list(self.rewrite(view, hypothesis))[:1]:
            yield Probe(
                claim="the loop's form is what stops the pipeliner",
                grants=(SourceEdit(text=made.source, label=made.title),),
                signature="async_copy",
                expect="increase",
                stage="ttgir",
                launch=hypothesis.launch,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        kernel = view.kernel(launch) if launch else None
        if launch is None or kernel is None or view.source.path not in (launch.kernel_file, launch.call_file):
            return
        text = view.text(view.source.path)
        kind = hypothesis.key.rsplit(":", 1)[-1]
        if kind == "stages" and launch.call_file == view.source.path:
            for stages in (3, 4):
                file = SourceFile(text)
                file.set_launch_option(launch.call_line, "num_stages", str(stages))
                yield self._made(f"num_stages={stages}", file.apply())
        elif kind in ("static", "nodot") and launch.kernel_file == view.source.path:
            for stages in (0,) if kind == "static" else (3, 4):
                new = _ranged(text, kernel.name, hypothesis.span.line, stages)
                if new:
                    title = "use range in place of tl.static_range" if not stages else f"tl.range(..., num_stages={stages})"
                    yield self._made(title, new)

        elif kind == "while" and launch.kernel_file == view.source.path:
            loop = next((x for x in kernel.loops if x.line == hypothesis.span.line), None)
            dots = loop is not None and any(o.loop == loop.id for o in kernel.of_kind("dot"))
            # Without a dot only a loop that asks for stages itself is pipelined.
            for stages in (0,) if dots else (3, 4):
                new = counted(text, kernel.name, hypothesis.span.line, stages)
                if new:
                    title = f"tl.range(..., num_stages={stages}) in place of while" if stages else "use range in place of while"
                    yield self._made(title, new)

    def _made(self, title: str, source: str) -> Rewrite:
        return Rewrite(
            id="",
            rule=self.code,
            title=title,
            source=source,
            precondition="the order of iterations and operations is unchanged",
            prediction="the loads become asynchronous copies",
            signature="async_copy",
            expect="increase",
        )


def _exposed(view: View, launch: Launch, loop: Loop, loads: list[Access]) -> float:
    """Share (0 to 1) of the launch's time in which nothing but issuing this loop's loads ahead would keep memory busy.

    Zero where the loads that resident programs have under way together cover latency times bandwidth many times over; and no more
    than the loop's share of the bytes that the launch loads.
    """
    sample, cost, ceilings = view.samples.get(launch.index), view.costs.get(launch.index), view.ceilings
    lines = {a.line for a in loads}
    mine = [a for a in sample.accesses if a.kind == "load" and a.line in lines] if sample else []
    if not sample or not cost or not ceilings or not mine:
        return 1.0
    programs = min(float(cost.resident), max(launch.programs / ceilings.sms, 1.0))
    under_way = programs * sum(a.lanes * a.active * a.itemsize for a in mine)
    wanted = _LATENCY_S * ceilings.copy_bytes_per_s / ceilings.sms
    loaded = sum(a.total for a in sample.accesses if a.kind == "load")
    share = sum(a.total for a in mine) / loaded if loaded else 1.0
    return min(1.0, wanted / under_way if under_way else 1.0) * share


def _reason(kernel: KernelFacts, loop: Loop, launch: Launch) -> tuple[str, str] | None:
    """(kind, words) why the pipeliner leaves this loop alone, from its form; None when it should pipeline it."""
    dots = any(o.loop == loop.id for o in kernel.of_kind("dot"))
    if loop.kind == "while":
        return "while", "only `for` loops are pipelined, this is a `while`"
    if loop.kind == "static_range":
        return ("static", "tl.static_range is unrolled before the pipeliner runs") if dots else None
    if dots and launch.option("num_stages", 3) <= 1:
        return "stages", "the launch has num_stages=1"
    if not dots and "num_stages" not in loop.options:
        return "nodot", "it has no dot, and then only a loop that asks for stages itself is pipelined"
    return None


def _ranged(text: str, kernel: str, line: int, stages: int) -> str:
    """The file with the iterator of the loop at `line` rewritten; "" when it is of another form."""
    function = next((n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == kernel), None)
    for loop in ast.walk(function) if function else ():
        if isinstance(loop, ast.For) and loop.lineno == line and isinstance(loop.iter, ast.Call):
            arguments = ", ".join(ast.get_source_segment(text, a) or ast.unparse(a) for a in loop.iter.args)
            name = ast.unparse(loop.iter.func).rsplit(".", 1)[-1]
            if (name == "static_range") == bool(stages) or loop.iter.keywords:
                return ""
            new = f"tl.range({arguments}, num_stages={stages})" if stages else f"range({arguments})"
            file = SourceFile(text)
            file.replace_expression(loop.iter.lineno, loop.iter.col_offset, loop.iter.end_lineno or 0, loop.iter.end_col_offset or 0, new)
            return file.apply()
    return ""


_CASE = """import torch, triton
import triton.language as tl

CASES = {"square": dict(m=2048, n=2048, k=1024)}
SMALL = {"tiny": dict(m=128, n=128, k=128)}
TOLERANCE = dict(rtol=2e-2, atol=2e-1)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in LOOP(0, K, BK):  # over the shared axis
        a = tl.load(a_ptr + rows[:, None] * K + (start + inner)[None, :])
        b = tl.load(b_ptr + (start + inner)[:, None] * N + cols[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], total.to(tl.float16))


def launch(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=torch.float16)
    matmul_kernel[(m // 128, n // 128)](a, b, c, n, k, BM=128, BN=128, BK=64, num_warps=8, num_stages=3)
    return c


def reference(a, b):
    return (a.float() @ b.float()).half()


def make_inputs(*, device, seed, m, n, k):
    torch.manual_seed(seed)
    return dict(a=torch.randn(m, k, device=device, dtype=torch.float16), b=torch.randn(k, n, device=device, dtype=torch.float16))
"""

UnpipelinedLoad.examples = (
    Example(
        title="an unrolled product loop",
        line=15,
        grade="confirmed",
        before=_CASE.replace("LOOP", "tl.static_range"),
        after=_CASE.replace("LOOP", "range"),
    ),
    Example(
        title="a product loop written as while",
        line=16,
        grade="confirmed",
        before=_CASE.replace("    for start in LOOP(0, K, BK):", "    start = 0\n    while start < K:").replace(
            "    tl.store(c_ptr", "        start += BK\n    tl.store(c_ptr"
        ),
        after=_CASE.replace("LOOP", "range"),
    ),
    Example(title="a plain product loop", before=_CASE.replace("LOOP", "range")),
)
