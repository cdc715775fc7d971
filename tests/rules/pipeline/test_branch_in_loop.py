"""A branch moved out of its loop, or left where it is."""

import ast

import pytest

from leadline.rules.pipeline.branch_in_loop import unswitched

HEAD = "def kernel(p, q, n, flag):\n    total = 0\n"
TAIL = "    return total\n"


def moved(loop: str, *, line: int = 4) -> str:
    text = HEAD + loop + TAIL
    new = unswitched(text, "kernel", line)
    if not new:
        return ""
    ast.parse(new)
    assert new.startswith(HEAD)
    assert new.endswith(TAIL)
    for values in ([1, 2, 3], []):
        for flag in (0, 1, 2):
            assert called(new, values, flag) == called(text, values, flag)
    return new[len(HEAD) : -len(TAIL)]


def called(text: str, values: list[int], flag: int) -> int:
    space: dict = {}
    exec(text, space)
    return space["kernel"](values, [10 * v for v in values], len(values), flag)


def test_both_arms_get_a_loop_of_their_own() -> None:
    loop = "    for i in range(n):\n        if flag == 1:\n            x = p[i]\n        else:\n            x = q[i]\n        total += x\n"
    assert moved(loop) == (
        "    if flag == 1:\n        for i in range(n):\n            x = p[i]\n            total += x\n"
        "    else:\n        for i in range(n):\n            x = q[i]\n            total += x\n"
    )


def test_comments_stay_where_they_belong() -> None:
    loop = (
        "    # the loop\n    for i in range(n):  # over all\n        # before\n        if flag == 1:\n            # why p\n"
        "            x = p[i]  # of p\n        else:\n            # why q\n            x = q[i]\n        # after\n        total += x\n"
    )
    new = moved(loop, line=6)
    assert new == (
        "    # the loop\n    if flag == 1:\n        for i in range(n):  # over all\n            # before\n            # why p\n"
        "            x = p[i]  # of p\n            # after\n            total += x\n"
        "    else:\n        for i in range(n):  # over all\n            # before\n            # why q\n"
        "            x = q[i]\n            # after\n            total += x\n"
    )


def test_an_arm_that_is_missing_leaves_the_rest() -> None:
    new = moved("    for i in range(n):\n        if flag:\n            total += p[i]\n        total += 1\n")
    assert new == (
        "    if flag:\n        for i in range(n):\n            total += p[i]\n            total += 1\n"
        "    else:\n        for i in range(n):\n            total += 1\n"
    )


def test_a_loop_left_empty_passes() -> None:
    new = moved("    for i in range(n):\n        if flag:\n            total += p[i]\n")
    assert new.endswith("    else:\n        for i in range(n):\n            pass\n")


def test_a_comment_is_no_body() -> None:
    new = moved("    for i in range(n):\n        # only sometimes\n        if flag:\n            total += p[i]\n", line=5)
    assert new.endswith("    else:\n        for i in range(n):\n            # only sometimes\n            pass\n")


def test_the_inner_of_two_loops_is_turned() -> None:
    loop = (
        "    for j in range(2):\n        for i in range(n):\n            if flag == 1:\n                total += p[i]\n"
        "            else:\n                total += q[i]\n"
    )
    new = moved(loop, line=5)
    assert new.startswith("    for j in range(2):\n        if flag == 1:\n            for i in range(n):\n                total += p[i]\n")


@pytest.mark.parametrize(
    "loop",
    [
        "    for i in range(n):\n        if flag == 1:\n            total += 1\n        elif flag == 2:\n            total += 2\n",
        "    for i in range(n):\n        if i == 1:\n            total += p[i]\n",
        "    for i in range(n):\n        if flag:\n            flag = 0\n",
        "    for i in range(n):\n        if flag:\n            total += 1\n        flag -= 1\n",
        "    for i in range(n):\n        if len(p) == 1:\n            total += p[i]\n",
        "    for i in range(n):\n        if flag:\n            total += p[i]\n    else:\n        total += 1\n",
        "    while n:\n        if flag:\n            total += p[i]\n        n -= 1\n",
    ],
    ids=["elif", "loop variable", "assigned in an arm", "assigned behind", "a call", "for-else", "while"],
)
def test_left_where_it_is(loop: str) -> None:
    assert moved(loop) == ""


def test_no_such_kernel_or_line() -> None:
    text = HEAD + "    for i in range(n):\n        if flag:\n            total += p[i]\n" + TAIL
    assert unswitched(text, "other", 4) == ""
    assert unswitched(text, "kernel", 5) == ""
