"""The main job with its trainer on eight devices."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "run" / "job"))
from job_cases import RECIPE, job

from steptrace.run.job import run_job

pytestmark = pytest.mark.slow
pytest.importorskip("reasoning_gym")


def test_the_job_runs_on_a_mesh_through_its_head_and_goes_on_without_both(tmp_path):
    options = {"program": "grpo{prompts=2, samples=4, save_every=1}", "recipe": replace(RECIPE, warmup_steps=1)}
    selected = {"mesh": "data=2,fsdp=2,context=2", "pipeline": "select-logps-head"}
    made = run_job(job(tmp_path / "a", steps=2, eval_size=4, **selected, **options))
    assert made["steps"] == 2
    assert made["pipeline"].startswith("select-logps-head{head=shard_map, bytes=")
    assert made["compiles"]["again"] == []
    gone_on = run_job(job(tmp_path / "a", resume=True, steps=3, eval_size=4, **options))
    assert (gone_on["first_step"], gone_on["steps"]) == (2, 3)
