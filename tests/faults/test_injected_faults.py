"""Faults that are put into a run happen where they were put, once, and what is not met is told."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from fakes import parts

import steptrace
from steptrace.diag.faults import (
    BadFaultError,
    FaultNotMetError,
    HangReleasedError,
    InjectedFaultError,
    UnknownFaultOpError,
)
from steptrace.diag.running import StalledRunError
from steptrace.run.api import plan_for
from steptrace.testing.faults import KINDS, Fault, inject, random_fault
from steptrace.testing.hash_parts import HashTrainer, StagingTrainer, hash_parts

PROGRAM = "grpo{staleness=1, prompts=4, samples=2, save_every=2}"


class Counting(HashTrainer):
    """Counts how often each verb is called."""

    def __init__(self):
        super().__init__()
        self.updates = 0

    def update(self):
        self.updates += 1
        super().update()


def run(*faults, steps=4, trainer=None, **options):
    injected = inject(*faults, may_miss=options.pop("may_miss", False))
    bound = parts(trainer=trainer or HashTrainer())
    return steptrace.run(PROGRAM, bound, steps=steps, around=[injected], **options), injected


def test_an_op_raises_in_its_step_and_says_where():
    with pytest.raises(InjectedFaultError) as info:
        run(Fault("reward", 2))
    assert "in `reward` of step 2, lane host" in [note.text for note in info.value.notes]


def test_an_error_of_ones_own_is_raised_as_it_is():
    error = OSError("no disk")
    with pytest.raises(OSError, match="no disk") as info:
        run(Fault("save_checkpoint", 1, error=error))
    assert info.value is error


@pytest.mark.parametrize(("kind", "behind", "updates"), [("raise", False, 1), ("raise", True, 2)])
def test_a_fault_stands_before_its_op_or_behind_it(kind, behind, updates):
    trainer = Counting()
    with pytest.raises(InjectedFaultError):
        run(Fault("update", 1, kind=kind, behind=behind), trainer=trainer)
    assert trainer.updates == updates


@pytest.mark.parametrize(("kind", "updates"), [("lost-before", 1), ("lost-after", 2)])
def test_a_call_is_lost_on_the_way_there_or_on_the_way_back(kind, updates):
    trainer = Counting()
    with pytest.raises(ConnectionError) as info:
        run(Fault("update", 1, kind=kind), trainer=trainer)
    assert trainer.updates == updates
    assert "in `update` of step 1" in info.value.__notes__[0]


def test_an_op_without_a_part_is_lost_as_a_whole():
    with pytest.raises(ConnectionError):
        run(Fault("commit", 1, kind="lost-before"))


class Waits(StagingTrainer):
    """Lets the next micro-batch be packed before a step's last call ends."""

    def fwd_bwd(self, micro_batch, **how):
        if micro_batch.last:
            time.sleep(0.2)
        return super().fwd_bwd(micro_batch, **how)


def staged(*faults):
    return steptrace.run(
        PROGRAM,
        hash_parts(trainer=Waits()),
        steps=4,
        pipeline="pipelined-boundary",
        stage_latch_s=0,
        around=[inject(*faults)],
    )


@pytest.mark.parametrize("kind", ["lost-before", "lost-after"])
def test_a_stage_that_is_lost_falls_back_to_the_whole_call(kind):
    wanted = steptrace.run(PROGRAM, hash_parts(), steps=4)
    made = staged(Fault("stage_fwd_bwd", 2, kind=kind))
    assert (made.params_digest, made.calls_digest) == (wanted.params_digest, wanted.calls_digest)
    assert any("a micro-batch did not reach the trainer" in remark for remark in made.remarks)


def test_no_fault_comes_at_a_stage_that_ships_nothing():
    lost, later = Fault("stage_fwd_bwd", 2, kind="lost-before"), Fault("stage_fwd_bwd", 3)
    with pytest.raises(FaultNotMetError) as info:
        staged(lost, later)  # staging is off behind the first
    assert [note.text for note in info.value.notes] == [str(later)]


def test_control_at_one_that_does_it_comes():
    with pytest.raises(InjectedFaultError):
        staged(Fault("stage_fwd_bwd", 3))


def test_one_micro_batch_of_a_step_can_be_named():
    trainer = HashTrainer()
    with pytest.raises(InjectedFaultError):
        steptrace.run(PROGRAM, hash_parts(trainer=trainer), steps=4, around=[inject(Fault("fwd_bwd", 1, micro=1))])
    assert trainer.calls[-1] == "fwd_bwd 1.0"


