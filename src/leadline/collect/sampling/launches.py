"""Runs sampled programs of every launch and hands what they did to `figures_of`. Imported only in the interpret worker."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as interp

from leadline.collect.sampling import SampleRequest
from leadline.collect.sampling.addresses import base_address
from leadline.collect.sampling.interpreter import TRITON_FOLDER, SamplingBuilder, Session
from leadline.collect.sampling.recorder import Recorder
from leadline.collect.sampling.summary import Program, figures_of
from leadline.execution.modules import find_kernel
from leadline.model import Argument, Launch, LaunchSample

_SPREAD = ((0.29, 0.61, 0.83), (0.77, 0.37, 0.13))  # where along each axis the extra programs lie
_OTHER_VALUES = 64  # scale of loaded integers in the second run of the middle program


def sample_launches(request: SampleRequest) -> tuple[LaunchSample, ...]:
    """See `leadline.collect.sampling.sample`."""
    left, samples = request.budget_s, []
    with Session() as session:
        for position, launch in enumerate(request.launches):
            share = max(0.05, left / (len(request.launches) - position))
            found = _sample_launch(session, request, launch, share, max(share, left / 2))
            left -= found.seconds
            samples.append(found)
    return tuple(samples)


def _sample_launch(session: Session, request: SampleRequest, launch: Launch, budget: float, most: float) -> LaunchSample:
    if launch.programs <= 0:
        return LaunchSample(launch=launch.index, programs=0, sampled=0, note="the grid is empty")
    text = request.text if launch.kernel_file == request.case.path else None
    try:
        function = _kernel(launch.kernel_file, launch.kernel, launch.kernel_module, text)
        arguments = {a.name: _argument(a, i, request.text) for i, a in enumerate(launch.arguments)
                     if a.name in function.arg_names}  # fmt: skip
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return LaunchSample(launch=launch.index, programs=launch.programs, sampled=0, note=f"cannot sample: {text}"[:300])
    # Importing the user's file is not sampling: it may take seconds and cannot be hurried.
    started = time.monotonic()
    end = started + budget
    programs: list[Program] = []
    notes: dict[str, None] = {}
    for place, role in chosen(launch.grid, request.programs):
        scales = (1, _OTHER_VALUES) if role == "middle" else (1,)
        if programs and time.monotonic() + programs[-1].seconds > end:
            notes["the time budget allowed fewer programs"] = None
            break
        for scale in scales:
            begun = time.monotonic()
            # A program cut short tells wrong totals, so the first may borrow time that other launches may not need.
            limit = max(0.02, end - begun) if programs else most
            recorder = Recorder(begun + limit, TRITON_FOLDER)
            why = session.run_program(function, arguments, launch.grid, place, recorder, scale)
            if why:
                notes[why] = None
            programs.append(Program(place, role if scale == 1 else "control", recorder, time.monotonic() - begun, failed=bool(why)))
    return figures_of(launch, programs, tuple(notes), time.monotonic() - started)


def chosen(grid: tuple[int, int, int], most: int) -> list[tuple[tuple[int, int, int], str]]:
    """Programs to run, most telling first: (place, role); roles are middle, next0..2 (one step on that axis), first, last, spread."""
    middle = (grid[0] // 2, grid[1] // 2, grid[2] // 2)
    wanted: list[tuple[tuple[int, int, int], str]] = [(middle, "middle")]
    for axis in range(3):
        if grid[axis] > 1:
            step = 1 if middle[axis] + 1 < grid[axis] else -1
            place = list(middle)
            place[axis] += step
            wanted.append(((place[0], place[1], place[2]), f"next{axis}"))
    wanted.append(((grid[0] - 1, grid[1] - 1, grid[2] - 1), "last"))
    wanted.append(((0, 0, 0), "first"))
    for share in _SPREAD:
        wanted.append(((int(grid[0] * share[0]), int(grid[1] * share[1]), int(grid[2] * share[2])), "spread"))
    seen: set[tuple[int, int, int]] = set()
    result = []
    for place, role in wanted:
        if place not in seen and len(result) < most:
            seen.add(place)
            result.append((place, role))
    return result


def _kernel(file: str, name: str, module: str, text: str | None) -> Any:
    """The interpreted function behind any decorators."""
    function = find_kernel(file, name, module_name=module, text=text)
    while not isinstance(function, interp.InterpretedFunction):
        function = getattr(function, "fn", None)
        if function is None:
            raise ValueError(f"{name} in {file} is not a @triton.jit function under TRITON_INTERPRET=1")
    return function


def _argument(argument: Argument, position: int, text: str | None) -> Callable[[SamplingBuilder], Any]:
    """Makes the value the kernel body receives, given the builder of the program about to run."""
    if argument.tensor is not None and argument.type.startswith("tensordesc"):
        return lambda builder: _descriptor(argument, position, builder)
    if argument.tensor is not None:
        kind: Any = tl.str_to_ty(argument.type if argument.type.startswith("*") else f"*{argument.tensor.dtype}", None)
        address = base_address(position, argument.tensor.storage % 1024, argument.tensor.offset)
        handle = interp.TensorHandle(np.array([address], np.uint64), kind)
        return lambda builder: tl.tensor(handle, kind)
    value = argument.value
    if argument.constexpr and not argument.folded:
        value = _constant(value, text)
        return lambda builder: value
    if isinstance(value, float):  # a tensor in the compiled kernel, and bodies treat it as one: `eps.to(tl.float32)`
        kind = tl.float64 if argument.type == "fp64" else tl.float32
        number = interp.TensorHandle(np.array([value], interp._get_np_dtype(kind)), kind)
        return lambda builder: tl.tensor(number, kind)
    if isinstance(value, bool) or not isinstance(value, int):
        return lambda builder: value
    kind: Any = tl.str_to_ty(argument.type, None) if argument.type[:1] in "iu" and argument.type[1:].isdigit() else tl.int32
    if kind == tl.int32 and not -(2**31) <= value < 2**31:
        kind = tl.int64
    handle = interp.TensorHandle(np.array([value], interp._get_np_dtype(kind)), kind)
    return lambda builder: tl.tensor(handle, kind)


def _descriptor(argument: Argument, position: int, builder: SamplingBuilder) -> Any:
    """A host-made tensor descriptor; its type reads `tensordesc<fp16[128, 64]>`."""
    tensor = argument.tensor
    assert tensor is not None
    from triton.language.semantic import TritonSemantic

    block = [int(b) for b in argument.type.split("[", 1)[1].split("]", 1)[0].split(",")]
    kind: Any = tl.str_to_ty(f"*{tensor.dtype}", None)
    address = base_address(position, tensor.storage % 1024, tensor.offset)
    base = tl.tensor(interp.TensorHandle(np.array([address], np.uint64), kind), kind)

    def scalar(value: int, dtype: Any, width: Any) -> Any:
        return tl.tensor(interp.TensorHandle(np.array([value], width), dtype), dtype)

    strides: list[Any] = [scalar(s, tl.int64, np.int64) for s in tensor.strides]
    strides[-1] = tl.constexpr(1)
    shape = [scalar(s, tl.int32, np.int32) for s in tensor.shape]
    return TritonSemantic(builder).make_tensor_descriptor(base, shape, strides, [tl.constexpr(b) for b in block])


def _constant(value: Any, text: str | None) -> Any:
    """A constexpr from the launch record: dtypes and device functions are recorded as text."""
    if isinstance(value, str) and value.startswith("tl."):
        return getattr(tl, value[3:], value)
    if isinstance(value, str) and value.startswith("jit:"):
        place, name = value[4:].rsplit(":", 1)
        is_file = place.endswith(".py")
        return _kernel(place if is_file else "", name, "" if is_file else place, text if is_file else None)
    return value
