"""Small steps and the IR they stand for, written out by hand."""

from __future__ import annotations

import inspect
from contextlib import ExitStack

import pytest

import steptrace
from steptrace.diag.loc import Loc
from steptrace.ir.builtin import RESOURCES
from steptrace.ir.kind import Attr, Given, Operand, OpKind
from steptrace.ir.predicate import And, Every, First, Flag, Has, Last, MicroIs, Not, Or
from steptrace.ir.program import Carry, Contract, Loop, Op, Program, Result, Use, ops_of
from steptrace.ir.resource import ANY, Resource, ResourceKind
from steptrace.ir.types import Type
from steptrace.lang.definition import ProgramDef

replay = steptrace.resource("replay", kind="fifo", doc="groups seen before")


@steptrace.op(takes=("groups<rewards>",), gives="groups<penalised>", reads=["host[k]"], writes=[replay])
def length_penalty(groups, *, weight: float = 0.1, unit="tokens"):
    """Takes a little off the reward of long completions.

    More about it.
    """
    return [weight, unit, *groups]


@steptrace.op(takes=("groups",), gives=("flag", "share: scalar"), reads=[], writes=[], lane="io", may_fail=False)
def overlong(groups):
    return True, 0.5


@steptrace.op(takes=("any",), gives="scalar", reads=[], writes=["log"], blocking=False)
def adapted(value):
    return value


@steptrace.op
def note():
    return "noted"


def line(function, text: str) -> int:
    """The line of a function's source that holds ``text``."""
    source = function.function if isinstance(function, ProgramDef) else function
    lines, first = inspect.getsourcelines(source)
    found = [first + offset for offset, row in enumerate(lines) if text in row]
    assert len(found) == 1, f"{text!r} marks {len(found)} lines"
    return found[0]


def at(function, text: str) -> Loc:
    return Loc(__file__, line(function, text))


def ops(program: Program) -> dict[str, Op]:
    return {op.id: op for op in program.ops()}


@steptrace.program(staleness=1, partial="drop", empty="error")
def small(step, prompts=4, samples=2):
    step.dispatch(prompts=prompts, samples=samples)
    groups = step.take()
    scored = step.advantages(step.reward(groups))  # both
    batch = step.pack(scored)
    for mb in step.micro_batches(batch):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()


def test_a_small_step_is_exactly_this_program():
    begin = at(small, "def small")
    groups, advantaged = Type("groups", ("rewards",)), Type("groups", ("advantages", "rewards"))
    mb = Type("micro_batch", ("advantages", "rewards"))
    expected = Program(
        name="small",
        params=(("prompts", 4), ("samples", 8)),
        contract=Contract("pinned", 1, "drop", "error"),
        resources=tuple(
            RESOURCES[name]
            for name in (
                *("rng", "prompts.cursor", "rollout.weights", "policy.version"),
                *("queue.groups", "queue.serving", "queue.taken", "queue.training", "host", "packer"),
                *("params", "grads", "optimizer", "trainer.step", "trainer.metrics", "trainer.calls", "callbacks"),
            )
        ),
        prologue=(Op("initial_sync", "sync_weights", results=(Result("v0", Type("version")),), loc=begin),),
        body=(
            Op("on_step_begin", "on_step_begin", attrs=(("reads", ()), ("writes", ())), loc=begin),
            Op("dispatch", "dispatch", attrs=(("prompts", 4), ("samples", 8)), loc=at(small, "step.dispatch")),
            Op(
                "take",
                "take",
                results=(Result("groups", Type("groups")), Result("exists", Type("flag"))),
                loc=at(small, "step.take"),
            ),
            Op("reward", "reward", (Use("groups"),), (Result("scored", groups),), loc=at(small, "# both")),
            Op(
                "advantages",
                "advantages",
                (Use("scored"),),
                (Result("advantaged", advantaged),),
                (("estimator", "grpo"),),
                loc=at(small, "# both"),
            ),
            Op(
                "pack",
                "pack",
                (Use("advantaged"),),
                (Result("batch", Type("batch", ("advantages", "rewards"))),),
                loc=at(small, "step.pack"),
            ),
            Loop(
                "micro_batches",
                "micro_batches",
                "m",
                Use("batch"),
                None,
                (
                    Op(
                        "next_mb",
                        "next_mb",
                        (Use("batch"),),
                        (Result("mb", mb), Result("last", Type("flag"))),
                        loc=at(small, "for mb"),
                    ),
                    Op("fwd_bwd", "fwd_bwd", (Use("mb"),), loc=at(small, "step.fwd_bwd")),
                ),
                at(small, "for mb"),
            ),
            Op("update", "update", loc=at(small, "step.update")),
            Op("sync_weights", "sync_weights", (), (Result("version", Type("version")),), loc=at(small, "step.sync")),
            Op("commit", "commit", loc=at(small, "step.commit")),
            Op("free", "free", loc=begin),
        ),
        loc=begin,
    )
    assert steptrace.trace(small, samples=8) == expected


