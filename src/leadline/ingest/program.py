"""The functions of a case, imported: make_inputs, launch, reference, CASES. Workers only: runs the user's file."""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, cast

from leadline.errors import KernelError
from leadline.execution.modules import load_module
from leadline.model import KernelCase


@dataclass
class Program:
    """A case ready to run. `file` is the user's file as loaded: a temporary one when other text stands in its place."""

    module: ModuleType  # of case.path
    file: str
    make_inputs: Callable[..., dict[str, Any]]
    launch: Callable[..., Any]
    reference: Callable[..., Any] | None
    cases: dict[str, dict[str, Any]]
    small: dict[str, dict[str, Any]]
    tolerance: Any = None
    notes: list[str] = field(default_factory=list)

    def arguments(self, case_name: str) -> dict[str, Any]:
        """The keyword arguments of make_inputs for a case by name. Raises KernelError listing the names there are."""
        both = self.cases | self.small
        if case_name not in both:
            raise KernelError(f"no case {case_name!r}", where=self.file, remedy=f"the cases there are: {', '.join(both)}")
        return both[case_name]


def load_program(case: KernelCase, text: str | None = None) -> Program:
    """Import the case (`text` replaces the content of `case.path`) and check that all its parts are there."""
    module = load_module(case.path, text)
    file = str(module.__file__)
    owner = module
    if case.case_file and os.path.realpath(case.case_file) != os.path.realpath(case.path):
        owner = _load_beside(case.case_file, case.path, module, text)
    if case.kind == "kernelbench":
        from leadline.ingest.kernelbench import adapt

        return adapt(owner, module, file, case)
    where = case.case_file or case.path
    # The target's own wrapper comes first: a case file that brings another one must not put other kernels in its place.
    launch = getattr(module, case.wrapper, None) or getattr(owner, case.wrapper, None)
    make_inputs: Any = getattr(owner, "make_inputs", None)
    if not callable(launch):
        remedy = f"define {case.wrapper}(**inputs) that launches the kernels"
        raise KernelError(f"{case.wrapper} is missing", where=where, remedy=remedy)
    if not callable(make_inputs):
        remedy = "define make_inputs(*, device, seed, **case) that returns a dict of inputs"
        raise KernelError("make_inputs is missing", where=where, remedy=remedy)
    reference = getattr(owner, "reference", None)
    cases, small = _sizes(owner, "CASES", where), _sizes(owner, "SMALL", where, required=False)
    for name, entries in (("CASES", cases), ("SMALL", small)):
        _fitting(make_inputs, name, entries, where)
    return Program(
        module=module, file=file, make_inputs=cast(Any, make_inputs), launch=launch, reference=reference if callable(reference) else None,
        cases=cases, small=small, tolerance=getattr(owner, "TOLERANCE", None),
    )  # fmt: skip


def _load_beside(case_file: str, path: str, module: ModuleType, text: str | None) -> ModuleType:
    """Import the case file; its `import kernel_file` gives the module that was loaded, also when its text was replaced."""
    plain = os.path.splitext(os.path.basename(path))[0]
    before = sys.modules.get(plain)
    if text is not None:
        sys.modules[plain] = module
    try:
        # The registered name carries the replaced text, so that another text means another import of the case file.
        return load_module(case_file, name=f"leadline_case_{module.__name__.rpartition('_')[2]}" if text is not None else "")
    finally:
        if text is not None:
            if before is None:
                sys.modules.pop(plain, None)
            else:
                sys.modules[plain] = before


def _fitting(make_inputs: Callable[..., Any], name: str, entries: dict[str, dict[str, Any]], where: str) -> None:
    """Raise KernelError for an entry whose keys make_inputs does not take: no way of running that case can work."""
    try:
        signature = inspect.signature(make_inputs)
    except (TypeError, ValueError):
        return
    for entry, arguments in entries.items():
        try:
            signature.bind(device="cpu", seed=0, **arguments)
        except TypeError as error:
            raise KernelError(f"make_inputs does not fit {name}[{entry!r}]: {error}", where=where,
                              remedy="give make_inputs(*, device, seed, ...) the keys of the entry as parameters") from None  # fmt: skip


def _sizes(module: ModuleType, name: str, where: str, *, required: bool = True) -> dict[str, dict[str, Any]]:
    value = getattr(module, name, None)
    if value is None and not required:
        return {}
    remedy = f'write {name} = {{"name": dict(...)}}, a dict from names to keyword arguments of make_inputs'
    if value is None:
        raise KernelError(f"{name} is missing", where=where, remedy=remedy)
    if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, dict) for k, v in value.items()):
        raise KernelError(f"{name} is not a dict of dicts", where=where, remedy=remedy)
    if not value and required:
        raise KernelError(f"{name} is empty", where=where, remedy=remedy)
    return value
