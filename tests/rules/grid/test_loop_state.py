import ast

import pytest

from leadline.rules.grid.loop_state import shape_of, states_of

HEAD = """
def kernel(p, n, B: tl.constexpr):
    m = -float("inf")
    l = 0.0
    acc = tl.zeros((B,), dtype=tl.float32)
    q = p + tl.arange(0, B)
    for i in range(0, n, B):
{body}
    tl.store(p, acc / l)
"""


def states(*lines: str):
    function = ast.parse(HEAD.format(body="\n".join(f"        {x}" for x in lines))).body[0]
    assert isinstance(function, ast.FunctionDef)
    loop = next(s for s in function.body if isinstance(s, ast.For))
    found = states_of(function, loop)
    return None if found is None else {s.name: s.kind for s in found}


def test_softmax_statistics() -> None:
    lines = (
        "s = tl.load(p + i)",
        "new = tl.maximum(m, tl.max(s, 0))",
        "a = tl.exp(m - new)",
        "w = tl.exp(s - new)",
        "l = l * a + tl.sum(w, 0)",
    )
    assert states(*lines, "acc = acc * a + w", "m = new") == {"m": "peak", "l": "scaled", "acc": "scaled"}
    assert states(*lines, "acc *= a", "acc += w", "m = new") == {"m": "peak", "l": "scaled", "acc": "scaled"}
    assert states(*lines, "acc = tl.dot(w, s, acc * a[:, None])", "m = new") == {"m": "peak", "l": "scaled", "acc": "scaled"}


def test_sums_maxima_and_pointers() -> None:
    assert states("acc += tl.load(q)", "l = l + 1.0", "q += B") == {"acc": "sum", "l": "sum", "q": "pointer"}
    assert states("l = tl.maximum(l, tl.max(tl.load(q), 0))") == {"l": "max"}


@pytest.mark.parametrize("line", ["acc = acc * 0.5 + tl.load(q)", "acc = tl.load(q) - acc", "acc = tl.exp(acc)", "acc += acc", "q += i"])
def test_recurrences_are_refused(line: str) -> None:
    assert states(line) is None


def test_shapes() -> None:
    def of(text: str):
        return shape_of(ast.parse(text, mode="eval").body)

    assert of("tl.zeros([A, B], dtype=tl.float32)") == ("A", "B")
    assert of("tl.full((A,), -1.0e30, tl.float32)") == ("A",)
    assert of("-1.0e30") == ()
    assert of('-float("inf")') == ()
    assert of("0") is None
    assert of("tl.zeros((A,), tl.int32)") is None
