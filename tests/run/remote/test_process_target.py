"""Trainer, rollout and reference in processes of their own: such runs train what runs in one process train."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from remote_parts import (
    PIPES,
    Both,
    Dropping,
    NoKey,
    Swapping,
    bind,
    broken_factory,
    children,
    digests,
    shared_workers,
)

import steptrace
from steptrace.diag.binding import UnboundPartError, WrongPartError
from steptrace.diag.remote import LocalPartError
from steptrace.diag.workers import WorkerStartError
from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.lower.emit import emit
from steptrace.passes import run_pipeline
from steptrace.run.binding import Parts
from steptrace.run.capabilities import capabilities_of
from steptrace.testing.hash_parts import HashRollout, HashTrainer, StagingTrainer, hash_parts
from steptrace.workers import remote

PROGRAM = 'grpo{prompts=4, samples=3, staleness=1, saves="may_fail_late"}'


@pytest.fixture(scope="module")
def workers():
    with shared_workers() as parts:
        yield parts


def run(bound, steps=4, **options):
    return steptrace.run(PROGRAM, bound, steps=steps, stall_s=60.0, **options)


def hosted_run(workers, steps=4, **options):
    workers["trainer"].reset()
    return run(workers, steps, target="process", **options)


@pytest.mark.parametrize("pipeline", ["", *PIPES])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_every_number_of_steps_trains_the_same_as_in_one_process(workers, pipeline, steps):
    inline = run(bind(), steps)
    made = hosted_run(workers, steps, pipeline=pipeline)
    assert digests(made) == digests(inline)
    assert [dict(record) for record in made.records] == [dict(record) for record in inline.records]
    assert (made.target, inline.target) == ("process", "inline")


def test_a_timed_and_sanitized_run_trains_the_same(workers):
    assert digests(hosted_run(workers, timed=True, sanitize=True)) == digests(run(bind()))


def test_a_folder_is_found_whatever_the_driver_works_in_by_now(workers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hosted_run(workers, out="kept")
    assert list((tmp_path / "kept" / "checkpoints").iterdir())


def test_what_is_staged_is_run_staged(workers):
    """So the equality above is of schedules that ship ahead, not of ones that fall back."""
    hosted_run(workers, 5, pipeline="pipelined-boundary")
    assert workers["trainer"].ran_staged >= 3


@pytest.mark.slow
@pytest.mark.parametrize("altered", [Dropping, Swapping])
def test_control_a_worker_that_trains_otherwise_is_seen(altered):
    made = run(bind(trainer=remote(altered)), 2, target="process")  # so that nothing is sampled with other weights
    honest = run(bind(), 2)
    assert made.params_digest != honest.params_digest
    assert made.calls_digest == honest.calls_digest


@pytest.mark.parametrize("trainer", [HashTrainer, StagingTrainer])
def test_a_part_in_its_process_can_do_what_it_can_do_here(trainer):
    with shared_workers(trainer=remote(trainer)) as parts:
        there = capabilities_of(Parts(trainer=parts["trainer"], rollout=parts["rollout"]))
        assert there == capabilities_of(Parts(trainer=trainer(), rollout=HashRollout()))
        assert hasattr(parts["trainer"], "stage_fwd_bwd") is (trainer is StagingTrainer)
        assert not hasattr(parts["rollout"], "drain")


def test_the_same_bind_is_made_in_this_process_inline():
    before = children()
    made = run(bind(), pipeline="pipelined-boundary")
    assert children() == before
    assert digests(made) == digests(run(hash_parts()))


def test_a_part_of_this_process_is_refused_before_any_starts():
    before = children()
    with pytest.raises(LocalPartError) as caught:
        run(bind() | {"rollout": HashRollout()}, target="process")
    assert "`rollout` is bound to a HashRollout of this process" in caught.value.message
    assert "steptrace.remote(make_rollout" in caught.value.help
    assert "dispatch" in caught.value.loc.source()
    assert children() == before


def test_control_the_same_part_is_fine_inline():
    assert run(bind() | {"rollout": HashRollout()}).steps == 4


def test_a_role_that_is_lacking_is_told_as_on_any_target():
    with pytest.raises(UnboundPartError, match="reference"):
        run(bind() | {"reference": None}, target="process")


def test_a_method_that_cannot_be_called_as_the_step_does_is_told_before_step_0():
    with pytest.raises(WrongPartError, match=r"NoKey\.generate\(prompts, samples"):
        run(bind(rollout=remote(NoKey)), target="process")


def test_a_part_that_cannot_be_made_says_which():
    before = children()
    with pytest.raises(LookupError, match="no such part") as caught:
        run(bind(reference=remote(broken_factory)), target="process")
    assert any("while `reference` was made" in note and f"{__file__}:" in note for note in caught.value.__notes__)
    assert children() == before


def test_a_part_whose_process_ends_as_it_is_made_is_called_as_it_was_written_down():
    with pytest.raises(WorkerStartError, match=r"exit code 3 before remote\(_exit\) was built") as caught:
        run(bind(reference=remote(os._exit, 3)), target="process")
    assert caught.value.loc.file == __file__


@pytest.mark.slow
def test_a_part_that_the_program_does_not_call_is_not_made():
    made = steptrace.run(no_reference, bind(reference=remote(broken_factory)), steps=2, target="process")
    assert made.steps == 2


@steptrace.program
def no_reference(step, prompts: int = 4, samples: int = 3):
    """A step without a reference."""
    step.dispatch(prompts=prompts, samples=samples)
    groups = step.advantages(step.reward(step.take()))
    for mb in step.micro_batches(step.pack(groups)):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    step.sync_weights()
    step.commit()
    step.log(metrics)


def test_no_process_is_left_behind_a_run():
    before = children()
    run(bind(), target="process")
    assert children() == before


@pytest.mark.slow
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_process_is_left_behind_a_run_that_ends_early(error):
    class Ends:
        def on_step_end(self, step, metrics):
            raise error

    before = children()
    with pytest.raises(error):
        run(bind(callbacks=Ends()), pipeline="async-everything", target="process")
    assert children() == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind_an_interrupt_or_a_death(number):
    script = Path(__file__).with_name("interrupted.py")
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as driver:
        workers = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(workers) == 3
        assert all(map(_lives, workers))
        driver.send_signal(number)
        driver.stdout.read()  # at its end the driver, and whoever has its output, is gone
    until = time.monotonic() + 60
    while any(map(_lives, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(_lives, workers))


def _lives(pid):
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_emitted_loop_runs_on_processes(workers):
    made = run_pipeline(resolve(PROGRAM), "pipelined-boundary").schedule
    space = {}
    exec(compile(emit(lower(made.program, source=made.source)), "<emitted>", "exec"), space)
    workers["trainer"].reset()
    result = space["run"](workers, 4, target="process")
    assert digests(result) == digests(run(bind()))
    assert result.target == "process"
    with pytest.raises(LocalPartError):
        space["run"](hash_parts(), 4, target="process")


@pytest.mark.slow
def test_one_worker_for_a_part_of_two_roles():
    both = remote(Both)
    made = run(bind(trainer=both, reference=both), target="process")
    assert digests(made) == digests(run(bind()))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [("inline", "process"), ("process", "inline")])
def test_a_run_that_is_saved_on_one_target_goes_on_on_the_other(tmp_path, first, second):
    program = 'grpo{prompts=4, samples=3, staleness=1, saves="may_fail_late", save_every=2}'
    whole = steptrace.run(program, bind(), steps=6, out=tmp_path / "whole")
    out = tmp_path / "parts"
    pipes = {"inline": "", "process": "async-everything"}
    steptrace.run(program, bind(), steps=3, out=out, target=first, pipeline=pipes[first])
    made = steptrace.run(program, bind(), steps=6, out=out, target=second, pipeline=pipes[second], resume=True)
    assert digests(made) == digests(whole)
    assert made.first_step == 3
