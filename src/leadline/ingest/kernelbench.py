"""A KernelBench pair as a case: `Model` is the reference, `ModelNew` the wrapper. Workers only: runs the user's file."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from leadline.errors import KernelError
from leadline.ingest.program import Program
from leadline.model import KernelCase

_SEED = 42  # both models are built under it, so that their parameters agree


def adapt(owner: ModuleType, module: ModuleType, file: str, case: KernelCase) -> Program:
    """The pair as make_inputs, launch and reference. Inputs are called x0, x1 ...; cases "default", or "group0" ... of
    `get_input_groups` (NPUKernelBench), which may read the JSON beside the file."""
    where = case.case_file or case.path
    model = getattr(owner, "Model", None) or getattr(module, "Model", None)
    model_new = getattr(module, "ModelNew", None) or getattr(owner, "ModelNew", None)
    get_inputs = getattr(owner, "get_inputs", None) or getattr(module, "get_inputs", None)
    get_groups = getattr(owner, "get_input_groups", None) or getattr(module, "get_input_groups", None)
    get_init = getattr(owner, "get_init_inputs", None) or getattr(module, "get_init_inputs", None)
    if model_new is None:
        raise KernelError("ModelNew is missing", where=where, remedy="define the class ModelNew that launches the kernels")
    if get_inputs is None and get_groups is None:
        raise KernelError("get_inputs is missing", where=where, remedy="define get_inputs() that returns the list of inputs of forward")
    init = list(get_init()) if get_init is not None else []
    models: dict[tuple[Any, str], Any] = {}

    def build(kind: Any, device: Any) -> Any:
        import torch

        key = kind, f"{device}:{_fake_now()}"
        if key not in models:
            torch.manual_seed(_SEED)
            arguments, keywords = _split(init)
            with torch.device(device):
                models[key] = kind(*arguments, **keywords)
            if kind is model_new and model is not None:
                _share_parameters(build(model, device), models[key])
        return models[key]

    def make_inputs(*, device: Any, seed: int, group: int | None = None) -> dict[str, Any]:
        import torch
        from torch.utils._pytree import tree_map

        torch.manual_seed(seed)
        values: Any = get_groups()[group] if group is not None and get_groups is not None else get_inputs()  # pyright: ignore
        moved = tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, list(values))
        return {f"x{i}": v for i, v in enumerate(moved)}

    def run(kind: Any, inputs: dict[str, Any]) -> Any:
        import torch

        device = next((v.device for v in inputs.values() if isinstance(v, torch.Tensor)), torch.device("cpu"))
        with torch.no_grad():
            return build(kind, device)(*inputs.values())

    def launch(**inputs: Any) -> Any:
        return run(model_new, inputs)

    def reference(**inputs: Any) -> Any:
        return run(model, inputs)

    names = _groups(where) if get_groups is not None else 0
    cases: dict[str, dict[str, Any]] = {f"group{i}": {"group": i} for i in range(names)} or {"default": {}}
    return Program(module=module, file=file, make_inputs=make_inputs, launch=launch, reference=reference if model is not None else None,
                   cases=cases, small={})  # fmt: skip


def _groups(path: str) -> int:
    """How many input groups the JSON sidecar lists, one a line or as a list; 1 when there is none."""
    sidecar = Path(path).with_suffix(".json")
    if not sidecar.exists():
        return 1
    text = sidecar.read_text(encoding="utf-8").strip()
    try:
        value = json.loads(text)
        return len(value) if isinstance(value, list) else 1
    except json.JSONDecodeError:
        return sum(bool(line.strip()) for line in text.splitlines())


def _split(init: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """KernelBench gives positional arguments, or a list of them and a dict of keywords."""
    if len(init) == 2 and isinstance(init[0], list) and isinstance(init[1], dict):
        return init[0], init[1]
    return init, {}


def _share_parameters(source: Any, target: Any) -> None:
    """Give `target` the parameters of `source` when names and shapes agree."""
    theirs, ours = source.state_dict(), target.state_dict()
    if theirs and theirs.keys() == ours.keys() and all(theirs[k].shape == ours[k].shape for k in theirs):
        target.load_state_dict(theirs)


def _fake_now() -> int:
    """Identity of the fake mode that is on: models built under one may not be used under another."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return next((id(m) for m in _get_current_dispatch_mode_stack() if isinstance(m, FakeTensorMode)), 0)
