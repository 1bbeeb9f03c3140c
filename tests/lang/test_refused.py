"""Each wrong use of the DSL: its code and the user's line, beside a use that is accepted.

A function that is refused marks the line that the error must name with ``# !``.
"""

from __future__ import annotations

import contextlib
import gc
import inspect

import pytest

import steptrace
from steptrace import SteptraceError
from steptrace.diag.loc import Loc
from steptrace.diag.tracing import LoopLeftError, TracedAttributeError

kept: list[object] = []


@steptrace.op(takes=("groups",), gives="flag", reads=[], writes=[])
def overlong(groups):
    return bool(groups)


@steptrace.op(takes=("any",), gives="scalar", reads=[], writes=["log"])
def number(value, *, scale: float = 1.0, name: str = "x"):
    return float(value) * scale


def rest(step, groups=None):
    """A step that is whole, or what follows its take."""
    if groups is None:
        step.dispatch(prompts=1, samples=1)
        groups = step.take()
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(groups)))):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()


def mark(function) -> Loc:
    lines, first = inspect.getsourcelines(function)
    (found,) = [first + offset for offset, row in enumerate(lines) if row.rstrip().endswith("# !")]
    return Loc(function.__code__.co_filename, found)


def refused(function, code: str) -> SteptraceError:
    with pytest.raises(SteptraceError) as caught:
        steptrace.program(function).trace()
    assert (caught.value.code, caught.value.loc) == (code, mark(function)), caught.value.render()
    return caught.value


def accepted(function) -> steptrace.Program:
    return steptrace.program(function).trace()


# What Python may not do with a value


def test_branching_on_a_flag():
    def wrong(step):
        flag = overlong(step.take())
        if flag:  # !
            step.update()

    error = refused(wrong, "ST101")
    assert error.message == "Python cannot branch on `%flag`: it has no value while the step is traced"

    def right(step, save=True):
        rest(step)
        if save:
            step.save_checkpoint()

    accepted(right)


@pytest.mark.parametrize(
    "use",
    [
        lambda step, flag: not step.first,
        lambda step, flag: flag and step.last,
        lambda step, flag: step.last or flag,
        lambda step, flag: step.every(2) and flag,
        lambda step, flag: 1 if ~flag else 2,
        lambda step, flag: [x for x in (1,) if flag],
        lambda step, flag: assert_(flag),
    ],
)
def test_branching_in_all_its_forms(use):
    def wrong(step):
        use(step, overlong(step.take()))

    with pytest.raises(SteptraceError) as caught:
        steptrace.program(wrong).trace()
    assert caught.value.code == "ST101"


def test_a_condition_that_is_called():
    def wrong(step):
        groups = step.advantages(step.reward(step.take()))
        for mb in step.micro_batches(step.pack(groups)):
            with step.first():  # !
                step.fwd_bwd(mb)

    error = refused(wrong, "ST110")
    assert error.message == "`first` is a condition, and takes no arguments or brackets"
    assert error.help == "write `with step.first:`"


def assert_(value):
    assert value


@pytest.mark.parametrize(
    ("use", "verb"),
    [
        (lambda v: v == 1, "compared"),
        (lambda v: v != v, "compared"),
        (lambda v: v in [1], "compared"),
        (lambda v: v <= 1, "compared"),
        (lambda v: v + 1, "computed with"),
        (lambda v: 1 - v, "computed with"),
        (lambda v: -v, "computed with"),
        (lambda v: len(v), "measured with len()"),
        (lambda v: list(v), "iterated over"),
        (lambda v: tuple(zip(v, v, strict=True)), "iterated over"),
        (lambda v: v[0], "indexed"),
        (lambda v: 1 in v, "searched"),
        (lambda v: v(), "called"),
        (lambda v: float(v), "turned into a number"),
        (lambda v: range(v), "turned into a number"),
    ],
)
def test_computing_with_a_value(use, verb):
    def wrong(step):
        use(step.take())

    with pytest.raises(SteptraceError) as caught:
        steptrace.program(wrong).trace()
    assert caught.value.code == "ST102"
    assert caught.value.message == f"`%groups` cannot be {verb}: it has no value while the step is traced"
    assert caught.value.loc == Loc(__file__, use.__code__.co_firstlineno)


