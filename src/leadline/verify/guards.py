"""What a candidate's text gives away before anything runs: no-ops, edits of the case, fallbacks to libraries, ways to cheat."""

import ast
from collections.abc import Iterator

from leadline.model import KernelCase, Record

CASE_NAMES = ("CASES", "SMALL", "TOLERANCE", "make_inputs", "reference")
KERNELBENCH_NAMES = ("Model", "get_inputs", "get_init_inputs", "get_input_groups")

# Whole operators that a library would do in a kernel's stead. Sums over partial results, concatenations and element-wise steps are
# not among them: whether the kernels still compute the result is what the ghost replay tells.
_OPERATORS = (
    "matmul mm bmm addmm baddbmm einsum softmax log_softmax layer_norm rms_norm group_norm batch_norm instance_norm native_layer_norm "
    "scaled_dot_product_attention conv1d conv2d conv3d linear cumsum cumprod sort topk argsort cross_entropy nll_loss inner outer cdist "
    "bincount histc unique nonzero index_put index_add scatter_add logsumexp tensordot chain_matmul mv addmv"
)
_COMPUTES = frozenset(_OPERATORS.split())
_TORCH_LIBRARIES = ("torch.nn.functional", "torch.ops", "torch.linalg", "torch.special", "torch.fft")
_LIBRARIES = frozenset(("flash_attn", "xformers", "cupy", "apex", "transformer_engine", "liger_kernel", "cutlass", "jax"))
_FORBIDDEN_CALLS = {
    "Stream": "uses another stream", "CUDAGraph": "captures a graph", "Thread": "starts a thread", "ThreadPoolExecutor": "starts threads",
    "_getframe": "reads its caller's frame", "currentframe": "reads its caller's frame", "settrace": "sets a trace hook",
    "setprofile": "sets a profile hook", "fork": "forks", "_exit": "ends the process", "Popen": "starts a process",
    "get_objects": "searches memory for objects", "compile": "compiles with another compiler",
    "make_graphed_callables": "captures a graph",
}  # fmt: skip
_FORBIDDEN_MODULES = {
    "threading": "starts threads", "multiprocessing": "starts processes", "subprocess": "starts a process", "ctypes": "reaches into memory",
    "gc": "searches memory for objects", "weakref": "keeps results", "inspect": "reads frames", "asyncio": "starts tasks",
    "concurrent": "starts threads", "socket": "opens sockets", "leadline": "reaches for its judge",
    "builtins": "replaces built-in functions", "importlib": "runs code that cannot be read", "signal": "reaches for its process",
}  # fmt: skip

# Ways to other modules' and functions' insides, where a name on the left of "=" would be seen as a patch.
_FORBIDDEN_ATTRIBUTES = frozenset(
    ("__dict__", "__globals__", "__builtins__", "__code__", "__closure__", "__defaults__", "__setattr__", "__subclasses__",
     "f_back", "f_globals", "f_locals", "f_builtins", "tb_frame", "gi_frame")
)  # fmt: skip
_HARMLESS = ("re.compile", "triton.compile")
_HARMLESS_OS = ("os.path.", "os.environ.get", "os.getenv", "os.cpu_count", "os.fspath")


class Objection(Record, frozen=True):
    """Why a candidate is refused on its text. `gate` is a slug: noop, case, syntax, fallback, except, patch, forbidden."""

    gate: str
    reason: str
    line: int = 0


def objections(case: KernelCase, original: str, candidate: str) -> tuple[Objection, ...]:
    """All reasons to refuse `candidate` that can be read in its text, in order of line within a gate; () when there are none.

    What the original does too is allowed: a wrapper that already called torch.matmul may go on doing so.
    """
    try:
        new = ast.parse(candidate)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", 0) or 0
        return (Objection(gate="syntax", reason=f"does not parse: {getattr(error, 'msg', error)} (line {line})", line=line),)
    old = ast.parse(original)
    if _plain(old) == _plain(new):
        return (Objection(gate="noop", reason="changes nothing"),)
    if _plain(_numbered(old)) == _plain(_numbered(new)):
        return (Objection(gate="noop", reason="changes nothing but names of local variables"),)
    found = list(_case_edits(case, old, new))
    found += _forbidden(old, new)
    found += _fallbacks(case, old, new)
    found += _guarded_launches(old, new)
    found += _patches(old, new)
    return tuple(found)


