"""MEM105 int64-offsets."""

import ast
from collections.abc import Iterable

from leadline.model import Hypothesis, KernelFacts, Launch, Operation, Probe, Rewrite, SourceEdit
from leadline.rules.base import Example, Rule, View, located, metric, raised, refuted, seen
from leadline.rules.editing import EditError, SourceFile
from leadline.rules.memory.argument_facts import launch_of, pure
from leadline.rules.memory.divisions import division_cost, tile_divisions
from leadline.rules.memory.instruction_cost import elements, expression, gain, issue_us

EXTRA = 2.0  # more instructions per 64-bit address component of an element


class Int64Offsets(Rule):
    """Offset tiles are 64-bit where 32-bit offsets from a 64-bit base would do.

    What it finds
        `.to(tl.int64)` on tiles (an `arange`, or an index built from one) that end in addresses, and on a scalar that is then added to an
        `arange`: where every offset of the launch fits into 32 bits, the whole tile is 64-bit for nothing.
    Why it is slow
        Each 64-bit add or multiply of a tile is two to four instructions and its results take two registers. Small beside memory
        traffic; it matters in loops that are short of issue slots or registers. A
        64-bit division by a runtime value is some 26 instructions, a 32-bit one 11.
    How it is proved
        The casts are removed and the kernel compiled: arithmetic on 64-bit tiles must become less.
    Rewrite and its safety
        The casts on tiles are removed. Exact while every offset fits into 31 bits, which the wrapper checks before the launch and
        otherwise calls the original kernel.
    References
        PyTorch pull request 97447.
    """

    code, slug, cause, family = "MEM105", "int64-offsets", "int64_offsets", "memory"

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        for launch in view.launches:
            facts = view.kernel(launch)
            casts = [c for c in wide_casts(facts) if c.tile or _fits(launch)] if facts else []
            if not casts:
                continue
            per_element = EXTRA * sum(1 if c.loop >= 0 or not facts or not facts.loops else 0.5 for c in casts)
            total = elements(view, launch)
            extra = issue_us(total / 32 * per_element / 4, view.sms)  # a vector of four shares its address
            base = issue_us(total / 32 * 12, view.sms)  # what an element costs anyway
            low, high = gain(view, launch, base + extra, base) if launch.index in view.costs else (1.0, 1.05)
            if facts and facts.of_kind("dot") and any(c.loop >= 0 for c in casts):
                low, high = 1.02, 1.1  # the loop of a matrix product has registers and issue slots to win
            tiles = any(c.tile for c in casts)
            high = min(max(high, 1.035) if tiles else high, 1.13)
            if facts and launch.index in view.costs:
                # Divisions of 64-bit tiles become 32-bit ones.
                narrow = sum(division_cost(d, launch) for d in tile_divisions(facts))
                wide = sum(division_cost(d, launch, facts) for d in tile_divisions(facts))
                after = base + issue_us(total / 32 * narrow, view.sms)
                lower, higher = gain(view, launch, after + extra + issue_us(total / 32 * (wide - narrow), view.sms), after)
                if wide > narrow and higher > high:
                    low, high = lower, higher
            if high < 1.03:
                continue
            large = [a.name for a in launch.arguments if a.tensor is not None and a.tensor.numel >= 2**31]
            first = casts[0]
            yield self.hypothesis(
                view,
                launch,
                line=first.line,
                column=first.column,
                end_line=first.end_line,
                key=launch.kernel,
                low=min(low, high),
                high=high,
                sufficient_level=3,
                claim=f"{len(casts)} offset tile(s) are 64-bit"
                + (
                    f"; {', '.join(large)} need a 64-bit base, but not 64-bit offsets inside a tile"
                    if large
                    else "; every offset of this launch fits into 32 bits"
                ),
                facts=[seen(f"`{c.text}` makes a 64-bit tile", launch.kernel_file, c.line) for c in casts[:4]],
                prediction="without the casts no arithmetic on 64-bit tiles is left",
            )

    def explain(self, view: View, hypothesis: Hypothesis) -> Hypothesis:
        launch = launch_of(view, hypothesis)
        if launch is None or launch.index not in view.compiled:
            return hypothesis
        count = view.counter(launch.index, "i64_tensor") or 0
        if not count:
            return refuted(hypothesis, "no arithmetic on 64-bit tiles is left in the compiled kernel")
        return raised(
            hypothesis,
            "located",
            located("ttgir", "operations on tiles of 64-bit integers", launch, hypothesis.span.line, count),
            metric("64-bit tile operations", float(count), "operations", launch, hypothesis.span.line, collector="ir"),
        )

    def probes(self, view: View, hypothesis: Hypothesis) -> Iterable[Probe]:
        launch = launch_of(view, hypothesis)
        text = _narrowed(view, launch) if launch else None
        if text is not None:
            yield Probe(
                claim="without the casts the 64-bit tile arithmetic goes",
                grants=(SourceEdit(text=text, label="32-bit offset tiles"),),
                signature="i64_tensor",
                expect="decrease",
                stage="ttgir",
                launch=hypothesis.launch,
            )

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        launch = launch_of(view, hypothesis)
        if launch is None or not _fits(launch):
            return
        text = _narrowed(view, launch, guard=True)
        if text is not None:
            yield Rewrite(
                id="",
                rule=self.code,
                title="32-bit offset tiles",
                source=text,
                applicability="guarded",
                guard="numel() < 2**31",
                precondition="every tensor has fewer than 2**31 elements",
                signature="i64_tensor",
                expect="decrease",
                finding=f"{self.code}:{hypothesis.key}",
                prediction=hypothesis.prediction,
            )


