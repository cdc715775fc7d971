"""Examples of GRD103 tiny-programs."""

from leadline.rules.base import Example

BEFORE = '''import torch
import triton
import triton.language as tl

CASES = {"t16384_h32_d128_fp16": dict(t=16384, h=32, d=128)}
SMALL = {"tiny": dict(t=3, h=8, d=16), "odd": dict(t=5, h=3, d=16)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def gate_kernel(x_ptr, gate_ptr, y_ptr, HEADS: tl.constexpr, D: tl.constexpr):
    token = tl.program_id(0)
    # all heads of a token share one gate
    gate = tl.load(gate_ptr + token * D + tl.arange(0, D))
    head = tl.program_id(1)
    offsets = (token * HEADS + head) * D + tl.arange(0, D)
    x = tl.load(x_ptr + offsets)
    tl.store(y_ptr + offsets, x * gate)


def make_inputs(*, device, seed, t, h, d):
    torch.manual_seed(seed)
    x = torch.randn(t, h, d, device=device, dtype=torch.float16)
    return dict(x=x, gate=torch.rand(t, d, device=device, dtype=torch.float16))


def reference(x, gate):
    return x * gate[:, None, :]


def launch(x, gate):
    t, h, d = x.shape
    y = torch.empty_like(x)
    gate_kernel[(t, h)](x, gate, y, HEADS=h, D=d, num_warps=8)
    return y
'''

AFTER = '''import torch
import triton
import triton.language as tl

CASES = {"t16384_h32_d128_fp16": dict(t=16384, h=32, d=128)}
SMALL = {"tiny": dict(t=3, h=8, d=16), "odd": dict(t=5, h=3, d=16)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def gate_kernel(x_ptr, gate_ptr, y_ptr, HEADS: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr):
    token = tl.program_id(0)
    # all heads of a token share one gate
    gate = tl.load(gate_ptr + token * D + tl.arange(0, D))
    for g in tl.static_range(GROUP):
        head = tl.program_id(1) * GROUP + g
        offsets = (token * HEADS + head) * D + tl.arange(0, D)
        x = tl.load(x_ptr + offsets)
        tl.store(y_ptr + offsets, x * gate)


def make_inputs(*, device, seed, t, h, d):
    torch.manual_seed(seed)
    x = torch.randn(t, h, d, device=device, dtype=torch.float16)
    return dict(x=x, gate=torch.rand(t, d, device=device, dtype=torch.float16))


def reference(x, gate):
    return x * gate[:, None, :]


def launch(x, gate):
    t, h, d = x.shape
    y = torch.empty_like(x)
    gate_kernel[(t, h // (8 if h % 8 == 0 else 1))](x, gate, y, HEADS=h, D=d, num_warps=2, GROUP=8 if h % 8 == 0 else 1)
    return y
'''

EXAMPLES = (
    Example(title="a program per head", before=BEFORE, line=15, after=AFTER, rewrite=0, grade="observed"),
    Example(title="a program per head, mended", before=AFTER),
)
