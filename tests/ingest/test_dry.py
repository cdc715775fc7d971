import time

import msgspec
import pytest

from leadline.errors import KernelError
from leadline.execution.driver import install
from leadline.ingest.dry import TraceRequest, describe, read_tolerance, trace
from leadline.model import KernelCase, Trace

HEAD = """import torch, triton
import triton.language as tl

@triton.jit
def copy(x, y, n, stride, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o * stride, tl.load(x + o * stride, mask=o < n), mask=o < n)

@triton.jit
def add_one(x, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + o, tl.load(x + o, mask=o < n) + 1, mask=o < n)

CASES = {"big": dict(n=1 << 20), "odd": dict(n=1000), "huge": dict(n=50 * 10**9)}
SMALL = {"tiny": dict(n=64)}

def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device, dtype=torch.float16))

"""


@pytest.fixture
def run(tmp_path):
    def go(body: str, case: str = "big", **more) -> Trace:
        file = tmp_path / "case.py"
        file.write_text(HEAD + body)
        made = trace(TraceRequest(case=KernelCase(path=str(file), source="", kernels=()), case_name=case, **more))
        return msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Trace)

    return go


def test_launches_as_the_jit_sees_them(run, tmp_path):
    body = """
def launch(x):
    n = x.numel()
    y = torch.empty_like(x)
    copy[(triton.cdiv(n, 1024),)](x, y, n, 1, B=1024, num_warps=8)
    z = y.clone()
    add_one[lambda meta: (triton.cdiv(n, meta["B"]), 2)](z, n, 256)
    return z
"""
    got = run(body)
    first, second = got.launches
    assert (first.kernel, first.grid, first.kernel_line, first.kernel_module) == ("copy", (1024, 1, 1), 5, "")
    assert first.kernel_file == first.call_file == str(tmp_path / "case.py")
    assert first.call_line == HEAD.count("\n") + 5
    assert [(a.name, a.type, a.divisible, a.folded) for a in first.arguments] == [
        ("x", "*fp16", 16, False), ("y", "*fp16", 16, False), ("n", "i32", 16, False), ("stride", "constexpr", 1, True),
        ("B", "constexpr", 1, False),
    ]  # fmt: skip
    assert first.constexprs == {"stride": 1, "B": 1024}
    assert first.options["num_warps"] == 8
    assert first.option("num_stages", 0) == 3
    assert second.grid == (4096, 2, 1)
    x, y, z = first.arguments[0].tensor, first.arguments[1].tensor, second.arguments[0].tensor
    assert (x.origin, y.origin, z.origin) == ("input:x", "empty", "clone(empty)")
    assert (x.shape, x.strides, x.storage_bytes) == ((1 << 20,), (1,), 2 << 20)
    assert got.inputs == {"x": x}
    assert got.outputs[0].storage == z.storage
    assert [(o.name, o.bytes, o.order, o.view) for o in got.host_ops] == [("empty", 0, 0, False), ("clone", 4 << 20, 1, False)]
    assert got.host_ops[1].line == HEAD.count("\n") + 6
    assert (got.values_read, got.fallback, got.assumptions) == ((), "", ())


@pytest.mark.parametrize(
    ("expression", "divisible"),
    [("x", 16), ("x[8:]", 16), ("x[1:]", 1), ("x.view(-1, 8)[3]", 16), ("x[::2]", 16), ("x.view(torch.int8)[16:]", 16)],
)
def test_alignment_of_views(run, expression, divisible):
    got = run(f"def launch(x):\n    v = {expression}\n    add_one[(1,)](v, 1024, B=64)\n    return v\n")
    assert got.launches[0].arguments[0].divisible == divisible
    assert got.launches[0].arguments[0].tensor.storage == got.inputs["x"].storage
    assert all(op.view for op in got.host_ops)


def test_divisibility_of_integers(run):
    body = "def launch(x):\n    for n in (1000, 1024, 1, 2**40):\n        add_one[(1,)](x, n, B=64)\n"
    assert [(a.type, a.value, a.divisible, a.folded) for a in (launch.arguments[1] for launch in run(body).launches)] == [
        ("i32", 1000, 1, False), ("i32", 1024, 16, False), ("constexpr", 1, 1, True), ("i64", 2**40, 16, False),
    ]  # fmt: skip


