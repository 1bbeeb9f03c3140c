"""The main job with its parts in processes of their own: the same figures."""

import pytest
from job_cases import job

from steptrace.run.job import run_job

pytest.importorskip("reasoning_gym")

FIGURES = (
    "params_digest",
    "calls_digest",
    "trained_groups_digest",
    "accuracy_before",
    "accuracy_after",
    "reward_first",
    "reward_last",
)


@pytest.mark.slow
def test_a_job_on_processes_makes_what_it_makes_in_one(tmp_path):
    inline = run_job(job(tmp_path / "inline", steps=2))
    made = run_job(job(tmp_path / "process", steps=2, target="process", pipeline="pipelined-boundary"))
    assert {name: made[name] for name in FIGURES} == {name: inline[name] for name in FIGURES}
    assert (made["target"], made["steps"]) == ("process", 2)
    assert set(made["compiles"]["at_end"]) == set(inline["compiles"]["at_end"])
