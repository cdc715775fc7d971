"""ATM101: many programs add into the same addresses."""

import ast
import textwrap
from collections.abc import Iterable

from leadline.model import Access, Hypothesis, KernelFacts, LaunchSite, Probe, Rewrite, SourceEdit
from leadline.rules.atomics.throughput import atomic_us, contended, inflated, summable
from leadline.rules.base import Example, Rule, View, located, metric, raised, seen
from leadline.rules.body import names_read, names_written, statements, tile_shape
from leadline.rules.editing import SourceFile

PROGRAMS_PER_SM = (2, 1, 4)  # offered in this order; the clock decides


class AtomicsContention(Rule):
    """Programs meet on the same addresses and their updates are serialised.

    What it finds
        A `tl.atomic_*` outside any loop whose address does not move with a program axis of many programs: every program on that axis adds
        to the same elements (weight gradients, histograms with few bins, global sums).
    Why it is slow
        Updates of one address are done one after another in the L2, and each is a read and a write there. Their number grows with
        the grid, not with the output.
    How it is proved
        Sampled addresses of neighbouring programs are equal; the machine instruction is named. The privatised form is compiled: the
        atomics disappear.
    Rewrite and its safety
        A few programs per multiprocessor walk the rows, keep the sums in registers and store one partial row each; a second small kernel
        adds the partial rows. Sums are reassociated. Needs an output that starts at zero, is read nowhere else in the kernel, and an
        axis used only to number the rows.
    References
        Privatisation of reductions; the layer-norm backward of the public Triton tutorials does the same by locks.
    """

    code, slug, cause, family = "ATM101", "contended-atomics", "atomics_contention", "atomics"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            kernel = view.kernel(launch)
            hits: list[tuple[Access, list[int]]] = []
            for access in kernel.accesses if kernel else ():
                if access.kind.startswith("atomic") and not (access.loop >= 0 and access.loop in access.loops):
                    axes = contended(view, launch, access)
                    if axes:
                        hits.append((access, axes))
            if not hits:
                continue
            spent = sum(atomic_us(view, launch, access) for access, _ in hits)
            low, high = inflated(view, launch, spent)
            access, axes = hits[0]
            programs = launch.grid[axes[0]]
            yield self.hypothesis(
                view,
                launch,
                line=access.line,
                column=access.column,
                end_line=access.end_line,
                end_column=access.end_column,
                low=low,
                high=high,
                claim=f"{programs} programs update the same addresses atomically",
                prediction="the atomics disappear",
                grade="observed" if view.samples.get(launch.index) else "suspected",
                facts=[
                    *[seen(a.text, launch.kernel_file, a.line) for a, _ in hits[:3]],
                    metric("atomic traffic", spent, "us", launch, access.line),
                ],
            )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        count = view.counter(hypothesis.launch, "atomic", hypothesis.span.line)
        if launch is None or not count or hypothesis.grade in ("located", "confirmed"):
            return hypothesis
        return raised(hypothesis, "located", located("sass", "atomic instructions", launch, hypothesis.span.line, count))

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        for made in list(self.rewrite(view, hypothesis))[:1]:
            yield Probe(
                claim="sums kept by the program need no atomics",
                grants=(SourceEdit(text=made.source, label="sums kept in registers"),),
                signature="ttgir.atomic_rmw",
                expect="zero",
                stage="ttgir",
                launch=hypothesis.launch,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        kernel = view.kernel(launch) if launch else None
        wrapper = view.source.wrapper
        if launch is None or kernel is None or wrapper is None or launch.kernel_file != view.source.path:
            return
        sites = [s for s in wrapper.launches if s.kernel == kernel.name]
        atomics = [a for a in kernel.accesses if a.kind == "atomic_add"]
        if len(sites) != 1 or not atomics or any(contended(view, launch, a) != [0] for a in atomics) or launch.grid[1:] != (1, 1):
            return
        if not all(summable(launch, a) for a in atomics):
            return
        outputs = {sites[0].arguments.get(a.base or "", "") for a in atomics}
        if any(outputs & set(s.arguments.values()) for s in wrapper.launches if s is not sites[0]):
            return  # another kernel may have added to the output before
        for per_sm in PROGRAMS_PER_SM:
            new = privatised(view.text(view.source.path), kernel, atomics, sites[0], wrapper.assignments, view.sms * per_sm)
            if new:
                yield Rewrite(
                    id="",
                    rule=self.code,
                    title=f"keep the sums in registers ({per_sm} programs per multiprocessor)",
                    source=new,
                    precondition="the outputs start at zero and are not read; the axis only numbers rows",
                    prediction="no atomics are left",
                    signature="ttgir.atomic_rmw",
                    expect="zero",
                    choices={"programs": view.sms * per_sm},
                )


def privatised(text: str, kernel: KernelFacts, atomics: list[Access], site: LaunchSite, assignments: dict[str, str], programs: int) -> str:
    """The file with `atomics` replaced by register sums, partial rows and a second kernel; "" when a precondition fails."""
    tree = ast.parse(text)
    function = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == kernel.name), None)
    # Launched in a loop, the output is added to again and again.
    if function is None or kernel.loops or kernel.branches or len(site.grid_axes) != 1 or site.loop:
        return ""
    if {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & {"row_index", "row_count", "programs", "ROW_COUNT"}:
        return ""  # names this rewrite introduces
    program = [n for n in ast.walk(function) if isinstance(n, ast.Call) and ast.unparse(n.func) in ("tl.program_id", "tl.num_programs")]
    if len(program) != 1 or ast.unparse(program[0].func) != "tl.program_id":
        return ""
    outputs = [a.base for a in atomics]
    for access in kernel.accesses:
        if access.base in outputs and access not in atomics:
            return ""
    hosts: dict[str, str] = {}
    for access in atomics:
        argument = site.arguments.get(access.base or "", "")
        if not argument.isidentifier() or "zeros" not in assignments.get(argument, "").split("(", 1)[0] or access.result_used:
            return ""
        hosts[access.base or ""] = argument
    if len(set(outputs)) != len(outputs) or any(tile_shape(kernel, a) is None for a in atomics):
        return ""
    body = _body(text, function, program[0], kernel, atomics)
    if body is None:
        return ""
    lines = text.splitlines(keepends=True)
    first = next(n for n in function.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)))
    edited = "".join([*lines[: first.lineno - 1], body, *lines[function.end_lineno or 0 :]])
    return _host(edited, edited.count("\n") - text.count("\n"), function, kernel, atomics, site, hosts, programs)


