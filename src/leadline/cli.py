"""The command line: options in, one pipeline call, a report out. Results go to stdout, everything else to stderr.

Only typer is imported here; each command imports what it needs, so that `--help` answers at once.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from leadline.errors import EvidenceError, KernelError, LeadlineError, UsageError, WorkerError, WorkerRaised

if TYPE_CHECKING:
    from leadline.model import Run
    from leadline.rules.base import Rule
    from leadline.settings import Progress, Settings

app = typer.Typer(
    name="leadline",
    help="Find out why a Triton kernel is slow, rewrite it on that evidence, and prove the rewrite.",
    epilog="Exit status: 0 fine; 1 candidate rejected; 2 usage error or our own fault; 3 the kernel does not compile, "
    "launch or match its reference; 4 asked-for evidence cannot be had here.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Settings of this process's one command line that error reporting needs after a command has failed.
_asked = {"json": False, "verbose": False}

Target = Annotated[str, typer.Argument(metavar="TARGET", help="file.py, file.py::kernel, a recorded case or a run id.")]
Case = Annotated[str, typer.Option("--case", metavar="NAME", help="A name in CASES, or a file that holds CASES.")]
CompileFor = Annotated[str | None, typer.Option("--target", metavar="BACKEND:ARCH", help="Compile for, e.g. cuda:90.")]
ProfileFile = Annotated[str, typer.Option("--profile", metavar="FILE", help="Use an imported profile at level 2.")]
Device = Annotated[str, typer.Option("--device", metavar="auto|none", help="none: leave a present device alone.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object (docs/run.schema.json).")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="One line per finding, no progress.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="All evidence, how to reproduce it, and tracebacks.")]
Select = Annotated[str | None, typer.Option("--select", metavar="RULES", help="Only these rules (codes, slugs; commas).")]
Ignore = Annotated[str | None, typer.Option("--ignore", metavar="RULES", help="Not these rules.")]
Budget = Annotated[str | None, typer.Option("--budget", metavar="TIME", help="60s, 5m: stop starting work after this.")]
Numerics = Annotated[bool, typer.Option("--allow-numerics", help="Also rewrites that change rounding within tolerance.")]


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"leadline {version('leadline')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        _say(context.get_help())
        raise typer.Exit(2)


# -- commands -----------------------------------------------------------------------------------------------------------


@app.command()
def diagnose(
    target_file: Target,
    case: Case = "",
    level: Annotated[str | None, typer.Option("--level", metavar="auto|1|2|3|4", help="How deep to go.")] = None,
    target: CompileFor = None,
    profile: ProfileFile = "",
    device: Device = "auto",
    select: Select = None,
    ignore: Ignore = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Say why the kernel is slow, as deep as it takes."""
    _begin(json, verbose)
    from leadline.settings import DiagnoseOptions

    settings = _settings(target_file)
    options = DiagnoseOptions(**_common(settings, target_file, case, target, profile, device, select, ignore, level))
    with _progress(quiet or json) as progress:
        run = _pipeline().diagnose(options, progress)
    _show(run, settings, json, quiet, verbose)
    if level is not None:
        _require_level(run, level, profile)


