"""Times in virtual time, against sums made by hand, and the order that edges ask for."""

from __future__ import annotations

import random
from dataclasses import replace
from types import MappingProxyType

import pytest
from virtual_plans import COSTS, PIPES, PLAIN, plan_of

from steptrace.check.edges import edges_of
from steptrace.check.reference import reference_of
from steptrace.diag.simulation import SimulatedDeadlockError, SimulationSettingError
from steptrace.ir import Op
from steptrace.lower import Hold, Plan
from steptrace.simulate import LINK, Cost, Durations, Run, VirtualTrainer, idle_between, simulate, steady
from steptrace.simulate.record import Span


def wide() -> VirtualTrainer:
    """A trainer whose calls never wait for one another."""
    trainer = VirtualTrainer()
    trainer.in_flight = 32
    return trainer


def test_the_base_step_takes_the_sum_of_what_is_not_hidden():
    run = simulate(plan_of(), PLAIN, micro_batches=3, steps=4)
    # dispatch 1 + rollout 5, reward 1, pack 2, ship 2, three times 14 on the device, update 3, metrics 1, sync 1 + 2,
    # log 4, callback 3; the calls of the second and third micro-batch and of the update lie behind the first's work.
    assert run.step_s() == dict.fromkeys(range(3), 6 + 1 + 2 + 2 + 42 + 3 + 1 + 3 + 4 + 3)
    # Of the border, the update and the copy of the weights are work of the trainer's device.
    assert run.boundary_s() == dict.fromkeys(range(3), 3 + 1 + 3 + 4 + 3 + 6 + 1 + 2 + 2)
    assert run.boundary_idle_s() == dict.fromkeys(range(3), 25 - 5)


def test_the_pipelined_border_has_what_stands_between_the_last_and_the_staged_call():
    run = simulate(plan_of("pipelined-boundary"), PLAIN, micro_batches=3, steps=5, trainer=wide())
    assert run.stages == (2, 3, 4)  # step 1 is generated from the moment on at which step 0 is there
    # The held update is called (1) and works (3), and so does the copy of the weights (1, 2): then the staged call.
    assert steady(run.boundary_s()) == 1 + 3 + 1 + 2
    assert steady(run.boundary_idle_s()) == 2
    assert steady(run.idle_s()) == 2


def test_without_a_stage_the_border_has_the_whole_call_too():
    run = simulate(plan_of("pipelined-boundary-unstaged"), PLAIN, micro_batches=3, steps=5)
    assert steady(run.boundary_s()) == 3 + 1 + 2 + 2


def test_what_is_shipped_takes_the_link_and_not_the_lane():
    costs = {**COSTS, "fwd_bwd": Cost(0, 14, ship_s=2)}
    run = simulate(plan_of(), Durations(costs), micro_batches=3, steps=3, trainer=wide())
    calls = [event for event in run.of("fwd_bwd") if event.step == 1]
    assert [event.end - event.start for event in calls] == [0, 0, 0]
    assert [span.end - span.start for span in run.on(LINK)] == [2.0] * 9
    # It cannot be shipped before the reference has done its work (1), beside which the call itself (2) stood before.
    assert steady(run.step_s()) == 6 + 1 + 2 + 1 + 2 + 42 + 3 + 1 + 3 + 4 + 3


def test_a_call_beyond_those_in_flight_waits_for_the_oldest():
    class Narrow(VirtualTrainer):
        in_flight = 1

    def second(trainer: VirtualTrainer) -> float:
        return simulate(plan_of(), PLAIN, micro_batches=3, steps=1, trainer=trainer).of("fwd_bwd")[1].end

    assert second(VirtualTrainer()) + 14 - 2 == second(Narrow())


def test_devices_that_are_one_do_one_thing_after_the_other():
    apart = simulate(plan_of(), PLAIN, micro_batches=3, steps=2)
    one = simulate(plan_of(), PLAIN, micro_batches=3, steps=2, same_device={"reference": "trainer"})
    assert len(apart.on("reference")) == 6
    assert one.on("reference") == ()
    for before, after in zip(one.on("trainer"), one.on("trainer")[1:], strict=False):
        assert before.end <= after.start
        assert before.issued <= after.issued


def test_groups_that_stream_are_trained_on_as_they_come():
    costs = {**COSTS, "dispatch": Cost(0, 60), "fwd_bwd": Cost(0, 1)}
    run = simulate(plan_of("", "grpo_stream"), Durations(costs), micro_batches=3, steps=1)
    begun = run.of("dispatch")[0].end
    assert [event.start - begun for event in run.of("fwd_bwd")] == [20.0, 40.0, 60.0]


@pytest.mark.parametrize("pipeline", PIPES)
def test_the_data_ends_where_the_counts_do(pipeline: str):
    run = simulate(plan_of(pipeline), PLAIN, micro_batches=[2, 0, 1], steps=9)
    assert run.steps == 3
    assert run.calls == ("fwd_bwd 0.0", "fwd_bwd 0.1", "update", "fwd_bwd 2.0", "update")
    assert {event.step for event in run.of("log")} == {0, 1, 2}


