"""ATM102: atomics from inside a loop over the output, where a program could own the output instead."""

import ast
import textwrap
from collections.abc import Iterable

from leadline.model import Access, Hypothesis, KernelFacts, LaunchSite, Probe, Rewrite, SourceEdit
from leadline.rules.atomics.throughput import atomic_us, contended, inflated, summable
from leadline.rules.base import Example, Rule, View, located, metric, raised, seen
from leadline.rules.body import names_read, names_written, statements, tile_shape
from leadline.rules.editing import SourceFile


class AtomicsLayout(Rule):
    """Every iteration adds a tile into the output atomically.

    What it finds
        A `tl.atomic_add` in a loop whose address moves with the loop and not with a program axis: all programs on that axis walk over
        the whole output and add to it.
    Why it is slow
        Each tile is added once per program, not once: the traffic of read-modify-writes is the output times the number of programs. A
        dot's result must also be converted from the matrix unit's layout before each atomic.
    How it is proved
        Loop and program axis are exchanged and the kernel compiled: atomics and the conversion in the loop disappear.
    Rewrite and its safety
        Each program owns a tile of the output, loops over what used to be the program axis, accumulates in registers and adds once. Sums
        are reassociated; needs one loop, statements without side effects, and an output that the kernel reads nowhere else.
    References
        Owner-computes order of a scatter; Triton: Coalesce fixes the layout of `tt.atomic_rmw`.
    """

    code, slug, cause, family = "ATM102", "atomics-in-output-loop", "atomics_layout", "atomics"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            kernel = view.kernel(launch)
            for access in kernel.accesses if kernel else ():
                if kernel is None or not access.kind.startswith("atomic") or access.loop < 0 or access.loop not in access.loops:
                    continue
                axes = contended(view, launch, access)
                if not axes:
                    continue
                spent = atomic_us(view, launch, access)
                low, high = inflated(view, launch, spent)
                yield self.hypothesis(
                    view,
                    launch,
                    line=access.line,
                    column=access.column,
                    end_line=access.end_line,
                    end_column=access.end_column,
                    low=low,
                    high=high,
                    claim=f"every program on axis {axes[0]} adds the whole output atomically, tile by tile",
                    prediction="one addition per output element is left, outside the loop",
                    facts=[seen(access.text, launch.kernel_file, access.line), metric("atomic traffic", spent, "us", launch, access.line)],
                )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        compiled = view.compiled.get(hypothesis.launch)
        if launch is None or compiled is None or hypothesis.grade != "suspected":
            return hypothesis
        hit = [o for o in compiled.operations if o.line == hypothesis.span.line and "atomic" in o.name]
        if not hit:
            return hypothesis
        converted = compiled.counters.get("convert_layout", 0)
        return raised(
            hypothesis,
            "located",
            located(
                "ttgir",
                f"{hit[0].name}, {converted} layout conversions in the kernel",
                launch,
                hit[0].line,
                compiled.counters.get("atomic", 0),
            ),
        )

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        for made in list(self.rewrite(view, hypothesis))[:1]:
            yield Probe(
                claim="a program that owns its output needs no atomics in the loop",
                stage="ttgir",
                signature="loop.atomic",
                grants=(SourceEdit(text=made.source, label="loop and program axis exchanged"),),
                expect="decrease",
                launch=hypothesis.launch,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        kernel = view.kernel(launch) if launch else None
        wrapper = view.source.wrapper
        if launch is None or kernel is None or wrapper is None or launch.kernel_file != view.source.path != "":
            return
        access = next((a for a in kernel.accesses if a.line == hypothesis.span.line and a.kind == "atomic_add"), None)
        sites = [s for s in wrapper.launches if s.kernel == kernel.name]
        if access is None or len(sites) != 1 or sites[0].line != launch.call_line or not summable(launch, access):
            return
        axes = contended(view, launch, access)
        new = exchanged(view.text(view.source.path), kernel, access, axes[0], sites[0]) if axes else ""
        if new:
            yield Rewrite(
                id="",
                rule=self.code,
                title="own the output tile, loop over the program axis",
                source=new,
                precondition="one loop, no other side effect, the output is not read",
                applicability="safe",
                prediction="no atomics in the loop",
                signature="loop.atomic",
                expect="decrease",
            )


def exchanged(text: str, kernel: KernelFacts, access: Access, axis: int, site: LaunchSite) -> str:
    """The file with the loop around `access` and program axis `axis` exchanged; "" when a precondition fails."""
    tree = ast.parse(text)
    function = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == kernel.name), None)
    if function is None or len(kernel.loops) != 1 or kernel.branches or kernel.loops[0].carried:
        return ""
    loop = next((n for n in function.body if isinstance(n, ast.For)), None)
    if loop is None or function.body[-1] is not loop or loop.orelse or not isinstance(loop.target, ast.Name):
        return ""
    last = loop.body[-1]
    if not (isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and last.lineno == access.line) or access.result_used:
        return ""
    others = [a for a in kernel.accesses if a is not access]
    if any(a.kind != "load" or a.base == access.base for a in others) or not isinstance(loop.iter, ast.Call):
        return ""
    bounds = [ast.get_source_segment(text, a) or "" for a in loop.iter.args]
    if ast.unparse(loop.iter.func).rsplit(".", 1)[-1] != "range" or loop.iter.keywords:
        return ""
    start, stop, step = ("0", bounds[0], "1") if len(bounds) == 1 else (bounds[0], bounds[1], bounds[2] if len(bounds) > 2 else "1")
    if len(site.grid_axes) <= axis or not _constant_bounds(kernel, (start, stop, step), site):
        return ""
    program = [
        n
        for n in ast.walk(function)
        if isinstance(n, ast.Call) and ast.unparse(n).replace(" ", "") in (f"tl.program_id({axis})", f"tl.program_id(axis={axis})")
    ]
    if len(program) != 1:
        return ""
    shape = tile_shape(kernel, access)
    value = ast.get_source_segment(text, last.value.args[1]) if len(last.value.args) > 1 else None
    if shape is None or value is None:
        return ""
    return _assemble(text, function, loop, last, program[0], kernel, access, axis, site, (start, stop, step), shape, value)


