"""Workers that raise, are killed, stopped, slow, and whose messages are dropped; drivers that fail beside them."""

from __future__ import annotations

import pytest
from matrix_runs import rows_of, wrong

from steptrace.diag.faults import BadFaultError
from steptrace.diag.workers import WorkerLostError
from steptrace.lang.records import MicroBatch
from steptrace.run.instance import At
from steptrace.run.remote.hosting import HOSTED
from steptrace.run.remote.line import Line
from steptrace.run.remote.places import placed
from steptrace.testing.crash_matrix import KILLED_IN, worker_borders
from steptrace.testing.durable_runs import ARMS, FAULTY
from steptrace.testing.fault_cells import calls_in, calls_worker, runs_in, worker_settings
from steptrace.testing.faults import KINDS, Fault, may_fail
from steptrace.testing.raising import raise_once

COUNTS = {arm.program: (4, 4, 4, 4, 4) for arm in ARMS}


def test_every_op_that_may_fail_has_every_fault_under_every_schedule():
    chosen = list(worker_settings(FAULTY, COUNTS))
    assert {setting.target for setting in chosen} == {"process"}
    assert len(chosen) < 2000
    for arm in FAULTY:
        tried = {(setting.call.op.id, setting.fault.kind) for setting in chosen if setting.arm is arm}
        ops = {call.op.id for _, call, _ in calls_in(arm) if may_fail(call.kind)}
        assert tried == {(op, kind) for op in ops for kind in KINDS}


@pytest.mark.parametrize(
    ("op", "ending"),
    [("fwd_bwd", "worker lost"), ("dispatch", "worker lost"), ("ref_logps.first", "worker lost"), ("pack", "killed")],
)
def test_a_kill_is_of_the_worker_that_an_op_calls_or_of_the_driver(op, ending):
    chosen = [setting for setting in worker_settings(FAULTY, COUNTS) if setting.fault.kind == "kill"]
    ended = {setting.ending for setting in chosen if setting.call.op.id == op}
    assert ended == {ending}
    assert {calls_worker(setting.call) for setting in chosen if setting.call.op.id == op} == {ending != "killed"}


def test_the_driver_and_each_worker_is_killed_at_every_border_of_a_step():
    chosen = list(worker_borders(ARMS, COUNTS))
    for arm in ARMS:
        killed = {(border.fault.op, border.fault.worker) for border in chosen if border.arm is arm}
        ops = {call.op.id for lane, call, _ in calls_in(arm) if lane and runs_in(call, KILLED_IN[1])}
        assert killed == {(op, role) for op in ops for role in ("", *HOSTED)}
        passes = [border.fault for border in chosen if border.arm is arm and border.fault.op == "ref_logps"]
        rounds = {fault.micro for fault in passes if fault.driver}
        assert rounds >= {1, 2, 3}


class _Answer:
    """An answer that never comes: the worker is gone."""

    def done(self):
        return False

    def result(self, wait_s=None):
        raise WorkerLostError("gone, with a call")


class _Gone:
    """A worker that is gone after one call."""

    def __init__(self):
        self.sent = []

    def send(self, method, *args, **how):
        self.sent.append(method)
        if len(self.sent) > 1:
            raise WorkerLostError("gone, cannot be called")
        return _Answer()


def at(op, step):
    return At(next(call.op for _, call, _ in calls_in(ARMS[0]) if call.op.id == op), step)


@pytest.mark.parametrize("second", ["send", "call"])
def test_the_first_call_that_a_dead_worker_has_not_answered_is_the_one_to_blame(second):
    line = Line(_Gone())
    placed(lambda session, at: line.send("fwd_bwd"))(None, at("fwd_bwd", 2))
    with pytest.raises(WorkerLostError, match="gone, with a call") as info:
        placed(lambda session, at: getattr(line, second)("update"))(None, at("update", 2))
    assert [note.text.split(":")[0] for note in info.value.notes] == ["in `fwd_bwd` of step 2, lane host"]


def test_control_a_dead_worker_that_owes_nothing_blames_the_call_itself():
    line = Line(_Gone())
    line.worker.sent.append("an answered one")
    with pytest.raises(WorkerLostError, match="gone, cannot be called") as info:
        line.send("update")
    assert info.value.notes == ()


