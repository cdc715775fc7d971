"""PIP101: a counting `while` as a `for`."""

import pytest

from leadline.rules.pipeline.counted_while import counted

TEXT = """import triton
import triton.language as tl


@triton.jit
def walk(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    k = 0  # from the first
    while k < n:  # over the row
        total += tl.load(x_ptr + k + lanes)
        k += BLOCK  # next block
    tl.store(y_ptr + lanes, total)
"""


def test_a_counting_while_becomes_a_for_and_keeps_its_comments() -> None:
    made = counted(TEXT, "walk", 10)
    assert "    # from the first\n    for k in range(0, n, BLOCK):  # over the row\n" in made
    assert "        total += tl.load(x_ptr + k + lanes)\n        # next block\n    tl.store" in made
    assert "for k in tl.range(0, n, BLOCK, num_stages=3):" in counted(TEXT, "walk", 10, 3)
    assert "in range(0, n, BLOCK):" in counted(TEXT.replace("k < n", "n > k").replace("k += BLOCK", "k = k + BLOCK"), "walk", 10)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k < n", "k <= n"),
        ("k += BLOCK", "k += total"),
        ("k += BLOCK", "k -= BLOCK"),
        ("        total +=", "        k += 1\n        total +="),
        ("        total +=", "        n = n - 1\n        total +="),
        ("        total +=", "        if k > 9:\n            break\n        total +="),
        ("y_ptr + lanes", "y_ptr + k + lanes"),
        ("k = 0", "k = tl.load(x_ptr)"),
    ],
)
def test_other_loops_stay(old: str, new: str) -> None:
    assert counted(TEXT.replace(old, new, 1), "walk", 10) == ""
