"""Examples of GRD102 serial-loop."""

from leadline.rules.base import Example

BEFORE = '''import torch
import triton
import triton.language as tl

CASES = {"m256_n4096_fp16": dict(m=256, n=4096)}
SMALL = {"tiny": dict(m=32, n=64), "odd": dict(m=37, n=77)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def normalise_kernel(x_ptr, y_ptr, m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    for i in range(ROWS):
        # rows know nothing of each other
        row = program * ROWS + i
        if row < m:
            x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0).to(tl.float32)
            scale = tl.rsqrt(tl.sum(x * x, 0) / n + 1e-6)
            tl.store(y_ptr + row * n + columns, x * scale, mask=columns < n)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(m, n, device=device, dtype=torch.float16))


def reference(x):
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(1, keepdim=True) + 1e-6)).to(x.dtype)


def launch(x):
    y = torch.empty_like(x)
    m, n = x.shape
    normalise_kernel[(triton.cdiv(m, 32),)](x, y, m, n, ROWS=32, BLOCK=triton.next_power_of_2(n), num_warps=8)
    return y
'''

AFTER = '''import torch
import triton
import triton.language as tl

CASES = {"m256_n4096_fp16": dict(m=256, n=4096)}
SMALL = {"tiny": dict(m=32, n=64), "odd": dict(m=37, n=77)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def normalise_kernel(x_ptr, y_ptr, m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    # rows know nothing of each other
    row = tl.program_id(0)
    if row < m:
        x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, 0) / n + 1e-6)
        tl.store(y_ptr + row * n + columns, x * scale, mask=columns < n)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(m, n, device=device, dtype=torch.float16))


def reference(x):
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(1, keepdim=True) + 1e-6)).to(x.dtype)


def launch(x):
    y = torch.empty_like(x)
    m, n = x.shape
    normalise_kernel[(triton.cdiv(m, 32) * 32,)](x, y, m, n, ROWS=32, BLOCK=triton.next_power_of_2(n), num_warps=8)
    return y
'''

EXAMPLES = (
    Example(title="independent rows in a loop", before=BEFORE, line=14, after=AFTER, rewrite=0, grade="observed"),
    Example(title="independent rows in a loop, mended", before=AFTER),
)
