"""Built-in programs under every named pipeline, where steps have 0 to 9 micro-batches and some of those run again."""

from __future__ import annotations

import functools

import pytest
from lane_parts import HashTrainer, StagingTrainer, lane_bind, made_by, no_lane_is_left

from steptrace.ir import Program
from steptrace.lang.reference import resolve
from steptrace.passes import PIPELINES, run_pipeline
from steptrace.run.data.advantages import GroupAdvantages
from steptrace.run.data.packing import Packer

COUNTS = (9, 0, 1, 7, 2)
STEPS = (0, 1, 2, 5)
BULK = ("grpo", "dr_grpo", "rloo", "reinforce_pp")
STREAMED = ("stream-micro-batches,pipelined-boundary", "stream-micro-batches,pipeline-micro-batches")
# The form in which groups are seen one by one is another program for an estimator that sees all of a step at once.
PAIRS = [
    *((program, pipeline) for program in (*BULK, "grpo_stream", "grpo_epochs") for pipeline in PIPELINES),
    *((program, pipeline) for program in BULK[:3] for pipeline in STREAMED),
]
FAST = [("grpo", "pipelined-boundary"), ("grpo_stream", "async-everything"), ("rloo", STREAMED[0])]


class Leaving:
    """Advantages that leave each step so many of its groups, whether they are asked for one by one or all at once."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def __call__(self, groups):
        left = []
        for group in groups:
            self.seen[group.step] = place = self.seen.get(group.step, -1) + 1
            if place < COUNTS[group.step % len(COUNTS)]:
                left.append(group)
        return GroupAdvantages()(left) if left else []


def lost(micro_batch) -> bool:
    """Whether a micro-batch loses tokens: by step the last one, the first, none, every one, the last."""
    first, last = micro_batch.index == 0, micro_batch.last
    return (last, first, False, True, last)[micro_batch.step % 5]


class Replaying(StagingTrainer):
    """Runs what lost tokens again, one call late, the step's last one in the update; the attempt counts for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = self.before = None
        self.again: list[tuple[int, int]] = []

    def fwd_bwd(self, micro_batch, **how):
        self.settle()
        self.pending, self.before = micro_batch if lost(micro_batch) else None, self.grads
        return super().fwd_bwd(micro_batch, **how)

    def update(self):
        self.settle()
        super().update()

    def settle(self):
        if self.pending is not None:
            micro_batch, self.pending, self.grads = self.pending, None, self.before
            self.again.append((micro_batch.step, micro_batch.index))
            HashTrainer.fwd_bwd(self, micro_batch)


class CountsItsAttempts(Replaying):
    """Leaves what the attempt has added."""

    def settle(self):
        self.before = self.grads
        super().settle()


def bound(trainer):
    """Parts with which each group is a micro-batch of its own."""
    return lane_bind(trainer, advantages=Leaving(), packer=Packer(rows=1, length=12, pad_id=0))


def source(program: str) -> Program:
    return resolve(f"{program}{{prompts=9, samples=1, staleness=1, save_every=2}}")


@functools.cache
def schedule(program: str, pipeline: str) -> Program:
    return run_pipeline(source(program), pipeline).schedule.program


@functools.cache
def base(program: str, steps: int):
    """What is trained in program order, by a trainer that runs nothing again."""
    return made_by(source(program), bound(HashTrainer()), steps=steps)


@pytest.mark.parametrize(
    ("program", "pipeline"), [pair if pair in FAST else pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS]
)
@pytest.mark.parametrize("trainer", [StagingTrainer, Replaying])
def test_the_same_parameters_calls_groups_and_records(program, pipeline, trainer):
    for steps in STEPS:
        made = made_by(schedule(program, pipeline), bound(trainer()), steps=steps, against=source(program))
        assert made == base(program, steps)
    assert no_lane_is_left()


def test_the_steps_are_those_that_are_meant():
    for program in ("grpo", "grpo_stream"):
        assert [record["micro_batches"] for record in base(program, 5).records] == [*COUNTS]
    trainer = Replaying()
    made_by(schedule("grpo", "pipelined-boundary"), bound(trainer), steps=5, against=source("grpo"))
    assert trainer.again == [(0, 8), *((3, index) for index in range(7)), (4, 1)]


def test_control_an_attempt_that_counts_trains_something_else():
    trainer = CountsItsAttempts()
    made = made_by(schedule("grpo", "pipelined-boundary"), bound(trainer), steps=5, against=source("grpo"))
    assert made.params != base("grpo", 5).params
