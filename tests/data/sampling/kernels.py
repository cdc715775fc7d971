"""Kernels whose addresses are known by reasoning. Line numbers are found by the marks in the comments."""

import triton
import triton.language as tl


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)  # copy.load
    tl.store(y + at, value, mask=at < n)  # copy.store


@triton.jit
def columns(x, y, rows, width, BLOCK: tl.constexpr):
    column = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, rows, BLOCK):  # columns.loop
        at = first + tl.arange(0, BLOCK)
        total += tl.load(x + at * width + column, mask=at < rows, other=0.0)  # columns.load
    tl.store(y + column, tl.sum(total, 0))


@triton.jit
def bumped(x, y, rows, width, BLOCK: tl.constexpr):
    at = x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(0, rows):
        total += tl.load(at)  # bumped.load
        at += width
    tl.store(y + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), total)


@triton.jit
def causal(q, k, o, length, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    depth = tl.arange(0, D)
    a = tl.load(q + rows[:, None] * D + depth[None, :])
    best = tl.full((BM,), -1.0e30, tl.float32)
    for start in range(0, length, BN):
        columns_ = start + tl.arange(0, BN)
        b = tl.load(k + columns_[None, :] * D + depth[:, None])  # causal.k
        scores = tl.dot(a, b)
        scores = tl.where(rows[:, None] >= columns_[None, :], scores, -1.0e30)  # causal.where
        best = tl.maximum(best, tl.max(scores, 1))
    tl.store(o + rows, best)


@triton.jit
def broadcast_row(x, w, y, width, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0)
    tl.store(y + row * width + at, tl.load(x + row * width + at) * tl.load(w + at))  # broadcast_row.all


@triton.jit
def gather(index, table, y, D: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(index + at)  # gather.index
    value = tl.load(table + row[:, None] * D + tl.arange(0, D)[None, :])  # gather.rows
    single = tl.load(table + row)  # gather.single
    tl.store(y + at, tl.sum(value, 1) + single)


@triton.jit
def halves(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at // 2))  # halves.all


@triton.jit
def count(x, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total + tl.arange(0, BLOCK), tl.load(x + at))  # count.atomic


@triton.jit
def _twice(pointer, at):
    value = tl.load(pointer + at)  # helped.load
    for turn in tl.static_range(3):
        value = value * 2.0
    return value


@triton.jit
def helped(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, _twice(x, at))


@triton.jit
def blocks(x, y, rows, width, BM: tl.constexpr, BN: tl.constexpr):
    tile = tl.make_block_ptr(x, (rows, width), (width, 1), (tl.program_id(0) * BM, 0), (BM, BN), (1, 0))
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(0, tl.cdiv(width, BN)):
        total += tl.load(tile, boundary_check=(0, 1), padding_option="zero")  # blocks.load
        tile = tl.advance(tile, (0, BN))
    tl.store(y + tl.program_id(0) * BM + tl.arange(0, BM), tl.sum(total, 1))


@triton.jit
def until(limits, y):
    stop = tl.load(limits + tl.program_id(0))
    turn = 0
    for step in range(0, stop):  # until.for
        turn += 1
    while turn >= 0:
        turn += 1
    tl.store(y + tl.program_id(0), turn)


@triton.jit
def _larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def reduced(x, y, BLOCK: tl.constexpr):
    value = tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.store(y + tl.program_id(0), tl.reduce(value, 0, _larger))


@triton.jit
def broken(x, y):
    tl.store(y, tl.load(x + missing))  # noqa: F821


@triton.jit
def shares(x, y, rows, width, eps, each: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0) * each
    inner = tl.arange(0, BLOCK)
    for row in range(first, min(first + each, rows)):
        value = tl.load(x + row * width + inner)  # shares.load
        tl.store(y + row * width + inner, value * eps.to(tl.float32))  # shares.store
