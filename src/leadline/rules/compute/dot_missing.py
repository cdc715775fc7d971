"""CMP102: a product summed over a materialised axis, which `tl.dot` would do."""

import ast
from collections.abc import Iterable

from leadline.model import Hypothesis, KernelFacts, Launch, Operation, Probe, Rewrite, SourceEdit
from leadline.rules.base import Example, Rule, View, located, metric, raised, refuted, seen
from leadline.rules.editing import SourceFile

AXES = (0, 1, 2)


class Contraction:
    """`tl.sum(a[..] * b[..], axis)` over a three-dimensional product; `left` gives rows of the result, `right` its columns."""

    def __init__(self, left: str, right: str, transpose_left: bool, transpose_right: bool) -> None:
        self.left, self.right, self.transpose_left, self.transpose_right = left, right, transpose_left, transpose_right

    def dot(self, accumulator: str, precision: str) -> str:
        """The `tl.dot` call that computes the same sum."""
        a = f"tl.trans({self.left})" if self.transpose_left else self.left
        b = f"tl.trans({self.right})" if self.transpose_right else self.right
        arguments = [a, b, *([accumulator] if accumulator else []), f'input_precision="{precision}"']
        return f"tl.dot({', '.join(arguments)})"


def contraction(product: ast.expr, axis: int) -> Contraction | None:
    """The contraction that `tl.sum(product, axis)` is, or None. Operand order, transposition and sign of `axis` do not matter."""
    if not (isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult)):
        return None
    first, second = _broadcast(product.left), _broadcast(product.right)
    axis = axis + 3 if axis < 0 else axis
    if first is None or second is None or first[1] == second[1] or axis in (first[1], second[1]) or axis not in AXES:
        return None
    rows = min(a for a in AXES if a != axis)  # the result's first axis
    left, right = (first, second) if second[1] == rows else (second, first)
    left_axes, right_axes = [a for a in AXES if a != left[1]], [a for a in AXES if a != right[1]]
    return Contraction(left[0], right[0], left_axes[0] == axis, right_axes[1] == axis)


