"""What fails on one lane while others run, wait or fail too: whose error it is, and what is left to go on with."""

from __future__ import annotations

import functools
import shutil
import threading

import pytest
from lane_parts import HashRollout, StagingTrainer, lane_bind, made_by, no_lane_is_left, wait_until
from test_lane_failures import Told, failing

import steptrace
from steptrace.diag.running import LostRoundError
from steptrace.ir import Program
from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.lower.plan import calls_of
from steptrace.passes import PIPELINES, run_pipeline
from steptrace.run import executor as executor_module
from steptrace.run.sync_rounds import TRIES

PROGRAM = "grpo{prompts=4, samples=3, staleness=1, save_every=1}"
LATE = 'grpo{prompts=4, samples=3, staleness=1, saves="may_fail_late", save_every=2}'
"""The same, where a checkpoint may be written behind the sync of its step."""

STREAMED = ("stream-micro-batches,pipelined-boundary", "stream-micro-batches,pipeline-micro-batches")
STEPS = 5
NOT_ALWAYS = ("fwd_bwd_staged", "attempt_staged", "poll_packed")
"""Kinds that a step may have no use for, by how fast things are."""


@functools.cache
def schedule(pipeline: str, program: str = PROGRAM) -> Program:
    return run_pipeline(resolve(program), pipeline).schedule.program


@functools.cache
def lanes(pipeline: str) -> dict[str, set[str]]:
    """The lanes that issue ops of each kind."""
    found: dict[str, set[str]] = {}
    for lane in lower(schedule(pipeline), source=resolve(PROGRAM)).lanes:
        for call in calls_of(lane.nodes):
            found.setdefault(call.kind.name, set()).add(lane.name)
    return found


def run(pipeline: str, trainer=None, steps: int = STEPS, program: str = PROGRAM, **other):
    options = {name: other.pop(name) for name in ("out", "resume") if name in other}
    bound = lane_bind(trainer or StagingTrainer(), **other)
    given = schedule(pipeline, program)
    return steptrace.run(given, bound, steps=steps, against=program, stall_s=60.0, **options)


def kinds_of(pipelines):
    return [(pipeline, kind) for pipeline in pipelines for kind in sorted(lanes(pipeline))]


def check_ends(monkeypatch, pipeline: str, kind: str, step: int) -> None:
    """Run with an op of a kind failing in a step: the error is that one, and says where it came from."""
    error, told = ValueError("broken part"), Told()
    failing(monkeypatch, kind, step, error)
    raised = None
    try:
        run(pipeline, callbacks=told, tracker=told)
    except ValueError as caught:
        raised = caught
    assert no_lane_is_left()
    if raised is None:
        assert kind in NOT_ALWAYS
        return
    assert raised is error
    place, _, lane = raised.__notes__[0].partition(f" of step {step}, lane ")
    assert place.startswith("in `")
    assert lane.partition(" ")[0] in lanes(pipeline)[kind]
    assert len(raised.__notes__) == 1
    assert [*range(step)] == told.ended[:step] == told.logged[:step]
    assert max(told.ended, default=0) <= step


@pytest.mark.parametrize(("pipeline", "kind"), kinds_of(["async-everything"]))
def test_each_kind_of_op_fails_in_the_first_step(monkeypatch, pipeline, kind):
    check_ends(monkeypatch, pipeline, kind, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("pipeline", "kind"), kinds_of([*PIPELINES, *STREAMED]))
def test_each_kind_of_op_fails_in_the_last_step(monkeypatch, pipeline, kind):
    check_ends(monkeypatch, pipeline, kind, STEPS - 1)


@pytest.mark.parametrize("pipeline", ["pipelined-boundary", "async-everything"])
def test_what_stands_before_step_0_fails(monkeypatch, pipeline):
    error, told = ValueError("broken part"), Told()
    failing(monkeypatch, "sync_weights", -1, error)
    with pytest.raises(ValueError, match="broken part") as info:
        run(pipeline, callbacks=told)
    assert info.value is error
    assert "in `initial_sync` of step -1, lane host" in info.value.__notes__[0]
    assert told.begun == []
    assert no_lane_is_left()


def failing_both(monkeypatch, first: tuple[str, int, BaseException], second: tuple[str, int, BaseException]) -> None:
    """Let two ops fail on two lanes: the second one fails behind the first."""
    failed = threading.Event()
    for (kind, step, error), leads in ((first, True), (second, False)):
        for name in ("VERBS", "PART_VERBS"):
            verbs = getattr(executor_module, name)
            if kind not in verbs:
                continue

            def verb(run, at, *args, real=verbs[kind], step=step, error=error, leads=leads):
                if at.step != step:
                    return real(run, at, *args)
                if leads:
                    failed.set()
                else:
                    assert failed.wait(20.0)
                    wait_until(lambda: run.stopped(at.step + 1))
                raise error

            monkeypatch.setattr(executor_module, name, {**verbs, kind: verb})


def test_of_two_failures_the_first_is_the_runs_and_names_the_second(monkeypatch):
    first, second = ValueError("the packer's"), OSError("the host's")
    failing_both(monkeypatch, ("pack", 3, first), ("apply_deferred_update", 2, second))
    told = Told()
    with pytest.raises(ValueError, match="the packer's") as info:
        run("pipelined-boundary", callbacks=told)
    assert info.value is first
    assert "in `pack` of step 3, lane packer" in first.__notes__[0]
    assert first.__notes__[1] == "afterwards, on lane host: OSError: the host's"
    assert told.ended == [0, 1]  # step 2 would have ended, had it not failed too
    assert no_lane_is_left()


