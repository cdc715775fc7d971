"""Probes flip the signature they predict, find the minimal set, and say when they cannot tell."""

import pytest
from compiler_launches import KERNELS, copy, line_of, product

from leadline.backends.base import ProbeRequest
from leadline.backends.nvidia import probe as probing
from leadline.backends.nvidia.probe import as_far, moved, moved_line, run_probe
from leadline.errors import UsageError
from leadline.model import Constant, Divisible, Fact, Launch, Option, Probe, ProbeOutcome, SourceEdit

pytest.importorskip("triton")
pytestmark = pytest.mark.triton


def outcome(which: Launch, signature: str, expect: str, *grants: Fact, line: int = 0, stage: str = "ttgir") -> ProbeOutcome:
    probe = Probe(claim="", grants=grants, signature=signature, expect=expect, line=line, stage=stage)
    return run_probe(ProbeRequest(probe=probe, launch=which))


def test_one_fact_flips_a_width() -> None:
    line = line_of("x = tl.load(x_ptr + offs, mask")
    result = outcome(copy("x_ptr o_ptr"), "global.load.bits", "increase", Divisible(argument="n"), line=line)
    assert (result.before, result.control, result.after, result.flipped) == (16, 16, 128, True)
    assert result.minimal == ("n % 16 == 0",)
    assert result.left_out == {}


def test_a_conjunction_and_an_idle_fact() -> None:
    facts = (Divisible(argument="sam"), Divisible(argument="sbk"), Option(name="num_stages", value=3))
    result = outcome(product("a_ptr b_ptr c_ptr K"), "async_copy", "increase", *facts)
    assert (result.before, result.after, result.flipped) == (0, 6, True)
    assert result.minimal == ("sam % 16 == 0", "sbk % 16 == 0")
    assert result.left_out == {"sam % 16 == 0": 3, "sbk % 16 == 0": 3, "num_stages = 3": 6}


def test_a_wrong_prediction_does_not_flip() -> None:
    result = outcome(product(scale=True), "wgmma_wait0", "zero", Option(name="num_stages", value=4))
    assert (result.before, result.after, result.flipped, result.minimal) == (1, 1, False, ())
    assert outcome(product(scale=True), "wgmma_wait0", "zero", Constant(argument="SCALE", value=False)).flipped


def test_an_edit_moves_the_line_it_watches() -> None:
    text = KERNELS.read_text()
    edited = text.replace("            b = (b * 2).to(b.dtype)\n", "            # one\n            # two\n            b = b\n")
    dot = line_of("acc = tl.dot(a, b, acc, input")
    result = outcome(product(scale=True), "wgmma_wait0", "zero", SourceEdit(text=edited, label="no scaling"), line=dot)
    assert (result.before, result.after, result.flipped) == (1, 0, True)
    assert result.minimal == ("no scaling",)


def test_grants_that_do_not_compile() -> None:
    result = outcome(copy(), "async_copy", "increase", Constant(argument="BLOCK", value=3))
    assert result.error == "with the facts granted the kernel does not compile: ValueError: arange's range must be a power of 2"
    assert (result.after, result.flipped) == (None, False)


def test_a_control_that_differs_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(probing._Experiment, "control", lambda self: 7)
    result = outcome(copy(), "async_copy", "increase", Divisible(argument="n"))
    assert result.error == "not reproducible: async_copy was 0 and then 7 for the same kernel"
    assert not result.flipped


def test_an_unknown_direction() -> None:
    with pytest.raises(UsageError) as error:
        outcome(copy(), "async_copy", "sideways", Divisible(argument="n"))
    assert str(error.value) == "unknown direction 'sideways'; use one of decrease, increase, zero, nonzero"


def test_directions() -> None:
    assert moved("decrease", 2, 1)
    assert not moved("decrease", 1, 1)
    assert moved("increase", 0, 1)
    assert moved("zero", 3, 0)
    assert not moved("zero", 0, 0)
    assert moved("nonzero", 0, 2)
    assert not moved("nonzero", 1, 2)
    assert as_far("increase", 6, 6)
    assert not as_far("increase", 6, 3)
    assert as_far("zero", 0, 0)
    assert as_far("nonzero", 4, 1)
    assert not as_far("decrease", 1, 2)


def test_lines_of_an_edited_text() -> None:
    assert moved_line("a\nb\nc\n", "x\ny\na\nb\nc\n", 2) == 4
    assert moved_line("a\nb\nc\n", "a\nB\nc\n", 2) == 2
    assert moved_line("a\nb\nc\n", "a\nc\n", 3) == 2
