"""Rewrites on texts: what they make, and what they refuse."""

import ast

import pytest

from leadline.rules.memory.access_width import mask_names, tile_divisors, vague_arguments
from leadline.rules.memory.argument_facts import constexpr_rewrite, pure, unit_rewrite
from leadline.rules.memory.column_reduction import column_reduction, tiled_alone
from leadline.rules.memory.dead_code import unused_names, without_unused
from leadline.rules.memory.div_mod_indexing import DivModIndexing
from leadline.rules.memory.divisions import constant_factor, simplified, tile_divisions
from leadline.rules.memory.flat_grid import row_tiled
from leadline.rules.memory.hoisting import hoisted
from leadline.rules.memory.indirect_access import gathers
from leadline.rules.memory.unaligned_access import UnalignedAccess
from leadline.rules.memory.uncoalesced_access import UncoalescedAccess
from tests.rules.memory.views import view_of

ALIGNED = UnalignedAccess.examples[0].before
FLAT = DivModIndexing.examples[0].before
COLUMNS = UncoalescedAccess.examples[0].before
INVARIANT = """import triton
import triton.language as tl


@triton.jit
def weighted_rows_kernel(x_ptr, w_ptr, y_ptr, rows, cols, BLOCK: tl.constexpr):
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for r in range(tl.program_id(1) * 64, tl.minimum(tl.program_id(1) * 64 + 64, rows)):
        w = tl.load(w_ptr + c, mask=c < cols, other=0.0)  # the same in every iteration
        x = tl.load(x_ptr + r * cols + c, mask=c < cols, other=0.0)
        tl.store(y_ptr + r * cols + c, w * x, mask=c < cols)
"""


def test_constexpr_arguments() -> None:
    view = view_of(ALIGNED, {"rows": 70, "cols": 72, "stride": 72, "R": 32, "C": 128})
    made = constexpr_rewrite(view, view.launches[0], ("stride", "cols"))
    assert made is not None
    assert "cols: tl.constexpr, stride: tl.constexpr" in made.source
    assert "# rows are stride elements apart" in made.source
    assert made.applicability == "safe"


def test_units_of_arguments() -> None:
    view = view_of(ALIGNED, {"rows": 70, "cols": 72, "stride": 72, "R": 32, "C": 128})
    made = unit_rewrite(view, view.launches[0], ("stride",))
    assert made is not None
    assert "STRIDE_UNIT=math.gcd(x.stride(0), 16)" in made.source
    assert "    stride = stride // STRIDE_UNIT * STRIDE_UNIT" in made.source
    assert made.source.startswith("import torch\nimport triton\nimport triton.language as tl\nimport math\n")
    ast.parse(made.source)


def test_an_odd_argument_has_no_unit() -> None:
    view = view_of(ALIGNED, {"rows": 70, "cols": 71, "stride": 71, "R": 32, "C": 128})
    assert unit_rewrite(view, view.launches[0], ("stride",)) is None


def test_an_argument_that_is_assigned_stays() -> None:
    text = ALIGNED.replace("    c = tl.arange(0, C)\n", "    c = tl.arange(0, C)\n    stride = stride + 0\n")
    view = view_of(text, {"rows": 70, "cols": 72, "stride": 72, "R": 32, "C": 128})
    assert constexpr_rewrite(view, view.launches[0], ("stride",)) is None


@pytest.mark.parametrize(("text", "twice"), [("x.stride(0)", True), ("n // 2", True), ("f(x)", False), ("next(it)", False), ("a +", False)])
def test_what_may_be_evaluated_twice(text: str, twice: bool) -> None:
    assert pure(text) is twice


def test_a_grid_over_rows_and_columns() -> None:
    view = view_of(FLAT, {"n": 16384 * 4096, "cols": 4096, "BLOCK": 1024})
    launch = view.launches[0]
    made = row_tiled(view, launch, view.source.kernels[0], 2048)
    assert made is not None
    assert "i = row * cols + col" in made
    assert "mask = (col < cols) & (i < n)" in made
    assert "bias = tl.load(bias_ptr + row, mask=row * cols < n)" in made
    assert "BLOCK" not in made.split("def launch")[1]


def test_a_reduction_keeps_its_flat_grid() -> None:
    text = FLAT.replace("tl.where(col < row, x + bias, x)", "tl.where(col < row, x + tl.sum(bias, 0), x)")
    view = view_of(text, {"n": 16384 * 4096, "cols": 4096, "BLOCK": 1024})
    assert row_tiled(view, view.launches[0], view.source.kernels[0], 2048) is None