def _broadcast(node: ast.expr) -> tuple[str, int] | None:
    """(text of the tile, position of its None axis) of `tile[:, None, :]` and of `tl.expand_dims(tile, axis)`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 3:
        holes = [i for i, e in enumerate(node.slice.elts) if isinstance(e, ast.Constant) and e.value is None]
        rest = [e for i, e in enumerate(node.slice.elts) if i not in holes]
        if len(holes) == 1 and all(isinstance(e, ast.Slice) and e.lower is e.upper is e.step is None for e in rest):
            return ast.unparse(node.value), holes[0]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("expand_dims") and len(node.args) == 2:
        try:
            hole = ast.literal_eval(node.args[1])
        except ValueError:
            return None
        if isinstance(hole, int):
            return ast.unparse(node.args[0]), hole % 3
    return None


def found_in(kernel: KernelFacts, operation: Operation) -> tuple[Contraction, str] | None:
    """(contraction, text of the product) of a `sum` operation; a named product is looked up."""
    try:
        call = ast.parse(operation.text, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call):
        return None
    method = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) not in ("tl", "triton.language")
    arguments = ([call.func.value] if method and isinstance(call.func, ast.Attribute) else []) + call.args
    keywords = {k.arg: k.value for k in call.keywords}
    product = arguments[0] if arguments else keywords.get("input")
    axis = arguments[1] if len(arguments) > 1 else keywords.get("axis")
    keep = keywords.get("keep_dims")
    if product is None or axis is None or (isinstance(keep, ast.Constant) and keep.value):
        return None
    if isinstance(product, ast.Name):
        symbol = kernel.symbol(product.id)
        if symbol is None:
            return None
        try:
            product = ast.parse(symbol.text, mode="eval").body
        except SyntaxError:  # a loop's target, say
            return None
    try:
        number = ast.literal_eval(axis)
    except ValueError:
        return None
    what = contraction(product, number) if isinstance(number, int) else None
    return (what, ast.unparse(product)) if what else None


class DotMissing(Rule):
    """A matrix product written as a broadcast, a multiplication and a sum.

    What it finds
        `tl.sum(x[:, None, :] * w[None, :, :], 2)` and its permutations: a three-dimensional product, summed over the shared axis.
    Why it is slow
        Every element of the product is materialised in registers before it is summed: no operand is reused from shared memory, the
        loads are not software-pipelined (the pipeliner looks for operands of a dot), and no matrix unit is used.
    How it is proved
        The kernel is compiled with `tl.dot` in that place: the matrix instruction (or, for float32 with full precision, the fused
        multiply-adds on operands in shared memory) and the asynchronous copies appear.
    Rewrite and its safety
        `acc += tl.sum(...)` becomes `acc = tl.dot(a, b, acc, input_precision="ieee")`, which keeps full float32 products; sums are
        reassociated. The three-term tf32 form is offered apart, labelled as changing numerics.
    References
        The Combine pass of Triton rewrites one exact form of this only; everything else stays as written.
    """

    code, slug, cause, family = "CMP102", "dot-missing", "dot_missing", "compute"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            kernel = view.kernel(launch)
            for operation in kernel.of_kind("sum") if kernel else ():
                hit = found_in(kernel, operation) if kernel else None
                if hit is None:
                    continue
                # A product in registers costs a multiply, an add and the shuffles of the sum per element; a dot at full float32
                # precision reuses each operand a tile's width, and matrix units do far better on 16-bit operands.
                yield self.hypothesis(
                    view,
                    launch,
                    line=operation.line,
                    column=operation.column,
                    end_line=operation.end_line,
                    end_column=operation.end_column,
                    low=1.6,
                    high=4.0,
                    sufficient_level=3,
                    claim=f"a matrix product is written as a broadcast, a multiplication and a sum: {operation.text}",
                    prediction="tl.dot in its place reads both operands through shared memory",
                    facts=[seen(f"{hit[1]} is summed over its shared axis", launch.kernel_file, operation.line)],
                )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = _launch(view, hypothesis)
        compiled = view.compiled.get(hypothesis.launch)
        if launch is None or compiled is None or hypothesis.grade != "suspected":
            return hypothesis
        here = [o for o in compiled.operations if o.line == hypothesis.span.line]
        hit = [o for o in here if "reduce" in o.name]
        made = [o for o in here if "dot" in o.name]
        if made and not hit:
            return refuted(
                hypothesis, "the compiler makes a dot of this form itself", located(made[0].stage, made[0].name, launch, made[0].line)
            )
        if not hit:
            return hypothesis
        kept = located(
            hit[0].stage, f"{hit[0].name} of {hit[0].detail.get('type', 'a three-dimensional tile')}, no dot", launch, hypothesis.span.line
        )
        sample = view.samples.get(launch.index)
        more = [metric("operations outside a dot", sample.other_flops, "flop", launch)] if sample else []
        return raised(hypothesis, "located", kept, *more)

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        for made in list(self.rewrite(view, hypothesis))[:1]:
            yield Probe(
                claim="with tl.dot the operands come through shared memory",
                grants=(SourceEdit(text=made.source, label="tl.dot instead of the sum"),),
                signature="ttir.dot",
                expect="increase",
                stage="ttgir",
                launch=hypothesis.launch,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = _launch(view, hypothesis)
        kernel = view.kernel(launch) if launch else None
        if launch is None or kernel is None or launch.kernel_file != view.source.path:
            return
        for operation in kernel.of_kind("sum"):
            hit = found_in(kernel, operation) if operation.line == hypothesis.span.line else None
            if hit is None:
                continue
            for precision, applicability in (("ieee", "safe"), ("tf32x3", "changes_numerics")):
                text = _replaced(view.text(view.source.path), operation, hit[0], precision)
                if text:
                    yield Rewrite(
                        id="",
                        rule=self.code,
                        title=f"use tl.dot ({precision})",
                        source=text,
                        applicability=applicability,
                        precondition="the product has exactly one shared axis and it is the axis summed",
                        prediction="tt.dot appears, the three-dimensional product disappears",
                        signature="ttir.dot",
                        expect="increase",
                    )


def _launch(view: View, hypothesis: Hypothesis) -> Launch | None:
    return next((x for x in view.launches if x.index == hypothesis.launch), None)


def _replaced(text: str, operation: Operation, what: Contraction, precision: str) -> str:
    """The file with the sum replaced; `acc += sum` becomes one fused accumulation."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign | ast.Assign) and node.lineno <= operation.line <= (node.end_lineno or 0):
            value, accumulator = node.value, ""
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and _is(value, operation):
                accumulator = ast.unparse(node.target)
            elif isinstance(node, ast.Assign) and isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                target = ast.unparse(node.targets[0])
                if (ast.unparse(value.left) == target and _is(value.right, operation)) or (
                    ast.unparse(value.right) == target and _is(value.left, operation)
                ):
                    accumulator = target
            file = SourceFile(text)
            if accumulator:
                file.replace_expression(
                    node.lineno,
                    node.col_offset,
                    node.end_lineno or 0,
                    node.end_col_offset or 0,
                    f"{accumulator} = {what.dot(accumulator, precision)}",
                )
            else:
                file.replace_expression(operation.line, operation.column, operation.end_line, operation.end_column, what.dot("", precision))
            return file.apply()
    return ""


def _is(node: ast.expr, operation: Operation) -> bool:
    return (node.lineno, node.col_offset) == (operation.line, operation.column)


_CASE = """import torch, triton
import triton.language as tl

CASES = {"square": dict(m=1024, n=1024, k=1024)}
SMALL = {"tiny": dict(m=32, n=32, k=32), "wide": dict(m=32, n=64, k=64)}
TOLERANCE = dict(rtol=1e-3, atol=1e-2)


@triton.jit
def product_kernel(a_ptr, w_ptr, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        inner = start + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
        w = tl.load(w_ptr + cols[:, None] * K + inner[None, :])
        # one tile of the product
        {line}
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], total)


def launch(a, w):
    m, k = a.shape
    n = w.shape[0]
    c = torch.empty(m, n, device=a.device, dtype=torch.float32)
    product_kernel[(m // 32, n // 32)](a, w, c, n, k, BM=32, BN=32, BK=16)
    return c


def reference(a, w):
    return (a.double() @ w.double().t()).float()


def make_inputs(*, device, seed, m, n, k):
    torch.manual_seed(seed)
    return dict(a=torch.randn(m, k, device=device), w=torch.randn(n, k, device=device))
"""

_SUM = "total += tl.sum(a[:, None, :] * w[None, :, :], 2)"
_DOT = 'total = tl.dot(a, tl.trans(w), total, input_precision="ieee")'

DotMissing.examples = (
    Example(
        title="sum of a broadcast product",
        line=19,
        grade="confirmed",
        before=_CASE.replace("{line}", _SUM),
        after=_CASE.replace("{line}", _DOT),
    ),
    Example(title="a dot already", before=_CASE.replace("{line}", _DOT)),
    Example(
        title="the one form that the compiler knows",
        before=_CASE.replace("{line}", "b = tl.trans(w)\n        total += tl.sum(a[:, :, None] * b[None, :, :], 1)"),
    ),
)
