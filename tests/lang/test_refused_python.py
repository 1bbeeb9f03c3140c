"""What Python can do with a traced value, or around the tracer's back: refused with the user's line, no TypeError."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import threading
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from test_refused import accepted, number, overlong, refused, rest

import steptrace
from steptrace.diag.tracing import AttributeValueError, TracedValueError

ON_VALUES = {
    "divmod": lambda value: divmod(value, 2),
    "shift": lambda value: value << 1,
    "truncate": math.trunc,
    "floor": math.floor,
    "format": lambda value: f"{value:.3f}",
    "enter": lambda value: value.__enter__(),
    "set an attribute": lambda value: setattr(value, "name", 1),
    "delete an attribute": lambda value: delattr(value, "name"),
    "array": np.asarray,
    "await": lambda value: value.__await__(),
    "pickle": pickle.dumps,
}

ON_CONDITIONS = {
    "compare": lambda condition: condition == condition,
    "compare with another": lambda condition: condition != 1,
    "order": lambda condition: condition < condition,
    "measure": len,
    "iterate": list,
    "exclusive or": lambda condition: condition ^ condition,
    "index": lambda condition: operator.index(condition),
}


@pytest.mark.parametrize("use", ON_VALUES.values(), ids=ON_VALUES)
def test_nothing_python_does_with_a_value_passes(use):
    def wrong(step):
        groups = step.take()
        use(groups)

    with pytest.raises(TracedValueError) as caught:
        accepted(wrong)
    assert caught.value.loc is not None
    assert caught.value.loc.file == __file__


@pytest.mark.parametrize("use", ON_CONDITIONS.values(), ids=ON_CONDITIONS)
def test_nothing_python_does_with_a_condition_passes(use):
    def wrong(step):
        rest(step)
        use(step.first)

    with pytest.raises(TracedValueError) as caught:
        accepted(wrong)
    assert caught.value.loc is not None
    assert caught.value.loc.file == __file__


def test_control_values_print_hash_and_copy():
    def right(step):
        step.dispatch(prompts=1, samples=1)
        groups = copy.deepcopy(step.take())
        assert f"{groups}" == str(groups) == repr(groups)
        assert copy.copy(groups) is groups
        assert groups in {groups: 1}
        rest(step, groups)

    accepted(right)


def test_a_constant_as_a_condition_on_either_side():
    def wrong(step):
        with step.when(True & step.every(2)):  # !
            step.save_checkpoint()

    def also_wrong(step):
        with step.when(True | overlong(step.take())):  # !
            step.save_checkpoint()

    refused(wrong, "ST108")
    refused(also_wrong, "ST108")


def test_a_condition_made_of_others_must_be_used_as_well():
    def wrong(step):
        rest(step)
        ~step.every(10)  # !
        step.save_checkpoint()

    def also_wrong(step):
        rest(step)
        step.every(10) & step.every(4)  # !
        step.save_checkpoint()

    def right(step):
        rest(step)
        with step.when(~step.every(10) & step.every(4)):
            step.save_checkpoint()

    refused(wrong, "ST125")
    refused(also_wrong, "ST125")
    accepted(right)


def test_a_condition_on_a_line_of_its_own_is_shown_under_its_with():
    def wrong(step):
        rest(step)
        step.every(10)
        step.save_checkpoint()

    with pytest.raises(steptrace.SteptraceError) as info:
        steptrace.program(wrong).trace()
    assert (info.value.code, info.value.help) == ("ST125", "put ops under it: `with step.every(10):`")


def test_a_condition_that_is_never_left():
    def wrong(step):
        rest(step)
        step.every(10).__enter__()  # !
        step.save_checkpoint()

    refused(wrong, "ST126")


def test_a_condition_that_outlives_its_loop():
    def wrong(step):
        step.dispatch(prompts=1, samples=1)
        batch = step.pack(step.advantages(step.reward(step.take())))
        with ExitStack() as stack:
            for mb in step.micro_batches(batch):
                stack.enter_context(step.when(step.first))  # !
                step.fwd_bwd(mb)
            step.update()

    refused(wrong, "ST126")


def test_conditions_left_out_of_order():
    def wrong(step):
        rest(step)
        outer = step.every(10)
        with outer, step.every(5):
            outer.__exit__(None, None, None)  # !

    refused(wrong, "ST126")


def test_control_conditions_on_an_exit_stack():
    def right(step):
        rest(step)
        with ExitStack() as stack:
            stack.enter_context(step.every(2))
            stack.enter_context(step.every(3))
            step.save_checkpoint()

    accepted(right)


def test_two_loops_at_once():
    def wrong(step):
        step.dispatch(prompts=1, samples=1)
        batch = step.pack(step.advantages(step.reward(step.take())))
        for mb, _ in zip(step.micro_batches(batch), step.micro_batches(batch), strict=True):  # !
            step.fwd_bwd(mb)

    refused(wrong, "ST104")


def test_an_op_of_ones_own_on_something_else_is_no_call_of_its_body():
    def wrong(step):
        overlong(None)  # !
        rest(step)

    def empty(step):
        overlong()  # !
        rest(step)

    refused(wrong, "ST108")
    refused(empty, "ST110")
    assert overlong([1]) is True, "outside a trace the body runs"


def test_what_was_refused_in_another_thread_is_the_cause():
    def wrong(step):
        groups = step.take()
        found = []

        def work():
            with suppress(steptrace.SteptraceError):
                found.append(step.reward(groups))  # !

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        step.pack(found[0])

    assert "another thread" in refused(wrong, "ST107").message


def test_control_an_error_of_the_users_own_passes_unchanged():
    def wrong(step):
        rest(step)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        accepted(wrong)


@pytest.mark.parametrize("scale", [10**400, float("nan"), -(10**400)])
def test_numbers_that_are_no_floats(scale):
    def wrong(step):
        rest(step)
        number(step.get_metrics(), scale=scale)  # !

    def carried(step):
        step.carry("kl", init=scale)  # !

    refused(wrong, "ST111")
    refused(carried, "ST120")


@pytest.mark.parametrize("sizes", [{"prompts": 0}, {"prompts": -1}, {"samples": 0}])
def test_a_dispatch_of_nothing(sizes):
    def wrong(step):
        step.dispatch(**{"prompts": 1, "samples": 1} | sizes)

    with pytest.raises(AttributeValueError, match="at least 1"):
        accepted(wrong)
