"""Scaled int8 matrix product as conch-triton-kernels ships it."""

import torch
from conch.ops.quantization.gemm import scaled_gemm

CASES = {"serve": {"m": 4096, "n": 4096, "k": 4096}}
SMALL = {"tiny": {"m": 32, "n": 32, "k": 64}}
TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}


def launch(a, b, scale_a, scale_b):
    return scaled_gemm(a, b, scale_a, scale_b, torch.float16)


def reference(a, b, scale_a, scale_b):
    return ((a.float() @ b.float()) * scale_a * scale_b).half()


def make_inputs(*, device, seed, m, n, k):
    torch.manual_seed(seed)
    a, b = (torch.randint(-8, 8, shape, device=device, dtype=torch.int8) for shape in ((m, k), (k, n)))
    return {"a": a, "b": b, "scale_a": torch.full((1,), 0.02, device=device), "scale_b": torch.full((1,), 0.03, device=device)}
