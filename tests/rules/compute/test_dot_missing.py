"""Every way to write a product as a broadcast and a sum, checked with numbers against what is put in its place."""

import ast
import itertools

import numpy as np
import pytest

from leadline.collect.source import read
from leadline.model import KernelCase
from leadline.rules.compute.dot_missing import contraction, found_in

HOLES = [":, :, None", ":, None, :", "None, :, :"]


def parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@pytest.mark.parametrize(("hole_x", "hole_y", "axis"), list(itertools.product(range(3), range(3), (0, 1, 2, -1, -2, -3))))
def test_all_forms_against_numbers(hole_x: int, hole_y: int, axis: int) -> None:
    """Tiles of three extents, one per axis of the product; the sum and the dot must agree, or the form must be refused."""
    extents, random = (3, 4, 5), np.random.default_rng(7)
    hole_at = {0: 2, 1: 1, 2: 0}  # position in HOLES -> axis of the None
    none_x, none_y, summed = hole_at[hole_x], hole_at[hole_y], axis % 3
    x = random.normal(size=[e for a, e in enumerate(extents) if a != none_x])
    y = random.normal(size=[e for a, e in enumerate(extents) if a != none_y])
    text = f"x[{HOLES[hole_x]}] * y[{HOLES[hole_y]}]"
    found = contraction(parsed(text), axis)
    if none_x == none_y or summed in (none_x, none_y):
        assert found is None
        return
    assert found is not None
    letters = "abc"
    spec = f"{letters.replace(letters[none_x], '')},{letters.replace(letters[none_y], '')}->{letters.replace(letters[summed], '')}"
    wanted = np.einsum(spec, x, y)
    assert np.allclose(eval(text, {"x": x, "y": y}).sum(axis), wanted)
    tl = type("tl", (), {"trans": np.transpose, "dot": lambda a, b, acc=0.0, input_precision="": a @ b + acc})
    assert np.allclose(eval(found.dot("", "ieee"), {"tl": tl, "x": x, "y": y}), wanted)
    assert np.allclose(eval(found.dot("acc", "ieee"), {"tl": tl, "x": x, "y": y, "acc": wanted}), 2 * wanted)


@pytest.mark.parametrize(
    "text",
    [
        "x[:, None, :] + y[None, :, :]",  # no product
        "x[:, None] * y[None, :]",  # two dimensions
        "x[:, None, None] * y[None, :, :]",  # a vector
        "x[0, None, :] * y[None, :, :]",  # a row of a tile
        "x[1:, None, :] * y[None, :, :]",
        "x * y[None, :, :]",
    ],
)
def test_other_products_are_no_contraction(text: str) -> None:
    assert contraction(parsed(text), 2) is None


def test_expand_dims_is_read_too() -> None:
    found = contraction(parsed("tl.expand_dims(x, 1) * tl.expand_dims(y.to(tl.float32), -3)"), -1)
    assert found is not None
    assert found.dot("acc", "tf32x3") == 'tl.dot(x, tl.trans(y.to(tl.float32)), acc, input_precision="tf32x3")'
    assert contraction(parsed("x[:, :, None] * y[None, :, :]"), 5) is None


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("total += tl.sum(a[:, None, :] * w[None, :, :], 2)", "a[:, None, :] * w[None, :, :]"),
        ("total += tl.sum(a[:, None, :] * w[None, :, :], axis=2)", "a[:, None, :] * w[None, :, :]"),
        ("total += (a[:, None, :] * w[None, :, :]).sum(2)", "a[:, None, :] * w[None, :, :]"),
        ("p = a[:, None, :] * w[None, :, :]\n    total += tl.sum(p, 2)", "a[:, None, :] * w[None, :, :]"),
        ("total += tl.sum(a[:, None, :] * w[None, :, :], 2, keep_dims=True)", None),
        ("total += tl.sum(a[:, None, :] * w[None, :, :], AXIS)", None),
        ("total += tl.sum(unknown, 2)", None),
    ],
)
def test_found_in_kernels(statement: str, found: str | None) -> None:
    source = (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(a_ptr, o_ptr, B: tl.constexpr, AXIS: tl.constexpr):\n"
        "    at = tl.arange(0, B)\n    a = tl.load(a_ptr + at[:, None] * B + at[None, :])\n    w = a\n"
        f"    total = tl.zeros((B, B), tl.float32)\n    {statement}\n    tl.store(o_ptr + at[:, None] * B + at[None, :], total)\n"
    )
    (kernel,) = read(KernelCase(path="k.py", source=source, kernels=())).kernels
    (operation,) = kernel.of_kind("sum")
    hit = found_in(kernel, operation)
    assert (hit[1] if hit else None) == found
