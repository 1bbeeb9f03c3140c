"""The main job with its parts in processes of their own: the same figures, and a resume across targets."""

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
def test_a_job_on_processes_makes_what_it_makes_in_one_and_goes_on_in_one(tmp_path):
    whole = run_job(job(tmp_path / "whole", steps=3))
    out = tmp_path / "parts"
    first = run_job(job(out, steps=2, target="process", pipeline="pipelined-boundary"))
    assert (first["target"], first["steps"]) == ("process", 2)
    assert first["accuracy_before"] == whole["accuracy_before"]
    assert set(first["compiles"]["at_end"]) == set(whole["compiles"]["at_end"])
    made = run_job(job(out, steps=3, resume=True))
    assert {name: made[name] for name in FIGURES} == {name: whole[name] for name in FIGURES}
