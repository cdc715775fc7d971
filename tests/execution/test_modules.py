import inspect
import sys

import pytest

from leadline.errors import KernelError
from leadline.execution.modules import find_kernel, innermost_kernel, load_module

KERNELS = """
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"B": 64})], key=["n"])
@triton.heuristics({"EVEN": lambda a: True})
@triton.jit
def tuned(x, n, B: tl.constexpr, EVEN: tl.constexpr):
    tl.store(x, 1)


@triton.jit
def plain(x):
    tl.store(x, 2)
"""


def test_imports_once_per_content(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("VALUE = 1\n")
    first = load_module(str(file))
    assert load_module(str(file)) is first
    assert sys.modules[first.__name__] is first
    file.write_text("VALUE = 2\n")
    assert load_module(str(file)).VALUE == 2
    assert first.VALUE == 1


def test_other_text_in_place_of_the_file(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("from beside import X\n\ndef f():\n    return X\n")
    (tmp_path / "beside.py").write_text("X = 7\n")
    module = load_module(str(file), "from beside import X\n\n\ndef f():\n    return X + 1\n")
    assert module.f() == 8
    assert "X + 1" in inspect.getsource(module.f)
    with pytest.raises(KernelError) as caught:
        load_module(str(file), "import beside\n\nbeside.missing\n")
    assert caught.value.where == f"{file}:3"


def test_modules_beside_the_file_do_not_mix(tmp_path):
    for folder, value in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "common_part.py").write_text(f"V = {value}\n")
        (tmp_path / folder / "k.py").write_text("from common_part import V\n")
    assert load_module(str(tmp_path / "one" / "k.py")).V == 1
    assert load_module(str(tmp_path / "two" / "k.py")).V == 2
    (tmp_path / "two" / "common_part.py").write_text("V = 33\n")
    assert load_module(str(tmp_path / "two" / "k.py")).V == 33
    assert not (tmp_path / "one" / "__pycache__").exists()


def test_relative_imports_of_a_package(tmp_path):
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("V = 5\n")
    (package / "k.py").write_text("from .part import V\n")
    assert load_module(str(package / "k.py")).V == 5


def test_errors_name_the_line(tmp_path):
    file = tmp_path / "k.py"
    cases = {
        "x = (\n": ("does not parse: '(' was never closed", 1),
        "import os\nimport not_there_at_all\n": ("cannot import not_there_at_all", 2),
        "import os\n\n1 / 0\n": ("importing the file raised ZeroDivisionError: division by zero", 3),
        "import sys\nsys.exit(3)\n": ("importing the file raised SystemExit: 3", 2),
    }
    for text, (what, line) in cases.items():
        file.write_text(text)
        with pytest.raises(KernelError) as caught:
            load_module(str(file))
        assert caught.value.what == what
        assert caught.value.where == f"{file}:{line}"
    with pytest.raises(KernelError, match="the file does not exist"):
        load_module(str(tmp_path / "none.py"))


def test_find_kernel(tmp_path):
    file = tmp_path / "k.py"
    file.write_text(KERNELS)
    tuned = find_kernel(str(file), "tuned")
    assert type(tuned).__name__ == "JITFunction"
    assert tuned.arg_names == ["x", "n", "B", "EVEN"]
    assert innermost_kernel(load_module(str(file)).tuned) is tuned
    assert innermost_kernel(3) is None
    changed = find_kernel(str(file), "plain", text=KERNELS.replace("tl.store(x, 2)", "tl.store(x, 3)"))
    assert "tl.store(x, 3)" in changed.src
    with pytest.raises(KernelError) as caught:
        find_kernel(str(file), "other")
    assert str(caught.value) == f"{file}: no kernel other; the kernels there are: plain, tuned"