def _constant_bounds(kernel: KernelFacts, bounds: tuple[str, str, str], site: LaunchSite) -> bool:
    """True when the bounds name only parameters whose argument is known at the launch."""
    parameters = {p.name for p in kernel.parameters}
    names = {n for b in bounds for n in names_read(ast.parse(b, mode="eval"))}
    return names <= parameters and names <= set(site.arguments)


def _assemble(
    text: str,
    function: ast.FunctionDef,
    loop: ast.For,
    last: ast.stmt,
    program: ast.Call,
    kernel: KernelFacts,
    access: Access,
    axis: int,
    site: LaunchSite,
    bounds: tuple[str, str, str],
    shape: str,
    value: str,
) -> str:
    start, stop, step = bounds
    target = loop.target.id if isinstance(loop.target, ast.Name) else ""
    taken = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)} | {a.arg for a in function.args.args}
    tile = next(n for n in ("tile", "block", "step_index", "tile_index") if n not in taken)
    total = next(n for n in ("total", "acc", "own_total", "sum_total") if n not in taken)
    tiles = next(n for n in ("TILES", "NUM_TILES", "TILE_COUNT") if n not in taken)
    lines = text.splitlines(keepends=True)
    moved = {tile}
    head: list[str] = [f"{target} = {_sum(start, f'tl.program_id({axis})', step)}\n"]
    body: list[str] = []
    segments = statements(lines, [s for s in function.body if s is not loop and not _is_docstring(s)]) + statements(lines, loop.body)
    for node, segment in segments:
        source = segment
        if node.lineno <= program.lineno <= (node.end_lineno or 0):
            call = ast.get_source_segment(text, program) or ""
            source = segment.replace(call, tile, 1)
            depends = True
        else:
            depends = bool(names_read(node) & moved)
        if node is last:
            continue
        if depends:
            moved |= names_written(node)
            body.append(source)
        elif names_written(node) & moved:
            return ""
        else:
            head.append(source)
    keywords = "".join(f", {k}={v}" for k, v in (("mask", access.mask),) if v)
    if any(n in moved for part in (access.pointer, access.mask or "") for n in names_read(ast.parse(part or "0", mode="eval"))):
        return ""
    head.append(f"{total} = tl.zeros({shape}, tl.float32)\n")
    body.append(f"{total} += {value}\n")
    tail = [f"tl.{access.kind}({access.pointer}, {total}{keywords}" + "".join(f", {k}={v}" for k, v in access.keywords.items()) + ")\n"]
    indent = " " * function.body[0].col_offset
    first = function.body[0] if not _is_docstring(function.body[0]) else function.body[1]
    new_body = (
        textwrap.indent("".join(head), indent)
        + f"{indent}for {tile} in range(0, {tiles}):\n"
        + textwrap.indent("".join(body), indent + "    ")
        + textwrap.indent("".join(tail), indent)
    )
    kernel_text = "".join([*lines[: first.lineno - 1], new_body, *lines[function.end_lineno or 0 :]])
    # The body was replaced as lines, so the launch is edited on the new text.
    file = SourceFile(kernel_text)
    file.add_parameter(kernel.name, tiles, argument=site.grid_axes[axis])
    shift = kernel_text.count("\n") - text.count("\n")
    line = site.line + (shift if site.line > (function.end_lineno or 0) else 0)
    host = {p: site.arguments[p] for p in site.arguments}
    file.set_grid_axis(
        line,
        axis,
        f"triton.cdiv({_host(stop, host)} - {_host(start, host)}, {_host(step, host)})"
        if start != "0"
        else f"triton.cdiv({_host(stop, host)}, {_host(step, host)})",
    )
    return file.apply()


