"""A trainer with the verbs that a step needs, and those of a checkpoint, runs under every schedule."""

from __future__ import annotations

import pytest
from crashes import FileTracker, read_lines
from lane_parts import HashTrainer, StagingTrainer, lane_bind, made_by

import steptrace
from steptrace.passes import PIPELINES
from steptrace.run import manifest
from steptrace.run.store import checkpoints

STEPS = 5
REQUIRED = {"fwd_bwd", "update", "get_metrics", "weights", "save_checkpoint", "restore_checkpoint"}


class MinimalTrainer(HashTrainer):
    """Its metrics are those since they were last asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.since = 0.0

    def update(self) -> None:
        super().update()
        self.since += 1.0

    def get_metrics(self) -> dict[str, float]:
        made, self.since = {**super().get_metrics(), "updates": self.since}, 0.0
        return made


def step_that_saves(place: str):
    """The step of a job of one's own, with a checkpoint every second step."""

    @steptrace.program(name=f"saves_{place}", staleness=1)
    def own(step):
        def save(here: str) -> None:
            if here == place:
                with step.every(2):
                    step.save_checkpoint()

        step.dispatch(prompts=3, samples=2)
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
            step.fwd_bwd(mb)
        step.update()
        save("before_metrics")
        metrics = step.get_metrics()
        save("behind_metrics")
        step.sync_weights()
        step.commit()
        step.log(metrics)
        save("behind_log")

    return own.trace()


def logged_by(program, trainer, out, pipeline, steps=STEPS, resume=False):
    log = out / "log.jsonl"
    bound = lane_bind(trainer, tracker=FileTracker(log))
    made = made_by(program, bound, steps=steps, pipeline=pipeline, out=out, resume=resume)
    return made.params, made.calls, made.groups, read_lines(log)


def test_the_trainer_has_no_verb_more_than_it_needs():
    assert {
        name for name in dir(MinimalTrainer) if callable(getattr(MinimalTrainer, name)) and name[0] != "_"
    } == REQUIRED


def trains_the_same(tmp_path, pipeline, place, trainer):
    program = step_that_saves(place)
    plain = logged_by(program, trainer(), tmp_path / "plain", "")
    assert logged_by(program, trainer(), tmp_path / "late", pipeline) == plain
    assert [record["step"] for _, record in plain[3]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("place", ["before_metrics", "behind_log"])
@pytest.mark.parametrize("pipeline", ["defer-metrics", "async-everything"])
def test_a_step_that_saves_runs_under_a_schedule(tmp_path, pipeline, place):
    trains_the_same(tmp_path, pipeline, place, MinimalTrainer)


def test_a_record_that_is_not_set_aside_yet_is_not_asked_for(tmp_path):
    trains_the_same(tmp_path, "defer-metrics", "before_metrics", StagingTrainer)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["before_metrics", "behind_metrics", "behind_log"])
@pytest.mark.parametrize("pipeline", [*PIPELINES, "async-checkpoint", "fuse-update,defer-metrics"])
def test_a_step_that_saves_runs_under_every_named_pipeline(tmp_path, pipeline, place):
    trains_the_same(tmp_path, pipeline, place, MinimalTrainer)


@pytest.mark.parametrize(
    ("pipeline", "place"), [("defer-metrics", "before_metrics"), ("async-everything", "behind_log")]
)
def test_and_goes_on_from_its_checkpoint(tmp_path, pipeline, place):
    program = step_that_saves(place)
    whole = logged_by(program, MinimalTrainer(), tmp_path / "whole", "")
    logged_by(program, MinimalTrainer(), tmp_path / "late", pipeline, steps=3)
    for end in checkpoints(tmp_path / "late"):
        if end.name.endswith("-end"):
            end.rename(end.with_name(f"gone-{end.name}"))
    left = logged_by(program, MinimalTrainer(), tmp_path / "late", pipeline, resume=True)
    assert left[:3] == whole[:3]
    assert [record["step"] for _, record in left[3]] == [0, 1, 2, 3, 4]


def test_control_metrics_that_are_fetched_too_early_are_seen(tmp_path, monkeypatch):
    program = step_that_saves("before_metrics")
    plain = logged_by(program, MinimalTrainer(), tmp_path / "plain", "")
    monkeypatch.setattr(manifest, "fetch_early", lambda run, step: run.parts.trainer.get_metrics())
    assert logged_by(program, MinimalTrainer(), tmp_path / "late", "defer-metrics")[3] != plain[3]
