"""The command line: what each command asks of the pipeline, what goes where, and every exit status. The pipeline is a stand-in."""

import io
import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import msgspec
import pytest

from leadline import cli, settings
from leadline.errors import EvidenceError, InternalError, KernelError, UsageError, WorkerDied, WorkerRaised
from leadline.model import Level, Round, Run, Verdict
from leadline.report import file
from leadline.report.json import decode
from leadline.rules import base

RUN_WANTED = "give a file written by --json or by report --format json"
FORM = "write it as backend:architecture, for example cuda:90"
RUNS = Path(__file__).parent / "data" / "runs"


def sample(name: str) -> Run:
    return decode((RUNS / f"{name}.json").read_bytes())


class Pipeline(types.ModuleType):
    """Stands in for leadline.pipeline: keeps the options it was called with and answers `run`, or raises it."""

    def __init__(self):
        super().__init__("leadline.pipeline")
        self.run: Run | BaseException = sample("diagnosed")
        self.asked: list = []

    def answer(self, options, progress):
        self.asked.append(options)
        progress("compile", 1, 2)
        if isinstance(self.run, BaseException):
            raise self.run
        return self.run

    diagnose = optimize = verify = answer


@pytest.fixture
def pipeline(monkeypatch):
    fake = Pipeline()
    monkeypatch.setitem(sys.modules, "leadline.pipeline", fake)
    return fake


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder with a kernel `k.py`, and a home of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEADLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "k.py").write_text(sample("diagnosed").source)
    return tmp_path


class Width(base.Rule):
    """A load narrower than it could be.

    What it finds
        Narrow loads.
    """

    code, slug, cause, family = "MEM101", "unaligned-access", "unaligned_access", "memory"

    def rewrite(self, view, hypothesis):
        return ()


class Fill(base.Rule):
    """Too few programs."""

    code, slug, cause, family = "GRD101", "grid-underfill", "grid_underfill", "grid"


@pytest.fixture
def two_rules(monkeypatch):
    monkeypatch.setattr(base, "all_rules", lambda: (Fill(), Width()))


def call(*arguments: str) -> int:
    """The exit status of the command line."""
    with pytest.raises(SystemExit) as exit_:
        cli.main(list(arguments))
    code = exit_.value.code
    return code if isinstance(code, int) else 0


# -- start ------------------------------------------------------------------------------------------------------------


def test_help_is_quick_and_lists_what_works():
    def timed() -> tuple[float, str]:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "leadline", "--help"], capture_output=True, text=True, check=True)
        return time.perf_counter() - start, done.stdout

    best, text = min(timed() for _ in range(3))
    print(f"--help: {best:.3f} s")
    assert best < 1.0
    for command in ("diagnose", "optimize", "verify", "report", "explain", "rules", "doctor"):
        assert f"\n  {command} " in text
    for absent in ("record", "check", "compare", "bench", "mcp"):
        assert f"\n  {absent} " not in text


def test_the_command_line_loads_nothing_heavy():
    code = "import sys, leadline.cli; print([m for m in ('torch', 'triton', 'rich', 'msgspec', 'libcst', 'jinja2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_command_prints_help_and_fails(capsys):
    assert call() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: ")


