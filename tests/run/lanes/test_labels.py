"""A record carries the step and the version it belongs to, however late it is fetched and logged."""

from __future__ import annotations

import pytest
from lane_parts import StagingTrainer, lane_bind

import steptrace

PROGRAM = 'grpo{prompts=4, samples=3, staleness=1, saves="may_fail_late", save_every=100}'
LATE = ("defer-metrics,async-weight-sync", "async-everything", "pipelined-boundary")
STEPS = 6


class Counting(StagingTrainer):
    """Its metric is the number of updates that it has made, which is another in each step."""

    def get_metrics(self):
        super().get_metrics()
        return {"updates": float(self.applied)}

    def start_metrics(self):
        assert not self.held
        return float(self.applied)

    def fetch_metrics(self, aside):
        return {"updates": aside}


class Late(Counting):
    """Gives, whatever was set aside, what holds when it is fetched."""

    def fetch_metrics(self, aside):
        return {"updates": float(self.applied)}


class Slow:
    """A tracker; what it is told under which step."""

    def __init__(self):
        self.told = []

    def log(self, step, metrics):
        self.told.append((step, metrics["step"], metrics["updates"], metrics["rollout_version"]))

    def close(self):
        pass


def told(trainer, pipeline):
    tracker = Slow()
    steptrace.run(
        PROGRAM, lane_bind(trainer, tracker=tracker), steps=STEPS, pipeline=pipeline, stall_s=60.0, stage_latch_s=0.0
    )
    return tracker.told


RIGHT = [(step, float(step), step + 1.0, float(max(step - 1, 0))) for step in range(STEPS)]


@pytest.mark.parametrize("pipeline", ["", *LATE])
def test_step_metric_and_version_of_a_record_belong_together(pipeline):
    assert told(Counting(), pipeline) == RIGHT


def test_control_metrics_that_are_read_when_they_are_fetched_are_those_of_a_neighbour():
    """Fetched behind the first call of the next step, whose update has not come: here by hand, behind the update."""
    trainer = Late()
    asides = []
    for _ in range(3):
        trainer.update()
        asides.append(trainer.start_metrics())
    assert [trainer.fetch_metrics(aside)["updates"] for aside in asides] == [3.0, 3.0, 3.0]
    right = Counting()
    right.applied = 3
    assert [right.fetch_metrics(aside)["updates"] for aside in asides] == [1.0, 2.0, 3.0]