def test_a_value_may_be_stored_hashed_and_printed():
    def right(step):
        step.dispatch(prompts=1, samples=1)
        groups = step.take()
        table = {groups: groups}
        assert f"{groups}" == "<traced %groups : groups>"
        assert groups is not None
        assert not hasattr(groups, "rewards")
        rest(step, next(iter(table.values())))

    accepted(right)


def test_reading_an_attribute_off_a_value():
    def wrong(step):
        groups = step.take()
        return groups.rewards  # !

    assert isinstance(refused(wrong, "ST103"), TracedAttributeError)


# Loops


def test_break():
    def wrong(step):
        rest(step)
        for mb in step.micro_batches(step.stream()):
            step.fwd_bwd(mb)
            break  # !
        step.update()

    error = refused(wrong, "ST104")
    assert error.notes[0].loc == Loc(__file__, mark(wrong).line - 2)


def test_break_as_the_last_statement_and_swallowed():
    def wrong(step):
        try:
            for _ in step.epochs(3):
                break  # !
        except BaseException:
            raise AssertionError("nothing to catch") from None

    refused(wrong, "ST104")


def test_return_inside_a_loop():
    def wrong(step, prompts=3):
        for mb in step.micro_batches(step.stream()):
            step.fwd_bwd(mb)
            if prompts == 3:
                return  # !
        step.update()

    refused(wrong, "ST104")


def test_a_loop_whose_iterator_is_kept_and_never_ended():
    def wrong(step):
        loop = iter(step.micro_batches(step.stream()))  # !
        step.fwd_bwd(next(loop))
        step.update()
        kept.append(loop)

    refused(wrong, "ST104")
    kept.clear()
    gc.collect()


def test_a_loop_left_by_an_exception_that_the_user_catches():
    def wrong(step):
        try:
            for _ in step.micro_batches(step.stream()):
                raise KeyError("mine")  # !
        except KeyError:
            pass
        step.update()

    refused(wrong, "ST104")


def test_leaving_a_loop_over_plain_values_is_fine():
    def right(step):
        for _ in range(3):
            break
        rest(step)

    accepted(right)


def test_continue_is_fine():
    def right(step):
        step.dispatch(prompts=1, samples=1)
        for mb in step.micro_batches(step.stream()):
            step.fwd_bwd(mb)
            continue
        step.update()
        step.sync_weights()
        step.commit()

    accepted(right)


def test_a_loop_run_over_twice():
    def wrong(step):
        loop = step.micro_batches(step.stream())
        for mb in loop:
            step.fwd_bwd(mb)
        for mb in loop:  # !
            step.fwd_bwd(mb)

    error = refused(wrong, "ST105")
    assert error.message == "the traced loop `micro_batches` is run over twice"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda step: step.micro_batches(step.stream()), "loop `micro_batches` is never run over"),
        (lambda step: step.stream(), "the stream is never used"),
        (lambda step: step.every(3), "condition `every 3` is never used"),
        (lambda step: step.when(step.has("x")), "condition `has(x)` is never used"),
    ],
)
def test_things_that_are_made_and_never_used(what, message):
    def wrong(step):
        rest(step)
        what(step)

    with pytest.raises(SteptraceError) as caught:
        steptrace.program(wrong).trace()
    assert (caught.value.code, caught.value.message) == ("ST125", message)
    assert caught.value.help == ("put ops under it: `with condition:`" if message.startswith("condition") else "")
    assert caught.value.loc == Loc(__file__, what.__code__.co_firstlineno)


# Scope


def test_a_micro_batch_outside_its_loop():
    def wrong(step):
        step.dispatch(prompts=1, samples=1)
        for mb in step.micro_batches(step.stream()):
            mb = step.ref_logps(mb)
        step.fwd_bwd(mb)  # !

    error = refused(wrong, "ST106")
    assert error.message == "`%mb.2` is used outside the loop that makes it"
    assert error.notes[0].loc == Loc(__file__, mark(wrong).line - 1)


