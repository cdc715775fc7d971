"""Cross entropy with its gradient as liger-kernel ships it (it overwrites its input)."""

import torch
from liger_kernel.ops.cross_entropy import cross_entropy_forward

CASES = {"vocabulary": {"m": 8192, "n": 32000}}
SMALL = {"tiny": {"m": 3, "n": 100}}
TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}


def launch(x, y):
    logits = x.clone().requires_grad_()
    with torch.no_grad():
        loss, _, _, _, grad = cross_entropy_forward(logits, y, None, -100, 0.0, 0.0, "mean", None, False)
    return loss, grad.detach()


def reference(x, y):
    loss = torch.nn.functional.cross_entropy(x.float(), y)
    hot = torch.nn.functional.one_hot(y, x.shape[-1])
    return loss.to(x.dtype), ((torch.softmax(x.float(), -1) - hot) / x.shape[0]).to(x.dtype)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return {"x": torch.randn(m, n, device=device, dtype=torch.bfloat16), "y": torch.randint(0, n, (m,), device=device)}
