"""What the command line prints: results on stdout, progress and errors on stderr, one line each, never an unasked traceback."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from leadline.errors import KernelError, LeadlineError, UsageError, WorkerRaised

if TYPE_CHECKING:
    from leadline.model import Run
    from leadline.settings import Progress, Settings

# What the one command line of this process asked for; error reporting needs it after a command has failed.
_asked = {"json": False, "verbose": False}


def begin(json: bool, verbose: bool) -> None:
    """Say how errors are to be reported from here on."""
    _asked.update(json=json, verbose=verbose)


@contextlib.contextmanager
def progress(silent: bool) -> "Iterator[Progress]":
    """A progress bar on stderr, on a terminal only."""
    if silent or not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def update(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total or None)

        yield update


def show(run: "Run", settings: "Settings", json: bool, quiet: bool, verbose: bool) -> None:
    """Print `run` as the options ask."""
    if json:
        from leadline.report.json import encode

        typer.echo(encode(run), nl=False)
        _asked["json"] = False  # stdout has its one object; what fails from here on says so on stderr alone
        return
    from rich.console import Console

    from leadline.report.terminal import render

    # A pipe has no width of its own; rich would take 80.
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else 110
    render(run, Console(width=width, no_color=not settings.color or None), verbose=verbose, quiet=quiet)


def plain_text(run: "Run", quiet: bool, verbose: bool) -> str:
    """What `show` prints, without colour, for a file."""
    import io

    from rich.console import Console

    from leadline.report.terminal import render

    buffer = io.StringIO()
    render(run, Console(file=buffer, width=110), verbose=verbose, quiet=quiet)
    return buffer.getvalue()


def print_json(value: object) -> None:
    """One object on stdout."""
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """A line on stderr."""
    typer.echo(text, err=True)


# -- failure ------------------------------------------------------------------------------------------------------------


def usage(error: Any) -> UsageError:
    """The parser's own error, worded as ours are."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "leadline"
    what, _, near = error.format_message().rstrip(".").partition(". Did you mean ")
    return UsageError(what, where=command, remedy=f"did you mean {near}" if near else f"see {command} --help")


def fail(error: LeadlineError) -> int:
    """One line on stderr; with --json an object on stdout as well."""
    status = error.status
    if isinstance(error, WorkerRaised) and error.frame and not error.expected:
        status = KernelError.status  # the user's code raised it, at a place we know
    if _asked["json"]:
        _print_error(error.what, error.where, error.remedy, status)
    say("error: " + " ".join(str(error).split()))
    if _asked["verbose"]:
        if log := getattr(error, "log", ""):
            say(log.rstrip())
        _traceback(error)
    return status


def _print_error(what: str, where: str, remedy: str, status: int) -> None:
    print_json({"schema": "leadline.error/1", "error": what, "where": where, "remedy": remedy, "status": status})


def _traceback(error: BaseException) -> None:
    import traceback

    say("".join(traceback.format_exception(error)).rstrip())


def crash(error: Exception) -> int:
    """Something we did not expect: one line, and the traceback in a file for whoever reports it."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if _asked["json"]:
        _print_error(f"internal error: {text}", "", "run again with -v for the traceback", 2)
    if _asked["verbose"]:
        say(f"internal error: {text}; please report it with the traceback below")
        _traceback(error)
        return 2
    saved = _save_traceback(error)
    tail = f" (traceback in {saved})" if saved else ""
    say(f"internal error: {text}; run again with -v for the traceback and report it{tail}")
    return 2


def _save_traceback(error: Exception) -> str:
    import time
    import traceback

    from leadline.settings import default_home

    file = default_home() / "crashes" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError:
        return ""
    return str(file)
