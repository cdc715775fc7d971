"""Backward of SwiGLU as liger-kernel ships it (it overwrites its inputs)."""

import torch
from liger_kernel.ops.swiglu import swiglu_backward

CASES = {"train": {"m": 8192, "n": 11008}}
SMALL = {"tiny": {"m": 5, "n": 96}}
TOLERANCE = {"rtol": 3e-2, "atol": 5e-2}


def launch(a, b, dc):
    return swiglu_backward(a.clone(), b.clone(), dc)


def reference(a, b, dc):
    wide, gate, grad = a.float(), b.float(), dc.float()
    s = torch.sigmoid(wide)
    return (grad * (wide * s * (1 - s) + s) * gate).to(a.dtype), (grad * wide * s).to(b.dtype)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return {name: torch.randn(m, n, device=device, dtype=torch.bfloat16) for name in ("a", "b", "dc")}
