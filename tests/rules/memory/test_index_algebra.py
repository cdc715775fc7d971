"""Index expressions are simplified by exact identities only."""

import ast

import pytest

from leadline.rules.memory.index_algebra import Algebra, Unsupported, constant, divided, never_negative, plus, times


def parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def simplified(text: str, algebra: Algebra, first: tuple[str, ...] = ()) -> str:
    return ast.unparse(parsed(algebra.text(algebra.read(parsed(text)), first)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(x // N) * N + x % N", "x"),
        ("x // N // M", "x // (M * N)"),
        ("(i // (D * S) % H) * D * S + (i // D % S) * D + i % D", "i % (D * H * S)"),
        ("x % N", "x % N"),
        ("(4 * x + 3) // 4", "x + 3 // 4"),
        ("x - x", "0"),
    ],
)
def test_identities(before: str, after: str) -> None:
    text = simplified(before, Algebra({}))
    assert parsed(text) is not None
    names = {n.id for n in ast.walk(parsed(before)) if isinstance(n, ast.Name)}
    for seed in range(60):  # the identities are derived; the values only guard against slips in writing them down
        values = {n: 1 + (seed * (7 + k) + 3 * k) % 23 for k, n in enumerate(sorted(names))}
        assert eval(text, {}, values) == eval(before, {}, values) == eval(after, {}, values)


def test_half_of_an_even_width() -> None:
    definitions = {"x0": parsed("x % N"), "x1": parsed("x // N")}
    algebra = Algebra(definitions, {"N": (2, "N<2>")})
    assert simplified("P + (N // 2) * x1 + x0 // 2", algebra, ("P",)) == "P + x // 2"


def test_half_of_an_unknown_width_stays_divided() -> None:
    definitions = {"x0": parsed("x % N"), "x1": parsed("x // N")}
    text = simplified("(N // 2) * x1 + x0 // 2", Algebra(definitions))
    for n in (3, 4, 7):
        for x in range(40):
            assert eval(text, {}, {"x": x, "N": n}) == (n // 2) * (x // n) + x % n // 2


def test_a_tile_of_rows_and_columns_needs_no_division() -> None:
    algebra = Algebra({}, None, ("i", {("N",): 1}, "row", "col"))
    assert simplified("i % N", algebra) == "col"
    assert simplified("i // N", algebra) == "row"
    assert simplified("i // N % M", algebra) == "row % M"
    assert simplified("i // (N * M)", algebra) == "row // M"


def test_a_divided_part_that_is_not_understood_is_refused() -> None:
    with pytest.raises(Unsupported):
        Algebra({}).read(parsed("tl.load(p + i // 2) + 1"))
    with pytest.raises(Unsupported, match="divisor is a sum"):
        Algebra({}).read(parsed("i // (n + 1)"))


def test_polynomials() -> None:
    x, n = {("x",): 1}, {("n",): 2}
    assert plus(x, x, -1) == {}
    assert times(x, n) == {("n", "x"): 2}
    assert divided(times(x, n), n) == x
    assert divided(x, n) is None
    assert constant(0) == {}


def test_what_may_be_negative() -> None:
    definitions = {"i": parsed("tl.program_id(0) * B + tl.arange(0, B)"), "d": parsed("i - 1")}
    assert never_negative(parsed("i // N"), definitions)
    assert not never_negative(parsed("d"), definitions)
    assert not never_negative(parsed("tl.load(p)"), definitions)
