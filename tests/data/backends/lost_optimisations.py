"""Small kernels that each lose one optimisation of the compiler; the tests compile them and read their signatures."""

import triton
import triton.language as tl


@triton.jit
def halve(x):
    return x * 0.5


@triton.jit
def copy(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(o_ptr + offs, x, mask=offs < n)


@triton.jit
def rows(x_ptr, o_ptr, stride, BLOCK: tl.constexpr, OUT: tl.constexpr, ACT: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols)
    tl.store(o_ptr + row * BLOCK + cols, ACT(x).to(OUT))


@triton.jit
def product(a_ptr, b_ptr, c_ptr, K, sam, sbk, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SCALE: tl.constexpr):
    om = tl.arange(0, BM)
    on = tl.arange(0, BN)
    ok = tl.arange(0, BK)
    ap = a_ptr + om[:, None] * sam + ok[None, :]
    bp = b_ptr + ok[:, None] * sbk + on[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        a = tl.load(ap)
        b = tl.load(bp)
        if SCALE:
            b = (b * 2).to(b.dtype)
        acc = tl.dot(a, b, acc, input_precision="tf32")
        ap += BK
        bp += BK * sbk
    tl.store(c_ptr + om[:, None] * BN + on[None, :], acc)


@triton.jit
def product_while(a_ptr, b_ptr, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    om = tl.arange(0, BM)
    on = tl.arange(0, BN)
    ok = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    k = 0
    while k < K:
        a = tl.load(a_ptr + om[:, None] * 256 + (k + ok)[None, :])
        b = tl.load(b_ptr + (k + ok)[:, None] * BN + on[None, :])
        acc = tl.dot(a, b, acc)
        k += BK
    tl.store(c_ptr + om[:, None] * BN + on[None, :], acc)


@triton.jit
def pixels(x_ptr, o_ptr, width, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(o_ptr + (offs % width) * 64 + offs // width, x)


@triton.jit
def scale(x_ptr, o_ptr, factor, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + offs, halve(tl.load(x_ptr + offs) * factor))


@triton.jit
def histogram(x_ptr, o_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.atomic_add(o_ptr + offs, x, sem="relaxed")
    total = tl.sum(x, 0)
    tl.atomic_add(o_ptr, total, sem="relaxed")


@triton.jit
def wrong(x_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    y = tl.load(x_ptr + offs)
    tl.store(x_ptr + offs, tl.dot(y, y))


@triton.jit
def pair(pointers, sizes, SHAPE: tl.constexpr):
    offs = tl.arange(0, SHAPE[0] * SHAPE[1])
    tl.store(pointers[1] + offs, tl.load(pointers[0] + offs) * sizes[1])
