"""Host rules: what is dropped from signatures, and what counts as a copy."""

from leadline.model import HostOp
from leadline.rules.host.call_time import call_us, host_op_us, is_copy, plain_name, read, written
from leadline.rules.host.extra_copy import ExtraCopy
from leadline.rules.host.host_sync import _sizes_an_output
from leadline.rules.host.recompile_per_shape import RecompilePerShape, _at_run_time, _removed
from leadline.rules.host.unfused_kernels import UnfusedKernels
from tests.rules.memory.views import view_of
from tests.rules.recording import slug
from tests.rules.test_examples import _diagnosed

LENGTH = RecompilePerShape.examples[0].before


def test_an_unused_parameter_goes_with_what_fed_it() -> None:
    made = _removed(LENGTH, "shift_kernel", "LENGTH")
    assert made is not None
    assert "LENGTH" not in made
    assert "chunks" not in made
    assert "# one call per length" in made


def test_a_parameter_that_the_grid_reads_stays() -> None:
    assert _removed(LENGTH.replace("triton.cdiv(length, 1024),", 'lambda m: m["LENGTH"],'), "shift_kernel", "LENGTH") is None


def test_a_bound_becomes_a_runtime_argument() -> None:
    text = LENGTH.replace("n, LENGTH", "n: tl.constexpr, LENGTH")
    made = _at_run_time(text, "shift_kernel", "n")
    assert made is not None
    assert "(x_ptr, y_ptr, n, LENGTH: tl.constexpr" in made


def test_a_condition_keeps_its_constexpr() -> None:
    text = LENGTH.replace("    i = tl.program_id", "    if LENGTH > 1:\n        n = n\n    i = tl.program_id")
    assert _at_run_time(text, "shift_kernel", "LENGTH") is None


def test_copies() -> None:
    view = view_of(LENGTH, {"n": 1000, "LENGTH": 4, "BLOCK": 1024})
    cast = HostOp(name="_to_copy", line=3, reads=(0,), writes=(9,), bytes=4_000_000)
    assert plain_name(cast) == "_to_copy"
    assert is_copy(cast)
    assert not is_copy(HostOp(name="permute", line=3, view=True))
    assert host_op_us(view, cast) == 3.0 + 4_000_000 / 4.0e6
    assert call_us(view) == 1.0  # one launch of unknown cost


def test_storages_read_and_written() -> None:
    text = UnfusedKernels.examples[0].before
    view = view_of(text, {"n": 1000, "factor": 2, "BLOCK": 1024})
    assert read(view, view.launches[0]) == {0: "x_ptr"}
    assert written(view, view.launches[0]) == {1: "y_ptr"}


def test_a_copy_after_the_launches_is_worded_as_one() -> None:
    found = [
        next(iter(_diagnosed(slug(rule, example)).hypotheses)).claim for rule in (ExtraCopy(),) for example in rule.examples if example.line
    ]
    assert "for a launch that could read the original as it is" in found[0]
    assert "to copy a launch's result into the output" in found[1]


def test_a_read_that_sizes_the_output() -> None:
    text = "def launch(x):\n    n = int(x.max().item())\n    y = torch.empty(SIZE)\n    return y\n"
    assert _sizes_an_output(view_of(text.replace("SIZE", "n, 4"), {}), 2)
    assert not _sizes_an_output(view_of(text.replace("SIZE", "x.shape"), {}), 2)
