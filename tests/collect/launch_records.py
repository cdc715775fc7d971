"""Launch records by hand: what the dry run would give, without running one."""

from pathlib import Path

from leadline.model import Argument, KernelCase, Launch, TensorSpec
from leadline.model.case import ITEMSIZE

KERNELS = Path(__file__).parents[1] / "data" / "sampling" / "kernels.py"


def line_of(mark: str) -> int:
    """Line of the kernels' file that ends with the comment `# mark`."""
    lines = KERNELS.read_text().splitlines()
    return next(n for n, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


def tensor(name: str, *shape: int, dtype: str = "fp32", storage: int, offset: int = 0) -> Argument:
    """A contiguous tensor argument."""
    strides, run = [], 1
    for extent in reversed(shape):
        strides.insert(0, run)
        run *= extent
    spec = TensorSpec(dtype=dtype, shape=shape, strides=tuple(strides), storage=storage, offset=offset,
                      storage_bytes=run * ITEMSIZE[dtype] + offset)  # fmt: skip
    return Argument(name=name, type=f"*{dtype}", tensor=spec)


def launch(kernel: str, grid: tuple[int, int, int], *arguments: Argument, index: int = 0, warps: int = 4, **values: int) -> Launch:
    """Lower-case `values` are i32 scalars, upper-case ones constexprs."""
    scalars = [Argument(name=n, type="constexpr" if n.isupper() else "i32", value=v, constexpr=n.isupper()) for n, v in values.items()]
    return Launch(
        index=index, kernel=kernel, kernel_file=str(KERNELS), kernel_line=1, kernel_module="", call_file="", call_line=1, grid=grid,
        arguments=(*arguments, *scalars), options={"num_warps": warps, "num_stages": 3},
    )  # fmt: skip


CASE = KernelCase(path=str(KERNELS), source="", kernels=())
