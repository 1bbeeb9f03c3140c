"""A step that packs groups as they arrive trains, bit for bit, what the step in bulk trains."""

from __future__ import annotations

import pytest
from lane_parts import Delays, StagingTrainer, lane_bind, made_by, no_lane_is_left, slowed

PROGRAM = "grpo{prompts=4, samples=3, staleness=1, save_every=2}"
STREAMED = (
    "stream-micro-batches",
    "stream-micro-batches,pipeline-micro-batches",
    "stream-micro-batches,pipelined-boundary",
)


@pytest.mark.parametrize("pipeline", STREAMED)
def test_the_same_parameters_calls_groups_and_records(pipeline: str) -> None:
    for steps in (0, 1, 4):
        wanted = made_by(PROGRAM, lane_bind(StagingTrainer()), steps=steps)
        assert made_by(PROGRAM, lane_bind(StagingTrainer()), steps=steps, pipeline=pipeline) == wanted
    assert no_lane_is_left()


def test_it_is_what_the_program_written_that_way_trains() -> None:
    by_hand = made_by(f"grpo_stream{PROGRAM.removeprefix('grpo')}", lane_bind(), steps=3)
    assert made_by(PROGRAM, lane_bind(), steps=3, pipeline=STREAMED[0]) == by_hand


def test_control_another_estimator_trains_something_else() -> None:
    other = made_by(f"rloo{PROGRAM.removeprefix('grpo')}", lane_bind(), steps=3, pipeline=STREAMED[0])
    assert made_by(PROGRAM, lane_bind(), steps=3, pipeline=STREAMED[0]) != other


@pytest.mark.parametrize("partial", ["train", "drop"])
def test_the_data_ends_where_it_ends_in_bulk(partial: str) -> None:
    text = f'grpo{{prompts=4, samples=2, staleness=1, partial="{partial}"}}'
    wanted = made_by(text, lane_bind(), epochs=1)
    assert made_by(text, lane_bind(), epochs=1, pipeline=STREAMED[0]) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pipeline", STREAMED)
def test_whatever_the_timing(pipeline: str, seed: int) -> None:
    bound = slowed(lane_bind(), Delays(seed))
    assert made_by(PROGRAM, bound, steps=4, pipeline=pipeline) == made_by(PROGRAM, lane_bind(), steps=4)
