"""Facts of wrappers: host calls, launches, grids, helpers followed."""

import textwrap

from leadline.collect.source import read
from leadline.model import KernelCase, WrapperFacts

HEAD = """import torch, triton
import torch.nn.functional as F
import triton.language as tl

@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), n)

"""


def wrapper(body: str, name: str = "launch", kind: str = "case") -> WrapperFacts:
    case = KernelCase(path="k.py", source=HEAD + textwrap.dedent(body), kernels=("add",), wrapper=name, kind=kind)
    found = read(case).wrapper
    assert found is not None
    return found


def test_launch_with_lambda_grid_by_name() -> None:
    w = wrapper("""
        def launch(x):
            x = x.contiguous()
            y = torch.empty_like(x)
            n = x.numel()
            grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]), 2)
            add[grid](
                x, y,
                n, BLOCK=1024, num_warps=8,
            )
            return y
    """)
    (site,) = w.launches
    assert (site.kernel, site.grid) == ("add", '(triton.cdiv(n, meta["BLOCK"]), 2)')
    assert site.grid_axes == ('triton.cdiv(n, meta["BLOCK"])', "2")
    assert site.positional == ("x", "y", "n")
    assert site.arguments == {"x": "x", "y": "y", "n": "n", "BLOCK": "1024"}
    assert site.options == {"num_warps": "8"}
    assert site.end_line == site.line + 3
    assert w.assignments["n"] == "x.numel()"
    assert [(c.kind, c.target, c.receiver) for c in w.calls] == [("contiguous", "x", "x"), ("alloc_empty", "y", "")]


def test_nested_grid_function_that_synchronises() -> None:
    w = wrapper("""
        def launch(x, cu):
            def grid(meta):
                lens = cu.cpu().tolist()
                return (len(lens), meta["BLOCK"])
            for _ in range(3):
                add[grid](x, x, 1, BLOCK=4)
    """)
    (site,) = w.launches
    assert site.grid_axes == ("len(lens)", 'meta["BLOCK"]')
    assert (site.loop, site.branch) == (True, False)
    assert [(c.kind, c.text) for c in w.calls] == [("sync", "cu.cpu().tolist()"), ("sync", "cu.cpu()")]


def test_helpers_are_followed_with_their_lines() -> None:
    w = wrapper("""
        def _run(x, y):
            if x.is_cuda:
                add[(x.shape[0],)](x, y, 3, 16)

        def launch(x):
            M, N = x.shape
            y = torch.zeros((M, N), device=x.device)
            for i in range(2):
                _run(x, y)
            return y.sum(0)
    """)
    assert w.functions == ("_run",)
    (site,) = w.launches
    assert (site.line, site.loop, site.branch) == (12, True, True)
    assert site.arguments["BLOCK"] == "16"
    assert site.grid_axes == ("x.shape[0]",)
    assert w.assignments["N"] == "x.shape[1]"
    assert [c.kind for c in w.calls] == ["alloc_zeros", "reduce"]


def test_kernelbench_forward_and_methods() -> None:
    w = wrapper(
        """
        class ModelNew(torch.nn.Module):
            def _go(self, x):
                y = torch.empty_like(x)
                add[(1, 2, 3)](x, y, n=4, BLOCK=8)
                return y

            def forward(self, x):
                return self._go(x.half())
        """,
        "ModelNew.forward",
        "kernelbench",
    )
    assert w.launches[0].grid_axes == ("1", "2", "3")
    assert [c.kind for c in w.calls] == ["alloc_empty", "cast"]
    assert w.functions == ("_go",)


def test_autograd_function_is_followed() -> None:
    w = wrapper("""
        class Op(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                add[(1,)](x, x, 1, 2)
                return x

        def launch(x):
            return Op.apply(x)
    """)
    assert [site.kernel for site in w.launches] == ["add"]


def test_synchronising_reads() -> None:
    w = wrapper("""
        def launch(x, cu, n):
            a = int(cu[-1])
            b = int(n) + float(2) + int(x.shape[0]) + int(x.stride(0))
            c = x.max().item()
            torch.cuda.synchronize()
            if (x > 0).any():
                pass
            d = bool(torch.zeros(1))
            cu.dtype
            z = torch.nonzero(x)
    """)
    assert [c.text for c in w.calls if c.kind == "sync"] == [
        "int(cu[-1])", "x.max().item()", "torch.cuda.synchronize()", "(x > 0).any()", "bool(torch.zeros(1))", "torch.nonzero(x)",
    ]  # fmt: skip


def test_copies_casts_and_views() -> None:
    w = wrapper("""
        def launch(x, w):
            a = x.to(torch.float32)
            b = x.to("cuda")
            c = x.to(device="cpu")
            d = F.pad(x, (0, 1))
            e = torch.cat([x, w])
            f = w.expand(4, 4).contiguous()
            g = x.permute(1, 0)
            h = x.clone(); h.copy_(x); h.zero_()
            k = torch.matmul(x, w)
            dev = torch.device("cuda")
            return [t.float() for t in (x, w)]
    """)
    kinds = {c.text: c.kind for c in w.calls}
    assert kinds == {
        "x.to(torch.float32)": "cast", 'x.to("cuda")': "copy", 'x.to(device="cpu")': "sync", "F.pad(x, (0, 1))": "copy",
        "torch.cat([x, w])": "copy", "w.expand(4, 4).contiguous()": "contiguous", "w.expand(4, 4)": "view", "x.permute(1, 0)": "view",
        "x.clone()": "copy", "h.copy_(x)": "copy", "h.zero_()": "alloc_zeros", "torch.matmul(x, w)": "other", "t.float()": "cast",
    }  # fmt: skip
    assert next(c for c in w.calls if c.text == "t.float()").loop
    assert next(c for c in w.calls if c.text == "F.pad(x, (0, 1))").receiver == "x"


def test_starred_arguments_aliases_and_choices() -> None:
    w = wrapper("""
        def launch(x, big):
            args = (x, x, 5)
            options = dict(BLOCK=64, num_stages=2)
            k = add if big else add
            k[(7,)](*args, **options)
            run = add[(9,)]
            run(x, x, 1, 2)
    """)
    first, second = w.launches
    assert first.arguments == {"x": "x", "y": "x", "n": "5", "BLOCK": "64"}
    assert first.options == {"num_stages": "2"}
    assert (second.kernel, second.grid_axes) == ("add", ("9",))


def test_no_wrapper() -> None:
    assert read(KernelCase(path="k.py", source=HEAD, kernels=("add",))).wrapper is None