def _sum(start: str, index: str, step: str) -> str:
    product = f"{index} * {step}" if step != "1" else index
    return product if start == "0" else f"{start} + {product}"


def _host(text: str, arguments: dict[str, str]) -> str:
    """A kernel expression in the host's names."""

    class Swap(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(f"({arguments[node.id]})" if not arguments[node.id].isidentifier() else arguments[node.id], mode="eval").body

    return ast.unparse(Swap().visit(ast.parse(text, mode="eval")))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


_BODY_BEFORE = """    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    # rows of the output
    batch = tl.program_id(1)
    d = tl.arange(0, D)
    right = tl.load(right_ptr + (batch * N + cols)[:, None] * D + d[None, :])
    for start in range(0, M, BM):
        rows = start + tl.arange(0, BM)
        left = tl.load(left_ptr + (batch * M + rows)[:, None] * N + cols[None, :])
        part = tl.dot(left, right)
        tl.atomic_add(out_ptr + (batch * M + rows)[:, None] * D + d[None, :], part)"""

_BODY_AFTER = """    start = tl.program_id(0) * BM
    # rows of the output
    batch = tl.program_id(1)
    d = tl.arange(0, D)
    rows = start + tl.arange(0, BM)
    total = tl.zeros((BM, D), tl.float32)
    for tile in range(0, TILES):
        cols = tile * BN + tl.arange(0, BN)
        right = tl.load(right_ptr + (batch * N + cols)[:, None] * D + d[None, :])
        left = tl.load(left_ptr + (batch * M + rows)[:, None] * N + cols[None, :])
        part = tl.dot(left, right)
        total += part
    tl.atomic_add(out_ptr + (batch * M + rows)[:, None] * D + d[None, :], total)"""

_CASE = """import torch, triton
import triton.language as tl

CASES = {"long": dict(z=8, m=4096, n=4096, d=64)}
SMALL = {"tiny": dict(z=2, m=64, n=128, d=32)}
TOLERANCE = dict(rtol=2e-2, atol=3e-1)


@triton.jit
def backward_kernel(left_ptr, right_ptr, out_ptr, M, N{extra}, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
{body}


def launch(left, right):
    z, m, n = left.shape
    d = right.shape[-1]
    out = torch.zeros(z, m, d, device=left.device, dtype=torch.float32)
    backward_kernel[({grid}, z)](left, right, out, m, n{argument}, D=d, BM=64, BN=64)
    return out


def reference(left, right):
    return torch.bmm(left.float(), right.float())


def make_inputs(*, device, seed, z, m, n, d):
    torch.manual_seed(seed)
    half = lambda *shape: torch.randn(*shape, device=device, dtype=torch.float16)
    return dict(left=half(z, m, n), right=half(z, n, d))
"""


def _case(body: str, extra: str, grid: str, argument: str) -> str:
    return _CASE.replace("{body}", body).replace("{extra}", extra).replace("{grid}", grid).replace("{argument}", argument)


AtomicsLayout.examples = (
    Example(title="programs walk over the output", line=20, grade="confirmed", before=_case(_BODY_BEFORE, "", "n // 64", "")),
    Example(title="programs own the output", before=_case(_BODY_AFTER, ", TILES", "triton.cdiv(m, 64)", ", n // 64")),
)
