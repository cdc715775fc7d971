"""Golden signatures: what one lost optimisation leaves in the counters, and that the missing fact brings it back."""

import hashlib

import msgspec
import pytest
from compiler_launches import KERNELS, copy, launch, line_of, product, rows

from leadline.backends.base import CompileRequest
from leadline.backends.nvidia.compile import compile_launch
from leadline.backends.nvidia.signature import read
from leadline.errors import UsageError
from leadline.model import Compiled, Constant, Divisible, Fact, Launch, Option, SourceEdit

pytest.importorskip("triton")
pytestmark = pytest.mark.triton


def compiled(which: Launch, *grants: Fact, stage: str = "ptx", target: str = "cuda:90") -> Compiled:
    result = compile_launch(CompileRequest(launch=which, stage=stage, grants=grants, target=target))
    assert result.error == ""
    return result


def test_unaligned_pointer_makes_single_element_loads() -> None:
    lost = compiled(copy("o_ptr n"))
    assert read(lost, "global.load.bits") == 16
    assert read(lost, "global.store.bits") == 128
    assert read(compiled(copy("o_ptr n"), Divisible(argument="x_ptr")), "global.load.bits") == 128


def test_ragged_mask_makes_single_element_accesses_on_both_lines() -> None:
    lost = compiled(copy("x_ptr o_ptr"))
    line = line_of("x = tl.load(x_ptr + offs, mask")
    assert lost.line_counters[line]["global.load.bits"] == 16
    assert lost.line_counters[line]["global.load.count"] == 8
    assert lost.line_counters[line + 1]["global.store.bits"] == 16
    assert [op.detail.get("vector_bits") for op in lost.operations if op.line == line and op.name == "tt.load"] == [None, "16"]
    assert read(compiled(copy("x_ptr o_ptr"), Divisible(argument="n")), "global.load.bits", line) == 128


def test_row_stride_and_function_and_dtype_constexprs() -> None:
    lost = compiled(rows("x_ptr o_ptr"))
    assert (read(lost, "global.load.bits"), read(lost, "global.store.bits")) == (16, 128)
    assert read(compiled(rows("x_ptr o_ptr"), Divisible(argument="stride")), "global.load.bits") == 128
    assert lost.line_counters[line_of("return x * 0.5")]["ttgir.mulf"] == 1


def test_too_few_warps_or_rows_miss_wgmma() -> None:
    assert read(compiled(product(num_warps=2), stage="ttgir"), "mma.version") == 2
    assert read(compiled(product(num_warps=2), Option(name="num_warps", value=4), stage="ttgir"), "mma.version") == 3
    assert read(compiled(product(bm=32), stage="ttgir"), "mma.version") == 2
    assert read(compiled(product(bm=32), Constant(argument="BM", value=64), stage="ttgir"), "mma.version") == 3


def test_ieee_product_uses_no_tensor_core() -> None:
    ieee = KERNELS.read_text().replace('input_precision="tf32"', 'input_precision="ieee"')
    edit = SourceEdit(text=ieee, label="input_precision='ieee'")
    dot = line_of("acc = tl.dot(a, b, acc, input")
    assert read(compiled(product(dtype="fp32"), edit, stage="ttgir"), "mma.version", dot) == 1
    assert read(compiled(product(dtype="fp32"), stage="ttgir"), "mma.version", dot) == 3


def test_pipelining_needs_stages_and_a_for_loop() -> None:
    one = compiled(product(num_stages=1), stage="ttgir")
    assert (read(one, "async_copy"), read(one, "loop.load")) == (0, 2)
    three = compiled(product(num_stages=1), Option(name="num_stages", value=3), stage="ttgir")
    assert (read(three, "async_copy"), read(three, "loop.async_copy"), read(three, "loop.load")) == (6, 2, 0)
    types = "a_ptr:*fp16 b_ptr:*fp16 c_ptr:*fp32 K:i32"
    loop = launch("product_while", types, "a_ptr b_ptr c_ptr K", {"BM": 64, "BN": 64, "BK": 32})
    kept = compiled(loop, stage="ttgir")
    assert (read(kept, "ttgir.while"), read(kept, "loop.load"), read(kept, "async_copy")) == (1, 2, 0)


