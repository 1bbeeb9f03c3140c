"""Periods against hand sums, and every event of the graph against a run in virtual time."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType

import pytest

from steptrace.cost import bottleneck, bound_of, critical, instance_slack, judged, period_of, slack
from steptrace.cost.folded import Arc, Folded
from steptrace.cost.machine import Machine
from steptrace.cost.moments import Name
from steptrace.cost.period import decided_in, order_in
from steptrace.cost.ratio import Standstill, largest_ratio, ratio_of
from steptrace.cost.shared import shared
from steptrace.cost.walk import walk
from steptrace.diag.cost import NoPeriodError
from steptrace.lang.reference import resolve
from steptrace.lower import Hold, Plan, lower
from steptrace.motion import Schedule
from steptrace.passes import run_pipeline
from steptrace.simulate import Cost, Durations, simulate

COSTS = {
    "dispatch": Cost(1, 5),
    "reward": Cost(1),
    "pack": Cost(2),
    "ref_logps": Cost(0, 1),
    "fwd_bwd": Cost(0.5, 14, 2),
    "update": Cost(1, 3),
    "get_metrics": Cost(1),
    "sync_weights": Cost(1, 2),
    "save_checkpoint": Cost(1, 30),
    "copy_weights": Cost(0.125, 0.25),
    "apply_weights": Cost(0.75),
    "start_metrics": Cost(0.0625, 0.03125),
    "log": Cost(4),
    "on_step_end": Cost(3),
}
"""Sums of powers of two, so that sums are exact."""

CASES = [
    ("grpo{staleness=1,save_every=3}", ""),
    ("grpo{staleness=1,save_every=3}", "pipelined-boundary"),
    ("grpo{staleness=1,save_every=3}", "pipelined-boundary-staged-after"),
    ("grpo{staleness=1,save_every=3}", "pipelined-boundary-unstaged"),
    ("grpo{staleness=1,save_every=3}", "async-everything"),
    ("grpo_epochs{save_every=2}", "defer-metrics"),
    ("grpo_stream{staleness=1,save_every=2}", "async-everything"),
    ("rloo{save_every=2}", "async-everything"),
    ("dr_grpo{staleness=2,save_every=2}", "fuse-update"),
]


def schedule_of(program: str, pipeline: str) -> Schedule:
    return run_pipeline(resolve(program), pipeline).schedule


def plan_for(program: str, pipeline: str) -> Plan:
    schedule = schedule_of(program, pipeline)
    return lower(schedule.program, source=schedule.source)


def graph_of(*arcs: tuple[int, int, float, int]) -> Folded:
    size = 1 + max(max(arc[:2]) for arc in arcs)
    return Folded(tuple((Name(f"o{at}", (), 1, "host"), 0) for at in range(size)), tuple(Arc(*arc) for arc in arcs), 1)


def test_the_largest_ratio_of_a_graph_by_hand():
    graph = graph_of((0, 1, 3.0, 0), (1, 0, 4.0, 1), (1, 2, 1.0, 1), (2, 1, 11.0, 1), (2, 2, 5.0, 1))
    largest = largest_ratio(graph)
    assert largest.ratio == 7  # (3 + 4) / 1, against (1 + 11) / 2 and 5 / 1
    assert ratio_of(largest.circle) == 7


def test_a_ratio_is_exact_where_seconds_a_turn_are_no_float():
    assert largest_ratio(graph_of((0, 1, 1.0, 1), (1, 0, 0.0, 2))).ratio == Fraction(1, 3)


def test_a_graph_without_a_circle_has_no_period():
    assert largest_ratio(graph_of((0, 1, 9.0, 0))).ratio == 0


def test_a_circle_without_progress_has_no_ratio():
    with pytest.raises(Standstill):
        largest_ratio(graph_of((0, 1, 1.0, 0), (1, 0, 1.0, 0)))


def test_what_runs_every_tenth_step_costs_each_step_a_tenth():
    durations = Durations({"update": Cost(work_s=100), "save_checkpoint": Cost(work_s=500)})
    period = period_of(plan_for("grpo{save_every=10}", ""), durations, micro_batches=2)
    assert period.exact == 150
    assert period.cadence == 10


def test_control_what_runs_every_fifth_step_costs_more():
    durations = Durations({"update": Cost(work_s=100), "save_checkpoint": Cost(work_s=500)})
    assert period_of(plan_for("grpo{save_every=5}", ""), durations, micro_batches=2).exact == 200


def test_the_plain_step_is_a_sum():
    period = period_of(plan_for("grpo{staleness=1,save_every=1000000}", ""), Durations(COSTS), micro_batches=3)
    # dispatch 1 + 5, reward 1, pack 2, reference 1, shipping 2, three times 14, update 3, metrics 1, sync 1 + 2,
    # log 4, callback 3
    assert period.exact == 6 + 1 + 2 + 1 + 2 + 42 + 3 + 1 + 3 + 4 + 3


def test_the_pipelined_step_is_what_stands_between_two_staged_calls():
    plan = plan_for("grpo{staleness=1,save_every=1000000}", "pipelined-boundary")
    period = period_of(plan, Durations(COSTS), micro_batches=3)
    # three times 14, the held update's call 1 and work 3, metrics set aside 1/16, the sync's call 1 and copy 2
    assert period.exact == 42 + 1 + 3 + Fraction(1, 16) + 1 + 2


@pytest.mark.parametrize(("program", "pipeline"), CASES)
def test_every_event_of_the_graph_happens_when_it_does_in_a_run(program: str, pipeline: str):
    plan, durations = plan_for(program, pipeline), Durations(COSTS)
    run = simulate(plan, durations, micro_batches=3, steps=8)
    events = walk(Machine(plan, durations, (3,) * 8, decided_in(run)))
    events.in_order(order_in(run, shared(events)))
    times = events.times()
    ends: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for (op, step, _), moments in events.ends.items():
        ends.setdefault((op, step), []).append(tuple(times[moment.event] + moment.later_s for moment in moments))
    assert run.events
    for event in run.events:
        near = min(abs(end - event.end) + abs(done - event.done) for end, done in ends[event.op, event.step])
        assert near < 1e-9, str(event)


@pytest.mark.parametrize(("program", "pipeline"), CASES)
def test_the_period_is_that_of_a_run(program: str, pipeline: str):
    plan = plan_for(program, pipeline)
    period = period_of(plan, Durations(COSTS), micro_batches=3)
    steps = 40 + 4 * period.cadence
    ends = {
        event.step: event.end for event in simulate(plan, Durations(COSTS), micro_batches=3, steps=steps).of("free")
    }
    grown = ends[steps - 4] - ends[steps - 4 - period.cadence]
    assert grown == pytest.approx(period.seconds * period.cadence, rel=1e-12)


def test_unequal_counts_give_bounds_that_say_so():
    plan = plan_for("grpo{staleness=1,save_every=1000000}", "pipelined-boundary")
    period = period_of(plan, Durations(COSTS), micro_batches=[2, 4, 3])
    assert period.is_bound
    assert period.exact is None
    assert period.seconds == period_of(plan, Durations(COSTS), micro_batches=4).seconds
    assert period.least == period_of(plan, Durations(COSTS), micro_batches=2).seconds
    ends = {
        event.step: event.end for event in simulate(plan, Durations(COSTS), micro_batches=[2, 4, 3] * 20).of("free")
    }
    assert period.least <= (ends[54] - ends[24]) / 30 <= period.seconds


def test_control_equal_counts_give_no_bounds():
    plan = plan_for("grpo{staleness=1,save_every=1000000}", "")
    assert not period_of(plan, Durations(COSTS), micro_batches=[3, 3]).is_bound


def test_lanes_that_wait_for_one_another_have_no_period():
    plan = plan_for("grpo{staleness=1,save_every=1000000}", "pipelined-boundary-unstaged")
    stuck = replace(plan, holds=MappingProxyType({**plan.holds, "take": (Hold("free", 0, None, "by hand"),)}))
    with pytest.raises(NoPeriodError, match="wait for one another"):
        period_of(stuck, Durations(COSTS), micro_batches=2)


def test_the_bottleneck_in_words():
    durations = Durations({"fwd_bwd": Cost(work_s=10), "update": Cost(work_s=4)})
    plan = plan_for("grpo{staleness=1,save_every=1000000}", "")
    assert bottleneck(period_of(plan, durations, micro_batches=9)) == "trainer is the bottleneck: 9 x fwd_bwd + update"
    assert bottleneck(period_of(plan, Durations(COSTS), micro_batches=3)).startswith("a circle")
    mixed = critical(period_of(plan, Durations(COSTS), micro_batches=3))
    assert [(part.op, part.where, part.count) for part in mixed if part.op == "fwd_bwd"] == [
        ("fwd_bwd", "link", 1),
        ("fwd_bwd", "trainer", 3),
    ]
    assert all("grpo.py" in part.line for part in mixed)


def test_the_seconds_of_a_circle_over_several_steps_are_those_of_a_step():
    durations = Durations({"fwd_bwd": Cost(work_s=10), "update": Cost(work_s=4), "log": Cost(1)})
    period = period_of(plan_for("grpo{save_every=10}", ""), durations, micro_batches=2)
    assert period.seconds == 25
    words = "2 x fwd_bwd (20 s on trainer) -> update (4 s on trainer) -> log (1 s on host)"
    assert bottleneck(period) == f"a circle over 10 steps, a step: {words}"


def test_control_steps_of_a_circle_that_differ_are_told_apart_with_all_their_seconds():
    durations = Durations({"fwd_bwd": Cost(work_s=10), "update": Cost(work_s=4), "save_checkpoint": Cost(1)})
    said = bottleneck(period_of(plan_for("grpo{save_every=10}", ""), durations, micro_batches=2))
    assert "9 of 10 times 2 x fwd_bwd + update (216 s in all)" in said
    assert "1 of 10 times 2 x fwd_bwd (20 s on trainer) -> update (4 s on trainer) -> save_checkpoint" in said
    assert ", a step: " not in said


def test_runs_that_read_the_same_are_told_once_and_what_is_short_is_counted():
    kinds = [op.kind for op in plan_for("grpo", "").program.ops()]
    durations = Durations({kind: Cost(0.001 + 0.0001 * at) for at, kind in enumerate(kinds)} | {"next_mb": Cost(0.1)})
    period = period_of(plan_for("grpo{save_every=10}", ""), durations, micro_batches=6)
    said = bottleneck(period)
    assert len(critical(period)) > 180
    assert len(said) < 300
    assert said.startswith("host is the bottleneck over 10 steps: 50 of 60 times next_mb + ref_logps + fwd_bwd (")
    assert "; 10 of 60 times next_mb + " in said
    assert " shorter (" in said


def test_an_op_may_take_longer_by_its_slack_and_no_more():
    plan = plan_for("grpo{staleness=1,save_every=1000000}", "pipelined-boundary-unstaged")
    before = period_of(plan, Durations(COSTS), micro_batches=3)
    room = slack(before)["log"]
    assert room > 0
    for more, grows in ((room, False), (room + 1, True)):
        longer = Durations({**COSTS, "log": Cost(4 + more)})
        after = period_of(plan, longer, micro_batches=3)
        assert (after.seconds > before.seconds + 1e-9) == grows


def test_an_op_in_a_loop_shares_its_room_among_its_instances():
    """A circle of 10 s a turn, and one of two rounds of a loop that take a second each."""
    names = (*((Name("looped", (at,), 1, "host"), 0) for at in range(2)), (Name("other", (), 1, "host"), 0))
    arcs = (Arc(0, 1, 1.0, 0), Arc(1, 0, 1.0, 1), Arc(2, 2, 10.0, 1))
    graph = Folded(names, arcs, 1)
    period = replace(
        period_of(plan_for("grpo", ""), Durations(COSTS), micro_batches=1), graph=graph, largest=largest_ratio(graph)
    )
    assert instance_slack(period) == {"looped": 8.0, "other": 0.0}
    assert slack(period) == {"looped": 4.0, "other": 0.0}


@pytest.mark.parametrize("op", ["next_mb", "fetch_metrics"])
def test_all_instances_of_an_op_may_take_longer_by_its_slack_and_no_more(op: str):
    plan = plan_for("grpo{staleness=1,save_every=1000000}", "pipelined-boundary-unstaged")
    before = period_of(plan, Durations(COSTS), micro_batches=3)
    room = min(seconds for id, seconds in slack(before).items() if id.partition(".")[0] == op)
    cost = Durations(COSTS).kind(op)
    for more, grows in ((room * 0.999, False), (room * 1.5 + 1, True)):
        longer = Durations({**COSTS, op: replace(cost, issue_s=cost.issue_s + more)})
        assert (period_of(plan, longer, micro_batches=3).seconds > before.seconds + 1e-9) == grows


def test_no_schedule_is_faster_than_the_bound():
    durations = Durations(COSTS)
    for program, pipeline in CASES[:5]:
        schedule = schedule_of(program, pipeline)
        bound = bound_of(schedule.source, durations, micro_batches=3)
        found = judged(schedule, durations, micro_batches=3, bound=bound)
        assert found.over_bound is not None
        assert found.over_bound >= 1.0 - 1e-12, pipeline


def test_the_bound_is_the_work_of_the_trainer_by_hand():
    bound = bound_of(resolve("grpo{staleness=1,save_every=1000000}"), Durations(COSTS), micro_batches=3)
    assert bound.seconds == 42 + 3 + 0.25 + 0.03125  # the copy for the sync, and the metrics set aside
    assert "trainer" in bound.why


def test_the_bound_of_what_may_not_run_ahead_is_a_circle():
    bound = bound_of(resolve("grpo{staleness=0,save_every=1000000}"), Durations(COSTS), micro_batches=3)
    assert "circle" in bound.why
    assert "dispatch" in bound.why
    assert bound.seconds > 42 + 3 + 5
