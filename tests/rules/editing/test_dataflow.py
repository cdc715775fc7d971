"""Dataflow on statements."""

import ast

import pytest

from leadline.rules.editing import dependents, free_name, invariant, names_in, sources, split, statements, substitute

BODY = ast.parse(
    """
a = tl.load(p + i)
b = n * 2
c = a + b
d = b + 1
tl.store(q, c)
e = d * d
"""
).body


def test_statements_and_dependences() -> None:
    block = statements(BODY)
    assert [s.loads for s in block] == [True, False, False, False, False, False]
    assert [s.stores for s in block] == [False] * 4 + [True, False]
    assert dependents(block, ["a"]) == {"a", "c"}
    assert sources(block, ["d"]) == {"d", "b", "n"}
    assert block[2].reads == {"a", "b"}


def test_split() -> None:
    parts = split(statements(BODY), ["i"])
    assert parts is not None
    independent, dependent = parts
    assert [s.line for s in independent] == [3, 5, 7]
    assert [s.line for s in dependent] == [2, 4, 6]


@pytest.mark.parametrize(
    "body",
    [
        "y = i\nb = 1\ny2 = b + i\nb = 2\n",
        "tl.store(p + i, 0)\nv = tl.load(q)\n",
        "y = b + i\nb = 3\n",
        "v = tl.load(p + i)\ntl.store(q, 0)\n",
    ],
)
def test_split_refuses_what_may_not_move(body: str) -> None:
    assert split(statements(ast.parse(body).body), ["i"]) is None


def test_calls_of_unknown_functions_may_do_anything() -> None:
    (call,) = statements(ast.parse("x = helper(y)").body)
    assert (call.loads, call.stores) == (True, True)
    (method,) = statements(ast.parse("x = y.to(tl.float32).sum(0)").body)
    assert (method.loads, method.stores) == (False, False)


def test_invariant_statements_of_a_loop() -> None:
    loop = ast.parse("""
for i in range(n):
    w = tl.load(p + cols)
    u = w * 2
    x = tl.load(q + i)
    acc += x * u
    t = acc
    z = 1
    z = 2
""").body[0]
    assert isinstance(loop, ast.For)
    assert [s.line for s in invariant(loop)] == [3, 4]
    storing = ast.parse("for i in range(n):\n    w = tl.load(p)\n    o = n * 2\n    tl.store(q + i, w)\n").body[0]
    assert isinstance(storing, ast.For)
    assert [s.line for s in invariant(storing)] == [3]


@pytest.mark.parametrize(
    ("text", "mapping", "expected"),
    [
        ("a * b", {"a": "x + y"}, "(x + y) * b"),
        ("f(a, k=a)[a]", {"a": "x + y"}, "f(x + y, k=x + y)[x + y]"),
        ("a", {"a": "x + y"}, "x + y"),
        ("a[:, None]  *  2", {"a": "tl.arange(0, B)"}, "tl.arange(0, B)[:, None]  *  2"),
        ("a.to(t)", {"a": "-x"}, "(-x).to(t)"),
        ("(lambda a: a + b)(a)", {"a": "x", "b": "y"}, "(lambda a: a + y)(x)"),
        ("[a for a in b]", {"a": "x", "b": "y"}, "[a for a in y]"),
        ("é + a", {"a": "1"}, "é + 1"),
        ("f(a)", {"a": "x, y"}, "f((x, y))"),
        ("f(a)", {"a": "(x, y)"}, "f((x, y))"),
        ("a +\n  b", {"b": "c if d else e"}, "a +\n  (c if d else e)"),
    ],
)
def test_substitute(text: str, mapping: dict[str, str], expected: str) -> None:
    assert substitute(text, mapping) == expected


def test_substitute_refuses_statements() -> None:
    with pytest.raises(ValueError, match=r"^not an expression: 'a = 1' "):
        substitute("a = 1", {})


def test_names() -> None:
    assert free_name("k", ["k", "k_2"]) == "k_3"
    assert free_name("k", []) == "k"
    assert names_in(ast.parse("import a.b as c\ndef f(x, *y): return x.z(w=1)")) == {"a", "c", "f", "x", "y", "z", "w"}
