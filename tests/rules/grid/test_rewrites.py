"""Rewrites of the grid rules on their own examples and near misses, from hand-made views."""

import ast

import pytest

from leadline.model import AccessSample, LaunchCost, LoopSample
from leadline.rules.base import View
from leadline.rules.grid.body import function, loop_node, reset_by
from leadline.rules.grid.coarsen import coarsened
from leadline.rules.grid.examples import grid_underfill, l2_order, serial_loop, tiny_programs
from leadline.rules.grid.l2_order import L2Order, grouped, linear_order
from leadline.rules.grid.launch_text import Text, bracketed, with_literal, with_options
from leadline.rules.grid.serial_loop import SerialLoop
from leadline.rules.grid.split_loop import exposed, split
from leadline.rules.grid.tiny_programs import TinyPrograms
from leadline.rules.grid.unroll_to_grid import loop_to_grid
from tests.rules.grid.views import constant, line_of, number, tensor, view


def rows(text: str = serial_loop.BEFORE, **more) -> View:
    arguments = (
        tensor("x_ptr", (256, 4096), 1, "fp16"),
        tensor("y_ptr", (256, 4096), 2, "fp16"),
        number("m", 256),
        number("n", 4096),
        constant("ROWS", 32),
        constant("BLOCK", 4096),
    )
    return view(text, "normalise_kernel", arguments, (8, 1, 1), warps=8, **more)


def heads(text: str = tiny_programs.BEFORE) -> View:
    arguments = (
        tensor("x_ptr", (16384, 32, 128), 1, "fp16"),
        tensor("gate_ptr", (16384, 128), 2, "fp16"),
        tensor("y_ptr", (16384, 32, 128), 3, "fp16"),
        constant("HEADS", 32),
        constant("D", 128),
    )
    accesses = tuple(
        AccessSample(line=line_of(text, start), kind=kind, itemsize=2, lanes=128, executions=1, per_program=256)
        for start, kind in (("gate =", "load"), ("x = tl", "load"), ("tl.store", "store"))
    )
    cost = LaunchCost(launch=0, dram_us=60, l2_us=50, compute_us=5, latency_us=200, launch_us=3, total_us=220)
    return view(text, "gate_kernel", arguments, (16384, 32, 1), warps=8, accesses=accesses, cost=cost)


def moved(made: View, start: str) -> str | None:
    facts = made.kernel(made.launches[0])
    node = function(made, facts) if facts else None
    assert facts
    assert node
    loop = loop_node(node, line_of(made.text(facts.file), start))
    assert isinstance(loop, ast.For)
    return loop_to_grid(made, facts, node, loop)


def test_loop_becomes_a_factor_of_the_grid() -> None:
    assert moved(rows(), "for i") == serial_loop.AFTER


def test_only_whole_products_are_replaced() -> None:
    text = serial_loop.BEFORE.replace("if row < m:", "if row < m + program * ROWS + i * 2 - program * ROWS - i * 2:")
    source = moved(rows(text), "for i")
    assert source
    assert "row = program * ROWS + i" in source  # the other sum still needs both names
    assert "i = tl.program_id(0) % ROWS" in source


def test_comment_behind_the_loop_header_stays() -> None:
    source = moved(rows(serial_loop.BEFORE.replace("range(ROWS):", "range(ROWS):  # row by row")), "for i")
    assert source
    assert "    # row by row\n    # rows know nothing of each other\n    row = tl.program_id(0)\n" in source


def test_a_loop_on_one_line_stays() -> None:
    head, tail = serial_loop.BEFORE.split("    for i in")[0], serial_loop.BEFORE.split("def make_inputs")[1]
    loop = "    for i in range(ROWS): tl.store(y_ptr + program * ROWS + i, 0.0)  # tl.load\n"
    assert moved(rows(f"{head}{loop}\n\ndef make_inputs{tail}"), "for i") is None


def test_loop_variable_is_taken_from_the_program_id_where_it_is_used_alone() -> None:
    source = moved(rows(serial_loop.BEFORE.replace("program * ROWS + i", "program + i * 8")), "for i")
    assert source
    assert "i = tl.program_id(0) % ROWS" in source
    assert "program = (tl.program_id(0) // ROWS)" in source
    assert "[(triton.cdiv(m, 32) * 32,)]" in source


@pytest.mark.parametrize(
    ("old", "new"), [("if row < m:", "if row >= m:\n            break\n        if row < m:"), ("range(ROWS)", "range(2, ROWS)")]
)
def test_loops_of_other_forms_stay(old: str, new: str) -> None:
    assert moved(rows(serial_loop.BEFORE.replace(old, new)), "for i") is None


