"""`memory-budget` and the motion `budget`: how many copies of the parameters are live at a time."""

from __future__ import annotations

from functools import lru_cache

import pytest

import steptrace
from steptrace.check.edges import edges_of
from steptrace.check.validation import Budget, validate
from steptrace.diag import SteptraceError
from steptrace.diag.validation import RoomError
from steptrace.ir import Program, parse_program, print_program, verify
from steptrace.lang.reference import resolve
from steptrace.motion import Schedule, budget, move_to_lane, rename, sink, split
from steptrace.passes import run_pipeline
from steptrace.testing.edits import edited
from steptrace.testing.judge import judge
from steptrace.testing.runs import source_of
from steptrace.testing.soundness import waits_between

NAME = 'grpo{staleness=1, saves="may_fail_late"}'
BOTH = "async-weight-sync,async-checkpoint"
FEW = Budget(runs=100)


@lru_cache
def derived(pipeline: str, name: str = NAME) -> Schedule:
    result = run_pipeline(resolve(name), pipeline)
    assert [remark for remark in result.remarks if remark.kind == "missed"] == []
    return result.schedule


def waits(pipeline: str) -> list[tuple[str, str, int]]:
    """What an op that makes a copy waits for, of the ops that are the last to use one."""
    found = edges_of(derived(pipeline).reference)
    return sorted(
        (edge.before, edge.after, edge.distance)
        for edge in found
        if edge.what == "trainer.copies" and edge.before in ("transfer_weights", "write_checkpoint")
    )


def test_with_room_for_one_copy_each_waits_for_the_other():
    one = [("transfer_weights", "snapshot_checkpoint", 1), ("write_checkpoint", "copy_weights", 0)]
    assert waits(f"{BOTH},memory-budget{{copies=1.5}}") == one
    assert waits(f"{BOTH},memory-budget{{bytes=6000, params_bytes=4000}}") == one


def test_control_with_room_for_two_each_waits_for_its_own():
    two = [("transfer_weights", "copy_weights", 1), ("write_checkpoint", "snapshot_checkpoint", 1)]
    assert waits(f"{BOTH},memory-budget{{copies=2}}") == two
    assert waits(BOTH) == []


def test_three_places_for_two_holders():
    assert ("write_checkpoint", "copy_weights", 1) in waits(f"{BOTH},memory-budget{{copies=3}}")
    assert ("transfer_weights", "snapshot_checkpoint", 2) in waits(f"{BOTH},memory-budget{{copies=3}}")


def test_the_text_keeps_the_budget():
    schedule = derived(f"pipelined-boundary,{BOTH},memory-budget")
    text = print_program(schedule.program)
    assert "resource trainer.copies : slot(1)" in text
    read = parse_program(text)
    verify(read)
    assert read.resource_table()["trainer.copies"].capacity == 1
    assert validate(read, schedule.source, budget=FEW).ok


def on_one_lane(*, room: int = 0) -> Schedule:
    """The checkpoint written by the lane that copies the weights, behind the copy."""
    schedule = split(Schedule.of(resolve(NAME)), "save_checkpoint", law="snapshot-write").schedule
    schedule = split(schedule, "sync_weights", law="copy-transfer-apply").schedule
    schedule = sink(schedule, "write_checkpoint", below="copy_weights").schedule
    return budget(schedule, "trainer.copies", capacity=room).schedule if room else schedule


def test_an_order_that_holds_two_copies_is_refused():
    with pytest.raises(SteptraceError) as raised:
        on_one_lane(room=1)
    assert raised.value.code == "ST206"
    assert on_one_lane(room=2).program.resource_table()["trainer.copies"].capacity == 2


def test_the_pass_says_how_many_copies_there_would_be():
    schedule = on_one_lane()
    result = run_pipeline(schedule.program, "memory-budget{copies=1.5}", source=schedule.source)
    (remark,) = result.remarks
    assert (remark.kind, remark.code) == ("missed", "ST291")
    assert remark.message == (
        "2 copies of the parameters have to be live at a time, and a budget of 1.5 times the parameters has room for 1"
    )
    assert result.schedule.program == schedule.program