def test_work_between_load_and_dot_serialises_wgmma() -> None:
    assert read(compiled(product(scale=True), stage="ttgir"), "wgmma_wait0") == 1
    assert read(compiled(product(scale=True), Constant(argument="SCALE", value=False), stage="ttgir"), "wgmma_wait0") == 0


def test_division_by_a_runtime_value() -> None:
    pixels = launch("pixels", "x_ptr:*fp32 o_ptr:*fp32 width:i32", "x_ptr o_ptr", {"BLOCK": 128})
    line = line_of("offs % width")
    assert read(compiled(pixels, stage="ttgir"), "int_div", line) == 2
    assert read(compiled(pixels, Constant(argument="width", value=56), stage="ttgir"), "int_div", line) == 0


def test_double_precision_scalar() -> None:
    wide = launch("scale", "x_ptr:*fp32 o_ptr:*fp64 factor:fp64", "x_ptr o_ptr", {"BLOCK": 128})
    narrow = launch("scale", "x_ptr:*fp32 o_ptr:*fp32 factor:fp32", "x_ptr o_ptr", {"BLOCK": 128})
    assert read(compiled(wide, stage="ttgir"), "fp64") >= 2
    assert read(compiled(narrow, stage="ttgir"), "fp64") == 0


def test_atomics_are_counted() -> None:
    adds = launch("histogram", "x_ptr:*fp32 o_ptr:*fp32", "x_ptr o_ptr", {"BLOCK": 1024})
    found = compiled(adds)
    assert read(found, "atomic") == 2
    assert read(found, "atomic.instructions") >= 2
    assert read(found, "shfl", line_of("tl.sum(x, 0)")) > 0  # library code counts for the line that calls it


def test_machine_code_has_lines_registers_and_spills() -> None:
    result = compiled(product(num_warps=1, maxnreg=64), stage="sass")
    assert result.stopped_at == "sass"
    assert result.resources.registers <= 64
    assert result.counters["spill_bytes"] == result.resources.spill_store_bytes + result.resources.spill_load_bytes > 0
    assert sum(counts.get("spill", 0) for counts in result.line_counters.values()) > 0
    assert 0 < result.counters["loop.instructions"] < result.counters["instructions"]
    assert any(row.file == str(KERNELS) and row.line == line_of("acc = tl.dot(a, b, acc, input") for row in result.machine)
    dots = [op for op in result.operations if op.stage == "ttgir" and op.name == "tt.dot"]
    assert dots[0].detail["version"] == "2"
    assert dots[0].loop_depth == 1
    assert Compiled(**{f: getattr(result, f) for f in result.__struct_fields__}) == msgspec.msgpack.decode(
        msgspec.msgpack.encode(result), type=Compiled
    )


def test_stage_texts_go_to_the_store(tmp_path) -> None:
    result = compile_launch(CompileRequest(launch=copy(), stage="ptx", store=str(tmp_path)))
    assert sorted(result.stages) == ["llir", "ptx", "ttgir", "ttir"]
    for digest in result.stages.values():
        assert hashlib.sha256((tmp_path / digest[:2] / digest).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize(("target", "reached"), [("cuda:80", "ptx"), ("cuda:100", "ptx"), ("hip:gfx942", "amdgcn")])
def test_other_targets(target: str, reached: str) -> None:
    result = compiled(copy("x_ptr o_ptr"), target=target)
    assert result.stopped_at == reached
    assert read(result, "global.load.bits") == 16


def test_a_compile_error_is_a_result() -> None:
    bad = launch("wrong", "x_ptr:*fp32", "x_ptr", {"BLOCK": 64})
    result = compile_launch(CompileRequest(launch=bad))
    assert result.error == "AssertionError: input and other must have equal ranks >= 2"
    assert result.error_line == line_of("tl.dot(y, y)")
    assert result.counters == {}


def test_a_parameter_without_a_value_is_a_result() -> None:
    missing = launch("copy", "x_ptr:*fp16 o_ptr:*fp16", "", {"BLOCK": 64})
    result = compile_launch(CompileRequest(launch=missing))
    assert result.error == f"{KERNELS}: parameter n of copy has no value in the launch"


def test_a_grant_about_an_unknown_argument() -> None:
    with pytest.raises(UsageError) as error:
        compile_launch(CompileRequest(launch=copy(), grants=(Divisible(argument="q"),)))
    assert str(error.value) == "probe grants a fact about q, which is not an argument of copy"