def test_control_with_the_first_alone_the_step_before_it_ends(monkeypatch):
    failing(monkeypatch, "pack", 3, ValueError("the packer's"))
    told = Told()
    with pytest.raises(ValueError, match="the packer's") as info:
        run("pipelined-boundary", callbacks=told)
    assert len(info.value.__notes__) == 1
    assert told.ended == [0, 1, 2]


def test_a_lane_that_waits_for_one_that_fails_comes_back(monkeypatch):
    """The host waits for step 2's first micro-batch while the reference, on the packer's lane, fails on it."""
    error, waits = ValueError("broken reference"), threading.Event()
    trainer = StagingTrainer()

    def verb(run, at, *args, real=executor_module.VERBS["ref_logps"]):
        if at.step == 2:
            wait_until(lambda: trainer.applied == 2)  # step 1 is over but for its bookkeeping: the host comes to wait
            waits.wait(0.2)
            raise error
        return real(run, at, *args)

    monkeypatch.setattr(executor_module, "VERBS", {**executor_module.VERBS, "ref_logps": verb})
    told = Told()
    with pytest.raises(ValueError, match="broken reference") as info:
        run("pipelined-boundary", trainer, callbacks=told)
    assert info.value is error
    assert told.ended == [0, 1]
    assert no_lane_is_left()


class Refusing(HashRollout):
    """Refuses the weights of a version as often as a round is tried, and once more."""

    def __init__(self, version: int | None) -> None:
        super().__init__()
        self.refused, self.left = version, TRIES + 1

    def apply_weights(self, weights, version):
        if version == self.refused and self.left:
            self.left -= 1
            self.serving = dict(self.held)
            raise ConnectionError("the engine is gone")
        super().apply_weights(weights, version)


@pytest.mark.parametrize("pipeline", ["async-everything", "async-weight-sync"])
def test_a_round_that_fails_leaves_the_last_good_version_serving_and_clears_itself(pipeline, tmp_path):
    rollout = Refusing(3)
    with pytest.raises(LostRoundError) as info:
        run(pipeline, rollout=rollout, out=tmp_path)
    assert "the engine is gone" in str(info.value.__cause__)
    assert "in `dispatch` of step 4" in "".join(note.text for note in info.value.notes)
    assert 2 in rollout.serving
    assert 3 not in rollout.serving
    assert rollout.held == {}  # the run is over: nothing of it is held
    wanted = made_by(PROGRAM, lane_bind(), steps=STEPS)
    again = run(pipeline, rollout=rollout)  # the same engine, from the beginning
    assert again.params_digest == wanted.params
    resumed = run(pipeline, rollout=rollout, out=tmp_path, resume=True)
    assert (resumed.params_digest, resumed.calls_digest) == (wanted.params, wanted.calls)


def test_control_without_a_refusal_the_version_is_served():
    rollout = Refusing(None)
    run("async-everything", rollout=rollout)
    assert rollout.given == [*range(STEPS + 1)]


def test_a_transfer_that_fails_publishes_nothing_until_a_dispatch_needs_it(monkeypatch, tmp_path):
    rollout = HashRollout()
    failing(monkeypatch, "transfer_weights", 2, ConnectionError("cut"))
    result = run("async-everything", rollout=rollout, out=tmp_path)
    assert "`transfer_weights` got lost 3 times (ConnectionError: cut)" in " ".join(result.remarks)
    assert sorted(rollout.given) == [*range(STEPS + 1)]
    assert result.params_digest == made_by(PROGRAM, lane_bind(), steps=STEPS).params


class WritesLate(StagingTrainer):
    """Writes the snapshot behind its second update once the next one was made: a copy, or what it holds by then."""

    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.copies, self.overlapped = copies, 0

    def write_checkpoint(self, snapshot, directory):
        if snapshot[1] == 2:
            wait_until(lambda: self.applied > 2)
            self.overlapped += self.applied > 2
            snapshot = snapshot if self.copies else (self.params["w"], 2)
        super().write_checkpoint(snapshot, directory)


def resumed_behind(tmp_path, trainer) -> str:
    """What is trained behind the first checkpoint, which was written while the next step trained."""
    run("async-everything", trainer, steps=3, program=LATE, out=tmp_path)
    assert trainer.overlapped == 1
    for place in sorted((tmp_path / "checkpoints").glob("0*"))[1:]:
        shutil.rmtree(place)
    result = run("async-everything", program=LATE, out=tmp_path, resume=True)
    assert result.first_step == 2
    return result.params_digest


def test_a_snapshot_that_is_written_during_the_next_step_is_of_its_own(tmp_path):
    wanted = made_by(LATE, lane_bind(), steps=STEPS)
    assert resumed_behind(tmp_path, WritesLate(copies=True)) == wanted.params


def test_control_a_snapshot_that_is_no_copy_is_found_when_the_run_is_resumed(tmp_path):
    wanted = made_by(LATE, lane_bind(), steps=STEPS)
    assert resumed_behind(tmp_path, WritesLate(copies=False)) != wanted.params
