"""Launch records -> what Triton is given."""

import pytest
from compiler_launches import KERNELS, copy, launch, rows

from leadline.backends.base import CompileRequest
from leadline.backends.nvidia.compile import compile_launch
from leadline.backends.nvidia.source import ast_source, constexpr_value, describe
from leadline.errors import UsageError
from leadline.model import Argument, Constant, Divisible, Launch, Option, SourceEdit


def test_grants_change_the_description() -> None:
    source = describe(
        copy("x_ptr"),
        (
            Divisible(argument="n"),
            Constant(argument="BLOCK", value=256),
            Option(name="num_warps", value=8),
            SourceEdit(text="t", label="l"),
        ),
    )
    assert source.types == {"x_ptr": "*fp16", "o_ptr": "*fp16", "n": "i32", "BLOCK": "constexpr"}
    assert source.divisible == ("x_ptr", "n")
    assert source.constants == {"BLOCK": 256}
    assert source.options == {"num_warps": 8}
    assert source.text == "t"


def test_a_constant_takes_the_launch_value_and_folded_ones_stay() -> None:
    arguments = (Argument(name="x", type="*fp16", divisible=16), Argument(name="n", type="i32", value=48, divisible=16),
                 Argument(name="one", type="constexpr", value=1, folded=True))  # fmt: skip
    which = Launch(index=0, kernel="k", kernel_file="k.py", kernel_line=1, kernel_module="", call_file="", call_line=0, grid=(1, 1, 1),
                   arguments=arguments, options={"num_warps": 4, "maxnreg": None})  # fmt: skip
    source = describe(which, (Constant(argument="n"),))
    assert source.constants == {"n": 48, "one": 1}
    assert source.divisible == ("x",)
    assert source.options == {"num_warps": 4}
    with pytest.raises(UsageError):
        describe(which, (Constant(argument="m"),))


@pytest.mark.triton
def test_constexprs_of_dtype_and_function() -> None:
    tl = pytest.importorskip("triton.language")
    assert constexpr_value("tl.float16") is tl.float16
    assert constexpr_value("tf32") == "tf32"
    assert constexpr_value("tuple:(1, 'tl.int8', (2,))") == (1, tl.int8, (2,))
    assert constexpr_value(None) is None
    assert constexpr_value(f"jit:{KERNELS}:halve").__name__ == "halve"
    assert constexpr_value("jit:triton.language.standard:sigmoid").__name__ == "sigmoid"
    fn, source = ast_source(describe(rows()))
    assert fn.__name__ == "rows"
    assert list(source.signature.items())[:4] == [("x_ptr", "*fp16"), ("o_ptr", "*fp16"), ("stride", "i32"), ("BLOCK", "constexpr")]
    assert source.constants[(4,)] is tl.float16
    assert source.attrs == {(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}


@pytest.mark.triton
def test_a_kernel_in_an_importable_module() -> None:
    pytest.importorskip("triton")
    which = launch("halve", "x:fp32")
    fn, _ = ast_source(describe(which))
    assert fn.fn.__code__.co_filename == str(KERNELS)


@pytest.mark.triton
def test_tuple_arguments() -> None:
    pytest.importorskip("triton")
    arguments = (
        Argument(name="pointers", type="('*fp32', '*fp32')"),
        Argument(name="sizes", type="('i32', 'constexpr')", value="tuple:(7, 3)"),
        Argument(name="SHAPE", type="constexpr", value="tuple:(16, 8)", constexpr=True),
    )
    which = Launch(index=0, kernel="pair", kernel_file=str(KERNELS), kernel_line=1, kernel_module="", call_file="", call_line=0,
                   grid=(1, 1, 1), arguments=arguments)  # fmt: skip
    _, source = ast_source(describe(which))
    assert source.signature["pointers"] == ("*fp32", "*fp32")
    assert source.constants == {(1, 1): 3, (2,): (16, 8)}
    assert compile_launch(CompileRequest(launch=which, stage="ttgir")).error == ""
