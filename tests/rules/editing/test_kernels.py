"""Edits of kernels, launches, grids and guards."""

import ast

import pytest

from leadline.rules.editing import EditError, SourceFile

TEXT = '''import torch, triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": 64, "UNROLL": 2}, num_warps=4), triton.Config({"BLOCK": 128, "UNROLL": 4})]


@triton.autotune(configs=CONFIGS, key=["n", "stride"])  # tuned
@triton.jit
def scale(
    x_ptr, y_ptr,  # data
    n,  # length
    stride,
    factor=1.0,
    BLOCK: tl.constexpr = 64, UNROLL: tl.constexpr = 1,
):
    # body
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs * stride, tl.load(x_ptr + offs * stride, mask=offs < n) * factor, mask=offs < n)


@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offs, tl.load(x + offs, mask=offs < n), mask=offs < n)


def _run(x, y, n):
    add[(triton.cdiv(n, 256), 1)](x, y, n, BLOCK=256)  # plain


def launch(x, *, flag=True):
    """Doc."""
    y = torch.empty_like(x)
    n = x.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
    scale[grid](
        x, y,
        n, 1,  # stride one
        factor=2.0,
    )
    scale[grid](x, y, n, stride=1)
    _run(x, y, n)
    return y
'''


def at(needle: str, text: str = TEXT) -> int:
    return next(i for i, row in enumerate(text.split("\n"), 1) if needle in row)


FIRST, SECOND, PLAIN = at("scale[grid](\n".strip()), at("scale[grid](x"), at("add[(")


def test_launch_options() -> None:
    f = SourceFile(TEXT)
    f.set_launch_option(FIRST, "num_warps", "8")
    f.set_launch_option(FIRST, "num_warps", "4")  # supersedes
    f.set_launch_option(PLAIN, "num_stages", "3")
    f.set_launch_option(SECOND, "stride", "2")
    new = f.apply()
    assert "        factor=2.0, num_warps=4,\n" in new
    assert "add[(triton.cdiv(n, 256), 1)](x, y, n, BLOCK=256, num_stages=3)  # plain" in new
    assert "scale[grid](x, y, n, stride=2)" in new
    g = SourceFile(new)
    g.remove_launch_option(at("add[(", new), "num_stages")
    g.remove_launch_option(at("add[(", new), "maxnreg")
    assert "BLOCK=256)  # plain" in g.apply()


def test_launch_arguments() -> None:
    f = SourceFile(TEXT)
    assert f.launch_argument(FIRST + 2, "stride") == "1"
    assert f.launch_argument(SECOND, "stride") == "1"
    assert f.launch_argument(SECOND, "factor") == ""
    f.set_launch_argument(FIRST, "stride", "x.stride(0)")
    f.set_launch_argument(SECOND, "factor", "3.0")
    f.set_launch_argument(SECOND, "stride", "7")
    f.remove_launch_argument(PLAIN, "BLOCK")
    new = f.apply()
    assert "        n, x.stride(0),  # stride one\n" in new
    assert "scale[grid](x, y, n, stride=7, factor=3.0)" in new
    assert "](x, y, n)  # plain" in new


def test_remove_parameter_everywhere() -> None:
    f = SourceFile(TEXT)
    f.remove_parameter("scale", "stride")
    f.remove_parameter("scale", "UNROLL")
    new = f.apply()
    assert "    n,  # length\n    factor=1.0,\n    BLOCK: tl.constexpr = 64,\n):" in new
    assert 'key=["n"])  # tuned' in new
    assert '[triton.Config({"BLOCK": 64}, num_warps=4), triton.Config({"BLOCK": 128})]' in new
    assert "scale[grid](x, y, n)" in new
    assert "# stride one" in new
    assert "# data" in new


def test_add_parameter() -> None:
    f = SourceFile(TEXT)
    f.add_parameter("scale", "EVEN: tl.constexpr", after="n", argument="True")
    f.add_parameter("add", "LIMIT", argument="n - 1")
    f.add_parameter("add", "TOP: tl.constexpr", after="BLOCK", argument=lambda site: str(site.line))
    new = f.apply()
    assert "    n, EVEN: tl.constexpr,  # length\n" in new
    assert "        n, True, 1,  # stride one\n" in new
    assert "scale[grid](x, y, n, stride=1, EVEN=True)" in new
    assert "def add(x, y, n, BLOCK: tl.constexpr, LIMIT, TOP: tl.constexpr):" in new
    assert f"](x, y, n, BLOCK=256, LIMIT=n - 1, TOP={PLAIN})" in new


