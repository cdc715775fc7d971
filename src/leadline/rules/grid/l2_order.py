"""GRD106: programs that run together share few input tiles."""

import ast
from collections.abc import Iterable

from leadline.model import Hypothesis, KernelFacts, Launch, Rewrite
from leadline.rules.base import Rule, View, metric, seen
from leadline.rules.grid.body import callee, function, program_axis
from leadline.rules.grid.examples.l2_order import EXAMPLES
from leadline.rules.grid.work import launched, number, resident


class L2Order(Rule):
    """Programs that run together share few input tiles.

    What it finds
        A matrix product whose output tiles are walked row by row (`pid // tiles`, `pid % tiles`) without groups,
        while the two operands exceed the L2 cache.

    Why it is slow
        A wave of programs in one row of tiles reads all of the other operand; in a block of rows and columns it would read far less.

    How it is proved
        Tiles touched by one wave in row order and in groups of eight rows, from the grid and the tile sizes.

    Rewrite and its safety
        The same tiles in the well-known grouped order: a permutation of the program ids. Safe.

    References
        Triton tutorial 03, section on L2 cache optimisations.
    """

    code = "GRD106"
    slug = "l2-order"
    cause = "l2_order"
    family = "grid"
    examples = EXAMPLES

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch, facts in launched(view):
            if facts.of_kind("dot") and any(loop.carried for loop in facts.loops):
                yield from self._launch(view, launch, facts)

    def _launch(self, view: View, launch: Launch, facts: KernelFacts) -> Iterable[Hypothesis]:
        node = function(view, facts)
        order = linear_order(node) if node else None
        loads = [a for a in facts.accesses if a.kind == "load" and a.loop >= 0 and a.base]
        operands = [
            t.numel * t.itemsize for name in {a.base for a in loads if a.base} if (arg := launch.argument(name)) and (t := arg.tensor)
        ]
        l2 = view.ceilings.l2_bytes if view.ceilings else 50e6
        if order is None or len(operands) < 2 or sum(operands) < l2 or grouped(node):
            return
        columns = number(order.tiles, launch, facts)
        if columns is None or columns < 16:
            return
        rows = launch.grid[0] / columns
        wave = min(launch.programs, view.sms * min(2, resident(launch, view)))
        if rows < 4:
            return
        straight = max(1.0, wave / columns) + min(wave, columns)
        blockwise = min(8.0, rows) + wave / min(8.0, rows)
        ratio = straight / blockwise
        cost = view.costs.get(launch.index)
        if ratio < 1.3:
            return
        high = 1.12
        if cost and cost.compute_us > 0:
            # Traffic of all waves in row order: the operands of every wave once, unless they stay in L2.
            bytes_wave = straight * sum(operands) / (rows + columns)
            traffic_us = launch.programs / wave * bytes_wave / (view.ceilings.copy_bytes_per_s if view.ceilings else 4e12) * 1e6
            high = min(1.15, max(1.02, 1.0 + 0.15 * traffic_us / max(cost.compute_us, 1e-9)))
        yield self.hypothesis(
            view,
            launch,
            line=order.line,
            low=1.0,
            high=high,
            key=f"{launch.kernel}:{order.line}",
            grade="observed",
            sufficient_level=1,
            claim=f"a wave of {wave} programs touches {straight:.0f} operand tiles in this order, {blockwise:.0f} in groups of 8 rows",
            prediction="more hits in L2",
            facts=[
                metric("operand_bytes", sum(operands), "B", launch, order.line, predicted=False, collector="trace"),
                seen(f"`{order.row_text}` and `{order.column_text}` walk the tiles row by row", launch.kernel_file, order.line),
            ],
        )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        from leadline.rules.grid.group_order import grouped_source

        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        facts = view.kernel(launch) if launch else None
        node = function(view, facts) if facts else None
        order = linear_order(node) if node else None
        if launch is None or facts is None or order is None:
            return
        for group in (8, 4, 16):
            source = grouped_source(view, facts, order, group)
            if source:
                yield Rewrite(
                    id="",
                    rule=self.code,
                    title=f"grouped order, {group} rows of tiles",
                    source=source,
                    precondition="a permutation of the program ids",
                    prediction="more hits in L2",
                    finding=f"{self.code}:{hypothesis.key}",
                    choices={"GROUP": group},
                )


class Order:
    """Where the kernel splits one program id into a row and a column of tiles: the two expressions, and the number of columns."""

    def __init__(self, pid: str, tiles: str, row: ast.BinOp, column: ast.BinOp) -> None:
        self.pid, self.tiles, self.row, self.column = pid, tiles, row, column
        self.line = row.lineno
        self.row_text, self.column_text = ast.unparse(row), ast.unparse(column)


def linear_order(node: ast.FunctionDef) -> Order | None:
    """`pid // tiles` and `pid % tiles` over one program id, both written once; None for any other form."""
    pids = {
        t.id: s.value
        for s in ast.walk(node)
        if isinstance(s, ast.Assign)
        for t in s.targets
        if isinstance(t, ast.Name) and program_axis(s.value) == 0
    }
    rows: list[ast.BinOp] = []
    columns: list[ast.BinOp] = []
    for n in ast.walk(node):
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.FloorDiv | ast.Mod):
            left = n.left
            if (isinstance(left, ast.Name) and left.id in pids) or program_axis(left) == 0:
                (rows if isinstance(n.op, ast.FloorDiv) else columns).append(n)
    if len(rows) != 1 or len(columns) != 1 or ast.unparse(rows[0].right) != ast.unparse(columns[0].right):
        return None
    return Order(ast.unparse(rows[0].left), ast.unparse(rows[0].right), rows[0], columns[0])


def grouped(node: ast.FunctionDef | None) -> bool:
    """Whether the kernel already forms groups: it divides by a size that a minimum cut (the last group's), or calls `tl.swizzle2d`."""
    if node is None:
        return False
    nodes = list(ast.walk(node))
    minima = [s for s in nodes if isinstance(s, ast.Assign) and callee(s.value) in ("min", "minimum")]
    cut = {t.id for s in minima for t in s.targets if isinstance(t, ast.Name)}
    divisors = [n.right for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.FloorDiv | ast.Mod)]
    return any(callee(n) == "swizzle2d" for n in nodes) or any(
        (isinstance(d, ast.Name) and d.id in cut) or callee(d) in ("min", "minimum") for d in divisors
    )
