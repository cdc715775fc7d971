"""Functions that the worker tests call by name: what user code may do to its process."""

import ctypes
import os
import subprocess
import sys
import threading
import time

from leadline.errors import KernelError
from leadline.model import Record


class Job(Record):
    text: str = ""
    number: int = 0


def echo(job: Job) -> Job:
    return Job(text=job.text[::-1], number=job.number + 1)


def pid(job: Job) -> int:
    return os.getpid()


def environment(job: Job) -> dict[str, str]:
    return dict(os.environ)


def loop(job: Job) -> int:
    while True:
        pass


def start_child_and_hang(job: Job) -> int:
    child = subprocess.Popen(["sleep", "300"])
    with open(job.text, "w") as out:
        out.write(str(child.pid))
    time.sleep(300)
    return 0


def flood(job: Job) -> int:
    while True:
        os.write(1, b"a long line of output\n" * 1000)


def segfault(job: Job) -> int:
    ctypes.string_at(0)
    return 0


def leave(job: Job) -> int:
    sys.exit(job.number)


def leave_at_once(job: Job) -> int:
    os._exit(job.number)


def refuse(job: Job) -> int:
    raise KernelError("no kernel here", where="k.py:3", remedy="add one")


def huge(job: Job) -> bytes:
    return b"\0" * (65 << 20)


def close_stdout(job: Job) -> str:
    os.close(1)
    return "still here"


def start_thread(job: Job) -> str:
    threading.Thread(target=time.sleep, args=(300,), daemon=False).start()
    print("a thread was started")
    return "started"


def fork_and_return(job: Job) -> int:
    if os.fork() == 0:
        sys.exit(7)
    return job.number


def fork_and_die(job: Job) -> int:
    if os.fork() == 0:
        time.sleep(300)
    os._exit(9)


def allocate(job: Job) -> int:
    return len(bytearray(job.number))


def run_user_file(job: Job) -> int:
    namespace: dict[str, object] = {}
    with open(job.text) as source:
        exec(compile(source.read(), job.text, "exec"), namespace)
    return 0
