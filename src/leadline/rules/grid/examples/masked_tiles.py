"""Examples of GRD104 masked-tiles."""

from leadline.rules.base import Example

BEFORE = '''import torch
import triton
import triton.language as tl

CASES = {"b8_s4096_d64_fp16": dict(b=8, s=4096, d=64)}
SMALL = {"tiny": dict(b=1, s=64, d=16), "odd": dict(b=2, s=75, d=16)}
TOLERANCE = dict(rtol=2e-2, atol=1e-2)


@triton.jit
def attention_kernel(q_ptr, k_ptr, v_ptr, o_ptr, scale, length, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    block = tl.program_id(0)
    base = tl.program_id(1) * length * D
    rows = block * QUERIES + tl.arange(0, QUERIES)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + base + rows[:, None] * D + d[None, :], mask=rows[:, None] < length, other=0.0)
    peak = tl.full((QUERIES,), -1.0e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, D), tl.float32)
    for first in range(0, length, KEYS):
        keys = first + tl.arange(0, KEYS)
        k = tl.load(k_ptr + base + keys[None, :] * D + d[:, None], mask=keys[None, :] < length, other=0.0)
        seen = keys[None, :] <= rows[:, None]  # causal
        scores = tl.where(seen, tl.dot(q, k) * scale, -1.0e30)
        higher = tl.maximum(peak, tl.max(scores, 1))
        p = tl.exp(scores - higher[:, None])
        shrink = tl.exp(peak - higher)
        v = tl.load(v_ptr + base + keys[:, None] * D + d[None, :], mask=keys[:, None] < length, other=0.0)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(tl.float16), v)
        peak = higher
    out = (acc / total[:, None]).to(tl.float16)
    tl.store(o_ptr + base + rows[:, None] * D + d[None, :], out, mask=rows[:, None] < length)


def make_inputs(*, device, seed, b, s, d):
    torch.manual_seed(seed)
    return {name: torch.randn(b, s, d, device=device, dtype=torch.float16) for name in ("q", "k", "v")}


def reference(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True).to(q.dtype)


def launch(q, k, v):
    b, s, d = q.shape
    o = torch.empty_like(q)
    attention_kernel[(triton.cdiv(s, 64), b)](q, k, v, o, d**-0.5, s, D=d, QUERIES=64, KEYS=64, num_warps=4)
    return o
'''

AFTER = '''import torch
import triton
import triton.language as tl

CASES = {"b8_s4096_d64_fp16": dict(b=8, s=4096, d=64)}
SMALL = {"tiny": dict(b=1, s=64, d=16), "odd": dict(b=2, s=75, d=16)}
TOLERANCE = dict(rtol=2e-2, atol=1e-2)


@triton.jit
def attention_kernel(q_ptr, k_ptr, v_ptr, o_ptr, scale, length, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    block = tl.program_id(0)
    base = tl.program_id(1) * length * D
    rows = block * QUERIES + tl.arange(0, QUERIES)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + base + rows[:, None] * D + d[None, :], mask=rows[:, None] < length, other=0.0)
    peak = tl.full((QUERIES,), -1.0e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, D), tl.float32)
    for first in range(0, tl.minimum(block * QUERIES + QUERIES, length), KEYS):
        keys = first + tl.arange(0, KEYS)
        k = tl.load(k_ptr + base + keys[None, :] * D + d[:, None], mask=keys[None, :] < length, other=0.0)
        seen = keys[None, :] <= rows[:, None]  # causal
        scores = tl.where(seen, tl.dot(q, k) * scale, -1.0e30)
        higher = tl.maximum(peak, tl.max(scores, 1))
        p = tl.exp(scores - higher[:, None])
        shrink = tl.exp(peak - higher)
        v = tl.load(v_ptr + base + keys[:, None] * D + d[None, :], mask=keys[:, None] < length, other=0.0)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(tl.float16), v)
        peak = higher
    out = (acc / total[:, None]).to(tl.float16)
    tl.store(o_ptr + base + rows[:, None] * D + d[None, :], out, mask=rows[:, None] < length)


def make_inputs(*, device, seed, b, s, d):
    torch.manual_seed(seed)
    return {name: torch.randn(b, s, d, device=device, dtype=torch.float16) for name in ("q", "k", "v")}


def reference(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True).to(q.dtype)


def launch(q, k, v):
    b, s, d = q.shape
    o = torch.empty_like(q)
    attention_kernel[(triton.cdiv(s, 64), b)](q, k, v, o, d**-0.5, s, D=d, QUERIES=64, KEYS=64, num_warps=4)
    return o
'''

EXAMPLES = (
    Example(title="a causal loop over all keys", before=BEFORE, line=20, after=AFTER, rewrite=0, grade="observed"),
    Example(title="a causal loop over all keys, mended", before=AFTER),
)
