"""GRD104: tiles that the mask discards completely are still loaded and computed."""

import ast
from collections.abc import Iterable

from leadline.model import Hypothesis, KernelFacts, Launch, Loop, Rewrite
from leadline.rules.base import Rule, View, metric, seen
from leadline.rules.grid.body import function, loop_node
from leadline.rules.grid.dead_tiles import Visible, conditions, dead_share, lane_share, visible_form
from leadline.rules.grid.examples.masked_tiles import EXAMPLES
from leadline.rules.grid.work import launched, trips


class MaskedTiles(Rule):
    """Tiles whose every element the mask discards.

    What it finds
        A loop over positions that compares them with positions of the program (causal, banded or ragged masks) but whose bounds ignore the
        comparison; a load whose value a `tl.where` on positions throws away; loads that the sampler saw fully masked.

    Why it is slow
        The loads, products and exponentials of a discarded tile cost as much as those of a useful one: half of a causal square.

    How it is proved
        The comparison is evaluated with interval arithmetic for programs spread over the real grid: the share of iterations in which no
        element can pass. The sampler's share of fully masked executions agrees for masked loads.

    Rewrite and its safety
        The loop's bound is tightened to the last (first) position that the comparison lets through, `tl.minimum` with the old bound.
        Safe when everything the loop stores or accumulates passes the comparison. An elementwise load gets the comparison in its mask.

    References
        Dao et al., FlashAttention-2, 2023, section on causal masks.
    """

    code = "GRD104"
    slug = "masked-tiles"
    cause = "masked_tiles"
    family = "grid"
    examples = EXAMPLES

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch, facts in launched(view):
            node = function(view, facts)
            if node is None:
                continue
            found = False
            for loop in facts.loops:
                for hypothesis in self._loop(view, launch, facts, node, loop):
                    found = True
                    yield hypothesis
            for load, condition in discarded_loads(node, facts):
                if hypothesis := self._load(view, launch, facts, load, condition):
                    found = True
                    yield hypothesis
            if not found:
                yield from self._sampled(view, launch, facts)

    def _loop(self, view: View, launch: Launch, facts: KernelFacts, node: ast.FunctionDef, loop: Loop) -> Iterable[Hypothesis]:
        body = loop_node(node, loop.line)
        if body is None or not loop.target or loop.kind == "while":
            return
        worst: tuple[float, Visible] | None = None
        for condition in conditions(node, body, facts):
            if visible_form(condition, node, loop.target) is None:
                continue
            share = dead_share(view, launch, facts, node, loop, condition)
            if share is None and not loop.bound_axes and _positions(condition, facts):
                share = 0.4  # the loop's length is not known here; a triangle is the common form
            if share is not None and share > 0.03 and (worst is None or share > worst[0]):
                worst = (share, condition)
        if worst is None or trips(view, launch, loop, facts) < 1.5:
            return
        share, condition = worst
        high = 1.0 / (1.0 - min(0.9, share) * 0.95)
        comparison = f"{condition.left} {_SIGN[condition.op]} {condition.right}"
        yield self.hypothesis(
            view,
            launch,
            line=loop.line,
            low=1.0 + (high - 1.0) * 0.45,
            high=high,
            key=f"{launch.kernel}:{loop.line}",
            claim=f"the loop runs over [{loop.start}, {loop.stop}) although `{comparison}` discards all of {share:.0%} of its tiles",
            grade="observed",
            sufficient_level=1,
            prediction="fewer iterations for most programs",
            facts=[
                seen(f"`{comparison}` decides which elements count, the loop's bounds ignore it", launch.kernel_file, condition.line),
                metric("dead_tiles", share, "share", launch, loop.line, collector="source"),
            ],
        )

    def _load(self, view: View, launch: Launch, facts: KernelFacts, load: ast.Assign, condition: Visible) -> Hypothesis | None:
        share = lane_share(view, launch, facts, condition)
        if share is None or share < 0.1:
            return None
        sample = view.samples.get(launch.index)
        moved = sum(a.total for a in sample.accesses) if sample else 0.0
        mine = view.access(launch.index, load.lineno, "load")
        part = (mine.total / moved if moved and mine else 1.0 / max(2, len(facts.accesses))) * share
        high = 1.0 / (1.0 - min(0.9, part))
        comparison = f"{condition.left} {_SIGN[condition.op]} {condition.right}"
        return self.hypothesis(
            view,
            launch,
            line=load.lineno,
            low=1.0 + (high - 1.0) * 0.2,
            high=high,
            key=f"{launch.kernel}:{load.lineno}:load",
            claim=f"{share:.0%} of the elements read here are thrown away by `{comparison}`",
            grade="observed" if mine else "suspected",
            sufficient_level=1,
            prediction="fewer bytes read",
            notes=("elementwise",),
            facts=[metric("discarded", share, "share", launch, load.lineno, collector="source")],
        )

    def _sampled(self, view: View, launch: Launch, facts: KernelFacts) -> Iterable[Hypothesis]:
        sample = view.samples.get(launch.index)
        if sample is None:
            return
        cost = sum(a.executions * a.lanes * a.itemsize for a in sample.accesses)
        dead = sum(a.executions * a.lanes * a.itemsize * a.dead for a in sample.accesses)
        worst = max(sample.accesses, key=lambda a: a.executions * a.lanes * a.dead, default=None)
        if not cost or worst is None or dead / cost < 0.15:
            return
        share = dead / cost
        # A masked load moves nothing; what remains is its issue, its arithmetic and the slot of its program.
        high = 1.0 / (1.0 - share * (0.5 if any(o.kind == "dot" for o in facts.operations) else 0.25))
        yield self.hypothesis(
            view,
            launch,
            line=worst.line,
            low=1.0 + (high - 1.0) * 0.3,
            high=high,
            key=f"{launch.kernel}:{worst.line}:dead",
            sufficient_level=1,
            claim=f"{share:.0%} of the tiles are masked out completely",
            grade="observed",
            notes=("sampled",),
            facts=[metric("dead_tiles", share, "share", launch, worst.line)],
        )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        from leadline.rules.grid.bound_loop import bounded, masked_load

        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        facts = view.kernel(launch) if launch else None
        node = function(view, facts) if facts else None
        if launch is None or facts is None or node is None or "sampled" in hypothesis.notes:
            return
        if "elementwise" in hypothesis.notes:
            for load, condition in discarded_loads(node, facts):
                source = masked_load(view, facts, node, load, condition) if load.lineno == hypothesis.span.line else None
                if source:
                    yield Rewrite(
                        id="",
                        rule=self.code,
                        title="put the comparison into the load's mask",
                        source=source,
                        precondition="the discarded elements reach nothing but the tl.where",
                        prediction="fewer bytes read",
                        finding=f"{self.code}:{hypothesis.key}",
                    )
                    return
            return
        loop = next((x for x in facts.loops if x.line == hypothesis.span.line), None)
        source = bounded(view, facts, node, loop) if loop else None
        if source:
            yield Rewrite(
                id="",
                rule=self.code,
                title="bound the loop by the positions the mask lets through",
                source=source,
                precondition="every store and every carried value of the loop passes the comparison",
                prediction="fewer iterations",
                finding=f"{self.code}:{hypothesis.key}",
            )


