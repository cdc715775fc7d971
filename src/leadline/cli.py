"""The command line: options in, one pipeline call, a report out. Results go to stdout, everything else to stderr.

Only typer is imported here; each command imports what it needs, so that `--help` answers at once.
"""

import errno
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from leadline import console
from leadline.errors import EvidenceError, LeadlineError, UsageError, WorkerError

if TYPE_CHECKING:
    from leadline.model import Run
    from leadline.rules.base import Rule
    from leadline.settings import Settings

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

INTERRUPTED = 130

Target = Annotated[str, typer.Argument(metavar="TARGET", help="file.py, file.py::kernel, a recorded case or a run id.")]
Case = Annotated[str, typer.Option("--case", metavar="NAME", help="A name in CASES, or a file that holds CASES.")]
CompileFor = Annotated[str | None, typer.Option("--target", metavar="BACKEND:ARCH", help="Compile for, e.g. cuda:90.")]
ProfileFile = Annotated[str, typer.Option("--profile", metavar="FILE", help="A profile for level 2; cannot be imported yet.")]
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
        console.say(context.get_help())
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
    console.begin(json, verbose)
    from leadline.settings import DiagnoseOptions

    settings = _settings(target_file)
    options = DiagnoseOptions(**_common(settings, target_file, case, target, profile, device, select, ignore, level))
    with console.progress(quiet or json) as progress:
        run = _pipeline().diagnose(options, progress)
    console.show(run, settings, json, quiet, verbose)
    if level is not None:
        _require_level(run, level, profile)


@app.command()
def optimize(
    target_file: Target,
    case: Case = "",
    budget: Budget = None,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="N", min=1, help="At most this many.")] = None,
    proposer: Annotated[str | None, typer.Option("--proposer", metavar="NAMES", help="rules, search, or a plug-in's; commas.")] = None,
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
    """Rewrite the kernel; keep what is proved better."""
    console.begin(json, verbose)
    from leadline.report.file import writable
    from leadline.settings import DEFAULT_ROUNDS, PROPOSERS, OptimizeOptions, seconds

    settings = _settings(target_file)
    path = Path(target_file.split("::", 1)[0])
    if output and write:
        raise UsageError("-o and --write exclude each other", where="optimize", remedy="give one of them")
    # Asked before the work, not after it: minutes of measuring must not end in "permission denied".
    if write:
        writable(path, "--write")
    elif output:
        writable(Path(output), "-o")
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
    with console.progress(quiet or json) as progress:
        run = _pipeline().optimize(options, progress)
    console.show(run, settings, json, quiet, verbose)
    _deliver(run, path, output, write, quiet or json)