def test_version(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out.startswith("leadline ")


# -- diagnose ---------------------------------------------------------------------------------------------------------


def test_diagnose_asks_for_what_was_typed(pipeline, folder, two_rules, capsys):
    (folder / "prof.json").write_text("{}")
    (folder / "cases.py").write_text("")
    arguments = ["--case", "cases.py::big", "--level", "3", "--target", "cuda:100", "--profile", "prof.json", "--device", "none"]
    assert call("diagnose", "k.py::add_bias", *arguments, "--select", "MEM101, grid-underfill", "--ignore", "GRD101") == 0
    assert pipeline.asked == [
        settings.DiagnoseOptions(
            target_file="k.py::add_bias", case_file="cases.py", case="big", level="3", target="cuda:100", profile="prof.json",
            device="none", select=("MEM101", "grid-underfill"), ignore=("GRD101",), home=str(folder / "home"),
        )
    ]  # fmt: skip
    out, err = capsys.readouterr()
    assert err == ""  # no terminal, no progress
    assert "k.py:13:9  MEM101 unaligned-access  confirmed  expected 1.3-1.9x" in out


def test_settings_fill_what_was_not_typed(pipeline, folder):
    (folder / "pyproject.toml").write_text('[tool.leadline]\nlevel = "2"\ntarget = "cuda:80"\nignore = ["MEM101"]\nthreshold = 1.2\n')
    assert call("diagnose", "k.py", "-q") == 0  # level 2 was configured, not demanded: no status 4
    asked = pipeline.asked[0]
    assert (asked.level, asked.target, asked.ignore, asked.threshold) == ("2", "cuda:80", ("MEM101",), 1.2)


def test_json_is_one_object(pipeline, folder, capsys):
    assert call("diagnose", "k.py", "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert decode(out) == pipeline.run
    read = json.loads(out)
    assert (read["schema"], read["findings"][0]["evidence"][0], read["device"]) == ("leadline.run/1", "e1", None)


def test_quiet_prints_a_line_per_finding(pipeline, folder, capsys):
    assert call("diagnose", "k.py", "-q") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[1] for line in lines] == ["13", "15"]


def test_level_2_without_a_device_is_status_4(pipeline, folder, capsys):
    assert call("diagnose", "k.py", "--level", "2", "--json") == 4
    out, err = capsys.readouterr()
    assert decode(out) == pipeline.run  # the report is there all the same, and stdout stays one object
    assert err == (
        "error: --level 2: level 2 was asked for and nothing could be measured; run on a machine with a device\n"
    )


def test_a_level_that_was_not_reached_is_status_4(pipeline, folder, capsys):
    pipeline.run = msgspec.structs.replace(pipeline.run, levels=(Level(level=1, located=True, narrowed=False, explained=False),))
    assert call("diagnose", "k.py", "--level", "4") == 4
    assert capsys.readouterr().err == (
        "error: --level 4: level 4 was asked for and could not be reached: no NVIDIA device on this machine; "
        "run on a machine with a device or pass --profile FILE\n"
    )


def test_progress_is_drawn_on_a_terminal_only(pipeline, folder, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    assert call("diagnose", "k.py") == 0
    assert "compile" in screen.getvalue()


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["diagnose"], "leadline diagnose: Missing argument 'TARGET'; see leadline diagnose --help"),
        (["diagnos", "k.py"], "leadline: No such command 'diagnos'; did you mean 'diagnose'?"),
        (["diagnose", "kk.py"], "kk.py: no such file; did you mean 'k.py'?"),
        (["diagnose", "zzzzzzzzzz/q.py"], "zzzzzzzzzz/q.py: no such file; check the path"),
        (["diagnose", "dir.py"], "dir.py: is a folder; give a Python file"),
        (["diagnose", "k.py", "--level", "5"], "--level: '5' is not known; choose one of auto, 1, 2, 3, 4"),
        (["diagnose", "k.py", "--device", "non"], "--device: 'non' is not known; did you mean 'none'?"),
        (["diagnose", "k.py", "--target", "h100"], "--target: 'h100' is not a target; {2}"),
        (["diagnose", "k.py", "--case", "c.py"], "c.py: no such file; check the path"),
        (["diagnose", "k.py", "--profile", "p.rep"], "p.rep: no such file; check the path"),
        (["diagnose", "k.py", "--select", "MEM10"], "--select: no rule is called 'MEM10'; did you mean 'MEM101'?"),
        (["diagnose", "k.py", "--ignore", "xyzzy"], "--ignore: no rule is called 'xyzzy'; leadline rules lists them"),
        (["optimize", "k.py", "--budget", "soon"], "--budget: 'soon' is not a duration; write it as 60s, 5m or 1m30s"),
        (["optimize", "k.py", "--proposer", "rule"], "--proposer: 'rule' is not known; did you mean 'rules'?"),
        (["optimize", "k.py", "--write", "-o", "b.py"], "optimize: -o and --write exclude each other; give one of them"),
        (["optimize", "k.py", "-o", "no/b.py"], "-o: folder {0}/no does not exist; create it first"),
        (["optimize", "k.py", "-o", "dir.py"], "-o: dir.py is a folder; give a file name"),
        (["verify", "k.py", "new.py"], "new.py: no such file; check the path"),
        (["report", "run.json"], "run.json: no such file; check the path"),
        (["report", "bad.json"], "bad.json: not a run: Expected `object`, got `array`; {1}"),
        (["report", "old.json"], "old.json: schema is 'leadline.run/0', this version reads 'leadline.run/1'; {1}"),
        (["report", "good.json", "--format", "pdf"], "--format: 'pdf' is not known; choose one of html, md, json, sarif, diff"),
        (["explain", "MEM102"], "explain: no rule is called 'MEM102'; did you mean 'MEM101'?"),
        (["explain", "xyzzy"], "explain: no rule is called 'xyzzy'; leadline rules lists them"),
    ],
)  # fmt: skip
def test_usage_errors(pipeline, folder, two_rules, capsys, arguments, line):
    (folder / "dir.py").mkdir()
    (folder / "bad.json").write_text("[]")
    (folder / "old.json").write_text('{"schema": "leadline.run/0"}')
    (folder / "good.json").write_text("{}")
    assert call(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: {line.format(folder, RUN_WANTED, FORM)}\n"
    assert pipeline.asked == []


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UsageError("no case is called 'x'", where="--case", remedy="choose a or b"), 2, "--case: no case is called 'x'; choose a or b"),
        (InternalError("the store is damaged"), 2, "the store is damaged"),
        (KernelError("does not compile", where="k.py:13", remedy="correct it"), 3, "k.py:13: does not compile; correct it"),
        (EvidenceError("no counters", where="--profile"), 4, "--profile: no counters"),
        (WorkerDied("worker compile exited with status 9"), 2, "worker compile exited with status 9"),
        (WorkerRaised("ValueError", "bad\nshape", frame="k.py:20"), 3, "k.py:20: ValueError: bad shape"),
        (WorkerRaised("ValueError", "ours"), 2, "ValueError: ours"),
    ],
)  # fmt: skip
def test_expected_errors_are_one_line(pipeline, folder, capsys, error, status, line):
    pipeline.run = error
    assert call("diagnose", "k.py") == status
    assert capsys.readouterr() == ("", f"error: {line}\n")


