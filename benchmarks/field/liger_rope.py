"""Forward of rotary embedding as liger-kernel ships it (it overwrites its inputs)."""

import torch
from liger_kernel.ops.rope import rope_forward

CASES = {"train": {"b": 4, "s": 4096, "h": 32}}
SMALL = {"tiny": {"b": 1, "s": 5, "h": 4}}
TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}


def launch(q, k, cos, sin):
    turned = rope_forward(q.clone(), k.clone(), cos, sin)
    return turned[0], turned[1]


def reference(q, k, cos, sin):
    c, s = cos.float()[:, None], sin.float()[:, None]

    def turned(x):
        a, b = x.float().chunk(2, -1)
        return (x.float() * c + torch.cat((-b, a), -1) * s).to(x.dtype)

    return turned(q), turned(k)


def make_inputs(*, device, seed, b, s, h):
    torch.manual_seed(seed)
    angle = torch.arange(s)[:, None] * (10000.0 ** (-torch.arange(64) / 64))[None, :]
    angle = torch.cat((angle, angle), -1)[None].to(device)
    half = {"device": device, "dtype": torch.bfloat16}
    q, k = torch.randn(b, s, h, 128, **half), torch.randn(b, s, h // 4, 128, **half)
    return {"q": q.transpose(1, 2), "k": k.transpose(1, 2), "cos": angle.cos().to(torch.bfloat16), "sin": angle.sin().to(torch.bfloat16)}
