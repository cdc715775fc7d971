"""Forward of KL divergence as liger-kernel ships it."""

import torch
from liger_kernel.ops.kl_div import kldiv_forward_triton

CASES = {"vocabulary": {"m": 4096, "n": 32000}}
SMALL = {"tiny": {"m": 3, "n": 100}}
TOLERANCE = {"rtol": 1e-3, "atol": 1e-5}


def launch(p, q):
    return kldiv_forward_triton(p, q, False, "none", 1e-10)


def reference(p, q):
    return torch.nn.functional.kl_div(p, q, reduction="none")


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return {"p": torch.log_softmax(torch.randn(m, n, device=device), -1), "q": torch.softmax(torch.randn(m, n, device=device), -1)}
