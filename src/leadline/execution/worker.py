"""A worker: a spawned Python process that runs user code and compilers, so that nothing they do can hurt this one."""

import contextlib
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TypeVar

import msgspec

from leadline import errors
from leadline.errors import InternalError, LeadlineError, WorkerDied, WorkerError, WorkerRaised, WorkerTimeout
from leadline.execution.frames import stack_line
from leadline.execution.protocol import HEADER, RESULT_LIMIT, STACK_SIGNAL, Answer, Call, Failure, Hello, frame
from leadline.model import Record

T = TypeVar("T")

LOG_LIMIT = 8 << 20  # bytes of output kept on disk while a call runs
TAIL = 8000  # bytes of output handed to errors
_POLL = 0.1  # seconds between looks at the log's size and the process

# The kernel ties "die with the parent" to the *thread* that spawned the child, so all workers are spawned by one that lasts.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="leadline-spawn")

_KEPT = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|TEMP|TMP|PYTHONPATH|PYTHONHASHSEED|VIRTUAL_ENV|CONDA_PREFIX|CC|CXX"
    r"|LC_\w+|LD_\w+|XDG_CACHE_HOME|LEADLINE_\w+|(CUDA|NVIDIA|HIP|ROCR|ROCM|ASCEND|OMP|MKL|OPENBLAS)_\w+"
    r"|TRITON_(CACHE_DIR|HOME|\w+_PATH)|TORCH_(HOME|EXTENSIONS_DIR)|TORCHINDUCTOR_CACHE_DIR"
)


