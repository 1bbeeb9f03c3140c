"""Pipelines drawn at random, on threads and in virtual time: what is trained is what the program trains."""

from __future__ import annotations

import functools
import random

import pytest
from lane_parts import Delays, HashTrainer, StagingTrainer, lane_bind, made_by, no_lane_is_left, slowed
from test_unequal_steps import Leaving, Packer, Replaying

from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.passes import PASSES, PIPELINES, run_pipeline
from steptrace.simulate import Cost, Durations, simulate

STEPS = 5
PROGRAMS = ("grpo", "grpo_stream", "grpo_epochs", "reinforce_pp")
TRAINERS = (HashTrainer, StagingTrainer, Replaying)
RELAXING = ("one-step-off", "async-everything")


def drawn(seed: int) -> tuple[str, str, int]:
    """A program, a pipeline of up to six passes, and the staleness of the program."""
    rng = random.Random(seed)
    names = [name for name in (*sorted(PASSES), *sorted(PIPELINES)) if name not in RELAXING]
    return rng.choice(PROGRAMS), ",".join(rng.choices(names, k=rng.randint(1, 6))), rng.choice((0, 1, 1, 2))


def source(program: str, staleness: int):
    return resolve(f"{program}{{prompts=5, samples=1, staleness={staleness}, save_every=2}}")


def bound(trainer):
    return lane_bind(trainer, advantages=Leaving(), packer=Packer(rows=1, length=12, pad_id=0))


@functools.cache
def base(program: str, staleness: int):
    return made_by(source(program, staleness), bound(HashTrainer()), steps=STEPS)


def times(seed: int) -> Durations:
    """Times that differ from instance to instance."""
    return Durations(
        varying=lambda op, step, micro, cost: Cost(
            *random.Random(f"{seed} {op.id} {step} {micro}").choices((0.0, 0.1, 1.0, 7.0), k=3)
        )
    )


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) if seed > 7 else seed for seed in range(60)]
)
def test_threads_and_virtual_time_call_the_trainer_as_program_order_does(seed):
    program, pipeline, staleness = drawn(seed)
    schedule = run_pipeline(source(program, staleness), pipeline).schedule
    trainer = TRAINERS[seed % 3]()
    made = made_by(
        schedule.program,
        slowed(bound(trainer), Delays(seed, most_ms=2.0)),
        steps=STEPS,
        against=source(program, staleness),
        stall_s=30.0,
    )
    assert made == base(program, staleness)
    assert no_lane_is_left()
    if program == "grpo_epochs":  # its counts are those of mini-batches, which a record does not tell apart
        return
    counts = [int(record["micro_batches"]) for record in made.records]
    run = simulate(lower(schedule.program, source=schedule.source), times(seed), micro_batches=counts)
    assert list(run.calls) == plain_calls(program, staleness)


@functools.cache
def plain_calls(program: str, staleness: int) -> list[str]:
    """The calls that train, in program order."""
    trainer = HashTrainer()
    made_by(source(program, staleness), bound(trainer), steps=STEPS)
    return [call for call in trainer.calls if call.startswith(("fwd_bwd", "update"))]


def test_what_is_drawn_moves_something():
    changed = sum(
        bool(run_pipeline(source(name, stale), pipe).schedule.trail) for name, pipe, stale in map(drawn, range(60))
    )
    assert changed > 40


def test_control_calls_in_another_order_are_seen():
    class Swapping(HashTrainer):
        """Takes micro-batches in pairs, the second one first."""

        waiting = None

        def fwd_bwd(self, micro_batch):
            if self.waiting is None and not micro_batch.last:
                self.waiting = micro_batch
                return
            super().fwd_bwd(micro_batch)
            if self.waiting is not None:
                super().fwd_bwd(self.waiting)
                self.waiting = None

    made = made_by(source("grpo", 1), bound(Swapping()), steps=STEPS)
    assert made.params != base("grpo", 1).params
