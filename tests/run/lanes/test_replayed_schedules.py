"""Schedules that settle training calls apart run on trainers that settle them by themselves, or drop nothing."""

from __future__ import annotations

import pytest
from lane_parts import HashTrainer, StagingTrainer, lane_bind, made_by, no_lane_is_left

from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.passes import run_pipeline

PROGRAM = "grpo{prompts=4, samples=3, staleness=1, save_every=2}"


@pytest.mark.parametrize("trainer", [HashTrainer, StagingTrainer])
@pytest.mark.parametrize("pipeline", ["replay", "pipelined-boundary-replayed"])
def test_the_same_parameters_calls_groups_and_records(pipeline: str, trainer: type[HashTrainer]):
    plain = made_by(PROGRAM, lane_bind(), steps=4)
    made = made_by(PROGRAM, lane_bind(trainer=trainer()), steps=4, pipeline=pipeline)
    assert made == plain
    assert no_lane_is_left()


def test_control_another_seed_trains_something_else():
    assert made_by(PROGRAM, lane_bind(), steps=4, seed=1, pipeline="replay") != made_by(PROGRAM, lane_bind(), steps=4)


def test_a_lane_of_its_own_settles():
    schedule = run_pipeline(resolve(PROGRAM), "pipelined-boundary-replayed").schedule
    lanes = {lane.name for lane in lower(schedule.program, source=schedule.source).lanes}
    assert lanes == {"packer", "host", "trainer"}
