import ast

import pytest

from leadline.rules.grid.l2_order import grouped


def kernel(body: str) -> ast.FunctionDef:
    node = ast.parse("def k(M, N, SUPER):\n    pid = tl.program_id(0)\n" + body).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("    rows = min(M - first, SUPER)\n    y = first + pid % rows\n", True),
        ("    y = pid % tl.minimum(M - first, SUPER)\n", True),
        ("    y, x = tl.swizzle2d(pid // N, pid % N, M, N, SUPER)\n", True),
        ("    GROUP = 8\n    end = tl.minimum(pid * GROUP, M)\n    y = pid // N\n    x = pid % N\n", False),
    ],
)
def test_groups_are_known_by_what_they_do_not_by_their_names(body: str, expected: bool) -> None:
    assert grouped(kernel(body)) is expected
    assert grouped(None) is False
