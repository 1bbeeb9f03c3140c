"""Users' ops: what they are given, what they may return, and where their functions come from."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import HashTrainer, parts

import steptrace
from steptrace.diag.binding import UnboundOpError, WrongPartError
from steptrace.diag.running import MixedGroupsError, TaskValueError
from steptrace.ir import parse_program, print_program
from steptrace.lang.records import Group, GroupId


@steptrace.op(takes=("groups",), gives="groups", reads=["host[k]"], writes=[])
def changed(groups, *, weight: float = 0.5, words: tuple = ("a",), least: int = 0):
    """What a test puts in its place does the work."""
    return groups


@steptrace.op(takes=("micro_batch",), gives="micro_batch<noise>", reads=[], writes=[])
def noisy(mb):
    return mb.with_array("noise", np.zeros(mb.arrays["tokens"].shape, np.float32))


@steptrace.op(takes=("groups",), gives=("groups", "share: scalar", "any_left: flag"), reads=["host[k]"], writes=[])
def three(groups):
    return groups, 1.0, True


@steptrace.program
def with_ops(step, weight: float = 0.25):
    step.dispatch(prompts=3, samples=2)
    groups = changed(step.reward(step.take()), weight=weight, least=1)
    groups, share, any_left = three(groups)
    for mb in step.micro_batches(step.pack(step.advantages(groups))):
        step.fwd_bwd(noisy(mb))
    step.update()
    metrics = step.get_metrics()
    step.sync_weights()
    step.commit()
    with step.when(any_left):
        step.log(shown(metrics, share))


@steptrace.op(takes=("metrics", "scalar"), gives="metrics", reads=[], writes=[])
def shown(metrics, share):
    return {**metrics, "share": share}


PROGRAM = with_ops.trace()


def run(steps: int = 2, program=PROGRAM, **functions):
    return steptrace.run(program, parts(**functions), steps=steps)


def test_attributes_are_passed_by_name():
    given = []

    def mine(groups, *, weight, words, least):
        given.append((weight, words, least))
        return groups

    run(program=with_ops.trace(weight=0.75), changed=mine)
    assert given == [(0.75, ("a",), 1)] * 2


def test_the_body_of_the_op_is_its_implementation():
    assert [record["share"] for record in run().records] == [1.0, 1.0]


def test_a_function_that_asks_for_them_gets_step_and_key():
    seen = []

    def mine(groups, *, weight, words, least, step, key):
        seen.append((step, tuple(np.asarray(jax.random.key_data(key)).tolist())))
        return groups

    run(3, changed=mine)
    again, seen[:] = list(seen), []
    run(3, changed=mine)
    assert seen == again
    assert [step for step, _ in seen] == [0, 1, 2]
    assert len({key for _, key in seen}) == 3
    first, seen[:] = seen[0], []
    steptrace.run(PROGRAM, parts(changed=mine), steps=1, seed=1)
    assert seen[0] != first


@steptrace.op(takes=("micro_batch",), gives="micro_batch", reads=[], writes=["log"])
def looked_at(mb):
    return mb


@steptrace.program
def nested(step):
    step.dispatch(prompts=4, samples=2)
    scored = step.advantages(step.reward(step.take()))
    for _ in step.epochs(2):
        for part in step.mini_batches(scored, 2):
            for mb in step.micro_batches(step.pack(part)):
                step.fwd_bwd(looked_at(mb))
            step.update()
    step.sync_weights()
    step.commit()


def test_each_instance_in_nested_loops_has_a_key_of_its_own():
    from steptrace.run.data.packing import Packer

    keys = []

    def mine(mb, *, key):
        keys.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
        return mb

    steptrace.run(nested, parts(looked_at=mine, packer=Packer(rows=1, length=24)), steps=2)
    assert len(keys) > 2 * 2 * 2
    assert len(set(keys)) == len(keys)


def test_control_without_step_or_key_in_its_signature_a_function_gets_neither():
    def mine(groups, **given):
        assert set(given) == {"weight", "words", "least"}
        return groups

    run(changed=mine)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda groups: None, "nothing"),
        (lambda groups: {}, "a dict"),
        (lambda groups: (group for group in groups), "a generator"),
        (lambda groups: [group.id for group in groups], "a list"),
        (lambda groups: "groups", "a str"),
    ],
)
def test_something_else_than_groups(made, words):
    trainer = HashTrainer()
    with pytest.raises(TaskValueError, match=f"`changed` returned {words}, and declares groups") as info:
        run(trainer=trainer, changed=lambda groups, **_: made(groups))
    assert "changed(step.reward" in info.value.loc.source()
    assert trainer.calls == []


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda groups: groups, "a list"),
        (lambda groups: [groups, 1.0, True], "a list"),
        (lambda groups: (groups, 1.0), "a tuple"),
        (lambda groups: None, "a NoneType"),
    ],
)
def test_something_else_than_three_results(made, words):
    with pytest.raises(TaskValueError, match=f"`three` returned {words}, and declares 3 results"):
        run(three=made)


@pytest.mark.parametrize("share", ["1.0", None, [1.0], np.zeros(2), {}])
def test_something_else_than_a_scalar(share):
    with pytest.raises(TaskValueError, match="declares a scalar"):
        run(three=lambda groups: (groups, share, True))


@pytest.mark.parametrize("share", [1, 1.0, np.float32(1), np.int64(1), np.array(1.0), jnp.float32(1)])
def test_scalars(share):
    assert run(three=lambda groups: (groups, share, True)).records[0]["share"] == 1.0


@pytest.mark.parametrize("flag", [1, "yes", None, np.array([True])])
def test_something_else_than_a_flag(flag):
    with pytest.raises(TaskValueError, match="declares a flag"):
        run(three=lambda groups: (groups, 1.0, flag))


@pytest.mark.parametrize(("flag", "logged"), [(True, 2), (False, 0), (np.True_, 2), (jnp.array(False), 0)])
def test_flags(flag, logged):
    assert len(run(three=lambda groups: (groups, 1.0, flag)).records) == logged


@pytest.mark.parametrize(
    "made",
    [
        lambda mb: None,
        lambda mb: mb.arrays,
        lambda mb: mb.with_array("noise", np.zeros(3)),
        lambda mb: mb.with_array("noise", 0.0),
    ],
)
def test_something_else_than_a_micro_batch(made):
    with pytest.raises(TaskValueError, match=r"declares a steptrace\.MicroBatch whose arrays are all"):
        run(noisy=made)


@pytest.mark.parametrize("made", [[], {"share": "high"}, {1: 1.0}, {"share": np.zeros(2)}])
def test_something_else_than_metrics(made):
    with pytest.raises(TaskValueError, match="`shown` returned"):
        run(shown=lambda metrics, share: made)


def renamed(group: Group) -> Group:
    return replace(group, id=GroupId("made up", 0))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda groups: [*groups, groups[0]], "twice"),
        (lambda groups: [renamed(groups[0]), *groups[1:]], "which it was not given"),
    ],
)
def test_groups_that_are_not_those_that_were_given(made, words):
    with pytest.raises(MixedGroupsError, match=words) as info:
        run(changed=lambda groups, **_: made(groups))
    assert "changed(step.reward" in info.value.loc.source()


def test_groups_may_be_left_out_reordered_and_changed():
    result = run(changed=lambda groups, **_: tuple(reversed(groups[1:])))
    assert [record["groups"] for record in result.records] == [3.0, 3.0]  # scored before some were left out


def test_a_program_from_text_finds_the_function_of_its_row():
    text = print_program(PROGRAM)
    assert run(program=parse_program(text)).calls_digest == run().calls_digest


def test_two_ops_of_one_name_keep_their_own_functions():
    def made(factor: float):
        @steptrace.op(name="scaled", takes=("groups",), gives="groups", reads=["host[k]"], writes=[])
        def scaled(groups):
            return [replace(group, rewards=group.rewards * np.float32(factor)) for group in groups]

        @steptrace.program(name=f"times_{factor:g}")
        def program(step):
            step.dispatch(prompts=3, samples=2)
            groups = step.advantages(scaled(step.reward(step.take())), estimator="dr_grpo")
            for mb in step.micro_batches(step.pack(groups)):
                step.fwd_bwd(mb)
            step.update()
            step.sync_weights()
            step.commit()

        return program.trace()

    once, twice = made(1.0), made(2.0)
    first = steptrace.run(once, parts(), steps=1)
    assert steptrace.run(twice, parts(), steps=1).calls_digest != first.calls_digest
    assert steptrace.run(once, parts(), steps=1).calls_digest == first.calls_digest


def unknown_op_text() -> str:
    return print_program(PROGRAM).replace("changed", "penalised_elsewhere")


def test_an_op_without_a_function_is_refused_before_step_0():
    trainer = HashTrainer()
    with pytest.raises(UnboundOpError, match="`penalised_elsewhere` has no implementation") as info:
        run(program=parse_program(unknown_op_text()), trainer=trainer)
    assert 'bind={"penalised_elsewhere": ...}' in info.value.help
    assert trainer.calls == []


def test_an_op_bound_by_name_runs():
    program = parse_program(unknown_op_text())
    assert run(program=program, penalised_elsewhere=changed).calls_digest == run().calls_digest
    assert run(program=program, penalised_elsewhere=changed.function).calls_digest == run().calls_digest


def test_an_op_of_another_declaration_is_not_taken_for_it():
    text = print_program(PROGRAM).replace("least: int = 0", "least: int = 7")
    assert "int = 7" in text
    with pytest.raises(UnboundOpError) as info:
        run(program=parse_program(text))
    assert "another declaration" in info.value.notes[0].text


@pytest.mark.parametrize("function", [lambda: None, lambda groups: groups, lambda groups, *, weight: groups, 3])
def test_a_function_that_cannot_be_called_as_the_op_is(function):
    trainer = HashTrainer()
    with pytest.raises(WrongPartError):
        run(trainer=trainer, changed=function)
    assert trainer.calls == []
