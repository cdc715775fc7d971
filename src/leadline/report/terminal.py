"""A run on a terminal: findings as a compiler prints them, then what was ruled out, the levels, the limit and the rounds.

Lines are laid out here rather than by rich's tables: no trailing blanks when piped, diffs that can be applied, excerpts that stay aligned.
Rich supplies styles, width and NO_COLOR.
"""

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from leadline.model import Evidence, Finding, Run
from leadline.report import content

GRADE_STYLE = {
    "suspected": "yellow", "observed": "yellow", "located": "cyan", "confirmed": "bold green", "verified": "bold green",
}  # fmt: skip
VERDICT_STYLE = {
    "accepted": "green", "confirmed": "green", "rejected": "red", "not moved": "red", "void": "red",
    "inconclusive": "yellow", "could not run": "yellow",
}  # fmt: skip
EVIDENCE_SHOWN = 3  # per level and finding, without -v
LABEL = 11
NARROWEST = 10  # columns of a table


def render(run: Run, console: Console, *, verbose: bool = False, quiet: bool = False) -> None:
    """Print `run`. `quiet`: one line per finding (and the outcome of rounds); `verbose`: all evidence, with how to see it again."""
    _Page(run, console, verbose).quiet() if quiet else _Page(run, console, verbose).full()


