"""Triton's own pipeline, stage by stage or pass by pass, in this process and without its cache. Runs in the compile worker.

The pass list is not written down here: the back-end's `make_ttir`, `make_ttgir` and `make_llir` are called with their pass modules
replaced by recorders, so the list follows the installed Triton. Private API of triton; tested with 3.6.0.
"""

import contextlib
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from leadline.backends.nvidia.source import Source, ast_source
from leadline.errors import UsageError
from leadline.execution.target import parse_target
from leadline.model.base import Record

STEPPED = ("make_ttir", "make_ttgir", "make_llir")


class MachineCode(Record, frozen=True):
    """ptxas' output: the cubin, and what `-v` printed."""

    cubin: bytes
    log: str


class Lowering:
    """One kernel on its way down. `texts` maps stages already reached to their text; `metadata` is Triton's."""

    def __init__(self, source: Source, target: str) -> None:
        from triton._C.libtriton import ir
        from triton.compiler import make_backend

        self.target = gpu_target(target)
        self.fn, self.source = ast_source(source)
        # Triton declares neither a back-end's stages nor its options in its base classes.
        self.backend: Any = make_backend(self.target)
        self.options: Any = self.backend.parse_options(dict(source.options, **self.source.parse_options()))
        self.context = ir.context()
        ir.load_dialects(self.context)
        self.backend.load_dialects(self.context)
        self.metadata: dict[str, Any] = {"target": self.target, **self.options.__dict__}
        self.texts: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        started = time.perf_counter()
        codegen, modules = self.backend.get_codegen_implementation(self.options), self.backend.get_module_map()
        self.module = self.source.make_ir(self.target, self.options, codegen, modules, self.context)
        self.seconds["source"] = time.perf_counter() - started
        stages: dict[str, Callable[[Any, dict[str, Any]], Any]] = {}
        self.backend.add_stages(stages, self.options, self.source.language)
        self._waiting = list(stages.items())

    def run_to(self, stage: str) -> str:
        """Run the back-end's stages up to `stage` (ttir, ttgir, llir, and ptx or its counterpart) and return that stage's text."""
        if stage not in self.texts and stage not in dict(self._waiting):
            raise UsageError(f"no stage {stage!r} for {self.target.backend}:{self.target.arch}")
        while stage not in self.texts:
            name, run = self._waiting.pop(0)
            started = time.perf_counter()
            self.module = run(self.module, self.metadata)
            self.texts[name] = str(self.module)
            self.seconds[name] = time.perf_counter() - started
        return self.texts[stage]

    @property
    def file(self) -> str:
        """The kernel's file as debug locations spell it."""
        return self.fn.fn.__code__.co_filename

    @property
    def assembly_stage(self) -> str:
        """The textual stage before the binary: ptx for NVIDIA, amdgcn for AMD."""
        return "ptx" if self.target.backend == "cuda" else "amdgcn"

    def record(self, stage: str) -> list[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
        """The passes the back-end would run for `stage` now, none of them executed: (name, add function, arguments, keywords)."""
        backend_module = importlib.import_module(type(self.backend).__module__)
        log: list[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        replaced: dict[str, Any] = {"ir": _IrModule(backend_module.ir)}
        for name in ("passes", "nvidia", "amd"):
            if hasattr(backend_module, name):
                replaced[name] = _Recorder(getattr(backend_module, name), name, log)
        if stage == "make_llir":
            replaced["llvm"] = _Llvm()
        saved = {name: getattr(backend_module, name) for name in replaced}
        for name, value in replaced.items():
            setattr(backend_module, name, value)
        try:
            arguments = (self.module, self.metadata, self.options)
            if self.target.backend == "cuda":
                arguments += (self.backend._parse_arch(self.options.arch),)
            getattr(self.backend, stage)(*arguments)
        except _ReachedLlvm:
            pass
        finally:
            for name, value in saved.items():
                setattr(backend_module, name, value)
        return log

    def assemble(self, ptx: str, *, keep: bool = True) -> MachineCode:
        """ptxas on `ptx`, with the flags `make_cubin` uses. Raises RuntimeError with ptxas' own message."""
        from triton.backends.nvidia import compiler

        arch = self.target.arch
        flags = ["-lineinfo", "-v", *([] if self.options.enable_fp_fusion else ["--fmad=false"])]
        flags += (self.options.ptx_options or "").split()
        with tempfile.TemporaryDirectory(prefix="leadline-ptxas-") as folder:
            path = os.path.join(folder, "kernel.ptx")
            with open(path, "w", encoding="utf-8") as file:
                file.write(ptx)
            output = os.path.join(folder, "kernel.cubin")
            name = f"--gpu-name={compiler.sm_arch_from_capability(arch)}"
            done = subprocess.run([compiler.get_ptxas(arch).path, *flags, name, path, "-o", output], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError("ptxas: " + (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[0])
            with open(output, "rb") as file:
                return MachineCode(cubin=file.read() if keep else b"", log=done.stderr)

    def disassemble(self, cubin: bytes) -> str:
        """SASS with `//## File` lines and branch labels. Raises RuntimeError when the tool refuses."""
        from triton import knobs

        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            done = subprocess.run([knobs.nvidia.nvdisasm.path, "-g", "-c", "-ndf", file.name], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError("nvdisasm: " + (done.stderr.strip().splitlines() or ["failed"])[0])
        return done.stdout


class Pass(Record, frozen=True):
    """One pass that has just run: the module is live in `Lowering.module`."""

    stage: str
    name: str
    seconds: float
    log: str  # what it wrote to descriptor 2


def run_passes(lowering: Lowering, stages: tuple[str, ...], before: Callable[[str, str, bool], None]) -> Iterator[Pass]:
    """Replay the recorded passes one at a time, in exactly the back-end's order.

    `before(stage, name, last)` is called first; `last`: no later pass of this stage has that name.
    """
    from triton._C.libtriton import ir

    for stage in stages:
        recorded = lowering.record(stage)
        names = [name.rsplit(".", 1)[-1].removeprefix("add_") for name, *_ in recorded]
        for i, (_, add, arguments, keywords) in enumerate(recorded):
            short = names[i]
            manager = ir.pass_manager(lowering.module.context)
            add(manager, *arguments, **keywords)
            before(stage, short, short not in names[i + 1 :])
            started = time.perf_counter()
            with CapturedDescriptor() as captured:
                try:
                    manager.run(lowering.module, short)
                except RuntimeError as error:
                    raise RuntimeError(f"pass {short} failed: {_first_error(captured.read()) or error}") from error
            yield Pass(stage=stage, name=short, seconds=time.perf_counter() - started, log=captured.text)


class CapturedDescriptor:
    """Collects what this process writes to file descriptor 2 (the C++ side does not go through sys.stderr)."""

    text = ""

    def __enter__(self) -> "CapturedDescriptor":
        sys.stderr.flush()
        self._file = tempfile.TemporaryFile()
        self._saved = os.dup(2)
        os.dup2(self._file.fileno(), 2)
        return self

    def read(self) -> str:
        """What has been written so far."""
        return os.pread(self._file.fileno(), 1 << 26, 0).decode(errors="replace")

    def __exit__(self, *_: object) -> None:
        sys.stderr.flush()
        os.dup2(self._saved, 2)
        os.close(self._saved)
        self.text = self.read()
        self._file.close()


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Environment variables for one block; libtriton reads its debugging variables at every pass-manager run."""
    saved = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def gpu_target(target: str) -> Any:
    """A target string as Triton's GPUTarget. Raises `UsageError` for an unknown one."""
    from triton.backends.compiler import GPUTarget

    parsed = parse_target(target)
    if parsed.backend == "ascend":
        raise UsageError(f"target {target!r} is not compiled by this back-end")
    return GPUTarget(parsed.backend, parsed.arch, parsed.warp_size)


_debug_flag_is_on = False


def listening(debug_types: tuple[str, ...]) -> contextlib.AbstractContextManager[None]:
    """Within the block, passes of these LLVM debug types print their decisions, and remarks are on; `()` silences both.

    LLVM's debug flag stays on once set in a process, so silence after that is a type that no pass has.
    """
    global _debug_flag_is_on
    _debug_flag_is_on = _debug_flag_is_on or bool(debug_types)
    values = {"MLIR_ENABLE_DIAGNOSTICS": "warnings,remarks" if debug_types else "none"}
    if _debug_flag_is_on:
        values["TRITON_LLVM_DEBUG_ONLY"] = ",".join(debug_types) or "none"
    return environment(**values)


def _first_error(log: str) -> str:
    found = re.search(r"error: (.*)", log)
    return found[1] if found else ""


class _ReachedLlvm(Exception):
    """Raised by the stand-in for `llvm`, so that recording `make_llir` stops where the module leaves MLIR."""


class _Recorder:
    """Stand-in for a module of passes: `add_xxx(pm, ...)` is written down and not executed."""

    def __init__(self, real: Any, name: str, log: list[Any]) -> None:
        self._real, self._name, self._log = real, name, log

    def __getattr__(self, key: str) -> Any:
        value = getattr(self._real, key)
        name = f"{self._name}.{key}"
        if isinstance(value, types.ModuleType):
            return _Recorder(value, name, self._log)
        if callable(value) and key.startswith("add_"):
            return lambda _, *arguments, **keywords: self._log.append((name, value, arguments, keywords))
        return value


class _NoPassManager:
    def enable_debug(self) -> bool:
        return False

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *arguments, **keywords: None


class _IrModule:
    """Triton's `ir` module with pass managers that do nothing."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def pass_manager(self, _: Any) -> _NoPassManager:
        return _NoPassManager()

    def __getattr__(self, key: str) -> Any:
        return getattr(self._real, key)


class _Llvm:
    def __getattr__(self, _: str) -> Any:
        raise _ReachedLlvm
