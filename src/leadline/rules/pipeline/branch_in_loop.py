"""PIP102: loads under a branch inside a loop, which the pipeliner does not visit."""

import ast
import textwrap
from collections.abc import Iterable

from leadline.model import Branch, Hypothesis, KernelFacts, Launch, Loop, Probe, Rewrite, SourceEdit
from leadline.rules.base import Example, Rule, View, located, raised, refuted, seen


class BranchInLoop(Rule):
    """A branch that does not change inside the loop keeps the loop's loads from being pipelined.

    What it finds
        An `if` inside a loop whose test has the same value in every iteration and whose body loads from global memory.
    Why it is slow
        The software pipeliner looks only at operations directly in the loop's body. A load under `scf.if` is neither made asynchronous
        nor overlapped with the iteration before.
    How it is proved
        The loop is unswitched (the branch outside, one loop in each arm) and compiled: asynchronous copies appear.
    Rewrite and its safety
        Unswitching executes the same statements in the same order, so results are bit-equal. It needs the test's names to be unassigned in
        the loop and the branch to be a statement of the loop's own body. The code grows by one loop.
    References
        Triton: AssignLatencies and LowerLoops ("only visit top level ops").
    """

    code, slug, cause, family = "PIP102", "branch-breaks-pipeline", "control_flow_breaks_pipeline", "pipeline"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            kernel = view.kernel(launch)
            for branch, loop in invariant_branches(kernel) if kernel else ():
                if kernel and compile_time(kernel, launch, branch.test):
                    continue
                loads = [a for a in kernel.accesses if a.branch == branch.id and a.kind == "load" and a.rank != 0] if kernel else []
                trips = view.loop_trips(launch.index, loop.line)
                if not loads or loop.kind == "static_range" or (trips and trips.trips_mean < 3):
                    continue
                cost = view.costs.get(launch.index)
                # What pipelining hides is the latency of a load per iteration; where the arithmetic or the memory system is the
                # limit already, other programs hide most of it.
                hidden = min(0.5, cost.latency_us / cost.total_us) if cost and cost.total_us > 0 else 0.3
                dots = any(o.loop == loop.id for o in kernel.of_kind("dot")) if kernel else False
                high = 1.0 + (0.3 if dots else 0.15) + 0.4 * hidden
                yield self.hypothesis(
                    view,
                    launch,
                    line=branch.line,
                    end_line=branch.line,
                    low=1.02,
                    high=high,
                    claim=f"the loads under `if {' '.join(branch.test.split())}` are not pipelined, "
                    "and the test is the same in every iteration",
                    prediction="asynchronous copies appear once the branch is outside the loop",
                    facts=[seen(f"load under a branch of the loop in line {loop.line}", launch.kernel_file, a.line) for a in loads[:2]],
                )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        kernel = view.kernel(launch) if launch else None
        compiled = view.compiled.get(hypothesis.launch)
        if launch is None or kernel is None or compiled is None or hypothesis.grade != "suspected":
            return hypothesis
        lines = {
            a.line for b, _ in invariant_branches(kernel) for a in kernel.accesses if a.branch == b.id and b.line == hypothesis.span.line
        }
        plain = [o for o in compiled.operations if o.stage == "ttgir" and o.line in lines and o.name.endswith("tt.load")]
        if plain:
            return raised(hypothesis, "located", located("ttgir", "tt.load left under scf.if", launch, plain[0].line, len(plain)))
        copies = [o for o in compiled.operations if o.stage == "ttgir" and o.line in lines and "async_copy" in o.name]
        if copies:
            return refuted(
                hypothesis, "the compiler pipelines these loads", located("ttgir", "async copy", launch, copies[0].line, len(copies))
            )
        return hypothesis

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        for made in self.rewrite(view, hypothesis):
            yield Probe(
                claim="outside the loop the branch no longer hides the loads",
                grants=(SourceEdit(text=made.source, label="loop unswitched"),),
                signature="async_copy",
                expect="increase",
                stage="ttgir",
                launch=hypothesis.launch,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        if launch is None or launch.kernel_file != view.source.path:
            return
        text = unswitched(view.text(view.source.path), hypothesis.kernel, hypothesis.span.line)
        if text:
            yield Rewrite(
                id="",
                rule=self.code,
                title="move the branch out of the loop",
                source=text,
                precondition="the names of the test are not assigned in the loop",
                prediction="the loads become asynchronous copies",
                signature="async_copy",
                expect="increase",
            )


def compile_time(kernel: KernelFacts, launch: Launch, test: str) -> bool:
    """Whether the compiler decides `test`: nothing in it but constants, constexprs, folded arguments and the module's own names."""
    try:
        tree = ast.parse(f"({test})", mode="eval")
    except SyntaxError:
        return False
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names -= {p.name for p in kernel.parameters if p.constexpr}
    names -= {a.name for a in launch.arguments if a.constexpr or (a.tensor is None and a.value is None)}
    return not names & ({p.name for p in kernel.parameters} | {s.name for s in kernel.symbols} | {loop.target for loop in kernel.loops})


def invariant_branches(kernel: KernelFacts) -> list[tuple[Branch, Loop]]:
    """(branch, its loop) for branches directly in a loop whose test the loop does not change."""
    out: list[tuple[Branch, Loop]] = []
    for branch in kernel.branches:
        loop = kernel.loop(branch.loop)
        if loop is not None and branch.invariant and branch.parent == -1 and loop.kind != "while":
            out.append((branch, loop))
    return out


def unswitched(text: str, kernel: str, line: int) -> str:
    """The file with the loop around the `if` at `line` turned inside out; "" when the precondition fails. Comments stay."""
    function = next((n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == kernel), None)
    for loop in ast.walk(function) if function else ():
        if not isinstance(loop, ast.For) or loop.orelse:
            continue
        branch = next((n for n in loop.body if isinstance(n, ast.If) and n.lineno == line), None)
        if branch is None:
            continue
        assigned = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        tested = {n.id for n in ast.walk(branch.test) if isinstance(n, ast.Name)}
        if assigned & tested or any(isinstance(n, ast.Call) for n in ast.walk(branch.test)) or _is_elif(text, branch):
            return ""
        lines = text.splitlines(keepends=True)
        indent = " " * loop.col_offset
        then = _loop_with(lines, loop, branch, branch.body)
        other = _loop_with(lines, loop, branch, branch.orelse)
        test = ast.get_source_segment(text, branch.test) or ast.unparse(branch.test)
        new = f"{indent}if {test}:\n{textwrap.indent(then, '    ')}{indent}else:\n{textwrap.indent(other, '    ')}"
        return "".join([*lines[: loop.lineno - 1], new, *lines[loop.end_lineno or 0 :]])
    return ""


def _is_elif(text: str, branch: ast.If) -> bool:
    return text.splitlines()[branch.lineno - 1].lstrip().startswith("elif") or (
        len(branch.orelse) == 1 and isinstance(branch.orelse[0], ast.If) and branch.orelse[0].col_offset == branch.col_offset
    )


def _loop_with(lines: list[str], loop: ast.For, branch: ast.If, arm: list[ast.stmt]) -> str:
    """The loop's text with the branch replaced by one of its arms."""
    before, after = lines[loop.lineno - 1 : branch.lineno - 1], lines[branch.end_lineno or 0 : loop.end_lineno or 0]
    if not arm:
        kept: list[str] = []
    else:
        first = arm[0].lineno - 1
        while first > branch.lineno and lines[first - 1].lstrip().startswith("#"):
            first -= 1  # comments above the arm's first statement
        block = "".join(lines[first : arm[-1].end_lineno or 0])
        kept = [textwrap.indent(textwrap.dedent(block), " " * branch.col_offset)]
    if not arm and len(loop.body) == 1:
        kept = [" " * branch.col_offset + "pass\n"]
    return "".join([*before, *kept, *after])


_CASE = """import torch, triton
import triton.language as tl

CASES = {"square": dict(m=2048, n=2048, k=2048)}
SMALL = {"tiny": dict(m=128, n=128, k=64)}
TOLERANCE = dict(rtol=2e-2, atol=2e-1)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, s_ptr, c_ptr, scaled, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
{loop}
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], total.to(tl.float16))


def launch(a, b, s, scaled):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=torch.float16)
    matmul_kernel[(m // 128, n // 128)](a, b, s, c, scaled, n, k, BM=128, BN=128, BK=64, num_warps=8, num_stages=3)
    return c


def reference(a, b, s, scaled):
    return ((s if scaled == 1 else a).float() @ b.float()).half()


def make_inputs(*, device, seed, m, n, k):
    torch.manual_seed(seed)
    half = lambda *shape: torch.randn(*shape, device=device, dtype=torch.float16)
    return dict(a=half(m, k), b=half(k, n), s=half(m, k), scaled=3)
"""

_BEFORE = """    for start in range(0, K, BK):
        # the left operand may come from elsewhere
        if scaled == 2:
            a = tl.load(s_ptr + rows[:, None] * K + (start + inner)[None, :])
        else:
            a = tl.load(a_ptr + rows[:, None] * K + (start + inner)[None, :])
        b = tl.load(b_ptr + (start + inner)[:, None] * N + cols[None, :])
        total = tl.dot(a, b, total)"""

_AFTER = """    if scaled == 2:
        for start in range(0, K, BK):
            # the left operand may come from elsewhere
            a = tl.load(s_ptr + rows[:, None] * K + (start + inner)[None, :])
            b = tl.load(b_ptr + (start + inner)[:, None] * N + cols[None, :])
            total = tl.dot(a, b, total)
    else:
        for start in range(0, K, BK):
            # the left operand may come from elsewhere
            a = tl.load(a_ptr + rows[:, None] * K + (start + inner)[None, :])
            b = tl.load(b_ptr + (start + inner)[:, None] * N + cols[None, :])
            total = tl.dot(a, b, total)"""

BranchInLoop.examples = (
    Example(
        title="an operand chosen in the loop",
        line=17,
        grade="confirmed",
        before=_CASE.replace("{loop}", _BEFORE),
        after=_CASE.replace("{loop}", _AFTER),
    ),
    Example(title="the choice made before the loop", before=_CASE.replace("{loop}", _AFTER)),
)
