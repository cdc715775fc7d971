"""Tile rules: register demand, literals at the launch, rows in blocks."""

import pytest

from leadline.model import Compiled, LaunchCost, LoopSample, Option, Probe, ProbeOutcome, Resources
from leadline.rules.base import View
from leadline.rules.tile.column_blocks import column_grid
from leadline.rules.tile.examples import tile_too_large, tile_too_small
from leadline.rules.tile.low_occupancy import LowOccupancy, resident_warps
from leadline.rules.tile.padding import fitted, padding
from leadline.rules.tile.pressure import pressure, registers_allowed, rounded_up, site_of
from leadline.rules.tile.register_spill import RegisterSpill
from leadline.rules.tile.row_loop import looped
from leadline.rules.tile.tile_too_large import TileTooLarge
from leadline.rules.tile.tile_too_small import TileTooSmall, covers_programs, literal
from leadline.rules.tile.warp_count import fitting_warps
from tests.rules.grid.views import constant, line_of, number, tensor, view


def wide(text: str = tile_too_large.BEFORE, dtype: str = "fp32") -> View:
    arguments = (
        tensor("x_ptr", (2048, 100000), 1, dtype),
        tensor("y_ptr", (2048, 100000), 2, dtype),
        number("n", 100000),
        constant("BLOCK", 131072),
    )
    return view(text, "softmax_kernel", arguments, (2048, 1, 1), warps=16)


def looped_source(made: View) -> str | None:
    facts = made.kernel(made.launches[0])
    assert facts
    return looped(made, made.launches[0], facts, "BLOCK", 1024, 4)


def test_demand_and_where_it_comes_from() -> None:
    made = wide()
    launch = made.launches[0]
    facts = made.kernel(launch)
    site = site_of(made, launch)
    assert facts
    assert site
    assert registers_allowed(launch) == 128
    wanted, line, lanes = pressure(made, launch, facts)
    assert lanes == 131072
    assert line == line_of(tile_too_large.BEFORE, "x = tl.load")
    assert wanted > 2
    assert rounded_up(site, "BLOCK", made) == "n"


def test_row_statistics_in_the_online_form() -> None:
    assert looped_source(wide()) == tile_too_large.AFTER
    found = list(TileTooLarge().suspect(wide()))
    assert [h.span.line for h in found] == [line_of(tile_too_large.BEFORE, "columns =")]


def test_two_passes_where_the_sum_is_no_softmax() -> None:
    text = tile_too_large.BEFORE.replace("tl.exp(x - top), 0)", "x * x, 0)")
    source = looped_source(wide(text))
    assert source
    assert source.count("for start in range(0, n, BLOCK):") == 2
    assert "total_lanes += x * x" in source
    assert "top_lanes = tl.maximum(top_lanes, x)" in source


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tl.max(x, 0)", "tl.argmax(x, 0)"),
        ("    top =", "    if n > 5:\n        n = n\n    top ="),
        ("columns < n", "columns < n + 1"),
        ("    top =", "    tl.store(x_ptr + row * n + columns, x * 2, mask=columns < n)\n    top ="),
    ],
)
def test_rows_of_other_forms_stay(old: str, new: str) -> None:
    assert looped_source(wide(tile_too_large.BEFORE.replace(old, new))) is None


def test_integer_rows_stay() -> None:
    assert looped_source(wide(dtype="i32")) is None


def test_elementwise_rows_get_a_grid_axis() -> None:
    text = tile_too_large.BEFORE.replace("    top = tl.max(x, 0)\n    total = tl.sum(tl.exp(x - top), 0)\n", "").replace(
        "tl.exp(x - top) / total", "x * 2"
    )
    made = wide(text)
    facts = made.kernel(made.launches[0])
    assert facts
    source = column_grid(made, made.launches[0], facts, "BLOCK", 1024, 4)
    assert source
    assert "columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)" in source
    assert "softmax_kernel[(m, triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024, num_warps=4)" in source
    scalar = wide(text.replace("    # the whole", "    tl.store(y_ptr, 1.0)\n    # the whole"))
    facts = scalar.kernel(scalar.launches[0])
    assert facts
    assert column_grid(scalar, scalar.launches[0], facts, "BLOCK", 1024, 4) is None


