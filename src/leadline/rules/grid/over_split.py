"""GRD105: a split whose partial results cost more than the parallelism brings."""

from collections.abc import Iterable

from leadline.model import Hypothesis, Launch, Rewrite
from leadline.rules.base import Rule, View, metric, seen
from leadline.rules.grid.examples.over_split import EXAMPLES
from leadline.rules.grid.work import depth_trips, figure, launched, modelled_us


class OverSplit(Rule):
    """A split (split-K, partial sums) that costs more than it brings.

    What it finds
        A launch that writes partial results, several for each element of the output, and a later launch that only sums them, where the
        first would have finished about as early without the split.

    Why it is slow
        The partial results are written and read once per split, and the second launch waits for the first.

    How it is proved
        Sizes of the partial buffer and of the output in the trace; predicted times of both launches against one launch with a loop as many
        times longer.

    Rewrite and its safety
        The number of splits on the host becomes 1 (or 2); kernels and reduction stay, so only the order of sums changes.

    References
        vllm-project/vllm pull request 30528.
    """

    code = "GRD105"
    slug = "over-split"
    cause = "over_split"
    family = "grid"
    examples = EXAMPLES

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch, facts in launched(view):
            written = {a.base for a in facts.accesses if a.kind == "store" and a.base}
            for name in sorted(written):
                argument = launch.argument(name)
                if argument is None or argument.tensor is None:
                    continue
                reader = _reader(view, launch, argument.tensor.storage)
                if reader is None:
                    continue
                final, out = reader
                ways = argument.tensor.numel / max(1, out)
                if ways < 2 or ways != int(ways) or ways > launch.programs:
                    continue
                yield from self._split(view, launch, final, int(ways), argument.tensor.numel * argument.tensor.itemsize, name)

    def _split(self, view: View, launch: Launch, final: Launch, ways: int, size: int, buffer: str) -> Iterable[Hypothesis]:
        facts = view.kernel(launch)
        first, second = view.costs.get(launch.index), view.costs.get(final.index)
        if facts is None or first is None or second is None or launch.programs % ways:
            return
        count = max((depth_trips(view, launch, loop, facts) for loop in facts.loops), default=1.0)
        if not any(loop.carried for loop in facts.loops):
            return
        overlap = bool(facts.of_kind("dot"))
        now = modelled_us(view, launch, first, overlap=overlap) + modelled_us(view, final, second)
        single = modelled_us(view, launch, first, split=1.0 / ways, chain=1.0 / ways, overlap=overlap)
        single = max(single - 2e6 * size / (view.ceilings.copy_bytes_per_s if view.ceilings else 4e12), first.launch_us)
        total = max(now, sum(view.time_us(x.index) * x.repeats for x in view.launches))
        high = total / max(total - now + single, 1e-9)
        if high < 1.03:
            return
        line = next((a.line for a in facts.accesses if a.kind == "store" and a.base == buffer), facts.line)
        yield self.hypothesis(
            view,
            None,
            line=line,
            low=1.0 + (high - 1.0) * 0.3,
            high=high,
            kernel=launch.kernel,
            file=launch.kernel_file,
            key=f"{launch.kernel}:{buffer}",
            claim=f"{ways} partial results per element ({size / 1e6:.1f} MB) are written and summed by {final.kernel}; one pass of "
            f"{count * ways:.0f} iterations would take about {single:.0f} us instead of {now:.0f} us",
            grade="observed",
            sufficient_level=1,
            prediction="one launch less, no partial buffer",
            facts=[
                metric("splits", ways, "partial results", launch, line, predicted=False, collector="trace"),
                metric("partial_bytes", size, "B", launch, line, predicted=False, collector="trace"),
                seen(f"{final.kernel} only reduces them", final.call_file, final.call_line),
            ],
        )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        from leadline.rules.grid.launch_text import with_literal

        ways = int(figure(hypothesis, "splits"))
        wrapper = view.source.wrapper
        if not wrapper or ways < 2:
            return
        names = [n for n, text in wrapper.assignments.items() if text.strip() == str(ways)]
        for value in [1] + ([2] if ways > 2 else []):
            for name in names:
                source = with_literal(view.text(wrapper.file), wrapper.name, name, value)
                if source:
                    yield Rewrite(
                        id="",
                        rule=self.code,
                        title=f"{name} = {value}",
                        source=source,
                        applicability="changes_numerics",
                        precondition=f"{name} alone sets the number of partial results",
                        prediction="fewer partial results",
                        finding=f"{self.code}:{hypothesis.key}",
                        choices={name: value},
                    )


def _reader(view: View, launch: Launch, storage: int) -> tuple[Launch, int] | None:
    """The later launch that reads `storage` and writes a smaller tensor, and the number of elements it writes."""
    for later in view.launches:
        if later.index <= launch.index or later.kernel == launch.kernel:
            continue
        facts = view.kernel(later)
        if facts is None or any(o.kind == "dot" for o in facts.operations):
            continue
        read = {a.base for a in facts.accesses if a.kind == "load"}
        wrote = {a.base for a in facts.accesses if a.kind == "store"}
        sources = [a for a in later.arguments if a.tensor and a.name in read and a.tensor.storage == storage]
        outs = [a.tensor.numel for a in later.arguments if a.tensor and a.name in wrote]
        if sources and outs and (facts.loops or facts.of_kind("sum", "reduce")):
            return later, max(outs)
    return None