@app.command()
def verify(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The original case file.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The candidate, wherever it came from.")],
    case: Case = "",
    allow_numerics: Numerics = False,
    first_call: Annotated[bool, typer.Option("--first-call", help="Judge the first call, compiling included.")] = False,
    target: CompileFor = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Judge any candidate against the original."""
    console.begin(json, verbose)
    from leadline.settings import DEVICES, VerifyOptions, check_target, choice

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
        threshold=settings.threshold,
        allow_numerics=allow_numerics,
        first_call=first_call,
        home=settings.home,
    )
    with console.progress(quiet or json) as progress:
        run = _pipeline().verify(options, progress)
    console.show(run, settings, json, quiet, verbose)
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
    console.begin(False, verbose)
    from leadline import report as reports
    from leadline.report.file import replace, writable

    settings = _settings(".")
    found = _load_run(run, settings)
    if format == "text":
        if output is None:
            return console.show(found, settings, False, quiet, verbose)
        text = console.plain_text(found, quiet, verbose)
    else:
        text = reports.get(format)(found)
    if output is None:
        sys.stdout.write(text)
    else:
        writable(Path(output), "-o")
        replace(Path(output), text)


@app.command()
def explain(rule: Annotated[str, typer.Argument(metavar="RULE", help="A code (MEM101) or slug (unaligned-access).")]) -> None:
    """Say what a rule finds and why that is slow."""
    console.begin(False, False)
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
    console.begin(json, False)
    rows = [
        {"code": r.code, "slug": r.slug, "cause": r.cause, "family": r.family, "rewrite": _rewrites(r), "targets": [*r.targets]}
        for r in _rules()
    ]
    if json:
        return console.print_json({"schema": "leadline.rules/1", "rules": rows})
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
    """Say what this machine offers and lacks."""
    console.begin(json, False)
    from leadline.execution.environment import Environment, EnvironmentRequest, triage
    from leadline.execution.worker import Worker
    from leadline.settings import check_target

    settings = _settings(".")
    request = EnvironmentRequest(target=check_target(target) if target else settings.target)
    try:
        with Worker("doctor") as worker:
            found = worker.call("leadline.execution.environment:inspect", request, Environment, timeout=120)
    except WorkerError as error:  # importing torch or triton took the process down: that is a finding, too
        problem = error.what
        found = Environment(python=sys.version.split()[0], executable=sys.executable, triton_problem=problem, torch_problem=problem)
    items = triage(found, Path(settings.home))
    if json:
        import msgspec

        console.print_json({"schema": "leadline.doctor/1", "items": msgspec.to_builtins(items)})
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


def _pipeline() -> Any:
    from importlib import import_module

    return import_module("leadline.pipeline")


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

            near = closest(path.stem, [p.stem for p in path.parent.glob(f"*{path.suffix}")])  # a shared suffix is no likeness
        remedy = f"did you mean '{path.with_name(near + path.suffix)}'?" if near else "check the path"
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
            remedy="run on a machine with a device",
        )
    if not any(str(done.level) == level for done in run.levels):
        why = f": {reason.reason}" if reason else ""
        remedy = reason.remedy if reason and reason.remedy else "leadline doctor says what is missing"
        raise EvidenceError(f"level {level} was asked for and could not be reached{why}", where=f"--level {level}", remedy=remedy)


# -- output -------------------------------------------------------------------------------------------------------------


def _load_run(name: str, settings: "Settings") -> "Run":
    """The run in a JSON file, or the stored run with this id (or its unambiguous beginning)."""
    from leadline.report.json import decode

    path = Path(name)
    if path.is_file():
        return decode(path.read_bytes(), where=name)
    if path.suffix == ".json":
        raise UsageError("no such file", where=name, remedy="check the path")
    from leadline.execution.store import Store

    found = Store(settings.home or None).load_run(name)
    if found is None:
        raise UsageError(f"no run is called '{name}'", where="report", remedy="give a run id or a file written by --json")
    return found


def _deliver(run: "Run", path: Path, output: str | None, write: bool, silent: bool) -> None:
    """Put the accepted file where the user asked, or print its diff."""
    import shlex

    from leadline.report.file import replace

    if not run.best:
        if output or write:
            console.say("nothing written: no candidate was accepted")
        return
    final = next((r for r in reversed(run.rounds) if r.parent == 0), None)
    doubt = "" if final and final.details and final.details.measured else "; its speedup was not measured"
    if output:
        replace(Path(output), run.best)
        console.say(f"wrote {output}{doubt}")
    elif write:
        if path.read_text(encoding="utf-8") != run.source:
            raise UsageError("the file changed while it was optimised", where=str(path), remedy="run again, or use -o FILE")
        windows = b"\r\n" in path.read_bytes()  # its line ends stay what they were
        replace(path, run.best.replace("\n", "\r\n") if windows else run.best)
        undo = f"leadline report {run.id} --format diff | " + (r"sed 's/$/\r/' | patch -R --binary " if windows else "patch -R ")
        console.say(f"replaced {path}; undo with: {undo}{shlex.quote(str(path))}{doubt}")
    elif run.best_diff and not silent:
        typer.echo("\n" + run.best_diff.rstrip("\n"))


# -- failure ------------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status (docs/cli.md). Nothing but `-v` ever shows a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _all_streams_open()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # arrows and a user's letters must not end a run where the locale is not UTF-8
            stream.reconfigure(errors="replace")
    # Options are parsed before a command can say so, and parse errors must follow --json, too.
    console.begin("--json" in arguments, bool({"-v", "--verbose"} & {*arguments}))
    sys.exit(_guarded(arguments))


def _all_streams_open() -> None:
    """Started with a standard stream closed, the next file opened (a worker's pipe, a database) would take its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _guarded(arguments: list[str]) -> int:
    try:
        status = app(arguments, prog_name="leadline", standalone_mode=False) or 0
        if status == INTERRUPTED:  # typer turns the interrupt into its status and says nothing
            console.say("interrupted")
        return status
    except LeadlineError as error:
        return console.fail(error)
    except KeyboardInterrupt:
        console.say("interrupted")
        return INTERRUPTED
    except SystemExit as error:
        # typer and rich leave with 1 when the reader of stdout went away, which here means "rejected". A verdict nobody read must
        # not look like acceptance either: the status is a shell's for SIGPIPE.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout at exit, which would fail again
        return 141
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            where = str(error.filename or "output")
            return console.fail(UsageError(f"cannot be written: {os.strerror(error.errno)}", where=where, remedy="make room and run again"))
        if hasattr(error, "format_message"):  # click's own errors: a bad option, a missing argument
            return console.fail(console.usage(error))
        return console.crash(error)


if __name__ == "__main__":
    main()
