"""What remains of a worker: no process, thread, socket, file descriptor or segment, however it ended."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from worker_parts import Box, failing

from steptrace.diag.workers import WorkerLostError
from steptrace.workers import Worker, remote
from steptrace.workers.shared import NAME

HERE = str(Path(__file__).parent)
SIZE = 100_000


def segments(pid: int | str = "self") -> int:
    """How many segments a process maps."""
    return Path(f"/proc/{pid}/maps").read_text().count(NAME)


def children() -> set[str]:
    """Processes that this one started and that were not waited for."""
    return {
        pid
        for task in os.listdir("/proc/self/task")
        for pid in Path(f"/proc/self/task/{task}/children").read_text().split()
    }


def traces() -> dict[str, object]:
    """All that a worker could leave."""
    return {
        "processes": children(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "segments": segments(),
    }


def use(worker: Worker) -> None:
    worker.call("echo", np.ones(SIZE))
    worker.send("keep", np.ones(SIZE), lend=True).result()


def closed(worker: Worker) -> None:
    worker.close()


def killed(worker: Worker) -> None:
    worker.send("nap", 3600)
    worker.kill()


def hung(worker: Worker) -> None:
    worker.send("nap", 3600)
    worker.close(timeout=0.1)


def died(worker: Worker) -> None:
    with pytest.raises(WorkerLostError):
        worker.call("die")
    worker.close()


def reconnected(worker: Worker) -> None:
    worker.faults = lambda method, request: "drop-reply"
    worker.call("echo", np.ones(SIZE))
    worker.close()


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """What libraries open once and keep is no trace of a worker, nor what earlier tests left to the collector."""
    gc.collect()
    worker = Worker.start(remote(Box))
    use(worker)
    worker.close()


@pytest.mark.parametrize("end", [closed, killed, hung, died, reconnected])
def test_nothing_remains_of_a_worker(end):
    before = traces()
    worker = Worker.start(remote(Box), name="trainer")
    use(worker)
    end(worker)
    assert traces() == before
    assert not os.path.exists(worker._door.folder)


def test_control_a_worker_that_is_not_closed_is_seen():
    before = traces()
    worker = Worker.start(remote(Box), name="trainer")
    use(worker)
    during = traces()
    assert os.path.exists(worker._door.folder)
    worker.close()
    assert during["processes"] - before["processes"] == {str(worker.pid)}
    assert set(during["threads"]) - set(before["threads"]) == {"steptrace-trainer", "steptrace-door"}
    assert during["segments"] - before["segments"] == 3  # a copy there, one back, and one that is lent
    assert during["descriptors"] > before["descriptors"]


def test_nothing_remains_of_a_worker_that_was_not_waited_for():
    before = traces()
    Worker.spawn(remote(Box)).close()
    assert traces() == before


def test_nothing_remains_of_a_worker_that_could_not_be_built():
    before = traces()
    with pytest.raises(LookupError):
        Worker.start(remote(failing, "no such model"))
    assert traces() == before


def test_nothing_remains_of_a_worker_whose_process_could_not_be_started(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    before = traces()
    with pytest.raises(FileNotFoundError):
        Worker.spawn(remote(Box))
    assert traces() == before
    assert not os.listdir(tmp_path)


def test_an_entry_of_the_search_path_that_python_leaves_out_is_left_out(monkeypatch):
    monkeypatch.setattr(sys, "path", [Path("/"), *sys.path])
    worker = Worker.start(remote(Box))
    worker.close()


DRIVER = """
import sys, time
import numpy as np
from steptrace.workers import Worker, remote
from worker_parts import Box

workers = [Worker.start(remote(Box), name=name) for name in ("a", "b")]
for worker in workers:
    worker.call("echo", np.ones({size}))
    worker.send("keep", np.ones({size}), lend=True).result()
forked = workers[0].call("fork")
busy = workers[1].send("nap", 3600)
print(*[worker.pid for worker in workers], forked, *[worker._door.folder for worker in workers], flush=True)
{end}
"""


def driver(end: str) -> tuple[subprocess.Popen[str], list[int], list[str]]:
    """A driver of two workers, one of them in a call; their processes, one that was forked, and their folders."""
    path = os.pathsep.join([HERE, *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(size=SIZE, end=end)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    words = process.stdout.readline().split()
    return process, [int(word) for word in words[:3]], words[3:]


def gone(pid: int) -> bool:
    """Whether a process has ended. It may be left to be waited for by whoever took the orphan over."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def wait_until(condition) -> None:
    end = time.monotonic() + 60  # what fails here hangs for ever
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_of_a_driver_that_is_killed_end_by_themselves(number: int):
    process, pids, folders = driver("time.sleep(3600)")
    for pid in pids[:2]:
        assert segments(pid) == 3
        assert "/dev/shm/" not in Path(f"/proc/{pid}/maps").read_text()  # no segment has a name that could stay
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    wait_until(lambda: all(gone(pid) for pid in pids))
    wait_until(lambda: not any(os.path.exists(folder) for folder in folders))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError"])
def test_a_driver_that_ends_without_a_close_takes_its_workers_along(end: str):
    process, pids, folders = driver(end)
    process.wait(60)
    process.stdout.close()
    wait_until(lambda: all(gone(pid) for pid in pids))
    assert not any(os.path.exists(folder) for folder in folders)


def test_control_workers_of_a_driver_that_lives_live():
    process, pids, folders = driver("time.sleep(3600)")
    assert not any(gone(pid) for pid in pids)
    assert all(os.path.exists(folder) for folder in folders)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: all(gone(pid) for pid in pids))


def test_an_interrupt_from_the_keyboard_does_not_reach_a_worker():
    worker = Worker.start(remote(Box))
    assert os.getpgid(worker.pid) != os.getpgid(0)
    os.kill(worker.pid, signal.SIGINT)
    assert worker.call("add", 1) == 1
    worker.close()
