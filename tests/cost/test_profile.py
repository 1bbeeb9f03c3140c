"""Costs from a run: what a run in virtual time was given comes out again; what was not seen is said, not guessed."""

from __future__ import annotations

import dataclasses

import pytest

from steptrace.cost import parse_costs
from steptrace.cost.profile import profile_of
from steptrace.cost.profile_text import profile_text
from steptrace.diag.base import SteptraceError
from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.passes import run_pipeline
from steptrace.simulate import Cost, Durations, simulate

PROGRAM = "grpo{staleness=1,save_every=4}"

COSTS = {
    "on_step_begin": Cost(0.001),
    "dispatch": Cost(0.02, 3.0),
    "take": Cost(0.003),
    "reward": Cost(0.4),
    "advantages": Cost(0.05),
    "pack": Cost(0.3),
    "next_mb": Cost(0.004),
    "ref_logps": Cost(0.01, 0.5),
    "fwd_bwd": Cost(0.25, 10.0),
    "update": Cost(0.02, 4.0),
    "get_metrics": Cost(0.2),
    "save_checkpoint": Cost(1.5),
    "sync_weights": Cost(0.7),
    "commit": Cost(0.006),
    "log": Cost(0.31),
    "on_step_end": Cost(0.11),
    "free": Cost(0.002),
}


def run(pipeline: str = "", durations: Durations | None = None, steps: int = 9, micro_batches: int = 4):
    """A run in virtual time; gives its events and spans, what was run, and the program as written."""
    source = resolve(PROGRAM)
    schedule = run_pipeline(source, pipeline).schedule
    plan = lower(schedule.program, source=schedule.source)
    made = simulate(plan, durations or Durations(COSTS), micro_batches=micro_batches, steps=steps, latch_s=0)
    return made.events, made.spans, schedule.program, source


def times(pipeline: str = "", durations: Durations | None = None) -> dict[str, tuple[float, float]]:
    """The costs of a profile of a run, read from its text."""
    events, spans, program, source = run(pipeline, durations)
    text = profile_text(profile_of(events, spans, program, source), program=PROGRAM, pipeline=pipeline)
    return {name: (cost.issue_s, cost.work_s) for name, cost in parse_costs(text).ops.items()}


def test_the_costs_of_a_run_come_out_of_it_again():
    found = times()
    for name, cost in COSTS.items():
        assert found[name] == pytest.approx((cost.issue_s, cost.work_s), rel=1e-5), name


def test_under_a_schedule_an_op_that_ran_in_parts_takes_what_its_parts_take():
    found = times("pipelined-boundary")
    assert found["update"][0] + found["update"][1] == pytest.approx(4.02, rel=1e-5)
    assert found["get_metrics"] == pytest.approx((0.2, 0.0), rel=1e-5)
    assert found["fwd_bwd"] == pytest.approx((0.25, 10.0), rel=1e-5)
    assert found["fwd_bwd_staged"][1] == pytest.approx(10.0, rel=1e-5)


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary", "async-everything"])
def test_a_plan_by_the_file_needs_nothing_else(pipeline: str):
    events, spans, program, source = run(pipeline)
    found = profile_of(events, spans, program, source)
    assert found.unknown == {}
    assert found.micro_batches == (4, 4, 4)
    assert parse_costs(profile_text(found, program=PROGRAM)).covering(source)


def test_an_op_that_did_not_run_is_said_to_be_unknown_and_asked_for():
    events, spans, program, source = run(steps=3)
    found = profile_of(events, spans, program, source)
    assert list(found.unknown) == ["save_checkpoint"]
    text = profile_text(found, program=PROGRAM)
    assert "#   save_checkpoint: did not run in the steps that were counted" in text
    assert "[ops.save_checkpoint]" not in text
    with pytest.raises(SteptraceError, match="`save_checkpoint` has no cost") as caught:
        parse_costs(text).covering(source)
    assert caught.value.code == "ST332"


def test_training_whose_work_nobody_saw_is_unknown():
    events, _, program, source = run()
    found = profile_of(events, (), program, source)
    assert set(found.unknown) == {"fwd_bwd", "update"}
    assert "`--timed` (`timed=True`) measures it" in found.unknown["fwd_bwd"]