def test_short_rows_keep_their_flat_grid() -> None:
    view = view_of(FLAT, {"n": 16384 * 8, "cols": 8, "BLOCK": 1024})
    assert row_tiled(view, view.launches[0], view.source.kernels[0], 2048) is None


def test_the_algebra_leaves_what_gets_no_cheaper() -> None:
    view = view_of(FLAT, {"n": 16384 * 4096, "cols": 4096, "BLOCK": 1024})
    assert simplified(view, view.launches[0], view.source.kernels[0]) is None


def test_divisions_of_a_kernel() -> None:
    view = view_of(FLAT, {"n": 16384 * 4096, "cols": 4096, "BLOCK": 1024})
    assert [(d.operands, d.line) for d in tile_divisions(view.source.kernels[0])] == [(("i", "cols"), 14)]


@pytest.mark.parametrize(("text", "factor"), [("2 * h", 2), ("4 * (2 * h + 6)", 8), ("n", 6), ("h", 1), ("h // 2", 1)])
def test_constant_factors(text: str, factor: int) -> None:
    assert constant_factor(text, {"n": "6 * h"}) == factor


def test_columns_in_tiles() -> None:
    view = view_of(COLUMNS, {"cols": 512, "rows": 65536, "ROWS": 1024}, grid=(512, 1, 1))
    line = next(i for i, row in enumerate(COLUMNS.splitlines(), 1) if "x = tl.load" in row)
    made = column_reduction(view, view.launches[0], line)
    assert [r.choices for r in made][:2] == [{"rows": 32, "columns": 64}] * 2
    for rewrite in made:
        ast.parse(rewrite.source)
        assert "best = tl.maximum(best, x)  # one column per program" in rewrite.source
        assert rewrite.applicability == "changes_numerics"
    assert 'other=float("-inf")' in made[0].source.split("_finish")[1]
    alone = tiled_alone(view, view.launches[0], line)
    assert alone is not None
    assert alone[1:] == ("ROWS", 32)


def test_rows_are_not_split_when_the_loop_combines_otherwise() -> None:
    text = COLUMNS.replace("tl.max(best, 0)", "tl.sum(best, 0)")
    view = view_of(text, {"cols": 512, "rows": 65536, "ROWS": 1024}, grid=(512, 1, 1))
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "x = tl.load" in row)
    assert all("partial" not in r.source for r in column_reduction(view, view.launches[0], line))


def test_a_store_in_the_loop_is_no_reduction() -> None:
    text = COLUMNS.replace("        best = tl.max", "        tl.store(y_ptr + c, x)\n        best = tl.max")
    view = view_of(text, {"cols": 512, "rows": 65536, "ROWS": 1024}, grid=(512, 1, 1))
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "x = tl.load" in row)
    assert column_reduction(view, view.launches[0], line) == ()


def test_an_invariant_load_leaves_its_loop() -> None:
    view = view_of(INVARIANT, {"rows": 16384, "cols": 4096, "BLOCK": 256})
    line = next(i for i, row in enumerate(INVARIANT.splitlines(), 1) if "w = tl.load" in row)
    made = hoisted(view, view.launches[0], line)
    assert made is not None
    assert made.index("w = tl.load") < made.index("for r in range")
    assert hoisted(view, view.launches[0], line + 1) is None  # x depends on the loop


def test_unused_assignments_go_and_the_authors_stay() -> None:
    text = "def f(a):\n    old = a + 1\n    gone = a // 2\n    return a\n"
    assert without_unused(text, {"f": {"old"}}) == "def f(a):\n    old = a + 1\n    return a\n"
    assert unused_names(text) == {"f": {"old", "gone"}}


def test_bounds_of_rows_do_not_narrow() -> None:
    view = view_of(ALIGNED, {"rows": 70, "cols": 72, "stride": 72, "R": 32, "C": 128})
    facts = view.source.kernels[0]
    address, mask, divisors = vague_arguments(facts, view.launches[0], facts.accesses[0])
    assert (address, mask, divisors) == (("stride",), ("cols",), ())


def test_names_of_masks_and_divisors() -> None:
    assert mask_names("p + tl.arange(0, B)", "tl.arange(0, B) < n") >= {"n"}
    assert tile_divisors("p + tl.arange(0, B) % n + k // 2") == ["n"]


def test_gathers() -> None:
    assert gathers("x + tl.load(index + tl.arange(0, B))")
    assert not gathers("x + tl.load(index + tl.program_id(0)) * n + tl.arange(0, B)")
    assert not gathers("x + tl.arange(0, B)")
