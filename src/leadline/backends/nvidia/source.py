"""A Launch record -> what Triton compiles: function, signature, constexprs and attributes. Runs in the compile worker."""

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

from leadline.errors import KernelError, UsageError
from leadline.model import Argument, Constant, Divisible, Fact, Launch, Option, SourceEdit
from leadline.model.base import Record

Scalar = int | float | bool | str | None


class Source(Record, frozen=True):
    """The arguments of `ASTSource` plus compile options. `divisible` names arguments known to be multiples of 16."""

    kernel: str
    file: str
    module: str
    text: str | None  # the kernel file's text when an edit replaces it
    types: dict[str, str]  # argument -> signature type, without order
    constants: dict[str, Scalar]
    divisible: tuple[str, ...]
    options: dict[str, int | float | bool | str | None]


def text_of(source: Source) -> str:
    """The text of the kernel's file, as edited; "" when it cannot be read."""
    if source.text is not None:
        return source.text
    try:
        return Path(source.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def describe(launch: Launch, grants: tuple[Fact, ...] = ()) -> Source:
    """`launch` with `grants` applied. Raises `UsageError` for a grant that names an argument the launch does not have."""
    types: dict[str, str] = {}
    constants: dict[str, Scalar] = {}
    divisible: set[str] = set()
    for argument in launch.arguments:
        if argument.constexpr or argument.folded or argument.type == "constexpr":
            types[argument.name] = "constexpr"
            constants[argument.name] = argument.value
        else:
            types[argument.name] = argument.type
            if argument.type.startswith("("):
                constants[argument.name] = argument.value
            if argument.divisible >= 16:
                divisible.add(argument.name)
    options = dict(launch.options)
    text = None
    for grant in grants:
        match grant:
            case Divisible(argument=name):
                _existing(launch, name)
                divisible.add(name)
            case Constant(argument=name, value=value):
                known = _existing(launch, name)
                types[name] = "constexpr"
                constants[name] = known.value if value is None else value
            case Option(name=name, value=value):
                options[name] = value
            case SourceEdit(text=edited):
                text = edited
    return Source(
        kernel=launch.kernel,
        file=launch.kernel_file,
        module=launch.kernel_module,
        text=text,
        types=types,
        constants=constants,
        divisible=tuple(n for n in types if n in divisible and types[n] != "constexpr"),
        options={k: v for k, v in options.items() if v is not None},
    )


def ast_source(source: Source) -> tuple[Any, Any]:
    """(function, ASTSource). Raises `KernelError` when the kernel has a parameter that neither launch nor default gives a value."""
    from triton.compiler import ASTSource

    from leadline.execution.modules import find_kernel

    fn = find_kernel(source.file, source.kernel, source.module, source.text)
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(fn.fn).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    signature: dict[str, Any] = {}
    constants: dict[Any, object] = {}
    for position, name in enumerate(fn.arg_names):
        kind = source.types.get(name)
        if kind is None and name not in defaults:
            raise KernelError(f"parameter {name} of {source.kernel} has no value in the launch", where=source.file)
        signature[name] = kind or "constexpr"
        if kind is None:
            constants[name] = defaults[name]
        elif kind == "constexpr":
            constants[name] = constexpr_value(source.constants[name])
        elif kind.startswith("("):  # a tuple argument: its type is a tuple, and its constexpr elements are constants by position
            signature[name] = kinds = ast.literal_eval(kind)
            values = constexpr_value(source.constants.get(name))
            for i, inner in enumerate(kinds):
                if inner == "constexpr":
                    constants[position, i] = values[i] if isinstance(values, tuple) and i < len(values) else None
    attributes = {(fn.arg_names.index(n),): [["tt.divisibility", 16]] for n in source.divisible if n in fn.arg_names}
    return fn, ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=attributes)


def constexpr_value(value: Scalar) -> object:
    """A constexpr as Triton wants it: "tl.float16" is a dtype, "jit:<file or module>:<name>" a function, "tuple:(1, 2)" a tuple."""
    if not isinstance(value, str):
        return value
    if value.startswith("jit:"):
        place, _, name = value[4:].rpartition(":")
        if place.endswith(".py"):
            from leadline.execution.modules import find_kernel

            return find_kernel(place, name)
        return getattr(importlib.import_module(place), name)
    if value.startswith("tuple:"):
        return tuple(constexpr_value(v) for v in ast.literal_eval(value.removeprefix("tuple:")))
    if value.startswith("torch."):
        import torch

        return getattr(torch, value[6:], value)
    if value.startswith("tl."):
        import triton.language as tl

        return getattr(tl, value[3:], value)
    return value


def _existing(launch: Launch, name: str) -> Argument:
    argument = launch.argument(name)
    if argument is None:
        raise UsageError(f"probe grants a fact about {name}, which is not an argument of {launch.kernel}")
    return argument
