"""Examples of TIL103 tile-too-small."""

from leadline.rules.base import Example

BEFORE = '''import torch
import triton
import triton.language as tl

CASES = {"m8192_n8192_fp16": dict(m=8192, n=8192)}
SMALL = {"tiny": dict(m=8, n=64), "odd": dict(m=13, n=77)}
TOLERANCE = dict(rtol=1e-3, atol=1e-3)


@triton.jit
def mean_kernel(x_ptr, y_ptr, m, n, ROWS: tl.constexpr, STEP: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    acc = tl.zeros((ROWS, STEP), tl.float32)
    for first in range(0, n, STEP):
        columns = first + tl.arange(0, STEP)
        inside = (rows[:, None] < m) & (columns[None, :] < n)
        acc += tl.load(x_ptr + rows[:, None] * n + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + rows, tl.sum(acc, 1) / n, mask=rows < m)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(m, n, device=device, dtype=torch.float16))


def reference(x):
    return x.float().mean(1)


def launch(x):
    m, n = x.shape
    y = torch.empty(m, device=x.device, dtype=torch.float32)
    mean_kernel[(triton.cdiv(m, 4),)](x, y, m, n, ROWS=4, STEP=16, num_warps=4)
    return y
'''

AFTER = '''import torch
import triton
import triton.language as tl

CASES = {"m8192_n8192_fp16": dict(m=8192, n=8192)}
SMALL = {"tiny": dict(m=8, n=64), "odd": dict(m=13, n=77)}
TOLERANCE = dict(rtol=1e-3, atol=1e-3)


@triton.jit
def mean_kernel(x_ptr, y_ptr, m, n, ROWS: tl.constexpr, STEP: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    acc = tl.zeros((ROWS, STEP), tl.float32)
    for first in range(0, n, STEP):
        columns = first + tl.arange(0, STEP)
        inside = (rows[:, None] < m) & (columns[None, :] < n)
        acc += tl.load(x_ptr + rows[:, None] * n + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + rows, tl.sum(acc, 1) / n, mask=rows < m)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(m, n, device=device, dtype=torch.float16))


def reference(x):
    return x.float().mean(1)


def launch(x):
    m, n = x.shape
    y = torch.empty(m, device=x.device, dtype=torch.float32)
    mean_kernel[(triton.cdiv(m, 4),)](x, y, m, n, ROWS=4, STEP=1024, num_warps=8)
    return y
'''

EXAMPLES = (
    Example(title="sixteen columns a step", before=BEFORE, line=14, after=AFTER, rewrite=0, grade="observed"),
    Example(title="sixteen columns a step, mended", before=AFTER),
)
