"""Importing the user's files in a worker: by path, cached by content, with other text in place of what is on disk when asked."""

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import linecache
import os
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leadline.errors import KernelError
from leadline.execution.frames import ORIGINS, one_line, user_frame

_loaded: dict[str, tuple[types.ModuleType, dict[str, tuple[int, int]]]] = {}
# Plain-named modules that were imported from a user's folder, put aside while files of another folder are imported.
_siblings: dict[str, dict[str, types.ModuleType]] = {}


def load_module(path: str, text: str | None = None, name: str = "") -> types.ModuleType:
    """Import the Python file at `path`, or `text` in its place, and return the module.

    The file's own folder is importable meanwhile. The module stays registered under `name`, by default one made from path and
    content; the same content is imported once. Raises KernelError naming the line for anything that goes wrong on the way.
    """
    file = os.path.realpath(path)
    source = _read(file) if text is None else text
    key = hashlib.sha256(f"{file}\0{name}\0{source}".encode()).hexdigest()[:16]
    if key in _loaded:
        module, stamps = _loaded[key]
        if all(_stamp(sibling) == stamp for sibling, stamp in stamps.items()):
            return module
        _forget_siblings(str(Path(file).parent))
    # The assembler refuses a file name that is not ASCII, and it is told the name for the sake of line numbers.
    as_it_is = file.isascii() and (text is None or _on_disk(file) == text)
    filename = file if as_it_is else _write_temporary(file, source, key)
    _parse(source, path)
    package, root = _package_of(file)
    stem = "".join(c if c.isalnum() else "_" for c in Path(file).stem)
    full = name or (f"{package}." if package else "") + f"leadline_{stem}_{key}"
    spec = importlib.util.spec_from_file_location(full, filename)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    linecache.checkcache(filename)
    with importable(str(root)) as imported, importable(str(Path(file).parent)) as beside:
        try:
            exec(compile(source, filename, "exec"), module.__dict__)
        except BaseException as error:
            sys.modules.pop(full, None)
            if isinstance(error, KeyboardInterrupt):
                raise
            raise _explain(error, path) from None
    _loaded[key] = module, {f: _stamp(f) for f in (*imported, *beside)}
    return module


def find_kernel(kernel_file: str, kernel_name: str, module_name: str = "", text: str | None = None) -> Any:
    """The `@triton.jit` function of that name (a JITFunction, or an InterpretedFunction under TRITON_INTERPRET), unwrapped from
    autotuner and heuristics. `text` replaces the file's content. Raises KernelError listing the kernels there are."""
    module = _imported(kernel_file, module_name) if module_name and text is None else None
    module = module or load_module(kernel_file, text)
    found = {name: kernel for name, value in vars(module).items() if (kernel := innermost_kernel(value)) is not None}
    if kernel_name in found:
        return found[kernel_name]
    for kernel in found.values():
        if kernel.__name__ == kernel_name:
            return kernel
    there = f"the kernels there are: {', '.join(sorted(found))}" if found else "it has none"
    raise KernelError(f"no kernel {kernel_name}", where=kernel_file, remedy=there)


def innermost_kernel(value: Any) -> Any:
    """The jitted function inside autotuner and heuristics wrappers, or None for anything else."""
    while value is not None and type(value).__module__.startswith("triton."):
        inner = getattr(value, "fn", None)
        if isinstance(inner, types.FunctionType):
            return value
        value = inner
    return None


@contextlib.contextmanager
def importable(folder: str) -> Iterator[list[str]]:
    """Modules of `folder` can be imported by plain name within the block; same-named ones of other folders are put aside.

    Yields a list that holds, after the block, the files imported from there.
    """
    files: list[str] = []
    for other, modules in _siblings.items():
        if other != folder and not (other + os.sep).startswith(folder + os.sep):
            for name, module in modules.items():
                if sys.modules.get(name) is module:
                    del sys.modules[name]
    mine = _siblings.setdefault(folder, {})
    sys.modules.update({name: module for name, module in mine.items() if name not in sys.modules})
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # leave no __pycache__ beside the user's files
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    before = set(sys.modules)
    try:
        yield files
    finally:
        sys.dont_write_bytecode = writes
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
        for name in set(sys.modules) - before:
            module = sys.modules.get(name)
            file = getattr(module, "__file__", None) or ""
            if module is not None and os.path.realpath(file).startswith(folder + os.sep) and "site-packages" not in file[len(folder) :]:
                mine[name] = module
        files += [f for m in mine.values() if (f := getattr(m, "__file__", None))]


def _imported(kernel_file: str, module_name: str) -> types.ModuleType | None:
    """The module by its importable name, if that is indeed the file asked for."""
    try:
        module = importlib.import_module(module_name)
    except Exception:
        return None
    file = getattr(module, "__file__", None)
    return module if file and os.path.realpath(file) == os.path.realpath(kernel_file) else None


def _package_of(file: str) -> tuple[str, Path]:
    """Dotted name of the package that the file belongs to ("" for none) and the folder that must be importable for it."""
    folder, names = Path(file).parent, []
    while (folder / "__init__.py").exists() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names), folder


def _forget_siblings(folder: str) -> None:
    for name in _siblings.pop(folder, {}):
        sys.modules.pop(name, None)


def _stamp(file: str) -> tuple[int, int]:
    try:
        status = os.stat(file)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise KernelError("the file does not exist", where=file) from None
    except (OSError, UnicodeDecodeError) as error:
        raise KernelError(f"the file cannot be read: {one_line(error)}", where=file) from None


def _on_disk(file: str) -> str | None:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _write_temporary(file: str, source: str, key: str) -> str:
    """A file with that text (inspect.getsource and tracebacks need one), named by content, under the user's file's own name."""
    folder = Path(tempfile.gettempdir()) / f"leadline-{os.getuid()}" / key
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = folder / Path(file).name.encode("ascii", "replace").decode().replace("?", "_")
    if not target.exists():
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as out:
            out.write(source)
        os.replace(out.name, target)
    ORIGINS[str(target)] = file
    return str(target)


def _parse(source: str, path: str) -> None:
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise KernelError(f"does not parse: {error.msg}", where=f"{path}:{error.lineno or 1}") from None
    except ValueError as error:
        raise KernelError(f"does not parse: {one_line(error)}", where=path) from None


def _explain(error: BaseException, path: str) -> KernelError:
    where = user_frame(error) or path
    if isinstance(error, ModuleNotFoundError):
        return KernelError(f"cannot import {error.name}", where=where, remedy="install it where the kernels run, or make it importable")
    if isinstance(error, SyntaxError):  # of a module it imports
        return KernelError(f"does not parse: {error.msg}", where=f"{error.filename}:{error.lineno or 1}")
    return KernelError(f"importing the file raised {type(error).__name__}: {one_line(error)}", where=where)
