"""MEM106 redundant-loads."""

from collections.abc import Iterable

from leadline.model import Access, Hypothesis, KernelFacts, Launch, Probe, Rewrite, SourceEdit
from leadline.rules.base import Example, Rule, View, located, metric, raised, seen
from leadline.rules.memory.argument_facts import launch_of
from leadline.rules.memory.hoisting import hoisted
from leadline.rules.memory.instruction_cost import access_us, gain, possible_width, requested, scaled

L1_BYTES = 128 << 10


class RedundantLoads(Rule):
    """The same values are loaded again by other lanes, iterations or programs.

    What it finds
        Loads inside a loop whose address does not change there; loads where neighbouring lanes share an address (`k // 2` of packed
        data); loads that are the same for all programs along an axis and carry a large part of the traffic.
    Why it is slow
        The caches answer most of it, but every repeat takes load slots, cache bandwidth and latency.
    How it is proved
        Sampled addresses count how often a program, and the next program on each axis, touches the same address again.
    Rewrite and its safety
        A load whose address and mask do not change in the loop moves before it, when nothing in the loop stores through the same
        pointer and the loop runs at least once or the load is masked.
    References
        vLLM pull request 43389; unsloth pull request 238; MLIR loop-invariant code motion (stops at any store in the loop).
    """

    code, slug, cause, family = "MEM106", "redundant-loads", "redundant_loads", "memory"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            facts = view.kernel(launch)
            for access in facts.accesses if facts else ():
                if facts is None or access.kind != "load":
                    continue
                found = self._invariant(view, launch, facts, access) or self._lanes(view, launch, access)
                if found:
                    yield found
            if facts is not None:
                yield from self._neighbours(view, launch, facts)

    def _invariant(self, view: View, launch: Launch, facts: KernelFacts, access: Access) -> Hypothesis | None:
        sample = view.access(launch.index, access.line, "load")
        loop = facts.loop(access.loop)
        if (
            loop is None
            or access.loop in access.loops
            or loop.kind == "static_range"
            or not sample
            or sample.executions < 2
            or access.indirect
        ):
            return None
        # The address may be carried from iteration to iteration; then the sampled addresses differ.
        if sample.repeat < 0.9 * sample.executions and sample.repeat < 4:
            return None
        everything = requested(view, launch)
        share = sample.total / everything if everything > 0 else 0.0
        saved = share * (1 - 1 / sample.executions)
        low, high = scaled(view, launch, l2=1 - saved, latency=1 - 0.3 * saved)
        issue = access_us(sample, possible_width(sample), launch.programs, view.sms)
        high = max(high, gain(view, launch, issue, issue / sample.executions)[1])
        return self.hypothesis(
            view,
            launch,
            line=access.line,
            column=access.column,
            end_line=access.end_line,
            key=f"{launch.kernel}:{access.line}",
            low=min(low, high),
            high=high,
            grade="observed",
            sufficient_level=3,
            claim=f"`{access.text}` does not change in the loop of line {loop.line} and is loaded {sample.executions:.0f} times",
            facts=[
                metric("loads of the same address", sample.repeat, "times", launch, access.line),
                seen(f"the address depends on nothing in the loop of line {loop.line}", launch.kernel_file, access.line),
            ],
            prediction="one load before the loop",
        )

    def _lanes(self, view: View, launch: Launch, access: Access) -> Hypothesis | None:
        sample = view.access(launch.index, access.line, "load")
        if sample is None or not access.divmod or sample.repeat < 1.8 or sample.lanes < 64 or access.indirect:
            return None
        each = min(sample.repeat, 8.0)
        everything = requested(view, launch)
        share = sample.total / everything if everything > 0 else 0.0
        if share < 0.1 or _row_broadcast(access):
            return None
        before = access_us(sample, sample.itemsize, launch.programs, view.sms)
        low, high = scaled(view, launch, l2=1 - share * (1 - 1 / each))
        high = max(high, min(gain(view, launch, before, before / each)[1], 1.0 + 0.7 * share * (1 - 1 / each)))
        return self.hypothesis(
            view,
            launch,
            line=access.line,
            column=access.column,
            end_line=access.end_line,
            key=f"{launch.kernel}:{access.line}",
            low=min(max(low, 1 + (high - 1) * 0.4), high),
            high=high,
            grade="observed",
            sufficient_level=3,
            claim=f"each address of `{access.text}` is loaded by {sample.repeat:.1f} lanes: packed values are fetched once per part",
            facts=[
                metric("lanes per address", sample.repeat, "lanes", launch, access.line),
                metric("share of requested bytes", share, "share", launch, access.line),
                seen(f"the address `{access.expanded}` divides a tile", launch.kernel_file, access.line),
            ],
            prediction=f"one load per {sample.repeat:.0f} lanes, unpacked in registers",
        )

    def _neighbours(self, view: View, launch: Launch, facts: KernelFacts) -> Iterable[Hypothesis]:
        if facts.of_kind("dot") or launch.programs < 4 * view.sms:
            return
        everything = requested(view, launch)
        for axis in range(3):
            if launch.grid[axis] < 2:
                continue
            same = [
                (a, s)
                for a in facts.accesses
                if a.kind == "load"
                and a.loop < 0
                and (s := view.access(launch.index, a.line, "load")) is not None
                and s.shared.get(axis, 0.0) > 0.95
                and s.lanes >= 16
                and s.unique > L1_BYTES
            ]
            total = sum(s.total for _, s in same)
            if not same or everything <= 0 or total / everything < 0.2:
                continue
            low, high = scaled(view, launch, l2=1 - total / everything * 0.9)
            access, sample = max(same, key=lambda p: p[1].total)
            yield self.hypothesis(
                view,
                launch,
                line=access.line,
                key=f"{launch.kernel}:axis{axis}",
                low=low,
                high=high,
                grade="observed",
                sufficient_level=2,
                claim=f"{len(same)} load(s) serve all {launch.grid[axis]} programs of axis {axis}: {total / everything:.0%} of the bytes",
                facts=[
                    metric(f"shared with the next program of axis {axis}", sample.shared[axis], "share", launch, access.line),
                    metric("share of requested bytes", total / everything, "share", launch, access.line),
                ],
                prediction=f"a program that handles several indices of axis {axis} loads them once",
            )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = launch_of(view, hypothesis)
        count = view.counter(hypothesis.launch, "global.load.count", hypothesis.span.line) if launch else None
        if launch is None or not count or hypothesis.grade != "observed":
            return hypothesis
        return raised(hypothesis, "located", located("ptx", "load instructions", launch, hypothesis.span.line, count))

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        for made in self.rewrite(view, hypothesis):
            yield Probe(
                claim="hoisted, the load leaves the loop",
                grants=(SourceEdit(text=made.source, label=made.title),),
                signature="loop.load",
                expect="decrease",
                stage="ttgir",
                launch=hypothesis.launch,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = launch_of(view, hypothesis)
        source = hoisted(view, launch, hypothesis.span.line) if launch and "axis" not in hypothesis.key else None
        if source:
            yield Rewrite(
                id="",
                rule=self.code,
                title="load before the loop",
                source=source,
                precondition="nothing in the loop stores through the same pointer, and the loaded address and mask do not change in it",
                signature="loop.load",
                expect="decrease",
                finding=f"{self.code}:{hypothesis.key}",
                prediction=hypothesis.prediction,
            )


def _row_broadcast(access: Access) -> bool:
    """Whether the shared address is a per-row value (`i // n_cols`), whose repeats the hardware broadcasts for free."""
    return "//" in access.expanded and not any(f"// {k}" in access.expanded for k in (2, 4, 8))


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"k8192": dict(k=8192, n=16384)}
SMALL = {"tiny": dict(k=64, n=32), "odd": dict(k=192, n=96)}
TOLERANCE = dict(rtol=1e-3, atol=1e-1)


