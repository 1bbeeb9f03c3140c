"""Stragglers, spread durations and a rollout with room for so many requests, against sums by hand."""

from __future__ import annotations

from random import Random
from statistics import fmean, pstdev

import pytest

from steptrace.cost import judged, parse_costs, step_times
from steptrace.diag import SteptraceError
from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.passes import run_pipeline
from steptrace.simulate import ALL, Cost, Durations, Rollout, Run, Spread, simulate, varying
from steptrace.simulate.service import Service

NAME = "grpo{staleness=1,save_every=1000000}"
COSTS = {"fwd_bwd": Cost(work_s=10), "update": Cost(work_s=4), "log": Cost(3)}

TEXT = """\
[ops.dispatch]
work = "2 s"
[ops.fwd_bwd]
work = "10 s"
[ops.update]
work = "4 s"
[ops.other]
issue = "0 s"
[cell]
micro_batches = 2
[rollout]
requests = 5
capacity = 2
"""


def run_of(pipeline: str, durations: Durations, rollout: Rollout | None = None, steps: int = 8) -> Run:
    schedule = run_pipeline(resolve(NAME), pipeline).schedule
    plan = lower(schedule.program, source=schedule.source)
    return simulate(plan, durations, micro_batches=3, steps=steps, rollout=rollout)


def straggling(*instances: tuple[str, int, int], times: float = 5.0) -> Durations:
    return Durations(COSTS, varying=varying({}, straggling=dict.fromkeys(instances, times)))


def test_two_stragglers_on_the_trainer_by_hand():
    """Three micro-batches of 10 s, the update 4 s, the log 3 s; two of step 4 take 40 s more each."""
    run = run_of("", straggling(("fwd_bwd", 4, 0), ("fwd_bwd", 4, 2)))
    assert [run.step_s()[step] for step in (3, 4, 5)] == [37, 37 + 80, 37]


@pytest.mark.parametrize(("times", "late_s"), [(3.0, 0), (5.0, 5), (20.0, 50)])
def test_a_straggler_behind_slack_costs_what_sticks_out_of_it(times: float, late_s: float):
    """The log runs while the next step's first micro-batch computes for 10 s: 9, 15 and 60 s of it."""
    taken = run_of("pipelined-boundary", straggling(("log", 4, 0), times=times)).step_s()
    assert [taken[step] for step in (3, 4, 5, 6)] == [34, 34, 34 + late_s, 34]


def test_control_without_stragglers_every_step_takes_as_long():
    assert set(run_of("", straggling()).step_s().values()) == {37}


def test_requests_of_a_full_service_wait_their_turn():
    service = Service(Rollout(requests=5, capacity=2))
    assert service.serve(0, 1.0, 3.0) == (1.0, 10.0)
    assert service.ends[0] == (4.0, 4.0, 7.0, 7.0, 10.0)
    assert [service.arrived(0, share) for share in (0.2, 0.4, 0.5, 0.8, 1.0)] == [4.0, 4.0, 7.0, 7.0, 10.0]
    # one place is free from second 7 on, the other from 10: the next step's requests begin there
    assert service.serve(1, 2.0, 3.0) == (7.0, 16.0)
    assert service.ends[1] == (10.0, 13.0, 13.0, 16.0, 16.0)


def test_a_step_waits_for_the_last_request_by_hand():
    """Five requests of 2 s, two at a time, take 6 s; one after the other as many steps as there are."""
    durations = Durations({**COSTS, "dispatch": Cost(work_s=2)})
    assert run_of("", durations, Rollout(5, 2)).step_s()[3] == 6 + 37
    assert run_of("", durations, Rollout(5, 5)).step_s()[3] == 2 + 37
    assert run_of("", durations, Rollout(5, 1)).step_s()[3] == 10 + 37


def test_a_service_that_is_the_bottleneck_gives_its_rate():
    """Taken ahead, with 4 requests of 30 s at 2 a time, a step takes the 60 s that the service needs."""
    durations = Durations({**COSTS, "dispatch": Cost(work_s=30)})
    source = "one-step-off{staleness=2},take-ahead,defer-metrics,send-ahead"
    run = run_of(source, durations, Rollout(4, 2), steps=12)
    assert run.step_s()[9] == 60
    assert run_of(source, durations, Rollout(4, 4), steps=12).step_s()[9] == 34