@app.command()
def optimize(
    target_file: Target,
    case: Case = "",
    budget: Budget = None,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="N", min=1, help="At most this many.")] = None,
    proposer: Annotated[str | None, typer.Option("--proposer", metavar="NAMES", help="rules,search,inductor,llm")] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the best file here.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Replace TARGET by the best file.")] = False,
    allow_numerics: Numerics = False,
    level: Annotated[str | None, typer.Option("--level", metavar="auto|1|2|3|4", help="How deep to go.")] = None,
    target: CompileFor = None,
    profile: ProfileFile = "",
    device: Device = "auto",
    select: Select = None,
    ignore: Ignore = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Rewrite the kernel round by round and keep what is proved correct and faster."""
    _begin(json, verbose)
    from leadline.settings import DEFAULT_ROUNDS, PROPOSERS, OptimizeOptions, seconds

    settings = _settings(target_file)
    path = Path(target_file.split("::", 1)[0])
    if output and write:
        raise UsageError("-o and --write exclude each other", where="optimize", remedy="give one of them")
    # Asked before the work, not after it: minutes of measuring must not end in "permission denied".
    if write:
        _writable(path, "--write")
    elif output:
        _writable(Path(output), "-o")
    names = _words(proposer) if proposer is not None else settings.proposers
    options = OptimizeOptions(
        **_common(settings, target_file, case, target, profile, device, select, ignore, level),
        budget_s=seconds(budget) if budget is not None else settings.budget_s,
        rounds=rounds or DEFAULT_ROUNDS,
        # A plug-in's proposer is not in the list; the pipeline knows those.
        proposers=tuple(n if n in PROPOSERS or _plugged("leadline.proposers", n) else _bad_proposer(n) for n in names),
        output=output,
        write=write,
        allow_numerics=allow_numerics,
    )
    with _progress(quiet or json) as progress:
        run = _pipeline().optimize(options, progress)
    _show(run, settings, json, quiet, verbose)
    _deliver(run, path, output, write, quiet or json)


@app.command()
def verify(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The original case file.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The candidate, wherever it came from.")],
    case: Case = "",
    budget: Budget = None,
    allow_numerics: Numerics = False,
    target: CompileFor = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Judge any candidate against the original: compiles, correct, faster."""
    _begin(json, verbose)
    from leadline.settings import DEVICES, VerifyOptions, check_target, choice, seconds

    settings = _settings(old)
    for file in (old, new):
        _exists(file)
    case_file, name = _case(case)
    options = VerifyOptions(
        old=old,
        new=new,
        case_file=case_file,
        case=name,
        target=check_target(target) if target else settings.target,
        device=choice(device, DEVICES, where="--device"),
        budget_s=seconds(budget) if budget is not None else settings.budget_s,
        threshold=settings.threshold,
        allow_numerics=allow_numerics,
        home=settings.home,
    )
    with _progress(quiet or json) as progress:
        run = _pipeline().verify(options, progress)
    _show(run, settings, json, quiet, verbose)
    verdict = run.rounds[-1] if run.rounds else None
    if verdict is None or verdict.verdict == "rejected":
        raise typer.Exit(1)
    if verdict.verdict == "inconclusive":
        # Correctness is all that was asked for when the user set the device aside.
        if device == "none" and verdict.details is not None and verdict.details.correct:
            return
        raise EvidenceError(
            f"the candidate is neither accepted nor rejected: {verdict.reason}",
            where=new,
            remedy="run on a machine with a device, or ask for correctness alone with --device none",
        )


@app.command()
def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id (or its beginning), or a file written by --json.")],
    format: Annotated[str, typer.Option("--format", metavar="NAME", help="text, html, md, json, sarif, diff, or a plug-in's.")] = "text",
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Write it here.")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show a finished run again, or as a document."""
    _begin(False, verbose)
    from leadline import report as reports

    settings = _settings(".")
    found = _load_run(run, settings)
    if format == "text":
        if output is None:
            return _show(found, settings, False, quiet, verbose)
        text = _plain_text(found, quiet, verbose)
    else:
        text = reports.get(format)(found)
    if output is None:
        sys.stdout.write(text)
    else:
        _writable(Path(output), "-o")
        _replace(Path(output), text)


@app.command()
def explain(rule: Annotated[str, typer.Argument(metavar="RULE", help="A code (MEM101) or slug (unaligned-access).")]) -> None:
    """Say what a rule finds, why that is slow, how it is proved and mended."""
    _begin(False, False)
    import inspect

    from leadline.settings import closest

    rules = _rules()
    for found in rules:
        if rule.lower() in (found.code.lower(), found.slug.lower(), found.cause.lower()):
            typer.echo(f"{found.code} {found.slug}  (cause {found.cause}, family {found.family})\n")
            typer.echo(inspect.cleandoc(type(found).__doc__ or "This rule has no documentation."))
            return
    near = closest(rule, [name for r in rules for name in (r.code, r.slug)])
    remedy = f"did you mean '{near}'?" if near else "leadline rules lists them"
    raise UsageError(f"no rule is called '{rule}'", where="explain", remedy=remedy)


