"""What every format says about a run: order, grouping and wording. Formats only lay it out.

A figure that nothing measured is worded here, once, so that no format can print a prediction as a measurement.
"""

import os
from collections import Counter
from functools import cache
from typing import NamedTuple

from leadline.model import (
    GRADES,
    CompilerMessage,
    Estimate,
    Evidence,
    Finding,
    Interval,
    IrFact,
    Metric,
    PassStep,
    ProbeOutcome,
    Rewrite,
    Round,
    Run,
    SourceFact,
    Verdict,
)

LEVEL_NAMES = {1: "source", 2: "profile", 3: "IR", 4: "compiler"}
NOT_MEASURED = "not measured"
STATIC = ("source", "sampl", "trace")  # collectors that need no device
FINAL = "final"  # the rewrite of the round that compares all accepted changes together with the original


class Node(NamedTuple):
    """A finding and the findings it causes; `others` are consequences ("RULE:key") that are not findings themselves."""

    finding: Finding
    children: tuple["Node", ...]
    others: tuple[str, ...]


class Line(NamedTuple):
    """A line of a code excerpt; columns `start` to `end` (0-based, exclusive end) are underlined, none when equal."""

    number: int
    text: str
    start: int
    end: int


class ProbeRow(NamedTuple):
    granted: str
    signature: str
    change: str
    predicted: str
    verdict: str
    detail: str


class RoundRow(NamedTuple):
    number: str
    parent: str
    rewrite: str
    verdict: str
    speedup: str
    reason: str


@cache
def slugs() -> dict[str, str]:
    """Rule code -> slug, of all installed rules; empty when they cannot be loaded (a report never fails for that)."""
    try:
        from leadline.rules.base import all_rules

        return {rule.code: rule.slug for rule in all_rules()}
    except Exception:  # a broken plug-in must not take the report of a finished run with it
        return {}


def slug(rule: str, cause: str) -> str:
    """The rule's slug; the cause spelt as one where the rule is not installed."""
    return slugs().get(rule) or cause.replace("_", "-")


def shown(file: str) -> str:
    """The path as a person reads it: relative to the working folder when it lies inside it."""
    if not os.path.isabs(file):
        return file
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def place(finding: Finding) -> str:
    """`file:line:column`, column 1-based as editors count."""
    return f"{shown(finding.file)}:{finding.line}:{finding.column + 1}"


