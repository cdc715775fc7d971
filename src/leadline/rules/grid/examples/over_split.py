"""Examples of GRD105 over-split."""

from leadline.rules.base import Example

BEFORE = '''import torch
import triton
import triton.language as tl

CASES = {"m16_n16384_k512_fp16": dict(m=16, n=16384, k=512)}
SMALL = {"tiny": dict(m=16, n=64, k=512), "odd": dict(m=5, n=75, k=512)}
TOLERANCE = dict(rtol=2e-2, atol=3e-1)


@triton.jit
def part_kernel(a_ptr, b_ptr, parts_ptr, m, n, k, share, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(1)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(part * share, (part + 1) * share, DEPTH):
        depth = first + tl.arange(0, DEPTH)
        a = tl.load(a_ptr + rows[:, None] * k + depth[None, :], mask=rows[:, None] < m, other=0.0)
        b = tl.load(b_ptr + depth[:, None] * n + columns[None, :], mask=columns[None, :] < n, other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(parts_ptr + (part * m + rows)[:, None] * n + columns[None, :], acc, mask=inside)


@triton.jit
def sum_kernel(parts_ptr, c_ptr, size, WAYS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for way in range(WAYS):
        acc += tl.load(parts_ptr + way * size + i, mask=i < size, other=0.0)
    tl.store(c_ptr + i, acc.to(tl.float16), mask=i < size)


def make_inputs(*, device, seed, m, n, k):
    torch.manual_seed(seed)
    return dict(a=torch.randn(m, k, device=device, dtype=torch.float16), b=torch.randn(k, n, device=device, dtype=torch.float16))


def reference(a, b):
    return (a.float() @ b.float()).to(a.dtype)


def launch(a, b):
    m, k = a.shape
    n = b.shape[1]
    ways = 8
    parts = torch.empty(ways, m, n, device=a.device, dtype=torch.float32)
    c = torch.empty(m, n, device=a.device, dtype=a.dtype)
    part_kernel[(triton.cdiv(n, 64), ways)](a, b, parts, m, n, k, k // ways, ROWS=16, COLUMNS=64, DEPTH=32, num_warps=4)
    sum_kernel[(triton.cdiv(m * n, 1024),)](parts, c, m * n, WAYS=ways, BLOCK=1024)
    return c
'''

AFTER = '''import torch
import triton
import triton.language as tl

CASES = {"m16_n16384_k512_fp16": dict(m=16, n=16384, k=512)}
SMALL = {"tiny": dict(m=16, n=64, k=512), "odd": dict(m=5, n=75, k=512)}
TOLERANCE = dict(rtol=2e-2, atol=3e-1)


@triton.jit
def part_kernel(a_ptr, b_ptr, parts_ptr, m, n, k, share, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(1)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(part * share, (part + 1) * share, DEPTH):
        depth = first + tl.arange(0, DEPTH)
        a = tl.load(a_ptr + rows[:, None] * k + depth[None, :], mask=rows[:, None] < m, other=0.0)
        b = tl.load(b_ptr + depth[:, None] * n + columns[None, :], mask=columns[None, :] < n, other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(parts_ptr + (part * m + rows)[:, None] * n + columns[None, :], acc, mask=inside)


@triton.jit
def sum_kernel(parts_ptr, c_ptr, size, WAYS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for way in range(WAYS):
        acc += tl.load(parts_ptr + way * size + i, mask=i < size, other=0.0)
    tl.store(c_ptr + i, acc.to(tl.float16), mask=i < size)


def make_inputs(*, device, seed, m, n, k):
    torch.manual_seed(seed)
    return dict(a=torch.randn(m, k, device=device, dtype=torch.float16), b=torch.randn(k, n, device=device, dtype=torch.float16))


def reference(a, b):
    return (a.float() @ b.float()).to(a.dtype)


def launch(a, b):
    m, k = a.shape
    n = b.shape[1]
    ways = 1
    parts = torch.empty(ways, m, n, device=a.device, dtype=torch.float32)
    c = torch.empty(m, n, device=a.device, dtype=a.dtype)
    part_kernel[(triton.cdiv(n, 64), ways)](a, b, parts, m, n, k, k // ways, ROWS=16, COLUMNS=64, DEPTH=32, num_warps=4)
    sum_kernel[(triton.cdiv(m * n, 1024),)](parts, c, m * n, WAYS=ways, BLOCK=1024)
    return c
'''

EXAMPLES = (
    Example(title="eight partial results of a short sum", before=BEFORE, line=22, after=AFTER, rewrite=0, grade="observed"),
    Example(title="eight partial results of a short sum, mended", before=AFTER),
)
