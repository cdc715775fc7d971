"""Atomics replaced by sums of a program's own, and near misses that must stay."""

import ast
import dataclasses

import msgspec
import pytest

from leadline.collect.source import read
from leadline.model import AccessSample, Argument, KernelCase, Launch, LaunchSample, TensorSpec, Trace
from leadline.rules.atomics import contention, loop_interchange
from leadline.rules.atomics.contention import AtomicsContention, privatised
from leadline.rules.atomics.loop_interchange import AtomicsLayout, exchanged
from leadline.rules.atomics.throughput import atomic_us, contended, inflated, summable
from leadline.rules.base import View

ROWS = AtomicsContention.examples[0].before
WALK = AtomicsLayout.examples[0].before


@dataclasses.dataclass
class Parts:
    text: str

    def __post_init__(self) -> None:
        self.facts = read(KernelCase(path="/k.py", source=self.text, kernels=()))
        self.kernel = self.facts.kernels[0]
        assert self.facts.wrapper is not None
        self.wrapper = self.facts.wrapper
        self.site = self.wrapper.launches[0]
        self.atomics = [a for a in self.kernel.accesses if a.kind == "atomic_add"]

    def privatised(self, programs: int = 264) -> str:
        return privatised(self.text, self.kernel, self.atomics, self.site, self.wrapper.assignments, programs)

    def exchanged(self, axis: int = 0) -> str:
        return exchanged(self.text, self.kernel, self.atomics[0], axis, self.site)

    def view(self, grid: tuple[int, int, int], *, dtype: str = "fp32") -> View:
        arguments = tuple(
            Argument(name=p.name, type="constexpr", value=64, constexpr=True)
            if p.constexpr
            else Argument(name=p.name, type=f"*{dtype}", tensor=TensorSpec(dtype=dtype, shape=(64,), strides=(1,), storage=i))
            for i, p in enumerate(self.kernel.parameters)
        )
        launch = Launch(
            index=0, kernel=self.kernel.name, kernel_file="/k.py", kernel_line=self.kernel.line, kernel_module="", call_file="/k.py",
            call_line=self.site.line, grid=grid, arguments=arguments,
        )  # fmt: skip
        return View(source=self.facts, trace=Trace(case="c", launches=(launch,)))


def body(text: str, name: str) -> str:
    function = next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == name)
    return "".join(line + "\n" for line in text.splitlines()[function.lineno : function.end_lineno])


# -- sums kept by the program ---------------------------------------------------------------------------------------------


def test_rows_are_walked_and_sums_stored_once() -> None:
    made = Parts(ROWS).privatised()
    assert body(made, "scale_backward_kernel") == (
        "    cols = tl.arange(0, BLOCK)\n    keep = cols < N\n    w = tl.load(w_ptr + cols, mask=keep, other=0.0)\n"
        "    sum_0 = tl.zeros((BLOCK,), tl.float32)\n    for row in range(tl.program_id(0), ROW_COUNT, tl.num_programs(0)):\n"
        "        # one row of both\n"
        "        dy = tl.load(dy_ptr + row * N + cols, mask=keep, other=0.0)\n"
        "        x = tl.load(x_ptr + row * N + cols, mask=keep, other=0.0)\n"
        "        tl.store(dx_ptr + row * N + cols, dy * w, mask=keep)\n"
        "        sum_0 += dy * x\n"
        "    tl.store(dw_ptr + tl.program_id(0).to(tl.int64) * dw_ptr_size + cols, sum_0, mask=keep)\n"
    )
    host = body(made, "launch")
    assert "    programs = min(row_count, 264)\n" in host
    assert "    scale_backward_kernel[(programs,)](dy, x, w, dx, dw_partial, n," in host
    assert "    scale_backward_kernel_add_partials[(triton.cdiv(dw.numel(), 64),)](dw_partial, dw, programs, dw.numel(), BLOCK=64" in host


