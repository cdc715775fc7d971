"""HST102 recompile-per-shape."""

import ast
from collections.abc import Iterable

from leadline.model import Hypothesis, KernelFacts, Launch, Rewrite
from leadline.rules.base import Example, Rule, View, metric, raised, seen
from leadline.rules.editing import EditError, SourceFile
from leadline.rules.memory.dead_code import unused_names, without_unused

COMPILE_MS = 700  # one variant, cold


class RecompilePerShape(Rule):
    """A value that varies from launch to launch is a constexpr or part of the autotune key.

    What it finds
        A `tl.constexpr` parameter, or a name in `key=` of `@triton.autotune`, whose value differs between the launches of one call or
        between the named cases, and which is not needed at compile time: the body does not use it, or uses it in plain arithmetic
        and comparisons only (no `tl.arange`, no shape, no `static_range`, no branch).
    Why it is slow
        Every new value compiles the kernel again (0.3 to 3 s) and, as an autotune key, times every configuration again. The kernel
        itself is not slower: the estimate is of the first calls, not of the steady state.
    How it is proved
        The wrapper is run without a device; the constexprs and keys of its launches are compared.
    Rewrite and its safety
        An unused parameter is dropped from signature, key and call sites: the compiled code cannot depend on it. A used one becomes a
        runtime argument; same values, same arithmetic, but the compiler no longer folds it.
    References
        Triton documentation, `triton.autotune` (key) and `tl.constexpr`.
    """

    code, slug, cause, family = "HST102", "recompile-per-shape", "recompile_per_shape", "host"
    targets = ("cuda", "hip", "ascend")
    first_call = True

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        if view.trace is None:
            return
        for facts in view.source.kernels:
            inside = [x for x in view.trace.launches if x.kernel == facts.name]
            across = [x for t in view.others for x in t.launches if x.kernel == facts.name]
            if not inside:
                continue
            tuned = _tuned(inside)
            for parameter in facts.parameters:
                name = parameter.name
                if name in tuned or _needs_compile_time(facts, name):
                    continue
                keyed = name in inside[0].autotune_key
                if not parameter.constexpr and not keyed:
                    continue
                one, all_values = _values(inside, name), _values([*inside, *across], name)
                if len(all_values) < 2:
                    continue
                yield self._hypothesis(
                    view, facts, inside[0], name, len(one), len(all_values), keyed, parameter.constexpr, parameter.uses == 0
                )

    def _hypothesis(
        self, view: View, facts: KernelFacts, launch: Launch, name: str, inside: int, total: int, keyed: bool, constexpr: bool, unused: bool
    ) -> Hypothesis:
        if inside >= 2:
            low, high = (1 + inside) / 2, float(inside)
        elif unused or keyed:
            low, high = 1.2, float(min(total, 3))
        else:
            low, high = 1.0, 1.1  # a constexpr row length is a common and often useful choice
        role = " and ".join(r for r, on in (("a constexpr", constexpr), ("part of the autotune key", keyed)) if on)
        use = "the body never uses it" if unused else "the body needs no compile-time value of it"
        where = "launches of one call" if inside >= 2 else "named cases"
        hypothesis = self.hypothesis(
            view,
            None,
            line=facts.line,
            file=facts.file,
            kernel=facts.name,
            key=f"{facts.name}:{name}",
            low=low,
            high=high,
            sufficient_level=1,
            claim=f"`{name}` is {role} and takes {max(inside, total)} values over the {where}: each one compiles"
            + (" and tunes" if launch.variants > 1 else "")
            + f" the kernel again; {use}",
            facts=[seen(f"`{name}` is {role} of {facts.name}; {use}", facts.file, facts.line)],
            prediction=f"compilations fall from {max(inside, total)} to 1",
            notes=(
                f"cost of compiling, about {COMPILE_MS * max(launch.variants, 1) / 1000:.1f} s per new value; later calls do not change",
            ),
        )
        values = metric("distinct values", float(max(inside, total)), "values", launch, facts.line, collector="dry")
        return raised(hypothesis, "observed", values)

    def rewrite(self, view: View, hypothesis: Hypothesis) -> Iterable[Rewrite]:
        facts = view.source.kernel(hypothesis.kernel)
        if facts is None or facts.file != view.source.path:
            return
        name = hypothesis.key.rsplit(":", 1)[-1]
        parameter = next((p for p in facts.parameters if p.name == name), None)
        if parameter is None:
            return
        text = view.text(facts.file)
        if parameter.uses == 0:
            source, what = _removed(text, facts.name, name), f"drop the unused parameter {name}"
        else:
            source, what = _at_run_time(text, facts.name, name), f"pass {name} at run time"
        if source is None or source == text:
            return
        yield Rewrite(
            id="",
            rule=self.code,
            title=what,
            source=source,
            applicability="safe",
            signature="compilations",
            expect="decrease",
            precondition=f"the body of {facts.name} does not use {name}"
            if parameter.uses == 0
            else f"{facts.name} uses {name} only in arithmetic and comparisons",
            prediction="one compilation serves all values",
            finding=f"{self.code}:{hypothesis.key}",
        )


def _tuned(launches: list[Launch]) -> set[str]:
    """Constexprs that the autotuner's configuration sets."""
    found: set[str] = set()
    for launch in launches:
        found |= set(launch.constexprs) & _words(launch.variant)
        found |= set(launch.heuristics)
    return found


