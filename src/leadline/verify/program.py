"""The original and the candidate as callables, and one run of either on copies of the inputs. Runs in workers."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from leadline.errors import KernelError, LeadlineError
from leadline.execution.frames import user_frame
from leadline.execution.modules import load_module
from leadline.ingest.program import load_program
from leadline.model import KernelCase
from leadline.verify import comparison
from leadline.verify.poison import Poisoned

# What a candidate could patch to be believed. Identities are taken before any user code is imported.
_WATCHED = (
    "allclose", "equal", "isclose", "isnan", "isfinite", "empty", "zeros", "full_like", "where", "argmax", "as_tensor",
)  # fmt: skip
_WATCHED_CUDA = ("Event", "synchronize", "current_stream", "get_device_properties")
_WATCHED_TENSOR = (
    "__eq__", "all", "any", "abs", "float", "to", "clone", "copy_", "fill_", "item", "max", "sum", "mean", "square", "sqrt", "contiguous",
)  # fmt: skip


def _identities() -> dict[str, object]:
    import time

    found: dict[str, object] = {f"torch.{name}": getattr(torch, name) for name in _WATCHED}
    found |= {f"torch.cuda.{name}": getattr(torch.cuda, name, None) for name in _WATCHED_CUDA}
    found |= {f"torch.cuda.Event.{name}": getattr(torch.cuda.Event, name, None) for name in ("record", "elapsed_time", "synchronize")}
    found |= {f"torch.Tensor.{name}": getattr(torch.Tensor, name) for name in _WATCHED_TENSOR}
    found |= {f"time.{name}": getattr(time, name) for name in ("perf_counter", "perf_counter_ns", "monotonic")}
    found |= {f"leadline.comparison.{name}": getattr(comparison, name) for name in ("compare", "same", "worst", "changed", "less_accurate")}
    return found


IDENTITIES = _identities()


def tampered() -> tuple[str, ...]:
    """Names of functions the judge relies on that are no longer what they were before user code was imported."""
    now = _identities()
    return tuple(name for name, value in IDENTITIES.items() if now[name] is not value)


class Outcome(NamedTuple):
    """One call: `outputs` (the mutated inputs when `launch` returns None), names of inputs it changed, launches counted."""

    outputs: Any
    mutated: tuple[str, ...]
    inputs: dict[str, Any]
    launches: int
    error: BaseException | None = None
    where: str = ""


class Program(NamedTuple):
    """The case's functions come from the original's text (or the case file); a candidate contributes `launch` alone."""

    cases: dict[str, dict[str, Any]]
    small: dict[str, dict[str, Any]]
    tolerance: Any
    make_inputs: Callable[..., dict[str, Any]]
    reference: Callable[..., Any] | None
    launch: Callable[..., Any]

    def inputs(self, name: str, device: str, seed: int) -> dict[str, Any]:
        """Inputs of the case `name` (of CASES or SMALL); the same seed gives the same values."""
        arguments = self.cases.get(name, self.small.get(name))
        if arguments is None:
            raise KernelError(f"there is no case called {name}", remedy="choose one of " + ", ".join([*self.cases, *self.small]))
        try:
            return self.make_inputs(device=device, seed=seed, **arguments)
        except LeadlineError:
            raise
        except Exception as error:
            raise KernelError(f"make_inputs fails in case {name}: {one_line(error)}", where=user_frame(error)) from None


def load_original(case: KernelCase, text: str) -> Program:
    """Import the original. Raises KernelError when it cannot be imported or lacks a function."""
    known = load_program(case, text)
    return Program(
        cases=known.cases, small=known.small, tolerance=known.tolerance, make_inputs=known.make_inputs,
        reference=known.reference if case.oracle == "reference" else None, launch=known.launch,
    )  # fmt: skip


def load_launch(case: KernelCase, text: str) -> Callable[..., Any]:
    """Import a candidate and return its wrapper. Whatever its import raises comes through."""
    if case.kind == "kernelbench" or case.case_file:
        return load_program(case, text).launch
    launch = getattr(load_module(case.path, text), case.wrapper, None)  # the case's other functions may be left out
    if not callable(launch):
        raise KernelError(f"{case.wrapper} is not a function")
    return launch


def one_line(error: BaseException) -> str:
    """`Kind: first line` of an exception; the interpreter's wrapping is taken off."""
    while type(error).__name__ in ("InterpreterError",) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, LeadlineError):
        return str(error)
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def run(
    launch: Callable[..., Any],
    inputs: dict[str, Any],
    *,
    poison: int | None = 0,
    keep: bool = True,
    counter: Callable[[], int] = lambda: 0,
    around: Callable[[dict[str, Any], list[torch.Tensor]], contextlib.AbstractContextManager[Any]] | None = None,
    synchronize: Callable[[], None] = lambda: None,
    earlier: dict[str, Any] | None = None,
) -> Outcome:
    """Call `launch` on copies of `inputs` under poisoned allocations; an exception is returned, not raised.

    `earlier`: inputs of the same shapes on which `launch` is called first; the very same tensors then take the values of `inputs`.
    """
    mine = comparison.copy_tree(inputs if earlier is None else earlier)
    pristine = comparison.copy_tree(inputs)
    before = counter()
    with contextlib.ExitStack() as stack:
        if poison is not None:
            mode = stack.enter_context(Poisoned(poison, keep=keep))
            allocated = mode.allocated
        else:
            allocated = []
        if around is not None:
            stack.enter_context(around(mine, allocated))
        try:
            if earlier is not None:
                held = launch(**mine)  # noqa: F841 (its memory must not become the second result's)
                synchronize()
                comparison.overwrite(mine, inputs)
            outputs = launch(**mine)
            synchronize()
        except (Exception, SystemExit) as error:
            return Outcome(None, (), mine, counter() - before, error, user_frame(error))
    mutated = comparison.changed(pristine, mine)
    if outputs is None:
        outputs = tuple(mine[name] for name in mutated)
    return Outcome(outputs, mutated, mine, counter() - before)


def oracle(program: Program, inputs: dict[str, Any], original: Outcome) -> tuple[Any, Any]:
    """(expected, yardstick): the reference's result, and the same in float64 where it can be had (else the first again).

    An in-place kernel's result is compared with what the reference returns, or with the inputs the reference changed.
    """
    if program.reference is None:
        return original.outputs, original.outputs
    expected = _reference(program.reference, inputs, original)
    exact = expected
    try:
        wide = {name: _widen(value) for name, value in comparison.copy_tree(inputs).items()}
        exact = _reference(program.reference, wide, original)
        differences = comparison.compare(expected, exact, program.tolerance)
        if any(d.problem or d.excess > 1 for d in differences):
            exact = expected  # it branches on the type, or rounds on purpose: not the same function in float64
    except Exception:
        exact = expected
    return expected, exact


def _reference(reference: Callable[..., Any], inputs: dict[str, Any], original: Outcome) -> Any:
    mine = comparison.copy_tree(inputs)
    with torch.no_grad():
        result = reference(**mine)
    if result is None:
        result = tuple(mine[name] for name in original.mutated)
    return result


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() and value.element_size() > 1 else value
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(_widen(item) for item in value)
    return value


@contextlib.contextmanager
def no_new_threads() -> Iterator[list[str]]:
    """Collects names of Python threads that a call left running."""
    before = set(threading.enumerate())
    left: list[str] = []
    yield left
    left += [thread.name for thread in threading.enumerate() if thread not in before and thread.is_alive()]
