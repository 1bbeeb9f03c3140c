"""The main job's step with and without a recorder."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from steptrace.lang.reference import resolve
from steptrace.run.job.config import JobConfig
from steptrace.run.job.job import built_parts
from steptrace.run.job.recipe import recipe_for
from steptrace.run.job.setup import load_setup
from steptrace.run.models.split import split_model
from steptrace.run.record import Recorder

from .overhead_loops import SEED, by_plan
from .overhead_run import JOB_TASK, Drive, Way, driven

PROGRAM = "grpo{staleness=1,save_every=1000000}"


def recorded_and_plain(steps: int, rounds: int) -> tuple[list[Way], float, float]:
    """Both ways; seconds of processor time a step of the watching threads; and of the process, without a recorder."""
    setup = load_setup(JOB_TASK, recipe_for(JOB_TASK), 1)
    config = JobConfig(program=PROGRAM, task=JOB_TASK)
    built = built_parts(setup, split_model(setup.model(SEED)), resolve(PROGRAM), config)
    watched: list[float] = []
    taken: list[float] = []

    def recorded(parts: dict[str, Any], steps: int) -> tuple[str, str]:
        recorder = Recorder()
        made = by_plan(parts, PROGRAM, steps, [recorder.around])
        recorder.recording()
        watched.append(recorder.watching_s / steps)
        return made

    def plain(parts: dict[str, Any], steps: int) -> tuple[str, str]:
        before = time.process_time()
        made = by_plan(parts, PROGRAM, steps)
        taken.append((time.process_time() - before) / steps)
        return made

    drives: list[Drive] = [recorded, plain]
    ways = driven(lambda: built, drives, steps, rounds)
    return ways, median(watched), median(taken[1:])