def _values(launches: list[Launch], name: str) -> set[str]:
    """Distinct values of an argument; tensors count by their shape only when the key names them (dtype is the JIT's own key)."""
    found: set[str] = set()
    for launch in launches:
        argument = launch.argument(name)
        if (
            argument is not None
            and argument.tensor is None
            and isinstance(argument.value, int | float)
            and not isinstance(argument.value, bool)
        ):
            found.add(repr(argument.value))
    return found


def _needs_compile_time(facts: KernelFacts, name: str) -> bool:
    """Whether the body uses the parameter, directly or through a local name, where only a compile-time value will do."""
    derived = {name} | {s.name for s in facts.symbols if name in s.params and not s.ranges and s.rank == 0}
    for operation in facts.operations:
        if operation.kind in ("arange", "reshape", "constant") and any(d in _words(operation.text) for d in derived):
            return True
    for loop in facts.loops:
        if loop.kind == "static_range" and derived & (_words(loop.start) | _words(loop.stop) | _words(loop.step)):
            return True
    return any(derived & _words(b.test) for b in facts.branches)


def _removed(text: str, kernel: str, name: str) -> str | None:
    """The file without the unused parameter; host names that only fed it go too."""
    if _read_by_name(text, name):
        return None
    file = SourceFile(text)
    try:
        file.remove_parameter(kernel, name)
        return without_unused(file.apply(), unused_names(text))
    except EditError:
        return None


def _at_run_time(text: str, kernel: str, name: str) -> str | None:
    """The file with the parameter a runtime argument and out of the autotune key; None where the body needs it compiled in."""
    file = SourceFile(text)
    try:
        node = file.function(kernel)
        for inner in (n for s in node.body for n in ast.walk(s)):
            needs: list[ast.AST] = []
            if isinstance(inner, ast.AnnAssign):
                needs = [inner]
            elif isinstance(inner, ast.IfExp | ast.If | ast.While):
                needs = [inner.test]
            elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id not in ("range", "min", "max"):
                needs = [inner]
            elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == name:
                return None
            if any(isinstance(n, ast.Name) and n.id == name for need in needs for n in ast.walk(need)):
                return None
        file.make_runtime(kernel, name)
        for keyword in (n for d in node.decorator_list for n in ast.walk(d) if isinstance(n, ast.keyword) and n.arg == "key"):
            if isinstance(keyword.value, ast.List | ast.Tuple):
                file.replace_node(
                    keyword.value, ast.unparse(ast.List([e for e in keyword.value.elts if not _is(e, name)], ast.Load())).replace("'", '"')
                )
        return file.apply()
    except EditError:
        return None


def _is(node: ast.expr, value: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


def _read_by_name(text: str, name: str) -> bool:
    """Whether some grid or heuristic reads the parameter as `meta["name"]`, or a configuration sets it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Subscript) and _is(node.slice, name):
            return True
        if isinstance(node, ast.Dict) and any(k is not None and _is(k, name) for k in node.keys):
            return True
    return False


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"five": dict(lengths=(1000, 2000, 3000, 4000, 5000))}
SMALL = {"tiny": dict(lengths=(5, 9)), "odd": dict(lengths=(3, 7, 11))}


@triton.jit
def shift_kernel(x_ptr, y_ptr, n, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1.0, mask=i < n)


def launch(x, lengths):
    outs = []
    for length in lengths:
        y = torch.empty(length, device=x.device)
        chunks = triton.cdiv(length, 256)
        shift_kernel[(triton.cdiv(length, 1024),)](x, y, length, LENGTH=chunks, BLOCK=1024)  # one call per length
        outs.append(y)
    return tuple(outs)


def reference(x, lengths):
    return tuple(x[:n] + 1.0 for n in lengths)


def make_inputs(*, device, seed, lengths):
    torch.manual_seed(seed)
    return dict(x=torch.randn(max(lengths), device=device), lengths=lengths)
"""

AFTER = """\
import torch
import triton
import triton.language as tl

CASES = {"five": dict(lengths=(1000, 2000, 3000, 4000, 5000))}
SMALL = {"tiny": dict(lengths=(5, 9)), "odd": dict(lengths=(3, 7, 11))}


@triton.jit
def shift_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1.0, mask=i < n)


def launch(x, lengths):
    outs = []
    for length in lengths:
        y = torch.empty(length, device=x.device)
        shift_kernel[(triton.cdiv(length, 1024),)](x, y, length, BLOCK=1024)  # one call per length
        outs.append(y)
    return tuple(outs)


def reference(x, lengths):
    return tuple(x[:n] + 1.0 for n in lengths)


def make_inputs(*, device, seed, lengths):
    torch.manual_seed(seed)
    return dict(x=torch.randn(max(lengths), device=device), lengths=lengths)
"""

CLEAN = """\
import torch
import triton
import triton.language as tl

CASES = {"n4m": dict(n=1 << 22)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=77)}


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * factor, mask=i < n)


def launch(x):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), 2.0, BLOCK=1024)
    return y


def reference(x):
    return x * 2.0


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device))
"""

RecompilePerShape.examples = (
    Example(title="an unused length is a constexpr", before=BEFORE, line=10, grade="observed", after=AFTER),
    Example(title="only the tile size is a constexpr", before=CLEAN),
)
