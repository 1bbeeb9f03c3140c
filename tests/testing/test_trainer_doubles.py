"""Doubles of trainers: what each does to a run, that it bites, and that whatever it does the same is trained."""

from __future__ import annotations

import random
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "simulate"))
from virtual_plans import PIPES, plan_of

from steptrace.simulate import Cost, Durations, Run, VirtualTrainer, simulate, steady
from steptrace.simulate.state import MicroBatch
from steptrace.testing import (
    DeviceWaitTrainer,
    FailedStageTrainer,
    LostStageTrainer,
    OlderTrainer,
    ReplayTrainer,
    SlowFeed,
    TokenWaitTrainer,
    UpdatesAnywayTrainer,
    doubles,
)

COSTS = {
    "pack": Cost(2),
    "fwd_bwd": Cost(8, 14),
    "update": Cost(0, 1),
    "get_metrics": Cost(1),
    "sync_weights": Cost(1, 1),
    "log": Cost(2),
}
BEFORE, AFTER, UNSTAGED = (
    "pipelined-boundary",
    "pipelined-boundary-staged-after",
    "pipelined-boundary-unstaged",
)
DOUBLES: dict[str, Callable[[], VirtualTrainer]] = {
    "plain": VirtualTrainer,
    "token wait": TokenWaitTrainer,
    "device wait": DeviceWaitTrainer,
    "older image": OlderTrainer,
    "updates anyway": UpdatesAnywayTrainer,
    "replay first": lambda: ReplayTrainer("first"),
    "replay last": lambda: ReplayTrainer("last"),
    "replay every": lambda: ReplayTrainer("every"),
    "replay none": lambda: ReplayTrainer("none"),
    "lost stage": LostStageTrainer,
    "second stage lost": lambda: LostStageTrainer(1),
}


def run_of(pipeline: str, trainer: VirtualTrainer, *, micro_batches=4, steps: int = 6, costs=COSTS, **how) -> Run:
    return simulate(
        plan_of(pipeline), Durations(costs), micro_batches=micro_batches, steps=steps, trainer=trainer, **how
    )


def varied(seed: int) -> Durations:
    """Times that differ from instance to instance."""
    return Durations(
        varying=lambda op, step, micro, cost: Cost(
            *random.Random(f"{seed} {op.id} {step} {micro}").choices((0.0, 0.1, 1.0, 7.0), k=3)
        )
    )


@pytest.mark.parametrize("name", DOUBLES)
def test_under_every_pipeline_a_double_trains_what_it_trains_in_program_order(name: str):
    for seed in range(2):
        counts = random.Random(seed).choices(range(10), k=5)
        runs = [
            simulate(plan_of(pipeline), varied(seed), micro_batches=counts, trainer=DOUBLES[name]())
            for pipeline in PIPES
        ]
        assert {(run.trained, run.calls) for run in runs} == {(runs[0].trained, runs[0].calls)}


def test_control_a_rerun_that_reads_the_staged_micro_batch_trains_something_else():
    class ReadsStaged(ReplayTrainer):
        def rerun_of(self, micro_batch):
            return micro_batch if self.staged is None else self.staged[1]

    assert run_of("", ReadsStaged()).trained == run_of("", ReplayTrainer()).trained
    assert run_of(BEFORE, ReadsStaged()).trained != run_of("", ReadsStaged()).trained


def test_control_an_update_that_is_never_made_trains_something_else():
    class Forgets(VirtualTrainer):
        def apply_deferred_update(self, clock):
            self.held = False
            yield 0.0
            return {"device_wait_s": 1.0, "update_ready": True}

    assert run_of(BEFORE, Forgets()).trained != run_of("", Forgets()).trained


def test_control_a_wait_measured_behind_the_update_never_says_that_nothing_was_hidden():
    class MeasuresLate(VirtualTrainer):
        def apply_deferred_update(self, clock):
            start = clock.now
            yield from super().apply_deferred_update(clock)
            return {"device_wait_s": clock.now - start, "update_ready": True}

    idle = {**COSTS, "fwd_bwd": Cost(20, 14)}
    assert run_of(BEFORE, VirtualTrainer(), costs=idle).latched == 0
    assert run_of(BEFORE, MeasuresLate(), costs=idle).latched is None


def test_control_a_trainer_that_drops_a_micro_batch_trains_something_else():
    class Drops(VirtualTrainer):
        def fwd_bwd_staged(self, clock, request, **how):
            made = yield from super().fwd_bwd_staged(clock, request, **how)
            self._sums.pop()
            self._sums.append("")
            return made

    assert run_of(BEFORE, Drops()).trained != run_of("", Drops()).trained


def test_a_token_wait_returns_once_the_update_has_landed():
    waits, plain = (run_of("", double()).of("update")[0] for double in (TokenWaitTrainer, VirtualTrainer))
    assert waits.end == waits.done
    assert plain.end < plain.done


def test_a_token_wait_stages_nothing():
    assert run_of(BEFORE, TokenWaitTrainer()).stages == ()
    assert run_of(BEFORE, VirtualTrainer()).stages != ()


def test_a_device_wait_tells_what_the_device_had_left_and_holds_nothing_back():
    trainer = DeviceWaitTrainer()
    run = run_of(AFTER, trainer)
    assert run.stages == (1, 2, 3, 4, 5)
    assert all(wait > 0 for wait in run.device_waits.values())
    assert not run_of(BEFORE, trainer).of("apply_deferred_update")[0].held_s