def test_a_value_of_one_loop_in_another():
    def wrong(step):
        batch = step.pack(step.advantages(step.reward(step.take())))
        for mb in step.micro_batches(batch):
            old = step.old_logps(mb)
        for _ in step.micro_batches(batch):
            step.fwd_bwd(old)  # !

    refused(wrong, "ST106")


def test_a_value_without_its_condition():
    def wrong(step):
        rest(step)
        with step.every(10):
            metrics = step.get_metrics()
        step.log(metrics)  # !

    error = refused(wrong, "ST106")
    assert error.message == "`%metrics` is used where the condition under which it is made may be false: every 10"


def test_a_value_under_another_condition():
    def wrong(step):
        rest(step)
        with step.every(10):
            metrics = step.get_metrics()
        with step.every(4):
            step.log(metrics)  # !

    refused(wrong, "ST106")

    def right(step):
        rest(step)
        with step.every(10):
            metrics = step.get_metrics()
        with step.every(20):
            step.log(metrics)

    accepted(right)


def test_a_flag_outside_its_loop():
    def wrong(step):
        for part in step.mini_batches(step.take(), 2):
            flag = overlong(part)
            condition = step.when(flag)
        with condition:  # !
            step.update()

    refused(wrong, "ST106")


def test_a_value_of_another_trace():
    def first(step):
        step.dispatch(prompts=1, samples=1)
        kept.append(step.take())
        kept.append(step.has("x"))
        kept.append(step)
        rest(step, kept[0])

    kept.clear()
    accepted(first)

    def value(step):
        step.reward(kept[0])  # !

    def condition(step):
        with step.when(kept[1]):  # !
            step.update()

    def joined(step):
        with step.when(step.has("y") & kept[1]):  # !
            step.update()

    def through_an_op(step):
        overlong(kept[0])  # !

    def other_step(step):
        kept[2].update()  # !

    for wrong in (value, condition, joined, through_an_op, other_step):
        refused(wrong, "ST107")
    with pytest.raises(SteptraceError) as caught:
        kept[2].update()
    assert caught.value.code == "ST107"
    kept.clear()


# What ops are given


def test_a_log_of_metrics_that_no_op_made():
    def wrong(step):
        rest(step)
        step.log(None)  # !

    error = refused(wrong, "ST108")
    assert error.message == "`log` takes metrics that an op of this step made, not None"

    def dictionary(step):
        step.log({"loss": 0.0})  # !

    refused(dictionary, "ST108")

    def of_another_type(step):
        step.log(step.sync_weights())  # !

    assert refused(of_another_type, "ST109").message == "`log` takes metrics as its metrics, not version"

    def right(step):
        rest(step)
        step.log(step.get_metrics())

    accepted(right)


def test_the_counter_of_the_epochs_is_not_a_value():
    def wrong(step):
        for epoch in step.epochs(2):
            number(epoch)  # !

    refused(wrong, "ST108")

    def branching(step):
        for epoch in step.epochs(2):
            if epoch == 0:  # !
                step.update()

    refused(branching, "ST102")


def test_a_condition_of_something_that_is_no_flag():
    def wrong(step):
        with step.when(step.take()):  # !
            step.update()

    refused(wrong, "ST108")

    def plain(step):
        with step.when(True):  # !
            step.update()

    refused(plain, "ST108")


def test_a_field_that_no_op_made():
    def wrong(step):
        groups = step.take()
        step.pack(groups)  # !

    error = refused(wrong, "ST109")
    assert error.message == "`pack` reads `advantages` of its groups, which no op before it has made"
    assert error.notes[0].loc == Loc(__file__, mark(wrong).line - 1)


def test_micro_batches_of_groups_that_are_not_packed():
    def wrong(step):
        for mb in step.micro_batches(step.advantages(step.reward(step.take()))):  # !
            step.fwd_bwd(mb)

    refused(wrong, "ST109")