def test_control_another_parameter_is_another_program():
    assert steptrace.trace(small, samples=8) != steptrace.trace(small)


def test_tracing_is_deterministic():
    assert steptrace.trace(small) == steptrace.trace(small) == small.trace()


def test_contract_options_override_the_declared_ones_and_are_no_parameters():
    traced = steptrace.trace(small, staleness=3, weights="freshest", partial="error", empty="skip")
    assert traced.contract == Contract("freshest", 3, "error", "skip")
    assert traced.params == (("prompts", 4), ("samples", 2))


def test_what_the_author_wrote_is_not_inserted_again():
    @steptrace.program
    def mine(step):
        step.dispatch(prompts=1, samples=1)
        step.on_step_begin(reads=["metrics"])
        batch = step.pack(step.advantages(step.reward(step.take())))
        for mb in step.micro_batches(batch):
            step.fwd_bwd(mb)
        step.update()
        step.sync_weights()
        step.commit()
        step.free()
        step.on_step_end()

    kinds = [op.kind for op in ops_of(mine.trace().body)]
    assert kinds[:2] == ["dispatch", "on_step_begin"]
    assert kinds[-2:] == ["free", "on_step_end"]
    assert kinds.count("free") == kinds.count("on_step_begin") == 1
    assert ops(mine.trace())["on_step_begin"].attrs == (("reads", ("metrics",)),)
    assert ops(mine.trace())["on_step_end"].attrs == ()


def test_the_streaming_form_draws_its_micro_batches_from_the_queue():
    @steptrace.program
    def mine(step):
        step.dispatch(prompts=2, samples=2)
        for mb in step.micro_batches(step.stream(estimator="rloo")):
            step.fwd_bwd(step.old_logps(step.ref_logps(mb)))
        step.update()
        step.sync_weights()
        step.commit()

    body = mine.trace().body
    loop = body[2]
    assert isinstance(loop, Loop)
    fields = ("advantages", "rewards")
    with_ref, with_both = (*fields, "ref_logps"), (*fields, "old_logps", "ref_logps")
    last = at(mine, "fwd_bwd")
    assert (loop.over, loop.count, loop.loc) == (None, None, at(mine, "for mb"))
    assert loop.body == (
        Op(
            "stream_mb",
            "stream_mb",
            (),
            (
                Result("mb", Type("micro_batch", fields)),
                Result("last", Type("flag")),
                Result("exists", Type("flag")),
            ),
            (("estimator", "rloo"),),
            loc=at(mine, "for mb"),
        ),
        Op("ref_logps", "ref_logps", (Use("mb"),), (Result("mb.2", Type("micro_batch", with_ref)),), loc=last),
        Op("old_logps", "old_logps", (Use("mb.2"),), (Result("mb.3", Type("micro_batch", with_both)),), loc=last),
        Op("fwd_bwd", "fwd_bwd", (Use("mb.3"),), loc=last),
    )