@app.command()
def rules(json: Json = False) -> None:
    """List all rules, those of plug-ins included."""
    _begin(json, False)
    rows = [
        {"code": r.code, "slug": r.slug, "cause": r.cause, "family": r.family, "rewrite": _rewrites(r), "targets": [*r.targets]}
        for r in _rules()
    ]
    if json:
        return _print_json({"schema": "leadline.rules/1", "rules": rows})
    table = [("code", "slug", "cause", "family", "rewrite")]
    table += [(r["code"], r["slug"], r["cause"], r["family"], "yes" if r["rewrite"] else "no") for r in rows]
    widths = [max(len(row[c]) for row in table) for c in range(5)]
    for row in table:
        typer.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command()
def doctor(
    require: Annotated[str, typer.Option("--require", metavar="NAMES", help="Exit 4 unless these are usable.")] = "",
    target: CompileFor = None,
    json: Json = False,
) -> None:
    """Say what this machine offers, and what to do about what is missing."""
    _begin(json, False)
    from leadline.execution.environment import Environment, InspectRequest, triage
    from leadline.execution.worker import Worker
    from leadline.settings import check_target

    settings = _settings(".")
    request = InspectRequest(target=check_target(target) if target else settings.target)
    try:
        with Worker("doctor") as worker:
            found = worker.call("leadline.execution.environment:inspect", request, Environment, timeout=120)
    except WorkerError as error:  # importing torch or triton took the process down: that is a finding, too
        problem = error.what
        found = Environment(python=sys.version.split()[0], executable=sys.executable, triton_problem=problem, torch_problem=problem)
    items = triage(found, Path(settings.home))
    if json:
        import msgspec

        _print_json({"schema": "leadline.doctor/1", "items": msgspec.to_builtins(items)})
    else:
        width = max(len(item.name) for item in items)
        for item in items:
            typer.echo(f"{item.name:<{width}}  {item.state:<7}  {item.detail}")
            if item.remedy:
                typer.echo(f"{'':<{width}}           remedy: {item.remedy}")
    for name in _words(require):
        item = next((i for i in items if i.name == name), None)
        if item is None:
            names = ", ".join(i.name for i in items)
            raise UsageError(f"'{name}' is not known", where="--require", remedy=f"choose among {names}")
        if item.state != "ok":
            raise EvidenceError(f"{name} is not usable: {item.detail}", where="--require", remedy=item.remedy)


# -- options ------------------------------------------------------------------------------------------------------------


def _begin(json: bool, verbose: bool) -> None:
    _asked.update(json=json, verbose=verbose)


def _pipeline() -> Any:
    import leadline.pipeline

    return leadline.pipeline


def _settings(target: str) -> "Settings":
    from leadline.settings import load

    return load(target)


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _case(case: str) -> tuple[str, str]:
    """(case file, case name): `--case` takes either, and `file.py::name` for both."""
    if not case.split("::", 1)[0].endswith(".py"):
        return "", case
    file, _, name = case.partition("::")
    _exists(file)
    return file, name


def _exists(file: str) -> None:
    path = Path(file.split("::", 1)[0])
    if path.is_dir():
        raise UsageError("is a folder", where=file, remedy="give a Python file")
    if not path.exists():
        near = ""
        if path.parent.is_dir():
            from leadline.settings import closest

            near = closest(path.name, [p.name for p in path.parent.glob("*.py")])
        remedy = f"did you mean '{path.parent / near}'?" if near else "check the path"
        raise UsageError("no such file", where=file, remedy=remedy)


