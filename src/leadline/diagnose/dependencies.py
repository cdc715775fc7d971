"""The user's files that a kernel is made of: its own and those it imports. Read as text; nothing is imported."""

import ast
from collections.abc import Iterator
from pathlib import Path

MOST = 200  # files followed; a kernel that needs more is not one file's affair


def local_texts(file: str, text: str | None = None, *, folder: str = "") -> dict[str, str]:
    """Path -> text of a kernel's file and of all that it imports from beside itself or from `folder`, directly or through others.

    `text` replaces what is on disk in `file`. Installed packages are left out: their versions are told separately.
    """
    found = {file: _text(file) if text is None else text}
    waiting = [file]
    while waiting and len(found) < MOST:
        here = waiting.pop()
        for imported in _imports(found[here], Path(here), folder):
            if imported not in found:
                found[imported] = _text(imported)
                waiting.append(imported)
    return found


def _imports(text: str, file: Path, folder: str) -> Iterator[str]:
    """Files that exist under the names that `text` imports, with the packages they lie in."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        wanted: list[tuple[str, int]] = []
        if isinstance(node, ast.Import):
            wanted = [(alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            wanted = [(f"{base}.{alias.name}".strip("."), node.level) for alias in node.names]
        for name, level in wanted:
            for root in _roots(file, folder, level):
                place = root
                for part in name.split("."):
                    place = place / part
                    for candidate in (place.with_suffix(".py"), place / "__init__.py"):
                        if candidate.is_file():
                            yield str(candidate)


def _roots(file: Path, folder: str, level: int) -> tuple[Path, ...]:
    """Folders where an import of a user's file may lead: its package for a relative one; else beside the file, around its package, and
    the folder of the case. None in an installed package."""
    if level:
        roots = file.parents[level - 1 : level]
    else:
        around = file.parent
        while (around / "__init__.py").is_file() and around != around.parent:
            around = around.parent
        roots = [file.parent, around, *([Path(folder)] if folder else [])]
    return tuple(dict.fromkeys(r for r in roots if not any(part.endswith("-packages") for part in r.parts)))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
