"""Logging and callbacks on a lane of their own: a step trains on while the one before it is told of."""

from __future__ import annotations

import functools
import threading

import pytest
from lane_parts import Delays, StagingTrainer, lane_bind, made_by, no_lane_is_left, slowed, wait_until
from test_lane_failures import Told

import steptrace
from steptrace.ir import Program
from steptrace.lang.reference import resolve
from steptrace.motion import move_to_lane
from steptrace.passes import run_pipeline

PROGRAM = "grpo{prompts=4, samples=3, staleness=1, save_every=2}"
STEPS = 5
TOLD = ("fetch_metrics", "log", "on_step_end")


@functools.cache
def schedule(pipeline: str, told: tuple[str, ...] = TOLD) -> Program:
    """The schedule of a pipeline, with what tells of a step on lane `io`."""
    made = run_pipeline(resolve(PROGRAM), pipeline).schedule
    return move_to_lane(made, told, lane="io").schedule.program


def run(pipeline: str, trainer=None, steps: int = STEPS, **other):
    options = {name: other.pop(name) for name in ("out", "resume") if name in other}
    bound = lane_bind(trainer or StagingTrainer(), **other)
    return made_by(schedule(pipeline), bound, steps=steps, against=PROGRAM, **options)


class Threads(Told):
    """Keeps the threads that it is told on."""

    def __init__(self):
        super().__init__()
        self.threads = set()

    def on_step_end(self, step, metrics):
        self.threads.add(threading.current_thread().name)
        super().on_step_end(step, metrics)

    def log(self, step, metrics):
        self.threads.add(threading.current_thread().name)
        super().log(step, metrics)


@pytest.mark.parametrize("pipeline", ["defer-metrics", "pipelined-boundary", "async-everything"])
def test_it_trains_and_tells_the_same(pipeline, tmp_path):
    told, wanted = Threads(), made_by(PROGRAM, lane_bind(), steps=STEPS)
    assert run(pipeline, callbacks=told, tracker=told, out=tmp_path) == wanted
    assert told.threads == {"steptrace-io"}
    assert told.ended == told.logged == [*range(STEPS)]
    assert no_lane_is_left()


@pytest.mark.parametrize("seed", range(4))
def test_checkpoints_hold_the_metrics_whoever_fetches_them_first(seed, tmp_path):
    wanted = made_by(PROGRAM, lane_bind(), steps=STEPS)
    trainer = StagingTrainer()
    bound = slowed(lane_bind(trainer), Delays(seed))
    made_by(schedule("pipelined-boundary"), bound, steps=4, against=PROGRAM, out=tmp_path)
    resumed = run("pipelined-boundary", out=tmp_path, resume=True)
    assert (resumed.params, resumed.calls, resumed.groups) == (wanted.params, wanted.calls, wanted.groups)


class Slow(Told):
    """Is told of the first step until the second one trains."""

    def __init__(self, trainer, most_s):
        super().__init__()
        self.trainer, self.most_s, self.seen = trainer, most_s, []

    def on_step_end(self, step, metrics):
        if step == 0:
            wait_until(lambda: any(call.startswith("fwd_bwd 1.") for call in self.trainer.calls), self.most_s)
            self.seen.append(any(call.startswith("fwd_bwd 1.") for call in self.trainer.calls))
        super().on_step_end(step, metrics)


def test_the_next_step_trains_while_a_callback_takes_its_time():
    trainer = StagingTrainer()
    told = Slow(trainer, 20.0)
    given = schedule("defer-metrics", ("on_step_begin", *TOLD))  # a begin comes behind the end before it
    made_by(given, lane_bind(trainer, callbacks=told), steps=3, against=PROGRAM)
    assert told.seen == [True]


def test_control_on_the_lane_of_the_training_it_does_not():
    trainer = StagingTrainer()
    told = Slow(trainer, 0.5)
    steptrace.run(PROGRAM, lane_bind(trainer, callbacks=told), steps=3, pipeline="defer-metrics")
    assert told.seen == [False]


def test_a_callback_that_fails_there_ends_the_run():
    class Fails(Told):
        def on_step_end(self, step, metrics):
            super().on_step_end(step, metrics)
            if step == 2:
                raise ValueError("full")

    told = Fails()
    with pytest.raises(ValueError, match="full") as info:
        run("pipelined-boundary", callbacks=told)
    assert "in `on_step_end` of step 2, lane io" in info.value.__notes__[0]
    assert told.ended == [0, 1, 2]
    assert no_lane_is_left()
