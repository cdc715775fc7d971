"""Input that no user means to give: each kind ends in one line that says what, where and what to do, with its status."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from leadline import cli, pipeline
from leadline.diagnose import gather
from leadline.errors import KernelError, LeadlineError
from leadline.execution.frames import stack_line
from leadline.execution.modules import load_module
from leadline.execution.worker import Worker
from leadline.ingest.case import read_source, read_target
from leadline.model import Check, KernelCase, Unavailable, Verdict
from leadline.report.json import decode
from leadline.verify.judge import JudgeRequest

GOOD = '''import torch
import triton
import triton.language as tl

CASES = {"a": dict(n=1000)}
SMALL = {"s": dict(n=100)}


def make_inputs(*, device, seed, n):
    return {"x": torch.ones(n, device=device)}


@triton.jit
def k(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def launch(x):
    o = torch.empty_like(x)
    k[(triton.cdiv(x.numel(), 64),)](x, o, x.numel(), BLOCK=64)
    return o
'''
ALONE = "make launch(**make_inputs(...)) return on its own first"


def write(folder: Path, text: str | bytes, name: str = "k.py") -> str:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(folder / name)


def edited(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def told(error: LeadlineError, path: str) -> tuple[str, int]:
    return str(error).replace(path, "k.py"), error.status


# -- text ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"\xef\xbb\xbf" + GOOD.encode(), "k.py: begins with a byte-order mark; save it as UTF-8 without one"),
        (b"a = 1\r\nb = '\xe9'\r\n", "k.py:2: is not UTF-8 text (byte 0xe9); save it as UTF-8"),
        (GOOD + "def f(:\n", "k.py:23: does not parse: invalid syntax; mend the syntax first"),
        (b"import x\n\x00", "k.py:1: does not parse: source code string cannot contain null bytes; mend the syntax first"),
        ("", "k.py: no @triton.jit kernel in the file; give the file that defines or launches the kernels"),
    ],
    ids=["mark", "latin", "syntax", "null", "empty"],
)
def test_text_that_is_no_case(tmp_path: Path, data: str | bytes, line: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(KernelError) as caught:
        read_target(path)
    assert told(caught.value, path) == (line, 3)


def test_text_nested_too_deeply(tmp_path: Path) -> None:
    path = write(tmp_path, "x = " + "-" * 200_000 + "1\n")
    with pytest.raises(KernelError, match=r"k\.py:\d+: does not parse: .*; mend the syntax first$"):
        read_target(path)


def test_line_ends_are_read_as_python_reads_them(tmp_path: Path) -> None:
    assert read_source(write(tmp_path, b"a = 1\r\nb = 2\rc = 3\n")) == "a = 1\nb = 2\nc = 3\n"


# -- the case, in a worker ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    pytest.importorskip("triton")
    with Worker("compile") as made:
        yield made


def session(worker: Worker) -> pipeline.Session:
    made: Any = pipeline.Session.__new__(pipeline.Session)
    made.options, made.workers = SimpleNamespace(target="cuda:90"), SimpleNamespace(compile=worker, interpret=worker, device=None)
    return made


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('{"a": dict(n=1000)}', '{"a": dict(m=1)}', "k.py: make_inputs does not fit CASES['a']: missing a required argument: 'n'; "
         "give make_inputs(*, device, seed, ...) the keys of the entry as parameters"),
        ('{"s": dict(n=100)}', '{"s": dict(n=1, z=2)}', "k.py: make_inputs does not fit SMALL['s']: got an unexpected keyword argument "
         "'z'; give make_inputs(*, device, seed, ...) the keys of the entry as parameters"),
        ("CASES =", "import sys; sys.exit(0)\nCASES =", "k.py:5: importing the file raised SystemExit: 0"),
        ("CASES =", "import os; os._exit(3)\nCASES =", "k.py: importing the file ended the process: it exited with status 3; "
         "make the file import on its own"),
        ("CASES =", "import os; os.kill(os.getpid(), 11)\nCASES =", "k.py:5: importing the file ended the process: it was killed by "
         "SIGSEGV; make the file import on its own"),
    ],
    ids=["cases", "small", "exit", "os-exit", "segfault"],
)  # fmt: skip
def test_a_file_that_does_not_import_as_a_case(tmp_path: Path, worker: Worker, old: str, new: str, line: str) -> None:
    path = write(tmp_path, edited(old, new))
    with pytest.raises(KernelError) as caught:
        session(worker).describe(read_target(path))
    assert told(caught.value, path) == (line, 3)


def test_an_import_that_hangs(tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    session(worker).describe(read_target(write(tmp_path, GOOD)))  # torch and triton are there
    path = write(tmp_path, edited("CASES =", "while True: pass\nCASES ="))
    monkeypatch.setattr(pipeline, "IMPORT_TIMEOUT_S", 0.5)
    with pytest.raises(KernelError) as caught:
        session(worker).describe(read_target(path))
    assert told(caught.value, path) == ("k.py:5: importing the file did not finish within 0.5 s; make the file import on its own", 3)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('{"x": torch', '{"y": torch', "k.py: launch does not take its inputs: missing a required argument: 'x'; "
         "launch is called with the names that make_inputs returns: y"),
        ("    o = torch", "    raise RuntimeError('boom')\n    o = torch", "k.py:20: launch raised RuntimeError: boom; "
         "make launch(**make_inputs(...)) work on its own first"),
        ("    return {", "    raise ValueError('no')\n    return {", "k.py:10: make_inputs raised ValueError: no; "
         "make make_inputs(device=..., seed=0, **case) work on its own first"),
        ("    o = torch", "    while True: pass\n    o = torch",
         f"k.py:20: make_inputs or launch of case a made no answer within 3 s; {ALONE}"),
        ("    o = torch", "    import os; os.kill(os.getpid(), 11)\n    o = torch",
         f"k.py:20: make_inputs or launch of case a ended the process; {ALONE}"),
    ],
    ids=["names", "raises", "inputs", "hang", "segfault"],
)  # fmt: skip
def test_a_case_that_cannot_be_traced(
    tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch, old: str, new: str, line: str
) -> None:
    path = write(tmp_path, edited(old, new))
    monkeypatch.setattr(gather, "TRACE_TIMEOUT_S", 3 if "3 s" in line else 60)
    made: Any = gather.LiveGatherer(read_target(path), session(worker).workers, None, target="cuda:90", versions={})  # type: ignore[arg-type]
    with pytest.raises(KernelError) as caught:
        made.trace("a")
    assert told(caught.value, path) == (line, 3)


# -- places -------------------------------------------------------------------------------------------------------------


def test_a_path_that_is_not_ascii_is_loaded_under_one_that_is(tmp_path: Path) -> None:
    folder = tmp_path / "größe von x"
    folder.mkdir()
    module = load_module(write(folder, "def f():\n    raise ValueError('no')\n", "ä.py"))
    assert str(module.__file__).isascii()
    with pytest.raises(KernelError) as caught:
        load_module(write(folder, "raise ValueError('no')\n", "ö.py"))
    assert str(caught.value) == f"{folder}/ö.py:1: importing the file raised ValueError: no"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ('  File "/u/k.py", line 3 in f\n', ""),  # no stack, only something that looks like one
        ('Current thread 0x1 (most recent call first):\n  File "/v/lib/python3.11/site-packages/torch/a.py", line 3 in f\n'
         '  File "/u/k.py", line 7 in launch\n  File "/u/k.py", line 9 in g\n', "/u/k.py:7"),
        ('Current thread 0x1 (most recent call first):\n  File "/u/a.py", line 1 in f\n'
         'Current thread 0x1 (most recent call first):\n  File "<string>", line 2 in <module>\n', ""),
    ],
)  # fmt: skip
def test_the_line_of_the_last_stack(log: str, line: str) -> None:
    assert stack_line(log) == line


# -- output -------------------------------------------------------------------------------------------------------------


def test_a_file_with_other_line_ends_keeps_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = decode((Path(__file__).parent / "data" / "runs" / "optimized.json").read_bytes())
    before = run.source.replace("\n", "\r\n").encode()
    path = Path(write(tmp_path, before))
    cli._deliver(run, path, None, True, True)
    assert path.read_bytes() == run.best.replace("\n", "\r\n").encode()
    undo = rf"leadline report {run.id} --format diff | sed 's/$/\r/' | patch -R --binary {path}"
    assert capsys.readouterr().err.startswith(f"replaced {path}; undo with: {undo}")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device")
def test_a_full_disk_and_a_closed_stdout() -> None:
    def rules(where: str) -> tuple[int, str]:
        done = subprocess.run(["sh", "-c", f"exec {sys.executable} -m leadline rules {where}"], capture_output=True, text=True)
        return done.returncode, done.stderr

    assert rules(">/dev/full") == (2, "error: output: cannot be written: No space left on device; make room and run again\n")
    assert rules(">&-") == (0, "")


def test_a_launch_without_kernels_names_the_file(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    path = write(tmp_path, edited("    k[(triton.cdiv(x.numel(), 64),)](x, o, x.numel(), BLOCK=64)\n", ""))
    done = subprocess.run([sys.executable, "-m", "leadline", "diagnose", path, "--json"], capture_output=True, text=True,
                          env={**os.environ, "LEADLINE_HOME": str(tmp_path / "home")})  # fmt: skip
    assert done.returncode == 3
    assert msgspec.json.decode(done.stdout) == {
        "schema": "leadline.error/1", "error": "launch starts no Triton kernel", "where": f"{path}, case a",
        "remedy": "name a case whose launch runs one", "status": 3,
    }  # fmt: skip
    assert done.stderr == f"error: {path}, case a: launch starts no Triton kernel; name a case whose launch runs one\n"


def test_an_original_that_strays_or_cannot_be_checked_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = (
        Check(name="interpreter", passed=True, detail="error 0; the original: load out of bounds at k.py:15 (1 of 8 lanes)", case="s"),
        Check(name="interpreter", passed=None, detail="the original itself does not finish within 60 s in case t", case="t"),
        Check(name="timing", passed=None, detail="not measured: no device"),
    )
    nothing = JudgeRequest(case=KernelCase(path="k", source="", kernels=()), original="", candidate="")
    monkeypatch.setattr(pipeline, "_request", lambda *_: nothing)
    monkeypatch.setattr(pipeline, "judge", lambda *_: Verdict(outcome="inconclusive", reason="", checks=checks))
    told: Any = SimpleNamespace(case=SimpleNamespace(source=""), workers=None)
    assert pipeline._check_original(told) == (
        Unavailable(what="proof that the original stays within its memory (case s)",
                    reason="the original: load out of bounds at k.py:15 (1 of 8 lanes)", remedy="mask the lanes beyond the end"),
        Unavailable(what="check of the original against its reference",
                    reason="the original itself does not finish within 60 s in case t",
                    remedy="give SMALL cases that end within seconds in the interpreter"),
    )  # fmt: skip
