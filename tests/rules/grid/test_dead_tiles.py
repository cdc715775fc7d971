import pytest

from leadline.rules.grid.body import function
from leadline.rules.grid.bound_loop import bounded
from leadline.rules.grid.dead_tiles import conditions, dead_share, tightened
from leadline.rules.grid.examples.masked_tiles import AFTER, BEFORE
from tests.rules.grid.views import constant, line_of, number, tensor, view

ARGUMENTS = (
    *[tensor(n, (8, 4096, 64), k, "fp16") for k, n in enumerate(("q_ptr", "k_ptr", "v_ptr", "o_ptr"))],
    number("length", 4096),
    constant("D", 64),
    constant("QUERIES", 64),
    constant("KEYS", 64),
)


def found(text: str):
    made = view(text, "attention_kernel", ARGUMENTS, (64, 8, 1))
    launch = made.launches[0]
    facts = made.kernel(launch)
    node = function(made, facts) if facts else None
    assert facts
    assert node
    return made, launch, facts, node


def test_half_of_a_causal_square_is_dead() -> None:
    made, launch, facts, node = found(BEFORE)
    loop = facts.loops[0]
    shares = [dead_share(made, launch, facts, node, loop, c) for c in conditions(node, node, facts)]
    assert max(s for s in shares if s is not None) == pytest.approx(0.49, abs=0.05)
    made, launch, facts, node = found(AFTER)
    shares = [dead_share(made, launch, facts, node, facts.loops[0], c) for c in conditions(node, node, facts)]
    assert max(s for s in shares if s is not None) < 0.02


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        ("keys[None, :] <= rows[:, None]", ("stop", "block * QUERIES + QUERIES")),
        ("rows[:, None] > keys[None, :]", ("stop", "block * QUERIES + QUERIES - 1")),
        ("keys[None, :] < rows[:, None] + shift", ("stop", "block * QUERIES + QUERIES + shift - 1")),
        ("rows[:, None] - keys[None, :] < window", ("start", "block * QUERIES - KEYS - window + 2")),
    ],
)
def test_bounds_follow_the_comparison(comparison: str, expected: tuple[str, str]) -> None:
    text = BEFORE.replace("keys[None, :] <= rows[:, None]", comparison).replace("scale, length,", "scale, length, shift, window,")
    _, _, facts, node = found(text)
    bounds = [
        tightened(c, node, facts.loops[0])
        for c in conditions(node, node, facts)
        if "rows" in c.left + c.right and "keys" in c.left + c.right
    ]
    assert bounds == [expected]


def test_disjunctions_bound_nothing() -> None:
    made, _, facts, node = found(
        BEFORE.replace("keys[None, :] <= rows[:, None]", "(keys[None, :] <= rows[:, None]) | (keys[None, :] < 16)")
    )
    assert bounded(made, facts, node, facts.loops[0]) is None


def test_rewrite_keeps_everything_else() -> None:
    made, _, facts, node = found(BEFORE)
    source = bounded(made, facts, node, facts.loops[0])
    assert source == AFTER
    changed = [k for k, (a, b) in enumerate(zip(BEFORE.splitlines(), AFTER.splitlines(), strict=True), 1) if a != b]
    assert changed == [line_of(BEFORE, "for first")]
