"""Forward of GeGLU as liger-kernel ships it."""

import torch
from liger_kernel.ops.geglu import geglu_forward

CASES = {"train": {"m": 8192, "n": 11008}}
SMALL = {"tiny": {"m": 5, "n": 96}}
TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}


def launch(a, b):
    return geglu_forward(a, b)[2]


def reference(a, b):
    return (torch.nn.functional.gelu(a.float(), approximate="tanh") * b.float()).to(a.dtype)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return {"a": torch.randn(m, n, device=device, dtype=torch.bfloat16), "b": torch.randn(m, n, device=device, dtype=torch.bfloat16)}