def wide_casts(facts: KernelFacts) -> list[Operation]:
    """Casts to 64-bit integers that make an address tile 64-bit: of tiles, and of scalars that are added to an `arange`."""
    names = {a.expanded for a in facts.accesses}
    return [
        o
        for o in facts.operations
        if o.kind == "cast"
        and "int64" in o.detail.get("dtype", "")
        and any("int64" in text for text in names)
        and (o.tile or _widens(facts, o))
    ]


def _widens(facts: KernelFacts, cast: Operation) -> bool:
    """Whether a scalar's cast stands in an integer index to which an `arange` is added (as `id.to(tl.int64) * BLOCK + arange`)."""
    pointers = {a.base for a in facts.accesses}

    def part(node: ast.AST, depth: int = 0) -> set[str]:
        found: set[str] = set()
        for n in ast.walk(node):
            if isinstance(n, ast.Call):
                found |= {"wide"} if ast.unparse(n) == cast.text else {"range"} if ast.unparse(n.func).endswith("arange") else set()
            elif isinstance(n, ast.Name) and n.id in pointers:
                found.add("pointer")
            elif isinstance(n, ast.Name) and depth < 8 and (symbol := facts.symbol(n.id)) is not None and not symbol.loaded:
                defined = expression(symbol.text)
                found |= part(defined, depth + 1) if defined is not None else set()
        return found

    for symbol in facts.symbols:
        tree = expression(symbol.text)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                sides = part(node.left), part(node.right)
                if sides in (({"wide"}, {"range"}), ({"range"}, {"wide"})):
                    return True
    return False


def _fits(launch: Launch) -> bool:
    """Whether every element of the launch's tensors has a 32-bit offset."""
    return all(_reach(a.tensor.shape, a.tensor.strides) < 2**31 for a in launch.arguments if a.tensor is not None)


def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True))


