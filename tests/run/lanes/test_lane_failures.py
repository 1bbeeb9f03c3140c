"""How a run of several lanes ends when something fails: the original error, every lane over, earlier steps whole."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace

import pytest
from lane_parts import HashRollout, PatientTrainer, StagingTrainer, lane_bind, made_by, no_lane_is_left

import steptrace
from steptrace.diag.running import StalledRunError
from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.passes import run_pipeline
from steptrace.run import executor as executor_module

PROGRAM = "grpo{prompts=4, samples=3, staleness=1, save_every=1}"
PIPELINES = ("pipelined-boundary", "pipelined-boundary-unstaged", "async-everything")


def kinds(pipeline: str) -> list[str]:
    """The kinds of ops of a schedule that run where the first micro-batch of each step is shipped ahead."""
    schedule = run_pipeline(resolve(PROGRAM), pipeline).schedule
    plan = lower(schedule.program, source=schedule.source)
    names = {call.kind.name for lane in plan.lanes for node in lane.nodes for call in _calls(node)}
    return sorted(names - {"poll_packed"})


def _calls(node):
    from steptrace.lower.plan import calls_of

    return calls_of((node,))


class Told:
    """A callback and tracker that keeps what it is told."""

    def __init__(self):
        self.begun, self.ended, self.logged = [], [], []

    def on_step_begin(self, step):
        self.begun.append(step)

    def on_step_end(self, step, metrics):
        self.ended.append(step)

    def log(self, step, metrics):
        self.logged.append(step)

    def close(self):
        """Nothing is open."""


def failing(monkeypatch, kind: str, step: int, error: BaseException) -> None:
    """Let an op of one kind raise in a step."""
    for name in ("VERBS", "PART_VERBS"):
        verbs = getattr(executor_module, name)
        if kind in verbs:
            real = verbs[kind]

            def verb(run, at, *args, real=real):
                if at.step == step:
                    raise error
                return real(run, at, *args)

            monkeypatch.setattr(executor_module, name, {**verbs, kind: verb})


@pytest.mark.slow
@pytest.mark.parametrize(("pipeline", "kind"), [(pipeline, kind) for pipeline in PIPELINES for kind in kinds(pipeline)])
def test_the_first_failure_ends_the_run_with_its_own_error(monkeypatch, pipeline, kind, tmp_path):
    error = ValueError("broken part")
    failing(monkeypatch, kind, 3, error)
    told = Told()
    trainer = PatientTrainer(6)
    trainer.patience_s = 0.5
    bound = lane_bind(trainer, callbacks=told, tracker=told)
    with pytest.raises(ValueError, match="broken part") as info:
        steptrace.run(PROGRAM, bound, steps=6, pipeline=pipeline, stall_s=30.0, out=tmp_path)
    assert info.value is error
    assert "of step 3, lane " in error.__notes__[0]
    assert no_lane_is_left()
    assert told.logged[:3] == [0, 1, 2]
    assert told.ended[:3] == [0, 1, 2]
    assert max(told.ended) <= 3
    assert max(told.begun) <= 4


def test_what_fails_ahead_lets_the_step_before_it_end(monkeypatch):
    """The packer fails on step 1 while step 0 trains: step 0 still updates, syncs, commits, logs and ends."""
    failing(monkeypatch, "pack", 1, OSError("no memory"))
    told, rollout = Told(), HashRollout()

    trainer = StagingTrainer()
    bound = lane_bind(trainer, rollout=rollout, callbacks=told, tracker=told)
    with pytest.raises(OSError, match="no memory"):
        steptrace.run(PROGRAM, bound, steps=6, pipeline="pipelined-boundary", stall_s=30.0)
    assert trainer.calls.count("update") == 1
    assert rollout.given == [0, 1]
    assert (told.logged, told.ended) == ([0], [0])
    assert told.begun[0] == 0
    assert max(told.begun) <= 1  # step 1 may have begun, as it would have in program order


def test_a_lane_that_hangs_is_named():
    hang = threading.Event()

    class Hanging(HashRollout):
        def generate(self, *args, **kwargs):
            if len(self.asked) == 2:
                hang.wait(10.0)
            return super().generate(*args, **kwargs)

    threading.Timer(2.0, hang.set).start()
    with pytest.raises(StalledRunError) as info:
        steptrace.run(PROGRAM, lane_bind(rollout=Hanging()), steps=4, pipeline="pipelined-boundary", stall_s=0.3)
    assert "of step 2 has waited for 0.3 s on lane host" in info.value.message
    assert any(
        "lane host" in note.text and "waits for `ref_logps.first` of step 2" in note.text for note in info.value.notes
    )
    assert no_lane_is_left()


@pytest.fixture
def interruptible():
    """SIGINT raises, also where the tests were started in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_stops_every_lane_behind_its_op(tmp_path, interruptible):
    class Interrupted(StagingTrainer):
        def update(self):
            if self.applied == 2:
                os.kill(os.getpid(), signal.SIGINT)
            super().update()

    trainer = Interrupted()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        steptrace.run(PROGRAM, lane_bind(trainer), steps=6, pipeline="pipelined-boundary", stall_s=30.0, out=tmp_path)
    assert trainer.applied == 3  # the op was carried out to its end
    assert signal.getsignal(signal.SIGINT) is before
    assert no_lane_is_left()
    resumed = made_by(PROGRAM, lane_bind(), steps=6, pipeline="pipelined-boundary", out=tmp_path, resume=True)
    assert resumed.params == made_by(PROGRAM, lane_bind(), steps=6).params