class _Page:
    def __init__(self, run: Run, console: Console, verbose: bool) -> None:
        self.run, self.console, self.verbose = run, console, verbose
        self.fixes = content.fixes(run)
        # A very wide terminal does not make long lines readable.
        self.width = max(40, min(console.width, 120))

    # -- pages ------------------------------------------------------------------------------------------------------

    def quiet(self) -> None:
        for f in self.run.findings:
            head = f"{content.place(f)}: {f.rule} {content.slug(f.rule, f.cause)} {f.grade}"
            self.out(Text(f"{head} ({content.standing(f, self.run)}): {f.summary}"))
        if self.run.rounds or self.run.command in ("optimize", "verify"):
            self.out(Text(content.outcome(self.run)))

    def full(self) -> None:
        self.paragraph(content.heading(self.run), 0, "dim")
        for node in content.tree(self.run):
            self.blank()
            self.finding(node, 0)
        self.refuted()
        self.unavailable()
        self.levels()
        self.rounds()
        for error in self.run.errors:
            self.labelled("rule error", error, style="red")
        self.blank()
        if text := content.limit(self.run):
            self.labelled("limit", text, indent=0)
        if self.run.rounds and self.run.findings:
            self.labelled("findings", content.tally(self.run), indent=0)
        if text := content.checked(self.run):
            self.labelled("checked", text, indent=0)
        self.out(Text(content.outcome(self.run), style="bold"))
        if self.run.id:
            self.out(Text(f"run {self.run.id}  {self.run.seconds:.1f} s", style="dim"))

    def finding(self, node: content.Node, depth: int) -> None:
        f, pad = node.finding, 2 * depth
        head = Text(" " * pad)
        if depth:
            head.append("causes ", style="dim")
        head.append(content.place(f), style="bold")
        head.append("  ")
        head.append(f"{f.rule} {content.slug(f.rule, f.cause)}", style="bold red")
        head.append("  ")
        head.append(f.grade, style=GRADE_STYLE.get(f.grade, ""))
        head.append("  ")
        head.append(content.standing(f, self.run), style="dim")
        self.out(head)
        self.paragraph(f.summary, pad + 2)
        self.excerpt(f, pad)
        if f.why:
            self.labelled("why", f.why, indent=pad + 2)
        self.evidence(f.evidence, pad + 2)
        if against := [e for ident in f.against if (e := self.run.evidence.get(ident))]:
            for e in against:
                self.labelled("against", self.spoken(e), indent=pad + 2, style="yellow")
        self.probes(f, pad + 2)
        offered = self.fixes[f.rule, f.key]
        for position, fix in enumerate(offered):
            self.rewrite(fix, pad + 2, full=position == 0 or self.verbose)
        if not offered:
            self.labelled("fix", content.no_fix(f), indent=pad + 2, style="dim")
        for child in node.children:
            self.blank()
            self.finding(child, depth + 1)
        for key in node.others:
            self.labelled("causes", key.replace(":", " ", 1), indent=pad + 2, style="dim")

    def excerpt(self, finding: Finding, pad: int) -> None:
        lines = content.excerpt(self.run, finding)
        if not lines:
            return
        gutter = len(str(lines[-1].number))
        # Cropped on a terminal only, where a wrapped line would break the underline; a pipe gets whole lines.
        room = self.width - pad - gutter - 5 if self.console.is_terminal else 10**6
        bar = " " * (pad + 2)
        self.out(Text(f"{bar}{'':>{gutter}} |", style="blue"))
        for line in lines:
            row = Text()
            row.append(f"{bar}{line.number:>{gutter}} |", style="blue")
            text = line.text.rstrip()
            row.append(f" {text if len(text) <= room else text[: room - 1] + '…'}" if text else "")
            self.out(row)
            if line.end > line.start and line.start < room:
                mark = Text()
                mark.append(f"{bar}{'':>{gutter}} |", style="blue")
                marks = "^" * (min(line.end, room) - line.start)
                mark.append(" " * (line.start + 1) + marks, style="bold red")
                self.out(mark)
        self.out(Text(f"{bar}{'':>{gutter}} |", style="blue"))

    def evidence(self, ids: tuple[str, ...], pad: int) -> None:
        for level, items in content.groups(self.run, ids):
            label = f"{level} {content.LEVEL_NAMES[level]}" if level else "missing"
            shown = items if self.verbose else items[:EVIDENCE_SHOWN]
            for position, item in enumerate(shown):
                self.labelled(label if position == 0 else "", self.spoken(item), indent=pad, style="cyan")
                self.reproduce(item, pad)
            if hidden := len(items) - len(shown):
                self.labelled("", f"and {hidden} more (-v)", indent=pad, style="dim")

    def spoken(self, item: Evidence) -> str:
        return f"[{item.id}] {content.sentence(item)}" if self.verbose and item.id else content.sentence(item)

    def reproduce(self, item: Evidence, pad: int) -> None:
        command = getattr(item, "reproduce", "")
        if self.verbose and command:
            self.out(Text(" " * (pad + LABEL) + f"$ {command}", style="dim"))

    def probes(self, finding: Finding, pad: int) -> None:
        rows = content.probe_rows(self.run, finding)
        if not rows:
            return
        titles = ("granted", "signature", "before → after", "predicted", "verdict")
        table = [tuple(row[:5]) for row in rows]
        self.labelled("probes", "", indent=pad, style="cyan")
        self.table(titles, table, pad + 2, [row.detail for row in rows])

    def rewrite(self, fix: content.Fix, pad: int, *, full: bool) -> None:
        rewrite = fix.rewrite
        head = Text(" " * pad)
        head.append(f"{fix.label:<{LABEL}}", style="green")
        name = f"{rewrite.id}  " if self.verbose else ""
        head.append(f"{name}{rewrite.title}  ", style="bold")
        head.append(f"[{rewrite.applicability}]", style="green" if rewrite.applicability == "safe" else "yellow")
        self.out(head)
        if not full:
            return
        for label, text in (("requires", rewrite.precondition), ("guard", rewrite.guard), ("predicted", rewrite.prediction)):
            if text:
                self.labelled(label, text, indent=pad, style="dim")
        if fix.same_as:
            self.labelled("", f"same change as {fix.same_as} above", indent=pad, style="dim")
            return
        for line in rewrite.diff.splitlines():
            self.out(Text(" " * pad + line, style=_diff_style(line)))

    # -- what follows the findings ----------------------------------------------------------------------------------

    def refuted(self) -> None:
        if self.run.refuted:
            self.title("ruled out")
        for h in self.run.refuted:
            where = f"{content.shown(h.span.file)}:{h.span.line}"
            self.paragraph(f"{where} {h.rule} {content.slug(h.rule, h.cause)}: {h.claim}", 2)
            self.labelled("because", h.refuted, indent=4, style="dim")
            if self.verbose:
                self.evidence((*h.evidence, *h.against), 4)

    def unavailable(self) -> None:
        if self.run.unavailable:
            self.title("could not be had")
        for u in self.run.unavailable:
            self.paragraph(f"{u.what}: {u.reason}", 2)
            if u.remedy:
                self.labelled("remedy", u.remedy, indent=4, style="dim")

    def levels(self) -> None:
        if not self.run.levels:
            return
        self.title("levels")
        rows = []
        for v in self.run.levels:
            marks = ["yes" if passed else "no" for passed in (v.located, v.narrowed, v.explained)]
            name = f"{v.level} {content.LEVEL_NAMES.get(v.level, '')}"
            rows.append((name, *marks, f"{v.seconds:.1f} s", v.why_deeper or ("enough" if v.explained else "")))
        self.table(("level", "located", "narrowed", "explained", "time", "why deeper"), rows, 2)

    def rounds(self) -> None:
        rows = content.round_rows(self.run)
        if not rows:
            return
        self.title("rounds")
        self.table(("round", "from", "rewrite", "verdict", "speedup", "reason"), [tuple(row) for row in rows], 2)
        if self.verbose:
            for r in self.run.rounds:
                for check in r.details.checks if r.details else ():
                    state = {True: "passed", False: "failed", None: "not run"}[check.passed]
                    case = f" [{check.case}]" if check.case else ""
                    self.labelled(f"round {r.round}", f"{check.name}{case}: {state} {check.detail}".rstrip(), style="dim")
        if self.run.command != "diagnose" and self.run.best_diff and self.verbose:
            self.title(content.change_title(self.run))
            for line in self.run.best_diff.splitlines():
                self.out(Text(line, style=_diff_style(line)))

    # -- layout -----------------------------------------------------------------------------------------------------

    def out(self, text: Text) -> None:
        if "\x1b" in text.plain:  # from a source file or a compiler; only our own escapes may reach the terminal
            text = Text(text.plain.replace("\x1b", "␛"))
        text.rstrip()
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def blank(self) -> None:
        self.out(Text(""))

    def title(self, text: str) -> None:
        self.blank()
        self.out(Text(text, style="bold"))

    def paragraph(self, text: str, pad: int, style: str = "") -> None:
        for line in self.wrap(text, self.width - pad):
            self.out(Text(" " * pad + line, style=style))

    def labelled(self, label: str, text: str, *, indent: int = 2, style: str = "") -> None:
        """`label` in a column of its own, `text` wrapped beside it."""
        column = max(LABEL, len(label) + 1)
        for position, line in enumerate(self.wrap(text, self.width - indent - column)):
            row = Text(" " * indent)
            row.append(f"{label if position == 0 else '':<{column}}", style=style)
            row.append(line)
            self.out(row)

    def wrap(self, text: str, width: int) -> list[str]:
        joined = " ".join(text.split())
        return textwrap.wrap(joined, max(width, 20), break_long_words=False, break_on_hyphens=False) or [""]

    def table(self, titles: tuple[str, ...], rows: Sequence[tuple[str, ...]], pad: int, details: Sequence[str] = ()) -> None:
        """Columns as wide as their text, the widest ones wrapped; `details[i]` is a line below row i."""
        widths = [max(len(row[c]) for row in (titles, *rows)) for c in range(len(titles))]
        room = self.width - pad - 2 * (len(titles) - 1)
        while sum(widths) > room:
            widest = max(range(len(widths)), key=lambda c: widths[c])
            if widths[widest] <= NARROWEST:
                break
            widths[widest] -= 1
        self.cells(titles, widths, pad, "dim")
        for position, row in enumerate(rows):
            self.cells(row, widths, pad, "")
            if position < len(details) and details[position]:
                self.paragraph(details[position], pad + 2)

    def cells(self, row: tuple[str, ...], widths: list[int], pad: int, style: str) -> None:
        wrapped = [textwrap.wrap(cell, width, break_on_hyphens=False) or [""] for cell, width in zip(row, widths, strict=True)]
        for n in range(max(len(cell) for cell in wrapped)):
            line = Text(" " * pad)
            for cell, width in zip(wrapped, widths, strict=True):
                text = cell[n] if n < len(cell) else ""
                line.append(f"{text:<{width}}", style=style or VERDICT_STYLE.get(text, ""))
                line.append("  ")
            self.out(line)


def _diff_style(line: str) -> str:
    if line.startswith(("---", "+++")):
        return "bold"
    if line.startswith("@@"):
        return "cyan"
    return "green" if line.startswith("+") else "red" if line.startswith("-") else ""
