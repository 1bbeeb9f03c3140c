"""The end of the data: what becomes of a last step with fewer prompts, and that nothing hangs or is trained twice."""

from __future__ import annotations

import pytest
from fakes import HashRollout, HashTrainer, parts

import steptrace
from steptrace.diag.binding import BadRunOptionError
from steptrace.diag.running import PartialStepError
from steptrace.lang.records import Prompt
from steptrace.programs.grpo import grpo
from steptrace.programs.grpo_epochs import grpo_epochs
from steptrace.programs.grpo_stream import grpo_stream
from steptrace.run.data.prompts import ListPrompts


class Steps:
    """A callback that notes what it was called for."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.ended: list[int] = []

    def on_step_begin(self, step: int) -> None:
        self.began.append(step)

    def on_step_end(self, step: int, metrics) -> None:
        self.ended.append(step)


def prompts(count: int) -> ListPrompts:
    return ListPrompts([Prompt(f"p:{index}", f"prompt {index}") for index in range(count)])


def run(count: int, *, program=grpo, per_step: int = 3, epochs: int = 1, **contract):
    """Run to the end of the data; gives the result, the callback, and the group ids trained by step."""
    steps, groups = Steps(), []

    class Rollout(HashRollout):
        def generate(self, prompts, samples, *, version, key):
            groups.append([prompt.id for prompt in prompts])
            return super().generate(prompts, samples, version=version, key=key)

    bound = parts(prompts=prompts(count), rollout=Rollout(), callbacks=steps)
    result = steptrace.run(program.trace(prompts=per_step, samples=2, **contract), bound, epochs=epochs)
    return result, steps, groups


@pytest.mark.parametrize("program", [grpo, grpo_stream, grpo_epochs], ids=lambda program: program.name)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 9])
def test_partial_train_trains_every_group_once_whatever_the_remainder(program, count):
    result, steps, groups = run(count, program=program, partial="train")
    wanted = -(-count // 3)
    assert (result.steps, steps.began, steps.ended) == (wanted, [*range(wanted)], [*range(wanted)])
    assert sorted(name for step in groups for name in step) == sorted(f"p:{index}" for index in range(count))
    assert [len(step) for step in groups] == [min(3, count - 3 * step) for step in range(wanted)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 9])
def test_partial_drop_begins_no_step_for_the_remainder(count):
    result, steps, groups = run(count, partial="drop")
    assert (result.steps, steps.began) == (count // 3, [*range(count // 3)])
    assert [len(step) for step in groups] == [3] * (count // 3)


def test_partial_drop_looks_at_no_prompt_it_does_not_draw():
    looked = []

    class Source(ListPrompts):
        def __getitem__(self, index):
            looked.append(index)
            return super().__getitem__(index)

    source = Source([Prompt(str(index), "x") for index in range(7)])
    bound = parts(prompts=source)
    steptrace.run(grpo.trace(prompts=3, samples=2, partial="drop"), bound, epochs=1)
    first, *drawn = looked  # the first look is the check before step 0
    assert first == 0
    assert len(drawn) == len(set(drawn)) == 6


def test_partial_error_refuses_before_step_0():
    trainer, steps = HashTrainer(), Steps()
    bound = parts(prompts=prompts(7), trainer=trainer, callbacks=steps)
    with pytest.raises(PartialStepError, match="step 2 would get 1 of 3 prompts") as info:
        steptrace.run(grpo.trace(prompts=3, samples=2, partial="error"), bound, epochs=1)
    assert (trainer.calls, steps.began) == ([], [])
    assert "step.dispatch" in info.value.loc.source()


@pytest.mark.parametrize(("count", "epochs", "steps"), [(9, 1, None), (7, 3, None), (7, 1, 2), (7, 1, 1), (7, None, 5)])
def test_partial_error_lets_runs_through_that_come_to_no_partial_step(count, epochs, steps):
    bound = parts(prompts=prompts(count))
    result = steptrace.run(grpo.trace(prompts=3, samples=2, partial="error"), bound, epochs=epochs, steps=steps)
    assert result.steps == (steps or count * epochs // 3)


def test_control_more_steps_than_that_are_refused():
    with pytest.raises(PartialStepError):
        steptrace.run(grpo.trace(prompts=3, samples=2, partial="error"), parts(prompts=prompts(7)), epochs=1, steps=3)


def test_epochs_draw_each_prompt_once_each():
    result, _, groups = run(5, epochs=3, per_step=4)
    drawn = [name for step in groups for name in step]
    assert result.steps == 4
    assert [drawn[start : start + 5].count(f"p:{index}") for start in (0, 5, 10) for index in range(5)] == [1] * 15


def test_fewer_prompts_than_a_step_draws_go_around_without_a_limit_of_epochs():
    bound = parts(prompts=prompts(2))
    result = steptrace.run(grpo.trace(prompts=5, samples=2), bound, steps=3)
    assert [record["groups"] for record in result.records] == [5.0, 5.0, 5.0]


@steptrace.program
def alternating(step):
    """Two prompts in every second step, four in the others."""
    with step.every(2):
        step.dispatch(prompts=2, samples=3)
    with step.when(~step.every(2)):
        step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()
    step.log(step.get_metrics())


@pytest.mark.parametrize(
    ("partial", "count", "drawn"),
    [("train", 12, [4, 2, 4, 2]), ("train", 11, [4, 2, 4, 1]), ("drop", 11, [4, 2, 4]), ("drop", 9, [4, 2])],
)
def test_steps_that_draw_different_numbers_of_prompts(partial, count, drawn):
    result = steptrace.run(alternating.trace(partial=partial), parts(prompts=prompts(count)), epochs=1)
    assert [record["groups"] for record in result.records] == drawn


def test_a_partial_step_among_such_is_refused_when_it_comes():
    trainer = HashTrainer()
    with pytest.raises(PartialStepError, match="step 3 gets 1 of 2 prompts"):
        steptrace.run(alternating.trace(partial="error"), parts(prompts=prompts(11), trainer=trainer), epochs=1)
    assert trainer.applied == 3


def test_neither_steps_nor_epochs():
    with pytest.raises(BadRunOptionError, match="never end"):
        steptrace.run(grpo, parts())


def test_zero_steps_train_nothing():
    trainer = HashTrainer()
    result = steptrace.run(grpo.trace(prompts=3, samples=2), parts(trainer=trainer), steps=0)
    assert (result.steps, result.records, trainer.calls) == (0, (), [])