def test_lanes_that_could_only_wait_for_each_other_are_refused():
    """The io lane writes the checkpoint after it transferred the weights, whose copy waits for that write."""
    schedule = split(Schedule.of(resolve(NAME)), "save_checkpoint", law="snapshot-write").schedule
    schedule = split(schedule, "sync_weights", law="copy-transfer-apply").schedule
    schedule = sink(schedule, "write_checkpoint", below="apply_weights").schedule
    ids = ("transfer_weights", "apply_weights", "write_checkpoint")
    schedule = move_to_lane(schedule, ids, lane="io").schedule
    for copy in ("trainer.copies.sync", "trainer.copies.save"):
        schedule = rename(schedule, copy, capacity=1).schedule
    with pytest.raises(SteptraceError) as raised:
        budget(schedule, "trainer.copies", capacity=1)
    assert raised.value.code == "ST206"
    assert "more than 1 entry at a time" in raised.value.message
    budget(schedule, "trainer.copies", capacity=2)


def two_copies(capacity: int) -> Program:
    text = print_program(derived(f"{BOTH},memory-budget{{copies={capacity}}}").program)
    edits = 'in write_checkpoint replace "lane=io" with "lane=host"\nmove write_checkpoint after copy_weights'
    return parse_program(edited(text, edits))


def refusing(program: Program) -> list[str]:
    layers = ("coverage", "order", "room", "translation", "failure", "crash")
    return [name for name in layers if not validate(program, resolve(NAME), budget=FEW, layers=(name,)).ok]


def test_runs_count_the_live_copies_and_no_other_layer_does():
    assert refusing(two_copies(1)) == ["room"]
    report = validate(two_copies(1), resolve(NAME), budget=FEW)
    assert report.counterexample is not None
    assert report.counterexample.error is RoomError
    assert report.counterexample.message.startswith("`trainer.copies` has room for 1, and copy_weights@")


def test_control_runs_find_room_for_two():
    assert refusing(two_copies(2)) == []


ONE = f"{BOTH},memory-budget{{copies=1}}"


def test_the_judge_finds_one_copy_at_a_time_in_every_order():
    schedule = derived(ONE)
    assert judge(
        source_of(schedule.reference), schedule.program, waits_between(schedule.program, schedule.reference)
    ).equal


@pytest.mark.parametrize("waiting", ["copy_weights", "snapshot_checkpoint"])
def test_control_without_a_wait_the_judge_finds_two(waiting: str):
    schedule = derived(ONE)
    waits = [wait for wait in waits_between(schedule.program, schedule.reference) if wait.after != waiting]
    verdict = judge(source_of(schedule.reference), schedule.program, waits)
    assert not verdict.equal
    assert "more than 1 entries may be in use" in verdict.reason


def test_a_copy_of_the_users_own_counts():
    """A moving average of the parameters, kept until the step is logged."""
    average = steptrace.resource("trainer.copies.average", kind="cell", doc="averaged parameters of the step")

    @steptrace.op(reads=["params"], writes=[f"{average.name}[k]"])
    def averaged():
        return None

    @steptrace.op(reads=[f"{average.name}[k]"], writes=["log"])
    def report_average():
        return None

    @steptrace.program(staleness=1)
    def mine(step):
        step.dispatch(prompts=4, samples=2)
        groups = step.take()
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(groups)))):
            step.fwd_bwd(mb)
        step.update()
        averaged()
        metrics = step.get_metrics()
        step.sync_weights()
        step.commit()
        report_average()
        step.log(metrics)

    result = run_pipeline(mine.trace(), "async-weight-sync,memory-budget{copies=1}")
    assert [remark.code for remark in result.remarks if remark.kind == "missed"] == ["ST291"]
    kept = run_pipeline(mine.trace(), "async-weight-sync,memory-budget{copies=2}")
    assert {remark.kind for remark in kept.remarks} == {"applied"}


@pytest.mark.parametrize(
    ("pipeline", "code"),
    [
        (f"{BOTH},memory-budget{{copies=0}}", "ST285"),
        (f"{BOTH},memory-budget{{bytes=10}}", "ST285"),
        ("memory-budget", "ST283"),
        ("async-weight-sync,memory-budget{copies=0.9}", "ST291"),
    ],
)
def test_budgets_that_are_none(pipeline: str, code: str):
    try:
        codes = [remark.code for remark in run_pipeline(resolve(NAME), pipeline).remarks if remark.kind == "missed"]
    except SteptraceError as error:
        codes = [error.code]
    assert codes == [code]


@pytest.mark.parametrize(("pool", "capacity"), [("params", 1), ("trainer", 1), ("trainer.copies", 0)])
def test_pools_that_are_none(pool: str, capacity: int):
    with pytest.raises(SteptraceError) as raised:
        budget(derived(BOTH), pool, capacity=capacity)
    assert raised.value.code == "ST281"
