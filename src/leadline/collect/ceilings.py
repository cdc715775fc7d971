"""What devices can do, before one has been measured: stand-ins, always marked as predicted.

The peaks are the vendors' published figures as commonly quoted, not checked against the sheets again. The rates are what good kernels
are expected to reach: 80-90 % of the memory bandwidth for a copy, about 75 % of the dense tensor rate for a large matrix product. L2
rates are not published; that of cuda:90 was fitted to timings of some twenty kernels on an H200, the others are in proportion. Only
cuda:90 has met a device (H200, torch 2.11, 2026-12-02: a large copy moved 4.26e12 B/s).
"""

from leadline.errors import UsageError
from leadline.model import Ceilings

_TABLE = {
    # NVIDIA H200 data sheet (SXM): 4.8 TB/s HBM3e, 989 TFLOP/s dense fp16, 495 tf32, 1979 fp8 and int8, 67 fp32, 34 fp64; Hopper tuning
    # guide: 132 SMs, 50 MB L2, 228 KB shared memory, 65536 registers and 2048 threads per SM.
    "cuda:90": Ceilings(
        device="NVIDIA H200", copy_bytes_per_s=4.3e12, l2_bytes_per_s=7.5e12,
        matmul_flops={"fp16": 7.5e14, "bf16": 7.5e14, "tf32": 3.7e14, "fp8": 1.4e15, "int8": 1.4e15, "fp64": 5.0e13},
        fma_flops=5.5e13, launch_us=3.0, sms=132, l2_bytes=50 << 20, smem_per_sm=228 << 10, regs_per_sm=65536, threads_per_sm=2048),
    # NVIDIA A100 80 GB data sheet (SXM): 2.04 TB/s HBM2e, 312 TFLOP/s dense fp16, 156 tf32, 624 int8, 19.5 fp32 and fp64 tensor;
    # Ampere tuning guide: 108 SMs, 40 MB L2, 164 KB shared memory.
    "cuda:80": Ceilings(
        device="NVIDIA A100", copy_bytes_per_s=1.7e12, l2_bytes_per_s=5.0e12,
        matmul_flops={"fp16": 2.5e14, "bf16": 2.5e14, "tf32": 1.25e14, "int8": 5.0e14, "fp64": 1.7e13},
        fma_flops=1.75e13, launch_us=3.5, sms=108, l2_bytes=40 << 20, smem_per_sm=164 << 10, regs_per_sm=65536, threads_per_sm=2048),
    # NVIDIA B200 data sheet (per GPU of HGX): 8 TB/s HBM3e, 2250 TFLOP/s dense fp16, 1100 tf32, 4500 fp8, 80 fp32, 40 fp64;
    # Blackwell tuning guide: 148 SMs, 126 MB L2, 228 KB shared memory.
    "cuda:100": Ceilings(
        device="NVIDIA B200", copy_bytes_per_s=6.6e12, l2_bytes_per_s=1.2e13,
        matmul_flops={"fp16": 1.65e15, "bf16": 1.65e15, "tf32": 8.0e14, "fp8": 3.3e15, "int8": 3.3e15, "fp64": 3.5e13},
        fma_flops=6.6e13, launch_us=3.0, sms=148, l2_bytes=126 << 20, smem_per_sm=228 << 10, regs_per_sm=65536, threads_per_sm=2048),
    # AMD Instinct MI300X data sheet: 5.3 TB/s HBM3, 1307 TFLOP/s dense fp16, 654 tf32, 2615 fp8, 163 fp32 and fp64 (vector 163 and 82);
    # CDNA 3 white paper: 304 compute units, 4 MB L2 per die (the 256 MB cache behind them is what re-reads meet), 64 KB LDS,
    # 512 KB registers, 2048 work-items per unit.
    "hip:gfx942": Ceilings(
        device="AMD Instinct MI300X", copy_bytes_per_s=4.0e12, l2_bytes_per_s=1.0e13,
        matmul_flops={"fp16": 7.0e14, "bf16": 7.0e14, "tf32": 3.5e14, "fp8": 1.3e15, "int8": 1.3e15, "fp64": 8.0e13},
        fma_flops=1.2e14, launch_us=5.0, sms=304, l2_bytes=256 << 20, smem_per_sm=64 << 10, regs_per_sm=131072, threads_per_sm=2048),
}  # fmt: skip


def predicted(target: str) -> Ceilings:
    """The table's entry for a target such as "cuda:90" (`predicted=True`). Raises UsageError for a target it does not have."""
    found = _TABLE.get(target.removesuffix("a"))
    if found is None:
        raise UsageError(f"no ceilings are known for target {target!r}", remedy=f"use one of {', '.join(_TABLE)}")
    return found


def matmul_rate(ceilings: Ceilings, dtype: str) -> float:
    """FLOP/s of a matrix product with operands of Triton's `dtype` ("fp16", "fp8e4nv", "i8", "fp32" ...).

    A type without tensor units runs at the FMA rate.
    """
    rates = ceilings.matmul_flops
    if dtype.startswith("fp8"):
        return rates.get("fp8", rates.get("fp16", ceilings.fma_flops))
    name = {"i8": "int8", "u8": "int8", "int8": "int8"}.get(dtype, dtype)
    return rates.get(name, ceilings.fma_flops)