_SIGN = {"Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">="}


def _positions(condition: Visible, facts: KernelFacts) -> bool:
    """Whether one side of the comparison depends on a program axis."""
    names = {n.id for text in (condition.left, condition.right) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
    return any((s := facts.symbol(n)) is not None and s.axes for n in names)


def discarded_loads(node: ast.FunctionDef, facts: KernelFacts) -> Iterable[tuple[ast.Assign, Visible]]:
    """Loads (as assignments) whose only use is an arm of a `tl.where` with a comparison of positions and a constant other arm."""
    for statement in ast.walk(node):
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
            continue
        name = statement.targets[0].id
        calls = [
            c for c in ast.walk(statement.value) if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute) and c.func.attr == "load"
        ]
        reads = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
        wheres = [
            c
            for c in ast.walk(node)
            if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute) and c.func.attr == "where" and len(c.args) == 3
        ]
        if len(calls) != 1 or len(reads) != 1 or any(loop.line <= statement.lineno <= loop.end_line for loop in facts.loops):
            continue
        where = next((w for w in wheres if any(r in ast.walk(w.args[1]) or r in ast.walk(w.args[2]) for r in reads)), None)
        if where is None:
            continue
        mask = next((k.value for k in calls[0].keywords if k.arg == "mask"), None)
        masked: set[tuple[str, str, str]] = (
            {(c.left, c.op, c.right) for c in conditions(node, calls[0], facts)} if mask is not None else set()
        )
        for condition in conditions(node, ast.Expr(where), facts):
            loaded = {s.name for s in facts.symbols if s.loaded}
            names = {n.id for t in (condition.left, condition.right) for n in ast.walk(ast.parse(t)) if isinstance(n, ast.Name)}
            ranged = any((s := facts.symbol(n)) is not None and s.ranges for n in names)
            if (condition.left, condition.op, condition.right) not in masked and not names & loaded and ranged:
                yield statement, condition
                break