def test_do_not_specialize(run):
    body = """
@triton.jit(do_not_specialize=["n"])
def free(x, n, B: tl.constexpr):
    tl.store(x, n)

def launch(x):
    free[(1,)](x, 1, B=tl.float16)
    free[(1,)](x, 32, B=None)
"""
    first, second = run(body).launches
    assert (first.arguments[1].type, first.arguments[1].folded) == ("i32", False)
    assert second.arguments[1].divisible == 1
    assert (first.arguments[2].value, second.arguments[2].value) == ("tl.float16", None)


def test_autotuned_with_heuristics(run):
    body = """
@triton.autotune(configs=[triton.Config({"B": b}, num_stages=s) for b in (64, 128) for s in range(1, 21)], key=["n"],
                 prune_configs_by={"early_config_prune": lambda configs, args, **kw: [c for c in configs if c.kwargs["B"] == 128]})
@triton.heuristics({"EVEN": lambda args: args["n"] % args["B"] == 0})
@triton.jit
def tuned(x, n, B: tl.constexpr, EVEN: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + o, 1.0)

def launch(x):
    tuned[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](x, x.numel())
"""
    got = run(body)
    assert len(got.launches) == 16
    assert [launch.variant_index for launch in got.launches] == list(range(16))
    assert {launch.variants for launch in got.launches} == {20}
    assert {launch.grid for launch in got.launches} == {(8192, 1, 1)}
    assert got.launches[2].options["num_stages"] == 3
    assert got.launches[2].constexprs == {"B": 128, "EVEN": True}
    assert got.launches[0].variant.startswith("B: 128, num_warps: 4, num_ctas: 1, num_stages: 1")
    assert got.launches[0].heuristics == ("EVEN",)
    assert got.launches[0].autotune_key == ("n",)


def test_repeated_launches_are_folded(run):
    body = """
def launch(x):
    for _ in range(5):
        add_one[(1,)](x, 64, B=64)
    x.zero_()
    add_one[(1,)](x, 64, B=64)
    add_one[(1,)](x, 65, B=64)
"""
    assert [launch.repeats for launch in run(body).launches] == [5, 1, 1]


def test_nothing_is_allocated_for_100_gigabytes(run):
    started = time.perf_counter()
    got = run("def launch(x):\n    y = torch.empty_like(x)\n    copy[(1,)](x, y, x.numel(), 1, B=64)\n    return y.float()\n", "huge")
    assert got.inputs["x"].storage_bytes == 100 * 10**9
    assert got.outputs[0].storage_bytes == 200 * 10**9
    assert got.fallback == ""
    assert time.perf_counter() - started < 5


def test_wrapper_that_asks_for_the_device(run):
    body = """
def launch(x):
    assert x.is_cuda and torch.cuda.is_available()
    with torch.cuda.device(x.device):
        n = torch.cuda.get_device_properties(x.device).multi_processor_count
        m = triton.runtime.driver.active.utils.get_device_properties(torch.cuda.current_device())["multiprocessor_count"]
        y = torch.zeros(64, device="cuda", dtype=torch.float32)
        g = torch.Generator(device="cuda").manual_seed(1)
        y = y + torch.randn(64, device=x.device, generator=g)
        add_one[(n + m,)](y, 64, B=64)
        torch.cuda.synchronize()
        torch.cuda.current_stream().synchronize()
    return y.to("cuda"), x.data_ptr() % 16
"""
    assert run(body).launches[0].grid == (264, 1, 1)
    assert run(body, target="cuda:80").launches[0].grid == (216, 1, 1)


def test_known_small_values_are_read(run):
    body = """
def launch(x):
    lens = torch.tensor([3, 5, 8], device=x.device)
    ends = torch.cumsum(lens, 0)
    total = int(ends[-1])
    parts = ends.tolist()
    rows = torch.nonzero(lens > 3)
    add_one[(total, len(parts), rows.shape[0])](x, int(lens.cpu().max()), B=64)
"""
    got = run(body)
    assert got.launches[0].grid == (16, 3, 2)
    assert got.launches[0].arguments[1].value == 8
    first = HEAD.count("\n") + 5
    assert [r.name for r in got.values_read] == ["item", "tolist", "nonzero", "cpu"]
    assert [r.line for r in got.values_read] == [first, first + 1, first + 2, first + 3]
    assert (got.fallback, got.assumptions) == ("", ())


