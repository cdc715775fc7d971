import pytest

from leadline.errors import KernelError, UsageError
from leadline.ingest.case import read_target

KERNEL = "import torch, triton\nimport triton.language as tl\n\n@triton.jit\ndef k(x):\n    tl.store(x, 1)\n\n"
CASE = 'CASES = {"a": dict(n=1), "b": dict(n=2)}\nSMALL = dict(x={})\ndef make_inputs(*, device, seed, n): ...\ndef launch(**i): ...\n'


@pytest.fixture
def write(tmp_path):
    def go(text: str, name: str = "f.py") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return go


def test_case_file(write):
    path = write(KERNEL + CASE + "def reference(**i): ...\n")
    case = read_target(path)
    assert (case.path, case.kernels, case.cases, case.small) == (path, ("k",), ("a", "b"), ())
    assert (case.kind, case.oracle, case.wrapper, case.selected, case.case_file) == ("case", "reference", "launch", "", "")
    assert case.source.startswith("import torch")
    assert read_target(path + "::k").selected == "k"
    assert read_target(write(KERNEL + CASE)).oracle == "launch"


def test_other_case_file(write):
    path, other = write(KERNEL), write("from f import k\n" + CASE, "other.py")
    case = read_target(path + "::k", other)
    assert (case.case_file, case.cases, case.selected) == (other, ("a", "b"), "k")
    bad = write("CASES = {}\n", "bad.py")
    with pytest.raises(KernelError) as caught:
        read_target(path, bad)
    assert str(caught.value) == f"{bad}: make_inputs is missing; define make_inputs(*, device, seed, **case) that returns a dict of inputs"
    unrelated = write(KERNEL + CASE, "unrelated.py")
    with pytest.raises(KernelError) as caught:
        read_target(path, unrelated)
    assert str(caught.value) == f"{unrelated}: launch does not use {path}; import the kernels from f"
    assert read_target(write(KERNEL + CASE, "own.py"), unrelated).case_file == unrelated
    with pytest.raises(KernelError, match="launch is missing"):
        read_target(path, write("def make_inputs(): ...\n", "bad.py"))


def test_kernels_imported_from_elsewhere(write):
    assert read_target(write("from somewhere import k\n" + CASE)).kernels == ()


def test_kernelbench(write):
    text = KERNEL + "class Model: ...\nclass ModelNew: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"
    case = read_target(write(text))
    assert (case.kind, case.oracle, case.wrapper) == ("kernelbench", "reference", "ModelNew")


@pytest.mark.parametrize(
    ("text", "suffix", "what"),
    [
        ("x = (\n", "", "does not parse: '(' was never closed"),
        ("import torch\nx = 1\n", "", "no @triton.jit kernel in the file"),
        (KERNEL, "", "not a case: CASES, make_inputs, launch are missing"),
        (KERNEL + CASE.replace("def launch", "def run"), "", "not a case: launch is missing"),
        (KERNEL + CASE, "::other", "no kernel other"),
    ],
)
def test_errors(write, text, suffix, what):
    path = write(text)
    with pytest.raises(KernelError) as caught:
        read_target(path + suffix)
    assert caught.value.what == what
    assert caught.value.where == (f"{path}:1" if "parse" in what else path)
    if what.startswith("not a case"):
        assert "pass --case other.py" in caught.value.remedy
    if suffix:
        assert caught.value.remedy == "the kernels there are: k"


def test_not_a_python_file(write, tmp_path):
    for target, what in ((str(tmp_path / "none.py"), "the file does not exist"), (str(tmp_path), "is a folder"),
                         (write("", "a.txt"), "is not a Python file")):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            read_target(target)
        assert (caught.value.what, caught.value.where) == (what, target)
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KernelError, match=r":1: is not UTF-8 text \(byte 0xff\); save it as UTF-8$"):
        read_target(str(tmp_path / "bytes.py"))