@pytest.mark.parametrize("pipeline", ["pipelined-boundary", "async-everything"])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_training_that_ran_in_parts_which_nobody_saw_is_said_to_be_measured_by_timing(pipeline, micro_batches):
    events, _, program, source = run(pipeline, micro_batches=micro_batches)
    found = profile_of(events, (), program, source)
    assert set(found.unknown) == {"fwd_bwd", "update"}
    assert all("the trainer offers nothing to wait for" in why for why in found.unknown.values())


def test_an_update_without_a_call_of_its_own_is_not_said_to_be_measured_by_timing():
    events, spans, program, source = run("fuse-update")
    found = profile_of(events, [span for span in spans if span.what != "update"], program, source)
    assert dict(found.unknown) == {"update": "it is done within other calls: a run without this pipeline measures it"}
    assert profile_of(events, spans, program, source).unknown == {}


def slow_first(op, step, micro, cost):
    """The first micro-batch takes three times as long to send."""
    if op.kind == "fwd_bwd" and micro == 0:
        return dataclasses.replace(cost, issue_s=3 * cost.issue_s)
    return cost


def test_the_first_micro_batch_stands_apart_where_it_differs():
    events, spans, program, source = run(durations=Durations(COSTS, varying=slow_first))
    found = profile_of(events, spans, program, source)
    assert list(found.firsts) == ["fwd_bwd"]
    costs = parse_costs(profile_text(found, program=PROGRAM))
    assert costs.firsts["fwd_bwd"].issue_s == pytest.approx(0.75, rel=1e-5)
    assert costs.ops["fwd_bwd"].issue_s == pytest.approx(0.25, rel=1e-5)


def test_control_the_first_micro_batch_stands_with_the_others_where_it_does_not():
    events, spans, program, source = run()
    assert profile_of(events, spans, program, source).firsts == {}


def test_calls_that_waited_for_the_device_at_their_end_do_not_count():
    """Two calls may be in flight, so of four the last ones wait; with these the median would be seconds."""
    events, spans, program, source = run()
    long = [event.end - event.start for event in events if event.kind == "fwd_bwd" and event.step >= 2]
    assert sorted(long)[len(long) // 2] > 1
    found = profile_of(events, spans, program, source).ops["fwd_bwd"].issue
    assert found.seconds == pytest.approx(0.25)
    assert f"without {len(long) - found.count} that cannot be told from a wait" in found.how


def test_control_waits_that_are_not_seen_are_counted_as_calls():
    events, spans, program, source = run()
    late = [dataclasses.replace(span, start=span.start + 1e6, end=span.end + 1e6) for span in spans]
    found = profile_of(events, late, program, source)
    assert found.ops["get_metrics"].issue.seconds > 10


def test_a_run_of_two_steps_measures_nothing():
    events, spans, program, source = run(steps=2)
    with pytest.raises(SteptraceError) as caught:
        profile_of(events, spans, program, source)
    assert caught.value.code == "ST641"


def test_each_number_says_where_it_comes_from():
    events, spans, program, source = run()
    text = profile_text(profile_of(events, spans, program, source), program=PROGRAM, note="jax 0, 1 x cpu")
    numbers = [line for line in text.splitlines() if line.startswith(("issue", "work"))]
    assert len(numbers) == len(COSTS) + 5  # dispatch, ref_logps, fwd_bwd, update and sync_weights have work
    assert all(" # median of " in line for line in numbers)
    assert "# jax 0, 1 x cpu" in text


def test_work_on_a_device_that_is_shared_is_told():
    events, spans, program, source = run()
    assert profile_of(events, spans, program, source).shared == ()
    moved = [dataclasses.replace(s, device="trainer" if s.device == "reference" else s.device) for s in spans]
    found = profile_of(events, moved, program, source)
    assert found.shared == ("ref_logps",)
    assert "did the work of ref_logps too" in profile_text(found, program=PROGRAM)


def test_on_cpus_the_file_says_that_cores_are_shared():
    found = profile_of(*run())
    assert "share the cores" in profile_text(found, program=PROGRAM, on_cpu=True)
    assert "share the cores" not in profile_text(found, program=PROGRAM)
