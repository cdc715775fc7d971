"""Examples of TIL102 tile-too-large."""

from leadline.rules.base import Example

BEFORE = '''import torch
import triton
import triton.language as tl

CASES = {"m2048_n25000_fp32": dict(m=2048, n=25000)}
SMALL = {"tiny": dict(m=2, n=64), "odd": dict(m=3, n=2077)}


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    # the whole row at once
    x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=-float("inf"))
    top = tl.max(x, 0)
    total = tl.sum(tl.exp(x - top), 0)
    tl.store(y_ptr + row * n + columns, tl.exp(x - top) / total, mask=columns < n)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(m, n, device=device))


def reference(x):
    return torch.softmax(x, 1)


def launch(x):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n), num_warps=4)
    return y
'''

AFTER = '''import torch
import triton
import triton.language as tl

CASES = {"m2048_n25000_fp32": dict(m=2048, n=25000)}
SMALL = {"tiny": dict(m=2, n=64), "odd": dict(m=3, n=2077)}


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top_lanes = tl.full((BLOCK,), -1.0e30, tl.float32)
    total_lanes = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        # the whole row at once
        x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=-float("inf"))
        top_next = tl.maximum(top_lanes, x)
        total_lanes = total_lanes * tl.exp(top_lanes - top_next) + tl.exp(x - top_next)
        top_lanes = top_next
    top = tl.max(top_lanes, 0)
    total = tl.sum(total_lanes * tl.exp(top_lanes - top), 0)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=-float("inf"))
        tl.store(y_ptr + row * n + columns, tl.exp(x - top) / total, mask=columns < n)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(m, n, device=device))


def reference(x):
    return torch.softmax(x, 1)


def launch(x):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(m,)](x, y, n, BLOCK=1024, num_warps=4)
    return y
'''

PADDED = '''import torch
import triton
import triton.language as tl

CASES = {"m32768_n1000_fp32": dict(m=32768, n=1000)}
SMALL = {"tiny": dict(m=2, n=64), "odd": dict(m=3, n=77)}


@triton.jit
def scale_rows_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    x = tl.load(x_ptr + row * n + columns, mask=inside, other=0.0)
    norm = tl.sqrt(tl.sum(x * x, 0))  # the padding adds nothing
    tl.store(y_ptr + row * n + columns, tl.exp(x / norm), mask=inside)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(m, n, device=device))


def reference(x):
    return torch.exp(x / x.norm(dim=1, keepdim=True))


def launch(x):
    y = torch.empty_like(x)
    m, n = x.shape
    scale_rows_kernel[(m,)](x, y, n, BLOCK=8192, num_warps=4)
    return y
'''

EXAMPLES = (
    Example(title="a softmax of a row at once", before=BEFORE, line=12, after=AFTER, rewrite=0, grade="located"),
    Example(
        title="a block of which an eighth is used",
        before=PADDED,
        line=12,
        after=PADDED.replace("BLOCK=8192", "BLOCK=triton.next_power_of_2(n)"),
        grade="confirmed",
    ),
    Example(title="a block that fits its rows", before=PADDED.replace("BLOCK=8192", "BLOCK=triton.next_power_of_2(n)")),
    Example(title="a softmax of a row at once, mended", before=AFTER),
)