def test_json_errors_are_an_object_too(pipeline, folder, capsys):
    pipeline.run = KernelError("does not compile", where="k.py:13", remedy="correct it")
    assert call("diagnose", "k.py", "--json") == 3
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "schema": "leadline.error/1", "error": "does not compile", "where": "k.py:13", "remedy": "correct it", "status": 3,
    }  # fmt: skip
    assert err == "error: k.py:13: does not compile; correct it\n"
    assert call("diagnose", "--json") == 2  # found before the command began
    assert json.loads(capsys.readouterr().out)["error"] == "Missing argument 'TARGET'"


def test_a_crash_is_one_line_and_a_file(pipeline, folder, capsys):
    pipeline.run = ZeroDivisionError("division by zero")
    assert call("diagnose", "k.py") == 2
    out, err = capsys.readouterr()
    (saved,) = (folder / "home" / "crashes").iterdir()
    assert out == ""
    assert err == (
        f"internal error: ZeroDivisionError: division by zero; run again with -v for the traceback and report it (traceback in {saved})\n"
    )
    assert "Traceback (most recent call last)" in saved.read_text()


def test_a_crash_with_v_shows_the_traceback(pipeline, folder, capsys):
    pipeline.run = ZeroDivisionError("division by zero")
    assert call("diagnose", "k.py", "-v", "--json") == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == "internal error: ZeroDivisionError: division by zero"
    assert "Traceback (most recent call last)" in err
    assert not (folder / "home").exists()


def test_verbose_errors_show_the_workers_log(pipeline, folder, capsys):
    pipeline.run = WorkerDied("worker compile exited with status 9", log="ptxas fatal: out of memory\n")
    assert call("diagnose", "k.py", "-v") == 2
    err = capsys.readouterr().err
    assert err.startswith("error: worker compile exited with status 9\nptxas fatal: out of memory\nTraceback")


