"""No lane waits for what has come: a wake-up at any place of a wait ends it, and so does the end of the run."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from fakes import HashRollout
from interleavings import interleaved

from steptrace.diag.running import StalledRunError
from steptrace.ir.program import Op
from steptrace.lang.records import GroupId, MicroBatch
from steptrace.run import progress as progress_module
from steptrace.run.board import WeightBoard
from steptrace.run.data import queue as queue_module
from steptrace.run.data.queue import GroupQueue
from steptrace.run.digest import CallLog
from steptrace.run.emitted import Loop
from steptrace.run.emitted_lanes import Meeting, StoppedLaneError
from steptrace.run.progress import WHOLE, Progress

STALL_S = 3.0
OP = Op("fwd_bwd", "fwd_bwd")


@pytest.fixture(autouse=True)
def no_looks(monkeypatch):
    """A lane that waits does not look by itself, so a wake-up that is lost shows."""
    monkeypatch.setattr(progress_module, "_LOOK_S", 60.0)
    monkeypatch.setattr(queue_module, "_LOOK_S", 60.0)


def places(make, wanted) -> int:
    """In how many orders the two were run; each must find what is wanted."""
    count = 0
    for found in interleaved(make):
        count += 1
        assert found == wanted
    return count


def waiting(meet: Progress, end) -> tuple:
    told: list[bool] = []
    first = lambda: told.append(meet.wait("update", (3, WHOLE), 4, OP, "raw"))  # noqa: E731
    return first, end(meet), lambda: told


def test_a_lane_hears_of_a_place_that_is_passed_at_any_moment_of_its_wait():
    def make():
        return waiting(Progress(["update"], 0, STALL_S), lambda meet: lambda: meet.passed("update", (3, WHOLE)))

    def turned():
        first, second, found = make()
        return second, first, found

    assert places(make, [True]) > 50
    assert places(turned, [True]) > 50


def test_a_lane_hears_of_a_failure_at_any_moment_of_its_wait():
    def make():
        return waiting(Progress(["update"], 0, STALL_S), lambda meet: lambda: meet.fail(OSError(), 2, "host"))

    assert places(make, [False]) > 50


def test_a_lane_of_an_emitted_loop_hears_of_a_place_that_is_passed():
    def make():
        meet, told = Meeting(STALL_S), []
        return lambda: told.append(meet.wait("a", (0, WHOLE))), lambda: meet.signal("a", (0, WHOLE)), lambda: told

    assert places(make, [None]) > 50


class EmptyError(Exception):
    """An error that is false."""

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("error", [OSError, EmptyError])
def test_a_lane_of_an_emitted_loop_hears_of_a_failure(error):
    def make():
        meet, told = Meeting(STALL_S), []

        def first():
            with pytest.raises(StoppedLaneError):
                meet.wait("a", (0, WHOLE))
            told.append("stopped")

        return first, lambda: meet.fail(error()), lambda: told

    assert places(make, ["stopped"]) > 50


def test_the_first_error_is_kept_whatever_its_truth():
    meet, first = Meeting(STALL_S), EmptyError()
    meet.fail(first)
    meet.fail(OSError())
    assert meet.failure is first


class Forgetful(Progress):
    """Looks whether a place is passed before it takes the lock, and not again."""

    def wait(self, id, point, step, who, why):
        if not self.is_past(id, point):
            with self._changed:
                self._changed.wait(0.2)
        return True


class Unlocked(Progress):
    """Notes a place without the lock, and wakes before it has."""

    def passed(self, id, point):
        with self._changed:
            self._changed.notify_all()
        self._passed[id] = point


@pytest.mark.parametrize(("bad", "turned"), [(Forgetful, False), (Unlocked, True)])
def test_control_a_lost_wake_up_is_found(bad, turned):
    slept = []

    def make():
        meet = bad(["update"], 0, 0.2)
        first, second, _ = waiting(meet, lambda meet: lambda: meet.passed("update", (3, WHOLE)))

        def timed():
            begin = time.monotonic()
            with suppress(StalledRunError):
                first()
            slept.append(time.monotonic() - begin > 0.15)

        return (*((second, timed) if turned else (timed, second)), lambda: None)

    assert any(any(slept) for _ in interleaved(make))


def test_who_samples_alone_hears_that_weights_are_published_and_the_other_way():
    for mine, other in (("sample", "publish"), ("publish", "sample")):

        def make(mine=mine, other=other):
            board, inside = WeightBoard(HashRollout()), []

            def sample():
                with board.sampling(alone=True):
                    inside.append(("in", "sample"))
                    inside.append(("out", "sample"))

            def publish():
                with board._publishing():
                    inside.append(("in", "publish"))
                    inside.append(("out", "publish"))

            does = {"sample": sample, "publish": publish}

            def alone():
                return len(inside) == 4 and all(
                    before[1] == behind[1] for before, behind in zip(inside[::2], inside[1::2], strict=True)
                )

            return does[mine], does[other], alone

        assert places(make, True) > 50


def test_an_interrupt_while_publishing_waits_leaves_nobody_waiting():
    class Broken(threading.Condition):
        def wait_for(self, predicate, timeout=None):
            raise KeyboardInterrupt

    board = WeightBoard(HashRollout())
    turn = board._turn
    board._turn = Broken()
    with pytest.raises(KeyboardInterrupt), board._publishing():
        pass
    board._turn = turn
    entered = threading.Thread(target=lambda: board.sampling(alone=True).__enter__(), daemon=True)
    entered.start()
    entered.join(5.0)
    assert not entered.is_alive()


def test_who_waits_for_a_commit_hears_of_it():
    def make():
        queue, told = GroupQueue(capacity=2), []
        queue.expect(0, [GroupId("p", 0)])
        queue.drop(0, GroupId("p", 0), "lost")
        queue.take(0)
        return lambda: told.append(queue.await_commit(0, lambda: False)), lambda: queue.commit(0), lambda: told

    assert places(make, [True]) > 50


def test_a_call_that_is_noted_while_others_are_hashed_is_not_lost():
    micro_batch = MicroBatch(0, 0, {"tokens": np.zeros((1, 2), np.int32)}, ((),))

    def calls() -> CallLog:
        log = CallLog()
        log.record("fwd_bwd", micro_batch)
        return log

    whole = calls()
    whole.record("update")

    def noting():
        log = calls()
        return lambda: log.record("update"), log.settle, log.settle

    def hashing():
        log = calls()
        return log.settle, lambda: log.record("update"), log.settle

    assert places(noting, whole.settle()) > 10
    assert places(hashing, whole.settle()) > 50


class Interrupted(threading.Thread):
    """A thread whose joiner is interrupted the first time."""

    def join(self, timeout=None):
        if not vars(self).get("came"):
            self.came = True
            raise KeyboardInterrupt
        super().join(timeout)


def test_an_interrupt_while_an_emitted_loop_joins_its_lanes_stops_them():
    loop = object.__new__(Loop)
    loop._meeting = Meeting(5.0)
    ended = []

    def lane():
        try:
            loop._meeting.wait("never", (0, WHOLE))
        except StoppedLaneError:
            ended.append("stopped")

    thread = Interrupted(target=lane, daemon=True)
    thread.start()
    loop._join(thread)
    assert ended == ["stopped"]
    assert isinstance(loop._meeting.failure, KeyboardInterrupt)
