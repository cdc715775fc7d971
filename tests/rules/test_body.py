"""Statements of a kernel with their comments, names they read and write, shapes of accessed tiles."""

import ast

import pytest

from leadline.model import Access, KernelFacts
from leadline.rules.body import names_read, names_written, statements, tile_shape

KERNEL = KernelFacts(name="k", file="k.py", line=1, end_line=2)


def first(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


@pytest.mark.parametrize(
    ("text", "read", "written"),
    [
        ("a = b + c.d", {"b", "c"}, {"a"}),
        ("a += b", {"a", "b"}, {"a"}),
        ("a, b = c, a", {"a", "c"}, {"a", "b"}),
        ("for i in range(n):\n    s += x[i]", {"range", "n", "s", "x", "i"}, {"i", "s"}),
        ("tl.store(p + at, v, mask=m)", {"tl", "p", "at", "v", "m"}, set()),
        ("a[i] = b", {"a", "i", "b"}, set()),
    ],
)
def test_names(text: str, read: set[str], written: set[str]) -> None:
    assert (names_read(first(text)), names_written(first(text))) == (read, written)


def texts(source: str) -> list[str]:
    return [text for _, text in statements(source.splitlines(keepends=True), ast.parse(source).body)]


def test_comments_above_and_behind_belong_to_a_statement() -> None:
    source = "# of a\na = 1  # behind a\n\n# of b\n# more of b\nb = (\n    2\n)\nc = 3\n"
    assert texts(source) == ["# of a\na = 1  # behind a\n", "# of b\n# more of b\nb = (\n    2\n)\n", "c = 3\n"]


def test_statements_on_one_line_are_written_one_per_line() -> None:
    assert texts("a = 1; b = 2\nc = 3") == ["a = 1\n", "b = 2\n", "c = 3\n"]


def test_statements_are_dedented() -> None:
    source = "def f():\n    # doc\n    for i in x:\n        # inner\n        y = i\n"
    body = first(source).body  # type: ignore[attr-defined]
    assert [t for _, t in statements(source.splitlines(keepends=True), body)] == ["# doc\nfor i in x:\n    # inner\n    y = i\n"]


@pytest.mark.parametrize(
    ("pointer", "shape"),
    [
        ("p + tl.arange(0, B)", "(B,)"),
        ("p + tl.program_id(0) * B + tl.arange(0, B) * 2 + tl.arange(0, B)", "(B,)"),
        ("p + (r * M + tl.arange(0, M))[:, None] * K + tl.arange(0, 64)[None, :]", "(M, 64)"),
        ("p + tl.arange(0, 64)[None, :] + tl.arange(0, M)[:, None] * K", "(M, 64)"),
        ("p + (r + tl.arange(0, M))[:, None] + tl.arange(0, M)[:, None]", "(M,)"),
        ("p + tl.arange(0, A) + tl.arange(0, B)", None),
        ("p + tl.arange(0, A)[:, None] + tl.arange(0, B)[:, None]", None),
        ("p + tl.arange(0, A)[None, :]", None),
        ("p + r[:, None] + tl.arange(0, B)[None, :]", None),
        ("p + i", None),
        ("p +", None),
    ],
)
def test_shape_of_an_accessed_tile(pointer: str, shape: str | None) -> None:
    access = Access(kind="load", line=1, column=0, end_line=1, end_column=1, text="", pointer="short", expanded=pointer)
    assert tile_shape(KERNEL, access) == shape


def test_shape_falls_back_to_the_pointer_as_written() -> None:
    access = Access(kind="load", line=1, column=0, end_line=1, end_column=1, text="", pointer="p + tl.arange(0, B)")
    assert tile_shape(KERNEL, access) == "(B,)"