def _strip(tree: ast.AST) -> ast.AST:
    """A copy of the tree's meaning: no docstrings, no positions (formatting and comments are not in the tree to begin with)."""
    tree = ast.parse(ast.unparse(tree))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) and isinstance(body, list) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                node.body = body[1:] or [ast.Pass()]
    return tree


def _numbered(tree: ast.Module) -> ast.Module:
    """A copy in which the local variables of each outermost function are called by the order of their first assignment.

    Parameters keep their names (a call may use them), and so does what an inner function takes as a parameter or declares global.
    """
    tree = ast.parse(ast.unparse(tree))
    functions = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    functions += [n for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body if isinstance(n, ast.FunctionDef)]
    for function in functions:
        nodes = list(ast.walk(function))
        kept = {n.arg for n in nodes if isinstance(n, ast.arg)}
        kept |= {name for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
        kept |= {n.name for n in nodes if isinstance(n, ast.ExceptHandler) and n.name}
        names = [n for n in nodes if isinstance(n, ast.Name) and n.id not in kept]
        stored = sorted((n for n in names if isinstance(n.ctx, ast.Store)), key=lambda n: (n.lineno, n.col_offset))
        number = {name: f"_local{i}" for i, name in enumerate(dict.fromkeys(n.id for n in stored))}
        for node in names:
            node.id = number.get(node.id, node.id)
    return tree


def _plain(tree: ast.AST) -> str:
    return ast.dump(_strip(tree))


def _definitions(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    """Every statement that binds a module-level name, also inside `if` and `try`."""
    found: dict[str, list[ast.stmt]] = {}

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                found.setdefault(node.name, []).append(node)
            elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            found.setdefault(name.id, []).append(node)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    found.setdefault(alias.asname or alias.name.partition(".")[0], []).append(node)
            for part in ("body", "orelse", "finalbody"):
                inner = getattr(node, part, None)
                if isinstance(inner, list) and not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                    visit(inner)

    visit(tree.body)
    return found


def _case_edits(case: KernelCase, old: ast.Module, new: ast.Module) -> Iterator[Objection]:
    names = CASE_NAMES if case.kind != "kernelbench" else KERNELBENCH_NAMES
    before, after = _definitions(old), _definitions(new)
    for name in names:
        # The candidate's own are never used: leaving them out, or importing the original's, is no edit.
        if all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in after.get(name, [])):
            continue
        if [_plain_statement(n) for n in before.get(name, [])] != [_plain_statement(n) for n in after.get(name, [])]:
            line = after[name][0].lineno if after.get(name) else 0
            yield Objection(gate="case", reason=f"edits the case ({name})", line=line)


def _plain_statement(node: ast.stmt) -> str:
    return _plain(ast.Module(body=[node], type_ignores=[]))


def _dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
        return ".".join(reversed(parts))
    return ""


def _imports(tree: ast.AST) -> dict[str, tuple[str, int]]:
    """Local name -> (what it is, line) for every import in the tree."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                found[alias.asname or root] = (alias.name if alias.asname else root, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = (f"{node.module or '.'}.{alias.name}", node.lineno)
    return found


def _forbidden(old: ast.Module, new: ast.Module) -> Iterator[Objection]:
    imported = {target for target, _ in _imports(old).values()}
    known = {target.partition(".")[0] for target in imported}
    for target, line in _imports(new).values():
        root = target.partition(".")[0]
        if root in _FORBIDDEN_MODULES and root not in known:
            yield Objection(gate="forbidden", reason=f"{_FORBIDDEN_MODULES[root]} (import {root})", line=line)
        elif target not in imported and target not in _HARMLESS and (why := _FORBIDDEN_CALLS.get(target.rpartition(".")[2])):
            yield Objection(gate="forbidden", reason=f"{why} ({target})", line=line)
        elif root == "os" and target != "os" and target not in imported and not target.startswith(_HARMLESS_OS):
            yield Objection(gate="forbidden", reason=f"reaches for its process ({target})", line=line)
    used = {name for name, _ in _calls(old)}
    for name, line in _calls(new):
        last = name.rpartition(".")[2]
        if name in used or name in _HARMLESS:
            continue
        if last in _FORBIDDEN_CALLS:
            yield Objection(gate="forbidden", reason=f"{_FORBIDDEN_CALLS[last]} ({name})", line=line)
        if name in ("__import__", "importlib.import_module", "exec", "eval"):
            yield Objection(gate="forbidden", reason=f"runs code that cannot be read ({name})", line=line)
        if name.startswith("os.") and not name.startswith(_HARMLESS_OS):
            yield Objection(gate="forbidden", reason=f"reaches for its process ({name})", line=line)
    before = _insides(old)
    for name, line in _insides(new).items():
        if name not in before:
            yield Objection(gate="forbidden", reason=f"reaches into modules or frames ({name})", line=line)


def _insides(tree: ast.AST) -> dict[str, int]:
    """What gives access to the insides of modules, functions and frames: name -> first line."""
    system = {name for name, (target, _) in _imports(tree).items() if target == "sys"}
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in _FORBIDDEN_ATTRIBUTES:
            found.setdefault(name, node.lineno)  # pyright: ignore[reportAttributeAccessIssue]
        elif (isinstance(node, ast.Attribute) and node.attr == "modules" and _dotted(node.value) in system) or (
            isinstance(node, ast.ImportFrom) and node.module == "sys" and any(a.name == "modules" for a in node.names)
        ):
            found.setdefault("sys.modules", node.lineno)
        elif isinstance(node, ast.Call) and _dotted(node.func) == "vars" and node.args:
            found.setdefault("vars", node.lineno)
    return found


def _calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Dotted name and line of every call and every decorator."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield _dotted(node.func), node.lineno
        for decorator in getattr(node, "decorator_list", []):
            yield _dotted(decorator.func if isinstance(decorator, ast.Call) else decorator), decorator.lineno


def _host_functions(tree: ast.Module) -> list[ast.stmt]:
    """Module-level statements that run on the host: everything but @triton.jit functions and the case's own functions."""
    kept = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            decorators = [_dotted(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2] for d in node.decorator_list]
            if "jit" in decorators or node.name in CASE_NAMES:
                continue
        elif isinstance(node, ast.ClassDef) and node.name == "Model":
            continue
        kept.append(node)
    return kept


def _computations(tree: ast.Module) -> dict[str, int]:
    """What host code computes with torch: dotted names, tensor methods ("." + name) and "@" -> first line."""
    modules = {name: target for name, (target, _) in _imports(tree).items() if target.partition(".")[0] == "torch"}
    libraries = {name for name, (target, _) in _imports(tree).items() if target.partition(".")[0] in _LIBRARIES}
    found: dict[str, int] = {}
    for statement in _host_functions(tree):
        for node in ast.walk(statement):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                found.setdefault("@", node.lineno)
            # A function named is as good as called: `f = torch.matmul` two lines above.
            if isinstance(node, ast.Attribute) and (root := _dotted(node).partition(".")[0]) in modules:
                full = modules[root] + _dotted(node)[len(root) :]
                if full.rpartition(".")[2] in _COMPUTES:
                    found.setdefault(full, node.lineno)
            if not isinstance(node, ast.Call):
                continue
            name = _dotted(node.func)
            root, _, rest = name.partition(".")
            if root in modules and name:
                full = modules[root] + ("." + rest if rest else "")
                if full.rpartition(".")[2] in _COMPUTES or full.startswith(_TORCH_LIBRARIES):
                    found.setdefault(full, node.lineno)
            elif root in libraries and name:
                found.setdefault(name, node.lineno)
            elif isinstance(node.func, ast.Attribute) and node.func.attr in _COMPUTES and root not in ("tl", "triton", "math", "np"):
                found.setdefault("." + node.func.attr, node.lineno)
            elif name == "getattr" and (full := _named_by_text(node, modules)):
                found.setdefault(full, node.lineno)
    return found


def _named_by_text(call: ast.Call, modules: dict[str, str]) -> str:
    """What `getattr(torch.x, "name")` is, "" when it is harmless. A name that is computed may be any."""
    owner, _, rest = _dotted(call.args[0]).partition(".") if call.args else ("", "", "")
    name = call.args[1] if len(call.args) > 1 else None
    known = name.value if isinstance(name, ast.Constant) else "?"
    if owner not in modules:
        return f".{known}" if known in _COMPUTES else ""
    return ".".join(filter(None, (modules[owner], rest, str(known)))) if known == "?" or known in _COMPUTES else ""


def _fallbacks(case: KernelCase, old: ast.Module, new: ast.Module) -> Iterator[Objection]:
    before = _computations(old)
    for name, line in _computations(new).items():
        if name not in before:
            yield Objection(gate="fallback", reason=f"computes with a library instead of a kernel ({name.removeprefix('.')})", line=line)
    if case.kind != "kernelbench":
        for statement in _host_functions(new):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and node.id == "reference" and not _names(old, "reference", statement):
                    yield Objection(gate="fallback", reason="calls the reference", line=node.lineno)
                    return


def _names(old: ast.Module, name: str, statement: ast.stmt) -> bool:
    """Whether host code of the original (outside the case's functions) names `name` too."""
    return any(isinstance(n, ast.Name) and n.id == name for s in _host_functions(old) for n in ast.walk(s))


def _guarded_launches(old: ast.Module, new: ast.Module) -> Iterator[Objection]:
    def guarded(tree: ast.Module) -> list[int]:
        lines = []
        for node in ast.walk(tree):
            suppresses = isinstance(node, ast.With) and any(
                isinstance(i.context_expr, ast.Call) and _dotted(i.context_expr.func).endswith("suppress") for i in node.items
            )
            if isinstance(node, ast.Try) or suppresses:
                for inner in node.body:  # pyright: ignore[reportAttributeAccessIssue]
                    lines += [n.lineno for n in ast.walk(inner) if isinstance(n, ast.Call) and isinstance(n.func, ast.Subscript)]
        return lines

    if len(guarded(new)) > len(guarded(old)):
        yield Objection(gate="except", reason="catches the failure of its own launch", line=guarded(new)[0])


def _patches(old: ast.Module, new: ast.Module) -> Iterator[Objection]:
    """Assignments to attributes of imported modules: torch.allclose = ..., setattr(torch, ...)."""

    def found(tree: ast.Module) -> dict[str, int]:
        roots = _imports(tree)
        patches: dict[str, int] = {}
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if not isinstance(target, ast.Attribute) or not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                    continue
                name = _dotted(target)
                if name.partition(".")[0] in roots:
                    patches.setdefault(name, target.lineno)
            if isinstance(node, ast.Call) and _dotted(node.func) in ("setattr", "builtins.setattr") and node.args:
                name = _dotted(node.args[0])
                if name.partition(".")[0] in roots:
                    patches.setdefault(f"setattr({name})", node.lineno)
        return patches

    before = found(old)
    for name, line in found(new).items():
        if name not in before:
            yield Objection(gate="patch", reason=f"replaces a function of an imported module ({name})", line=line)
