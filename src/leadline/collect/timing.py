"""Level 2 on a real device: time of each launch, of the wrapper, and what the device can do. Runs in device workers."""

import hashlib
import importlib
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from leadline.collect.device import CudaDevice, launches, no_device
from leadline.collect.timing_request import ProfileRequest
from leadline.errors import KernelError, LeadlineError
from leadline.execution.frames import one_line, user_frame
from leadline.model import Ceilings, LaunchTiming, Profile

_MIN_RUNS = 9
_MAX_RUNS = 60
_HOLD_US = 300.0  # covers the host time of most wrappers, so that stamps see the device alone; more where one takes longer
_MAX_HOLD_US = 5000.0


def profile(request: ProfileRequest) -> Profile:
    """Median, low and high time of every launch of one case, the wrapper's device and host time, noise, clocks and ceilings.

    Raises EvidenceError ("device timing: no CUDA device here; ...") without a device and KernelError when the case fails.
    """
    if not torch.cuda.is_available():
        raise no_device()
    device = CudaDevice()
    call = prepare(request, "cuda")
    measured = profile_on(device, launches(), call, request)
    kept = ceilings(device, request.store)
    return msgspec.structs.replace(measured, ceilings=kept, clocks_mhz=device.clocks_mhz())


def prepare(request: ProfileRequest, device: str) -> Callable[[], Any]:
    """The wrapper of the case bound to its inputs on `device`. Raises KernelError naming what is missing or failed."""
    name = request.case_name
    module, _, function = request.loader.partition(":")
    program = getattr(importlib.import_module(module), function)(request.case, request.case.source)
    arguments = program.arguments(name)
    try:
        inputs = program.make_inputs(device=device, seed=request.seed, **arguments)
    except Exception as error:
        text = f"make_inputs fails in case {name}: {type(error).__name__}: {one_line(error)}"
        raise KernelError(text, where=user_frame(error)) from None
    return lambda: program.launch(**inputs)


def profile_on(device: Any, hook: Any, call: Callable[[], Any], request: ProfileRequest) -> Profile:
    """`profile` on any device and launch hook: the seam that tests use.

    Two passes: the wrapper as a whole, then every launch between stamps of its own (which widen the gaps between launches).
    """
    name = request.case_name
    try:
        for _ in range(3):
            call()  # compile and tune
        device.synchronize()
        begun = device.now()
        call()
        hold = min(_MAX_HOLD_US, max(_HOLD_US, 2.0e6 * (device.now() - begun) + 30.0))
        device.synchronize()
    except LeadlineError:
        raise
    except Exception as error:
        raise KernelError(f"the kernel fails in case {name}: {type(error).__name__}: {one_line(error)}", where=user_frame(error)) from None
    began = device.now()
    totals, walls = [], []
    while len(totals) < _MIN_RUNS or (device.now() - began < request.budget_s / 2 and len(totals) < _MAX_RUNS):
        device.hold(hold)
        device.flush()
        start = device.event()
        call()
        end = device.event()
        device.synchronize()
        totals.append(device.elapsed_us(start, end))
        at = device.now()
        call()
        device.synchronize()
        walls.append((device.now() - at) * 1e6)
    per_launch: list[list[float]] = []
    kernels: list[str] = []
    began, runs = device.now(), 0
    while runs < _MIN_RUNS or (device.now() - began < request.budget_s / 2 and runs < _MAX_RUNS):
        device.hold(hold)
        device.flush()
        with hook.stamped(device) as stamps:
            call()
        device.synchronize()
        times = [device.elapsed_us(a, b) for _, a, b in stamps]
        if not per_launch:
            per_launch, kernels = [[] for _ in times], [kernel for kernel, _, _ in stamps]
        if len(times) == len(per_launch):  # a wrapper may launch a varying number of kernels
            for series, value in zip(per_launch, times, strict=True):
                series.append(value)
        runs += 1
    empty = _empty_pair(device)
    timed = tuple(
        LaunchTiming(launch=i, kernel=kernel, runs=len(series), **_quantiles([max(0.0, v - empty) for v in series]))
        for i, (kernel, series) in enumerate(zip(kernels, per_launch, strict=True))
    )
    return Profile(
        device=device.name, case=name, launches=timed, total_us=statistics.median(totals), wall_us=statistics.median(walls),
        noise=_noise(totals),
    )  # fmt: skip


