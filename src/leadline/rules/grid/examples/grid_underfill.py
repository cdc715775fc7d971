"""Examples of GRD101 grid-underfill."""

from leadline.rules.base import Example

BEFORE = '''import torch
import triton
import triton.language as tl

CASES = {"m8_n4194304_fp32": dict(m=8, n=4194304)}
SMALL = {"tiny": dict(m=2, n=64), "odd": dict(m=3, n=9777)}
TOLERANCE = dict(rtol=1e-3, atol=1e-2)


@triton.jit
def energy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0)
        acc += x * x
    tl.store(y_ptr + row, tl.sum(acc, 0))


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(m, n, device=device))


def reference(x):
    return x.double().pow(2).sum(1).float()


def launch(x):
    m, n = x.shape
    y = torch.empty(m, device=x.device, dtype=torch.float32)
    energy_kernel[(m,)](x, y, n, BLOCK=1024, num_warps=4)
    return y
'''

AFTER = '''import torch
import triton
import triton.language as tl

CASES = {"m8_n4194304_fp32": dict(m=8, n=4194304)}
SMALL = {"tiny": dict(m=2, n=64), "odd": dict(m=3, n=9777)}
TOLERANCE = dict(rtol=1e-3, atol=1e-2)


@triton.jit
def energy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0)
        acc += x * x
    tl.store(y_ptr + row, tl.sum(acc, 0))


@triton.jit
def energy_kernel_part(acc_parts, SPLITS: tl.constexpr, x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), tl.float32)
    split = tl.program_id(1)
    part_start = split * tl.cdiv(tl.cdiv(n, BLOCK), SPLITS) * BLOCK
    part_stop = tl.minimum(part_start + tl.cdiv(tl.cdiv(n, BLOCK), SPLITS) * BLOCK, n)
    for first in range(part_start, part_stop, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0)
        acc += x * x
    slot = tl.program_id(0).to(tl.int64) * SPLITS + split
    tl.store(acc_parts + slot * BLOCK + tl.arange(0, BLOCK), acc)


@triton.jit
def energy_kernel_combine(acc_parts, SPLITS: tl.constexpr, x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        slot = tl.program_id(0).to(tl.int64) * SPLITS + split
        acc_part = tl.load(acc_parts + slot * BLOCK + tl.arange(0, BLOCK))
        acc += acc_part
    tl.store(y_ptr + row, tl.sum(acc, 0))


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(m, n, device=device))


def reference(x):
    return x.double().pow(2).sum(1).float()


def launch(x):
    m, n = x.shape
    y = torch.empty(m, device=x.device, dtype=torch.float32)
    programs = m
    splits = max(1, min(64, triton.next_power_of_2(528 // max(programs, 1)), triton.next_power_of_2(triton.cdiv(n, 1024)) // 4))
    if splits == 1:
        energy_kernel[(m,)](x, y, n, BLOCK=1024, num_warps=4)
    else:
        acc_parts = torch.empty(programs * splits * 1024, device=x.device, dtype=torch.float32)
        energy_kernel_part[(m, splits)](acc_parts, splits, x, y, n, BLOCK=1024, num_warps=4)
        energy_kernel_combine[(m,)](acc_parts, splits, x, y, n, BLOCK=1024, num_warps=4)
    return y
'''

EXAMPLES = (
    Example(title="a long row per program", before=BEFORE, line=14, after=AFTER, rewrite=0, grade="observed"),
    Example(title="a long row per program, mended", before=AFTER),
)