class Worker:
    """Runs functions by name in a process of its own, spawned at the first call and again after it died.

    `environment` is added to a scrubbed copy of ours (no credentials, nothing that changes how Triton compiles).
    `memory_bytes` limits the private memory of the process. One caller at a time; others wait. A context manager.
    """

    def __init__(
        self,
        name: str,
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] = {},
        memory_bytes: int | None = None,
    ) -> None:
        self.name, self.python, self.environment, self.memory_bytes = name, python, dict(environment), memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._earlier = b""  # tail of what was cut off a log that grew too long
        self._to_child = self._from_child = -1
        self._lock = threading.Lock()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._kill()

    @property
    def pid(self) -> int | None:
        """Process id of the live worker, also its process group; None when none is running."""
        return self._process.pid if self._process else None

    def call(self, function: str, request: Record, result: type[T], *, timeout: float = 120) -> T:
        """Run `function` ("module:name") on `request` and return its answer decoded as `result`.

        Raises WorkerTimeout after `timeout` seconds and WorkerDied when the process ends (the next call starts a new one), the
        same LeadlineError that the function raised, and WorkerRaised for any other exception of the function.
        """
        deadline = time.monotonic() + timeout
        with self._lock:
            try:
                if self._process is not None and self._ended():
                    self._kill()  # it died between two calls
                if self._process is None:
                    self._spawn()
                    msgspec.msgpack.decode(self._receive("start", deadline, timeout), type=Hello)
                body = msgspec.msgpack.encode(Call(function=function, request=msgspec.Raw(msgspec.msgpack.encode(request))))
                self._send(frame(body), function, deadline, timeout)
                answer = msgspec.msgpack.decode(self._receive(function, deadline, timeout), type=Answer)
            except WorkerError:
                raise
            except BaseException:  # interrupted in the middle: the stream is no longer in step
                self._kill()
                raise
            if answer.failure is not None:
                raise self._raised(answer.failure)
            try:
                return msgspec.msgpack.decode(answer.result, type=result)
            except msgspec.ValidationError as error:
                raise InternalError(f"worker function {function} answered something else than {result}: {error}") from None

    def log(self) -> str:
        """The last of what the worker printed (stdout and stderr)."""
        if self._log is None:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        data = os.pread(self._log.fileno(), TAIL, max(0, size - TAIL))
        return (self._earlier + data)[-TAIL:].decode("utf-8", "replace")

    def close(self) -> None:
        """End the process and everything in its group. A later call starts a new one."""
        with self._lock:
            self._kill()

    def _spawn(self) -> None:
        child_in, self._to_child = os.pipe()
        self._from_child, child_out = os.pipe()
        os.set_blocking(self._to_child, False)
        os.set_blocking(self._from_child, False)
        if self._log:
            self._log.close()
        self._log, self._earlier = tempfile.TemporaryFile(buffering=0), b""  # noqa: SIM115 (lives as long as the process)
        flags = fcntl.fcntl(self._log, fcntl.F_GETFL)
        fcntl.fcntl(self._log, fcntl.F_SETFL, flags | os.O_APPEND)  # then it may be cut short while the child writes
        command = [self.python, "-m", "leadline.execution.serve", str(child_in), str(child_out)]
        try:
            self._process = _SPAWNER.submit(
                subprocess.Popen, command, env=self._child_environment(), stdin=subprocess.DEVNULL, stdout=self._log,
                stderr=self._log, pass_fds=(child_in, child_out), start_new_session=True,
            ).result()  # fmt: skip
        except OSError as error:
            self._close_pipes()
            raise WorkerDied(f"worker {self.name} could not start: {error}", remedy="check the interpreter's path") from None
        finally:
            os.close(child_in)
            os.close(child_out)

    def _child_environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
        kept |= {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", "LEADLINE_WORKER_PARENT": str(os.getpid())}
        if self.memory_bytes is not None:
            kept["LEADLINE_WORKER_MEMORY"] = str(self.memory_bytes)
        return kept | self.environment

    def _send(self, data: bytes, function: str, deadline: float, timeout: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._to_child, select.POLLOUT, function, deadline, timeout)
            try:
                view = view[os.write(self._to_child, view[: 1 << 20]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._died(function) from None

    def _receive(self, function: str, deadline: float, timeout: float) -> bytes:
        data, size = bytearray(), HEADER
        while len(data) < size:
            self._wait(self._from_child, select.POLLIN, function, deadline, timeout)
            try:
                part = os.read(self._from_child, min(size - len(data), 1 << 20))
            except BlockingIOError:
                continue
            if not part:
                raise self._died(function)
            data += part
            if size == HEADER and len(data) == HEADER:
                size += int.from_bytes(data, "big")
                if size > HEADER + RESULT_LIMIT:
                    self._kill()
                    raise WorkerError(f"worker {self.name} answered {size} bytes to {function}; at most {RESULT_LIMIT} fit")
        return bytes(data[HEADER:])

    def _wait(self, fd: int, event: int, function: str, deadline: float, timeout: float) -> None:
        """Until `fd` is ready. Looks now and then at the log's size, the clock and the process (a forked child may hold the pipe)."""
        poll = select.poll()
        poll.register(fd, event)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                where = self._hanging_line() if function != "start" else ""
                log = self.log()
                self._kill()
                raise WorkerTimeout(f"worker {self.name} did not finish {function} within {timeout:g} s", where=where, log=log)
            if poll.poll(max(1, int(min(left, _POLL) * 1000))):
                return
            self._trim_log()
            if self._ended() and not poll.poll(0):
                raise self._died(function)

    def _hanging_line(self) -> str:
        """`file:line` of user code where the process is now, as its own fault handler says; "" when it says nothing."""
        assert self._process is not None
        before = self.log()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._process.pid, STACK_SIGNAL)
        patience = time.monotonic() + 1
        while self.log() == before and time.monotonic() < patience:
            time.sleep(0.02)
        time.sleep(0.05)  # the rest of the stack
        return stack_line(self.log())

    def _trim_log(self) -> None:
        if self._log is None:
            return
        descriptor = self._log.fileno()
        if os.fstat(descriptor).st_size > LOG_LIMIT:
            self._earlier = self.log().encode()
            os.ftruncate(descriptor, 0)

    def _ended(self) -> bool:
        """Whether the process has ended, without reaping it: its process group id stays ours until then."""
        assert self._process is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _died(self, function: str) -> WorkerDied:
        patience = time.monotonic() + 2
        while not self._ended() and time.monotonic() < patience:  # the pipe closes a moment before the process is gone
            time.sleep(0.005)
        ended, log = self._ended(), self.log()
        status = self._kill()
        if not ended:
            how = "closed its descriptors"
        elif status < 0:
            how = f"was killed by {_signal_name(-status)}"
        else:
            how = f"exited with status {status}"
        if function == "start":
            last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
            return WorkerDied(f"worker {self.name} could not start: {last or how}", where=self.python, log=log)
        return WorkerDied(f"worker {self.name} {how} in {function}", where=stack_line(log) if status < 0 else "", log=log)

    def _raised(self, failure: Failure) -> LeadlineError:
        kind = getattr(errors, failure.error, None) if failure.error else None
        if isinstance(kind, type) and issubclass(kind, LeadlineError):
            if kind is WorkerRaised:
                return WorkerRaised(failure.kind, failure.message, frame=failure.where, expected=True, remedy=failure.remedy)
            return kind(failure.message, where=failure.where, remedy=failure.remedy)
        return WorkerRaised(failure.kind, failure.message, frame=failure.where, log=self.log())

    def _kill(self) -> int:
        """SIGKILL to the whole group; returns the status the leader ended with."""
        process, self._process = self._process, None
        status = 0
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        self._close_pipes()
        return status

    def _close_pipes(self) -> None:
        for fd in (self._to_child, self._from_child):
            if fd >= 0:
                os.close(fd)
        self._to_child = self._from_child = -1


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
