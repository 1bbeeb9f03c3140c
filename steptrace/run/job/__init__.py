"""The main job: a small model, a warm-up, then the program on a task, with figures before and after."""

from steptrace.run.job.config import JobConfig
from steptrace.run.job.job import run_job
from steptrace.run.job.recipe import Recipe

__all__ = ["JobConfig", "Recipe", "run_job"]