def test_epochs_and_mini_batches_nest_around_the_micro_batches():
    @steptrace.program
    def mine(step, epochs=3, parts=2):
        step.dispatch(prompts=4, samples=2)
        groups = step.advantages(step.reward(step.take()))
        for _ in step.epochs(epochs):
            for part in step.mini_batches(groups, parts):
                for mb in step.micro_batches(step.pack(part)):
                    step.fwd_bwd(mb)
                step.update()
        step.sync_weights()
        step.commit()

    epochs = mine.trace().body[5]
    assert isinstance(epochs, Loop)
    assert (epochs.id, epochs.kind, epochs.var, epochs.over, epochs.count) == ("repeat", "repeat", "e", None, 3)
    (parts,) = epochs.body
    assert isinstance(parts, Loop)
    assert (parts.kind, parts.var, parts.over, parts.count) == ("mini_batches", "j", Use("advantaged"), 2)
    head, pack, inner, update = parts.body
    fields = ("advantages", "rewards")
    assert head == Op(
        "next_part",
        "next_part",
        (Use("advantaged"),),
        (Result("part", Type("groups", fields)),),
        loc=at(mine, "for part"),
    )
    assert isinstance(pack, Op)
    assert (pack.args, pack.results) == ((Use("part"),), (Result("batch", Type("batch", fields)),))
    assert isinstance(inner, Loop)
    assert (inner.over, inner.var, [op.kind for op in ops_of(inner.body)]) == (
        Use("batch"),
        "m",
        ["next_mb", "fwd_bwd"],
    )
    assert isinstance(update, Op)
    assert update.kind == "update"


def test_names_count_up_in_the_order_of_the_step():
    @steptrace.program
    def mine(step):
        step.dispatch(prompts=1, samples=1)
        groups = step.reward(step.reward(step.take()))
        for mb in step.micro_batches(step.pack(step.advantages(groups))):
            step.fwd_bwd(mb)
        step.update()
        step.sync_weights()
        step.commit()

    found = ops(mine.trace())
    assert found["reward"].results[0].name == "scored"
    assert found["reward.2"].args == (Use("scored"),)
    assert found["reward.2"].results[0].name == "scored.2"
    assert found["sync_weights"].results[0].name == "version"


def test_conditions_conjoin_and_are_kept_in_normal_form():
    @steptrace.program
    def mine(step):
        step.dispatch(prompts=1, samples=1)
        groups = step.take()
        flag, _ = overlong(groups)
        with step.when(flag | step.has("snapshots") | flag):
            step.save_checkpoint()
            with step.every(3), step.when(~~flag & step.every(3)):
                step.save_checkpoint()
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(groups)))):
            with step.when(~step.first & ~(step.last | step.micro_is(2))):
                mb2 = step.old_logps(mb)
                step.fwd_bwd(mb2)
            step.fwd_bwd(mb)
        step.update()
        with ExitStack() as stack:
            stack.enter_context(step.every(2))  # entered
            step.save_checkpoint()  # in
        step.sync_weights()
        step.commit()

    found = ops(mine.trace())
    either = Or((Flag("flag"), Has("snapshots")))
    middle = And((Not(First()), Not(Or((Last(), MicroIs(2))))))
    assert found["save_checkpoint"].when == either
    assert found["save_checkpoint.2"].when == And((either, Every(3), Flag("flag")))
    assert found["old_logps"].when == found["fwd_bwd"].when == middle
    assert str(found["fwd_bwd.2"].when) == "always"
    assert (found["save_checkpoint.3"].when, found["save_checkpoint.3"].loc) == (Every(2), at(mine, "# in"))
    assert str(found["sync_weights"].when) == "always"


def test_a_value_made_under_a_condition_is_in_scope_wherever_the_condition_holds():
    @steptrace.program
    def mine(step):
        step.dispatch(prompts=1, samples=1)
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
            step.fwd_bwd(mb)
        step.update()
        with step.every(5):
            metrics = step.get_metrics()
        step.sync_weights()
        step.commit()
        with step.when(step.every(5) & step.has("tracker")):
            step.log(metrics)

    assert ops(mine.trace())["log"].args == (Use("metrics"),)