def test_a_row_computed_from_the_program_id_stays_a_name() -> None:
    made = Parts(ROWS.replace("row = tl.program_id(0)", "row = tl.program_id(0) + 1")).privatised()
    assert "    for row_index in range(tl.program_id(0), ROW_COUNT, tl.num_programs(0)):\n        row = row_index + 1\n" in made


def test_two_outputs_get_two_sums() -> None:
    text = ROWS.replace("dx_ptr, dw_ptr", "dx_ptr, dw_ptr, db_ptr").replace("dx, dw, n", "dx, dw, db, n")
    text = text.replace("mask=keep)\n\n", "mask=keep)\n    tl.atomic_add(db_ptr + cols, dy, mask=keep)\n\n", 1)
    text = text.replace("    scale_backward_kernel[", "    db = torch.zeros(n, device=x.device)\n    scale_backward_kernel[")
    made = Parts(text).privatised()
    assert "        sum_0 += dy * x\n        sum_1 += dy\n" in made
    assert made.count("scale_backward_kernel_add_partials[") == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.zeros(n,", "torch.ones(n,"),
        ("    tl.atomic_add(", "    before = tl.atomic_add("),
        ("tl.atomic_add(dw_ptr + cols,", "tl.atomic_add(dw_ptr + row + cols,"),
        ("    w = tl.load(w_ptr", "    old = tl.load(dw_ptr + cols)\n    w = tl.load(w_ptr"),
        ("    cols = tl.arange(0, BLOCK)\n", "    cols = tl.arange(0, BLOCK)\n    count = tl.num_programs(0)\n"),
        ("    cols = tl.arange(0, BLOCK)\n", "    cols = tl.arange(0, BLOCK)\n    half = tl.program_id(0) // 2\n"),
        ("    tl.atomic_add(", "    if N > 3:\n        tl.atomic_add("),
        ("[(m,)]", "[(m, 1)]"),
        ("    keep = cols < N\n", "    programs = N\n    keep = cols < programs\n"),
        ("    scale_backward_kernel[", "    for _ in range(2):\n        scale_backward_kernel["),
        ("dw, n, BLOCK", "dw.view(-1), n, BLOCK"),
    ],
    ids=["ones", "used", "moves", "read", "count", "twice", "branch", "two axes", "name taken", "launched twice", "no name"],
)
def test_preconditions_of_private_sums(old: str, new: str) -> None:
    assert old in ROWS
    assert Parts(ROWS.replace(old, new, 1)).privatised() == ""


def rewrites_of(rule: AtomicsContention | AtomicsLayout, parts: Parts, grid: tuple[int, int, int], **more: str) -> list[str]:
    view = parts.view(grid, **more)
    return [r.source for h in rule.suspect(view) for r in rule.rewrite(view, h)]


def test_only_float_outputs_of_32_bits_or_less_are_summed_in_float32() -> None:
    parts = Parts(ROWS)
    assert len(rewrites_of(AtomicsContention(), parts, (16384, 1, 1))) == len(contention.PROGRAMS_PER_SM)
    for dtype in ("i32", "fp64"):
        assert rewrites_of(AtomicsContention(), parts, (16384, 1, 1), dtype=dtype) == []
        assert rewrites_of(AtomicsLayout(), Parts(WALK), (64, 8, 1), dtype=dtype) == []


def test_an_output_that_another_kernel_writes_stays() -> None:
    other = "def other_kernel(o_ptr):\n    tl.store(o_ptr, 1.0)\n\n\n@triton.jit\n"
    text = ROWS.replace("def scale_backward_kernel", other + "def scale_backward_kernel", 1)
    parts = Parts(text.replace("    scale_backward_kernel[", "    other_kernel[(1,)](dw)\n    scale_backward_kernel["))
    parts.kernel, parts.site = parts.facts.kernels[1], parts.wrapper.launches[1]
    assert rewrites_of(AtomicsContention(), parts, (16384, 1, 1)) == []


# -- loop and program axis exchanged ------------------------------------------------------------------------------------