def test_the_period_has_the_turns_of_a_step_and_agrees_where_requests_fill_them():
    costs = parse_costs(TEXT.replace("requests = 5", "requests = 6"))
    found = judged(run_pipeline(resolve(NAME), "").schedule, costs.durations(), micro_batches=2)
    assert found.period.seconds == 3 * 2 + 20 + 4
    times = step_times(found, costs, runs=2, steps=5)
    assert set(times.seconds) == {30.0}
    assert times.stretch == 1.0


@pytest.mark.parametrize("deviation", [0.1, 0.5])
def test_factors_keep_the_mean_and_have_the_deviation(deviation: float):
    rng, spread = Random(0), Spread(deviation)
    factors = [spread.factor(rng) for _ in range(40_000)]
    assert fmean(factors) == pytest.approx(1.0, abs=4 * deviation / 200)
    assert pstdev(factors) == pytest.approx(deviation, rel=0.05)


def test_stragglers_come_as_often_as_said():
    rng, spread = Random(0), Spread(chance=0.02, times=5.0)
    factors = [spread.factor(rng) for _ in range(40_000)]
    assert set(factors) == {1.0, 5.0}
    assert factors.count(5.0) / 40_000 == pytest.approx(0.02, abs=0.003)
    assert spread.mean == pytest.approx(1.08)


def test_an_instance_draws_the_same_under_every_schedule():
    durations = Durations(COSTS, varying=varying({ALL: Spread(0.3)}, seed=3))
    plain, ahead = (run_of(pipeline, durations) for pipeline in ("", "pipelined-boundary"))
    for step in range(1, 7):
        first, other = ([span.end - span.start for span in run.training(step)] for run in (plain, ahead))
        assert first == pytest.approx(other)
    assert plain.step_s()[2] != plain.step_s()[3]


def test_step_times_by_hand_where_every_instance_straggles():
    """All micro-batches take twice as long: no draw is left, and the mean is off by what they take more."""
    costs = parse_costs(
        TEXT.partition("[rollout]")[0].replace('"10 s"', '"10 s"\nstraggler_chance = 1\nstraggler_times = 2')
    )
    found = judged(run_pipeline(resolve(NAME), "").schedule, costs.durations(), micro_batches=2)
    times = step_times(found, costs, runs=2, steps=4)
    assert (found.period.seconds, times.quantile(0.5), times.mean_s) == (26, 46, 46)
    assert times.stretch == pytest.approx(46 / 26)


def test_spread_makes_what_waits_for_several_slower_than_its_mean():
    """Reference and trainer side by side: a step takes the longer of the two, so spread alone costs time."""
    costs = parse_costs(TEXT.partition("[rollout]")[0])
    found = judged(run_pipeline(resolve(NAME), "take-ahead").schedule, costs.durations(), micro_batches=2)
    still, spread = (step_times(found, costs, spreads=one, runs=4, steps=30) for one in ({}, {ALL: Spread(0.4)}))
    assert still.stretch == pytest.approx(1.0)
    assert spread.quantile(0.95) > 1.2 * found.period.seconds > spread.quantile(0.05)
    again = step_times(found, costs, spreads={ALL: Spread(0.4)}, runs=4, steps=30)
    assert again == spread
    assert step_times(found, costs, spreads={ALL: Spread(0.4)}, runs=4, steps=30, seed=1) != spread


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("capacity = 2", "capacity = 0", 11),
        ("capacity = 2", "", 11),
        ('work = "10 s"', 'work = "10 s"\ndeviation = "much"', 5),
        ('work = "10 s"', 'work = "10 s"\nstraggler_chance = 2', 3),
        ("requests", "questions", 12),
    ],
)
def test_mistakes_in_a_file_are_told_with_their_line(old: str, new: str, line: int):
    with pytest.raises(SteptraceError) as caught:
        parse_costs(TEXT.replace(old, new), "costs.toml")
    assert caught.value.code in ("ST330", "ST331")
    assert caught.value.loc is not None
    assert caught.value.loc.line == line


def test_what_is_no_spread_or_service_is_refused():
    for make in (lambda: Spread(-0.1), lambda: Spread(chance=1.5), lambda: Rollout(0, 1), lambda: Rollout(1, 0)):
        with pytest.raises(SteptraceError) as caught:
            make()
        assert caught.value.code == "ST321"