def _narrowed(view: View, launch: Launch, *, guard: bool = False) -> str | None:
    """The file with the casts of tiles to int64 taken out of the kernel; with `guard`, launched only where all tensors are small enough."""
    facts = view.kernel(launch)
    if facts is None or launch.kernel_file != view.source.path:
        return None
    file = SourceFile(view.text(view.source.path))
    places = {(c.line, c.column) for c in wide_casts(facts)}
    pointers = [a.name for a in launch.arguments if a.tensor is not None]
    try:
        found = [
            n
            for n in ast.walk(file.function(launch.kernel))
            if isinstance(n, ast.Call)
            and isinstance(n.func, ast.Attribute)
            and n.func.attr == "to"
            and (n.lineno, n.col_offset) in places
            and "int64" in ast.unparse(n)
        ]
        for call in found:
            assert isinstance(call.func, ast.Attribute)
            end = file.layout.span(call)[1]
            # The receiver's own brackets stay: the span of a bracketed expression leaves them out.
            dot = file.text.rindex(".to", file.layout.span(call.func.value)[1], end)
            file.replace(dot, end, "")
        if not found:
            return None
        for site in file.sites(launch.kernel) if guard else ():
            passed = [file.launch_argument(site.line, p) for p in pointers]
            if site.grid is None or not all(p and pure(p) for p in passed):
                return None
            file.guard_launch(site.line, " and ".join(f"{p}.numel() < 2**31" for p in dict.fromkeys(passed)))
        return file.apply()
    except EditError:
        return None


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"n2048": dict(n=2048)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=192)}
TOLERANCE = dict(rtol=2e-2, atol=3e-1)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    rn = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = (k + tl.arange(0, BK)).to(tl.int64)  # wide offsets in the loop
        a = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
        b = tl.load(b_ptr + rk[:, None] * N + rn[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


def launch(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=torch.float16)
    matmul_kernel[(m // 64, n // 64)](a, b, c, n, k, BM=64, BN=64, BK=32)
    return c


def reference(a, b):
    return (a.float() @ b.float()).half()


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(a=torch.randn(n, n, device=device).half(), b=torch.randn(n, n, device=device).half())
"""

AFTER = """\
import torch
import triton
import triton.language as tl

CASES = {"n2048": dict(n=2048)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=192)}
TOLERANCE = dict(rtol=2e-2, atol=3e-1)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = (tl.program_id(0) * BM + tl.arange(0, BM))
    rn = (tl.program_id(1) * BN + tl.arange(0, BN))
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = (k + tl.arange(0, BK))  # wide offsets in the loop
        a = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
        b = tl.load(b_ptr + rk[:, None] * N + rn[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


@triton.jit
def matmul_kernel_original(a_ptr, b_ptr, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    rn = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = (k + tl.arange(0, BK)).to(tl.int64)  # wide offsets in the loop
        a = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
        b = tl.load(b_ptr + rk[:, None] * N + rn[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


def launch(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=torch.float16)
    if a.numel() < 2**31 and b.numel() < 2**31 and c.numel() < 2**31:
        matmul_kernel[(m // 64, n // 64)](a, b, c, n, k, BM=64, BN=64, BK=32)
    else:
        matmul_kernel_original[(m // 64, n // 64)](a, b, c, n, k, BM=64, BN=64, BK=32)
    return c


def reference(a, b):
    return (a.float() @ b.float()).half()


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(a=torch.randn(n, n, device=device).half(), b=torch.randn(n, n, device=device).half())
"""

CLEAN = """\
import torch
import triton
import triton.language as tl

CASES = {"n2048": dict(n=2048)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=192)}
TOLERANCE = dict(rtol=2e-2, atol=3e-1)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = (tl.program_id(0) * BM + tl.arange(0, BM))
    rn = (tl.program_id(1) * BN + tl.arange(0, BN))
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = (k + tl.arange(0, BK))
        a = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
        b = tl.load(b_ptr + rk[:, None] * N + rn[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


def launch(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=torch.float16)
    matmul_kernel[(m // 64, n // 64)](a, b, c, n, k, BM=64, BN=64, BK=32)
    return c


def reference(a, b):
    return (a.float() @ b.float()).half()


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(a=torch.randn(n, n, device=device).half(), b=torch.randn(n, n, device=device).half())
"""

Int64Offsets.examples = (
    Example(title="64-bit tile offsets in a matrix product", before=BEFORE, line=12, grade="confirmed", after=AFTER),
    Example(title="32-bit tile offsets", before=CLEAN),
)
