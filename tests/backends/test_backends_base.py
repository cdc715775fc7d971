"""Choosing a back-end by target, in a process that has no compiler."""

import subprocess
import sys

import pytest

from leadline.backends.base import backends, select
from leadline.errors import UsageError


def test_targets_select_their_back_end() -> None:
    assert select("cuda:90").name == "nvidia"
    assert select("hip:gfx942").name == "nvidia"
    assert select("replay:/tmp/x").name == "replay"
    assert {"nvidia", "replay"} <= set(backends())
    assert set(select("cuda:90").functions) == {"compile", "explain", "probe"}


def test_an_unknown_target() -> None:
    with pytest.raises(UsageError) as error:
        select("tpu:v5")
    assert str(error.value).startswith("unknown target 'tpu:v5'; use one of ")
    assert "cuda:90, " in str(error.value)
    with pytest.raises(UsageError):
        select("cuda:1")


def test_neither_torch_nor_triton_is_imported() -> None:
    code = "import sys, leadline.backends.base as b; b.select('cuda:90'); print([m for m in ('torch', 'triton') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
