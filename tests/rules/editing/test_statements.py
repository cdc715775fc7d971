"""Edits of expressions, statements and blocks."""

import ast

import pytest

from leadline.rules.editing import EditError, SourceFile, unified_diff
from leadline.rules.editing.edits import ListEdit
from leadline.rules.editing.layout import Layout

TEXT = '''import os  # first

def f(x):
    # above
    a = x + 1  # why
    if a:
        b = 2
        # inside
        c = """x
  y"""
    for i in range(3):
        a += i
    return a
'''


def line(text: str, needle: str) -> int:
    return next(i for i, row in enumerate(text.split("\n"), 1) if needle in row)


def test_replace_statement_and_expression_keep_comments() -> None:
    f = SourceFile(TEXT)
    f.replace_statement(line(TEXT, "a = x"), "a = x\na = a + 2")
    f.replace_expression(12, 13, 12, 14, "(i * 2)")
    assert f.apply() == TEXT.replace("a = x + 1  # why", "a = x\n    a = a + 2  # why").replace("a += i", "a += (i * 2)")


def test_insert_before_and_after() -> None:
    f = SourceFile(TEXT)
    f.insert_before(line(TEXT, "if a:"), "z = 0\nif z:\n    z = 1")
    f.insert_after(line(TEXT, "for i"), "done = 1")
    f.insert_after(line(TEXT, "return a"), "# end")
    new = f.apply()
    assert "    z = 0\n    if z:\n        z = 1\n    if a:\n" in new
    assert "        a += i\n    done = 1\n    return a\n    # end\n" in new


def test_insert_after_the_last_line_without_a_newline() -> None:
    f = SourceFile("a = 1")
    f.insert_after(1, "b = 2")
    assert f.apply() == "a = 1\nb = 2\n"


def test_delete_statements_and_whole_blocks() -> None:
    f = SourceFile(TEXT)
    f.delete_statement(line(TEXT, "b = 2"))
    f.delete_statement(line(TEXT, 'c = """x'))
    f.delete_statement(line(TEXT, "a = x"))
    assert f.apply() == TEXT.replace("    a = x + 1  # why\n", "").replace("        b = 2\n", "        pass\n").replace(
        '        c = """x\n  y"""\n', ""
    )
    g = SourceFile(TEXT)
    g.delete_statement(line(TEXT, "if a:"))
    g.delete_statement(line(TEXT, "b = 2"))
    assert "c =" not in g.apply()


def test_wrap_indents_but_not_inside_strings() -> None:
    f = SourceFile(TEXT)
    f.wrap(line(TEXT, "if a:"), line(TEXT, 'y"""'), "while True:")
    f.insert_after(line(TEXT, "if a:"), "after = 1")
    new = f.apply()
    assert '    while True:\n        if a:\n            b = 2\n            # inside\n            c = """x\n  y"""\n    after = 1\n' in new


def test_dedent() -> None:
    text = "if a:\n    b = 1\n    # c\n    c = 2\n"
    f = SourceFile(text)
    f.replace(0, 6, "")
    f.dedent(2, 4)
    assert f.apply() == "b = 1\n# c\nc = 2\n"
    with pytest.raises(EditError, match=r"^line 1 cannot be dedented by 4 spaces$"):
        SourceFile(text).dedent(1, 1)


def test_errors_are_one_line_each() -> None:
    f = SourceFile(TEXT)
    f.replace_statement(5, "a = 1")
    f.replace_expression(5, 8, 5, 9, "y")
    with pytest.raises(ValueError, match=r"^two edits overlap at line 5$"):
        f.apply()
    g = SourceFile(TEXT)
    g.replace_statement(5, "a = (")
    with pytest.raises(EditError, match="the edits leave a text that does not parse: "):
        g.apply()
    with pytest.raises(EditError, match="the text does not parse: "):
        SourceFile("def (")
    with pytest.raises(EditError, match=r"^no statement at line 2$"):
        SourceFile(TEXT).statement(2)
    with pytest.raises(EditError, match=r"^there is no line 99$"):
        SourceFile(TEXT).replace_expression(99, 0, 99, 1, "")
    with pytest.raises(EditError, match=r"^the statement at line 1 shares its line with another$"):
        SourceFile("a = 1; b = 2\n").delete_statement(1)
    with pytest.raises(EditError, match="carriage returns"):
        SourceFile("a = 1\r\n")


def test_columns_are_characters() -> None:
    text = 's = "é"; x = 1\n'
    f = SourceFile(text)
    node = f.tree.body[1]
    assert isinstance(node, ast.Assign)
    f.replace_node(node.value, "2")
    assert f.apply() == 's = "é"; x = 2\n'


@pytest.mark.parametrize(
    "bracketed", ["(a, b, c)", "(a, b, c,)", "(\n  a,  # one\n  b,  # two\n  c,  # three\n)", "(a,\n b,\n c)", "(a, b,\n  c  # last\n)"]
)
@pytest.mark.parametrize("removed", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {0, 1, 2}])
@pytest.mark.parametrize("inserted", [None, -1, 0, 1, 2])
def test_lists_stay_well_formed(bracketed: str, removed: set[int], inserted: int | None) -> None:
    text = f"f{bracketed}\n"
    f = SourceFile(text)
    edit = f.list_edit(1)
    assert isinstance(edit, ListEdit)
    edit.removed |= removed
    if inserted is not None:
        edit.insert(inserted, "n", "new")
    new = f.apply()
    call = ast.parse(new).body[0].value  # type: ignore[attr-defined]
    expected = [n for i, n in enumerate("abc") if i not in removed]
    if inserted is not None:
        expected.insert(sum(1 for i in range(inserted + 1) if i not in removed), "new")
    assert [a.id for a in call.args] == expected
    assert [c for c in ("# one", "# two", "# three", "# last") if c in text] == [
        c for c in ("# one", "# two", "# three", "# last") if c in new
    ]


def test_items_of_awkward_lists() -> None:
    text = "f(lambda a, b: (a, b), x[1, 2], k={'a': 1, 'b': 2}, *r, **s)\n"
    items, close = Layout(text).items(1)
    assert [i.text for i in items] == ["lambda a, b: (a, b)", "x[1, 2]", "k={'a': 1, 'b': 2}", "*r", "**s"]
    assert [i.keyword for i in items] == ["", "", "k", "", ""]
    assert text[close] == ")"


def test_unified_diff() -> None:
    assert unified_diff("a\nb\n", "a\nc\n", "k.py") == "--- a/k.py\n+++ b/k.py\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    assert unified_diff("a\n", "a\n", "k.py") == ""
