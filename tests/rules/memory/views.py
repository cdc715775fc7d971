"""Views made by hand: the source facts of a text and one launch per kernel with the given values."""

from leadline.collect.source import read
from leadline.model import Argument, KernelCase, Launch, TensorSpec, Trace
from leadline.rules.base import View


def view_of(text: str, values: dict[str, int], grid: tuple[int, int, int] = (100, 1, 1)) -> View:
    """`values` are the integer arguments by name; every other parameter is a pointer to 1024 halves."""
    facts = read(KernelCase(path="/case.py", source=text, kernels=()))
    launches = []
    for index, kernel in enumerate(facts.kernels):
        arguments = []
        for position, parameter in enumerate(kernel.parameters):
            value = values.get(parameter.name)
            if value is None:
                tensor = TensorSpec(dtype="fp16", shape=(1024,), strides=(1,), storage=position)
                arguments.append(Argument(name=parameter.name, type="*fp16", tensor=tensor, divisible=16))
            else:
                kind = "constexpr" if parameter.constexpr else "i32"
                arguments.append(
                    Argument(
                        name=parameter.name, type=kind, value=value, constexpr=parameter.constexpr, divisible=16 if value % 16 == 0 else 1
                    )
                )
        launches.append(
            Launch(
                index=index, kernel=kernel.name, kernel_file=facts.path, kernel_line=kernel.line, kernel_module="", call_file=facts.path,
                call_line=1, grid=grid, arguments=tuple(arguments),
            )
        )  # fmt: skip
    return View(source=facts, trace=Trace(case="full", launches=tuple(launches)))
