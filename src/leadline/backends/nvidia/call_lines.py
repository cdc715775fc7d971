"""Debug locations name the line of a call's last argument; source facts and samples name the line where the call starts.

Formatted code breaks long calls over several lines, so the two differ wherever a `tl.load` does not fit on one.
"""

import ast
from collections.abc import Iterable, Mapping

from msgspec import structs

from leadline.ir.locations import same_file
from leadline.model import Compiled, CompilerMessage


def call_starts(text: str) -> dict[int, int]:
    """Line -> first line of the innermost call that spans it, for lines where the two differ; {} when `text` does not parse."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and (n.end_lineno or n.lineno) > n.lineno]
    starts: dict[int, int] = {}
    for call in sorted(calls, key=lambda c: (c.end_lineno or 0) - c.lineno, reverse=True):  # inner calls overwrite outer ones
        starts.update(dict.fromkeys(range(call.lineno, (call.end_lineno or call.lineno) + 1), call.lineno))
    # A call on one line of its own stays where it is: it has operations of its own there.
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.lineno == node.end_lineno:
            starts[node.lineno] = node.lineno
    return {line: start for line, start in starts.items() if line != start}


def at_call_starts(compiled: Compiled, text: str, file: str) -> Compiled:
    """`compiled` with lines of `file` moved to where their calls start."""
    starts = call_starts(text)
    if not starts:
        return compiled
    counters: dict[int, dict[str, int]] = {}
    for line, counts in compiled.line_counters.items():
        _merge(counters.setdefault(starts.get(line, line), {}), counts)
    operations = tuple(
        structs.replace(o, line=starts[o.line]) if o.line in starts and (not o.file or same_file(o.file, file)) else o
        for o in compiled.operations
    )
    return structs.replace(compiled, line_counters=dict(sorted(counters.items())), operations=operations)


def messages_at_call_starts(messages: Iterable[CompilerMessage], text: str, file: str) -> tuple[CompilerMessage, ...]:
    """The messages with lines of `file` moved to where their calls start."""
    starts = call_starts(text)
    return tuple(
        structs.replace(m, line=starts[m.line]) if m.line in starts and (not m.file or same_file(m.file, file)) else m for m in messages
    )


def _merge(into: dict[str, int], counts: Mapping[str, int]) -> None:
    for name, value in counts.items():
        if name not in into:
            into[name] = value
        elif name.endswith(".bits"):  # the narrowest access
            into[name] = min(into[name], value) or max(into[name], value)
        elif name.endswith(".version"):
            into[name] = max(into[name], value)
        else:
            into[name] += value