def test_no_step_is_a_run_too():
    assert simulate(plan_of("pipelined-boundary"), PLAIN, micro_batches=2, steps=0).calls == ()


def random_durations(seed: int) -> Durations:
    """Costs that differ from instance to instance, the same for equal seeds."""

    def varying(op: Op, step: int, micro: int, cost: Cost) -> Cost:
        draw = random.Random(f"{seed} {op.id} {step} {micro}")
        return Cost(*(draw.choice((0.0, 0.1, 1.0, 7.0)) for _ in range(3)))

    return Durations(varying=varying)


def random_run(plan: Plan, seed: int) -> Run:
    """A run with random costs and counts."""
    counts = random.Random(seed).choices(range(5), k=6)
    return simulate(plan, random_durations(seed), micro_batches=counts)


@pytest.mark.parametrize("program", ["grpo{staleness=1,save_every=3}", "grpo_stream{staleness=1}"])
@pytest.mark.parametrize("pipeline", PIPES)
def test_whatever_things_take_the_same_is_trained(pipeline: str, program: str):
    for seed in range(4):
        base, other = random_run(plan_of("", program), seed), random_run(plan_of(pipeline, program), seed)
        assert (other.trained, other.calls) == (base.trained, base.calls)


def out_of_order(plan: Plan, run: Run) -> list[str]:
    """The edges between ops of a step that the run's calls did not keep."""
    assert plan.source is not None
    begun: dict[tuple[str, int], list[float]] = {}
    for event in run.events:
        begun.setdefault((event.op, event.step), []).append(event.start)
    broken = []
    for edge in edges_of(reference_of(plan.program, plan.source.program)):
        for (id, step), starts in begun.items():
            later = begun.get((edge.after, step + edge.distance), ())
            if id == edge.before and later and not edge.micro and max(starts) > min(later) and edge.micro is None:
                broken.append(str(edge))
    return broken


@pytest.mark.parametrize("pipeline", PIPES[4:])
def test_every_edge_between_steps_is_kept_whatever_things_take(pipeline: str):
    plan = plan_of(pipeline)
    assert [broken for seed in range(6) for broken in out_of_order(plan, random_run(plan, seed))] == []


def test_control_without_waits_between_lanes_an_edge_is_broken():
    plan = plan_of("pipelined-boundary")
    loose = replace(plan, holds=MappingProxyType({key: value for key, value in plan.holds.items() if key != "take"}))
    broken = {broken for seed in range(12) for broken in out_of_order(loose, random_run(loose, seed))}
    assert any(text.startswith("free -> take (2)") for text in broken)


def test_lanes_that_wait_for_one_another_are_named():
    plan = plan_of("pipelined-boundary")
    stuck = replace(plan, holds=MappingProxyType({**plan.holds, "take": (Hold("free", 0, None, "by hand"),)}))
    with pytest.raises(SimulatedDeadlockError) as caught:
        simulate(stuck, PLAIN, micro_batches=2, steps=2)
    said = caught.value.render()
    assert "`take` of step 0 waits for `free` of step 0" in said
    assert "lane host" in said


def test_equal_arguments_give_equal_runs():
    plan = plan_of("async-everything")
    assert random_run(plan, 3) == random_run(plan, 3)
    assert random_run(plan, 3) != random_run(plan, 4)


def test_a_wait_on_another_lane_is_told_with_what_it_waited_for():
    slow = Durations({**COSTS, "pack": Cost(500)})
    run = simulate(plan_of("pipelined-boundary"), slow, micro_batches=2, steps=4)
    assert next(iter(run.hold_ups()))[0:2] == ("fwd_bwd.first", "ref_logps.first")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Cost(-1.0),
        lambda: Cost(work_s=float("nan")),
        lambda: simulate(plan_of(), PLAIN, micro_batches=[1, -1]),
        lambda: simulate(plan_of(), PLAIN, micro_batches=3),
    ],
)
def test_what_has_no_meaning_is_refused(wrong):
    with pytest.raises(SimulationSettingError):
        wrong()


def test_idle_time_is_what_no_span_covers():
    spans = [Span("d", "a", "a", 0, None, 0, start, end) for start, end in ((0, 2), (3, 4), (4, 6), (9, 12))]
    assert idle_between(spans, 1, 10) == 1 + 3
    assert idle_between(spans, 6, 9) == 3
    assert idle_between([], 1, 10) == 9


def test_a_long_run_holds_the_values_of_few_steps():
    held = []

    class Looking(VirtualTrainer):
        def update(self, clock):
            held.append(len(clock.state.values))
            return super().update(clock)

    simulate(plan_of(), PLAIN, micro_batches=1, steps=60, trainer=Looking())
    assert max(held[30:]) == max(held[10:30])