def test_the_program_owns_its_output() -> None:
    made = Parts(WALK).exchanged()
    assert body(made, "backward_kernel") == loop_interchange._BODY_AFTER + "\n"
    assert "backward_kernel[(triton.cdiv(m, 64), z)](left, right, out, m, n, D=d, BM=64, BN=64, TILES=n // 64)" in made


def test_a_start_and_a_mask_are_kept() -> None:
    text = WALK.replace("range(0, M, BM)", "range(BM, M, BM)").replace("d[None, :], part)", "d[None, :], part, mask=rows[:, None] < M)")
    made = Parts(text).exchanged()
    assert "    start = BM + tl.program_id(0) * BM\n" in made
    assert "triton.cdiv(m - 64, 64)" in made
    assert ", total, mask=rows[:, None] < M)" in made


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("range(0, M, BM)", "tl.range(0, M, BM, num_stages=2)"),
        ("range(0, M, BM)", "range(0, tl.program_id(0) * BM, BM)"),
        ("        tl.atomic_add(", "        old = tl.atomic_add("),
        ("        part = tl.dot(left, right)\n", "        part = tl.dot(left, right)\n        tl.store(left_ptr + rows, rows)\n"),
        ("        part = tl.dot(left, right)\n", "        part = tl.dot(left, right) + tl.load(out_ptr + rows)[:, None]\n"),
        ("(batch * M + rows)[:, None] * D + d[None, :], part)", "(batch * M + rows)[:, None] * D + d[None, :] + cols[0], part)"),
        ("    d = tl.arange(0, D)\n", "    d = tl.arange(0, D)\n    again = tl.program_id(0)\n"),
        ("    right = tl.load(", "    at = left_ptr + tl.arange(0, BM)\n    right = tl.load("),
    ],
    ids=["staged", "bound by program", "used", "second store", "read", "moves", "twice", "carried"],
)
def test_preconditions_of_the_exchange(old: str, new: str) -> None:
    assert old in WALK
    text = WALK.replace(old, new, 1)
    if "at = left_ptr" in new:  # a pointer that walks along with the loop
        text = text.replace("        part = tl.dot(", "        at += BM\n        part = tl.dot(")
    assert Parts(text).exchanged() == ""


# -- what they cost -----------------------------------------------------------------------------------------------------


def test_contended_axes_are_those_that_the_address_ignores() -> None:
    parts = Parts(WALK)
    launch = parts.view((64, 8, 1)).launches[0]
    assert contended(parts.view((64, 8, 1)), launch, parts.atomics[0]) == [0]
    assert contended(parts.view((1, 8, 1)), parts.view((1, 8, 1)).launches[0], parts.atomics[0]) == []
    indirect = msgspec.structs.replace(parts.atomics[0], indirect=True)
    assert contended(parts.view((64, 8, 1)), launch, indirect) == []


def test_sampled_addresses_overrule_the_source() -> None:
    parts = Parts(WALK)
    view = parts.view((64, 8, 1))
    sample = AccessSample(line=parts.atomics[0].line, kind="atomic", itemsize=4, total=4.0e9, shared={0: 0.0, 1: 0.0})
    apart = msgspec.structs.replace(view, samples={0: LaunchSample(launch=0, programs=1, sampled=1, accesses=(sample,))})
    assert contended(apart, view.launches[0], parts.atomics[0]) == []
    assert atomic_us(view, view.launches[0], parts.atomics[0]) == 0.0
    assert atomic_us(apart, view.launches[0], parts.atomics[0]) == pytest.approx(1e9 / 3.1e11 * 1e6)
    assert inflated(view, view.launches[0], 50.0) == (1.0, 2.0)


def test_summable() -> None:
    parts = Parts(ROWS)
    for dtype, fits in (("fp32", True), ("fp16", True), ("bf16", True), ("fp64", False), ("i32", False)):
        assert summable(parts.view((2, 1, 1), dtype=dtype).launches[0], parts.atomics[0]) is fits
    assert not summable(parts.view((2, 1, 1)).launches[0], msgspec.structs.replace(parts.atomics[0], base=None))