@pytest.mark.parametrize("more", [{"driver": True}, {"kind": "raise"}, {"kind": "lost-after"}])
def test_a_named_worker_is_killed_stopped_or_slow_and_nothing_else(more):
    with pytest.raises(BadFaultError):
        Fault("pack", 1, **{"kind": "kill", **more}, worker="rollout")
    assert str(Fault("pack", 1, kind="kill", worker="rollout")) == "kill of `rollout` at `pack` of step 1"


class Recorder:
    """A part that writes down for which micro-batch it was called."""

    def __init__(self):
        self.calls = []

    def logps(self, micro_batch):
        self.calls.append(micro_batch.index)
        return -0.5


@pytest.mark.parametrize(("behind", "calls"), [(False, [0, 1, 2]), (True, [0, 1, 1, 2])])
def test_the_call_for_one_micro_batch_raises_once(behind, calls):
    part, error = Recorder(), OSError("no disk")
    raise_once(part, "logps", error, behind, (2, 1))
    first, second, third = (MicroBatch(2, index, {}, ()) for index in range(3))
    assert part.logps(first) == -0.5
    with pytest.raises(OSError, match="no disk"):
        part.logps(second)
    assert [part.logps(second), part.logps(third)] == [-0.5, -0.5]
    assert part.calls == calls


def test_without_a_micro_batch_the_next_call_raises():
    part = Recorder()
    raise_once(part, "logps", OSError("no disk"), False, None)
    with pytest.raises(OSError, match="no disk"):
        part.logps(MicroBatch(2, 0, {}, ()))
    assert part.calls == []


@pytest.mark.slow
def test_some_cells_end_as_declared():
    rows = rows_of("""
    some = ("dispatch", "update", "ref_logps", "pack")
    rows = fault_rows(arms("program order"), targets=("process",), only=lambda cell: cell.call.op.id in some)
    """)
    assert wrong(rows) == []
    ended = {(row["fault"], row["ended"]) for row in rows if row["op"] != "pack"}
    assert ended == {
        ("raise", "error"),
        ("lost-before", "same"),
        ("lost-after", "same"),
        ("slow", "same"),
        ("kill", "worker lost"),
        ("hang", "no answer"),
    }
    assert {row["fault"]: row["ended"] for row in rows if row["op"] == "pack"} == {
        "raise": "error",
        "lost-before": "error",
        "lost-after": "error",
        "kill": "killed",
        "hang": "hangs",
        "slow": "same",
    }


@pytest.mark.slow
def test_drivers_and_workers_that_are_killed_lose_nothing():
    rows = rows_of("""
    rows = crash_rows(arms("pipelined-boundary", "program order"), targets=("process",), quick=True)
    """)
    assert wrong(rows) == []
    assert {(row["arm"], row["killed"]) for row in rows} == {
        (arm, killed)
        for arm in ("pipelined-boundary", "program order")
        for killed in ("driver", "trainer", "rollout", "reference")
    }


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


@pytest.mark.slow
def test_control_an_error_of_a_worker_that_comes_back_as_another_is_seen():
    rows = rows_of("""
    from steptrace.diag.workers import WorkerCallError
    from steptrace.workers import pending
    pending.rebuilt = lambda body, place: WorkerCallError("something went wrong there")
    one = lambda cell: cell.call.op.id in ("update", "dispatch") and cell.fault.kind == "raise"
    rows = fault_rows(arms("program order"), targets=("process",), only=one)
    """)
    assert ["another error: WorkerCallError" in row["why"] for row in rows] == [True, True], rows


@pytest.mark.slow
def test_control_workers_that_outlive_a_driver_that_was_killed_are_counted():
    """A process that the driver has forked holds its connections open: nobody can tell that it is gone."""
    rows = rows_of("""
    import os
    from steptrace.testing import cells, faults
    strike, work, told = faults.Faults._strike, cells._work, []
    def noting(child, pipe, mark):
        told.append(pipe)
        work(child, pipe, mark)
    def forking(self, fault, run, at):
        if os.fork() == 0:
            os.close(told[-1])
            time.sleep(4)
            os._exit(0)
        strike(self, fault, run, at)
    cells._work, faults.Faults._strike = noting, forking
    one = lambda cell: cell.call.op.id == "pack" and cell.fault.kind == "kill"
    rows = fault_rows(arms("program order"), targets=("process",), only=one)
    """)
    (row,) = rows
    assert row["ended"] == "killed"
    assert len([what for what in row["left"] if what.startswith("process ")]) == 3
    assert len([what for what in row["left"] if what.startswith("folder steptrace-")]) == 3
