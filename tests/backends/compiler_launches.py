"""Launch records of the kernels in tests/data/backends/lost_optimisations.py."""

from pathlib import Path

from leadline.model import Argument, Launch

KERNELS = Path(__file__).parent.parent / "data" / "backends" / "lost_optimisations.py"


def line_of(text: str, after: str = "") -> int:
    """The first line that contains `text` (after the line that contains `after`)."""
    rows = KERNELS.read_text().splitlines()
    start = next(i for i, row in enumerate(rows) if after in row) if after else 0
    return next(i for i in range(start, len(rows)) if text in rows[i]) + 1


def launch(kernel: str, types: str, divisible: str = "", constexprs: dict | None = None, **options: int) -> Launch:
    """`types` is "name:type ..." in order; constexprs come last."""
    known = divisible.split()
    arguments = [Argument(name=n, type=t, divisible=16 if n in known else 1) for n, t in (x.split(":") for x in types.split())]
    arguments += [Argument(name=n, type="constexpr", value=v, constexpr=True) for n, v in (constexprs or {}).items()]
    return Launch(
        index=0, kernel=kernel, kernel_file=str(KERNELS), kernel_line=line_of(f"def {kernel}("), kernel_module="",
        call_file=str(KERNELS), call_line=1, grid=(1, 1, 1), arguments=tuple(arguments), options=options,
    )  # fmt: skip


def copy(divisible: str = "x_ptr o_ptr n", block: int = 1024) -> Launch:
    return launch("copy", "x_ptr:*fp16 o_ptr:*fp16 n:i32", divisible, {"BLOCK": block})


def rows(divisible: str = "x_ptr o_ptr stride") -> Launch:
    constexprs = {"BLOCK": 1024, "OUT": "tl.float16", "ACT": f"jit:{KERNELS}:halve"}
    return launch("rows", "x_ptr:*fp16 o_ptr:*fp16 stride:i32", divisible, constexprs)


def product(
    divisible: str = "a_ptr b_ptr c_ptr K sam sbk", bm: int = 64, scale: bool = False, dtype: str = "fp16", **options: int
) -> Launch:
    types = f"a_ptr:*{dtype} b_ptr:*{dtype} c_ptr:*fp32 K:i32 sam:i32 sbk:i32"
    return launch("product", types, divisible, {"BM": bm, "BN": 64, "BK": 32, "SCALE": scale}, **options)
