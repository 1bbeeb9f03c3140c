"""Runs that timelines are tested on."""

from __future__ import annotations

from functools import lru_cache

from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.passes import run_pipeline
from steptrace.simulate import Cost, Durations, simulate
from steptrace.timeline import Recording, recording_of

COSTS = {
    "fwd_bwd": Cost(1.0, 10.0),
    "update": Cost(0.0, 4.0),
    "pack": Cost(2.0),
    "log": Cost(3.0),
}


@lru_cache
def planned(pipeline: str = "") -> Recording:
    """Five steps of three micro-batches."""
    source = resolve("grpo{staleness=1}")
    schedule = run_pipeline(source, pipeline).schedule
    plan = lower(schedule.program, source=schedule.source)
    run = simulate(plan, Durations(COSTS), micro_batches=3, steps=5)
    return recording_of(run, plan, pipeline=pipeline, note="costs of a test")


def unexplained(recording: Recording) -> list[str]:
    """Events that were held up and have no arrow from what held them up."""
    explained = {arrow.target for arrow in recording.arrows if arrow.kind == "lane"}
    return [str(event) for at, event in enumerate(recording.events) if event.held_s > 0 and at not in explained]