def test_a_user_op_given_another_type():
    def wrong(step):
        overlong(step.sync_weights())  # !

    assert refused(wrong, "ST109").message == "`overlong` takes groups as its groups, not version"


def test_arguments_that_an_op_does_not_have():
    def missing(step):
        step.dispatch(prompts=1)  # !

    error = refused(missing, "ST110")
    assert error.message == "`dispatch`: missing a required argument: 'samples'"
    assert error.help.startswith("step.dispatch(prompts: int, samples: int, ")

    def unknown(step):
        step.dispatch(prompts=1, samples=1, seed=0)  # !

    refused(unknown, "ST110")

    def misspelled(step):
        step.dispatch(prompts=1, sampels=1)  # !

    error = refused(misspelled, "ST110")
    assert error.message == "`dispatch` has no argument `sampels`"
    assert error.help.startswith("did you mean `samples`? step.dispatch(prompts: int, samples: int, ")

    def too_many(step):
        step.update(step.take())  # !

    refused(too_many, "ST110")

    def of_a_user_op(step):
        overlong(step.take(), threshold=3)  # !

    refused(of_a_user_op, "ST110")

    def misspelled_of_a_user_op(step):
        number(step.take(), scal=3.0)  # !

    assert refused(misspelled_of_a_user_op, "ST110").help.startswith("did you mean `scale`? number(value, *, scale")


def test_attributes_of_a_wrong_type_or_choice():
    def text(step):
        step.dispatch(prompts="1", samples=1)  # !

    assert refused(text, "ST111").message == "`prompts` of `dispatch` is an int, not '1'"

    def truth(step):
        step.dispatch(prompts=True, samples=1)  # !

    refused(truth, "ST111")

    def choice(step):
        step.advantages(step.reward(step.take()), estimator="gpro")  # !

    message = "`estimator` of `advantages` is one of grpo, dr_grpo, rloo, reinforce_pp, not 'gpro'"
    assert refused(choice, "ST111").message == message

    def stream(step):
        step.stream(estimator="ppo")  # !

    refused(stream, "ST111")

    def of_a_user_op(step):
        number(step.take(), scale="big")  # !

    refused(of_a_user_op, "ST111")

    def right(step):
        rest(step)
        number(step.get_metrics(), scale=2, name="two")

    accepted(right)


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2", None])
def test_counts_are_whole_numbers_of_at_least_one(count):
    for use in (
        lambda step: step.every(count),
        lambda step: step.epochs(count),
        lambda step: step.mini_batches(step.take(), count),
    ):
        with pytest.raises(SteptraceError) as caught:
            trace_of(use)
        assert (caught.value.code, caught.value.loc) == ("ST111", Loc(__file__, use.__code__.co_firstlineno))


def trace_of(use):
    def wrong(step):
        use(step)

    return steptrace.program(wrong).trace()


def test_an_op_that_the_step_does_not_have():
    def wrong(step):
        step.fwd_bdw(1)  # !

    error = refused(wrong, "ST112")
    assert (error.message, error.help) == ("the step has no op `fwd_bdw`", "did you mean `step.fwd_bwd`?")


# Traces and their ends


def test_a_trace_inside_a_trace():
    def inner(step):
        rest(step)

    def wrong(step):
        rest(step)
        steptrace.trace(steptrace.program(inner))  # !

    refused(wrong, "ST113")

    def right(step):
        inner(step)

    accepted(right)


def test_a_refusal_that_the_user_catches_is_still_a_refusal():
    def wrong(step):
        rest(step)
        with contextlib.suppress(SteptraceError):
            step.log(None)  # !

    refused(wrong, "ST108")


def test_the_first_of_two_refusals_is_the_one_reported():
    def wrong(step):
        for mb in step.micro_batches(step.stream()):
            step.fwd_bwd(mb)
            break  # !
        step.log(None)

    assert isinstance(refused(wrong, "ST104"), LoopLeftError)


