"""Devices that two lanes send work to: by hand, against a run, and what has no period."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptrace.cost import bottleneck, bound_of, period_of
from steptrace.cost.folded import Folded
from steptrace.cost.moments import Events, Name, Send
from steptrace.cost.ratio import largest_ratio
from steptrace.cost.shared import in_turn
from steptrace.diag.cost import NoPeriodError, NoRepetitionError
from steptrace.ir import Contract, Op, OpKind, Program, Resource, ResourceKind
from steptrace.lower import Plan, lower
from steptrace.simulate import Cost, Durations
from steptrace_tools.bench.period_draws import Tally, compare, exact, lasts, measure, measured, of_several_lanes

DURATIONS = Durations({"slow": Cost(16, 10), "quick": Cost(5, 8), "look": Cost(0)})


def program(*, looks: tuple[str, ...] = (), together: bool = False) -> Program:
    """A slow call on the host and a quick one on another lane, both for one device; perhaps an op that awaits it."""
    read = ("x", "y") if together else ("y",)
    kinds = (
        OpKind("slow", (), (), reads=("x",), writes=("x",), device="reader", blocking=False, user=True),
        OpKind("quick", (), (), reads=read, writes=("y",), device="reader", blocking=False, user=True),
        OpKind("look", (), (), reads=("z",), writes=("z",), awaits=looks, user=True),
    )
    states = tuple(Resource(name, ResourceKind.STATE) for name in ("x", "y", "z"))
    body = (Op("slow", "slow"), Op("quick", "quick"), Op("look", "look"))
    return Program("two", (), Contract(), states, kinds, body=body)


def plan_of(source: Program) -> tuple[Program, Plan]:
    body = tuple(replace(op, lane="packer") if op.id == "quick" else op for op in source.body)
    schedule = replace(source, body=body)
    return schedule, lower(schedule, source=source)


def test_a_device_that_falls_behind_gives_the_period():
    plan = plan_of(program())[1]
    period = period_of(plan, DURATIONS, micro_batches=1)
    assert period.exact == 10 + 8  # the lanes take 16 and 5
    assert bottleneck(period) in ("reader is the bottleneck: slow + quick", "reader is the bottleneck: quick + slow")
    assert bound_of(program(), DURATIONS, micro_batches=1).seconds == 18
    assert measured(plan, DURATIONS, 1) == 18


def test_a_device_that_keeps_up_does_not():
    plan = plan_of(program())[1]
    durations = Durations({"slow": Cost(16, 10), "quick": Cost(5, 5), "look": Cost(0)})
    assert period_of(plan, durations, micro_batches=1).exact == 16
    assert measured(plan, durations, 1) == 16


def test_control_a_formula_that_looks_at_lanes_and_waits_alone_is_caught():
    def without_devices(plan: Plan, durations: Durations, micro_batches: int) -> float:
        graph = period_of(plan, durations, micro_batches=micro_batches).graph
        lanes = {lane.name for lane in plan.lanes}
        kept = tuple(arc for arc in graph.arcs if graph.names[arc.source][0].where in lanes)
        return float(largest_ratio(Folded(graph.names, kept, graph.steps)).ratio)

    schedule, plan = plan_of(program())
    right, wrong = Tally(), Tally()
    compare(schedule, plan, DURATIONS, 1, exact, right)
    compare(schedule, plan, DURATIONS, 1, without_devices, wrong)
    assert (right.max_relative_error, right.disagreements) == (0, 0)
    assert wrong.max_relative_error == pytest.approx(2 / 18)


def test_a_lane_that_runs_ahead_of_one_that_waits_has_no_period():
    plan = plan_of(program(looks=("x",)))[1]
    with pytest.raises(NoRepetitionError):
        period_of(plan, DURATIONS, micro_batches=1)
    assert issubclass(NoRepetitionError, NoPeriodError)


def test_lanes_that_keep_pace_have_one_though_something_waits():
    """A call of 20 and its work of 8; the host looks at it; then comes the next call."""
    plan = plan_of(program(looks=("x", "y")))[1]
    durations = Durations({"slow": Cost(16, 3), "quick": Cost(20, 8), "look": Cost(0)})
    assert period_of(plan, durations, micro_batches=1).exact == 28
    assert measured(plan, durations, 1) == 28
    joined = plan_of(program(looks=("x", "y"), together=True))[1]
    assert period_of(joined, DURATIONS, micro_batches=1).seconds == measured(joined, DURATIONS, 1) > 18


def test_the_order_of_a_device_is_one_round_of_all_its_work():
    def events_of(order: list[tuple[str, int]]) -> tuple[list[Send], Events]:
        events = Events()
        at = [events.add(Name(op, (), 1, "reader"), step, []) for op, step in order]
        return [
            Send(("reader", op, step, None, ""), event, 1.0, op) for (op, step), event in zip(order, at, strict=True)
        ], events

    steps = range(6)
    in_step = [(op, step) for step in steps for op in "ab"]
    ahead = [("b", 0), *((op, step + (op == "b")) for step in steps for op in "ab")]
    assert in_turn(*events_of(in_step), 2, 1)
    assert in_turn(*events_of(ahead), 2, 1)
    assert not in_turn(*events_of([(op, step) for op in "ab" for step in steps]), 2, 1)


def test_how_long_a_device_lasts_is_read_from_runs_of_several_lengths():
    from steptrace.simulate import simulate

    plan = plan_of(program())[1]
    runs = [simulate(plan, DURATIONS, micro_batches=1, steps=steps) for steps in (20, 30, 40)]
    assert of_several_lanes(runs[0]) == {"reader"}
    assert lasts(runs, {"reader"}, 10) == 18
    assert lasts([runs[0], runs[1], runs[1]], {"reader"}, 10) is None


def test_an_order_that_holds_for_a_while_is_not_taken_for_the_one_that_stays():
    """The first lane fills a queue of two before the device serves it in the order in which it always will."""
    tally = measure(4, [1653])
    assert (tally.by_stratum, tally.undecided, tally.unsettled) == ({"shared devices": 1}, 0, 0)
    assert tally.max_relative_error < 1e-9


def test_random_schedules_of_shared_devices():
    shared = [number for number in range(200) if number % 4 == 1 and number // 4 % 2 and number % 25 != 24]
    tally = measure(7, shared)
    assert tally.by_stratum == {"shared devices": len(shared)}
    assert (tally.disagreements, tally.unsettled) == (0, 0)
    assert tally.max_relative_error < 1e-9
    assert tally.undecided < 0.1 * tally.programs
