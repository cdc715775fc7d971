"""A run laid out for people and tools: terminal, HTML, Markdown, JSON, SARIF. Formats read a `Run` and nothing else.

A format is a function `(Run) -> str`. One more is added by an entry point in the group `leadline.reports`.
"""

import importlib
from collections.abc import Callable

from leadline.errors import UsageError
from leadline.model import Run

Format = Callable[[Run], str]

BUILT_IN = {
    "html": "leadline.report.document:html",
    "md": "leadline.report.markdown:markdown",
    "json": "leadline.report.json:text",
    "sarif": "leadline.report.sarif:sarif",
    "diff": "leadline.report:diff",
}


def formats() -> tuple[str, ...]:
    """Names of all formats: the built-in ones, then those of plug-ins, each once."""
    from importlib import metadata  # slow to import, and most commands need no format by name

    plugged = sorted(entry.name for entry in metadata.entry_points(group="leadline.reports"))
    return tuple(dict.fromkeys((*BUILT_IN, *plugged)))


def get(name: str) -> Format:
    """The format called `name`; UsageError when there is none or its plug-in cannot be loaded. Built-in names win."""
    if name in BUILT_IN:
        module, function = BUILT_IN[name].split(":")
        return getattr(importlib.import_module(module), function)
    from importlib import metadata

    for entry in metadata.entry_points(group="leadline.reports", name=name):
        try:
            return entry.load()
        except Exception as error:
            what = f"report plug-in {entry.value} cannot be loaded: {error}"
            raise UsageError(what, where="--format", remedy="repair or remove the plug-in") from None
    raise UsageError(f"'{name}' is not known", where="--format", remedy=f"choose one of {', '.join(formats())}")


def diff(run: Run) -> str:
    """The accepted change as a unified diff, "" when there is none; `patch -R` undoes it."""
    return run.best_diff if not run.best_diff or run.best_diff.endswith("\n") else run.best_diff + "\n"
