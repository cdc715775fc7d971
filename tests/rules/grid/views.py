"""Views for the grid and tile tests, made from a source text and a few numbers: no compiler, no trace."""

from leadline.collect import ceilings, source
from leadline.model import AccessSample, Argument, KernelCase, Launch, LaunchCost, LaunchSample, LoopSample, TensorSpec, Trace
from leadline.rules.base import View

PATH = "/case.py"


def kernel_line(text: str, name: str) -> int:
    return next(k for k, line in enumerate(text.splitlines(), 1) if line.startswith(f"def {name}("))


def line_of(text: str, start: str) -> int:
    """Line of the first line that starts so, blanks aside."""
    return next(k for k, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start))


def tensor(name: str, shape: tuple[int, ...], storage: int, dtype: str = "fp32") -> Argument:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return Argument(
        name=name, type=f"*{dtype}", tensor=TensorSpec(dtype=dtype, shape=shape, strides=tuple(strides), storage=storage), divisible=16
    )


def constant(name: str, value: int) -> Argument:
    return Argument(name=name, type="constexpr", value=value, constexpr=True)


def number(name: str, value: int) -> Argument:
    return Argument(name=name, type="i32", value=value)


def view(
    text: str,
    kernel: str,
    arguments: tuple[Argument, ...],
    grid: tuple[int, int, int],
    *,
    warps: int = 4,
    accesses: tuple[AccessSample, ...] = (),
    loops: tuple[LoopSample, ...] = (),
    cost: LaunchCost | None = None,
) -> View:
    """A view of one launch of `kernel` from the first launch statement of the text."""
    facts = source.read(KernelCase(path=PATH, source=text, kernels=(kernel,)))
    call = line_of(text, f"{kernel}[")
    launch = Launch(
        index=0,
        kernel=kernel,
        kernel_file=PATH,
        kernel_line=kernel_line(text, kernel),
        kernel_module="",
        call_file=PATH,
        call_line=call,
        grid=grid,
        arguments=arguments,
        options={"num_warps": warps},
    )
    samples = {0: LaunchSample(launch=0, programs=launch.programs, sampled=4, accesses=accesses, loops=loops)} if accesses or loops else {}
    return View(
        source=facts,
        trace=Trace(case="full", launches=(launch,)),
        samples=samples,
        costs={0: cost} if cost else {},
        ceilings=ceilings.predicted("cuda:90"),
    )
