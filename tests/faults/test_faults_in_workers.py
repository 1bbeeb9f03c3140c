"""Workers that are killed, stopped, slow, and whose messages are dropped: runs end as declared, and nothing stays."""

from __future__ import annotations

import pytest
from matrix_runs import rows_of, wrong

from steptrace.testing.durable_runs import FAULTY
from steptrace.testing.fault_cells import worker_settings

COUNTS = {arm.program: (4, 4, 4, 4, 4) for arm in FAULTY}


def test_every_schedule_and_every_way_to_call_a_worker_has_its_cells():
    chosen = list(worker_settings(FAULTY, COUNTS))
    assert {setting.arm.name for setting in chosen} == {arm.name for arm in FAULTY}
    assert {setting.fault.kind for setting in chosen} == {"lost-before", "lost-after", "kill", "hang", "slow"}
    kinds = {setting.call.kind.name for setting in chosen}
    assert {"dispatch", "ref_logps", "fwd_bwd", "stage_fwd_bwd", "apply_deferred_update", "apply_weights"} <= kinds
    assert {setting.target for setting in chosen} == {"process"}


@pytest.mark.slow
def test_some_cells_end_as_declared():
    rows = rows_of("""
    some = ("dispatch", "update", "ref_logps")
    rows = fault_rows(arms("program order"), targets=("process",), only=lambda cell: cell.call.op.id in some)
    """)
    assert wrong(rows) == []
    ended = {(row["fault"], row["ended"]) for row in rows}
    assert ended == {
        ("lost-before", "same"),
        ("lost-after", "same"),
        ("slow", "same"),
        ("kill", "worker lost"),
        ("hang", "no answer"),
    }


@pytest.mark.slow
def test_drivers_and_workers_that_are_killed_lose_nothing():
    rows = rows_of("""
    rows = crash_rows(arms("pipelined-boundary", "program order"), targets=("process",), quick=True)
    """)
    assert wrong(rows) == []
    assert {row["behind"] for row in rows} == {False, True}


@pytest.mark.slow
def test_control_workers_that_nobody_ends_are_counted():
    rows = rows_of("""
    from steptrace.run.remote import hosting
    hosting._at_once = lambda endings: None
    one = lambda cell: cell.call.op.id == "update" and cell.fault.kind == "slow"
    rows = fault_rows(arms("program order"), targets=("process",), only=one)
    """)
    assert [len([what for what in row["left"] if what.startswith("process ")]) for row in rows] == [3]


@pytest.mark.slow
def test_control_a_loss_that_is_not_made_up_for_is_seen():
    """Without the numbers by which an answer is asked for again, a dropped request is never answered."""
    rows = rows_of("""
    from steptrace.testing import faults
    class Error:
        def __init__(self, method, how):
            self.method = method
        def __call__(self, method, request):
            if method == self.method:
                raise ConnectionError("nobody sends it again")
    faults._Dropping = Error
    one = lambda cell: cell.call.op.id == "update" and cell.fault.kind == "lost-before"
    rows = fault_rows(arms("program order"), targets=("process",), only=one)
    """)
    assert all("ended: error" in row["why"] for row in rows)
