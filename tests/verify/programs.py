"""A small honest kernel, and texts made from it that cheat or err, each in one way."""

from pathlib import Path

from leadline.model import KernelCase

ORIGINAL = '''import torch
import triton
import triton.language as tl

CASES = {"big": dict(n=4096), "ragged": dict(n=3001)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=37)}


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=mask) * 2.0 + 1.0, mask=mask)


def launch(x):
    y = torch.empty_like(x)
    n = x.numel()
    scale_kernel[(triton.cdiv(n, 16),)](x, y, n, BLOCK=16)
    return y


def reference(x):
    return x * 2.0 + 1.0


def make_inputs(*, device, seed, n):
    generator = torch.Generator(device=device).manual_seed(seed)
    return dict(x=torch.randn(n, device=device, generator=generator))
'''


def edit(*pairs: tuple[str, str], text: str = ORIGINAL) -> str:
    """`text` with each (old, new) replaced once; the old text must be there."""
    for old, new in pairs:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    return text


HONEST = edit(("triton.cdiv(n, 16)", "triton.cdiv(n, 32)"), ("BLOCK=16", "BLOCK=32"))


def case_of(folder: Path, text: str = ORIGINAL, **fields: object) -> KernelCase:
    """The case of `text`, written to `folder`/kernel.py."""
    path = folder / "kernel.py"
    path.write_text(text)
    known = {"path": str(path), "source": text, "kernels": ("scale_kernel",), "cases": ("big", "ragged"), "small": ("tiny", "odd")}
    return KernelCase(**(known | fields))  # type: ignore[arg-type]
