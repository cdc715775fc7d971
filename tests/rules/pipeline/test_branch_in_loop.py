"""A branch moved out of its loop, or left where it is."""

import ast

import pytest

from leadline.model import Argument, KernelFacts, Launch, Parameter, Symbol, TensorSpec
from leadline.rules.pipeline.branch_in_loop import compile_time, unswitched

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


@pytest.mark.parametrize(
    ("test", "decided"),
    [("MODE == _MODE_ON", True), ("MODE == 1\n    or bias is None", True), ("one == 1", True), ("flag > 0", False), ("x == MODE", False)],
)
def test_what_the_compiler_decides_is_no_branch(test: str, decided: bool) -> None:
    kernel = KernelFacts(
        name="kernel", file="k.py", line=1, end_line=9, symbols=(Symbol(name="x", line=2, text="tl.load(p)"),),
        parameters=(Parameter(name="p"), Parameter(name="flag"), Parameter(name="one"), Parameter(name="bias"),
                    Parameter(name="MODE", constexpr=True)),
    )  # fmt: skip
    arguments = (
        Argument(name="p", type="*fp32", tensor=TensorSpec(dtype="fp32", shape=(4,), strides=(1,), storage=0)),
        Argument(name="flag", type="i32", value=2), Argument(name="one", type="constexpr", value=1, constexpr=True, folded=True),
        Argument(name="bias", type="constexpr", value=None, constexpr=True),
        Argument(name="MODE", type="constexpr", value=1, constexpr=True),
    )  # fmt: skip
    launch = Launch(
        index=0, kernel="kernel", kernel_file="k.py", kernel_line=1, kernel_module="", call_file="k.py", call_line=1, grid=(1, 1, 1),
        arguments=arguments,
    )  # fmt: skip
    assert compile_time(kernel, launch, test) is decided
