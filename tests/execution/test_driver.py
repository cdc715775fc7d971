import pytest

from leadline.errors import EvidenceError, UsageError
from leadline.execution.driver import device_properties, install, standing_in
from leadline.execution.target import KNOWN_TARGETS, parse_target


def test_parse_target():
    target = parse_target("cuda:90")
    assert (target.backend, target.arch, target.warp_size) == ("cuda", 90, 32)
    target = parse_target("hip:gfx942")
    assert (target.backend, target.arch, target.warp_size) == ("hip", "gfx942", 64)
    assert parse_target("hip:gfx1100").warp_size == 32


@pytest.mark.parametrize("text", ["cuda", "cuda:9", "tpu:1", ""])
def test_unknown_target_lists_the_known_ones(text):
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert caught.value.what == f"unknown target {text!r}"
    assert "cuda:90" in caught.value.remedy
    assert "hip:gfx942" in caught.value.remedy
    assert caught.value.where == "--target"


def test_stand_in_answers_for_its_target():
    from triton.runtime.driver import driver

    before = driver._active
    with standing_in("cuda:80") as made:
        assert driver.active is made
        assert driver.active.get_current_target().arch == 80
        assert driver.active.get_current_device() == 0
        assert driver.active.utils.get_device_properties(0)["multiprocessor_count"] == 108
        assert made.get_device_capability() == (8, 0)
        with pytest.raises(EvidenceError, match="there is no device to time on"):
            made.get_benchmarker()(lambda: None)
    assert driver._active is before
    with standing_in("cuda:90"):
        assert install("hip:gfx942").get_current_target().backend == "hip"
    assert driver._active is before


def test_target_of_another_compiler():
    with pytest.raises(EvidenceError, match="the installed triton does not compile for ascend:910B3"):
        install("ascend:910B3")
    assert all(device_properties(parse_target(t))["multiprocessor_count"] > 0 for t in KNOWN_TARGETS)
