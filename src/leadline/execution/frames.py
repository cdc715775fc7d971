"""Which lines of a traceback or a stack are the user's own."""

import os
import re
import sys
import sysconfig
import types
from functools import cache
from pathlib import Path

import leadline

_LIBRARIES = ("torch", "triton", "numpy", "msgspec")

# Temporary files that stand for a user's file with other text -> that file. Filled by leadline.execution.modules.
ORIGINS: dict[str, str] = {}


def original_path(path: str) -> str:
    """The user's file that a content-named temporary file stands for, or `path` itself."""
    return ORIGINS.get(path, path)


def user_frame(error: BaseException) -> str:
    """`file:line` of the innermost frame that lies in user code: not in leadline, torch, triton or the standard library."""
    found, entry = "", error.__traceback__
    while entry is not None:
        if is_user_file(entry.tb_frame.f_code.co_filename):
            found = f"{original_path(entry.tb_frame.f_code.co_filename)}:{entry.tb_lineno}"
        entry = entry.tb_next
    return found


def stack_line(log: str) -> str:
    """`file:line` of the innermost user code in the last stack that Python's fault handler left in `log`; "" when there is none."""
    stacks = re.split(r"^(?:Current thread|Thread|Stack) .*most recent call first.*$", log, flags=re.MULTILINE)
    for path, line in re.findall(r'^  File "(.+)", line (\d+) in ', stacks[-1], flags=re.MULTILINE) if len(stacks) > 1 else ():
        if is_user_file(path) and "-packages" + os.sep not in path:  # here torch and triton are not imported, so not known by name
            return f"{path}:{line}"
    return ""


def calling_frame(file: str = "") -> types.FrameType | None:
    """The innermost frame of the current stack that runs user code; one in `file` (as loaded) is preferred when given."""
    frame, first = sys._getframe(1), None
    while frame is not None:
        name = frame.f_code.co_filename
        if name == file:
            return frame
        if first is None and is_user_file(name):
            first = frame
        frame = frame.f_back
    return first


def one_line(error: BaseException, limit: int = 400) -> str:
    """The exception's message as one line of at most `limit` characters."""
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:
        lines = []
    return (lines[0] if lines else "")[:limit]


def is_user_file(path: str) -> bool:
    """Whether `path` is a real file outside leadline, torch, triton, their numeric companions and the standard library."""
    # What has been imported so far decides which roots are known, so it is part of the key.
    return _is_user_file(path, tuple(name for name in _LIBRARIES if name in sys.modules))


@cache
def _is_user_file(path: str, loaded: tuple[str, ...]) -> bool:
    if path.startswith("<") or path.endswith(".pyx"):
        return False
    real = os.path.realpath(path)
    roots = [os.path.dirname(leadline.__file__)]
    for name in loaded:
        file = getattr(sys.modules.get(name), "__file__", None)
        roots += [str(Path(file).parent)] if file else []
    if any(real.startswith(os.path.realpath(root) + os.sep) for root in roots):
        return False
    standard = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
    return not (real.startswith(standard) and "site-packages" not in real[len(standard) :])
