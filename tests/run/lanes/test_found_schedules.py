"""Schedules that a search found, on threads: what is trained is what the program trains."""

from __future__ import annotations

import pytest
from lane_parts import Delays, HashTrainer, StagingTrainer, made_by, no_lane_is_left, slowed
from test_random_pipelines import STEPS, base, bound, source

from steptrace.cost import parse_costs
from steptrace.motion import Schedule
from steptrace.passes.search import Limits, search

COSTS = """\
[ops.fwd_bwd]
issue = "1 s"
work = "10 s"
[ops.update]
work = "4 s"
[ops.get_metrics]
issue = "{metrics}"
[ops.log]
issue = "1 s"
[ops.sync_weights]
work = "6 s"
[ops.dispatch]
work = "20 s"
[ops.other]
issue = "{other}"
"""


@pytest.mark.parametrize(
    ("program", "metrics", "other"),
    [
        ("grpo", "0 s", "0 s"),
        pytest.param("grpo_stream", "1 s", "0 s", marks=pytest.mark.slow),
        pytest.param("reinforce_pp", "1 s", "100 ms", marks=pytest.mark.slow),
    ],
)
def test_what_was_found_trains_what_the_program_trains(program: str, metrics: str, other: str):
    costs = parse_costs(COSTS.format(metrics=metrics, other=other))
    written = source(program, 1)
    found = search(Schedule.of(written), costs.durations(), micro_batches=2, limits=Limits(tries=60, patience=20))
    assert found is not None
    assert found.pipeline
    for number, trainer in enumerate((HashTrainer(), StagingTrainer())):
        parts = slowed(bound(trainer), Delays(number, most_ms=2.0))
        made = made_by(found.schedule.program, parts, steps=STEPS, against=written, stall_s=30.0)
        assert made == base(program, 1)
        assert no_lane_is_left()
