"""The gradient's denominator: one op counts, one divides, once."""

from __future__ import annotations

import pytest

import steptrace
from steptrace.diag import SteptraceError
from steptrace.ir import Program, verify
from steptrace.lang.reference import resolve
from steptrace.passes import run_pipeline


@steptrace.op(reads=["grads.sums", "grads.count"], writes=["grads.sums"])
def mean():
    """Divides."""


@steptrace.op(reads=["grads.count"], writes=["grads"])
def mean_of_all():
    """Divides, and says less about what it writes."""


@steptrace.op(reads=["grads"], writes=["grads"])
def clipped():
    """Scales by something else."""


@steptrace.op(reads=["grads.count"], writes=["log"])
def reported():
    """Looks at the count."""


@steptrace.op(takes=("micro_batch",), gives="micro_batch<scaled>", reads=["grads.count"], writes=[])
def scaled(mb):
    """Normalises what the loss is made of."""
    return mb


@steptrace.op(takes=("micro_batch",), reads=[], writes=["grads.count"])
def counted(mb):
    """Counts tokens."""


@steptrace.op(reads=[], writes=["grads.count"])
def number_of_micro_batches():
    """Replaces the count."""


@steptrace.op(takes=("micro_batch",), reads=["params", "grads.sums"], writes=["grads.sums"])
def sums(mb):
    """A training call that does not count."""


@steptrace.op(reads=["params", "grads.sums"], writes=["params", "grads"])
def applied():
    """An update that does not divide."""


@steptrace.op(reads=["params", "grads.sums", "grads.count"], writes=["params", "grads"])
def divided_and_applied():
    """An update that does."""


NOTHING = "nothing"


def traced(first=NOTHING, *, call="fwd_bwd", each=NOTHING, after=NOTHING, then=NOTHING, update="update") -> Program:
    """A step with ops before and after each training call, and before the update."""
    own = {name: thing for name, thing in globals().items() if callable(thing)}

    @steptrace.program(staleness=1)
    def mine(step):
        step.dispatch(prompts=4, samples=2)
        scores = step.advantages(step.reward(step.take()))
        for mb in step.micro_batches(step.pack(scores)):
            if first != NOTHING:
                mb = own[first](mb)
            step.fwd_bwd(mb) if call == "fwd_bwd" else own[call](mb)
            if each != NOTHING:
                own[each](mb) if each == "counted" else own[each]()
        for name in (after, then):
            if name != NOTHING:
                own[name]()
        step.update() if update == "update" else own[update]()
        step.sync_weights()
        step.commit()

    return mine.trace()


def refusal(**parts: str) -> SteptraceError:
    with pytest.raises(SteptraceError) as raised:
        verify(traced(**parts))
    assert raised.value.code == "ST161"
    return raised.value


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"after": "mean"}, "`update` divides the gradient by its count, and `mean` has divided it"),
        ({"after": "mean_of_all"}, "`update` divides the gradient by its count, and `mean_of_all` has divided it"),
        (
            {"after": "mean", "then": "mean_of_all", "update": "applied"},
            "`mean_of_all` divides the gradient by its count, and `mean` has divided it",
        ),
        (
            {"each": "mean", "update": "applied"},
            "`mean` divides by the gradient's count while `fwd_bwd` still adds to it",
        ),
        ({"first": "scaled"}, "`scaled` divides by the gradient's count while `fwd_bwd` still adds to it"),
        ({"each": "counted"}, "`counted` writes the count of the gradient sums, and `fwd_bwd` has decided it"),
        (
            {"after": "number_of_micro_batches"},
            "`number_of_micro_batches` writes the count of the gradient sums, and `fwd_bwd` has decided it",
        ),
        ({"update": "applied"}, "`applied` applies gradient sums that nothing divides by their count"),
        (
            {"after": "mean", "update": "divided_and_applied"},
            "`divided_and_applied` divides the gradient by its count, and `mean` has divided it",
        ),
    ],
)
def test_a_denominator_that_is_used_or_decided_twice(parts: dict[str, str], message: str):
    error = refusal(**parts)
    assert error.message == message
    assert error.help


def test_both_divisions_are_shown():
    error = refusal(after="mean")
    assert error.loc is not None
    assert [note.text for note in error.notes] == ["`mean` divides here"]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"after": "mean", "update": "applied"},
        {"update": "divided_and_applied"},
        {"after": "clipped"},
        {"after": "clipped", "then": "clipped"},
        {"after": "reported"},
        {"each": "reported"},
        {"call": "sums", "each": "counted"},
        {"call": "sums", "each": "counted", "after": "mean", "update": "applied"},
    ],
)
def test_control_one_that_counts_and_one_that_divides(parts: dict[str, str]):
    verify(traced(**parts))


def test_control_schedules_of_the_built_in_step_count_once():
    for pipeline in ("pipelined-boundary-replayed", "fuse-update", "pipelined-boundary-unstaged"):
        verify(run_pipeline(resolve("grpo{staleness=1}"), pipeline).schedule.program)


def test_a_step_with_parts_of_the_accumulator_is_scheduled_and_proved():
    from steptrace.check.proof import prove_equal
    from steptrace.check.validation import Budget

    program = traced(call="sums", each="counted", after="mean", update="applied")
    result = run_pipeline(program, "take-ahead,async-weight-sync")
    assert {remark.kind for remark in result.remarks} == {"applied"}
    assert prove_equal(result.schedule.program, program, budget=Budget(runs=60)).ok