def test_parameter_without_default_goes_before_those_with() -> None:
    f = SourceFile(TEXT)
    f.add_parameter("scale", "base", argument="0")
    new = f.apply()
    assert "    stride, base,\n    factor=1.0," in new
    assert "        n, 1,  # stride one\n        factor=2.0, base=0,\n" in new


def test_parameter_kinds() -> None:
    f = SourceFile(TEXT)
    f.make_constexpr("add", "n")
    f.make_constexpr("scale", "factor")
    f.make_runtime("scale", "UNROLL")
    f.make_constexpr("scale", "BLOCK")
    new = f.apply()
    assert "def add(x, y, n: tl.constexpr, BLOCK: tl.constexpr):" in new
    assert "    factor: tl.constexpr = 1.0,\n    BLOCK: tl.constexpr = 64, UNROLL = 1,\n" in new


def test_parameter_errors() -> None:
    f = SourceFile(TEXT)
    with pytest.raises(EditError, match=r"^add has no parameter m$"):
        f.remove_parameter("add", "m")
    with pytest.raises(EditError, match=r"^add already has a parameter n$"):
        f.add_parameter("add", "n: tl.constexpr")
    with pytest.raises(EditError, match=r"^there is no function sub$"):
        f.make_constexpr("sub", "n")
    with pytest.raises(EditError, match=r"^the call at line \d+ passes by position what follows first; give its argument$"):
        f.add_parameter("add", "first", after="x")
    with pytest.raises(EditError, match=r"^line 5 uses k other than by launching it$"):
        SourceFile("@jit\ndef k(a, b):\n    pass\n\nrun(k)\n").remove_parameter("k", "a")
    with pytest.raises(EditError, match=r"^the call at line 5 unpacks its arguments, so b cannot be found$"):
        SourceFile("@jit\ndef k(a, b):\n    pass\n\nk[g](*args)\n").remove_parameter("k", "b")
    with pytest.raises(EditError, match=r"^there is no launch at line 1$"):
        f.set_launch_option(1, "num_warps", "4")


def test_grid_axes() -> None:
    f = SourceFile(TEXT)
    assert f.grid_axes(FIRST) == ('triton.cdiv(n, meta["BLOCK"])',)
    assert f.grid_text(PLAIN) == "(triton.cdiv(n, 256), 1)"
    f.set_grid_axis(PLAIN, 1, "2")
    f.set_grid_axis(SECOND, 2, "5")  # the grid is shared: only this launch gets another
    new = f.apply()
    assert "add[(triton.cdiv(n, 256), 2)]" in new
    assert 'scale[lambda meta: (triton.cdiv(n, meta["BLOCK"]), 1, 5)](x, y, n, stride=1)' in new
    assert 'grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)\n    scale[grid](\n' in new


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("    g = (n, m)\n    k[g](x)\n", "    g = (4, m)\n    k[g](x)\n"),
        ("    k[(n,)](x)\n", "    k[(4,)](x)\n"),
        ("    k[n, m](x)\n", "    k[4, m](x)\n"),
        (
            "    def g(meta):\n        return (n, meta['B'])\n    k[g](x)\n",
            "    def g(meta):\n        return (4, meta['B'])\n    k[g](x)\n",
        ),
        ("    k[lambda m: (n,)](x)\n", "    k[lambda m: (4,)](x)\n"),
    ],
)
def test_grids_are_edited_where_they_are_written(body: str, expected: str) -> None:
    f = SourceFile("def launch(x, n, m):\n" + body)
    f.set_grid_axis(at("k[", f.text), 0, "4")
    assert f.apply() == "def launch(x, n, m):\n" + expected


def test_set_grid_and_kernel() -> None:
    f = SourceFile(TEXT)
    f.set_grid(SECOND, "(3,)")
    f.set_launch_kernel(PLAIN, "other")
    new = f.apply()
    assert "scale[(3,)](x, y, n, stride=1)" in new
    assert "    other[(triton.cdiv(n, 256), 1)](x" in new
    with pytest.raises(EditError, match=r"^a grid has no axis 3$"):
        f.set_grid_axis(PLAIN, 3, "1")


