from pathlib import Path

import pytest
from programs import HONEST, ORIGINAL, case_of, edit

from leadline.verify.guards import objections

LAUNCH = "    n = x.numel()\n"


def gates(folder: Path, candidate: str, original: str = ORIGINAL) -> list[tuple[str, str]]:
    return [(o.gate, o.reason) for o in objections(case_of(folder, original), original, candidate)]


def test_an_honest_change_passes(tmp_path: Path) -> None:
    assert gates(tmp_path, HONEST) == []


def test_comments_docstrings_and_layout_are_no_change(tmp_path: Path) -> None:
    candidate = edit(("def launch(x):\n", 'def launch(x):\n    """Doc."""\n    # comment\n'), ("n = x.numel()", "n = (x.numel())"))
    assert gates(tmp_path, candidate) == [("noop", "changes nothing")]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("return x * 2.0 + 1.0", "return x * 2.0", "edits the case (reference)"),
        ('"odd": dict(n=37)', '"odd": dict(n=32)', "edits the case (SMALL)"),
        ("dict(n=4096)", "dict(n=64)", "edits the case (CASES)"),
        ("manual_seed(seed)", "manual_seed(0)", "edits the case (make_inputs)"),
        ("SMALL = ", "TOLERANCE = dict(atol=9, rtol=9)\nSMALL = ", "edits the case (TOLERANCE)"),
    ],
)
def test_edits_of_the_case(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert gates(tmp_path, edit((old, new), text=HONEST)) == [("case", reason)]


def test_a_candidate_may_leave_the_case_out(tmp_path: Path) -> None:
    without = HONEST[: HONEST.index("def reference")].replace('CASES = {"big": dict(n=4096), "ragged": dict(n=3001)}\n', "")
    assert gates(tmp_path, without) == []


@pytest.mark.parametrize(
    ("code", "gate", "reason"),
    [
        ("    torch.nn.functional.gelu(x)\n", "fallback", "computes with a library instead of a kernel (torch.nn.functional.gelu)"),
        ("    z = x.reshape(1, -1) @ x.reshape(-1, 1)\n", "fallback", "computes with a library instead of a kernel (@)"),
        ("    z = x.softmax(0)\n", "fallback", "computes with a library instead of a kernel (softmax)"),
        ("    return reference(x)\n", "fallback", "calls the reference"),
        ("    s = torch.cuda.Stream()\n", "forbidden", "uses another stream (torch.cuda.Stream)"),
        ("    import threading\n", "forbidden", "starts threads (import threading)"),
        ("    exec('1')\n", "forbidden", "runs code that cannot be read (exec)"),
        ("    f = torch.matmul\n", "fallback", "computes with a library instead of a kernel (torch.matmul)"),
        ("    f = getattr(torch, 'mat' + 'mul')\n", "fallback", "computes with a library instead of a kernel (torch.?)"),
        ("    f = getattr(x, 'softmax')\n", "fallback", "computes with a library instead of a kernel (softmax)"),
        ("    from torch.cuda import Stream as S\n", "forbidden", "uses another stream (torch.cuda.Stream)"),
        ("    from leadline.verify import clock\n", "forbidden", "reaches for its judge (import leadline)"),
        ("    import sys\n    sys.modules['x'] = None\n", "forbidden", "reaches into modules or frames (sys.modules)"),
        ("    torch.__dict__['allclose'] = None\n", "forbidden", "reaches into modules or frames (__dict__)"),
        ("    vars(torch)['allclose'] = None\n", "forbidden", "reaches into modules or frames (vars)"),
        ("    import os\n    os.write(5, b'')\n", "forbidden", "reaches for its process (os.write)"),
        ("    from os import write\n", "forbidden", "reaches for its process (os.write)"),
        ("    with contextlib.suppress(Exception):\n        k[(1,)](x)\n", "except", "catches the failure of its own launch"),
        ("    torch.allclose = None\n", "patch", "replaces a function of an imported module (torch.allclose)"),
        ("    setattr(torch.cuda, 'synchronize', None)\n", "patch", "replaces a function of an imported module (setattr(torch.cuda))"),
    ],
)
def test_what_a_wrapper_may_not_do(tmp_path: Path, code: str, gate: str, reason: str) -> None:
    assert (gate, reason) in gates(tmp_path, edit((LAUNCH, LAUNCH + code), text=HONEST))


def test_what_the_original_does_is_allowed(tmp_path: Path) -> None:
    code = "    x = x.softmax(0)\n"
    original = edit((LAUNCH, LAUNCH + code))
    assert gates(tmp_path, edit((LAUNCH, LAUNCH + code), text=HONEST), original) == []


def test_sums_of_partial_results_are_no_fallback(tmp_path: Path) -> None:
    assert gates(tmp_path, edit(("    return y\n", "    return torch.stack([y]).sum(0)\n"), text=HONEST)) == []


def test_catching_the_failure_of_a_launch(tmp_path: Path) -> None:
    old = "    scale_kernel[(triton.cdiv(n, 32),)](x, y, n, BLOCK=32)\n"
    new = "    try:\n    " + old + "    except Exception:\n        pass\n"
    assert gates(tmp_path, edit((old, new), text=HONEST)) == [("except", "catches the failure of its own launch")]


def test_text_that_does_not_parse(tmp_path: Path) -> None:
    assert gates(tmp_path, "def launch(:\n") == [("syntax", "does not parse: invalid syntax (line 1)")]