def _empty_pair(device: Any) -> float:
    """Time between two stamps with nothing between them, in microseconds: what stamping itself costs."""
    values = []
    for _ in range(5):
        device.flush()
        start, end = device.event(), device.event()
        device.synchronize()
        values.append(device.elapsed_us(start, end))
    return statistics.median(values)


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return {"median_us": statistics.median(ordered), "low_us": ordered[round(0.1 * last)], "high_us": ordered[round(0.9 * last)]}


def _noise(values: list[float]) -> float:
    """Half the distance of the quartiles, relative to the median."""
    quartiles = statistics.quantiles(values, n=4)
    return (quartiles[2] - quartiles[0]) / 2 / statistics.median(values)


def ceilings(device: CudaDevice, store: str) -> Ceilings:
    """Measured ceilings, kept in `store` by device, driver and torch version."""
    if not store:
        return measure_ceilings(device)
    key = "|".join((device.name, str(torch.version.cuda), _driver(), torch.__version__))
    path = Path(store) / "ceilings" / (hashlib.sha256(key.encode()).hexdigest()[:16] + ".json")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ceilings)
    except (OSError, msgspec.DecodeError):
        measured = measure_ceilings(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(json.dumps(msgspec.to_builtins(measured), indent=1).encode())
    os.replace(temporary, path)
    return measured


def _driver() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return ""


def measure_ceilings(device: CudaDevice) -> Ceilings:
    """Copy bandwidth (bytes read plus written per second) from memory and from L2, matrix rates, launch latency. About a second."""
    big = 1 << 30 if device.free_bytes() > 4 << 30 else 1 << 27
    source = torch.empty(big // 4, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    copy_s = _best(device, lambda: target.copy_(source))
    small = max(1 << 20, device.l2_bytes // 6) // 4

    def near() -> None:
        for _ in range(20):
            target[:small].copy_(source[:small])

    l2_s = _best(device, near, flush=False) / 20
    tiny = torch.zeros(1, device="cuda")

    def burst() -> None:
        for _ in range(50):
            tiny.add_(1)

    launch_us = _best(device, burst) * 1e6 / 50
    p = device.properties
    clock = device.clocks_mhz() or 1500.0
    return Ceilings(
        device=device.name, copy_bytes_per_s=2 * big / copy_s, l2_bytes_per_s=2 * small * 4 / l2_s, matmul_flops=_matmuls(device),
        # 128 fp32 lanes of an SM, two operations each; from the clock, since torch has no kernel that does nothing else
        fma_flops=device.sms * 128 * 2 * clock * 1e6, launch_us=launch_us, sms=device.sms, l2_bytes=device.l2_bytes,
        smem_per_sm=int(getattr(p, "shared_memory_per_multiprocessor", 0) or 228 << 10),
        regs_per_sm=int(getattr(p, "regs_per_multiprocessor", 0) or 65536),
        threads_per_sm=int(getattr(p, "max_threads_per_multi_processor", 0) or 2048), predicted=False,
    )  # fmt: skip


def _best(device: CudaDevice, work: Callable[[], Any], *, flush: bool = True, tries: int = 5) -> float:
    """Seconds of the fastest of a few runs after a warm-up."""
    work()
    best = float("inf")
    for _ in range(tries):
        device.hold(_HOLD_US)
        if flush:
            device.flush()
        start = device.event()
        work()
        end = device.event()
        device.synchronize()
        best = min(best, device.elapsed_us(start, end) * 1e-6)
    return max(best, 1e-9)


def _matmuls(device: CudaDevice, size: int = 8192) -> dict[str, float]:
    rates: dict[str, float] = {}
    flops = 2.0 * size**3
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16), ("tf32", torch.float32)):
        # random data: a product of zeros draws less power and runs faster than real ones do
        a = torch.randn(size, size, device="cuda").to(dtype)
        b = torch.randn(size, size, device="cuda").to(dtype)
        out = torch.empty(size, size, device="cuda", dtype=dtype)
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        try:
            rates[name] = flops / _best(device, lambda a=a, b=b, out=out: torch.matmul(a, b, out=out))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
    try:
        one = torch.ones((), device="cuda")
        a8 = torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn)
        b8 = torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn).t()
        scaled_mm = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]  # torch has no public product of fp8
        rates["fp8"] = flops / _best(device, lambda: scaled_mm(a8, b8, scale_a=one, scale_b=one, out_dtype=torch.bfloat16))
    except Exception:
        rates.pop("fp8", None)  # older parts have none
    return rates
