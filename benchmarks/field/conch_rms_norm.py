"""RMS norm as conch-triton-kernels ships it."""

import torch
from conch.ops.normalization.rms_norm import rms_norm

CASES = {"serve": {"m": 4096, "n": 4096}}
SMALL = {"tiny": {"m": 5, "n": 96}}
TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}


def launch(x, w):
    return rms_norm(x, w, 1e-6)


def reference(x, w):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return {"x": torch.randn(m, n, device=device, dtype=torch.float16), "w": torch.randn(n, device=device, dtype=torch.float16)}
