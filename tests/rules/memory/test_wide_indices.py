"""MEM103 and MEM105: 64-bit index tiles."""

from leadline.rules.memory.divisions import division_cost, is_wide, tile_divisions
from leadline.rules.memory.int64_offsets import wide_casts
from tests.rules.memory.views import view_of

TEXT = """import triton
import triton.language as tl


@triton.jit
def add(x_ptr, b_ptr, y_ptr, n, hw, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(b_ptr + offs // hw, mask=offs < n)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + b, mask=offs < n)
"""


def costs(text: str, hw: int = 49) -> list[tuple[bool, float]]:
    view = view_of(text, {"n": 1000, "hw": hw, "BLOCK": 1024})
    launch = view.launches[0]
    facts = view.kernel(launch)
    assert facts
    return [(is_wide(d, launch, facts), division_cost(d, launch, facts)) for d in tile_divisions(facts)]


def test_wide_divisions_cost_more() -> None:
    assert costs(TEXT) == [(True, 26)]
    assert costs(TEXT, hw=64) == [(True, 11)]  # once per vector
    assert costs(TEXT.replace(".to(tl.int64)", "")) == [(False, 11)]
    assert costs(TEXT.replace("offs // hw", "offs.to(tl.int32) // hw")) == [(False, 11)]


def test_a_scalar_cast_makes_the_tile_wide() -> None:
    def casts(text: str) -> list[str]:
        facts = view_of(text, {"n": 1000, "hw": 49, "BLOCK": 1024}).source.kernels[0]
        return [c.text for c in wide_casts(facts)]

    assert casts(TEXT) == ["tl.program_id(0).to(tl.int64)"]
    # A 64-bit base of the pointer, and 32-bit offsets from it.
    base = TEXT.replace("x_ptr + offs", "x_ptr + tl.program_id(0).to(tl.int64) * n + tl.arange(0, BLOCK)").replace(
        "offs = tl.program_id(0).to(tl.int64)", "offs = tl.program_id(0)"
    )
    assert casts(base) == []
