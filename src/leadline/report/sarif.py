"""A run as SARIF 2.1.0, for code scanning and editors."""

import json
import re
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from leadline.model import Edit, Finding, Rewrite, Run
from leadline.report import content

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# A grade says how sure we are, and that is what a SARIF level is used for: what only the source suggests is a note.
LEVELS = {"suspected": "note", "observed": "warning", "located": "warning", "confirmed": "error", "verified": "error"}

Json = dict[str, Any]


def sarif(run: Run) -> str:
    """SARIF text: one rule per rule that found something, one result per finding, its first rewrites as fixes."""
    codes = list(dict.fromkeys(f.rule for f in run.findings))
    document = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "leadline", "rules": [_rule(run, code) for code in codes]}},
                "columnKind": "unicodeCodePoints",
                "invocations": [_invocation(run)],
                "results": [_result(run, finding, codes.index(finding.rule)) for finding in run.findings],
                "properties": {"target": run.target, "case": run.case, "device": run.device},
            }
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _rule(run: Run, code: str) -> Json:
    first = next(f for f in run.findings if f.rule == code)
    name = content.slug(code, first.cause)
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in name.split("-")),
        "shortDescription": {"text": name.replace("-", " ")},
        "help": {"text": f"leadline explain {code}"},
        "properties": {"cause": first.cause},
    }


def _invocation(run: Run) -> Json:
    missing = [f"{u.what}: {u.reason}" + (f"; {u.remedy}" if u.remedy else "") for u in run.unavailable]
    notes: list[Json] = [{"level": "note", "message": {"text": text}} for text in missing]
    notes += [{"level": "error", "message": {"text": text}} for text in run.errors]
    out: Json = {"executionSuccessful": True}
    if notes:
        out["toolExecutionNotifications"] = notes
    return out


def _result(run: Run, finding: Finding, index: int) -> Json:
    region: Json = {"startLine": max(finding.line, 1), "startColumn": finding.column + 1}
    if finding.end_line >= finding.line and finding.end_column:
        region |= {"endLine": finding.end_line, "endColumn": finding.end_column + 1}
    text = f"{finding.summary} ({finding.grade}; {content.standing(finding, run)})"
    if finding.why:
        text += f". {finding.why}"
    out: Json = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": LEVELS.get(finding.grade, "warning"),
        "message": {"text": text},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri(finding.file)}, "region": region}}],
        "partialFingerprints": {"leadline/v1": f"{finding.rule}:{finding.kernel}:{finding.key}"},
        "properties": {
            "grade": finding.grade,
            "cause": finding.cause,
            "expectedSpeedup": {"low": finding.estimate.low, "high": finding.estimate.high},
        },
    }
    names = dict.fromkeys(name for name in (finding.rewrite, *finding.rewrites) if name in run.rewrites)
    if fixes := [fix for name in names if (fix := _fix(run, run.rewrites[name]))]:
        out["fixes"] = fixes
    return out


def uri(file: str) -> str:
    """A file as SARIF wants it: relative and with forward slashes where it lies inside the working folder, else a file URI."""
    path = PurePath(content.shown(file))
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


def _fix(run: Run, rewrite: Rewrite) -> Json | None:
    if not run.source or not rewrite.diff:
        return None
    edits = edits_of(run.source, rewrite.diff, run.path)
    if not edits:  # a diff against another version of the file (a later round) is no fix for this one
        return None
    replacements = [
        {
            "deletedRegion": {"startLine": e.start, "startColumn": 1, "endLine": e.end, "endColumn": 1},
            "insertedContent": {"text": e.text},
        }
        for e in edits
    ]
    return {
        "description": {"text": f"{rewrite.title} ({rewrite.applicability})"},
        "artifactChanges": [{"artifactLocation": {"uri": uri(run.path)}, "replacements": replacements}],
    }


def edits_of(source: str, diff: str, file: str) -> list[Edit]:
    """Whole-line edits that a unified diff of one file makes to `source`: lines `start` (1-based) up to, not including, `end`.

    Empty when the diff does not fit the source.
    """
    lines = source.splitlines(keepends=True)
    out: list[Edit] = []
    old = 0  # 1-based number of the next old line; 0 before the first hunk
    start, added = 0, []

    def close() -> None:
        nonlocal start, added
        if start:
            out.append(Edit(file=file, start=start, end=old, text="".join(added)))
        start, added = 0, []

    for line in diff.splitlines(keepends=True):
        if hunk := re.match(r"@@ -(\d+)(?:,(\d+))? \+", line):
            close()
            # A hunk without old lines names the line before the insertion.
            old = int(hunk[1]) + (1 if hunk[2] == "0" else 0)
        elif old == 0 or line.startswith("\\"):
            continue
        elif line.startswith("+"):
            start = start or old
            added.append(line[1:])
        else:
            if line.startswith("-"):
                start = start or old
            else:
                close()
            text = line[1:] if line[:1] in "- " else line
            if old > len(lines) or lines[old - 1].rstrip("\r\n") != text.rstrip("\r\n"):
                return []
            old += 1
    close()
    return out
