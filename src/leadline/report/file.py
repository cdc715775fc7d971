"""Putting a text where the user asked: refused before the work when it cannot be done, done in one step after it."""

import contextlib
import os
import tempfile
from pathlib import Path

from leadline.errors import UsageError


def writable(path: Path, where: str) -> None:
    """UsageError unless `path` can be replaced by a new file in its folder."""
    folder = path.resolve().parent
    if path.is_dir():
        raise UsageError(f"{path} is a folder", where=where, remedy="give a file name")
    if not folder.is_dir():
        raise UsageError(f"folder {folder} does not exist", where=where, remedy="create it first")
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path} is not writable", where=where, remedy="make it writable or use -o FILE")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"folder {folder} is not writable", where=where, remedy="choose another place with -o FILE")


def replace(path: Path, text: str) -> None:
    """Write `text` to `path` in one step: a reader sees the old file or the new one. Links and permissions are kept."""
    real = path.resolve()
    descriptor, temporary = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        if real.exists():
            os.chmod(temporary, real.stat().st_mode & 0o7777)
        else:
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, real)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
