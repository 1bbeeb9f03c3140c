"""Runs that are killed at borders between ops and resumed train the same; a store that is broken is seen."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from matrix_runs import rows_of, wrong

from steptrace.testing.crash_matrix import KILLED_IN, borders
from steptrace.testing.durable_runs import ARMS

COUNTS = {arm.program: (4, 4, 4, 4, 4) for arm in ARMS}


def test_every_op_of_a_step_has_its_borders_under_every_schedule():
    chosen = list(borders(ARMS, COUNTS))
    for arm in ARMS:
        mine = [border for border in chosen if border.arm is arm]
        ids = {call.op.id for lane in arm.plan.lanes for node in lane.nodes for call in calls(node)}
        assert {border.fault.op for border in mine} == ids
        assert {border.fault.behind for border in mine} == {False, True}
        assert {border.fault.step for border in mine} == {*KILLED_IN}
        assert {border.other.program for border in mine} == {arm.program}


def calls(node):
    from steptrace.lower.plan import calls_of

    return calls_of((node,))


def test_a_kill_around_a_checkpoint_that_is_written_while_the_next_step_trains():
    rows = rows_of("""
    names = ("snapshot_checkpoint", "write_checkpoint", "commit")
    both = arms("async-everything, late saves", "program order, late saves")
    some = lambda border: border.fault.op in names and border.fault.step == 3
    rows = crash_rows(both, only=some, targets=("inline",))
    """)
    assert wrong(rows) == []
    assert {row["other"] for row in rows} == {"async-everything, late saves", "program order, late saves"}


@pytest.mark.slow
def test_the_command_prints_a_table_and_an_object_for_scripts():
    text = "import sys; from steptrace_tools.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", text, "bench", "crashes", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["cells"] == facts["as_declared"] == len(facts["rows"]) > 60
    assert (facts["hangs"], facts["leaks"]) == (0, 0)


BROKEN = """
from steptrace.run import manifest, store
{change}
rows = crash_rows(arms("take-ahead{{depth=2}}", "program order, two ahead"), targets=("inline",),
                  only=lambda border: border.fault.op == "update" and border.arm.name != "program order, two ahead")
"""

CHANGES = {
    "the data behind what was drawn ahead": """
real = manifest._facts
def claims(run, step, behind):
    return {**real(run, step, behind), "data": run.draws.state(run.cursor), "last_prompt": run.draws.last(run.cursor)}
manifest._facts = claims
""",
    "a list of trained groups that is not taken back": "manifest.rewind_trained = lambda out, steps: None",
    "parameters of an update before": """
from steptrace.testing.hash_parts import StagingTrainer
real = StagingTrainer.update
def update(self):
    self.before = self.params["w"].copy()
    real(self)
def save(self, directory):
    self._write(self.before, self.applied, directory)
StagingTrainer.update, StagingTrainer.save_checkpoint = update, save
""",
}


@pytest.mark.parametrize("change", CHANGES)
def test_control_a_broken_store_is_seen(change):
    rows = rows_of(BROKEN.format(change=CHANGES[change]))
    assert any("it differs" in row["why"] for row in rows), rows


def test_control_a_run_that_is_not_killed_is_seen():
    rows = rows_of("""
    import os
    from steptrace.testing import faults
    faults.os = type("Os", (), {"kill": lambda *args: None, "getpid": os.getpid})
    some = lambda border: border.fault.op == "log" and border.fault.step == 2
    rows = crash_rows(arms("program order"), only=some)
    """)
    assert all("it was not killed" in row["why"] for row in rows)
