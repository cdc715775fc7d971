"""Root-mean-square normalisation of attention heads: 72 elements a head, so rows start at multiples of 8 elements, not of 16.

A plain, correct kernel as one would write it first. `make demo` lets Leadline look at it.
"""

import torch
import triton
import triton.language as tl

CASES = {"prefill": dict(tokens=131072, heads=8, size=72), "decode": dict(tokens=4096, heads=8, size=72)}
SMALL = {"tiny": dict(tokens=3, heads=4, size=72), "odd": dict(tokens=5, heads=1, size=40)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def head_norm_kernel(x_ptr, weight_ptr, out_ptr, rows, size, row_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)
    # rows are short, so one program takes several of them
    keep = (row < rows)[:, None] & (col < size)[None, :]
    x = tl.load(x_ptr + row[:, None] * row_stride + col[None, :], mask=keep, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + col, mask=col < size, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / size + 1e-6)
    tl.store(out_ptr + row[:, None] * row_stride + col[None, :], (x * scale[:, None] * weight[None, :]).to(tl.float16), mask=keep)


def launch(x, weight):
    tokens, heads, size = x.shape
    out = torch.empty_like(x)
    rows = tokens * heads
    head_norm_kernel[(triton.cdiv(rows, 32),)](x, weight, out, rows, size, x.stride(1), ROWS=32, BLOCK=triton.next_power_of_2(size))
    return out


def reference(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()).to(x.dtype)


def make_inputs(*, device, seed, tokens, heads, size):
    torch.manual_seed(seed)
    return dict(
        x=torch.randn(tokens, heads, size, device=device, dtype=torch.float16),
        weight=torch.randn(size, device=device, dtype=torch.float16),
    )
