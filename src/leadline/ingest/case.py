"""Taking in a user's file: text and syntax tree only, nothing is imported or run."""

import ast
from pathlib import Path

from leadline.errors import KernelError, UsageError
from leadline.model import KernelCase


def read_target(target: str, case_file: str | None = None) -> KernelCase:
    """A case from `file.py` or `file.py::kernel`; `case_file` holds CASES and make_inputs when the file has none.

    Raises UsageError for a target that is not such a file, KernelError (with the line) for a file that does not parse, has no
    kernel, or lacks a part of a case.
    """
    path, _, selected = target.partition("::")
    text, tree = _parse(path, option="TARGET")
    kernels = kernels_of(tree)
    names = _names(tree)
    if selected and selected not in kernels and not (selected in names and _imports_something(tree)):
        there = f"the kernels there are: {', '.join(kernels)}" if kernels else "it defines none"
        raise KernelError(f"no kernel {selected}", where=path, remedy=there)
    owner_tree, owner_names, owner = tree, names, ""
    if case_file is not None:
        _, owner_tree = _parse(case_file, option="--case")
        owner_names, owner = _names(owner_tree), str(Path(case_file).resolve())
    everything = names | owner_names
    bench = "ModelNew" in everything and bool({"get_inputs", "get_input_groups"} & everything)
    if not kernels and not (_imports_something(tree) and {"launch", "ModelNew"} & names) and not _imports_from(owner_tree, path):
        raise KernelError("no @triton.jit kernel in the file", where=path, remedy="give the file that defines or launches the kernels")
    if bench and "launch" not in everything:
        oracle = "reference" if "Model" in everything else "launch"
        return KernelCase(path=str(Path(path).resolve()), source=text, kernels=kernels, selected=selected, oracle=oracle,
                          kind="kernelbench", case_file=owner, wrapper="ModelNew")  # fmt: skip
    _complete(path, case_file, names, owner_names, _imports_from(owner_tree, path))
    return KernelCase(
        path=str(Path(path).resolve()), source=text, kernels=kernels, selected=selected,
        oracle="reference" if "reference" in owner_names else "launch", cases=_keys(owner_tree, "CASES"),
        small=_keys(owner_tree, "SMALL"), case_file=owner,
    )  # fmt: skip


def kernels_of(tree: ast.Module) -> tuple[str, ...]:
    """Names of all `@triton.jit` functions, in order of definition."""
    return tuple(
        node.name for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(_is_jit(d) for d in node.decorator_list)
    )  # fmt: skip


def _is_jit(decorator: ast.expr) -> bool:
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(node) in ("triton.jit", "jit", "triton.runtime.jit", "gluon.jit", "tl.jit")


def _parse(path: str, option: str) -> tuple[str, ast.Module]:
    file = Path(path)
    if not file.exists():
        raise UsageError("the file does not exist", where=path, remedy=f"give an existing Python file as {option}")
    if file.is_dir():
        raise UsageError("is a folder", where=path, remedy="give one Python file")
    if file.suffix != ".py":
        raise UsageError("is not a Python file", where=path, remedy=f"give a .py file as {option}")
    text = read_source(path)
    try:
        return text, ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply for the parser
        line = getattr(error, "lineno", None) or 1
        text = getattr(error, "msg", "") or str(error) or "it is nested too deeply"
        raise KernelError(f"does not parse: {text}", where=f"{path}:{line}", remedy="mend the syntax first") from None


def read_source(path: str) -> str:
    """The text of a Python file, which must be UTF-8 without a byte-order mark: rewrites are written so. KernelError otherwise."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=path, remedy="make it readable") from None
    if data.startswith(b"\xef\xbb\xbf"):
        raise KernelError("begins with a byte-order mark", where=path, remedy="save it as UTF-8 without one")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"is not UTF-8 text (byte 0x{data[error.start]:02x})"
        raise KernelError(what, where=f"{path}:{line}", remedy="save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _complete(path: str, case_file: str | None, names: set[str], owner_names: set[str], uses: bool) -> None:
    """Raise the error that names what a case lacks and how to give it."""
    if case_file is not None:
        if "make_inputs" not in owner_names:
            raise KernelError("make_inputs is missing", where=case_file,
                              remedy="define make_inputs(*, device, seed, **case) that returns a dict of inputs")  # fmt: skip
        if "launch" not in owner_names | names:
            raise KernelError("launch is missing", where=case_file, remedy="define launch(**inputs) that launches the kernels")
        if "launch" not in names and not uses:
            raise KernelError(f"launch does not use {path}", where=case_file, remedy=f"import the kernels from {Path(path).stem}")
        return
    missing = [name for name in ("CASES", "make_inputs", "launch") if name not in names]
    if missing:
        remedy = (
            'add CASES = {"name": dict(...)}, make_inputs(*, device, seed, **case) and launch(**inputs), '
            "or pass --case other.py with them"
        )
        raise KernelError(f"not a case: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing", where=path, remedy=remedy)


def _names(tree: ast.Module) -> set[str]:
    """Names bound at the top level, also inside if and try."""
    found: set[str] = set()
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            pending += [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
            pending += [s for h in getattr(node, "handlers", []) for s in h.body]
    return found


def _imports_something(tree: ast.Module) -> bool:
    """Whether the file imports names from modules that may hold kernels: not torch, triton or the standard library's usual ones."""
    known = {"torch", "triton", "numpy", "math", "os", "sys", "typing", "functools", "itertools", "dataclasses", "__future__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").partition(".")[0] not in known):
            return True
        if isinstance(node, ast.Import) and any(a.name.partition(".")[0] not in known for a in node.names):
            return True
    return False


def _imports_from(owner: ast.Module, path: str) -> bool:
    """Whether the case file imports the target or names of it (it may itself only re-export kernels)."""
    stem = Path(path).stem
    modules = [n.module or "" for n in ast.walk(owner) if isinstance(n, ast.ImportFrom)]
    modules += [a.name for n in ast.walk(owner) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names]
    return any(name.rpartition(".")[2] == stem for name in modules)


def _keys(tree: ast.Module, name: str) -> tuple[str, ...]:
    """Keys of a dict display assigned to `name` at the top level; () when it is not that literal."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            value = getattr(node, "value", None)
            if not isinstance(value, ast.Dict):
                return ()
            keys = [k.value for k in value.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)]
            return tuple(keys) if len(keys) == len(value.keys) else ()
    return ()
