"""Rewrites of GRD104: tighter loop bounds, and comparisons moved into the mask of a load."""

import ast

from leadline.model import KernelFacts, Loop
from leadline.rules.base import View
from leadline.rules.editing.dataflow import names_read
from leadline.rules.grid.body import callee, loop_node
from leadline.rules.grid.dead_tiles import Visible, conditions, tightened
from leadline.rules.grid.launch_text import Text, opened

SIGN = {"Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">="}


def bounded(view: View, facts: KernelFacts, function: ast.FunctionDef, loop: Loop) -> str | None:
    """The file with the loop's start or stop tightened by the comparisons of positions inside it; None when none is usable.

    A dead tile must leave nothing behind: the loop stores nothing, and every dot or load that feeds an accumulator sees the comparison
    through a `tl.where` or a mask (the judge runs both and compares).
    """
    text = opened(view, facts.file)
    body = loop_node(function, loop.line)
    if text is None or not isinstance(body, ast.For) or loop.kind not in ("range", "tl.range") or loop.bound_loaded:
        return None
    if any(a.kind != "load" and body.lineno <= a.line <= (body.end_lineno or 0) for a in facts.accesses):
        return None
    call = body.iter
    if not isinstance(call, ast.Call) or not 1 <= len(call.args) <= 3:
        return None
    before = _defined_before(function, body)
    start = text.of(call.args[0]) if len(call.args) > 1 else "0"
    stop = text.of(call.args[1] if len(call.args) > 1 else call.args[0])
    step = text.of(call.args[2]) if len(call.args) > 2 else "1"
    new_start, new_stop = start, stop
    for condition in conditions(function, body, facts):
        found = tightened(condition, function, loop)
        if found is None or not _known(found[1], before):
            continue
        kind, bound = found
        if bound in (stop, start):
            continue
        if kind == "stop" and new_stop == stop and not _is_extent(bound, function):
            new_stop = f"tl.minimum({bound}, {stop})"
        elif kind == "start" and new_start == start and _is_zero(start):
            # Down to the step below, so that the tiles stay where they were.
            new_start = f"tl.maximum({bound}, 0) // {_tight(step)} * {_tight(step)}"
    if (new_start, new_stop) == (start, stop):
        return None
    arguments = [new_start, new_stop] if len(call.args) > 1 or new_start != start else [new_stop]
    if len(call.args) > 2:
        arguments.append(step)
    first, last = text.span(call.args[0])[0], text.span(call.args[-1])[1]
    text.edits.append((first, last, ", ".join(arguments)))
    return text.result()


def _tight(step: str) -> str:
    return step if step.isidentifier() or step.isdigit() else f"({step})"


def _is_zero(text: str) -> bool:
    return text.strip() == "0"


def _is_extent(bound: str, function: ast.FunctionDef) -> bool:
    """Whether the bound is one of the kernel's own arguments: the plain length check that the loop's stop already makes."""
    return bound in {a.arg for a in function.args.args}


def _defined_before(function: ast.FunctionDef, loop: ast.For) -> set[str]:
    names = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)} | {"tl", "triton", "min", "max"}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < loop.lineno:
            names.add(node.id)
    return names


def _known(text: str, names: set[str]) -> bool:
    return names_read(ast.parse(text, mode="eval")) <= names


def masked_load(view: View, facts: KernelFacts, function: ast.FunctionDef, load: ast.Assign, condition: Visible) -> str | None:
    """The file with `condition` joined to the mask of the load at `load`; None when a name of it is not yet defined there."""
    text = opened(view, facts.file)
    if text is None:
        return None
    names = {a.arg for a in function.args.args} | {"tl"}
    names |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.lineno < load.lineno}
    test = f"({condition.left} {SIGN[condition.op]} {condition.right})"
    if not _known(test, names):
        return None
    call = next((n for n in ast.walk(load.value) if callee(n) == "load"), None)
    if not isinstance(call, ast.Call):
        return None
    mask = next((k.value for k in call.keywords if k.arg == "mask"), call.args[1] if len(call.args) > 1 else None)
    _join_mask(text, call, mask, test)
    return text.result()


def _join_mask(text: Text, call: ast.Call, mask: ast.expr | None, test: str) -> None:
    if mask is None:
        end = text.span(call)[1] - 1
        other = "" if any(k.arg == "other" for k in call.keywords) else ", other=0"
        text.insert(end, f", mask={test}{other}")
        return
    written = text.of(mask)
    if not isinstance(mask, ast.Name | ast.Attribute | ast.Subscript) and not (
        isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.BitAnd)
    ):
        written = f"({written})"
    text.replace(mask, f"{written} & {test}")
    if len(call.args) < 3 and not any(k.arg == "other" for k in call.keywords):
        text.insert(text.span(call)[1] - 1, ", other=0")
