"""The terminal report, compared with stored text, and what must never be printed."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from leadline.model import Check, Estimate, Finding, ProbeOutcome, Rewrite, Round, Run, Verdict
from leadline.report import content
from leadline.report.json import decode
from leadline.report.terminal import render

DATA = Path(__file__).parents[1] / "data" / "runs"


@pytest.fixture(autouse=True)
def no_rules(monkeypatch):
    """Slugs from the causes, whatever rules are installed."""
    monkeypatch.setattr(content, "slugs", dict)


def sample(name: str) -> Run:
    return decode((DATA / f"{name}.json").read_bytes())


def printed(run: Run, *, width: int = 100, terminal: bool = False, color: str | None = None, **options) -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, force_terminal=terminal, color_system=color, legacy_windows=False)  # pyright: ignore[reportArgumentType]
    render(run, console, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["diagnosed", "optimized", "no_device"])
def test_the_page_is_as_stored(name, request):
    """To store anew: LEADLINE_STORE=1 pytest tests/report/test_terminal.py"""
    import os

    file = DATA / f"{name}.txt"
    text = printed(sample(name))
    if os.environ.get("LEADLINE_STORE"):
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("name", ["diagnosed", "optimized", "no_device"])
@pytest.mark.parametrize("width", [72, 80, 120])
def test_lines_keep_to_the_width_but_for_code(name, width):
    run = msgspec.structs.replace(sample(name), source="", rewrites={})
    lines = printed(run, width=width).splitlines()
    assert max(len(line) for line in lines) <= width
    assert all(line == line.rstrip() for line in lines)


def test_the_underline_is_below_the_span():
    lines = printed(sample("diagnosed")).splitlines()
    at = next(n for n, line in enumerate(lines) if line.lstrip().startswith("13 |"))
    code, marks = lines[at], lines[at + 1]
    assert code[marks.index("^") : marks.rindex("^") + 1] == "tl.load(x_ptr + row * stride + cols, mask=cols < n)"


def test_a_narrow_terminal_crops_code_and_a_pipe_does_not():
    assert "mask=cols < n)\n" in printed(sample("diagnosed"), width=50)
    narrow = printed(sample("diagnosed"), width=50, terminal=True).splitlines()
    code = [line for line in narrow if "|" in line]
    assert max(len(line) for line in code) <= 50
    assert any(line.endswith("…") for line in code)


def test_colour_only_when_asked():
    plain, colored = printed(sample("optimized")), printed(sample("optimized"), terminal=True, color="standard")
    assert "\x1b" not in plain
    assert "\x1b[32m+def add_bias" in colored.replace("  +def", "+def") or "\x1b[32m  +def add_bias" in colored
    assert "\x1b[31m  -def add_bias" in colored


def test_a_user_s_brackets_are_not_markup():
    run = sample("diagnosed")
    finding = msgspec.structs.replace(run.findings[0], summary="x[red] and [/bold] stay")
    assert "x[red] and [/bold] stay" in printed(msgspec.structs.replace(run, findings=(finding,)))


def test_escapes_of_a_source_do_not_reach_the_terminal():
    run = sample("diagnosed")
    finding = msgspec.structs.replace(run.findings[0], summary="clear \x1b[2J the screen")
    text = printed(msgspec.structs.replace(run, findings=(finding,)), terminal=True, color="standard")
    assert "clear ␛[2J the screen" in text


def test_quiet():
    assert printed(sample("optimized"), quiet=True).splitlines() == [
        "k.py:13:9: MEM101 unaligned-access verified (measured 1.50x (1.40-1.60)): "
        "the load of x moves 16 bits per instruction where 128 are possible",
        "k.py:15:5: PIP201 unpipelined-load located (expected 1.0-1.1x): the store is as narrow as the load it follows",
        "best speedup: 1.50x (1.45-1.55), measured on NVIDIA H200, round 4",
    ]
    assert len(printed(sample("diagnosed"), quiet=True).splitlines()) == 2


def test_verbose_names_evidence_and_how_to_see_it_again():
    text = printed(sample("optimized"), verbose=True)
    assert "[e4] ttgir: tt.load width in bits = 16 (line 13)" in text
    assert "$ leadline diagnose k.py --level 3" in text
    assert "equal to the reference [rows8192]: passed largest error 0" in text
    assert "interpreter: not run no small case" in text


def test_much_evidence_is_cut_without_v():
    run = sample("diagnosed")
    finding = msgspec.structs.replace(run.findings[0], evidence=("e4",) * 5)
    run = msgspec.structs.replace(run, findings=(finding,))
    assert "and 2 more (-v)" in printed(run)
    assert "more (-v)" not in printed(run, verbose=True)


def test_nothing_predicted_is_called_measured():
    text = printed(sample("no_device"), verbose=True)
    assert "measured" not in text.replace("not measured", "")
    assert "best speedup: not measured (no device)" in text
    assert "floor 41.0 us (predicted), time not measured" in text


def test_a_speedup_without_a_measurement_is_withheld():
    run = sample("optimized")
    details = Verdict(outcome="accepted", reason="", measured=False, checks=(Check(name="c", passed=True),))
    round_ = msgspec.structs.replace(run.rounds[0], details=details, rewrite="final")
    text = printed(msgspec.structs.replace(run, rounds=(round_,)))
    assert "1.50x" not in text
    assert "best speedup: none (no candidate was accepted)" in text


def test_probes_that_prove_nothing_say_so():
    run = sample("diagnosed")
    outcome = run.evidence["e9"]
    assert isinstance(outcome, ProbeOutcome)
    void = msgspec.structs.replace(outcome, control=128)
    failed = msgspec.structs.replace(outcome, error="ptxas failed\nmore")
    for changed, verdict, detail in (
        (void, "void", "the unchanged kernel gave 128, not 16"),
        (failed, "could not run", "ptxas failed"),
    ):
        row = content.probe_row(changed)
        assert row.verdict == verdict
        assert row.detail.startswith(detail)
        assert verdict in printed(msgspec.structs.replace(run, evidence={**run.evidence, "e9": changed}))


def test_the_rest_is_shown():
    run = sample("diagnosed")
    rewrite = msgspec.structs.replace(run.rewrites["r1"], applicability="guarded", guard="x.stride(0) % 16 == 0")
    finding = msgspec.structs.replace(run.findings[0], consequences=("PIP900:gone",), against=("e10", "e3"))
    run = msgspec.structs.replace(
        run, findings=(finding,), rewrites={"r1": rewrite}, errors=("rule GRD104 crashed at grid.py:3: KeyError",)
    )
    text = printed(run)
    assert "[guarded]" in text
    assert "guard      x.stride(0) % 16 == 0" in text
    assert "causes     PIP900 gone" in text
    assert "against    DRAM floor 41 us [predicted]" in text
    assert "rule error rule GRD104 crashed at grid.py:3: KeyError" in text


def test_an_empty_run():
    assert printed(Run()) == "cuda:90, no device\n\nno findings\n"


def finding(rule: str, key: str, *consequences: str) -> Finding:
    return Finding(rule=rule, cause="c", grade="located", file="k.py", line=1, summary="s", key=key, consequences=consequences,
                   estimate=Estimate(kind="global", low=1.0, high=1.05))  # fmt: skip


def test_a_cycle_of_causes_hides_nothing():
    run = Run(findings=(finding("A", "1", "B:2"), finding("B", "2", "A:1"), finding("C", "3", "C:3", "B:2")))
    text = printed(run)
    assert [text.count(f"{rule} c ") for rule in "ABC"] == [1, 1, 1]
    assert "expected 1.00-1.05x" in text


def test_a_second_rewrite_is_named_only():
    run = sample("diagnosed")
    other = Rewrite(id="r5", rule="MEM101", title="Pad the rows", source="", diff="-a\n+b\n")
    found = msgspec.structs.replace(run.findings[0], rewrites=("r1", "r5"))
    run = msgspec.structs.replace(run, findings=(found,), rewrites={**run.rewrites, "r5": other})
    assert "Pad the rows" in printed(run)
    assert "  +b\n" not in printed(run)
    assert "  +b\n" in printed(run, verbose=True)
    assert "  or         Pad the rows" in printed(run)


def test_the_same_change_is_printed_once():
    run = sample("diagnosed")
    first = run.findings[0]
    again = msgspec.structs.replace(first, rule="TIL101", key="again", consequences=(), rewrite="r9", rewrites=("r9",))
    twin = msgspec.structs.replace(run.rewrites[first.rewrite], id="r9", rule="TIL101", title="The twin")
    run = msgspec.structs.replace(run, findings=(*run.findings, again), rewrites={**run.rewrites, "r9": twin})
    text = printed(run)
    assert f"same change as {first.rule} above" in text
    assert text.count(twin.diff.splitlines()[0]) == 1


def test_a_verification_says_what_it_checked():
    checks = (Check(name="interpreter", passed=True, case="tiny"),)
    details = Verdict(outcome="inconclusive", reason="not measured: no device", correct=True, checks=checks)
    entry = Round(round=1, parent=0, hypothesis="h", rewrite="new.py", verdict="inconclusive", details=details)
    run = Run(command="verify", rounds=(entry,), best_diff="-a\n+b\n")
    assert "checked    correct in the interpreter on tiny; full size: not compiled, stores not compared, not" in printed(run)
    assert "\nchange, neither accepted nor rejected\n" in printed(run, verbose=True)
