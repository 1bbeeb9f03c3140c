"""The matrix of faults: every cell ends as declared; and each way in which a cell can be wrong is seen."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from matrix_runs import rows_of, wrong

from steptrace.testing.durable_runs import FAULTY
from steptrace.testing.fault_cells import declared, settings
from steptrace.testing.faults import Fault
from steptrace.testing.waited import waited_for

COUNTS = {arm.program: (4, 4, 4, 4, 4) for arm in FAULTY}


def test_every_schedule_and_every_kind_of_fault_has_its_cells():
    chosen = list(settings(FAULTY, COUNTS))
    assert {setting.arm.name for setting in chosen} == {arm.name for arm in FAULTY}
    assert {setting.fault.kind for setting in chosen} == {"raise", "lost-before", "lost-after", "kill", "hang", "slow"}
    kinds = {setting.call.kind.name for setting in chosen}
    assert {"dispatch", "take", "stream_mb", "stage_fwd_bwd", "fwd_bwd_staged", "apply_deferred_update"} <= kinds
    assert {"settle", "transfer_weights", "apply_weights", "snapshot_checkpoint", "write_checkpoint"} <= kinds
    assert {setting.ending for setting in chosen} == {"same", "falls back", "error", "stalled", "killed", "hangs"}


def arm(name):
    return next(arm for arm in FAULTY if arm.name == name)


def call(name, op):
    plan = arm(name).plan
    return next(call for lane in plan.lanes for node in lane.nodes for call in calls(node) if call.op.id == op)


def calls(node):
    from steptrace.lower.plan import calls_of

    return calls_of((node,))


@pytest.mark.parametrize(
    ("name", "op", "step", "waited"),
    [
        ("program order", "pack", 2, False),
        ("pipelined-boundary", "pack", 4, True),
        ("pipelined-boundary", "update", 2, False),  # no such op under it
        ("pipelined-boundary", "apply_deferred_update", 1, True),
        ("pipelined-boundary", "on_step_end", 4, False),
        ("async-everything", "apply_weights", 1, True),
        ("async-everything", "apply_weights", 4, False),
    ],
)
def test_who_waits_for_an_op_that_does_not_come_back(name, op, step, waited):
    assert waited_for(arm(name).plan, op, step, 4) == waited


@pytest.mark.parametrize(
    ("op", "kind", "ending"),
    [
        ("stage_fwd_bwd", "lost-before", "falls back"),
        ("ref_logps.first", "lost-after", "falls back"),
        ("ref_logps", "lost-after", "error"),
        ("apply_deferred_update", "lost-after", "error"),
        ("stage_fwd_bwd", "raise", "error"),
        ("pack", "hang", "stalled"),
        ("pack", "slow", "same"),
        ("pack", "kill", "killed"),
    ],
)
def test_what_is_declared(op, kind, ending):
    fault = Fault(op, 2, kind=kind)
    assert declared(arm("pipelined-boundary"), call("pipelined-boundary", op), fault) == ending


SOME = """
some = ("pack", "stage_fwd_bwd")
chosen = lambda cell: cell.call.op.id in some
rows = fault_rows(arms("pipelined-boundary"), targets=("inline",), quick=True, only=chosen)
"""


def test_some_cells_end_as_declared():
    rows = rows_of(SOME)
    assert wrong(rows) == []
    assert {row["ended"] for row in rows} == {"error", "killed", "stalled", "same", "falls back"}
    assert {row["resumed"] for row in rows if row["ended"] in ("error", "killed", "stalled")} == {True}


def test_a_round_of_weights_beside_the_step_that_gets_lost_changes_nothing():
    rows = rows_of("""
    some = ("transfer_weights", "apply_weights")
    chosen = lambda cell: cell.call.kind.name in some and cell.fault.kind.startswith("lost")
    rows = fault_rows(arms("async-everything"), targets=("inline",), quick=True, only=chosen)
    """)
    assert wrong(rows) == []
    assert [row["ended"] for row in rows] == ["same"] * 4


@pytest.mark.slow
def test_the_command_prints_a_table_and_an_object_for_scripts():
    text = "import sys; from steptrace_tools.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", text, "bench", "faults", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["cells"] == facts["as_declared"] == len(facts["rows"]) > 150
    assert (facts["hangs"], facts["leaks"]) == (0, 0)
    lines = done.stdout.splitlines()
    assert lines[0] == "inline"
    assert lines[1].split() == ["op", "raise", "lost-before", "lost-after", "kill", "hang", "slow"]
    assert {(row["target"], row["ended"]) for row in facts["rows"] if row["fault"] == "kill"} == {
        ("inline", "killed"),
        ("process", "worker lost"),
        ("process", "killed"),
    }


ONE = 'lambda cell: cell.call.op.id == "reward" and cell.fault.kind == "{kind}"'


def test_control_a_wrong_declaration_is_seen():
    only = ONE.format(kind="slow")
    code = f"""
    fault_cells.DECLARED = {{**fault_cells.DECLARED, "slow": "error"}}
    rows = fault_rows(arms("program order"), targets=("inline",), quick=True, only={only})
    """
    rows = rows_of(code)
    assert all("ended: same" in row["why"] for row in rows)


def test_control_a_thread_that_stays_is_counted():
    code = f"""
    real = durable_runs.paced_parts
    def leaking(pace):
        threading.Thread(target=time.sleep, args=(60,), name="forgotten", daemon=True).start()
        return real(pace)
    durable_runs.paced_parts = leaking
    rows = fault_rows(arms("program order"), targets=("inline",), quick=True, only={ONE.format(kind="slow")})
    """
    assert [row["left"] for row in rows_of(code)] == [["thread forgotten"]]


def test_control_a_process_that_stays_is_counted():
    code = f"""
    import subprocess
    real = durable_runs.paced_parts
    def leaking(pace):
        subprocess.Popen(["sleep", "3"])
        return real(pace)
    durable_runs.paced_parts = leaking
    rows = fault_rows(arms("program order"), targets=("inline",), quick=True, only={ONE.format(kind="kill")})
    """
    (row,) = rows_of(code)
    assert [what.split()[0] for what in row["left"]] == ["process"]


def test_control_an_error_that_is_swallowed_is_seen():
    code = """
    from steptrace.run import lane
    def node(self, node, step):
        try:
            self.nodes((node,), step, self._frames.at(step))
        except Exception:
            pass
    lane.LaneRunner.node = node
    rows = fault_rows(
        arms("program order"), targets=("inline",), quick=True,
        only=lambda cell: cell.call.op.id == "log" and cell.fault.kind == "raise",
    )
    """
    assert all("ended: same" in row["why"] for row in rows_of(code))


def test_control_an_error_without_its_place_is_seen():
    code = f"""
    from steptrace.run import lane
    lane.attribute = lambda error, at: None
    rows = fault_rows(arms("program order"), targets=("inline",), quick=True, only={ONE.format(kind="lost-before")})
    """
    assert all("not attributed to in `reward`" in row["why"] for row in rows_of(code))


def test_control_a_store_that_claims_what_it_has_not_is_seen():
    """The checkpoint says that the data is behind what was drawn ahead: those groups never come back."""
    code = """
    from steptrace.run import manifest
    real = manifest._facts
    def claims(run, step, behind):
        drawn = {"data": run.draws.state(run.cursor), "last_prompt": run.draws.last(run.cursor)}
        return {**real(run, step, behind), **drawn}
    manifest._facts = claims
    rows = fault_rows(arms("take-ahead{depth=2}"), targets=("inline",), quick=True,
                      only=lambda cell: cell.call.op.id == "update" and cell.fault.kind in ("raise", "slow"))
    """
    rows = rows_of(code)
    assert {row["fault"]: "trained" in row["why"] for row in rows} == {"raise": True, "slow": False}


def test_control_a_fault_that_never_comes_is_seen():
    code = f"""
    from steptrace.testing import faults
    faults.Faults._fits = lambda self, fault, at: False
    rows = fault_rows(arms("program order"), targets=("inline",), quick=True, only={ONE.format(kind="slow")})
    """
    assert all("the fault never came" in row["why"] for row in rows_of(code))
