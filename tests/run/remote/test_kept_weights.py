"""Weights that stay in the trainer's process until the rollout is asked something."""

from __future__ import annotations

import threading

import pytest

from steptrace.run.board import WeightBoard
from steptrace.run.remote.line import Line
from steptrace.run.remote.part import KeptWeights


class Answered:
    def __init__(self, value: object) -> None:
        self.value = value

    def result(self, timeout: float | None = None) -> object:
        return self.value

    def done(self) -> bool:
        return True


class Process:
    """Stands for a worker: answers at once, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def send(self, method: str, *args: object, lend: bool = False, **given: object) -> Answered:
        self.asked.append(method)
        return Answered({"w": 1.0})


class Rollout:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def apply_weights(self, weights: object, version: int) -> None:
        assert weights == {"w": 1.0}
        self.calls.append(("apply", version))

    def drop_weights(self, version: int) -> None:
        self.calls.append(("drop", version))


def kept(process: Process) -> tuple[Line, KeptWeights]:
    line = Line(process)
    line.ask("weights")
    return line, KeptWeights(line, 1)


def test_another_lane_fetches_behind_the_next_call_of_the_one_that_made_the_copy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("steptrace.run.remote.line._COURTESY_S", 30.0)
    monkeypatch.setattr("time.sleep", lambda seconds: asked.wait(10.0))
    process, asked = Process(), threading.Event()
    line, weights = kept(process)
    fetching = threading.Thread(target=weights.fetched)
    fetching.start()
    line.ask("fwd_bwd_staged")
    asked.set()
    fetching.join()
    assert process.asked == ["weights", "fwd_bwd_staged", "hosted_take"]


def test_a_fetch_comes_though_no_other_call_does():
    process = Process()
    _, weights = kept(process)
    fetching = threading.Thread(target=weights.fetched)
    fetching.start()
    fetching.join()
    assert process.asked == ["weights", "hosted_take"]


def test_kept_weights_are_brought_in_order_in_front_of_what_the_rollout_is_asked():
    process, rollout = Process(), Rollout()
    board = WeightBoard(rollout)
    board.publish(-1, kept(process)[1], 0)
    board.publish(0, kept(process)[1], 1)
    assert (rollout.calls, board.newest()) == ([], 0)
    with board.sampling(alone=False):
        assert rollout.calls == [("apply", 0), ("apply", 1)]
    board.clear()
    assert rollout.calls[2:] == [("drop", 0), ("drop", 1)]


def test_what_was_never_brought_is_neither_brought_nor_dropped_at_the_end():
    process, rollout = Process(), Rollout()
    board = WeightBoard(rollout)
    board.publish(-1, kept(process)[1], 0)
    board.clear()
    assert (rollout.calls, process.asked) == ([], ["weights"])


def test_control_weights_of_this_process_are_brought_at_once():
    rollout = Rollout()
    WeightBoard(rollout).publish(-1, {"w": 1.0}, 0)
    assert rollout.calls == [("apply", 0)]


def test_whoever_brings_them_gets_the_failure():
    process, rollout = Process(), Rollout()
    board = WeightBoard(rollout)
    board.publish(0, kept(process)[1], 3)
    rollout.apply_weights = lambda weights, version: 1 / 0
    with pytest.raises(ZeroDivisionError) as caught, board.sampling(alone=False):
        pass
    assert any("whose weights were brought to the rollout" in note for note in caught.value.__notes__)