def _common(
    settings: "Settings",
    target_file: str,
    case: str,
    target: str | None,
    profile: str,
    device: str,
    select: str | None,
    ignore: str | None,
    level: str | None,
) -> dict[str, Any]:
    """The options that diagnose and optimize share, checked, completed from the settings."""
    from leadline.settings import DEVICES, LEVELS, check_target, choice

    if target_file.split("::", 1)[0].endswith(".py"):  # otherwise a run id or a recorded case, which the pipeline resolves
        _exists(target_file)
    if profile:
        _exists(profile)
    case_file, name = _case(case)
    return {
        "target_file": target_file,
        "case_file": case_file,
        "case": name,
        "level": choice(level, LEVELS, where="--level") if level is not None else settings.level,
        "target": check_target(target) if target else settings.target,
        "profile": profile,
        "device": choice(device, DEVICES, where="--device"),
        "select": _known_rules(_words(select), "--select") if select is not None else settings.select,
        "ignore": _known_rules(_words(ignore), "--ignore") if ignore is not None else settings.ignore,
        "threshold": settings.threshold,
        "home": settings.home,
    }


def _known_rules(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Names typed on the command line; a misspelt one would silently select nothing."""
    from leadline.settings import closest

    known = [name for rule in _rules() for name in (rule.code, rule.slug)]
    for name in names:
        if name not in known:
            near = closest(name, known)
            remedy = f"did you mean '{near}'?" if near else "leadline rules lists them"
            raise UsageError(f"no rule is called '{name}'", where=where, remedy=remedy)
    return names


def _rules() -> "tuple[Rule, ...]":
    from leadline.rules.base import all_rules

    return all_rules()


def _rewrites(rule: "Rule") -> bool:
    """Whether the rule has a rewrite: derived from its code, not declared."""
    from leadline.rules.base import Rule

    return type(rule).rewrite is not Rule.rewrite


def _plugged(group: str, name: str) -> bool:
    from importlib.metadata import entry_points

    return any(True for _ in entry_points(group=group, name=name))


def _bad_proposer(name: str) -> NoReturn:
    from leadline.settings import PROPOSERS, choice

    choice(name, PROPOSERS, where="--proposer")
    raise AssertionError(name)


def _require_level(run: "Run", level: str, profile: str) -> None:
    """A level asked for by number must have been reached with its evidence, or the status says so."""
    if level == "auto":
        return
    reason = next((u for u in run.unavailable if u.reason), None)
    if level == "2" and run.device is None and not profile:
        raise EvidenceError(
            "level 2 was asked for and nothing could be measured",
            where="--level 2",
            remedy="run on a machine with a device, or pass --profile FILE",
        )
    if not any(str(done.level) == level for done in run.levels):
        why = f": {reason.reason}" if reason else ""
        remedy = reason.remedy if reason and reason.remedy else "leadline doctor says what is missing"
        raise EvidenceError(f"level {level} was asked for and could not be reached{why}", where=f"--level {level}", remedy=remedy)


# -- output -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress(silent: bool) -> "Iterator[Progress]":
    """A progress bar on stderr, on a terminal only."""
    if silent or not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def update(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total or None)

        yield update


def _show(run: "Run", settings: "Settings", json: bool, quiet: bool, verbose: bool) -> None:
    if json:
        from leadline.report.json import encode

        sys.stdout.flush()
        typer.echo(encode(run), nl=False)
        _asked["json"] = False  # stdout has its one object; what fails from here on says so on stderr alone
        return
    from rich.console import Console

    from leadline.report.terminal import render

    # A pipe has no width of its own; rich would take 80.
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else 110
    render(run, Console(width=width, no_color=not settings.color or None), verbose=verbose, quiet=quiet)


def _plain_text(run: "Run", quiet: bool, verbose: bool) -> str:
    import io

    from rich.console import Console

    from leadline.report.terminal import render

    buffer = io.StringIO()
    render(run, Console(file=buffer, width=110), verbose=verbose, quiet=quiet)
    return buffer.getvalue()


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _load_run(name: str, settings: "Settings") -> "Run":
    """The run in a JSON file, or the stored run with this id (or its unambiguous beginning)."""
    from leadline.report.json import decode

    path = Path(name)
    if path.is_file():
        return decode(path.read_bytes(), where=name)
    if path.suffix == ".json":
        raise UsageError("no such file", where=name, remedy="check the path")
    from leadline.execution.store import Store

    return Store(Path(settings.home)).run(name)


def _writable(path: Path, where: str) -> None:
    """UsageError unless `path` can be replaced by a new file in its folder."""
    folder = path.resolve().parent
    if path.is_dir():
        raise UsageError(f"{path} is a folder", where=where, remedy="give a file name")
    if not folder.is_dir():
        raise UsageError(f"folder {folder} does not exist", where=where, remedy="create it first")
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path} is not writable", where=where, remedy="make it writable or use -o FILE")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"folder {folder} is not writable", where=where, remedy="choose another place with -o FILE")


def _replace(path: Path, text: str) -> None:
    """Write `text` to `path` in one step: a reader sees the old file or the new one. Links and permissions are kept."""
    import tempfile

    real = path.resolve()
    descriptor, temporary = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        if real.exists():
            os.chmod(temporary, real.stat().st_mode & 0o7777)
        else:
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, real)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _deliver(run: "Run", path: Path, output: str | None, write: bool, silent: bool) -> None:
    """Put the accepted file where the user asked, or print its diff."""
    import shlex

    if not run.best:
        if output or write:
            _say("nothing written: no candidate was accepted")
        return
    if output:
        _replace(Path(output), run.best)
        _say(f"wrote {output}")
    elif write:
        if path.read_text(encoding="utf-8") != run.source:
            raise UsageError("the file changed while it was optimised", where=str(path), remedy="run again, or use -o FILE")
        _replace(path, run.best)
        _say(f"replaced {path}; undo with: leadline report {run.id} --format diff | patch -R {shlex.quote(str(path))}")
    elif run.best_diff and not silent:
        typer.echo("\n" + run.best_diff.rstrip("\n"))


# -- failure ------------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status (docs/cli.md). Nothing but `-v` ever shows a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Options are parsed before a command can say so, and parse errors must follow --json, too.
    _begin("--json" in arguments, bool({"-v", "--verbose"} & {*arguments}))
    sys.exit(_guarded(arguments))


def _guarded(arguments: list[str]) -> int:
    try:
        return app(arguments, standalone_mode=False) or 0
    except LeadlineError as error:
        return _fail(error)
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except BrokenPipeError:
        # The reader went away. Python flushes stdout at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if hasattr(error, "format_message"):  # click's own errors: a bad option, a missing argument
            return _fail(_usage(error))
        if type(error).__name__ == "Abort":
            _say("interrupted")
            return 130
        return _crash(error)


def _usage(error: Any) -> UsageError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "leadline"
    what, _, near = error.format_message().rstrip(".").partition(". Did you mean ")
    return UsageError(what, where=command, remedy=f"did you mean {near}" if near else f"see {command} --help")


def _fail(error: LeadlineError) -> int:
    """One line on stderr; with --json an object on stdout as well."""
    status = error.status
    if isinstance(error, WorkerRaised) and error.frame and not error.expected:
        status = KernelError.status  # the user's code raised it, at a place we know
    if _asked["json"]:
        _print_error(error.what, error.where, error.remedy, status)
    _say("error: " + " ".join(str(error).split()))
    if _asked["verbose"]:
        if log := getattr(error, "log", ""):
            _say(log.rstrip())
        _traceback(error)
    return status


def _print_error(what: str, where: str, remedy: str, status: int) -> None:
    _print_json({"schema": "leadline.error/1", "error": what, "where": where, "remedy": remedy, "status": status})


def _traceback(error: BaseException) -> None:
    import traceback

    _say("".join(traceback.format_exception(error)).rstrip())


def _crash(error: Exception) -> int:
    """Something we did not expect: one line, and the traceback in a file for whoever reports it."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if _asked["json"]:
        _print_error(f"internal error: {text}", "", "run again with -v for the traceback", 2)
    if _asked["verbose"]:
        _say(f"internal error: {text}; please report it with the traceback below")
        _traceback(error)
        return 2
    saved = _save_traceback(error)
    tail = f" (traceback in {saved})" if saved else ""
    _say(f"internal error: {text}; run again with -v for the traceback and report it{tail}")
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


if __name__ == "__main__":
    main()
