"""A long run holds no more after its thousandth step than after its hundredth."""

from __future__ import annotations

import gc
import sys
from collections import deque

import pytest
from fakes import HashTrainer, parts

import steptrace
from steptrace.lang.records import Completion, Group, MicroBatch
from steptrace.programs.grpo import grpo
from steptrace.programs.grpo_stream import grpo_stream
from steptrace.run import drive
from steptrace.run import session as session_module
from steptrace.run.session import RECORDS_KEPT, Session
from steptrace.run.verbs import VERBS

FEW = 50


class Census:
    """A tracker that counts blocks of memory after some steps."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.counts: list[int] = []

    def log(self, step: int, metrics) -> None:
        if (step + 1) % self.every == 0:
            gc.collect()
            self.counts.append(sys.getallocatedblocks())

    def close(self) -> None:
        """Nothing."""


class Forgetful(HashTrainer):
    """The trainer, without its own list of calls."""

    def fwd_bwd(self, micro_batch):
        super().fwd_bwd(micro_batch)
        self.calls.clear()
        self.steps.clear()


def growth(program, steps: int, **bound) -> int:
    """Blocks of memory that the second half of a run adds, after a first half to settle in."""
    census = Census(steps // 4)
    made = parts(trainer=Forgetful(), tracker=census, **bound)
    rollout = made["rollout"]
    rollout.asked, rollout.given = deque(maxlen=1), deque(maxlen=1)
    steptrace.run(program, made, steps=steps)
    return census.counts[3] - census.counts[1]


@pytest.fixture
def few_records(monkeypatch):
    """Bounds that are reached early: of the records, and of the times that the medians are over."""
    monkeypatch.setattr(session_module, "RECORDS_KEPT", FEW)
    monkeypatch.setattr(drive, "_RECENT", FEW)


@pytest.mark.parametrize("program", [grpo, grpo_stream], ids=lambda program: program.name)
def test_live_objects_stay_flat(few_records, program):
    assert growth(program.trace(prompts=2, samples=2), 400) < 500


@pytest.mark.slow
def test_live_objects_stay_flat_over_ten_thousand_steps(few_records):
    assert growth(grpo.trace(prompts=2, samples=2, staleness=2), 10_000) < 500


def test_control_a_step_that_is_kept_grows(few_records, monkeypatch):
    """Something that holds each step's memory is seen by the census."""
    kept = []
    real = Session.end_step

    def keeps(self, step):
        kept.append(dict(self.memory.get(step, self).__dict__))
        real(self, step)

    monkeypatch.setattr(Session, "end_step", keeps)
    assert growth(grpo.trace(prompts=2, samples=2), 400) > 1000


def test_control_records_without_a_bound_grow(few_records, monkeypatch):
    monkeypatch.setattr(session_module, "RECORDS_KEPT", None)
    assert growth(grpo.trace(prompts=2, samples=2), 400) > 1000


def test_no_group_or_micro_batch_outlives_the_run():
    def held() -> dict[int, str]:
        kinds = Group | MicroBatch | Completion
        return {id(thing): type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, kinds)}

    gc.collect()
    before = held()  # those of other tests' parameters
    result = steptrace.run(grpo.trace(prompts=3, samples=2), parts(), steps=5)
    gc.collect()
    assert [name for thing, name in held().items() if thing not in before] == []
    assert len(result.records) == 5


def test_records_keep_the_last_steps_and_a_tracker_sees_all(few_records):
    seen = []

    class Tracker:
        def log(self, step, metrics):
            seen.append(step)

        def close(self):
            pass

    result = steptrace.run(grpo.trace(prompts=1, samples=1), parts(tracker=Tracker()), steps=FEW + 7)
    assert [record["step"] for record in result.records] == [float(step) for step in range(7, FEW + 7)]
    assert seen == [*range(FEW + 7)]
    assert RECORDS_KEPT == 10_000


@steptrace.program
def without_metrics(step):
    step.dispatch(prompts=2, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()


def test_inputs_of_calls_are_hashed_by_the_end_of_the_step_where_no_metrics_are_fetched(monkeypatch):
    pending = []
    real = Session.end_step

    def counted(self, step):
        real(self, step)
        pending.append(self.calls.pending)

    monkeypatch.setattr(Session, "end_step", counted)
    steptrace.run(without_metrics, parts(), steps=3)
    assert pending == [0, 0, 0]
    assert "get_metrics" in VERBS