def test_a_value_that_a_kernel_computes_is_assumed_and_said(run):
    body = """
def launch(x):
    count = torch.zeros(1, dtype=torch.int32, device=x.device)
    add_one[(1,)](count, 1, B=64)
    out = torch.empty(int(count.item()), device=x.device)
    add_one[(2,)](out, 64, B=64)
"""
    got = run(body)
    line = HEAD.count("\n") + 5
    assert got.launches[1].arguments[0].tensor.shape == (1 << 20,)
    assert got.assumptions == (f"line {line} reads a value that a kernel computes; taken as 1048576 (elements of the largest input)",)
    assert got.values_read[0].line == line
    assert got.fallback == ""


def test_a_small_case_stands_in_when_data_is_needed(run):
    body = "def launch(x):\n    for v in x.tolist()[:2]:\n        add_one[(1,)](x, 64, B=64)\n    return x\n"
    got = run(body)
    assert got.case == "tiny"
    assert got.fallback.startswith("small case tiny stands in: ")
    assert "tolist" in got.fallback
    assert got.launches[0].repeats == 2


def test_inputs_that_read_their_own_values(run):
    body = """
def make_inputs(*, device, seed, n):
    x = torch.randn(300_000, device=device)
    while int((x > 100).sum()):
        x = torch.randn(300_000, device=device)
    return dict(x=x)

def launch(x):
    add_one[(1,)](x, 64, B=64)
"""
    got = run(body)
    assert got.inputs["x"].shape == (300_000,)
    assert (got.case, got.fallback) == ("big", "")


def test_text_in_place_of_the_file(run, tmp_path):
    launch = "def launch(x):\n    add_one[(1,)](x, 64, B=64)\n"
    got = run(launch, text=HEAD + launch.replace("64", "32"))
    assert got.launches[0].constexprs["B"] == 32
    assert got.launches[0].kernel_file == str(tmp_path / "case.py")
    assert got.launches[0].kernel_module == ""


def test_kernels_of_another_module_and_another_case_file(tmp_path):
    (tmp_path / "kern.py").write_text(HEAD.split("CASES")[0])
    other = tmp_path / "other.py"
    launch = "def launch(x):\n    add_one[(1,)](x, 64, B=64)\n"
    other.write_text("import torch\nfrom kern import add_one\nCASES" + HEAD.split("CASES")[1] + launch)
    got = trace(TraceRequest(case=KernelCase(path=str(other), source="", kernels=()), case_name="big"))
    assert got.launches[0].kernel_module == "kern"
    assert got.launches[0].kernel_file == str(tmp_path / "kern.py")
    case = KernelCase(path=str(tmp_path / "kern.py"), source="", kernels=(), case_file=str(other))
    assert trace(TraceRequest(case=case, case_name="odd")).launches[0].kernel_module == ""
    text = (tmp_path / "kern.py").read_text().replace("def add_one(x, n,", "def add_one(x, m,").replace("o < n) + 1", "o < m) + 1")
    assert trace(TraceRequest(case=case, case_name="odd", text=text)).launches[0].arguments[1].name == "m"


def test_the_targets_own_wrapper_comes_first(run, tmp_path):
    launch = "def launch(x):\n    add_one[(1,)](x, 64, B=64)\n"
    run(launch)
    own = tmp_path / "own.py"
    own.write_text(HEAD.split("CASES")[0] + launch.replace("(1,)", "(7,)"))
    case = KernelCase(path=str(own), source="", kernels=(), case_file=str(tmp_path / "case.py"))
    assert trace(TraceRequest(case=case, case_name="odd")).launches[0].grid == (7, 1, 1)


def test_kernelbench_pair(tmp_path):
    file = tmp_path / "pair.py"
    file.write_text(
        HEAD.split("CASES")[0]
        + """
class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.lin = torch.nn.Linear(n, n)
    def forward(self, x):
        return self.lin(x) + 1

class ModelNew(Model):
    def forward(self, x):
        y = self.lin(x)
        add_one[(8,)](y, y.numel(), B=64)
        return y

def get_inputs():
    return [torch.randn(4, 128)]

def get_init_inputs():
    return [128]
"""
    )
    case = KernelCase(path=str(file), source="", kernels=(), kind="kernelbench", wrapper="ModelNew")
    assert describe(TraceRequest(case=case, case_name="")).cases == ("default",)
    got = trace(TraceRequest(case=case, case_name="default"))
    assert got.launches[0].grid == (8, 1, 1)
    assert got.inputs["x0"].shape == (4, 128)
    assert got.fallback == ""


