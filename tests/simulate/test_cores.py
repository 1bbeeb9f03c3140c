"""Lanes that share the cores of the driver's machine, against sums by hand."""

from __future__ import annotations

import pytest
from virtual_plans import PIPES, PLAIN, plan_of

from steptrace.diag.simulation import SimulationSettingError
from steptrace.simulate import Cost, Durations, simulate, steady
from steptrace.simulate.cores import Cores, Wait

HOST_BOUND = Durations({"reward": Cost(10), "log": Cost(8), "on_step_end": Cost(4)})
"""The lane that packs works 10 s a step, and the one that calls the trainer 12 s."""


def test_two_lanes_on_one_core_take_turns():
    cores = Cores(1)
    cores.begin(0, 3.0, now=0.0)
    cores.begin(1, 5.0, now=1.0)  # lane 0 has 2 s left, and half of the core from now on
    assert cores.next() == (5.0, 0)
    cores.end(0, 5.0)
    assert cores.next() == (8.0, 1)  # 3 s and 5 s, on one core
    cores.end(1, 8.0)
    assert cores.next() is None


def test_lanes_with_a_core_each_do_not_slow_one_another():
    cores = Cores(2)
    cores.begin(0, 3.0, now=0.0)
    cores.begin(1, 5.0, now=1.0)
    assert cores.next() == (3.0, 0)
    cores.end(0, 3.0)
    assert cores.next() == (6.0, 1)


@pytest.mark.parametrize(("cores", "seconds"), [(None, 12.0), (2, 12.0), (1, 22.0)])
def test_a_step_of_lanes_that_only_work_takes_the_longest_or_on_one_core_the_sum(cores: int | None, seconds: float):
    run = simulate(plan_of("pipelined-boundary"), HOST_BOUND, micro_batches=2, steps=12, cores=cores)
    assert steady(run.step_s()) == pytest.approx(seconds)


def test_waiting_takes_no_core():
    costs = Durations({"fwd_bwd": Cost(0, 20), "reward": Cost(10), "log": Cost(8)})
    alone = simulate(plan_of("pipelined-boundary"), costs, micro_batches=2, steps=12)
    shared = simulate(plan_of("pipelined-boundary"), costs, micro_batches=2, steps=12, cores=1)
    assert steady(alone.step_s()) == steady(shared.step_s()) == 40  # the device's: 18 s of the lanes lie beside it
    assert not Cores(1).shared(Wait(3.0))
    assert Cores(1).shared(3.0)


@pytest.mark.parametrize("pipeline", PIPES)
def test_on_one_core_the_same_is_trained_and_not_sooner(pipeline: str):
    apart = simulate(plan_of(pipeline), PLAIN, micro_batches=3, steps=9)
    one = simulate(plan_of(pipeline), PLAIN, micro_batches=3, steps=9, cores=1)
    assert one.trained == apart.trained
    assert one.seconds >= apart.seconds
    again = simulate(plan_of(pipeline), PLAIN, micro_batches=3, steps=9, cores=1)
    assert again == one


def test_a_machine_without_a_core_is_refused():
    with pytest.raises(SimulationSettingError, match="cores=0"):
        simulate(plan_of(), PLAIN, micro_batches=1, steps=1, cores=0)
