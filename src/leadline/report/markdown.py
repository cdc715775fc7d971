"""A run as Markdown: for pull requests, issues and notes."""

import re

from leadline.model import Finding, Run
from leadline.report import content


def markdown(run: Run) -> str:
    """Markdown text (GitHub flavour) with the same content as the terminal's."""
    out = [f"# Leadline: {_plain(content.shown(run.path) or 'run')}", "", _plain(content.heading(run)), ""]
    out += [f"**{_plain(content.outcome(run))}**", ""]
    if text := content.checked(run):
        out += [f"Checked: {_plain(text)}", ""]
    if text := content.limit(run):
        out += [f"Limit: {_plain(text)}", ""]
    fixes = content.fixes(run)
    for node in content.tree(run):
        out += _node(run, node, fixes, 2)
    if run.refuted:
        out += ["## Ruled out", ""]
        out += [
            f"* `{content.shown(h.span.file)}:{h.span.line}` **{h.rule} {content.slug(h.rule, h.cause)}**: "
            f"{_plain(h.claim)}. Because: {_plain(h.refuted)}"
            for h in run.refuted
        ]
        out.append("")
    if run.unavailable:
        out += ["## Could not be had", ""]
        for u in run.unavailable:
            remedy = f". Remedy: {_plain(u.remedy)}" if u.remedy else ""
            out.append(f"* {_plain(u.what)}: {_plain(u.reason)}{remedy}")
        out.append("")
    if run.levels:
        rows = [
            (
                f"{v.level} {content.LEVEL_NAMES.get(v.level, '')}",
                *("yes" if passed else "no" for passed in (v.located, v.narrowed, v.explained)),
                f"{v.seconds:.1f} s",
                v.why_deeper,
            )
            for v in run.levels
        ]
        out += ["## Levels", "", *_table(("level", "located", "narrowed", "explained", "time", "why deeper"), rows), ""]
    if rounds := content.round_rows(run):
        titles = ("round", "from", "rewrite", "verdict", "speedup", "reason")
        out += ["## Rounds", "", *_table(titles, [tuple(r) for r in rounds]), ""]
    if run.best_diff:
        out += [f"## {content.change_title(run).capitalize()}", "", *_fence(run.best_diff, "diff"), ""]
    if run.errors:
        out += ["## Rules that failed", "", *(f"* {_plain(e)}" for e in run.errors), ""]
    return "\n".join(out).rstrip() + "\n"


def _node(run: Run, node: content.Node, fixes: dict[tuple[str, str], tuple[content.Fix, ...]], depth: int) -> list[str]:
    f = node.finding
    causes = "Causes: " if depth > 2 else ""
    out = [f"{'#' * min(depth, 6)} {causes}{f.rule} {content.slug(f.rule, f.cause)} at `{content.place(f)}`", ""]
    out += [f"*{f.grade}, {content.standing(f, run)}.* {_plain(f.summary)}", ""]
    out += _excerpt(run, f)
    if f.why:
        out += [f"Why: {_plain(f.why)}", ""]
    for level, items in content.groups(run, f.evidence):
        name = f"Level {level} ({content.LEVEL_NAMES[level]})" if level else "Missing"
        out += [f"* {name}: {_plain(content.sentence(item))} ({item.id})" for item in items]
    out += [f"* Against: {_plain(content.sentence(e))}" for i in f.against if (e := run.evidence.get(i))]
    if out[-1]:
        out.append("")
    if rows := content.probe_rows(run, f):
        titles = ("granted", "signature", "before → after", "predicted", "verdict", "detail")
        out += [*_table(titles, [tuple(row) for row in rows]), ""]
    for label, rewrite, same_as in (offered := fixes[f.rule, f.key]):
        out += [f"**{label.capitalize()}: {_plain(rewrite.title)}** ({rewrite.applicability})", ""]
        for name, text in (("Requires", rewrite.precondition), ("Guard", rewrite.guard)):
            out += [f"{name}: {_plain(text)}", ""] if text else []
        out += [f"Predicted: {_plain(rewrite.prediction)}", ""] if rewrite.prediction else []
        if same_as:
            out += [f"Same change as {same_as} above.", ""]
        elif rewrite.diff:
            out += [*_fence(rewrite.diff, "diff"), ""]
    if not offered:
        out += [f"Fix: {_plain(content.no_fix(f))}", ""]
    for child in node.children:
        out += _node(run, child, fixes, depth + 1)
    if node.others:
        out += [f"Also causes: {', '.join(node.others)}", ""]
    return out


def _excerpt(run: Run, finding: Finding) -> list[str]:
    lines = content.excerpt(run, finding)
    marked = (f"{line.number:>5} {'>' if line.end > line.start else ' '} {line.text.rstrip()}".rstrip() for line in lines)
    return [*_fence("\n".join(marked), ""), ""] if lines else []


def _fence(text: str, language: str) -> list[str]:
    # Longer than any run of backticks inside, so that the text cannot end the block.
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", text.rstrip("\n"), fence]


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_<>\[\]|#])", r"\\\1", " ".join(text.split()))


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    out = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    return out + ["| " + " | ".join(_plain(cell) for cell in row) + " |" for row in rows]
