"""How often a program updates: the horizon of a learning-rate schedule is counted in updates, not in rollouts."""

import pytest

from steptrace.ir.counts import updates_of
from steptrace.lang.reference import resolve
from steptrace.passes import run_pipeline


@pytest.mark.parametrize(
    ("program", "steps", "updates"),
    [
        ("grpo", 10, 10),
        ("grpo_stream", 10, 10),
        ("grpo_epochs{epochs=1, mini_batches=2}", 10, 20),
        ("grpo_epochs{epochs=2, mini_batches=3}", 1, 6),
        ("grpo", 0, 0),
    ],
)
def test_updates_are_counted_with_their_loops(program: str, steps: int, updates: int):
    assert updates_of(resolve(program), steps) == updates


@pytest.mark.parametrize("pipeline", ["pipelined-boundary", "fuse-update", "defer-update", "take-ahead,fuse-update"])
def test_a_schedule_updates_as_often_as_its_source(pipeline: str):
    result = run_pipeline(resolve("grpo{staleness=1}"), pipeline)
    assert any(remark.kind == "applied" for remark in result.remarks)
    assert updates_of(result.schedule.program, 7) == 7
