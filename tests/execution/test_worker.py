import os
import sys
import threading
import time
from pathlib import Path

import pytest

from leadline.errors import InternalError, KernelError, WorkerDied, WorkerRaised, WorkerTimeout
from leadline.execution.worker import LOG_LIMIT, Worker

sys.path.insert(0, str(Path(__file__).parent))
from worker_functions import Job

ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parent)}
PREFIX = "worker_functions:"


@pytest.fixture
def worker():
    with Worker("test", environment=ENVIRONMENT) as made:
        yield made


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    end = time.monotonic() + 3
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_answers_in_the_same_process(worker):
    assert worker.pid is None
    assert worker.call(PREFIX + "echo", Job(text="abc", number=4), Job) == Job(text="cba", number=5)
    first = worker.call(PREFIX + "pid", Job(), int)
    assert first == worker.call(PREFIX + "pid", Job(), int) == worker.pid != os.getpid()


def test_infinite_loop_is_killed_and_the_next_call_works(worker):
    worker.call(PREFIX + "echo", Job(), Job)
    before = worker.pid
    with pytest.raises(WorkerTimeout, match=r"worker_functions\.py:\d+: worker test did not finish worker_functions:loop within 0\.3 s$"):
        worker.call(PREFIX + "loop", Job(), int, timeout=0.3)
    assert gone(before)
    assert worker.call(PREFIX + "echo", Job(text="x"), Job).text == "x"
    assert worker.pid != before


def test_children_of_user_code_die_with_the_group(worker, tmp_path):
    worker.call(PREFIX + "echo", Job(), Job)
    with pytest.raises(WorkerTimeout):
        worker.call(PREFIX + "start_child_and_hang", Job(text=str(tmp_path / "pid")), int, timeout=1)
    assert gone(int((tmp_path / "pid").read_text()))


def test_endless_output_stays_bounded(worker):
    worker.call(PREFIX + "echo", Job(), Job)
    with pytest.raises(WorkerTimeout) as caught:
        worker.call(PREFIX + "flood", Job(), int, timeout=0.8)
    assert "a long line of output" in caught.value.log
    assert len(caught.value.log) <= 8000
    assert os.fstat(worker._log.fileno()).st_size < 1 << 30
    assert LOG_LIMIT < 1 << 24


def test_segfault(worker):
    message = r"worker_functions\.py:\d+: worker test was killed by SIGSEGV in worker_functions:segfault$"
    with pytest.raises(WorkerDied, match=message) as caught:
        worker.call(PREFIX + "segfault", Job(), int)
    assert "Segmentation fault" in caught.value.log
    assert worker.call(PREFIX + "echo", Job(text="x"), Job).text == "x"


def test_sys_exit_is_an_exception_and_leaves_the_process_alive(worker):
    with pytest.raises(WorkerRaised) as caught:
        worker.call(PREFIX + "leave", Job(number=3), int)
    assert caught.value.kind == "SystemExit"
    assert caught.value.message == "3"
    assert worker.call(PREFIX + "echo", Job(text="x"), Job).text == "x"


def test_immediate_exit(worker):
    with pytest.raises(WorkerDied, match=r"^worker test exited with status 5 in worker_functions:leave_at_once$"):
        worker.call(PREFIX + "leave_at_once", Job(number=5), int)


def test_our_errors_arrive_as_themselves(worker):
    with pytest.raises(KernelError) as caught:
        worker.call(PREFIX + "refuse", Job(), int)
    assert (caught.value.what, caught.value.where, caught.value.remedy) == ("no kernel here", "k.py:3", "add one")


def test_other_exceptions_name_the_line_of_user_code(worker, tmp_path):
    file = tmp_path / "user.py"
    file.write_text("import json\n\n\ndef f():\n    json.loads('{')\n\n\nf()\n")
    with pytest.raises(WorkerRaised) as caught:
        worker.call(PREFIX + "run_user_file", Job(text=str(file)), int)
    assert caught.value.kind == "JSONDecodeError"
    assert caught.value.frame == f"{file}:5"
    assert "Traceback" in caught.value.log
    assert "\n" not in str(caught.value)


def test_huge_result(worker):
    with pytest.raises(WorkerRaised, match=r"^ResultTooLarge: the result of worker_functions:huge has \d+ bytes"):
        worker.call(PREFIX + "huge", Job(), bytes)
    assert worker.call(PREFIX + "echo", Job(text="x"), Job).text == "x"


def test_user_code_cannot_reach_the_protocol(worker):
    assert worker.call(PREFIX + "close_stdout", Job(), str) == "still here"
    assert worker.call(PREFIX + "fork_and_return", Job(number=2), int) == 2
    assert worker.call(PREFIX + "echo", Job(text="x"), Job).text == "x"


def test_threads_left_behind_do_not_keep_the_process(worker):
    assert worker.call(PREFIX + "start_thread", Job(), str) == "started"
    assert "a thread was started" in worker.log()
    pid = worker.pid
    worker.close()
    assert gone(pid)
    assert worker.pid is None


def test_death_is_noticed_although_a_fork_holds_the_pipe(worker):
    with pytest.raises(WorkerDied, match="exited with status 9"):
        worker.call(PREFIX + "fork_and_die", Job(), int, timeout=20)


def test_death_between_calls_is_repaired(worker):
    os.kill(worker.call(PREFIX + "pid", Job(), int), 9)
    time.sleep(0.1)
    assert worker.call(PREFIX + "echo", Job(text="x"), Job).text == "x"


def test_outlives_the_thread_that_made_the_first_call(worker):
    pids = []
    thread = threading.Thread(target=lambda: pids.append(worker.call(PREFIX + "pid", Job(), int)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert worker.call(PREFIX + "pid", Job(), int) == pids[0]


def test_environment_is_scrubbed(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/tmp/cache")
    with Worker("test", environment=ENVIRONMENT | {"EXTRA": "yes"}) as worker:
        seen = worker.call(PREFIX + "environment", Job(), dict[str, str])
    assert "SOME_API_KEY" not in seen
    assert "TRITON_INTERPRET" not in seen
    assert seen["TRITON_CACHE_DIR"] == "/tmp/cache"
    assert seen["EXTRA"] == "yes"
    assert "PATH" in seen


def test_memory_limit():
    with Worker("test", environment=ENVIRONMENT, memory_bytes=1 << 30) as worker:
        assert worker.call(PREFIX + "allocate", Job(number=1 << 20), int) == 1 << 20
        with pytest.raises(WorkerRaised) as caught:
            worker.call(PREFIX + "allocate", Job(number=4 << 30), int)
    assert caught.value.kind == "MemoryError"


def test_cannot_start(tmp_path):
    with Worker("test", python=str(tmp_path / "none")) as worker, pytest.raises(WorkerDied, match="worker test could not start"):
        worker.call(PREFIX + "echo", Job(), Job)
    with Worker("test", environment={"PYTHONHOME": "/nonexistent"}) as worker:
        with pytest.raises(WorkerDied, match="worker test could not start") as caught:
            worker.call(PREFIX + "echo", Job(), Job)
        assert caught.value.log


def test_wrong_names_and_types_are_our_fault(worker):
    with pytest.raises(InternalError, match="worker function worker_functions:nothing does not exist"):
        worker.call(PREFIX + "nothing", Job(), int)
    with pytest.raises(InternalError, match="answered something else"):
        worker.call(PREFIX + "echo", Job(), int)
