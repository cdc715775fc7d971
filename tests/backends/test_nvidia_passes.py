"""The stepper runs the real pipeline, and messages point at the line of the operation they name."""

import pytest
from compiler_launches import copy, launch, line_of, product

from leadline.backends.base import CompileRequest, ExplainRequest, Explanation
from leadline.backends.nvidia.compile import compile_launch
from leadline.backends.nvidia.lowering import STEPPED, Lowering, run_passes
from leadline.backends.nvidia.passes import explain
from leadline.backends.nvidia.source import describe
from leadline.model import Divisible, Launch

pytest.importorskip("triton")
pytestmark = pytest.mark.triton


def kinds(explanation: Explanation) -> set[tuple[str, int]]:
    return {(m.kind, m.line) for m in explanation.messages}


def heard(which: Launch, *grants: Divisible) -> Explanation:
    result = explain(ExplainRequest(launch=which, grants=grants))
    assert result.error == ""
    return result


def test_stepping_ends_in_the_ttgir_of_the_full_compile() -> None:
    whole = Lowering(describe(product()), "cuda:90")
    text = whole.run_to("ttgir")
    stepped = Lowering(describe(product()), "cuda:90")
    names = [step.name for step in run_passes(stepped, STEPPED[:2], lambda *_: None)]
    assert len(names) > 30
    assert {"coalesce", "pipeline"} <= set(names)
    assert str(stepped.module) == text


def test_steps_say_which_pass_made_the_copies_asynchronous() -> None:
    result = heard(product())
    step = next(s for s in result.steps if "async_copy" in s.after)
    assert (step.pass_name, step.stage) == ("pipeline", "make_ttgir")
    assert (step.before, step.after) == ({"async_copy": 0, "load": 2}, {"async_copy": 6, "load": 0})
    assert all(s.before != s.after for s in result.steps)
    assert result.passes > 40
    assert not any(kind.startswith("dot_") for kind, _ in kinds(result))


def test_narrow_load_is_refused_at_its_line_and_the_dot_follows() -> None:
    result = heard(product("a_ptr b_ptr c_ptr K sam"))
    assert result.debug_channel
    b, dot = line_of("b = tl.load(bp)"), line_of("acc = tl.dot(a, b, acc, input")
    assert {("load_too_narrow_to_pipeline", b), ("dot_operand_not_multibuffered", dot), ("vectorization_fails", b)} <= kinds(result)
    axis = next(m for m in result.messages if m.kind == "axis_info" and m.line == b)
    assert axis.text == "contiguity = [1, 64], divisibility = [2, 2], constancy = [1, 1], constant_value = <none>"
    assert (axis.pass_name, axis.channel) == ("coalesce", "debug")
    granted = kinds(heard(product("a_ptr b_ptr c_ptr K sam"), Divisible(argument="sbk")))
    assert not {kind for kind, _ in granted} & {"load_too_narrow_to_pipeline", "dot_operand_not_multibuffered", "vectorization_fails"}


def test_mask_and_pointer_are_told_apart() -> None:
    load = line_of("x = tl.load(x_ptr + offs, mask")
    mask = next(m for m in heard(copy("x_ptr o_ptr")).messages if m.kind == "vectorization_fails" and m.line == load)
    assert mask.text == "the mask limits the access to 1 of 8 elements per thread (pointer alone: 8, mask: 1)"
    pointer = next(m for m in heard(copy("o_ptr n")).messages if m.kind == "vectorization_fails" and m.line == load)
    assert pointer.text.startswith("the pointer limits the access to 1 of 8 elements per thread")


def test_refused_wgmma_is_a_remark_at_the_dot() -> None:
    result = heard(product(num_warps=2))
    message = next(m for m in result.messages if m.kind == "mma_v3_refused")
    assert (message.channel, message.line, message.pass_name) == ("remark", line_of("acc = tl.dot(a, b, acc, input"), "accelerate_matmul")
    assert len([m for m in result.messages if m.kind == "mma_v3_refused"]) == 1


def test_a_kept_layout_conversion_is_explained() -> None:
    assert ("remat_failed", line_of("tl.store(c_ptr", "def product(")) in kinds(heard(product()))


def test_explaining_leaves_later_compiles_quiet(capfd) -> None:
    heard(copy())
    capfd.readouterr()
    assert compile_launch(CompileRequest(launch=copy(), stage="ttgir")).error == ""
    assert capfd.readouterr().err == ""


def test_a_kernel_that_does_not_compile() -> None:
    result = explain(ExplainRequest(launch=launch("wrong", "x_ptr:*fp32", "x_ptr", {"BLOCK": 64})))
    assert result.error == f"AssertionError: input and other must have equal ranks >= 2 (line {line_of('tl.dot(y, y)')})"
    assert result.steps == ()


@pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
def test_other_targets_are_stepped(target: str) -> None:
    result = explain(ExplainRequest(launch=product(), target=target))
    assert result.error == ""
    assert result.passes > 20
