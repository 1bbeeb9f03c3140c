"""What goes wrong in a worker ends the run as it would in one process: with the error itself, and where it was."""

from __future__ import annotations

import pytest
from remote_parts import (
    Failing,
    FailingReference,
    FailingRollout,
    SlowRollout,
    bind,
    children,
    digests,
    shared_workers,
)

import steptrace
from steptrace.diag.workers import WorkerLostError, WorkerTimeoutError
from steptrace.run.remote.hosting import renew
from steptrace.workers import remote

PROGRAM = "grpo{prompts=4, samples=3, staleness=1}"


def run(bound, steps=4, stall_s=60.0, **options):
    return steptrace.run(PROGRAM, bound, steps=steps, stall_s=stall_s, target="process", **options)


def inline(steps=4):
    return steptrace.run(PROGRAM, bind(), steps=steps)


def said(error):
    """An error, and all that is noted with it."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@pytest.fixture(scope="module")
def shared():
    failing = {"trainer": remote(Failing), "rollout": remote(FailingRollout), "reference": remote(FailingReference)}
    with shared_workers(**failing) as parts:
        yield parts


@pytest.fixture
def workers(shared):
    """Parts as new, that fail nowhere yet."""
    renew(shared)
    shared["trainer"].reset()
    shared["rollout"].arm("", 0)
    shared["reference"].arm("", -1)
    return shared


@pytest.mark.parametrize("pipeline", ["", "async-everything"])
@pytest.mark.parametrize(
    ("role", "verb", "at", "words"),
    [
        ("trainer", "fwd_bwd", 1, "step 1"),
        ("trainer", "update", 1, "step 1"),
        ("rollout", "generate", 1, "in `dispatch` of step"),
        ("rollout", "apply_weights", 2, "weights` of step 1"),
        ("reference", "logps", 1, "of step 1"),
    ],
)
def test_a_part_that_raises_ends_the_run_with_its_error_and_where_it_was(workers, role, verb, at, words, pipeline):
    workers[role].arm(verb, at)
    with pytest.raises(ZeroDivisionError, match="what was asked for") as caught:
        run(workers, pipeline=pipeline)
    assert words in said(caught.value)
    assert "lane " in said(caught.value)


def test_control_parts_that_raise_later_than_the_run_goes_end_nothing(workers):
    workers["trainer"].arm("fwd_bwd", 4)
    workers["reference"].arm("logps", 4)
    assert digests(run(workers)) == digests(inline())


def test_a_call_that_was_not_waited_for_is_named_and_nothing_is_called_behind_it(workers):
    workers["trainer"].arm("fwd_bwd", 1)
    with pytest.raises(ZeroDivisionError) as caught:
        run(workers)
    assert "in `fwd_bwd` of step 1, lane host" in said(caught.value)
    assert "micro-batch 0 of step 1" in said(caught.value)
    renew(workers)
    assert workers["trainer"].calls.count("update") == 1
    assert not [call for call in workers["trainer"].calls if call.startswith("fwd_bwd 1.")]


def test_an_error_comes_with_its_own_traceback_whichever_call_tells_it(workers):
    """Not with that of the call behind it, which was refused for it."""
    workers["trainer"].arm("fwd_bwd", 1)
    with pytest.raises(ZeroDivisionError) as caught:
        run(workers)
    traceback = str(caught.value.__cause__)
    assert traceback.rstrip().endswith("ZeroDivisionError: what was asked for")
    assert "in fail\n" in traceback
    assert "AfterFailureError" not in traceback


def test_workers_run_again_behind_a_failure(workers):
    workers["trainer"].arm("fwd_bwd", 1)
    with pytest.raises(ZeroDivisionError):
        run(workers)
    with pytest.raises(ZeroDivisionError):
        workers["trainer"].reset()
    renew(workers)
    workers["trainer"].reset()
    assert digests(run(workers)) == digests(inline())


def test_weights_are_sent_again_behind_a_sync_that_failed(workers):
    workers["rollout"].arm("apply_weights", 2)
    with pytest.raises(ZeroDivisionError):
        run(workers, pipeline="async-everything")
    renew(workers)
    workers["trainer"].reset()
    assert digests(run(workers, pipeline="async-everything")) == digests(inline())


def test_a_stage_that_is_lost_is_sent_whole(workers):
    workers["trainer"].arm("stage_fwd_bwd", 2, "lost")
    made = run(workers, pipeline="pipelined-boundary")
    assert digests(made) == digests(inline())
    assert any("staging is off since step" in remark for remark in made.remarks)
    assert workers["trainer"].ran_staged == 1


def test_control_a_stage_that_fails_otherwise_ends_the_run(workers):
    workers["trainer"].arm("stage_fwd_bwd", 2)
    with pytest.raises(ZeroDivisionError) as caught:
        run(workers, pipeline="pipelined-boundary")
    assert "in `stage_fwd_bwd" in said(caught.value)


def test_log_probs_that_are_lost_ahead_are_asked_for_again(workers):
    workers["reference"].arm("logps", 2, "lost")
    made = run(workers, pipeline="pipelined-boundary")
    assert digests(made) == digests(inline())
    assert any("did not come" in remark for remark in made.remarks)


def test_control_log_probs_that_are_lost_in_their_own_step_end_the_run(workers):
    workers["reference"].arm("logps", 2, "lost")
    with pytest.raises(TimeoutError, match="what was asked for"):
        run(workers)


def test_control_weights_that_do_not_arrive_are_not_taken_for_arrived(workers):
    workers["rollout"].arm("apply_weights", 4)
    with pytest.raises(ZeroDivisionError) as caught:
        run(workers, pipeline="async-everything")
    assert "in `apply_weights` of step 3" in said(caught.value)


def test_a_run_ends_once_the_last_weights_have_arrived(tmp_path):
    file = tmp_path / "versions"
    made = run(bind(rollout=remote(SlowRollout, file)), pipeline="async-everything")
    assert file.read_text().split() == ["0", "1", "2", "3", "4"]
    assert digests(made) == digests(inline())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "part", "words"),
    [
        ("trainer", remote(Failing, "update", 1, "kill"), "step 1"),
        ("trainer", remote(Failing, "stage_fwd_bwd", 2, "kill"), "in `stage_fwd_bwd"),
        ("rollout", remote(FailingRollout, "generate", 1, "kill"), "in `dispatch` of step"),
        ("reference", remote(FailingReference, 1, "kill"), "in `ref_logps"),
    ],
)
def test_a_worker_that_is_killed_ends_the_run(role, part, words):
    before = children()
    with pytest.raises(WorkerLostError) as caught:
        run(bind(**{role: part}), pipeline="pipelined-boundary")
    assert f"`{role}`" in said(caught.value)
    assert words in said(caught.value)
    assert "SIGKILL" in said(caught.value)
    assert children() == before


@pytest.mark.slow
def test_a_worker_that_hangs_ends_the_run():
    before = children()
    with pytest.raises(WorkerTimeoutError) as caught:
        run(bind(trainer=remote(Failing, "fwd_bwd", 1, "hang")), stall_s=1.0)
    assert "in `fwd_bwd` of step 1" in said(caught.value)
    assert children() == before
