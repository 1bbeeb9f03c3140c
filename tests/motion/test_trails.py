"""Trails: what was done, as Python that does it again; and what each motion showed."""

import pytest
from motion_views import changed, plain, refusal

from steptrace.motion import Moved, Schedule, hoist, move_to_lane, peel, relax, rename, rotate, sink, split
from steptrace.passes import PIPELINES, run_pipeline


def derived(schedule: Schedule) -> Schedule:
    """The schedule that the trail's Python makes of the original program."""
    names: dict[str, object] = {}
    exec(schedule.as_python(), names)
    original = schedule.source
    for entry in reversed(schedule.trail):
        if entry.motion == "relax":
            original = plain("grpo").source
    return names["derive"](original)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_trail_of_each_pipeline_makes_the_same_schedule(pipeline: str):
    result = run_pipeline(plain().source, pipeline)
    again = derived(result.schedule)
    assert again == result.schedule


def test_a_trail_reads_as_python():
    schedule = split(plain(), "get_metrics", law="start-fetch").schedule
    schedule = sink(schedule, "fetch_metrics", below="commit").schedule
    assert (
        schedule.as_python()
        == """\
from steptrace.motion import Schedule, sink, split


def derive(program):
    schedule = Schedule.of(program)
    schedule = split(schedule, "get_metrics", law="start-fetch").schedule
    schedule = sink(schedule, "fetch_metrics", below="commit").schedule
    return schedule
"""
    )


def test_a_trail_with_a_changed_contract():
    schedule = relax(plain("grpo"), staleness=1).schedule
    schedule = rotate(schedule, "dispatch", above="take").schedule
    assert derived(schedule) == schedule


def test_a_schedule_read_back_has_the_same_reference():
    result = run_pipeline(plain().source, "pipelined-boundary").schedule
    assert Schedule.of(result.program, result.source) == Schedule(result.source, result.reference, result.program)


def test_what_a_motion_looked_at():
    moved = rotate(plain(), "dispatch", above="take")
    consulted = {str(one.edge): one.slack for one in moved.obligation.edges}
    assert consulted["sync_weights -> dispatch (2) raw rollout.weights[k-2]"] == 0, "not one step further ahead"
    assert moved.obligation.discharged == "slack"
    assert moved.obligation.loc.file.endswith("grpo.py")
    assert moved.obligation.motion == "rotate"


def test_slack_counts_the_steps_that_are_left():
    """With staleness 3 the dispatch could run two steps further ahead before it meets its weights."""
    moved = rotate(plain("grpo{staleness=3}"), "dispatch", above="take")
    slack = {str(one.edge): one.slack for one in moved.obligation.edges}
    assert slack["sync_weights -> dispatch (4) raw rollout.weights[k-4]"] == 2
    begun = plain("grpo{staleness=3}")
    assert rotate(begun, "dispatch", ahead=3, above="take")
    assert refusal(lambda: rotate(begun, "dispatch", ahead=4, above="take")).code == "ST204"


def test_a_schedule_is_not_changed_by_its_motions():
    begun = plain()
    before = (begun.program, begun.reference, begun.trail)
    assert isinstance(peel(begun, "micro_batches"), Moved)
    assert (begun.program, begun.reference, begun.trail) == before


def test_motions_on_lanes_are_recorded_with_their_arguments():
    schedule = move_to_lane(plain(), ("commit", "log"), lane="io").schedule
    schedule = rename(schedule, "host", capacity=3).schedule
    schedule = hoist(schedule, "free", above="on_step_end").schedule
    assert [str(entry) for entry in schedule.trail] == [
        'move_to_lane(schedule, ("commit", "log"), lane="io")',
        'rename(schedule, "host", capacity=3)',
        'hoist(schedule, "free", above="on_step_end")',
    ]
    assert changed(schedule, hoist(schedule, "on_step_end", above="free")) == ["+ on_step_end", "- on_step_end"]
