"""Neighbouring launch configurations, for a clock to choose from: warps, stages, and power-of-two constants of the launch."""

import ast
from collections.abc import Iterable

from leadline.collect import source
from leadline.model import Candidate, Finding, KernelCase, LaunchSite, Rewrite, content_hash
from leadline.propose.base import Proposal
from leadline.rules.editing import SourceFile

MAX_WARPS, MAX_STAGES = 16, 6
DEFAULT_WARPS, DEFAULT_STAGES = 4, 3


class SearchProposer:
    """One step along one constant at a time, from what the parent has: a round that wins is the next round's parent, so the search
    climbs. A literal of the grid that equals the changed constant moves with it; whether that was meant, the judge finds out.
    """

    name = "search"

    def propose(self, parent: Candidate, findings: tuple[Finding, ...], rewrites: dict[str, Rewrite]) -> Iterable[Proposal]:
        facts = source.read(KernelCase(path="candidate.py", source=parent.source, kernels=()), {})
        for site in facts.wrapper.launches if facts.wrapper else ():
            kernel = facts.kernel(site.kernel)
            if kernel is None or any("autotune" in d for d in kernel.decorators):
                continue
            has_dot = bool(kernel.of_kind("dot"))
            changes = [*_option_changes(site, has_dot), *_constant_changes(site, {p.name for p in kernel.parameters if p.constexpr})]
            for name, value, option in changes:
                file = SourceFile(parent.source)
                try:
                    if option:
                        file.set_launch_option(site.line, name, str(value))
                    else:
                        file.resize_block(site.line, name, value)
                    text = file.apply()
                except ValueError:
                    continue
                title = f"{site.kernel}: {name}={value}"
                yield Proposal(
                    candidate=Candidate(id=content_hash(text), source=text, proposer=self.name, parent=parent.id, title=title),
                    hypothesis=f"{title} is faster on this device",
                    group=f"search:{site.line}",
                    rule="",
                )


def _literal(text: str | None) -> int | None:
    try:
        value = ast.literal_eval(text or "")
    except (ValueError, SyntaxError):
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _option_changes(site: LaunchSite, has_dot: bool) -> list[tuple[str, int, bool]]:
    warps, stages = site.options.get("num_warps"), site.options.get("num_stages")
    have_warps = DEFAULT_WARPS if warps is None else _literal(warps)
    have_stages = DEFAULT_STAGES if stages is None else _literal(stages)
    out: list[tuple[str, int, bool]] = []
    if have_warps is not None:
        out += [("num_warps", w, True) for w in (have_warps * 2, have_warps // 2) if 1 <= w <= MAX_WARPS]
    if have_stages is not None and has_dot:
        out += [("num_stages", s, True) for s in (have_stages + 1, have_stages - 1) if 1 <= s <= MAX_STAGES]
    return out


def _constant_changes(site: LaunchSite, constexprs: set[str]) -> list[tuple[str, int, bool]]:
    """Half and double every power-of-two constexpr that the launch gives as a literal."""
    out: list[tuple[str, int, bool]] = []
    for name, text in site.arguments.items():
        value = _literal(text)
        if name in constexprs and value is not None and value >= 8 and value & (value - 1) == 0:
            out += [(name, v, False) for v in (value * 2, value // 2) if 8 <= v <= 65536]
    return out
