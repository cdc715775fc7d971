"""CMP105: one program reads the same data in several passes."""

import math
from collections.abc import Iterable

from leadline.model import Access, Hypothesis, KernelFacts, Launch
from leadline.rules.base import Example, Rule, View, located, metric, raised, seen


class MultiPass(Rule):
    """The same tensor is loaded again by a later loop of the same program.

    What it finds
        Loads of one tensor in two or more loops (or before and in a loop) of a kernel, over the same addresses.
    Why it is slow
        Each pass moves the data again, from the L2 when what the running programs hold fits there, from memory when it does not.
    How it is proved
        Sampled addresses of the passes coincide; every pass has its own load instruction in the machine code.
    Rewrite and its safety
        None is made here: keep the row in registers when it fits one tile, use an online (one-pass) form, or walk the second pass
        backwards so that it starts with what the cache still holds.
    References
        Online softmax; Welford's one-pass variance.
    """

    code, slug, cause, family = "CMP105", "several-passes", "multi_pass", "compute"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            kernel, sample = view.kernel(launch), view.samples.get(launch.index)
            if kernel is None or sample is None:
                continue
            extra, moved, worst = 0.0, 0.0, None
            for base, passes in _passes(kernel).items():
                found = [s for s in (view.access(launch.index, a.line, "load") for a in passes) if s and not s.indirect]
                if len(found) < 2 or not base:
                    continue
                again = sum(s.unique for s in found) - max(s.unique for s in found)
                if again > 0 and max(s.unique for s in found) < 1.5 * min(s.unique for s in found):
                    extra += again
                    worst = worst or passes
            moved = sum(a.unique for a in sample.accesses)
            if worst is None or moved <= 0 or extra / moved < 0.1:
                continue
            high = _gain(view, launch, extra, moved)
            yield self.hypothesis(
                view,
                launch,
                line=worst[1].line,
                column=worst[1].column,
                end_line=worst[1].end_line,
                end_column=worst[1].end_column,
                low=1.0 + (high - 1.0) * 0.4,
                high=high,
                grade="observed",
                claim=f"{worst[1].base} is read in {len(worst)} passes by the same program",
                facts=[
                    *[seen(f"pass {i + 1}: {a.text}", launch.kernel_file, a.line) for i, a in enumerate(worst[:3])],
                    metric("bytes read again", extra, "byte", launch, worst[1].line),
                ],
            )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        compiled = view.compiled.get(hypothesis.launch)
        if launch is None or compiled is None or hypothesis.grade != "observed":
            return hypothesis
        hit = [o for o in compiled.operations if o.line == hypothesis.span.line and ("load" in o.name or "async_copy" in o.name)]
        return raised(hypothesis, "located", located(hit[0].stage, hit[0].name, launch, hit[0].line)) if hit else hypothesis


def _passes(kernel: KernelFacts) -> dict[str, list[Access]]:
    """Loads of each tensor that stand in different loops and use the same index but for the loop variable."""
    groups: dict[str, list[Access]] = {}
    for access in kernel.accesses:
        if access.kind == "load" and access.base and access.rank != 0 and not access.indirect:
            known = groups.setdefault(access.base, [])
            if all(a.loop != access.loop for a in known):
                known.append(access)
    return {base: found for base, found in groups.items() if len(found) > 1}


def _gain(view: View, launch: Launch, extra: float, moved: float) -> float:
    """Speedup if the data were read once: the later passes cost memory or, when the rows in flight fit the L2, L2 bandwidth."""
    sample = view.samples[launch.index]
    ceilings = view.ceilings
    cost = view.costs.get(launch.index)
    # What passes through L2 before a program comes back: while it reads, others read, read again and write theirs.
    in_flight = 1.5 * extra / max(sample.programs, 1) * min(sample.programs, view.sms * (cost.resident if cost else 4))
    rest = max(cost.compute_us, cost.latency_us * 0.5) if cost else 0.0
    if ceilings is None:
        return 1.0 + 0.5 * extra / moved
    first = (moved - extra) / ceilings.copy_bytes_per_s * 1e6
    if in_flight < 0.6 * ceilings.l2_bytes:
        # Hits in L2 of some programs go on beside the first reads of others; as in the cost model they overlap, never fully.
        return max(math.hypot(first, extra / ceilings.l2_bytes_per_s * 1e6), rest) / max(first, rest, 1e-6)
    return max(first + extra / ceilings.copy_bytes_per_s * 1e6, rest) / max(first, rest, 1e-6)


_CASE = """import torch, triton
import triton.language as tl

CASES = {"wide": dict(m=2048, n=65536)}
SMALL = {"tiny": dict(m=3, n=200), "odd": dict(m=2, n=77)}
TOLERANCE = dict(rtol=1e-4, atol=1e-5)


@triton.jit
def center_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0)
    mean = tl.sum(total, 0) / N
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0)
        tl.store(y_ptr + row * N + cols, x - mean, mask=cols < N)


def launch(x):
    y = torch.empty_like(x)
    center_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=1024)
    return y


def reference(x):
    return x - x.mean(1, keepdim=True)


def make_inputs(*, device, seed, m, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(m, n, device=device))
"""

_CLEAN = (
    _CASE.replace(
        """    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0)
    mean = tl.sum(total, 0) / N
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0)
        tl.store(y_ptr + row * N + cols, x - mean, mask=cols < N)
""",
        """    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0)
    mean = tl.sum(x, 0) / N
    tl.store(y_ptr + row * N + cols, x - mean, mask=cols < N)
""",
    )
    .replace("n=65536", "n=4096")
    .replace("BLOCK=1024)", "BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)")
)

MultiPass.examples = (
    Example(title="mean in one pass, centring in another", line=19, grade="located", before=_CASE),
    Example(title="the row stays in registers", before=_CLEAN),
)
