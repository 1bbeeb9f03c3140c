"""The main job under the schedule that a search finds by a cost file: the same figures as the program as written."""

import pytest
from job_cases import job

from steptrace.run.job import run_job
from steptrace_tools.with_costs import with_costs

pytest.importorskip("reasoning_gym")

COSTS = """\
[ops.fwd_bwd]
issue = "1 s"
work = "10 s"
[ops.dispatch]
work = "20 s"
[ops.other]
issue = "0 s"
[cell]
micro_batches = 2
"""
PROGRAM = "grpo{prompts=4, samples=4, save_every=1, staleness=1}"


@pytest.mark.slow
def test_a_job_under_a_schedule_that_was_found_makes_what_it_makes_as_written(tmp_path):
    path = tmp_path / "costs.toml"
    path.write_text(COSTS)
    pipeline = with_costs("autoschedule{tries=25}", str(path))
    assert str(path) in pipeline
    plain = run_job(job(tmp_path / "plain", steps=2, program=PROGRAM))
    found = run_job(job(tmp_path / "found", steps=2, program=PROGRAM, pipeline=pipeline))
    for name in ("params_digest", "trained_groups_digest", "accuracy_after", "reward_last"):
        assert found[name] == plain[name], name
    assert (found["steps"], found["pipeline"]) == (2, pipeline)
