"""Examples of TIL101 register-spill."""

from leadline.rules.base import Example

BEFORE = """import torch
import triton
import triton.language as tl

CASES = {"m4096_n4096_k1024_fp16": dict(m=4096, n=4096, k=1024)}
SMALL = {"tiny": dict(m=256, n=256, k=32), "odd": dict(m=300, n=270, k=45)}
TOLERANCE = dict(rtol=2e-2, atol=1e-1)


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, m, n, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, k, DEPTH):
        depth = first + tl.arange(0, DEPTH)
        a = tl.load(a_ptr + rows[:, None] * k + depth[None, :], mask=(rows[:, None] < m) & (depth[None, :] < k), other=0.0)
        b = tl.load(b_ptr + depth[:, None] * n + columns[None, :], mask=(depth[:, None] < k) & (columns[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], acc.to(tl.float16), mask=inside)


def make_inputs(*, device, seed, m, n, k):
    torch.manual_seed(seed)
    return dict(a=torch.randn(m, k, device=device, dtype=torch.float16), b=torch.randn(k, n, device=device, dtype=torch.float16))


def reference(a, b):
    return (a.float() @ b.float()).to(a.dtype)


def launch(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=a.dtype)
    product_kernel[(triton.cdiv(m, 256), triton.cdiv(n, 128))](a, b, c, m, n, k, ROWS=256, COLUMNS=128, DEPTH=32, num_warps=4)
    return c
"""

AFTER = """import torch
import triton
import triton.language as tl

CASES = {"m4096_n4096_k1024_fp16": dict(m=4096, n=4096, k=1024)}
SMALL = {"tiny": dict(m=256, n=256, k=32), "odd": dict(m=300, n=270, k=45)}
TOLERANCE = dict(rtol=2e-2, atol=1e-1)


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, m, n, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, k, DEPTH):
        depth = first + tl.arange(0, DEPTH)
        a = tl.load(a_ptr + rows[:, None] * k + depth[None, :], mask=(rows[:, None] < m) & (depth[None, :] < k), other=0.0)
        b = tl.load(b_ptr + depth[:, None] * n + columns[None, :], mask=(depth[:, None] < k) & (columns[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], acc.to(tl.float16), mask=inside)


def make_inputs(*, device, seed, m, n, k):
    torch.manual_seed(seed)
    return dict(a=torch.randn(m, k, device=device, dtype=torch.float16), b=torch.randn(k, n, device=device, dtype=torch.float16))


def reference(a, b):
    return (a.float() @ b.float()).to(a.dtype)


def launch(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=a.dtype)
    product_kernel[(triton.cdiv(m, 256), triton.cdiv(n, 128))](a, b, c, m, n, k, ROWS=256, COLUMNS=128, DEPTH=32, num_warps=8)
    return c
"""

EXAMPLES = (
    Example(title="a large tile on four warps", before=BEFORE, line=16, after=AFTER, rewrite=0, grade="located"),
    Example(title="a large tile on four warps, mended", before=AFTER),
)