def test_interrupt(pipeline, folder, capsys):
    pipeline.run = KeyboardInterrupt()
    assert call("diagnose", "k.py") == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_closed_pipe_is_silent(tmp_path):
    big = msgspec.structs.replace(sample("diagnosed"), findings=sample("diagnosed").findings * 400)
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(big))
    command = [sys.executable, "-m", "leadline", "report", str(tmp_path / "run.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(30) == 141


# -- optimize ---------------------------------------------------------------------------------------------------------


def test_optimize_prints_the_diff(pipeline, folder, capsys):
    pipeline.run = sample("optimized")
    arguments = ["--budget", "90s", "--rounds", "3", "--proposer", "rules,search", "--allow-numerics"]
    assert call("optimize", "k.py", *arguments) == 0
    asked = pipeline.asked[0]
    assert (asked.budget_s, asked.rounds, asked.proposers, asked.allow_numerics) == (90.0, 3, ("rules", "search"), True)
    out = capsys.readouterr().out
    assert "best speedup: 1.50x (1.45-1.55), measured on NVIDIA H200, round 4" in out
    assert out.endswith(pipeline.run.best_diff)
    assert (folder / "k.py").read_text() == pipeline.run.source


def test_optimize_to_a_file(pipeline, folder, capsys):
    pipeline.run = sample("optimized")
    assert call("optimize", "k.py", "-o", "best.py", "-q") == 0
    assert (folder / "best.py").read_text() == pipeline.run.best
    assert (folder / "k.py").read_text() == pipeline.run.source
    assert capsys.readouterr().err == "wrote best.py\n"


def test_optimize_in_place_keeps_mode_and_link_and_can_be_undone(pipeline, folder, capsys):
    pipeline.run = sample("optimized")
    (folder / "k.py").rename(folder / "real.py")
    (folder / "real.py").chmod(0o750)
    (folder / "k.py").symlink_to("real.py")
    assert call("optimize", "k.py", "--write") == 0
    assert (folder / "k.py").is_symlink()
    assert (folder / "real.py").read_text() == pipeline.run.best
    assert (folder / "real.py").stat().st_mode & 0o777 == 0o750
    assert capsys.readouterr().err == "replaced k.py; undo with: leadline report 77b1c0de93aa0142 --format diff | patch -R k.py\n"
    assert sorted(p.name for p in folder.iterdir()) == ["k.py", "real.py"]


def test_a_file_edited_meanwhile_is_not_overwritten(pipeline, folder, capsys):
    pipeline.run = msgspec.structs.replace(sample("optimized"), source="something else\n")
    before = (folder / "k.py").read_text()
    assert call("optimize", "k.py", "--write") == 2
    assert (folder / "k.py").read_text() == before
    assert capsys.readouterr().err == "error: k.py: the file changed while it was optimised; run again, or use -o FILE\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_that_cannot_be_written_is_refused_before_the_work(pipeline, folder, capsys):
    (folder / "k.py").chmod(0o444)
    assert call("optimize", "k.py", "--write") == 2
    assert capsys.readouterr().err == "error: --write: k.py is not writable; make it writable or use -o FILE\n"
    assert pipeline.asked == []


def test_the_refusal_to_write_itself(folder, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError) as raised:
        file.writable(folder / "k.py", "--write")
    assert str(raised.value) == f"--write: {folder / 'k.py'} is not writable; make it writable or use -o FILE"
    with pytest.raises(UsageError) as raised:
        file.writable(folder / "new.py", "-o")
    assert str(raised.value) == f"-o: folder {folder} is not writable; choose another place with -o FILE"


def test_an_unmeasured_result_is_written_with_a_warning(pipeline, folder, capsys):
    run = sample("no_device")
    pipeline.run = msgspec.structs.replace(run, best=run.rewrites["r1"].source)
    assert call("optimize", "k.py", "-o", "best.py", "-q") == 0
    assert capsys.readouterr().err == "wrote best.py; its speedup was not measured\n"


def test_nothing_accepted_writes_nothing(pipeline, folder, capsys):
    pipeline.run = sample("no_device")
    assert call("optimize", "k.py", "--write") == 0
    out, err = capsys.readouterr()
    assert "best speedup: not measured (no device)" in out
    assert err == "nothing written: no candidate was accepted\n"


# -- verify -----------------------------------------------------------------------------------------------------------


def judged(outcome: str, correct: bool | None = True) -> Run:
    details = Verdict(outcome=outcome, reason="why", compiled=True, correct=correct)
    verdict = Round(round=1, parent=0, hypothesis="candidate", rewrite="", verdict=outcome, reason="why", details=details)
    return Run(command="verify", path="k.py", rounds=(verdict,))


@pytest.mark.parametrize(
    ("run", "arguments", "status"),
    [
        (judged("accepted"), [], 0),
        (judged("rejected"), [], 1),
        (Run(command="verify"), [], 1),
        (judged("inconclusive"), [], 4),
        (judged("inconclusive"), ["--device", "none"], 0),
        (judged("inconclusive", correct=None), ["--device", "none"], 4),
    ],
)
def test_verify_fails_closed(pipeline, folder, run, arguments, status, capsys):
    (folder / "new.py").write_text("")
    pipeline.run = run
    assert call("verify", "k.py", "new.py", *arguments) == status
    out, err = capsys.readouterr()
    assert "speedup: not measured (no device)" in out
    if status == 4:
        assert err == (
            "error: new.py: the candidate is neither accepted nor rejected: why; "
            "run on a machine with a device, or ask for correctness alone with --device none\n"
        )


def test_verify_asks_for_what_was_typed(pipeline, folder):
    pipeline.run = judged("accepted")
    (folder / "new.py").write_text("")
    assert call("verify", "k.py", "new.py", "--case", "big", "--first-call") == 0
    assert pipeline.asked == [settings.VerifyOptions(old="k.py", new="new.py", case="big", first_call=True, home=str(folder / "home"))]


# -- report, rules, explain, doctor -----------------------------------------------------------------------------------


def test_report_shows_a_file_again(folder, capsys):
    assert call("report", str(RUNS / "optimized.json"), "-q") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "best speedup: 1.50x (1.45-1.55), measured on NVIDIA H200, round 4"
    assert call("report", str(RUNS / "optimized.json"), "--format", "html", "-o", "run.html") == 0
    assert (folder / "run.html").read_text().startswith("<!doctype html>")
    assert call("report", str(RUNS / "optimized.json"), "-o", "run.txt") == 0
    assert "MEM101 unaligned-access" in (folder / "run.txt").read_text()
    assert call("report", str(RUNS / "optimized.json"), "--format", "diff") == 0
    assert capsys.readouterr().out == sample("optimized").best_diff


def test_report_of_a_stored_run(folder, monkeypatch, capsys):
    class Store:
        def __init__(self, home):
            self.home = home

        def load_run(self, name):
            assert self.home == str(folder / "home")
            return sample("optimized") if name == "77b1c0de93aa0142" else None

    module = types.ModuleType("leadline.execution.store")
    module.Store = Store  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "leadline.execution.store", module)
    assert call("report", "77b1c0de93aa0142", "--format", "json") == 0
    assert decode(capsys.readouterr().out) == sample("optimized")
    assert call("report", "77") == 2
    assert capsys.readouterr() == ("", "error: report: no run is called '77'; give a run id or a file written by --json\n")


def test_rules(folder, two_rules, capsys):
    assert call("rules") == 0
    assert capsys.readouterr().out.splitlines() == [
        "code    slug              cause             family  rewrite",
        "GRD101  grid-underfill    grid_underfill    grid    no",
        "MEM101  unaligned-access  unaligned_access  memory  yes",
    ]
    assert call("rules", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rules"][1] == {
        "code": "MEM101", "slug": "unaligned-access", "cause": "unaligned_access", "family": "memory", "rewrite": True,
        "targets": ["cuda"],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["MEM101", "mem101", "unaligned-access", "unaligned_access"])
def test_explain(folder, two_rules, capsys, name):
    assert call("explain", name) == 0
    assert capsys.readouterr().out == (
        "MEM101 unaligned-access  (cause unaligned_access, family memory)\n\n"
        "A load narrower than it could be.\n\nWhat it finds\n    Narrow loads.\n"
    )


@pytest.fixture
def bare_machine(monkeypatch):
    from leadline.execution import environment, worker

    found = environment.Environment(python="3.11.1", executable="/p", triton_problem="ModuleNotFoundError: No module named 'triton'")
    monkeypatch.setattr(worker.Worker, "call", lambda *arguments, **options: found)


def test_doctor_gives_a_remedy_for_each(folder, bare_machine, capsys):
    assert call("doctor") == 0
    out = capsys.readouterr().out
    assert "triton         missing  ModuleNotFoundError: No module named 'triton'\n" in out
    assert out.count("remedy: ") == 6
    assert call("doctor", "--require", "python") == 0
    assert call("doctor", "--require", "triton") == 4
    assert capsys.readouterr().err == (
        "error: --require: triton is not usable: ModuleNotFoundError: No module named 'triton'; "
        "install it into the interpreter that runs leadline\n"
    )
    assert call("doctor", "--require", "gpu") == 2
    assert call("doctor", "--json") == 0


def test_doctor_survives_a_worker_that_dies(folder, monkeypatch, capsys):
    from leadline.execution import worker

    def die(*arguments, **options):
        raise WorkerDied("worker doctor was killed by SIGILL")

    monkeypatch.setattr(worker.Worker, "call", die)
    assert call("doctor", "--json") == 0
    items = {item["name"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert items["torch"]["detail"] == "worker doctor was killed by SIGILL"
