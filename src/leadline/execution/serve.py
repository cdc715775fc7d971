"""The worker process: `python -m leadline.execution.serve FD_IN FD_OUT` answers calls until its parent is gone.

User code runs in here. It may print, close descriptor 1, call sys.exit or leave threads behind: none of that reaches the protocol,
which has two descriptors of its own.
"""

import ctypes
import faulthandler
import importlib
import os
import signal
import sys
import traceback
import types
import typing

import msgspec

from leadline import errors
from leadline.execution.frames import one_line, user_frame
from leadline.execution.protocol import HEADER, RESULT_LIMIT, STACK_SIGNAL, Answer, Call, Failure, Hello, frame

MESSAGE_LIMIT = 4000
_PR_SET_PDEATHSIG = 1


def main(fd_in: int, fd_out: int) -> None:
    """Read calls from `fd_in`, run them one after the other, write answers to `fd_out`."""
    for fd in (fd_in, fd_out):
        os.set_inheritable(fd, False)  # compilers that user code starts must not hold the pipe open
    os.environ.pop("PYTHONSAFEPATH", None)
    _die_with_parent()
    _limit_memory()
    faulthandler.enable()  # a crash leaves its Python stack in the log
    faulthandler.register(STACK_SIGNAL, all_threads=False)  # so does a hang, when the parent asks before it kills
    pid = os.getpid()
    _write(fd_out, frame(msgspec.msgpack.encode(Hello(pid=pid, python=sys.version.split()[0]))))
    while (body := _read_frame(fd_in)) is not None:
        answer = frame(answer_call(body))
        if os.getpid() != pid:  # user code forked and its child came back here
            os._exit(0)
        _write(fd_out, answer)
    os._exit(0)  # without waiting for threads that user code left


def answer_call(body: bytes) -> bytes:
    """Run one encoded `Call`; every exception, SystemExit too, becomes a `Failure`."""
    try:
        call = msgspec.msgpack.decode(body, type=Call)
        function = _find(call.function)
        result = function(msgspec.msgpack.decode(call.request, type=_request_type(function)))
        encoded = msgspec.msgpack.encode(result)
        if len(encoded) > RESULT_LIMIT - 1024:
            message = f"the result of {call.function} has {len(encoded)} bytes; at most {RESULT_LIMIT} fit"
            return msgspec.msgpack.encode(Answer(failure=Failure(kind="ResultTooLarge", message=message)))
        return msgspec.msgpack.encode(Answer(result=msgspec.Raw(encoded)))
    except BaseException as error:
        return msgspec.msgpack.encode(Answer(failure=describe_exception(error)))


def describe_exception(error: BaseException) -> Failure:
    """The exception as one line, and the innermost line of user code it came through (`file:line`, or nothing)."""
    if isinstance(error, errors.LeadlineError):
        known = next(c.__name__ for c in type(error).__mro__ if getattr(errors, c.__name__, None) is c)
        return Failure(kind=type(error).__name__, message=error.what, error=known, where=error.where, remedy=error.remedy)
    traceback.print_exception(error)  # to the log
    return Failure(kind=type(error).__name__, message=one_line(error, MESSAGE_LIMIT), where=user_frame(error))


def _find(name: str) -> types.FunctionType:
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute, None)
    if not callable(function):
        raise errors.InternalError(f"worker function {name} does not exist")
    return typing.cast(types.FunctionType, function)


def _request_type(function: types.FunctionType) -> typing.Any:
    hints = typing.get_type_hints(function)
    hints.pop("return", None)
    return next(iter(hints.values()), typing.Any)


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when the parent dies; a no-op where the system has no prctl."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return
    expected = os.environ.pop("LEADLINE_WORKER_PARENT", "")
    if expected and os.getppid() != int(expected):  # it died before prctl was called
        os._exit(1)


def _limit_memory() -> None:
    limit = os.environ.pop("LEADLINE_WORKER_MEMORY", "")
    if limit:
        import resource

        # RLIMIT_DATA counts private writable memory only: reserving address space, as torch and CUDA do, stays free.
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))


def _read_frame(fd: int) -> bytes | None:
    header = _read(fd, HEADER)
    return None if header is None else _read(fd, int.from_bytes(header, "big"))


def _read(fd: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = os.read(fd, min(size - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