def test_duplicate_and_add_functions() -> None:
    f = SourceFile(TEXT)
    f.duplicate_kernel("scale", "scale_even", lambda text: text.replace("# body", "# even body"))
    f.add_function("def helper():\n    return 1\n", after="add")
    f.add_import("import math")
    f.add_import("import triton.language as tl")
    new = f.apply()
    copy = SourceFile(new).function_text("scale_even")
    assert copy.startswith('@triton.autotune(configs=CONFIGS, key=["n", "stride"])  # tuned\n@triton.jit\ndef scale_even(\n')
    assert "# even body" in copy
    assert "# length" in copy
    assert "\n\n\ndef helper():\n    return 1\n\n\ndef _run" in new
    assert new.startswith("import torch, triton\nimport triton.language as tl\nimport math\n")
    with pytest.raises(EditError, match=r"^the name add is taken$"):
        f.duplicate_kernel("scale", "add")


def test_rename() -> None:
    f = SourceFile(TEXT)
    f.rename("add", "offs", "columns")
    new = f.apply()
    assert "tl.store(y + columns, tl.load(x + columns, mask=columns < n), mask=columns < n)" in new
    assert "offs * stride" in new
    with pytest.raises(EditError, match=r"^n is a parameter of add$"):
        f.rename("add", "n", "m")


def test_host_guard_keeps_the_original_and_what_it_needs() -> None:
    f = SourceFile(TEXT)
    f.make_constexpr("add", "n")
    f.add_host_guard("launch", "x.numel() % 16 == 0")
    new = f.apply()
    names = [n.name for n in ast.parse(new).body if isinstance(n, ast.FunctionDef)]
    assert names == ["scale", "add", "_run", "launch", "add_original", "_run_original", "launch_original"]
    assert '    """Doc."""\n    if not (x.numel() % 16 == 0):\n        return launch_original(x, flag=flag)\n    y = torch' in new
    made = SourceFile(new)
    assert "def add(x, y, n: tl.constexpr, BLOCK" in new
    assert "def add_original(x, y, n, BLOCK: tl.constexpr):" in new
    assert "add_original[(triton.cdiv(n, 256), 1)]" in made.function_text("_run_original")
    assert "_run_original(x, y, n)" in made.function_text("launch_original")
    assert "scale[grid](" in made.function_text("launch_original")  # not edited, so shared


def test_second_guard_finds_free_names() -> None:
    f = SourceFile(TEXT)
    f.set_launch_option(FIRST, "num_warps", "8")
    f.add_host_guard("launch", "flag")
    g = SourceFile(f.apply())
    g.set_launch_option(at("scale[grid](x", g.text), "num_warps", "2")
    g.add_host_guard("launch", "not flag")
    new = g.apply()
    assert "def launch_original_2(x, *, flag=True):" in new
    assert new.count("if not (flag):") == 2


def test_guard_in_a_method() -> None:
    text = "class ModelNew:\n    def forward(self, x):\n        k[(1,)](x)\n        return x\n\n\n@jit\ndef k(x):\n    pass\n"
    f = SourceFile(text)
    f.make_constexpr("k", "x")
    f.add_host_guard("ModelNew.forward", "x.is_contiguous()")
    new = f.apply()
    assert "        if not (x.is_contiguous()):\n            return self.forward_original(x)\n" in new
    assert "    def forward_original(self, x):\n        k_original[(1,)](x)\n" in new
    assert "def k_original(x):\n    pass\n" in new


def test_guard_at_a_launch() -> None:
    f = SourceFile(TEXT)
    f.make_constexpr("scale", "n")
    f.guard_launch(FIRST, "n % 16 == 0")
    new = f.apply()
    expected = """    if n % 16 == 0:
        scale[grid](
            x, y,
            n, 1,  # stride one
            factor=2.0,
        )
    else:
        scale_original[grid](
            x, y,
            n, 1,  # stride one
            factor=2.0,
        )
    scale[grid](x"""
    assert expected in new
    assert "def scale_original(\n    x_ptr, y_ptr,  # data\n    n,  # length\n" in new
