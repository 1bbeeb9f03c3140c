"""`steptrace why`: the chain of reasons for an order. `steptrace diff`: what differs, op by op."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptrace_tools.cli import main

CHAIN = """\
`update` of step k comes before `dispatch` of step k+1; 2 of 43 edges say why:
  1. `sync_weights` of step k needs the parameters as `update` of step k leaves them, once it has finished
       steptrace/programs/grpo.py:26
  2. `dispatch` of step k+1 uses the rollout weights that `sync_weights` of step k publishes
       steptrace/programs/grpo.py:15
"""

CHANGES = """\
`get_metrics`
    split into `start_metrics`, `fetch_metrics`
`fetch_metrics`
    now after `commit`
"""


@pytest.fixture
def boundary(tmp_path: Path, capsys) -> str:
    """The pipelined boundary of `grpo{staleness=1}`, in a file."""
    file = tmp_path / "boundary.st"
    assert main(["opt", "grpo{staleness=1}", "-p", "pipelined-boundary", "-o", str(file)]) == 0
    return str(file)


def test_the_shortest_chain_is_told_with_steps_and_lines(capsys):
    assert main(["why", "grpo", "update", "before", "dispatch"]) == 0
    assert capsys.readouterr() == (CHAIN, "")


def test_with_more_staleness_the_same_order_holds_a_step_later(capsys):
    assert main(["why", "grpo{staleness=1}", "update", "before", "dispatch"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("`update` of step k comes before `dispatch` of step k+2; 2 of ")
    assert "`dispatch` of step k+2 uses the rollout weights that `sync_weights` of step k publishes" in out


def test_micro_batches_are_counted_inside_their_loop(capsys):
    assert main(["why", "grpo", "fwd_bwd", "before", "fwd_bwd"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("`fwd_bwd` of micro-batch m comes before `fwd_bwd` of micro-batch m+1; 1 of ")


def test_generation_waits_until_transferred_weights_are_applied_not_only_copied(tmp_path: Path, capsys):
    file = str(tmp_path / "sync.st")
    assert main(["opt", "grpo", "-p", "async-weight-sync", "-o", file]) == 0
    assert main(["why", file, "copy_weights", "before", "dispatch", "--against=grpo"]) == 0
    out = capsys.readouterr().out
    assert (
        "1. `transfer_weights` of step k needs the copy of the parameters as `copy_weights` of step k leaves it" in out
    )
    assert "`dispatch` of step k+1 uses the rollout weights that `apply_weights` of step k publishes" in out


def test_the_next_update_waits_for_the_copy_that_reads_the_live_parameters(tmp_path: Path, capsys):
    file = str(tmp_path / "sync.st")
    assert main(["opt", "grpo", "-p", "async-weight-sync", "-o", file]) == 0
    assert main(["why", file, "copy_weights", "before", "update", "--against=grpo"]) == 0
    assert "`update` of step k+1 overwrites the parameters, which `copy_weights` of step k still reads" in (
        capsys.readouterr().out
    )


def test_one_copy_of_the_state_is_held_at_a_time(tmp_path: Path, capsys):
    source, file = "grpo{saves=may_fail_late, save_every=1}", str(tmp_path / "late.st")
    assert main(["opt", source, "-p", "async-checkpoint,async-weight-sync", "-o", file]) == 0
    for last, first, copy in (
        ("write_checkpoint", "snapshot_checkpoint", "trainer.copies.save"),
        ("transfer_weights", "copy_weights", "trainer.copies.sync"),
    ):
        assert main(["why", file, last, "before", first, f"--against={source}"]) == 0
        reason = f"`{first}` of step k+1 needs room in `{copy}`, which holds 1 at a time: `{last}` of step k makes it"
        assert f"  1. {reason}\n" in capsys.readouterr().out


def test_where_only_the_other_order_holds_that_one_is_told(capsys):
    assert main(["why", "grpo{staleness=1}", "commit", "before", "sync_weights"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == (
        "error[ST214]: nothing orders `commit` before `sync_weights`, in this step or a later one; the other way round "
        "they are ordered: `sync_weights` of step k comes before `commit` of step k"
    )
    assert "`commit` of step k needs the policy version" in lines[2]
    assert lines[-1] == "  help: steptrace why 'grpo{staleness=1}' sync_weights before commit"
    assert main(["why", "grpo{staleness=1}", "sync_weights", "before", "commit"]) == 0


def test_the_steps_of_the_other_order_are_counted(capsys):
    assert main(["why", "grpo", "log", "before", "save_checkpoint"]) == 1
    assert "`save_checkpoint` of step k comes before `log` of step k" in capsys.readouterr().err


def test_control_of_two_that_nothing_orders_no_chain_is_told(tmp_path: Path, monkeypatch, capsys):
    (tmp_path / "two_logs.py").write_text(FREE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["why", "two_logs:free", "left", "before", "right"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error[ST214]: nothing orders `left` before `right`, in this step or a later one\n")
    assert err.endswith("  help: a schedule may run them in any order, or at once\n")


def test_an_op_that_is_not_there_is_refused_with_the_nearest_name(capsys):
    assert main(["why", "grpo", "sync", "before", "updat"]) == 1
    assert capsys.readouterr().err.startswith("error[ST215]: the step of `grpo` has no op `sync`")


def test_a_loop_and_what_is_inside_of_one_are_told_apart_from_what_is_not_there(capsys):
    assert main(["why", "grpo", "micro_batches", "before", "update"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(
        "error[ST215]: `micro_batches` is a loop over micro-batches, whose ops are ordered one by one"
    )
    assert err.endswith("help: ask about one of them: `next_mb`, `ref_logps`, `fwd_bwd`\n")
    assert main(["why", "grpo_epochs", "ref_logps", "before", "commit"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error[ST215]: `ref_logps` runs inside loop `repeat`, which is ordered as a whole")
    assert main(["why", "grpo_epochs", "repeat", "before", "commit"]) == 0


def test_the_question_has_one_form(capsys):
    assert main(["why", "grpo", "log", "after", "update"]) == 2
    assert "`why` asks for an order: why grpo log before update" in capsys.readouterr().err


def test_a_schedule_does_not_say_why_without_its_source(boundary: str, capsys):
    assert main(["why", boundary, "pack", "before", "update"]) == 2
    assert "name its source too" in capsys.readouterr().err
    assert main(["why", boundary, "pack", "before", "apply_deferred_update", "--against=grpo{staleness=1}"]) == 0


def test_what_a_pass_changed_is_told_op_by_op(tmp_path: Path, capsys):
    file = str(tmp_path / "late.st")
    assert main(["opt", "grpo", "-p", "defer-metrics", "-o", file]) == 0
    assert main(["diff", "grpo", file]) == 1
    assert capsys.readouterr() == (CHANGES, "")


def test_control_nothing_is_told_of_the_same_program(boundary: str, capsys):
    assert main(["diff", "grpo", "grpo"]) == 0
    assert main(["diff", boundary, boundary]) == 0
    assert capsys.readouterr() == ("", "")


def test_standard_input_cannot_be_both(capsys):
    assert main(["diff", "-", "-"]) == 2


FREE = """
import steptrace

@steptrace.op(reads=[], writes=[])
def left():
    pass

@steptrace.op(reads=[], writes=[])
def right():
    pass

@steptrace.program()
def free(step):
    left()
    right()
    step.dispatch(prompts=2, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()
"""