def _body(text: str, function: ast.FunctionDef, program: ast.Call, kernel: KernelFacts, atomics: list[Access]) -> str | None:
    """The kernel's new body: what does not depend on the row, then the loop over rows, then the partial stores."""
    lines = text.splitlines(keepends=True)
    row = next((n for n in function.body if n.lineno <= program.lineno <= (n.end_lineno or 0)), None)
    if not isinstance(row, ast.Assign) or len(row.targets) != 1 or not isinstance(row.targets[0], ast.Name):
        return None
    by_line = {a.line: (i, a) for i, a in enumerate(atomics)}
    plain = ast.unparse(row.value) == ast.unparse(program)
    counter = row.targets[0].id if plain else "row_index"
    moved: set[str] = set()
    head: list[str] = []
    loop: list[str] = []
    tail: list[str] = []
    for node, segment in statements(
        lines, [n for n in function.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    ):
        if node is row:
            moved |= names_written(node)
            if not plain:
                loop.append(segment.replace(ast.get_source_segment(text, program) or "", counter, 1))
        elif node.lineno in by_line and isinstance(node, ast.Expr):
            index, access = by_line[node.lineno]
            address = {n for part in (access.pointer, access.mask or "0") for n in names_read(ast.parse(part, mode="eval"))}
            if address & moved or not access.value:
                return None
            head.append(f"sum_{index} = tl.zeros({tile_shape(kernel, access)}, tl.float32)\n")
            loop.append(f"sum_{index} += {access.value}\n")
            mask = f", mask={access.mask}" if access.mask else ""
            base = access.base or ""
            place = f"{base} + tl.program_id(0).to(tl.int64) * {base}_size"
            pointer = _rebased(access.pointer, base, place)
            if pointer is None:
                return None
            tail.append(f"tl.store({pointer}, sum_{index}{mask})\n")
        elif names_read(node) & moved or _has_effect(node):
            moved |= names_written(node)
            loop.append(segment)
        else:
            if names_written(node) & moved:
                return None
            head.append(segment)
    if len(tail) != len(atomics):
        return None  # one is part of another statement
    indent = " " * function.body[0].col_offset
    return (
        textwrap.indent("".join(head), indent)
        + f"{indent}for {counter} in range(tl.program_id(0), ROW_COUNT, tl.num_programs(0)):\n"
        + textwrap.indent("".join(loop), indent + "    ")
        + textwrap.indent("".join(tail), indent)
    )


def _rebased(pointer: str, base: str, place: str) -> str | None:
    """The pointer expression with its base replaced; None when the base is not named exactly once."""
    tree = ast.parse(pointer, mode="eval")
    if sum(isinstance(n, ast.Name) and n.id == base for n in ast.walk(tree)) != 1:
        return None

    class Swap(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(place, mode="eval").body if node.id == base else node

    return ast.unparse(Swap().visit(tree))


def _has_effect(node: ast.stmt) -> bool:
    return any(
        isinstance(n, ast.Call) and ast.unparse(n.func).rsplit(".", 1)[-1].startswith(("store", "atomic", "debug", "device_"))
        for n in ast.walk(node)
    )


_SUM_KERNEL = """

@triton.jit
def {name}(partial_ptr, out_ptr, rows, size, BLOCK: tl.constexpr):
    # adds the partial rows, in a fixed order
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    step = tl.arange(0, 16)
    total = tl.zeros((16, BLOCK), tl.float32)
    for start in range(0, rows, 16):
        row = (start + step)[:, None]
        total += tl.load(partial_ptr + row.to(tl.int64) * size + cols[None, :], mask=(row < rows) & (cols < size)[None, :], other=0.0)
    tl.store(out_ptr + cols, tl.sum(total, 0).to(out_ptr.dtype.element_ty), mask=cols < size)
"""


def _host(
    text: str,
    shift: int,
    function: ast.FunctionDef,
    kernel: KernelFacts,
    atomics: list[Access],
    site: LaunchSite,
    hosts: dict[str, str],
    programs: int,
) -> str:
    """The wrapper's side: partial buffers, the smaller grid, the second kernel."""
    file = SourceFile(text)
    moved = shift if site.line > (function.end_lineno or 0) else 0
    line = site.line + moved
    before = [f"row_count = {site.grid_axes[0]}", f"programs = min(row_count, {programs})"]
    after: list[str] = []
    name = f"{kernel.name}_add_partials"
    file.add_parameter(kernel.name, "ROW_COUNT", argument="row_count")
    for access in atomics:
        base = access.base or ""
        host = hosts[base]
        file.add_parameter(kernel.name, f"{base}_size", argument=f"{host}.numel()")
        before.append(f"{host}_partial = torch.empty((programs, {host}.numel()), device={host}.device, dtype=torch.float32)")
        after.append(f"{name}[(triton.cdiv({host}.numel(), 64),)]({host}_partial, {host}, programs, {host}.numel(), BLOCK=64, num_warps=4)")
        file.set_launch_argument(line, base, f"{host}_partial")
    file.set_grid_axis(line, 0, "programs")
    file.insert_before(line, "\n".join(before))
    file.insert_after(line, "\n".join(after))
    file.add_function(_SUM_KERNEL.format(name=name).strip("\n"), after=kernel.name)
    return file.apply()


_CASE = """import torch, triton
import triton.language as tl

CASES = {"tall": dict(m=16384, n=2048)}
SMALL = {"tiny": dict(m=9, n=70), "odd": dict(m=37, n=33)}
TOLERANCE = dict(rtol=1e-3, atol=1e-2)


@triton.jit
def scale_backward_kernel(dy_ptr, x_ptr, w_ptr, dx_ptr, dw_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    keep = cols < N
    # one row of both
    dy = tl.load(dy_ptr + row * N + cols, mask=keep, other=0.0)
    x = tl.load(x_ptr + row * N + cols, mask=keep, other=0.0)
    w = tl.load(w_ptr + cols, mask=keep, other=0.0)
    tl.store(dx_ptr + row * N + cols, dy * w, mask=keep)
    tl.atomic_add(dw_ptr + cols, dy * x, mask=keep)


def launch(dy, x, w):
    m, n = x.shape
    dx = torch.empty_like(x)
    dw = torch.zeros(n, device=x.device, dtype=torch.float32)
    scale_backward_kernel[(m,)](dy, x, w, dx, dw, n, BLOCK=triton.next_power_of_2(n), num_warps=8)
    return dx, dw


def reference(dy, x, w):
    return dy * w, (dy.double() * x.double()).sum(0).float()


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    f = lambda *shape: torch.randn(*shape, device=device)
    return dict(dy=f(m, n), x=f(m, n), w=f(n))
"""

_CLEAN = (
    _CASE.replace("    tl.atomic_add(dw_ptr + cols, dy * x, mask=keep)\n", "    tl.store(dw_ptr + row * N + cols, dy * x, mask=keep)\n")
    .replace("dw = torch.zeros(n, device=x.device, dtype=torch.float32)", "dw = torch.empty(m, n, device=x.device, dtype=torch.float32)")
    .replace("(dy.double() * x.double()).sum(0).float()", "dy * x")
)

AtomicsContention.examples = (
    Example(title="a weight gradient added by every row", line=19, grade="confirmed", before=_CASE),
    Example(title="a product stored per row", before=_CLEAN),
)
