"""Addresses taken apart into axes, ranges and strides."""

from leadline.rules.memory.index_terms import strides_of_ranges, terms, unit_axes


def test_a_column_walk() -> None:
    text = "X + (r0 + tl.arange(0, RB)) * cols + tl.program_id(0)"
    assert unit_axes(text) == (0,)
    assert strides_of_ranges(text) == (("cols",),)


def test_a_row_walk_has_no_unit_axis() -> None:
    text = "X + tl.program_id(0) * n + (start + tl.arange(0, B))"
    assert unit_axes(text) == ()
    assert strides_of_ranges(text) == ((),)


def test_products_of_sums_are_distributed() -> None:
    found = terms("p + (tl.program_id(1) * BM + tl.arange(0, BM))[:, None].to(tl.int64) * stride")
    assert [(t.axes, t.ranges, set(t.scale)) for t in found[1:]] == [((1,), False, {"BM", "stride"}), ((), True, {"stride"})]


def test_text_that_does_not_parse_has_no_terms() -> None:
    assert terms("a +") == ()
    assert terms(None) == ()
