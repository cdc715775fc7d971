"""TIL102: one tile spans a whole row or image."""

from collections.abc import Iterable

import msgspec

from leadline.model import Constant, Hypothesis, KernelFacts, Launch, Option, Probe, Rewrite, SourceEdit
from leadline.rules.base import Rule, View, located, metric, raised, weakened
from leadline.rules.grid.work import launched, numbers, threads
from leadline.rules.tile.examples.tile_too_large import EXAMPLES
from leadline.rules.tile.padding import Padding, fitted, padding, padding_gain
from leadline.rules.tile.pressure import constant_argument, pressure, rounded_up, site_of

BLOCKS = (1024, 2048, 4096)


class TileTooLarge(Rule):
    """One tile spans a whole row or image.

    What it finds
        A block size that the wrapper computes as the next power of two of a whole axis, so that each thread holds dozens or hundreds of
        elements; a block, computed or literal, of which the masks let less than half through.

    Why it is slow
        Live values fill or exceed the registers, few blocks fit a multiprocessor, all loads are issued at once and then waited for; the
        padding is computed and discarded.

    How it is proved
        Elements per thread and the share of active lanes from the sampler; registers, spills and blocks per multiprocessor once compiled.

    Rewrite and its safety
        A padded block: the next power of two of the extent (what the lanes compute stays; sums add in another order). Elementwise
        kernels: a second grid axis walks the row in blocks of 1024 (safe). Row reductions: a loop over blocks with one
        accumulator per lane, maximum and sum of exponentials in the online form (the order of additions changes).

    References
        Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Liger-Kernel pull request 1271.
    """

    code = "TIL102"
    slug = "tile-too-large"
    cause = "tile_too_large"
    family = "tile"
    examples = EXAMPLES

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch, facts in launched(view):
            site = site_of(view, launch)
            if site is None:
                continue
            values = numbers(launch)
            for operation in facts.of_kind("arange"):
                for parameter in facts.parameters:
                    if not parameter.constexpr or parameter.name not in operation.text:
                        continue
                    block = values.get(parameter.name)
                    padded = padding(view, launch, facts, parameter.name)
                    if padded is not None:
                        yield from self._padded(view, launch, facts, operation.line, parameter.name, padded)
                        continue
                    extent = rounded_up(site, parameter.name, view)
                    if extent and isinstance(block, int):
                        yield from self._range(view, launch, facts, operation.line, parameter.name, block, extent)

    def _padded(self, view: View, launch: Launch, facts: KernelFacts, line: int, name: str, found: Padding) -> Iterable[Hypothesis]:
        low, high = padding_gain(view, launch, facts, found)
        if high < 1.03:
            return
        yield self.hypothesis(
            view,
            launch,
            line=line,
            low=low,
            high=high,
            key=f"{launch.kernel}:{name}:padding",
            sufficient_level=3,
            claim=f"{name} is {found.block} for {found.extent} elements"
            + ("" if found.bound.isdigit() else f" (`{found.bound}`)")
            + f": {found.share:.0%} of the lanes are padding, {found.enough} would do",
            grade="observed" if launch.index in view.samples else "suspected",
            prediction=f"a block of {found.enough} computes {found.block // found.enough} times fewer lanes",
            facts=[
                metric("padding", found.share, "of the lanes", launch, line, predicted=False, collector="trace"),
                metric("elements_per_thread", found.block / threads(launch), "elements", launch, line, predicted=False, collector="trace"),
            ],
        )

    def _range(self, view: View, launch: Launch, facts: KernelFacts, line: int, name: str, block: int, extent: str) -> Iterable[Hypothesis]:
        per_thread = block / threads(launch)
        wanted, _, lanes = pressure(view, launch, facts)
        waste = 1.0 - active_share(view, launch, block)
        if per_thread < 16 and waste < 0.3:
            return
        if lanes > block:
            per_thread = lanes / threads(launch)
        high = max(1.0, min(5.0, 1.0 + 2.0 * (wanted - 0.9)))
        # Padding moves no bytes: it costs issue slots and registers only.
        high = max(high, 1.0 + 0.15 * waste * min(1.0, per_thread / 16))
        if per_thread >= 32:
            high = max(high, 1.08)
        if high < 1.03:
            return
        yield self.hypothesis(
            view,
            launch,
            line=line,
            low=1.0 + (high - 1.0) * 0.25,
            high=high,
            key=f"{launch.kernel}:{name}",
            sufficient_level=3,
            claim=f"{name} is {_relation(view, launch, name, extent)}: {block} elements, "
            f"{per_thread:.0f} a thread, {waste:.0%} of them padding",
            grade="observed" if launch.index in view.samples else "suspected",
            notes=(f"block={name}", f"extent={extent}"),
            prediction="fewer registers, no spills, more blocks on a multiprocessor",
            facts=[
                metric("elements_per_thread", per_thread, "elements", launch, line, predicted=False, collector="trace"),
                metric("register_demand", wanted, "x", launch, line, collector="source"),
            ],
        )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        compiled = view.compiled.get(hypothesis.launch)
        if launch is None or compiled is None or compiled.error or hypothesis.grade not in ("suspected", "observed"):
            return hypothesis
        name = padded_name(hypothesis)
        if name:
            return self._explained(view, launch, hypothesis, name)
        resources = compiled.resources
        spilled = resources.spill_store_bytes + resources.spill_load_bytes
        fact = located(
            "ptxas", f"{resources.registers} registers, {spilled} bytes spilled", launch, hypothesis.span.line, resources.registers
        )
        blocks = 65536 // max(1, resources.registers * threads(launch)) if resources.registers else 99
        if spilled:
            return raised(hypothesis, "located", fact)
        if blocks <= 2 and resources.registers >= 40:
            capped = msgspec.structs.replace(
                hypothesis.estimate, low=min(hypothesis.estimate.low, 1.0), high=min(hypothesis.estimate.high, 1.15)
            )
            return raised(msgspec.structs.replace(hypothesis, estimate=capped), "located", fact)
        # The compiler found room for the tile: only the padding is left.
        capped = msgspec.structs.replace(hypothesis.estimate, low=1.0, high=min(hypothesis.estimate.high, 1.04))
        return weakened(msgspec.structs.replace(hypothesis, estimate=capped), fact)

    def _explained(self, view: View, launch: Launch, hypothesis: Hypothesis, name: str) -> Hypothesis:
        """The estimate from the machine code, and the registers and instructions that the padded block takes."""
        facts = view.kernel(launch)
        found = padding(view, launch, facts, name) if facts else None
        if facts is None or found is None:
            return hypothesis
        low, high = padding_gain(view, launch, facts, found)
        estimate = self.hypothesis(view, launch, line=hypothesis.span.line, claim="", low=low, high=high).estimate
        line, registers = hypothesis.span.line, view.compiled[launch.index].resources.registers
        count = view.counter(launch.index, "instructions") or 0
        return raised(
            msgspec.structs.replace(hypothesis, estimate=estimate),
            "located",
            located("ptxas", f"registers a thread, the padding's {found.share:.0%} of the lanes included", launch, line, registers),
            located("sass", "instructions of the kernel", launch, line, count),
        )

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        compiled = view.compiled.get(hypothesis.launch)
        made = next(iter(self.rewrite(view, hypothesis)), None)
        if made is None or compiled is None or compiled.error:
            return
        if padded_name(hypothesis):
            yield Probe(
                claim="a block that fits the extent leaves fewer instructions",
                grants=(SourceEdit(text=made.source, label=made.title), *_constants(made)),
                signature="instructions",
                expect="decrease",
                stage="sass",
                launch=hypothesis.launch,
            )
            return
        # Fewer registers alone prove nothing about a tile that fits; only spills that go away do.
        if compiled.resources.spill_store_bytes + compiled.resources.spill_load_bytes:
            facts = _constants(made)
            yield Probe(
                claim="blocks of the row stay in registers",
                grants=(SourceEdit(text=made.source, label=made.title), *facts),
                signature="spill_bytes",
                expect="decrease",
                stage="sass",
                launch=hypothesis.launch,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        from leadline.rules.tile.column_blocks import column_grid
        from leadline.rules.tile.row_loop import looped

        launch = next((x for x in view.launches if x.index == hypothesis.launch), None)
        facts = view.kernel(launch) if launch else None
        noted = dict(n.split("=", 1) for n in hypothesis.notes if "=" in n)
        name = padded_name(hypothesis)
        found = padding(view, launch, facts, name) if launch and facts and name else None
        if launch is not None and facts is not None and found is not None:
            source = fitted(view, launch, facts, name, found)
            if source:
                yield Rewrite(
                    id="",
                    rule=self.code,
                    title=f"{name} = the next power of two of the extent",
                    source=source,
                    applicability="changes_numerics" if facts.of_kind("sum", "max", "min", "reduce", "scan", "dot") else "safe",
                    precondition="the block only makes ranges from 0, all masked by the same extent",
                    prediction=hypothesis.prediction,
                    signature="instructions",
                    expect="decrease",
                    finding=f"{self.code}:{hypothesis.key}",
                    choices={name: found.enough},
                )
            return
        if launch is None or facts is None or "block" not in noted:
            return
        for block in BLOCKS:
            warps = 4 if block <= 2048 else 8
            made = [
                (
                    "columns",
                    column_grid(view, launch, facts, noted["block"], block, warps),
                    f"a second grid axis in blocks of {block}",
                    "safe",
                ),
                (
                    "rows",
                    looped(view, launch, facts, noted["block"], block, warps),
                    f"loop over the row in blocks of {block}",
                    "changes_numerics",
                ),
            ]
            for kind, source, title, applicability in made:
                if source:
                    precondition = "no operation crosses lanes" if kind == "columns" else "sums and maxima over the row; padding is neutral"
                    yield Rewrite(
                        id="",
                        rule=self.code,
                        title=title,
                        source=source,
                        applicability=applicability,
                        precondition=precondition,
                        prediction="fewer registers, no spills",
                        signature="res.registers",
                        expect="decrease",
                        finding=f"{self.code}:{hypothesis.key}",
                        choices={noted["block"]: block, "num_warps": warps},
                    )


def padded_name(hypothesis: Hypothesis) -> str:
    """The padded block that the hypothesis is about; "" when it is about a tile that is too large for other reasons."""
    _, _, rest = hypothesis.key.partition(":")
    return rest.removesuffix(":padding") if rest.endswith(":padding") else ""


def _constants(made: Rewrite) -> list[Option | Constant]:
    return [Option(name=n, value=v) if n == "num_warps" else Constant(argument=n, value=v) for n, v in made.choices.items()]


def _relation(view: View, launch: Launch, name: str, extent: str) -> str:
    """How the wrapper computes the block: the next power of two of the extent, or the expression that holds it."""
    site = site_of(view, launch)
    text = constant_argument(site, name, view) if site else ""
    plain = text.endswith(")") and text.split("(", 1)[0].rsplit(".", 1)[-1].startswith("next_pow")
    return f"the next power of two of `{extent}`" if plain and text == f"{text.split('(', 1)[0]}({extent})" else f"`{text}`"


def active_share(view: View, launch: Launch, block: int) -> float:
    """Share of lanes that the masks let through, over accesses of at least half a block; 1 when not sampled."""
    sample = view.samples.get(launch.index)
    wide = [a for a in sample.accesses if a.lanes >= block // 2] if sample else []
    return min((a.active for a in wide), default=1.0)