def test_an_older_image_makes_the_four_calls_only():
    called = []

    class Recorded(OlderTrainer):
        def __getattribute__(self, name):
            if not name.startswith("_"):
                called.append(name)
            return super().__getattribute__(name)

    run_of(BEFORE, Recorded())
    assert {"fwd_bwd", "update", "get_metrics", "weights"} <= set(called)
    assert not {"apply_deferred_update", "start_metrics"} & {name for name in called if getattr(Recorded, name, 0)}


def test_a_trainer_that_updates_anyway_makes_one_update_a_step():
    trainer = UpdatesAnywayTrainer()
    run = run_of(BEFORE, trainer)
    assert trainer.applied == 6
    assert [span.what for span in run.on("trainer") if span.what] == ["update"] * 6


@pytest.mark.parametrize("overflows", ["first", "last", "every"])
def test_a_replay_counts_each_micro_batch_once(overflows: str):
    trainer = ReplayTrainer(overflows)
    run = run_of(BEFORE, trainer)
    dropped = [name for name, what in trainer.attempts if what == "dropped"]
    rerun = [name for name, what in trainer.attempts if what == "rerun"]
    counted = [name for name, what in trainer.attempts if what != "dropped"]
    assert dropped == rerun != []
    assert sorted(counted) == [f"{step}.{index}" for step in range(6) for index in range(4)]
    assert len([span for span in run.on("trainer") if span.what == "rerun"]) == len(rerun)


def test_a_replay_holds_the_update_until_the_last_micro_batch_is_computed():
    last = run_of("", ReplayTrainer("none"))
    assert last.of("update")[0].end >= last.training(0)[-1].end
    assert run_of("", VirtualTrainer()).of("update")[0].end < last.training(0)[-1].end


@pytest.mark.parametrize("overflows", ["none", "first"])
def test_under_replay_a_stage_behind_the_update_hides_nothing_and_is_the_last(overflows: str):
    run = run_of(AFTER, ReplayTrainer(overflows))
    assert run.stages == (1,)
    assert run.latched == 0
    assert run.device_waits == {0: 0.0}


@pytest.mark.parametrize("overflows", ["none", "first"])
def test_under_replay_a_stage_in_front_of_the_update_hides_the_whole_call(overflows: str):
    before, after = (run_of(pipeline, ReplayTrainer(overflows)) for pipeline in (BEFORE, AFTER))
    assert before.stages == (1, 2, 3, 4, 5)
    assert set(before.device_waits.values()) == {14.0 - 8.0}
    # Shipping takes 8; metrics and log come behind the call either way, for what is not staged is sent ahead whole.
    assert steady(after.boundary_idle_s()) - steady(before.boundary_idle_s()) == 8


def test_control_without_replay_a_stage_behind_the_update_hides_it_too():
    run = run_of(AFTER, VirtualTrainer())
    assert run.latched is None
    assert steady(run.boundary_idle_s()) == 1


def test_behind_an_update_that_reruns_the_last_micro_batch_a_stage_hides_behind_the_rerun():
    run = run_of(AFTER, ReplayTrainer("last"))
    assert run.latched is None
    assert set(run.device_waits.values()) == {14.0 + 1.0 - 8.0}


def test_a_lost_stage_is_sent_whole_and_staging_is_off():
    trainer = LostStageTrainer(1)
    run = run_of(BEFORE, trainer)
    assert run.stages == (1,)
    assert trainer.asked == 2
    assert "did not reach the trainer" in run.remarks[0]
    assert run.latched is None
    assert len(run.of("on_step_end")) == 6


def test_control_a_stage_that_arrives_leaves_staging_on():
    assert run_of(BEFORE, LostStageTrainer(99)).stages == (1, 2, 3, 4, 5)


def test_a_stage_that_raises_in_the_trainer_ends_the_run_with_its_error():
    with pytest.raises(RuntimeError, match="error state") as caught:
        run_of(BEFORE, FailedStageTrainer(1))
    assert "`stage_fwd_bwd` of step 2" in caught.value.__notes__[0]


def test_a_slow_feed_is_what_the_packer_waits_for():
    fast = run_of(BEFORE, VirtualTrainer())
    slow = run_of(BEFORE, VirtualTrainer(), feed=SlowFeed(late_s=500.0, since=2))
    assert fast.stages == (1, 2, 3, 4, 5)
    assert slow.stages == (1,)  # nothing is packed in time any more, and nothing is held up by that
    assert slow.latched is None
    assert next(event for event in slow.of("on_step_end") if event.step == 1).end < 500


def test_a_run_whose_calls_take_longer_than_their_work_latches():
    costs = {**COSTS, "fwd_bwd": Cost(20, 14)}
    for double in (VirtualTrainer, lambda: ReplayTrainer("none")):
        run = run_of(BEFORE, double(), costs=costs)
        assert (run.stages, run.latched) == ((1,), 0)
        assert run.device_waits == {0: 0.0}


def test_a_micro_batch_in_virtual_time_is_known_by_its_place():
    assert MicroBatch(1, 0, False) != MicroBatch(1, 1, False)


def test_the_example_of_the_module_runs():
    lines = doubles.__doc__.splitlines()
    exec(textwrap.dedent("\n".join(line for line in lines if line.startswith("    ") or not line)), {})
