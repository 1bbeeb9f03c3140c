"""Workers that die, stop or lose their connection: found at once or by their heart, and no call is executed twice."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from worker_parts import Box, Locked

from steptrace.diag.workers import WorkerClosedError, WorkerLostError, WorkerTimeoutError
from steptrace.workers import Worker, remote

FOREVER = 3600.0
"""A call that outlasts any test: what ends it is the thing under test."""


@pytest.fixture
def box():
    worker = Worker.start(remote(Box), name="trainer")
    yield worker
    worker.kill()


@pytest.fixture(scope="module")
def lasting():
    """A worker that survives its tests."""
    worker = Worker.start(remote(Box), name="lasting")
    yield worker
    worker.close()


def test_a_worker_killed_in_a_call_is_told_with_its_name_its_call_and_its_number(box):
    box.call("add", 1)
    pending = box.send("nap", FOREVER)
    waiting = box.send("add", 5)
    os.kill(box.pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError) as caught:
        pending.result(timeout=60)
    error = caught.value
    assert (error.worker, error.method, error.request) == ("trainer", "nap", 2)
    assert f"worker `trainer` (process {box.pid}) was ended by signal 9 (SIGKILL)" in error.message
    with pytest.raises(WorkerLostError) as caught:
        waiting.result(timeout=60)
    assert (caught.value.method, caught.value.notes[0].text) == ("add", "it was executing `nap` (request 2)")
    with pytest.raises(WorkerLostError, match="`add` cannot be called"):
        box.call("add", 1)
    assert not box.alive


def test_a_worker_that_ends_itself_in_a_call_is_told(box):
    with pytest.raises(WorkerLostError, match="SIGSEGV"):
        box.call("die", signal.SIGSEGV)


def test_a_worker_that_ends_is_told_though_what_it_has_forked_holds_the_connection():
    worker = Worker.start(remote(Box), name="forking", heartbeat=5.0)
    try:
        with pytest.raises(WorkerLostError, match="SIGKILL"):
            worker.call("die_behind_a_fork")
        assert gone(worker.pid)
    finally:
        worker.close()


def gone(group: int) -> bool:
    """Whether all of a group of processes ends; one that has ended may be left for whoever took the orphan over."""
    end = time.monotonic() + 60  # what fails here stays for ever
    while time.monotonic() < end:
        if not any(state != "Z" and int(of) == group for state, _, of in map(_stat, Path("/proc").glob("[0-9]*"))):
            return True
        time.sleep(0.01)
    return False


def _stat(process: Path) -> list[str]:
    """State, parent and group of a process."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return ["Z", "0", "0"]


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_what_a_part_has_forked_ends_with_its_worker(ending: str):
    worker = Worker.start(remote(Box), name="forking")
    forked = worker.call("fork")
    os.kill(forked, 0)  # it is there
    getattr(worker, ending)()
    assert gone(worker.pid)


def test_control_a_worker_that_lives_is_not_lost(box):
    pending = box.send("nap", 0.01)
    assert pending.result(timeout=60) == 0.01
    assert box.alive


def test_a_stopped_worker_is_found_by_its_heart():
    worker = Worker.start(remote(Box), name="trainer", heartbeat=0.5)
    pending = worker.send("nap", FOREVER)
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(WorkerLostError, match=r"gave no sign of life for 0.5 s and was killed: `nap` \(request 1\)"):
        pending.result(timeout=60)
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)
    worker.close()


def test_a_worker_that_computes_with_the_interpreters_lock_held_is_not_lost():
    worker = Worker.start(remote(Locked), heartbeat=1.0)
    ticks = []
    tick = worker._link._tick
    worker._link._channel._tick = lambda: (ticks.append(1), tick())
    assert worker.call("compute", 2.0) == "done"
    assert len(ticks) > 5  # its heart did stand still for longer than is taken for death
    worker.close()


def test_control_without_a_look_at_what_it_computed_it_would_be_lost(monkeypatch):
    monkeypatch.setattr("steptrace.workers.starting.seconds_computed", lambda pid: None)
    worker = Worker.start(remote(Locked), heartbeat=0.3)
    with pytest.raises(WorkerLostError):
        worker.call("compute", 1.5)
    worker.close()


@pytest.mark.parametrize("fault", ["drop-request", "drop-reply"])
@pytest.mark.parametrize(("size", "lend"), [(1, False), (100_000, False), (100_000, True)])
def test_a_call_whose_message_is_lost_is_executed_once(lasting, fault: str, size: int, lend: bool):
    happened, total, executed = [], lasting.get("total"), lasting.calls_executed

    def faults(method: str, request: int) -> str | None:
        if method == "grow" and request % 2:
            happened.append(request)
            return fault
        return None

    lasting.faults = faults
    for count in range(1, 7):
        array = np.full(size, count, np.float64)
        pending = lasting.send("grow", array, lend=lend)
        grown, back = pending.result(timeout=60)
        pending.buffers.release()
        assert (grown, back.shape) == (total + count, (size,))
        assert np.array_equal(back, 2 * array)
    assert len(happened) == 3
    lasting.faults = None
    assert lasting.calls_executed == executed + 6


