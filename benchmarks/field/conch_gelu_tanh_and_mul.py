"""GELU (tanh form) and product as conch-triton-kernels ships it (in fp32: its `libdevice.tanh` takes no fp16)."""

import torch
from conch.ops.activation.gelu_tanh_and_mul import gelu_tanh_and_mul

CASES = {"serve": {"m": 4096, "n": 22016}}
SMALL = {"tiny": {"m": 5, "n": 96}}
TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}


def launch(x):
    return gelu_tanh_and_mul(x)


def reference(x):
    half = x.shape[-1] // 2
    return (torch.nn.functional.gelu(x[..., :half].float(), approximate="tanh") * x[..., half:].float()).to(x.dtype)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return {"x": torch.randn(m, n, device=device, dtype=torch.float32)}
