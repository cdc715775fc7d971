"""Rotary embedding as conch-triton-kernels ships it."""

import torch
from conch.ops.embedding.rotary_embedding import rotary_embedding

CASES = {"serve": {"m": 4096, "n": 32}}
SMALL = {"tiny": {"m": 5, "n": 4}}
TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}


def launch(positions, q, k, cache):
    return rotary_embedding(positions, q, k, 128, cache)


def reference(positions, q, k, cache):
    cos, sin = cache[positions].chunk(2, -1)

    def turned(x):
        heads = x.view(x.shape[0], -1, 128).float()
        a, b = heads[..., :64], heads[..., 64:]
        c, s = cos.float()[:, None], sin.float()[:, None]
        return torch.cat((a * c - b * s, b * c + a * s), -1).view_as(x).to(x.dtype)

    return turned(q), turned(k)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    angle = torch.arange(8192)[:, None] * (10000.0 ** (-torch.arange(64) / 64))[None, :]
    cache = torch.cat((angle.cos(), angle.sin()), -1).to(device, torch.float16)
    half = {"device": device, "dtype": torch.float16}
    positions = torch.randint(0, 8192, (m,), device=device)
    return {"positions": positions, "q": torch.randn(m, n * 128, **half), "k": torch.randn(m, n * 32, **half), "cache": cache}
