"""Forward of softmax as liger-kernel ships it (a row in one block: the wrapper refuses rows above 65536)."""

import torch
from liger_kernel.ops.softmax import _softmax_forward

CASES = {"vocabulary": {"m": 4096, "n": 32000}}
SMALL = {"tiny": {"m": 3, "n": 100}}
TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}


def launch(x):
    return _softmax_forward(x)[0]


def reference(x):
    return torch.softmax(x.float(), -1).to(x.dtype)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return {"x": torch.randn(m, n, device=device, dtype=torch.bfloat16)}