def test_a_user_op_is_a_row_of_the_program():
    @steptrace.program
    def mine(step):
        step.dispatch(prompts=1, samples=1)
        groups = length_penalty(step.reward(step.take()), weight=1)
        flag, share = overlong(groups)
        with step.when(flag):
            note()
        adapted(share)
        for mb in step.micro_batches(step.pack(step.advantages(groups))):
            step.fwd_bwd(mb)
        step.update()
        step.sync_weights()
        step.commit()

    traced = mine.trace()
    first, second, third, fourth = traced.kinds
    assert first == OpKind(
        "length_penalty",
        operands=(Operand("groups", "groups", ("rewards",)),),
        results=(Given("groups", "groups", "groups", ("penalised",)),),
        attrs=(Attr("weight", float, 0.1), Attr("unit", str, "tokens")),
        reads=("host[k]",),
        writes=("replay",),
        doc="Takes a little off the reward of long completions.",
        user=True,
        loc=at(length_penalty.function, "def length_penalty"),
    )
    assert second == OpKind(
        "overlong",
        operands=(Operand("groups", "groups"),),
        results=(Given("flag", "flag"), Given("share", "scalar")),
        lane="io",
        may_fail=False,
        user=True,
        loc=at(overlong.function, "def overlong"),
    )
    assert third == OpKind("note", reads=(ANY,), writes=(ANY,), user=True, loc=at(note.function, "def note"))
    assert (fourth.operands, fourth.blocking) == ((Operand("value", None),), False)
    found = ops(traced)
    assert found["length_penalty"] == Op(
        "length_penalty",
        "length_penalty",
        (Use("scored"),),
        (Result("groups.2", Type("groups", ("penalised", "rewards"))),),
        (("unit", "tokens"), ("weight", 1.0)),
        loc=at(mine, "length_penalty"),
    )
    assert found["overlong"].lane == "io"
    assert (found["note"].args, found["note"].when) == ((), Flag("flag"))
    assert traced.resources[-1] == Resource("replay", ResourceKind.FIFO, 0, "groups seen before")


def test_a_user_op_called_with_real_values_runs():
    assert length_penalty([1, 2], weight=3.0) == [3.0, "tokens", 1, 2]
    assert note() == "noted"


def test_the_body_of_a_user_op_called_on_real_values_while_a_step_is_traced():
    seen = []

    @steptrace.program
    def mine(step):
        seen.append(adapted.function(3))
        seen.append(note())
        small.function(step)

    kinds = [op.kind for op in mine.trace().ops()]
    assert seen == [3, None]
    assert "adapted" not in kinds
    assert kinds.count("note") == 1


def test_a_carry_reads_the_previous_step_and_names_what_the_next_one_reads():
    @steptrace.program
    def mine(step):
        kl = step.carry("kl_coef", init=1)  # carry
        step.dispatch(prompts=1, samples=1)
        used = adapted(kl.value)
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
            adapted(used)
            step.fwd_bwd(mb)
        step.update()
        step.sync_weights()
        step.commit()
        kl.set(used)
        adapted(used)

    traced = mine.trace()
    found = ops(traced)
    assert traced.carries == (Carry("kl_coef", 1.0, at(mine, "# carry")),)
    assert found["adapted"].args == (Use("kl_coef", step=-1),)
    assert found["adapted"].results == (Result("kl_coef", Type("scalar")),)
    assert found["adapted.2"].args == found["adapted.3"].args == (Use("kl_coef"),)


def test_the_place_is_the_innermost_line_outside_the_tracer():
    def shared(step, groups):
        return step.advantages(step.reward(groups))  # in a helper

    @steptrace.program
    def mine(step):
        step.dispatch(prompts=1, samples=1)
        (scored,) = map(step.reward, [step.take()])  # through a builtin
        groups = shared(step, scored)  # the call
        for mb in step.micro_batches(step.pack(groups)):
            step.fwd_bwd(mb)
        step.update()
        step.sync_weights()
        step.commit()

    found = ops(mine.trace())
    assert found["reward"].loc == at(mine, "# through a builtin")
    assert found["reward.2"].loc == at(shared, "# in a helper")
    assert found["advantages"].loc == at(shared, "# in a helper")


@pytest.mark.parametrize(("staleness", "index"), [(0, "k-1"), (1, "k-2"), (4, "k-5")])
def test_staleness_moves_the_pinned_version(staleness, index):
    from steptrace.ir.builtin import BUILTIN
    from steptrace.ir.effects import effects_of

    traced = steptrace.trace(small, staleness=staleness)
    effects = effects_of(ops(traced)["dispatch"], BUILTIN["dispatch"], traced.contract)
    assert f"rollout.weights[{index}]" in map(str, effects)


def test_a_stepping_function_is_called_once_and_its_exceptions_are_its_own():
    calls = []

    @steptrace.program
    def mine(step):
        calls.append(step)
        for _ in step.micro_batches(step.stream()):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        mine.trace()
    assert len(calls) == 1
    assert steptrace.trace(small).name == "small", "the failed trace is over"
