"""`steptrace bench period`: random schedules, the cell, and formulas that are wrong on purpose."""

from __future__ import annotations

import json

import pytest

from steptrace.cost import period_of, read_costs
from steptrace.diag.cost import NoPeriodError
from steptrace_tools.bench import period
from steptrace_tools.bench.cell import CLAIMED, FILE, LEDGER, periods, seed_cell, sensitivity, unit_s
from steptrace_tools.bench.period_draws import exact, measure, settled
from steptrace_tools.cli import main


def test_periods_of_random_schedules_are_those_of_their_runs():
    tally = measure(7, range(40))
    assert tally.programs == 40
    assert set(tally.by_stratum) == {"lanes", "issue and done", "shared devices", "every", "guards", "train steps"}
    assert tally.max_relative_error < 1e-9
    assert tally.disagreements == 0
    assert tally.unsettled == 0
    assert tally.deadlocks > 0


def test_control_a_formula_that_looks_at_lanes_alone_is_caught():
    def longest_lane(plan, durations, micro_batches):
        exact(plan, durations, micro_batches)
        lanes = {}
        for call in plan.calls():
            cost = durations.of(call.op, 0)
            lanes[call.op.lane] = lanes.get(call.op.lane, 0.0) + cost.issue_s
        return max(lanes.values())

    assert measure(7, range(12), longest_lane).max_relative_error > 0.01


def test_control_a_formula_that_forgets_the_distance_of_a_circle_is_caught():
    def latency(plan, durations, micro_batches):
        circle = period_of(plan, durations, micro_batches=micro_batches).largest.circle
        return float(sum(arc.seconds for arc in circle))

    assert measure(7, range(20), latency).max_relative_error > 0.01


def test_control_a_formula_that_sees_no_lock_up_is_caught():
    def live(plan, durations, micro_batches):
        try:
            return exact(plan, durations, micro_batches)
        except NoPeriodError:
            return 1.0

    assert measure(7, range(40), live).disagreements > 0


def test_what_is_found_does_not_depend_on_the_jobs(monkeypatch):
    monkeypatch.setattr(period, "_BLOCK", 4)
    assert period.measured(3, 9, 1) == period.measured(3, 9, 2)


def test_a_run_without_an_event_takes_no_time():
    class Empty:
        events = ()
        spans = ()

    assert settled(Empty(), 1, 40) == 0.0


def test_the_cell_meets_its_inputs_and_is_told_where_it_does_not():
    cell = seed_cell(search=False)
    for key in ("base_s", "staged_before_s"):
        assert cell[key] == pytest.approx(CLAIMED[key], abs=0.02)
    assert cell["staged_before_s"] < cell["pipelined_s"] < cell["base_s"]
    assert cell["bound_s"] < cell["staged_before_s"]
    assert cell["gap_units"]["staged_before"] == pytest.approx(6.7, rel=0.01)
    ((given, found),) = cell["figures"]["held_out"].values()
    assert given == [5.4, 5.5]
    assert 4.0 < found < 4.2  # missed: said so beside the costs
    assert "4.1" in FILE.read_text()


def test_every_number_of_the_cell_says_where_it_comes_from():
    for line in FILE.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            assert any(word in line for word in ("# input", "# assumption", "# on_step_begin")), line


@pytest.mark.slow
def test_the_search_finds_the_cells_best_schedule():
    cell = seed_cell()
    assert cell["autoschedule_s"] <= cell["staged_before_s"]
    assert cell["autoschedule_over_bound"] <= 1.01


@pytest.fixture(scope="module")
def changed() -> dict:
    return sensitivity(read_costs(FILE))


@pytest.mark.slow
def test_what_the_cell_depends_on(changed):
    plain = periods(read_costs(FILE))
    assert changed["fwd_bwd.issue_s +20%"]["staged_before_s"] == pytest.approx(plain["staged_before_s"])
    assert changed["fwd_bwd.issue_s +20%"]["base_s"] > plain["base_s"] + 1
    assert changed["fwd_bwd.work_s -20%"]["base_s"] < 0.86 * plain["base_s"]
    assert changed["update.work_s +20%"]["gap_staged_before"] == pytest.approx(6.7 + 0.9 / unit_s(), abs=0.05)


@pytest.mark.slow
def test_json_and_report_have_what_scripts_and_people_read(changed, monkeypatch, capsys):
    monkeypatch.setattr("steptrace_tools.bench.cell.sensitivity", lambda costs: changed)
    assert main(["bench", "period", "--seed=1", "--programs=20", "--jobs=1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["programs"] == 20
    assert found["max_relative_error"] < 1e-9
    assert found["deadlock_disagreements"] == 0
    assert found["seed_cell"]["autoschedule_over_bound"] <= 1.01
    assert {"base_s", "pipelined_s", "staged_before_s", "bound_s", "gap_units"} <= found["seed_cell"].keys()
    assert found["seed_cell"]["sensitivity"] == changed
    tally = measure(1, range(2))
    said = period.report(tally, found["seed_cell"], {"programs": 1.0})
    assert "device_wait_units  held out  5.4 to 5.5" in said
    assert "  update.work_s +20% " in said
    assert "no figure changes by as much as 0.005 with: fwd_bwd_staged.issue_s" in said


def test_the_ledger_of_the_base_cell_adds_up():
    assert sum(LEDGER.values()) == pytest.approx(CLAIMED["base_s"], abs=1e-9)
