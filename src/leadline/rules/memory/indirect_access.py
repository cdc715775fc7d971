"""MEM108 indirect-access."""

import ast
from collections.abc import Iterable

from leadline.model import Hypothesis
from leadline.rules.base import Example, Rule, View, metric, seen
from leadline.rules.memory.index_terms import has_range, is_call, terms
from leadline.rules.memory.instruction_cost import expression, requested


class IndirectAccess(Rule):
    """A gather or scatter through loaded indices, element by element.

    What it finds
        Accesses whose per-lane offset is itself loaded. A loaded row number with a contiguous range added to it is no such case.
    Why it is slow
        Every lane may touch its own sector: up to 32 bytes are moved for each element, and nothing is known of the alignment.
    How it is proved
        The source: the address holds a load of a tile and no unscaled range beside it.
    Rewrite and its safety
        None is generated: the order of the indices is a property of the data.
    References
        CUDA C++ best practices guide, coalesced access to global memory.
    """

    code, slug, cause, family = "MEM108", "indirect-access", "indirect_access", "memory"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            facts = view.kernel(launch)
            for access in facts.accesses if facts else ():
                if not access.indirect or access.rank < 1 or not gathers(access.expanded):
                    continue
                sample = view.access(launch.index, access.line, access.kind)
                everything = requested(view, launch)
                share = sample.total / everything if sample and everything > 0 else 0.0
                waste = 1 + share * (32 / max(sample.itemsize, 1) - 1) if sample else 1.0
                # Sorting or blocking the indices rarely brings back more than a part of it.
                high = 1 + 0.15 * (waste - 1) if sample else 1.1
                yield self.hypothesis(
                    view,
                    launch,
                    line=access.line,
                    column=access.column,
                    end_line=access.end_line,
                    key=f"{launch.kernel}:{access.line}",
                    low=1.0,
                    high=min(high, 1.6),
                    grade="observed" if sample else "suspected",
                    sufficient_level=3,
                    claim=f"every lane of `{access.text}` has its own loaded offset",
                    facts=[
                        seen(f"the address of `{access.text}` is loaded per lane", launch.kernel_file, access.line),
                        metric("share of requested bytes", share, "share", launch, access.line),
                    ],
                    prediction="with indices in order, neighbouring lanes share sectors",
                )


def gathers(text: str | None) -> bool:
    """Whether the address has a loaded tile in it and no unscaled range outside it."""
    tree = expression(text)
    if tree is None:
        return False
    loaded = any(is_call(n, "load") and has_range(n) for n in ast.walk(tree))
    plain = any(
        t.ranges and not t.scale and not any(is_call(n, "load") for n in ast.walk(e))
        for t in terms(text)
        if (e := expression(t.text)) is not None
    )
    return loaded and not plain


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"n64m": dict(n=1 << 26)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=77)}


@triton.jit
def gather_kernel(x_ptr, index_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + i, mask=i < n, other=0)
    tl.store(y_ptr + i, tl.load(x_ptr + index, mask=i < n), mask=i < n)


def launch(x, index):
    y = torch.empty_like(x)
    gather_kernel[(triton.cdiv(x.numel(), 1024),)](x, index, y, x.numel(), BLOCK=1024)
    return y


def reference(x, index):
    return x[index.long()]


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device), index=torch.randint(0, n, (n,), device=device, dtype=torch.int32))
"""

CLEAN = """\
import torch
import triton
import triton.language as tl

CASES = {"n4m": dict(n=1 << 22)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=77)}


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * factor, mask=i < n)


def launch(x):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), 2.0, BLOCK=1024)
    return y


def reference(x):
    return x * 2.0


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device))
"""

IndirectAccess.examples = (
    Example(title="a gather of single elements", before=BEFORE, line=13, grade="observed"),
    Example(title="no index", before=CLEAN),
)
