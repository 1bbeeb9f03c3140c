"""No lane is left behind and none waits in vain: threads that are not to be had, lost wake-ups, calls that hang."""

from __future__ import annotations

import logging
import threading

import pytest
from lane_parts import HashRollout, StagingTrainer, lane_bind, made_by, no_lane_is_left, wait_until

import steptrace
from steptrace.diag.running import StalledRunError
from steptrace.ir import ops_of
from steptrace.lang.reference import resolve
from steptrace.run import executor as executor_module
from steptrace.run.progress import WHOLE, Progress

PROGRAM = "grpo{prompts=4, samples=3, staleness=1, save_every=1}"
OP = next(iter(ops_of(resolve(PROGRAM).body)))


@pytest.mark.parametrize("place", [0, 1])
def test_a_lane_that_gets_no_thread_ends_those_that_have_one(monkeypatch, place):
    real, asked = threading.Thread.start, []

    def start(thread):
        if thread.name.startswith("steptrace-"):
            asked.append(thread.name)
            if len(asked) == place + 1:
                raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        steptrace.run(PROGRAM, lane_bind(StagingTrainer()), steps=4, pipeline="async-everything", stall_s=60.0)
    assert no_lane_is_left()
    monkeypatch.undo()
    assert len(asked) == place + 1
    made_by(PROGRAM, lane_bind(StagingTrainer()), steps=2, pipeline="async-everything")


class Handled(threading.Condition):
    """A condition between whose look and wait an interrupt is handled on the waiting thread itself."""

    handler = None

    def wait(self, timeout=None):
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()
        return super().wait(timeout)


def waited(handler: bool) -> bool:
    """Whether a lane comes back from its wait though nobody is there to wake it."""
    progress = Progress(["a"], 0, 3600.0)
    progress._changed = condition = Handled()
    condition.handler = (lambda: progress.stop(KeyboardInterrupt())) if handler else None
    thread = threading.Thread(target=lambda: progress.wait("a", (0, WHOLE), 0, OP, "a test"), daemon=True)
    thread.start()
    thread.join(10.0 if handler else 2.5)
    back = not thread.is_alive()
    progress.stop(KeyboardInterrupt())
    thread.join(10.0)
    return back


def test_an_interrupt_between_the_look_and_the_wait_is_seen():
    assert waited(handler=True)


def test_control_without_one_the_lane_waits_on():
    assert not waited(handler=False)


def test_a_call_that_hangs_is_told_of_while_it_hangs(caplog):
    hang, told = threading.Event(), []

    class Hanging(HashRollout):
        """Hangs until the log tells of it."""

        def generate(self, *args, **kwargs):
            if len(self.asked) == 2:
                wait_until(lambda: bool(caplog.records))
                told.extend(record.getMessage() for record in caplog.records)
                hang.set()
            return super().generate(*args, **kwargs)

    with caplog.at_level(logging.ERROR, "steptrace"), pytest.raises(StalledRunError):
        steptrace.run(PROGRAM, lane_bind(rollout=Hanging()), steps=4, pipeline="pipelined-boundary", stall_s=0.3)
    assert hang.is_set()
    assert "of step 2 has waited for 0.3 s on lane host; lane host: " in told[0]
    assert no_lane_is_left()


class Stuck:
    """A lane's thread that is interrupted while it is waited for, and ends behind so many interrupts."""

    name = "steptrace-packer"

    def __init__(self, interrupts: int) -> None:
        self.left = interrupts

    def is_alive(self) -> bool:
        return self.left >= 0

    def join(self) -> None:
        self.left -= 1
        if self.left >= 0:
            raise KeyboardInterrupt


def test_one_interrupt_more_leaves_a_call_that_never_returns():
    progress = Progress((), 0, 1.0)
    with pytest.raises(KeyboardInterrupt) as info:
        executor_module._joined([Stuck(99)], progress)
    assert "left behind, in a call that has not returned: steptrace-packer" in info.value.__notes__
    assert progress.failure is not None


def test_control_the_one_before_is_waited_out(caplog):
    thread = Stuck(1)
    with caplog.at_level(logging.WARNING, "steptrace"):
        executor_module._joined([thread], Progress((), 0, 1.0))
    assert not thread.is_alive()
    assert "waiting for steptrace-packer to end a call" in caplog.text