def test_every_refusal_renders_with_the_line():
    def wrong(step):
        rest(step)
        step.log(None)  # !

    text = refused(wrong, "ST108").render()
    assert text.startswith("error[ST108]: `log` takes metrics")
    assert f"test_refused.py:{mark(wrong).line}  step.log(None)  # !" in text


# Carries


def test_carries_that_are_declared_or_set_in_a_wrong_way():
    def taken(step):
        number(step.take())
        step.carry("groups", init=0.0)  # !

    def text(step):
        step.carry("kl", init="0.1")  # !

    def twice(step):
        kl = step.carry("kl", init=0.1)
        kl.set(number(kl.value))
        kl.set(number(kl.value))  # !

    def not_a_scalar(step):
        kl = step.carry("kl", init=0.1)
        kl.set(step.get_metrics())  # !

    def not_a_value(step):
        step.carry("kl", init=0.1).set(0.2)  # !

    def itself(step):
        kl = step.carry("kl", init=0.1)
        kl.set(kl.value)  # !

    def in_a_loop(step):
        kl = step.carry("kl", init=0.1)
        for mb in step.micro_batches(step.stream()):
            kl.set(number(mb))  # !

    def under_a_condition(step):
        kl = step.carry("kl", init=0.1)
        with step.every(2):
            kl.set(number(kl.value))  # !

    def never(step):
        rest(step)
        step.carry("kl", init=0.1)  # !

    for wrong in (never, taken, text, twice, not_a_scalar, not_a_value, itself, in_a_loop, under_a_condition):
        refused(wrong, "ST120")

    def right(step):
        kl = step.carry("kl", init=0.1)
        rest(step)
        kl.set(number(kl.value))

    accepted(right)


# What only the whole step shows: refused when the trace ends, at the user's line all the same


def test_a_step_without_an_update():
    def wrong(step):
        step.dispatch(prompts=1, samples=1)
        for mb in step.micro_batches(step.stream()):
            step.fwd_bwd(mb)  # !
        step.sync_weights()
        step.commit()

    refused(wrong, "ST139")


def test_two_updates_on_one_accumulation():
    def wrong(step):
        step.dispatch(prompts=1, samples=1)
        for mb in step.micro_batches(step.stream()):
            step.fwd_bwd(mb)
        step.update()
        step.update()  # !
        step.sync_weights()
        step.commit()

    error = refused(wrong, "ST141")
    assert error.notes[0].loc == Loc(__file__, mark(wrong).line - 1)


def test_an_update_for_each_of_two_accumulations_is_fine():
    def right(step):
        step.dispatch(prompts=2, samples=1)
        groups = step.advantages(step.reward(step.take()))
        for _ in range(2):
            for mb in step.micro_batches(step.pack(groups)):
                step.fwd_bwd(mb)
            step.update()
        step.sync_weights()
        step.commit()

    accepted(right)


def test_micro_batches_inside_micro_batches():
    def wrong(step):
        step.dispatch(prompts=1, samples=1)
        batch = step.pack(step.advantages(step.reward(step.take())))
        for _ in step.micro_batches(batch):
            for mb in step.micro_batches(batch):  # !
                step.fwd_bwd(mb)
        step.update()
        step.sync_weights()
        step.commit()

    refused(wrong, "ST154")


def test_a_condition_of_the_micro_batches_outside_their_loop():
    def wrong(step):
        rest(step)
        with step.when(step.last):
            step.save_checkpoint()  # !

    refused(wrong, "ST156")


def test_a_result_that_is_thrown_away():
    def wrong(step):
        step.dispatch(prompts=1, samples=1)
        for mb in step.micro_batches(step.stream()):
            step.ref_logps(mb)  # !
            step.fwd_bwd(mb)
        step.update()
        step.sync_weights()
        step.commit()

    assert "assign the result" in refused(wrong, "ST137").help


def test_an_empty_step():
    def wrong(step):
        pass

    with pytest.raises(SteptraceError) as caught:
        accepted(wrong)
    assert caught.value.code == "ST138"
