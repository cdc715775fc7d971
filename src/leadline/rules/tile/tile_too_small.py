"""TIL103: a tile so small that the loop over it, or the launch, costs more than its work."""

import ast
from collections.abc import Iterable

from leadline.model import Hypothesis, KernelFacts, Launch, Loop, Rewrite
from leadline.rules.base import Rule, View, metric
from leadline.rules.grid.work import definition, figure, launched, number, numbers, parse, threads, trips
from leadline.rules.tile.examples.tile_too_small import EXAMPLES
from leadline.rules.tile.pressure import site_of


class TileTooSmall(Rule):
    """A tile so small that the loop over it costs more than its work.

    What it finds
        A loop of many iterations whose step is a small constant from the launch, so that a thread handles less than four elements
        of it at a time; tiles of a matrix product far below what tensor cores and reuse want.

    Why it is slow
        Every iteration pays its address arithmetic, its mask and the latency of its loads; few bytes are in flight, rows are read in
        pieces shorter than a cache line.

    How it is proved
        Sampled trip counts, elements per thread and the longest contiguous run of the loads.

    Rewrite and its safety
        A larger constant at the launch, with warps to match. The loop handles any length, so the meaning stays; sums add in another order.

    References
        intel/intel-xpu-backend-for-triton issue 7102.
    """

    code = "TIL103"
    slug = "tile-too-small"
    cause = "tile_too_small"
    family = "tile"
    examples = EXAMPLES

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch, facts in launched(view):
            for loop in facts.loops:
                if found := self._loop(view, launch, facts, loop):
                    yield found
            if found := self._dot(view, launch, facts):
                yield found

    def _loop(self, view: View, launch: Launch, facts: KernelFacts, loop: Loop) -> Hypothesis | None:
        step = number(loop.step, launch, facts)
        count = trips(view, launch, loop, facts)
        name = loop.step.strip()
        if step is None or count < 8 or name not in numbers(launch) or any(o.kind == "dot" and o.loop == loop.id for o in facts.operations):
            return None
        sample = view.samples.get(launch.index)
        inside = [
            a for a in (sample.accesses if sample else ()) if loop.line <= a.line <= loop.end_line and a.kind == "load" and a.lanes > 1
        ]
        lanes = max((a.lanes for a in inside), default=int(step))
        per_thread = lanes / threads(launch)
        # The step is a run of the row only where the loads are no longer contiguous than it.
        along = not inside or all(a.contiguous <= step for a in inside)
        run = step * max((a.itemsize for a in inside), default=4) if along else 512
        if per_thread >= 4 and run >= 512:
            return None
        room = min(count, 8192 / max(step, 1), 32.0 / max(per_thread, 1 / 64))
        if room < 2:
            return None
        cost = view.costs.get(launch.index)
        high = min(room, 1.6)
        if cost and cost.total_us > 0:
            # Iterations overlap among resident programs, so only part of their latency shows; short runs waste sectors as well.
            wide = min(1.0, run / 64)
            asked = cost.l2_us / max(1.0, min(room, 128 / max(run, 1)))
            after = max(cost.dram_us * wide, cost.latency_us / room, asked, cost.compute_us)
            high = min(room, cost.total_us / max(after + cost.launch_us, 1e-9))
        if high < 1.03:
            return None
        return self.hypothesis(
            view,
            launch,
            line=loop.line,
            low=1.0 + (high - 1.0) * 0.4,
            high=high,
            key=f"{launch.kernel}:{loop.line}:{name}",
            sufficient_level=1,
            claim=f"the loop advances by {name} = {step:.0f} ({per_thread:.2g} elements a thread, "
            f"{run:.0f} bytes of a row): {count:.0f} iterations",
            grade="observed" if inside else "suspected",
            notes=(f"name={name}", f"value={int(step)}"),
            prediction="fewer iterations with wider loads",
            facts=[
                metric("trips", count, "iterations", launch, loop.line),
                metric("elements_per_thread", per_thread, "elements", launch, loop.line),
            ],
        )

    def _dot(self, view: View, launch: Launch, facts: KernelFacts) -> Hypothesis | None:
        sample = view.samples.get(launch.index)
        dots = [o for o in facts.of_kind("dot") if o.loop >= 0]
        cost = view.costs.get(launch.index)
        if not dots or sample is None or cost is None or cost.total_us <= 0 or sample.dot_flops <= 0:
            return None
        loads = [a for a in sample.accesses if a.kind == "load" and a.executions > 1.5]
        asked = sum(a.total for a in loads)
        if not asked or launch.programs < 2 * view.sms:
            return None
        # Bytes asked of L2 for each operation: a 128 x 128 tile of 2-byte operands asks 1/64 B per FLOP.
        intensity = sample.dot_flops / asked
        bound = max(cost.l2_us, cost.dram_us)
        if intensity >= 48 or bound <= cost.compute_us:
            return None
        high = min(1.5, bound / max(cost.compute_us, bound * intensity / 64))
        if high < 1.03:
            return None
        line = dots[0].line
        return self.hypothesis(
            view,
            launch,
            line=line,
            low=1.0 + (high - 1.0) * 0.2,
            high=high,
            key=f"{launch.kernel}:{line}:dot",
            sufficient_level=1,
            claim=f"the tiles of the product are reused too little: "
            f"{intensity:.0f} operations for each byte read (128 x 128 tiles give 64)",
            grade="observed",
            prediction="fewer bytes asked of L2",
            facts=[metric("flops_per_byte", intensity, "FLOP/B", launch, line)],
        )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        from leadline.rules.grid.launch_text import with_arguments

        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        noted = dict(n.split("=", 1) for n in hypothesis.notes if "=" in n)
        site = site_of(view, launch) if launch else None
        if launch is None or site is None or "name" not in noted:
            return
        name, value = noted["name"], int(noted["value"])
        count = figure(hypothesis, "trips")
        per_thread = figure(hypothesis, "elements_per_thread", 1.0)
        facts = view.kernel(launch)
        if facts is None or not literal(site.arguments.get(name, "")) or covers_programs(facts, name):
            return
        inside = [a for a in facts.accesses if a.loop >= 0 and a.rank != 0]
        if not inside or any(a.mask is None for a in inside):
            return  # a longer step would run past the end of the axis
        limit = 1 << max(0, int(count * value - 1)).bit_length()
        warps = launch.option("num_warps", 4)
        for block in (1024, 512, 256, 2048):
            held = per_thread * block / value
            if block <= value or block > limit or held > 128:
                continue
            wider = warps if held <= 16 else 8 if held <= 64 else 16
            source = with_arguments(view, launch, {name: str(block)}, {"num_warps": str(max(warps, wider))} if wider > warps else {})
            if source:
                yield Rewrite(
                    id="",
                    rule=self.code,
                    title=f"{name} = {block}",
                    source=source,
                    applicability="changes_numerics",
                    precondition=f"{name} sets only the step of a masked loop",
                    prediction="fewer iterations",
                    finding=f"{self.code}:{hypothesis.key}",
                    choices={name: block, "num_warps": max(warps, wider)},
                )


def literal(text: str) -> bool:
    """Whether an argument's text is an integer literal."""
    return text.strip().isdigit()


def covers_programs(facts: KernelFacts, name: str) -> bool:
    """Whether a program's share of the work is `program id * name`: then another constant would need another grid."""
    for symbol in facts.symbols:
        tree = parse(symbol.text) or definition(symbol.text)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                sides = [(node.left, node.right), (node.right, node.left)]
                if any(isinstance(a, ast.Name) and a.id == name and _of_program(b, facts) for a, b in sides):
                    return True
    return False


def _of_program(node: ast.expr, facts: KernelFacts) -> bool:
    if "program_id" in ast.unparse(node):
        return True
    return any(isinstance(n, ast.Name) and (s := facts.symbol(n.id)) is not None and bool(s.axes) for n in ast.walk(node))