def test_serial_loop_is_found_and_priced() -> None:
    cost = LaunchCost(launch=0, dram_us=2, l2_us=2, compute_us=2, latency_us=40, launch_us=3, total_us=49)
    line = line_of(serial_loop.BEFORE, "for i")
    found = list(SerialLoop().suspect(rows(cost=cost, loops=(LoopSample(line=line, trips_min=32, trips_max=32, trips_mean=32.0),))))
    assert [(h.span.line, h.grade) for h in found] == [(line, "observed")]
    assert 2 < found[0].estimate.high < 33
    carried = serial_loop.BEFORE.replace("x * scale", "x * scale * 1.0").replace("scale = tl", "program = tl")
    assert not list(SerialLoop().suspect(rows(carried, cost=cost)))


def test_segments_are_reported() -> None:
    text = serial_loop.BEFORE.replace(
        "            scale = tl.rsqrt(tl.sum(x * x, 0) / n + 1e-6)\n",
        (
            "            if tl.load(y_ptr + row) != 0:\n                s = tl.zeros((BLOCK,), tl.float32)\n"
            "            s = s + x\n            scale = s\n"
        ),
    ).replace("    for i in", "    s = tl.zeros((BLOCK,), tl.float32)\n    for i in")
    made = rows(text)
    facts = made.kernel(made.launches[0])
    assert facts
    assert "s" in facts.loops[0].carried
    assert "!= 0" in reset_by(made, facts, facts.loops[0])


def test_neighbours_share_a_program() -> None:
    made = heads()
    found = list(TinyPrograms().suspect(made))
    assert len(found) == 1
    assert found[0].estimate.high > 2
    ((axis, source),) = coarsened(made, made.launches[0], made.kernel(made.launches[0]), 8)  # type: ignore[arg-type]
    assert axis == 1
    assert source == tiny_programs.AFTER
    returns = tiny_programs.BEFORE.replace("    head =", "    if token < 0:\n        return\n    head =")
    early = heads(returns)
    assert not list(coarsened(early, early.launches[0], early.kernel(early.launches[0]), 8))  # type: ignore[arg-type]


def test_split_of_a_sum() -> None:
    arguments = (tensor("x_ptr", (8, 4194304), 1), tensor("y_ptr", (8,), 2), number("n", 4194304), constant("BLOCK", 1024))
    made = view(grid_underfill.BEFORE, "energy_kernel", arguments, (8, 1, 1))
    facts = made.kernel(made.launches[0])
    assert facts
    line = line_of(grid_underfill.BEFORE, "for first")
    assert split(made, made.launches[0], facts, line, 64, 528) == grid_underfill.AFTER
    scan = view(grid_underfill.BEFORE.replace("acc += x * x", "acc = acc * 0.5 + x"), "energy_kernel", arguments, (8, 1, 1))
    facts = scan.kernel(scan.launches[0])
    assert facts
    assert split(scan, scan.launches[0], facts, line, 32, 528) is None


def test_exposed_names() -> None:
    assert exposed(ast.parse("a = b\nfor i in range(n):\n    c = i + a + d\n    e = c").body) == {"b", "n", "d"}


def test_grouped_order_is_a_permutation() -> None:
    for rows_, columns, group in ((5, 7, 8), (16, 3, 8), (9, 4, 4)):
        seen = set()
        for pid in range(rows_ * columns):
            start = pid // (group * columns) * group
            height = min(rows_ - start, group)
            inside = pid % (group * columns)
            seen.add((start + inside % height, inside // height))
        assert seen == {(r, c) for r in range(rows_) for c in range(columns)}


def test_linear_order_is_seen_once() -> None:
    tree = next(n for n in ast.walk(ast.parse(l2_order.BEFORE)) if isinstance(n, ast.FunctionDef))
    order = linear_order(tree)
    assert order
    assert order.tiles == "tiles"
    assert order.row_text == "tl.program_id(0) // tiles"
    mended = next(n for n in ast.walk(ast.parse(l2_order.AFTER)) if isinstance(n, ast.FunctionDef))
    assert grouped(mended)
    assert not grouped(tree)
    assert L2Order.cause == "l2_order"


def test_launch_text() -> None:
    made = rows()
    source = with_options(made, made.launches[0], {"num_warps": "4", "num_stages": "2"})
    assert source
    assert "num_warps=4, num_stages=2)" in source
    assert with_literal("def f():\n    ways = 4\n", "f", "ways", 1) == "def f():\n    ways = 1\n"
    assert with_literal("def f():\n    ways = g()\n", "f", "ways", 1) is None
    assert (bracketed("a + b"), bracketed("f(a)"), bracketed("a")) == ("(a + b)", "f(a)", "a")
    text = Text("x = 'é' + y\n")
    assignment = text.tree.body[0]
    assert isinstance(assignment, ast.Assign)
    assert isinstance(assignment.value, ast.BinOp)
    assert text.of(assignment.value.right) == "y"
    text.replace(assignment.value.right, "(")
    assert text.result() is None
