"""Forward of group norm as liger-kernel ships it."""

import torch
from liger_kernel.ops.group_norm import group_norm_forward

CASES = {"image": {"m": 16, "n": 128 * 64 * 64}}
SMALL = {"tiny": {"m": 2, "n": 128 * 8}}
TOLERANCE = {"rtol": 1e-3, "atol": 1e-3}


def launch(x, w, b):
    return group_norm_forward(x, 128, 32, w, b, 1e-5)[0]


def reference(x, w, b):
    return torch.nn.functional.group_norm(x, 32, w, b, 1e-5)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return {"x": torch.randn(m, 128, n // 128, device=device), "w": torch.randn(128, device=device), "b": torch.randn(128, device=device)}
