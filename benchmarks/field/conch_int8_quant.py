"""Static int8 quantisation as conch-triton-kernels ships it."""

import torch
from conch.ops.quantization.int8 import static_scaled_int8_quant

CASES = {"serve": {"m": 4096, "n": 4096}}
SMALL = {"tiny": {"m": 5, "n": 96}}
TOLERANCE = {"rtol": 0, "atol": 1}


def launch(x, scale):
    out = torch.empty(x.shape, device=x.device, dtype=torch.int8)
    static_scaled_int8_quant(out, x, scale)
    return out


def reference(x, scale):
    return torch.clamp(torch.round(x.float() / scale), -128, 127).to(torch.int8)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return {"x": torch.randn(m, n, device=device, dtype=torch.float16), "scale": torch.full((1,), 0.05, device=device)}
