"""Lowering in program order: what the plan holds, and what the target has no rule for."""

from __future__ import annotations

from dataclasses import replace

import pytest

import steptrace
from steptrace.diag.binding import NotLowerableError, UnknownTargetError
from steptrace.ir import BUILTIN, Loop, Op, Program, Use, parse_program, print_program
from steptrace.ir.program import Node
from steptrace.lower import TARGETS, Call, LoopPlan, Read, lower, target_named
from steptrace.lower.targets import PLAIN_OPS
from steptrace.programs.grpo import grpo
from steptrace.programs.grpo_epochs import grpo_epochs
from steptrace.programs.grpo_stream import grpo_stream

GRPO = grpo.trace()


def names(nodes) -> list[object]:
    """Ids of calls, and loops as lists that begin with their head."""
    found: list[object] = []
    for node in nodes:
        if isinstance(node, Call):
            found.append(node.op.id)
        else:
            found.append([node.id, node.head.op.id if node.head else None, *names(node.body)])
    return found


def edited(program: Program, id: str, **changes) -> Program:
    """The program with one op or loop changed."""

    def visit(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(
            replace(node, **changes)
            if node.id == id
            else replace(node, body=visit(node.body))
            if isinstance(node, Loop)
            else node
            for node in nodes
        )

    return replace(program, body=visit(program.body))


def test_a_plan_holds_the_ops_in_program_order():
    plan = lower(GRPO)
    assert names(plan.prologue) == ["initial_sync"]
    assert names(plan.body) == [
        "on_step_begin",
        "dispatch",
        "take",
        "reward",
        "advantages",
        "pack",
        ["micro_batches", "next_mb", "ref_logps", "fwd_bwd"],
        "update",
        "get_metrics",
        "save_checkpoint",
        "sync_weights",
        "commit",
        "log",
        "on_step_end",
        "free",
    ]
    assert plan.epilogue == ()
    assert [call.op.id for call in plan.calls()] == [op.id for op in GRPO.ops()]


def test_loops_in_loops():
    plan = lower(grpo_epochs.trace(epochs=3, mini_batches=2))
    (loop,) = [node for node in plan.body if isinstance(node, LoopPlan)]
    assert (loop.kind, loop.count, loop.head) == ("repeat", 3, None)
    assert names([loop]) == [
        [
            "repeat",
            None,
            ["mini_batches", "next_part", "pack", ["micro_batches", "next_mb", "ref_logps", "fwd_bwd"], "update"],
        ]
    ]
    parts = loop.body[0]
    assert (parts.kind, parts.count) == ("mini_batches", 2)


def test_a_stream_is_the_head_of_its_loop():
    (loop,) = [node for node in lower(grpo_stream.trace()).body if isinstance(node, LoopPlan)]
    assert (loop.head.op.id, loop.count) == ("stream_mb", None)


def test_each_value_has_a_slot_and_operands_read_it():
    plan = lower(GRPO)
    assert sorted(plan.slots.values()) == [*range(len(plan.slots))]
    by_id = {call.op.id: call for call in plan.calls()}
    assert by_id["reward"].reads == (Read(by_id["take"].writes[0]),)
    assert by_id["fwd_bwd"].reads == (Read(by_id["ref_logps"].writes[0]),)
    assert by_id["log"].reads == (Read(by_id["get_metrics"].writes[0]),)


@steptrace.op(takes=("metrics", "scalar"), gives="next_coef: scalar", reads=[], writes=[])
def controller(metrics, coef):
    return coef


@steptrace.op(takes=("scalar",), reads=[], writes=["log"])
def told(coef):
    """Nothing."""


@steptrace.op(takes=("groups",), reads=["host[k]"], writes=["log"])
def show(groups):
    """Nothing."""


def program_with(behind: str = "", *, early: bool = False) -> Program:
    """A step with a carry, and something behind its checkpoint."""

    @steptrace.program
    def made(step):
        coef = step.carry("coef", init=1.0)
        step.dispatch(prompts=2, samples=2)
        groups = step.take()
        batch = step.pack(step.advantages(step.reward(groups)))
        for mb in step.micro_batches(batch):
            step.fwd_bwd(mb)
        step.update()
        metrics = step.get_metrics()
        if early:
            coef.set(controller(metrics, coef.value))
        step.save_checkpoint()
        if not early:
            coef.set(controller(metrics, coef.value))
        if behind == "groups":
            show(groups)
        if behind == "carry":
            told(coef.value)
        if behind == "loop":
            for _ in step.epochs(2):
                told(coef.value)
        if behind == "training":
            for mb in step.micro_batches(batch):
                step.fwd_bwd(mb)
            step.update()
        step.sync_weights()
        step.commit()
        step.log(metrics)

    return made.trace()


def test_a_carry_is_read_from_the_step_before():
    plan = lower(program_with())
    by_id = {call.op.id: call for call in plan.calls()}
    assert by_id["controller"].reads[1] == Read(plan.slots["coef"], carry="coef")
    assert by_id["controller"].reads[0].carry == ""


def test_verbs_of_parts_are_each_with_the_first_op_that_needs_it():
    verbs = {verb: call.op.id for verb, call in lower(GRPO).verbs().items()}
    assert verbs == {
        "rollout.apply_weights": "initial_sync",
        "callbacks.on_step_begin": "on_step_begin",
        "rollout.generate": "dispatch",
        "reward": "reward",
        "reference.logps": "ref_logps",
        "trainer.fwd_bwd": "fwd_bwd",
        "trainer.update": "update",
        "trainer.get_metrics": "get_metrics",
        "trainer.save_checkpoint": "save_checkpoint",
        "tracker.log": "log",
        "callbacks.on_step_end": "on_step_end",
    }


def test_a_program_and_its_text_lower_alike():
    again = parse_program(print_program(GRPO))
    assert names(lower(again).body) == names(lower(GRPO).body)


def refused(program: Program) -> NotLowerableError:
    with pytest.raises(NotLowerableError) as info:
        lower(program)
    return info.value


def test_an_op_that_runs_ahead_of_its_place():
    error = refused(edited(GRPO, "dispatch", shift=1))
    assert "`dispatch` runs 1 ahead of its place" in error.message
    assert "step.dispatch" in error.loc.source()


def test_an_op_that_stands_for_a_micro_batch():
    assert "stands for micro-batch 0" in refused(edited(GRPO, "fwd_bwd", micro=0)).message


def test_a_loop_whose_first_rounds_stand_before_it():
    error = refused(edited(GRPO, "micro_batches", start=1))
    assert "begins with round 1" in error.message
    assert "for mb in" in error.loc.source()


def test_a_call_that_closes_the_step():
    assert "also closes the step (update)" in refused(edited(GRPO, "fwd_bwd", attrs=(("closes", "update"),))).message


@pytest.mark.parametrize("kind", sorted(set(BUILTIN) - PLAIN_OPS))
def test_parts_that_laws_split_ops_into(kind):
    row = BUILTIN[kind]
    op = Op("part", kind, args=(Use("v0"),) * len(row.operands))
    error = refused(replace(GRPO, body=(*GRPO.body, op)))
    assert f"`part` is a `{kind}`" in error.message


@pytest.mark.parametrize("use", [Use("mb.2", micro=-1), Use("mb.2", step=-2), Use("mb.2", step=1)])
def test_values_of_other_micro_batches_and_far_steps(use):
    assert f"reads {use}" in refused(edited(GRPO, "fwd_bwd", args=(use,))).message


@pytest.mark.parametrize(
    ("behind", "words", "line"),
    [
        ("groups", "`show` stands behind `save_checkpoint` and reads %groups", "show(groups)"),
        ("loop", "`repeat` stands behind `save_checkpoint` and is a loop", "step.epochs"),
        ("training", "stands behind `save_checkpoint` and is a loop", "step.micro_batches"),
    ],
)
def test_what_a_resumed_run_could_not_do_again_behind_a_checkpoint(behind, words, line):
    error = refused(program_with(behind))
    assert words in error.message
    assert line in error.loc.source()
    assert "step.save_checkpoint()" in error.notes[0].loc.source()


@pytest.mark.parametrize("behind", ["", "carry"])
@pytest.mark.parametrize("early", [True, False])
def test_control_numbers_and_metrics_may_be_read_behind_it(behind, early):
    assert lower(program_with(behind, early=early)).verbs()["trainer.save_checkpoint"].op.id == "save_checkpoint"


def save_op() -> Op:
    return Op("early_save", "save_checkpoint")


def test_a_checkpoint_before_the_training():
    error = refused(replace(GRPO, body=(save_op(), *GRPO.body)))
    assert "`dispatch` stands behind `early_save` and trains" in error.message


def test_a_checkpoint_in_a_loop():
    loop = next(node for node in GRPO.body if isinstance(node, Loop))
    error = refused(edited(GRPO, loop.id, body=(*loop.body, save_op())))
    assert "`early_save` stands in a loop" in error.message


def test_a_checkpoint_before_step_0_and_after_the_last():
    error = refused(replace(GRPO, prologue=(*GRPO.prologue, save_op())))
    assert "`early_save` stands before step 0" in error.message
    assert lower(replace(GRPO, epilogue=(save_op(),))).epilogue[0].op.id == "early_save"


def test_a_step_that_dispatches_twice():
    @steptrace.program
    def twice(step):
        for part in (1, 2):
            step.dispatch(prompts=part, samples=2)
        first = step.reward(step.take())
        second = step.reward(step.take())
        for groups in (first, second):
            for mb in step.micro_batches(step.pack(step.advantages(groups))):
                step.fwd_bwd(mb)
        step.update()
        step.sync_weights()
        step.commit()

    error = refused(twice.trace())
    assert "`dispatch.2` runs in steps in which `dispatch` does" in error.message


def test_a_step_that_dispatches_in_a_loop():
    @steptrace.program
    def looped(step):
        for _ in step.epochs(2):
            step.dispatch(prompts=2, samples=2)
            for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
                step.fwd_bwd(mb)
            step.update()
        step.sync_weights()
        step.commit()

    error = refused(looped.trace())
    assert "`dispatch` stands in loop `repeat`" in error.message


def test_control_a_step_that_dispatches_in_one_of_two_ways():
    @steptrace.program
    def either(step):
        with step.every(10):
            step.dispatch(prompts=4, samples=8)
        with step.when(~step.every(10)):
            step.dispatch(prompts=2, samples=2)
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
            step.fwd_bwd(mb)
        step.update()
        step.sync_weights()
        step.commit()

    assert len(lower(either.trace(partial="drop")).prologue) == 1


def test_targets_by_name():
    assert target_named("inline") is TARGETS["inline"]
    with pytest.raises(UnknownTargetError, match="no target `inlined`") as info:
        target_named("inlined")
    assert info.value.help == "did you mean `inline`?"