@pytest.mark.parametrize(
    ("body", "what", "line"),
    [
        ("def launch(x):\n    raise ValueError('no\\nway')\n", "launch raised ValueError: no", 2),
        ("def launch(x):\n    add_one[(1,)](x, B=64)\n",
         "kernel add_one cannot be launched: add_one() missing 1 required positional argument: 'n'", 2),
        ("def launch(x):\n    add_one[(1,)](x, 3, B=64, BLOCK=3)\n",
         "kernel add_one cannot be launched: Keyword argument BLOCK was specified but unrecognised", 2),
        ("def launch(x):\n    add_one[lambda m: (m['C'],)](x, 3, B=64)\n", "the grid of kernel add_one raised KeyError: 'C'", 2),
        ("def launch(x):\n    add_one[(1, 2, 3, 4)](x, 3, B=64)\n", "the grid of kernel add_one has 4 axes", 2),
        ("def make_inputs(*, device, seed, n):\n    return [1]\n\ndef launch(x):\n    pass\n", "make_inputs returned list", 0),
        ("def make_inputs(*, device, seed, n):\n    return 1 // 0\n\ndef launch(x):\n    pass\n",
         "make_inputs raised ZeroDivisionError: integer division or modulo by zero", 2),
    ],
)  # fmt: skip
def test_errors_of_the_file_name_the_line(run, tmp_path, body, what, line):
    with pytest.raises(KernelError) as caught:
        run(body)
    assert caught.value.what == what
    assert caught.value.where == str(tmp_path / "case.py") + (f":{HEAD.count(chr(10)) + line}" if line else "")


def test_describe(tmp_path):
    file = tmp_path / "k.py"
    case = KernelCase(path=str(file), source="", kernels=())
    file.write_text(HEAD + "TOLERANCE = dict(rtol=1e-3, atol=1e-2)\ndef launch(x):\n    pass\ndef reference(x):\n    return x\n")
    names = describe(TraceRequest(case=case, case_name=""))
    assert (names.cases, names.small, names.has_reference) == (("big", "odd", "huge"), ("tiny",), True)
    assert names.tolerances == ((1e-2, 1e-3),)
    assert names.arguments["odd"] == "n=1000"
    with pytest.raises(KernelError) as caught:
        trace(TraceRequest(case=case, case_name="none"))
    assert str(caught.value) == f"{file}: no case 'none'; the cases there are: big, odd, huge, tiny"
    for text, what in (
        ("def launch(x):\n    pass\nCASES = {}\n", "CASES is empty"),
        ("def launch(x):\n    pass\nCASES = [1]\n", "CASES is not a dict of dicts"),
        ("def launch(x):\n    pass\ndel CASES\n", "CASES is missing"),
        ("def launch(x):\n    pass\ndel make_inputs\n", "make_inputs is missing"),
        ("launch = 3\n", "launch is missing"),
        ("def launch(x):\n    pass\nTOLERANCE = dict(a=1)\n", "TOLERANCE is not understood"),
    ):
        file.write_text(HEAD + text)
        with pytest.raises(KernelError) as caught:
            describe(TraceRequest(case=case, case_name=""))
        assert caught.value.what == what
        assert caught.value.remedy


def test_read_tolerance():
    assert read_tolerance(None) == ((), {})
    assert read_tolerance([{"atol": 1}, {"rtol": 2}]) == (((1.0, 0.0), (0.0, 2.0)), {})
    assert read_tolerance({"bfloat16": {"atol": 1, "rtol": 2}}) == ((), {"bfloat16": (1.0, 2.0)})


def test_other_targets(run):
    body = "def launch(x):\n    add_one[(1,)](x, 1024, B=64)\n"
    assert run(body, target="hip:gfx942").launches[0].arguments[0].divisible == 16
    install("cuda:90")
