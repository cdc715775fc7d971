"""Neighbouring launch configurations, read from the parent's text."""

import ast

from leadline.model import Candidate
from leadline.propose.search import SearchProposer

KERNEL = """import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr, ODD: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def launch(x, y):
    n = x.numel()
    add_kernel[{grid}](x, y, n{given})
    return y
"""


def proposals(given: str = ", BLOCK=1024, ODD=3", *, grid: str = "(triton.cdiv(n, 1024),)", kernel: str = KERNEL):
    source = kernel.replace("{grid}", grid).replace("{given}", given)
    return list(SearchProposer().propose(Candidate(id="p", source=source, proposer="original"), (), {}))


def titles(given: str = ", BLOCK=1024, ODD=3", **more) -> list[str]:
    return [p.candidate.title.removeprefix("add_kernel: ") for p in proposals(given, **more)]


def test_each_constant_moves_one_step_both_ways() -> None:
    assert titles() == ["num_warps=8", "num_warps=2", "BLOCK=2048", "BLOCK=512"]


def test_steps_start_from_what_the_launch_has() -> None:
    assert titles(", BLOCK=1024, ODD=3, num_warps=16") == ["num_warps=8", "BLOCK=2048", "BLOCK=512"]
    assert titles(", BLOCK=1024, ODD=3, num_warps=1") == ["num_warps=2", "BLOCK=2048", "BLOCK=512"]
    assert titles(", BLOCK=8, ODD=3, num_warps=warps") == ["BLOCK=16"], "neither below 8 nor what is no literal"
    assert titles(", BLOCK=65536, ODD=3, num_warps=warps") == ["BLOCK=32768"]


def test_stages_only_where_a_dot_is_pipelined() -> None:
    with_dot = KERNEL.replace("    tl.store(", "    part = tl.dot(x_ptr, y_ptr)\n    tl.store(")
    assert "num_stages=4" not in titles()
    assert [t for t in titles(kernel=with_dot) if "stages" in t] == ["num_stages=4", "num_stages=2"]
    assert [t for t in titles(", BLOCK=1024, ODD=3, num_stages=1", kernel=with_dot) if "stages" in t] == ["num_stages=2"]


def test_an_equal_literal_of_the_grid_moves_with_the_constant() -> None:
    source = next(p for p in proposals() if p.candidate.title.endswith("BLOCK=2048")).candidate.source
    assert "add_kernel[(triton.cdiv(n, 2048),)](x, y, n, BLOCK=2048, ODD=3)" in source


def test_proposals_parse_and_say_what_they_are() -> None:
    made = proposals()
    for p in made:
        ast.parse(p.candidate.source)
    assert {p.candidate.parent for p in made} == {"p"}
    assert {p.candidate.proposer for p in made} == {"search"}
    assert len({p.candidate.id for p in made}) == len(made)
    assert len({p.group for p in made}) == 1
    assert made[0].hypothesis == "add_kernel: num_warps=8 is faster on this device"
    assert made[0].rule == ""


def test_autotuned_kernels_are_left_to_their_autotuner() -> None:
    tuned = KERNEL.replace("@triton.jit", "@triton.autotune(configs=CONFIGS, key=['n'])\n@triton.jit")
    assert titles(kernel=tuned) == []


def test_without_a_launch_there_is_nothing_to_search() -> None:
    assert titles(kernel="x = 1\n") == []
    assert titles(kernel="def (:\n") == []