def test_a_slow_op_changes_nothing():
    wanted = steptrace.run(PROGRAM, parts(), steps=4)
    made, faults = run(Fault("pack", 1, kind="slow", seconds=0.01), pipeline="pipelined-boundary")
    assert made.params_digest == wanted.params_digest
    assert [fault.op for fault in faults.met] == ["pack"]


def test_a_hang_lasts_until_the_run_has_failed_for_it():
    with pytest.raises(StalledRunError) as info:
        run(Fault("pack", 2, kind="hang"), pipeline="pipelined-boundary", stall_s=0.3)
    assert "waited for 0.3 s" in info.value.message
    assert any("HangReleasedError" in note for note in info.value.__notes__)


def test_a_hang_can_be_let_go_by_hand():
    def told(_):
        faults.release()

    faults = inject(Fault("pack", 1, kind="hang"), told=told)
    with pytest.raises(HangReleasedError):
        steptrace.run(PROGRAM, parts(), steps=3, around=[faults])


KILLED = """
from steptrace.testing.faults import Fault, inject
from steptrace.testing.hash_parts import hash_parts
import steptrace
faults = inject(Fault("commit", 1, kind="kill", behind=True), told=lambda fault: print(fault, flush=True))
steptrace.run("grpo{staleness=1, prompts=4, samples=2}", hash_parts(), steps=3, around=[faults])
"""


@pytest.mark.slow
def test_a_kill_is_one():
    ended = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == "kill behind at `commit` of step 1\n"


def test_an_op_that_is_not_there_is_refused_before_step_0():
    trainer = HashTrainer()
    with pytest.raises(UnknownFaultOpError) as info:
        run(Fault("updat", 1), trainer=trainer)
    assert "did you mean `update`?" in info.value.help
    assert trainer.calls == []


@pytest.mark.parametrize("fault", [Fault("update", 9), Fault("save_checkpoint", 2), Fault("fwd_bwd", 1, micro=99)])
def test_a_fault_that_never_came_is_told(fault):
    with pytest.raises(FaultNotMetError) as info:
        run(fault)
    assert str(fault) in info.value.notes[0].text


def test_control_a_fault_that_may_be_missed_is_in_the_list_of_those_that_were():
    made, faults = run(Fault("update", 9), may_miss=True)
    assert made.steps == 4
    assert [fault.step for fault in faults.unmet] == [9]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"kind": "explode"}, {"step": -2}, {"step": "1"}, {"step": 1.0}, {"step": None}, {"micro": -1}),
        *({"micro": "0"}, {"seconds": -1.0}, {"seconds": "3"}, {"seconds": float("nan")}, {"error": "disk full"}),
    ],
)
def test_a_fault_that_means_nothing_is_refused(wrong):
    with pytest.raises(BadFaultError):
        Fault(**({"op": "pack", "step": 1} | wrong))


def test_control_a_fault_that_means_something_is_taken():
    Fault("pack", -1, micro=0, seconds=0, error=OSError)
    Fault("pack", 0, seconds=0.5, error=OSError("disk full"))


@pytest.mark.parametrize("wrong", ["pack", [Fault("pack", 1)], None])
def test_what_is_no_fault_is_not_injected(wrong):
    with pytest.raises(BadFaultError, match="is no fault"):
        inject(wrong)


@pytest.mark.parametrize("given", [{"steps": 0}, {"kinds": ()}])
def test_where_no_fault_can_come_none_is_drawn(given):
    with pytest.raises(BadFaultError, match="no fault to choose"):
        random_fault(PROGRAM, 0, **given)


def test_random_faults_are_a_function_of_the_seed_and_come():
    plan = plan_for(PROGRAM, "pipelined-boundary")
    drawn = [random_fault(plan, seed) for seed in range(40)]
    assert drawn == [random_fault(plan, seed) for seed in range(40)]
    assert drawn[0] == random_fault(PROGRAM, 0, pipeline="pipelined-boundary")
    assert {fault.kind for fault in drawn} == {*KINDS}
    assert len({(fault.op, fault.step) for fault in drawn}) > 15
    for fault in drawn[:8]:
        if fault.kind in ("raise", "lost-before", "lost-after"):
            with pytest.raises((InjectedFaultError, ConnectionError)):
                run(fault, pipeline="pipelined-boundary")


def test_control_other_seeds_draw_other_faults():
    plan = plan_for(PROGRAM)
    assert len({random_fault(plan, seed) for seed in range(20)}) > 10