@triton.jit
def dequant_dot_kernel(a_ptr, w_ptr, y_ptr, K, N, BK: tl.constexpr, BN: tl.constexpr):
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BN,), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptr + k + rk)
        w = tl.load(w_ptr + ((k + rk) // 2)[:, None] * N + rn[None, :])  # two values a byte
        w = (w >> ((rk % 2) * 4)[:, None].to(tl.uint8)) & 15
        acc += tl.sum(w.to(tl.float32) * a[:, None], 0)
    tl.store(y_ptr + rn, acc)


def launch(a, w):
    n = w.shape[1]
    y = torch.empty(n, device=a.device, dtype=torch.float32)
    dequant_dot_kernel[(n // 32,)](a, w, y, a.numel(), n, BK=64, BN=32)
    return y


def reference(a, w):
    both = torch.stack((w & 15, w >> 4), 1).reshape(a.numel(), -1)
    return a @ both.float()


def make_inputs(*, device, seed, k, n):
    torch.manual_seed(seed)
    return dict(a=torch.randn(k, device=device), w=torch.randint(0, 256, (k // 2, n), device=device, dtype=torch.uint8))
"""

CLEAN = """\
import torch
import triton
import triton.language as tl

CASES = {"k8192": dict(k=8192, n=16384)}
SMALL = {"tiny": dict(k=64, n=32), "odd": dict(k=192, n=96)}
TOLERANCE = dict(rtol=1e-3, atol=1e-1)


@triton.jit
def dequant_dot_kernel(a_ptr, w_ptr, y_ptr, K, N, BK: tl.constexpr, BN: tl.constexpr):
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BN,), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptr + k + rk)
        w = tl.load(w_ptr + (k + rk)[:, None] * N + rn[None, :])
        acc += tl.sum(w.to(tl.float32) * a[:, None], 0)
    tl.store(y_ptr + rn, acc)


def launch(a, w):
    n = w.shape[1]
    y = torch.empty(n, device=a.device, dtype=torch.float32)
    dequant_dot_kernel[(n // 32,)](a, w, y, a.numel(), n, BK=64, BN=32)
    return y


def reference(a, w):
    return a @ w.float()


def make_inputs(*, device, seed, k, n):
    torch.manual_seed(seed)
    return dict(a=torch.randn(k, device=device), w=torch.randint(0, 256, (k, n), device=device, dtype=torch.uint8))
"""

RedundantLoads.examples = (
    Example(title="packed values loaded once per part", before=BEFORE, line=17, grade="located"),
    Example(title="one value a byte", before=CLEAN),
)
