"""What compiling costs: first calls with an empty cache. Runs once in a fresh device worker."""

import tempfile
import time
from typing import Any

from leadline.collect.device import CudaDevice, fresh_cache, wake_driver
from leadline.verify.records import ColdRequest, ColdResult


def first_calls(request: ColdRequest) -> ColdResult:
    """Seconds of the first call of `launch` on each case, compile included, in the order given.

    Raises EvidenceError without a device and KernelError when the file cannot be imported.
    """
    with tempfile.TemporaryDirectory(prefix="leadline-cold-") as folder:
        fresh_cache(folder)
        device = CudaDevice()
        device.flush()
        device.synchronize()
        wake_driver()
        from leadline.verify.program import load_original

        program = load_original(request.case, request.text)
        compiled = _Compiles()
        seconds = {}
        for name in request.cases or tuple(program.cases):
            inputs = program.inputs(name, "cuda", request.seed)
            device.synchronize()
            start = time.perf_counter()
            program.launch(**inputs)
            device.synchronize()
            seconds[name] = time.perf_counter() - start
        return ColdResult(seconds=seconds, compiled=compiled.count)


class _Compiles:
    """Counts kernels that the JIT compiled, by its own hook where it has one."""

    def __init__(self) -> None:
        self.count = 0
        try:
            from triton import knobs

            previous = knobs.runtime.jit_post_compile_hook

            def hook(*args: Any, **kwargs: Any) -> bool | None:
                self.count += 1
                return previous(*args, **kwargs) if callable(previous) else None

            knobs.runtime.jit_post_compile_hook = hook
        except (ImportError, AttributeError):
            self.count = 0
