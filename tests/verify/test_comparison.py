import math

import pytest

torch = pytest.importorskip("torch")

from leadline.verify import comparison  # noqa: E402
from leadline.verify.poison import Poisoned, fill  # noqa: E402
from leadline.verify.records import Tolerances  # noqa: E402


def passes(got: object, expected: object, declared: object = None) -> bool:
    worst = comparison.worst(comparison.compare(got, expected, declared))
    return worst is None or worst.excess <= 1


def test_tolerance_forms() -> None:
    assert comparison.tolerance_of(None, 0, torch.float32) == (1e-5, 2**-13)
    assert comparison.tolerance_of(None, 0, torch.bfloat16) == (1e-2, 2**-7)
    assert comparison.tolerance_of(None, 0, torch.int32) == (0.0, 0.0)
    assert comparison.tolerance_of({"rtol": 0.5, "atol": 1}, 0, torch.float16) == (1.0, 0.5)
    assert comparison.tolerance_of([{"atol": 1, "rtol": 0}, {"atol": 2, "rtol": 0}], 1, torch.int8) == (2.0, 0.0)
    assert comparison.tolerance_of({"int8": {"atol": 1, "rtol": 0}}, 0, torch.int8) == (1.0, 0.0)
    assert comparison.tolerance_of({"int8": {"atol": 1, "rtol": 0}}, 0, torch.float16) == (1e-3, 2**-10)


def test_nan_and_infinity_must_be_in_the_same_places() -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    assert passes(special, special.clone())
    assert not passes(torch.tensor([0.0, math.inf, -math.inf, 1.0]), special)
    assert not passes(torch.tensor([math.nan, -math.inf, -math.inf, 1.0]), special)
    assert not passes(torch.tensor([math.nan]), torch.tensor([1.0]), {"atol": math.inf, "rtol": 0.0})


def test_integers_are_exact_and_large_ones_are_not_rounded() -> None:
    big = torch.tensor([2**62 + 1])
    assert passes(big, big.clone())
    assert not passes(torch.tensor([3]), torch.tensor([4]))
    assert passes(torch.tensor([3], dtype=torch.int8), torch.tensor([4], dtype=torch.int8), {"int8": {"atol": 1, "rtol": 0}})


@pytest.mark.parametrize(
    ("got", "expected", "text"),
    [
        (torch.zeros(2), torch.zeros(3), "output 0 has shape (2,), not (3,)"),
        (torch.zeros(2, dtype=torch.float16), torch.zeros(2), "output 0 has type float16, not float32"),
        ((torch.zeros(1), torch.zeros(1)), (torch.zeros(1),), "2 outputs where 1 are expected"),
        ("a", "b", "output 0 is 'a', not 'b'"),
    ],
)
def test_structure(got: object, expected: object, text: str) -> None:
    worst = comparison.worst(comparison.compare(got, expected, None))
    assert worst is not None
    assert comparison.describe(worst) == text


def test_lazy_tensors_are_refused() -> None:
    class Lazy(torch.Tensor):
        pass

    worst = comparison.worst(comparison.compare(torch.zeros(1).as_subclass(Lazy), torch.zeros(1), None))
    assert worst is not None
    assert worst.problem == "output 0 is a Lazy, not a plain tensor"


def test_the_place_of_the_largest_error() -> None:
    got = torch.zeros(2, 3)
    got[1, 2] = 0.5
    worst = comparison.worst(comparison.compare(got, torch.zeros(2, 3), {"atol": 0.25, "rtol": 0}))
    assert worst is not None
    assert comparison.describe(worst) == "max error 0.5 at output 0[1, 2] (got 0.5, expected 0, 2 times the tolerance)"


def test_error_out_of_proportion_to_the_originals() -> None:
    exact = torch.linspace(-2, 2, 4096, dtype=torch.float64)
    original, tf32 = exact.float(), (exact * (1 + 3e-4)).float()
    old, new = comparison.compare(original, exact, None), comparison.compare(tf32, exact, {"atol": 1, "rtol": 1})
    assert comparison.less_accurate(old, old, [original], Tolerances()) == ""
    assert comparison.less_accurate(new, old, [tf32], Tolerances()).startswith("output 0: error (rms) 0.000")


def test_copies_share_memory_as_the_originals_do() -> None:
    base = torch.arange(12.0)
    copy = comparison.copy_tree({"a": base[2:], "b": [base.view(3, 4).t()], "n": 3})
    copy["a"][0] = 99.0
    assert copy["b"][0][2, 0] == 99.0
    assert base[2] == 2.0
    assert copy["b"][0].stride() == (1, 4)
    assert comparison.changed({"a": base[2:], "b": [base]}, {"a": copy["a"], "b": [base]}) == ("a",)


def test_fresh_memory_is_poisoned_and_filled_memory_is_not() -> None:
    with Poisoned(0) as mode:
        floats, zeros = torch.empty(3), torch.zeros(3)
        integers, like = torch.empty(3, dtype=torch.int32), torch.empty_like(zeros)
    assert torch.isnan(floats).all()
    assert torch.isnan(like).all()
    assert (zeros == 0).all()
    assert (integers == 113).all()
    assert any(kept.data_ptr() == like.data_ptr() for kept in mode.allocated)
    flags = torch.zeros(2, dtype=torch.bool)
    fill(flags, 0)
    assert flags.all()
