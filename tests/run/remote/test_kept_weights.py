"""Copies of weights that stay in the trainer's process until they are fetched."""

from __future__ import annotations

import threading

import pytest

from steptrace.diag.remote import AfterFailureError
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

    loc = None

    def __init__(self) -> None:
        self.asked: list[str] = []

    def send(self, method: str, *args: object, lend: bool = False, **given: object) -> Answered:
        self.asked.append(method)
        return Answered({"w": 1.0})


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


class Failed(Answered):
    def result(self, timeout: float | None = None) -> object:
        raise self.value


class FailingProcess(Process):
    """Fails in a training call; its own calls are answered all the same, the part's are refused."""

    def send(self, method: str, *args: object, lend: bool = False, **given: object) -> Answered:
        super().send(method, *args)
        if method.startswith("hosted_"):
            return Answered({"w": 1.0})
        return Failed(ZeroDivisionError("at first") if method == "fwd_bwd" else AfterFailureError("behind it"))


@pytest.mark.parametrize("between", [("hosted_take",), ("hosted_take", "hosted_take"), ()])
def test_a_failure_that_nobody_waits_for_is_not_lost_behind_what_is_answered_all_the_same(between: tuple[str, ...]):
    line = Line(FailingProcess())
    line.send("fwd_bwd")
    for method in between:
        line.ask(method)
    with pytest.raises(ZeroDivisionError, match="at first"):
        line.call("fetch_metrics")
    with pytest.raises(ZeroDivisionError, match="at first"):
        line.send("update")


def test_control_a_call_that_went_well_is_forgotten():
    line = Line(Process())
    line.send("fwd_bwd")
    line.ask("hosted_take")
    assert not line._open


def test_a_fetch_comes_though_no_other_call_does():
    process = Process()
    _, weights = kept(process)
    fetching = threading.Thread(target=weights.fetched)
    fetching.start()
    fetching.join()
    assert process.asked == ["weights", "hosted_take"]