def figure(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def gain(estimate: Estimate) -> str:
    """An estimate, always worded as an expectation."""
    low, high = f"{estimate.low:.1f}", f"{estimate.high:.1f}"
    if estimate.high < 1.1:
        low, high = f"{estimate.low:.2f}", f"{estimate.high:.2f}"
    return f"expected {low}x" if low == high else f"expected {low}-{high}x"


def interval(value: Interval) -> str:
    """`1.50x (1.40-1.60)`: the middle, then the interval."""
    return f"{figure(value.mid)}x ({figure(value.low)}-{figure(value.high)})"


def measured(round_: Round, run: Run) -> Interval | None:
    """The round's speedup if a device measured it. A figure without a measurement behind it is not shown as one."""
    if round_.speedup is None:
        return None
    if round_.details is not None:
        return round_.speedup if round_.details.measured else None
    return round_.speedup if run.device else None


def standing(finding: Finding, run: Run) -> str:
    """What is known of the finding's gain: measured when a round on one of its rewrites was accepted, else expected."""
    names = {finding.rewrite, *finding.rewrites} - {""}
    for round_ in run.rounds:
        if round_.rewrite in names and round_.verdict == "accepted" and (value := measured(round_, run)):
            return f"measured {interval(value)}"
    return gain(finding.estimate)


def level_of(evidence: Evidence) -> int:
    """The level that collects this evidence; 0 for unavailable evidence."""
    match evidence:
        case SourceFact():
            return 1
        case Metric():
            return 1 if evidence.collector.startswith(STATIC) else 2
        case IrFact():
            return 3
        case PassStep() | CompilerMessage() | ProbeOutcome():
            return 4
    return 0


def sentence(evidence: Evidence) -> str:
    """One line for a person."""
    match evidence:
        case SourceFact():
            return evidence.what + _at(evidence.line)
        case Metric():
            # What a dry launch counts is neither predicted nor measured: it is so.
            kind = "predicted" if evidence.predicted else "counted" if evidence.collector.startswith(STATIC) else "measured"
            return f"{evidence.name} {amount(evidence.value)} {evidence.unit}".rstrip() + _at(evidence.line) + f" [{kind}]"
        case IrFact():
            value = "" if evidence.value is None else f" = {evidence.value}"
            return f"{evidence.stage}: {evidence.what}{value}" + _at(evidence.line)
        case PassStep():
            names = sorted({*evidence.before, *evidence.after})
            moved = [f"{n} {evidence.before.get(n, 0)} → {evidence.after.get(n, 0)}" for n in names]
            return f"pass {evidence.pass_name} ({evidence.stage}): {', '.join(moved) or 'nothing changed'}"
        case CompilerMessage():
            by = evidence.pass_name or evidence.channel
            return f'{by}: "{evidence.text.strip()}"' + _at(evidence.line)
        case ProbeOutcome():
            row = probe_row(evidence)
            return f"probe: granted {row.granted}: {row.signature} {row.change} ({row.verdict})"
    return f"{evidence.what}: {evidence.reason}"


def amount(value: float) -> str:
    """Whole numbers whole, others with four digits."""
    return str(int(value)) if abs(value) < 1e15 and float(value).is_integer() else f"{value:.4g}"


def _at(line: int) -> str:
    return f" (line {line})" if line else ""


def groups(run: Run, ids: tuple[str, ...]) -> list[tuple[int, list[Evidence]]]:
    """The evidence of these ids by level, in the given order; unknown ids and probes (shown in their own table) left out."""
    by_level: dict[int, list[Evidence]] = {}
    for ident in ids:
        found = run.evidence.get(ident)
        if found is not None and not isinstance(found, ProbeOutcome):
            by_level.setdefault(level_of(found), []).append(found)
    return sorted(by_level.items())


def probe_row(outcome: ProbeOutcome) -> ProbeRow:
    """One row of the probe table. A control that moved makes the outcome worthless, and the row says so."""
    probe = outcome.probe
    signature = probe.signature + (f" (line {probe.line})" if probe.line else "")
    if outcome.error:
        verdict = "could not run"
    elif outcome.control is not None and outcome.control != outcome.before:
        verdict = "void"
    else:
        verdict = "confirmed" if outcome.flipped else "not moved"
    parts = []
    if outcome.error:
        parts.append(outcome.error.splitlines()[0])
    elif verdict == "void":
        parts.append(f"the unchanged kernel gave {outcome.control}, not {outcome.before}")
    if len(probe.grants) > 1 and outcome.minimal:
        parts.append(f"enough: {', '.join(outcome.minimal)}")
    parts += [f"without {fact}: {value}" for fact, value in outcome.left_out.items()]
    if probe.held_equal:
        parts.append(f"held equal: {', '.join(probe.held_equal)}")
    granted = ", ".join(fact.describe() for fact in probe.grants)
    change = f"{outcome.before} → {outcome.after}"
    return ProbeRow(granted, signature, change, probe.expect, verdict, "; ".join(parts))


def probe_rows(run: Run, finding: Finding) -> list[ProbeRow]:
    """The probes among the finding's evidence, for and against."""
    found = [run.evidence.get(ident) for ident in (*finding.evidence, *finding.against)]
    return [probe_row(outcome) for outcome in found if isinstance(outcome, ProbeOutcome)]


def tree(run: Run) -> tuple[Node, ...]:
    """Findings in their ranked order, each consequence below its root. A cycle or a second parent never hides a finding."""
    by_key = {f"{f.rule}:{f.key}": f for f in run.findings}
    caused = {key for f in run.findings for key in f.consequences if key in by_key and by_key[key] is not f}
    placed: set[str] = set()

    def node(finding: Finding) -> Node:
        placed.add(f"{finding.rule}:{finding.key}")
        children, others = [], []
        for key in finding.consequences:
            child = by_key.get(key)
            if child is None:
                others.append(key)
            elif key not in placed:
                children.append(node(child))
        return Node(finding, tuple(children), tuple(others))

    roots = [node(f) for f in run.findings if f"{f.rule}:{f.key}" not in caused]
    roots += [node(f) for f in run.findings if f"{f.rule}:{f.key}" not in placed]
    return tuple(roots)


def excerpt(run: Run, finding: Finding, context: int = 2) -> list[Line]:
    """Source lines around the finding. Empty when the finding is in another file: only the run is read, never the disk."""
    if not run.source or finding.file != run.path or finding.line < 1:
        return []
    lines = run.source.splitlines()
    last = min(max(finding.end_line, finding.line), finding.line + 5)
    out = []
    for number in range(max(1, finding.line - context), min(len(lines), last + context) + 1):
        text = lines[number - 1]
        start = end = 0
        if finding.line <= number <= last and text.strip():
            indent = len(text) - len(text.lstrip())
            start = finding.column if number == finding.line and finding.column else indent
            end = finding.end_column if number == finding.end_line and finding.end_column else len(text.rstrip())
            start = min(start, len(text))
            end = max(min(end, len(text)), min(start + 1, len(text)))
        # Tabs would put the underline in another column than the code.
        out.append(Line(number, text.replace("\t", " "), start, end))
    return out


def limit(run: Run) -> str:
    """The bound of the case in one line; every figure says whether it was measured. Empty when no limit is known."""
    bound = run.limit
    if bound is None:
        return ""
    text = f"{bound.bound} bound: floor {bound.floor_us:.1f} us ({'predicted' if bound.predicted else 'measured'})"
    if bound.time_us is None:
        return f"{text}, time {NOT_MEASURED}"
    text += f", time {bound.time_us:.1f} us (measured)"
    if bound.fraction is not None:
        text += f", {bound.fraction:.0%} of the limit"
    if bound.bytes_per_s is not None and bound.flops_per_s is not None:
        text += f"; {bound.bytes_per_s / 1e12:.2f} of {bound.ceiling_bytes_per_s / 1e12:.2f} TB/s"
        text += f", {bound.flops_per_s / 1e12:.1f} of {bound.ceiling_flops_per_s / 1e12:.1f} TFLOP/s"
    return text


def round_rows(run: Run) -> list[RoundRow]:
    """The rounds of an optimisation, or the one of a verification."""
    rows = []
    for r in run.rounds:
        rewrite = run.rewrites.get(r.rewrite)
        value = measured(r, run)
        if rewrite:
            title = f"{rewrite.rule} {rewrite.title}"
        elif run.command == "verify" and r.rewrite:
            title = os.path.basename(r.rewrite)
        elif r.rewrite == FINAL and value is None:
            title = "the rewritten file against the original"  # nothing was accepted that could stand together
        else:
            title = r.hypothesis or r.rewrite
        parent = "original" if r.parent == 0 else f"round {r.parent}"
        reason = f"{r.reason}; {r.observed}" if r.observed else r.reason
        rows.append(RoundRow(str(r.round), parent, title, r.verdict, interval(value) if value else NOT_MEASURED, reason))
    return rows


def best_round(run: Run) -> Round | None:
    """The round whose speedup is the run's: measured, accepted, and against the original (other rounds compare with their parent).

    A round called "final" judged the result from scratch, and then no other counts.
    """
    final = [r for r in run.rounds if r.rewrite == FINAL]
    rounds = final or [r for r in run.rounds if r.parent == 0]
    won = [(value.mid, r) for r in rounds if r.verdict == "accepted" and (value := measured(r, run))]
    return max(won, key=lambda pair: pair[0])[1] if won else None


def outcome(run: Run) -> str:
    """The last line: the measured speedup, or that nothing was measured and why; for a diagnosis, the count of findings."""
    if not run.rounds and run.command not in ("optimize", "verify"):
        return tally(run)
    best = best_round(run)
    if best is not None and best.speedup is not None:
        noun = "speedup" if run.command == "verify" else "best speedup"
        return f"{noun}: {interval(best.speedup)}, measured on {run.device}, round {best.round}"
    where = f"{NOT_MEASURED} (no device)" if run.device is None else "none (no candidate was accepted)"
    return f"{'speedup' if run.command == 'verify' else 'best speedup'}: {where}"


def checked(run: Run) -> str:
    """What a verification did and did not check, in one line: `correct in the interpreter on tiny; full size: traced; not timed`.

    Empty for other runs, for rejected candidates (the reason says it) and where no checks are known.
    """
    details = run.rounds[-1].details if run.command == "verify" and run.rounds else None
    if details is None or not details.checks or details.outcome == "rejected":
        return ""
    cases = {gate: _passed(details, gate) for gate in ("interpreter", "device", "compiles", "coverage")}
    parts = [f"correct in the interpreter on {', '.join(cases['interpreter'])}" if cases["interpreter"] else "not run in the interpreter"]
    if details.measured or cases["device"]:
        ran = f"correct on the device on {', '.join(cases['device'])}" if cases["device"] else "not run on the device"
        return "; ".join((*parts, ran, "timed" if details.measured else "not timed"))
    seen = [word for gate, word in (("compiles", "traced, compiled"), ("coverage", "stores sampled")) if cases[gate]]
    missing = [word for gate, word in (("compiles", "not compiled"), ("coverage", "stores not compared")) if not cases[gate]]
    full = [", ".join(seen), ", ".join((*missing, "not run", "not timed")) + ("" if run.device else " (no device)")]
    return f"{parts[0]}; full size: {'; '.join(part for part in full if part)}"


def _passed(details: Verdict, gate: str) -> tuple[str, ...]:
    """Cases in which the gate passed; none when it also failed or could not be run in one, so that no case is spoken for."""
    found = [c for c in details.checks if c.name.partition(".")[0] == gate]
    return tuple(dict.fromkeys(c.case for c in found)) if all(c.passed for c in found) else ()


def change_title(run: Run) -> str:
    """Heading of the run's diff: it is called accepted only when its last verdict was."""
    verdict = run.rounds[-1].verdict if run.rounds else ""
    if verdict == "accepted" or not verdict:
        return "accepted change"
    return "rejected change" if verdict == "rejected" else "change, neither accepted nor rejected"


class Fix(NamedTuple):
    """A rewrite offered for a finding; `label` is "fix" or "or", `same_as` the rule above whose rewrite makes the same change."""

    label: str
    rewrite: Rewrite
    same_as: str


def fixes(run: Run) -> dict[tuple[str, str], tuple[Fix, ...]]:
    """(rule, key) of every finding -> its rewrites, in the order of the page, which decides what is "above"."""
    above: dict[str, str] = {}
    found: dict[tuple[str, str], tuple[Fix, ...]] = {}

    def visit(node: Node) -> None:
        f = node.finding
        rewrites = [run.rewrites[n] for n in dict.fromkeys((f.rewrite, *f.rewrites)) if n in run.rewrites]
        changes = [r.diff or r.source for r in rewrites]
        labels = ["fix" if position == 0 else "or" for position in range(len(rewrites))]
        found[f.rule, f.key] = tuple(Fix(*row) for row in zip(labels, rewrites, (above.get(c, "") for c in changes), strict=True))
        above.update({change: f.rule for change in changes if change and change not in above})
        for child in node.children:
            visit(child)

    for node in tree(run):
        visit(node)
    return found


def no_fix(finding: Finding) -> str:
    """What stands in place of a rewrite where none is offered."""
    return f"none offered: no rewrite of {finding.rule} applies here; leadline explain {finding.rule} lists what it needs"


def tally(run: Run) -> str:
    """`3 findings (1 confirmed, 2 suspected)`."""
    if not run.findings:
        return "no findings"
    count = Counter(f.grade for f in run.findings)
    grades = ", ".join(f"{count[g]} {g}" for g in reversed(GRADES) if count[g])
    return f"{len(run.findings)} finding{'s' if len(run.findings) != 1 else ''} ({grades})"


def heading(run: Run) -> str:
    """`k.py, case b8, cuda:90, no device, triton 3.6.0`."""
    parts = [shown(run.path) + (f"::{run.kernel}" if run.kernel else "")] if run.path else []
    if run.case:
        parts.append(f"case {run.case}")
    parts += [run.target, f"device {run.device}" if run.device else "no device"]
    parts += [f"{name} {run.versions[name]}" for name in ("triton", "torch") if name in run.versions]
    return ", ".join(parts)