@pytest.mark.parametrize("fault", ["drop-request", "drop-reply"])
def test_calls_behind_a_lost_message_keep_their_order(lasting, fault: str):
    before, executed = lasting.get("log"), lasting.calls_executed
    asked: list[int] = []
    lasting.faults = lambda method, request: asked.append(request) or (fault if len(asked) == 3 else None)
    pendings = [lasting.send("append", index) for index in range(10)]
    assert [pending.result(timeout=60) - len(before) for pending in pendings] == list(range(1, 11))
    lasting.faults = None
    assert lasting.get("log") == [*before, *range(10)]
    assert lasting.calls_executed == executed + 10


def test_control_a_worker_that_forgets_what_it_has_seen_executes_twice():
    worker = Worker.start(remote(ForgetfulBox), name="trainer")
    worker.faults = lambda method, request: "drop-reply" if request == 2 else None
    worker.call("forget_requests")
    worker.call("add", 1)
    assert worker.get("total") == 2
    worker.close()


class ForgetfulBox(Box):
    def forget_requests(self) -> None:
        import gc

        from steptrace.workers.serve import _Server

        def again(server, frame):
            server.calls.put((frame, server._buffers(frame)))

        assert any(isinstance(found, _Server) for found in gc.get_objects())
        _Server._again = again


@pytest.mark.parametrize("part", [0, 1, 30, 60])
def test_a_message_that_is_interrupted_while_it_is_written_is_sent_again(lasting, monkeypatch, part: int):
    """An interrupt from the keyboard may come between two parts of a message."""
    before, original = lasting.get("log"), lasting._link._channel._sock

    class Interrupted:
        def sendall(self, data: bytes) -> None:
            original.sendall(data[:part])
            raise KeyboardInterrupt

        def __getattr__(self, name: str):
            return getattr(original, name)

    monkeypatch.setattr(lasting._link._channel, "_sock", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        lasting.call("append", "first")
    lasting.call("append", "second")
    assert lasting.get("log") == [*before, "first", "second"]


def test_an_answer_that_does_not_come_in_time_is_told_and_may_still_come(box):
    pending = box.send("nap", 0.3)
    with pytest.raises(WorkerTimeoutError, match=r"`nap`, request 1 was not answered within 0.01 s"):
        pending.result(timeout=0.01)
    assert pending.result(timeout=60) == 0.3
    box.deadline = 0.01
    with pytest.raises(WorkerTimeoutError):
        box.call("nap", 0.3)


def test_killing_a_worker_ends_the_wait_of_another_thread(box):
    caught = []

    def wait() -> None:
        try:
            box.call("nap", FOREVER)
        except WorkerClosedError as error:
            caught.append(error)

    pending = box.send("nap", 0.01)
    thread = threading.Thread(target=wait)
    thread.start()
    pending.result()
    while not box._link._open:
        pass
    box.kill()
    thread.join(60)
    assert "was closed: `nap` (request 2) has no answer" in caught[0].message


def test_a_closed_worker_finishes_what_it_was_sent_and_takes_no_more(box):
    pendings = [box.send("append", index) for index in range(20)]
    box.close()
    assert [pending.result() for pending in pendings] == list(range(1, 21))
    with pytest.raises(WorkerClosedError, match="`add` cannot be called"):
        box.call("add", 1)
    box.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_call_is_lost_or_executed_twice_among_many_threads_and_losses(lasting, seed: int):
    """One message in twenty-five is lost, over sizes, threads, and ways to send."""
    chance, lost = random.Random(seed), []
    total, executed = lasting.get("total"), lasting.calls_executed

    def faults(method: str, request: int) -> str | None:
        fault = chance.choice(["drop-request", "drop-reply"]) if chance.random() < 0.04 else None
        lost.extend([request] if fault else [])
        return fault

    def calls(number: int) -> bool:
        own, right = random.Random(seed * 10 + number), True
        for _ in range(150):
            size, value = own.choice([1, 100, 5000, 9000, 50_000, 200_000]), own.random()
            array = np.full(size, value)
            pending = lasting.send("grow", array, lend=own.random() < 0.4)
            array[:] = -1
            right &= np.array_equal(pending.result(timeout=60)[1], np.full(size, 2 * value))
            pending.buffers.release(timeout=60)
        return right

    lasting.faults = faults
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(calls, range(4)))
    lasting.faults = None
    assert len(lost) > 5
    assert (lasting.get("total") - total, lasting.calls_executed - executed) == (600, 600)