def test_an_interrupt_that_a_part_raises_comes_through():
    class Stops(HashRollout):
        def generate(self, *args, **kwargs):
            if len(self.asked) == 2:
                raise KeyboardInterrupt
            return super().generate(*args, **kwargs)

    with pytest.raises(KeyboardInterrupt):
        steptrace.run(PROGRAM, lane_bind(rollout=Stops()), steps=6, pipeline="pipelined-boundary", stall_s=30.0)
    assert no_lane_is_left()


def test_a_tracker_that_fails_between_steps_ends_the_run():
    class Phases(Told):
        def phases(self, step, seconds):
            if step == 1:
                raise RuntimeError("full")

    with pytest.raises(RuntimeError, match="full"):
        steptrace.run(PROGRAM, lane_bind(tracker=Phases()), steps=6, pipeline="async-everything", stall_s=30.0)
    assert no_lane_is_left()


def without(plan, after: str, before: str):
    """A plan that lacks one wait."""
    holds = {id: tuple(h for h in holds if (id, h.before) != (after, before)) for id, holds in plan.holds.items()}
    assert holds != plan.holds
    return replace(plan, holds=holds)


@pytest.mark.parametrize(("after", "before"), [("dispatch", "sync_weights"), ("fwd_bwd.first", "ref_logps.first")])
def test_control_a_wait_that_is_left_out_is_seen(monkeypatch, after, before):
    """Without one of its waits the schedule trains something else, or fails, once the part behind it is slow."""
    from steptrace.run import api

    real = api.lower

    class Slow(HashRollout):
        def apply_weights(self, weights, version):
            time.sleep(0.05 if after == "dispatch" else 0.0)
            super().apply_weights(weights, version)

        def generate(self, *args, **kwargs):
            time.sleep(0.0 if after == "dispatch" else 0.05)
            return super().generate(*args, **kwargs)

    wanted = made_by(PROGRAM, lane_bind(), steps=4)
    monkeypatch.setattr(api, "lower", lambda *args, **kwargs: without(real(*args, **kwargs), after, before))
    try:
        made = made_by(PROGRAM, lane_bind(rollout=Slow()), steps=4, pipeline="pipelined-boundary")
    except Exception:
        return
    assert made != wanted


def test_control_generating_with_whatever_is_newest_is_seen():
    class Newest(HashRollout):
        def generate(self, prompts, samples, *, version, key):
            time.sleep(0.03)
            return super().generate(prompts, samples, version=max(self.held), key=key)

    wanted = made_by(PROGRAM, lane_bind(), steps=5)
    made = made_by(PROGRAM, lane_bind(rollout=Newest()), steps=5, pipeline="pipelined-boundary")
    assert made.params != wanted.params
