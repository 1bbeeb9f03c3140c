"""A checkpoint does not depend on the schedule it was saved under: any other one goes on from it."""

from __future__ import annotations

import functools
import json
import shutil

import pytest
from crashes import FileTracker, Mean, read_lines
from lane_parts import Delays, HashTrainer, StagingTrainer, lane_bind, made_by, slowed

import steptrace
from steptrace.run.store import checkpoints

PROGRAM = '{name}{{prompts=3, samples=2, staleness=1, saves="may_fail_late", save_every={every}}}'
STEPS = 6
PIPELINES = ("", "pipelined-boundary", "async-everything", "pipelined-boundary-unstaged,async-checkpoint")


class Stop(Exception):
    """Stands for the end of the process."""


class StopsIn:
    """A callback that ends the run at the end of a step."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step_end(self, step, metrics):
        if step == self.step:
            raise Stop


def left(name, out, *, pipeline, every=2, stop=None, trainer=None, delays=None):
    """Run until a stop, or to the end; gives what there is to compare."""
    log = out / "log.jsonl"
    mean = Mean()
    resume = out.exists() and bool(checkpoints(out))
    out.mkdir(exist_ok=True)
    if not resume:
        log.unlink(missing_ok=True)
    bound = lane_bind(trainer, callbacks=[mean, StopsIn(stop)], tracker=FileTracker(log))
    if delays is not None:
        bound = slowed(bound, delays)
    program = PROGRAM.format(name=name, every=every)
    try:
        made = made_by(program, bound, steps=STEPS, pipeline=pipeline, out=out, resume=resume)
    except Stop:
        return None
    trained = read_lines(out / "trained_groups.jsonl")
    return made.params, made.calls, made.groups, trained, read_lines(log), mean.value


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """By program: a run in program order that nothing stopped."""

    @functools.cache
    def made(name: str, every: int = 2):
        return left(name, tmp_path_factory.mktemp("whole") / "run", pipeline="", every=every)

    return made


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """By program, pipeline and step: the folder of a run that ended there; it is copied before a run goes on in it."""

    @functools.cache
    def made(name: str, pipeline: str, stop: int):
        out = tmp_path_factory.mktemp("stopped") / "run"
        assert left(name, out, pipeline=pipeline, stop=stop) is None
        return out

    return made


@pytest.mark.slow
@pytest.mark.parametrize("second", PIPELINES)
@pytest.mark.parametrize("first", PIPELINES)
@pytest.mark.parametrize(("name", "stops"), [("grpo", range(1, STEPS)), ("grpo_stream", (3,))])
def test_saved_under_one_and_resumed_under_another(tmp_path, whole, stopped, name, stops, first, second):
    for stop in stops:
        out = shutil.copytree(stopped(name, first, stop), tmp_path / f"{stop}")
        assert left(name, out, pipeline=second) == whole(name)


def test_saved_under_a_schedule_and_resumed_in_program_order_and_back(tmp_path, whole):
    for number, (first, second) in enumerate(((PIPELINES[1], ""), ("", PIPELINES[2]), PIPELINES[2:0:-1])):
        out = tmp_path / f"{number}"
        assert left("grpo", out, pipeline=first, stop=3) is None
        assert left("grpo", out, pipeline=second) == whole("grpo")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_whatever_the_timing(tmp_path, whole, seed):
    for stop in (1, 2, 4):
        out = tmp_path / f"{stop}"
        assert left("grpo", out, pipeline="async-everything", every=1, stop=stop, delays=Delays(seed)) is None
        assert left("grpo", out, pipeline="pipelined-boundary", every=1) == whole("grpo", 1)


def facts(out, pipeline, trainer):
    """What the newest checkpoint says, without the files' checksums and the flags of the loop's last round."""
    made_by(PROGRAM.format(name="grpo", every=2), lane_bind(trainer), steps=4, pipeline=pipeline, out=out)
    newest = json.loads((checkpoints(out)[-1] / "manifest.json").read_text())["facts"]
    del newest["files"], newest["values"]
    return newest


@pytest.mark.parametrize("trainer", [HashTrainer, StagingTrainer])
@pytest.mark.parametrize("pipeline", PIPELINES[1:])
def test_what_a_checkpoint_holds_is_what_the_program_would_have_saved(tmp_path, pipeline, trainer):
    (tmp_path / "base").mkdir()
    wanted = facts(tmp_path / "base", "", HashTrainer())
    assert facts(tmp_path / "made", pipeline, trainer()) == wanted


@steptrace.program(staleness=1, saves="may_fail_late")
def every_other(step):
    """Draws three prompts in every second step, and one in the others."""
    with step.every(2):
        step.dispatch(prompts=3, samples=2)
    with step.when(~step.every(2)):
        step.dispatch(prompts=1, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    step.save_checkpoint()
    step.sync_weights()
    step.commit()
    step.log(metrics)
    step.on_step_end(reads=["metrics"])


@pytest.mark.parametrize("pipeline", ["pipelined-boundary", "async-everything"])
def test_steps_that_draw_different_numbers_of_prompts(tmp_path, pipeline):
    wanted = made_by(every_other, lane_bind(), steps=6)
    assert made_by(every_other, lane_bind(), steps=6, pipeline=pipeline) == wanted
    with pytest.raises(Stop):
        made_by(every_other, lane_bind(callbacks=StopsIn(2)), steps=6, pipeline=pipeline, out=tmp_path)
    resumed = made_by(every_other, lane_bind(), steps=6, pipeline=pipeline, out=tmp_path, resume=True)
    assert (resumed.params, resumed.calls, resumed.groups) == (wanted.params, wanted.calls, wanted.groups)


def test_metrics_that_are_fetched_later_are_in_the_checkpoint(tmp_path):
    made_by(PROGRAM.format(name="grpo", every=2), lane_bind(), steps=4, pipeline="pipelined-boundary", out=tmp_path)
    saved = next(place for place in checkpoints(tmp_path) if not place.name.endswith("-end"))
    values = json.loads((saved / "manifest.json").read_text())["facts"]["values"]
    assert values["metrics"]["step"] == 3.0


def test_a_write_that_fails_ends_the_run_and_leaves_the_checkpoint_before(tmp_path):
    class Full(StagingTrainer):
        written = 0

        def write_checkpoint(self, snapshot, directory):
            self.written += 1
            if self.written == 2:
                raise OSError("disk full")
            super().write_checkpoint(snapshot, directory)

    program = PROGRAM.format(name="grpo", every=2)
    with pytest.raises(OSError, match="disk full"):
        steptrace.run(program, lane_bind(Full()), steps=6, pipeline="async-checkpoint", out=tmp_path, stall_s=30.0)
    assert [place.name for place in checkpoints(tmp_path)] == ["00000001"]


def test_control_a_checkpoint_of_another_step_is_another_one(tmp_path):
    wanted = facts(tmp_path / "four", "", HashTrainer())
    made_by(PROGRAM.format(name="grpo", every=2), lane_bind(), steps=5, out=tmp_path / "five")
    newest = json.loads((checkpoints(tmp_path / "five")[-1] / "manifest.json").read_text())["facts"]
    assert newest["data"] != wanted["data"]
