"""What published kernels do that Triton's interpreter does not follow by itself: bf16 arithmetic, float arguments, libdevice."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import case_of

from leadline.execution.worker import Worker
from leadline.model import Verdict
from leadline.verify.judge import JudgeRequest, Workers, judge

pytest.importorskip("triton")

CASE = '''\
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.libdevice import rsqrt

CASES = {"big": dict(n=4096)}
SMALL = {"tiny": dict(n=100), "odd": dict(n=77)}
TOLERANCE = dict(rtol=1e-2, atol=1e-2)


@triton.jit
def gate_kernel(x_ptr, w_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    w = tl.load(w_ptr + i, mask=i < n, other=0.0)
    scale = rsqrt(tl.sum(x.to(tl.float32) * x.to(tl.float32)) + eps.to(tl.float32))
    gate = libdevice.tanh(x.to(tl.float32)) * scale
    y = gate.to(tl.bfloat16) * w - (i % 3).to(tl.bfloat16)
    tl.store(y_ptr + i, tl.where(y > w, y, -y), mask=i < n)


def launch(x, w):
    y = torch.empty_like(x)
    gate_kernel[(1,)](x, w, y, x.numel(), 1e-3, BLOCK=triton.next_power_of_2(x.numel()))
    return y


def reference(x, w):
    wide = x.float()
    gate = (torch.tanh(wide) * torch.rsqrt((wide * wide).sum() + 1e-3)).bfloat16()
    y = gate * w - (torch.arange(x.numel(), device=x.device) % 3).bfloat16()
    return torch.where(y > w, y, -y)


def make_inputs(*, device, seed, n):
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(n, generator=g).to(device, torch.bfloat16) for name in ("x", "w")}
'''


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Worker]:
    with Worker("interpret", environment={"TRITON_INTERPRET": "1"}) as worker:
        yield worker


def decide(folder: Path, interpreter: Worker, text: str) -> Verdict:
    request = JudgeRequest(case=case_of(folder, text), original=text, candidate="", baseline_only=True)
    return judge(request, Workers(interpret=interpreter))


def test_bf16_float_arguments_and_libdevice_are_followed(tmp_path: Path, interpreter: Worker) -> None:
    verdict = decide(tmp_path, interpreter, CASE)
    assert (verdict.correct, verdict.reason) == (True, "the original agrees with its reference")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("libdevice.tanh(x.to(tl.float32))", "libdevice.tanh(x)", "TypeError: libdevice.tanh takes fp32 or fp64, not bf16"),
        ("libdevice.tanh(x", "libdevice.rcp64h(x", "NotImplementedError: libdevice.rcp64h is not known in the interpreter"),
    ],
)
def test_what_the_device_refuses_or_we_do_not_know_is_said(
    tmp_path: Path, interpreter: Worker, old: str, new: str, reason: str
) -> None:
    verdict = decide(tmp_path, interpreter, CASE.replace(old, new))
    assert verdict.correct is None
    assert reason in verdict.checks[0].detail
