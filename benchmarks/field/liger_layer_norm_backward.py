"""Backward of layer norm as liger-kernel ships it."""

import torch
from liger_kernel.ops.layer_norm import layer_norm_backward

CASES = {"train": {"m": 8192, "n": 4096}}
SMALL = {"tiny": {"m": 5, "n": 96}}
TOLERANCE = {"rtol": 1e-3, "atol": 1e-2}


def launch(dy, x, w, b, mean, rstd):
    return layer_norm_backward(dy, x, w, b, mean, rstd)


def reference(dy, x, w, b, mean, rstd):
    wide, g = x.float(), dy.float()
    hat = (wide - mean[:, None]) * rstd[:, None]
    gw = g * w.float()
    dx = (gw - gw.mean(1, keepdim=True) - hat * (gw * hat).mean(1, keepdim=True)) * rstd[:, None]
    return dx.to(x.dtype), (g * hat).sum(0).to(w.dtype), g.sum(0).to(b.dtype)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    x = torch.randn(m, n, device=device)
    return {"dy": torch.randn(m, n, device=device), "x": x, "w": torch.randn(n, device=device), "b": torch.randn(n, device=device),
                "mean": x.mean(1), "rstd": torch.rsqrt(x.var(1, unbiased=False) + 1e-5)}