def test_spills_are_located_or_refuted() -> None:
    rule, made = RegisterSpill(), wide()
    hypothesis = next(iter(rule.suspect(made)))
    import msgspec

    def compiled(spilled: int) -> View:
        resources = Resources(registers=128, spill_store_bytes=spilled, spill_load_bytes=spilled)
        record = Compiled(
            launch=0, target="cuda:90", triton="3.6.0", kernel="softmax_kernel", resources=resources, line_counters={16: {"sass.STL": 9}}
        )
        return msgspec.structs.replace(made, compiled={0: record}, level=3)

    located = rule.explain(compiled(600), hypothesis)
    assert located.grade == "located"
    assert located.span.line == 16
    assert "1200 bytes per thread" in located.claim
    assert [p.grants[0].describe() for p in rule.probes(compiled(600), located)] == ["num_warps = 32"]
    assert rule.explain(compiled(0), hypothesis).refuted == "the assembler needs 128 registers, no spills"
    assert next(iter(LowOccupancy().suspect(compiled(0)))).grade == "located"


def test_a_larger_step_at_the_launch() -> None:
    arguments = (
        tensor("x_ptr", (8192, 8192), 1, "fp16"),
        tensor("y_ptr", (8192,), 2),
        number("m", 8192),
        number("n", 8192),
        constant("ROWS", 4),
        constant("STEP", 16),
    )
    line = line_of(tile_too_small.BEFORE, "for first")
    made = view(
        tile_too_small.BEFORE,
        "mean_kernel",
        arguments,
        (2048, 1, 1),
        loops=(LoopSample(line=line, trips_min=512, trips_max=512, trips_mean=512),),
    )
    rule = TileTooSmall()
    hypothesis = next(iter(rule.suspect(made)))
    facts = made.kernel(made.launches[0])
    assert facts
    assert hypothesis.span.line == line
    assert all("STEP" in r.choices and r.source != tile_too_small.BEFORE for r in rule.rewrite(made, hypothesis))
    assert covers_programs(facts, "ROWS")
    assert not covers_programs(facts, "STEP")
    assert literal(" 16 ")
    assert not literal("n")


@pytest.mark.parametrize(("lanes", "itemsize", "expected"), [(64, 2, 1), (1024, 4, 16), (512, 2, 4), (8192, 4, 16)])
def test_fitting_warps(lanes: int, itemsize: int, expected: int) -> None:
    assert fitting_warps(lanes, itemsize) == expected


def padded(text: str = tile_too_large.PADDED, n: int = 1000) -> View:
    arguments = (tensor("x_ptr", (32768, n), 1), tensor("y_ptr", (32768, n), 2), number("n", n), constant("BLOCK", 8192))
    return view(text, "scale_rows_kernel", arguments, (32768, 1, 1), cost=LaunchCost(launch=0, dram_us=65.0, total_us=68.0))


def test_a_literal_block_of_mostly_padding() -> None:
    made = padded()
    (found,) = TileTooLarge().suspect(made)
    assert found.claim == "BLOCK is 8192 for 1000 elements (`n`): 88% of the lanes are padding, 1024 would do"
    assert found.estimate.high > 2
    assert [r.choices for r in TileTooLarge().rewrite(made, found)] == [{"BLOCK": 1024}]
    assert not list(TileTooLarge().suspect(padded(n=5000)))


@pytest.mark.parametrize(
    ("old", "new"), [("(m,)](", "(triton.cdiv(m * BLOCK, BLOCK),)]("), ("row * n + columns, tl.exp", "row * BLOCK + columns, tl.exp")]
)
def test_a_block_that_means_more_stays(old: str, new: str) -> None:
    made = padded(tile_too_large.PADDED.replace(old, new))
    facts = made.kernel(made.launches[0])
    assert facts
    found = padding(made, made.launches[0], facts, "BLOCK")
    assert found
    assert fitted(made, made.launches[0], facts, "BLOCK", found) is None


@pytest.mark.parametrize(("after", "grade"), [(161, "located"), (64, "confirmed")])
def test_fewer_registers_confirm_only_with_more_warps(after: int, grade: str) -> None:
    import msgspec

    made = view(tile_too_large.PADDED, "scale_rows_kernel", (constant("BLOCK", 8192),), (32768, 1, 1))
    record = Compiled(launch=0, target="cuda:90", triton="3.6.0", kernel="scale_rows_kernel", resources=Resources(registers=168, smem=16))
    made = msgspec.structs.replace(made, compiled={0: record}, level=3)
    hypothesis = next(iter(LowOccupancy().suspect(made)))
    probe = Probe(claim="", grants=(Option(name="num_warps", value=8),), signature="res.registers", stage="sass")
    outcome = ProbeOutcome(id="", probe=probe, before=168, after=after, flipped=True)
    assert resident_warps(made, 168, 16, 4) == 12
    assert resident_warps(made, 161, 16, 8) == 8
    concluded = LowOccupancy().conclude(made, hypothesis, (outcome,))
    assert (concluded.grade, concluded.refuted) == (grade, "")
