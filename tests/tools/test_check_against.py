"""`steptrace check --against`: exit 0 with what was proved, 1 with the broken edge or a run that shows it."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from steptrace.ir import print_program
from steptrace.passes import run_pipeline
from steptrace.programs import load
from steptrace.testing.edits import edited
from steptrace_tools.cli import main

SOURCE = "grpo{staleness=1}"


@pytest.fixture
def derived(tmp_path: Path):
    """Writes the schedule of a pipeline, edited, and returns the file's name."""

    def write(pipeline: str = "defer-metrics", edit: str = "") -> str:
        program = run_pipeline(load("grpo").trace(staleness=1), pipeline).schedule.program
        text = print_program(program)
        file = tmp_path / "derived.st"
        file.write_text(edited(text, edit) if edit else text)
        return str(file)

    return write


def test_an_equal_schedule_is_proved_and_the_report_says_how(derived, capsys):
    assert main(["check", derived(), "--against", SOURCE]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "grpo: equal to its source"
    assert "proved for all N and M: order and capacity: " in lines[1]
    assert [line.split()[:2] for line in lines[2:8]] == [
        [layer, "ok"] for layer in ("coverage", "order", "room", "translation", "failure", "crash")
    ]
    assert any(line.startswith("  tried: all vectors of 0 to 3 micro-batches") for line in lines)
    assert any(line.startswith("  why that suffices: ") for line in lines)


@pytest.mark.slow
def test_the_pipelined_boundary_is_proved_over_its_lanes_and_waits(derived, capsys):
    assert main(["check", derived("pipelined-boundary"), "--against", SOURCE]) == 0
    out = capsys.readouterr().out
    assert "order, liveness and capacity: " in out
    assert "all settings of their 6 flags" in out


def test_a_broken_edge_is_told_and_exits_1(derived, capsys):
    assert main(["check", derived(edit="move commit before sync_weights"), "--against", SOURCE]) == 1
    out, err = capsys.readouterr()
    message = "`commit` of step k would run before `sync_weights` of step k"
    assert out == f"not equal to {SOURCE}: ST204: {message}\n"
    assert err.startswith(f"error[ST204]: {message}\n  steptrace/programs/grpo.py:27  step.commit()\n")
    assert "legal for `commit`: after `sync_weights` and before `log`" in err


def test_the_grid_marks_the_broken_edge(derived, capsys):
    file = derived(edit="move commit before sync_weights")
    assert main(["check", file, "--against", SOURCE, "--view=grid"]) == 1
    marked = [word for line in capsys.readouterr().out.splitlines() for word in line.split() if word.startswith("!")]
    assert marked == ["!commit@0", "!sync_weights@0", "!"]


def test_what_only_a_failure_shows_is_told_with_the_run(derived, capsys):
    file = derived("", "move on_step_end before save_checkpoint")
    assert main(["check", file, "--against", SOURCE]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"not equal to {SOURCE}: ST254: ")
    assert "seen in a run of " in err


def test_another_contract_is_another_program(derived, capsys):
    assert main(["check", derived(), "--against", "grpo"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error[ST209]: staleness of the contract of `grpo` is not what it is in the source\n")
    assert "help: staleness is 1, was 0; compare it with `grpo{staleness=1}`" in err


def test_other_parameters_are_another_program(derived, capsys):
    assert main(["check", derived(), "--against", "grpo{staleness=1, prompts=16, save_every=5}"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error[ST209]: prompts, save_every of the parameters of `grpo` is not what")
    assert "help: prompts is 32, was 16; save_every is 10, was 5" in err


def test_a_schedule_is_no_source(derived, capsys):
    file = derived("take-ahead")
    for program in (SOURCE, file):
        assert main(["check", program, "--against", file]) == 1
        assert capsys.readouterr().err.startswith("error[ST250]: ")


def test_a_users_op_with_a_page_is_the_same_op_in_the_text(tmp_path, monkeypatch, capsys):
    (tmp_path / "documented_job.py").write_text(DOCUMENTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["opt", "documented_job:mine", "-p", "take-ahead", "-o", "mine.st"]) == 0
    assert main(["check", "mine.st", "--against", "documented_job:mine"]) == 0, capsys.readouterr().err


def test_either_may_come_from_standard_input_but_not_both(derived, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(Path(derived()).read_text()))
    assert main(["check", "-", "--against", SOURCE]) == 0
    assert main(["check", "-", "--against", "-"]) == 2
    assert "standard input is one program" in capsys.readouterr().err


def test_without_a_source_every_problem_of_a_text_is_shown(derived, capsys):
    file = derived("", "drop commit\ndrop initial_sync")
    assert main(["check", file]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert [line[:12] for line in err.splitlines() if line.startswith("error")] == ["error[ST148]", "error[ST144]"]


def test_a_view_of_the_comparison_needs_a_source(derived, capsys):
    assert main(["check", str(derived), "--view=grid"]) == 2
    assert "name the source too, --against=PROGRAM" in capsys.readouterr().err


def test_without_a_source_it_says_that_the_order_of_a_schedule_was_not_checked(derived, capsys):
    file = derived("take-ahead", "move commit before sync_weights")
    assert main(["check", file]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[1] == (
        "the order was not checked: this is a schedule (it runs `dispatch` 1 ahead of its place); compare it with its "
        f"source: steptrace check {file} --against 'grpo{{staleness=1}}'"
    )
    assert main(["check", file, "--against", SOURCE]) == 1, "the command that it names"


def test_and_of_a_text_that_has_a_built_in_name_and_another_order(derived, capsys):
    assert main(["check", derived("", "move on_step_begin after dispatch")]) == 0
    assert "the order was not checked: this is not `grpo{staleness=1}` as it is written" in capsys.readouterr().out


def test_control_of_a_program_as_it_is_written_nothing_more_is_said(derived, tmp_path, monkeypatch, capsys):
    (tmp_path / "documented_job.py").write_text(DOCUMENTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for reference in (derived(""), "grpo", "documented_job:mine"):
        assert main(["check", reference]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_schedule_of_a_program_of_ones_own_has_no_source_that_is_known(tmp_path, monkeypatch, capsys):
    (tmp_path / "documented_job.py").write_text(DOCUMENTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["opt", "documented_job:mine", "-p", "take-ahead", "-o", "mine.st"]) == 0
    assert main(["check", "mine.st"]) == 0
    assert capsys.readouterr().out.endswith("steptrace check mine.st --against PROGRAM\n")


DOCUMENTED = '''
import steptrace

@steptrace.op(takes=("groups",), gives="groups<penalised>", reads=["host[k]"], writes=[])
def penalty(groups, *, weight: float = 0.5):
    """Takes something off the reward of a long completion.

    A page with several lines, "quotes" and a # sign.
    """
    return groups

@steptrace.program(staleness=1)
def mine(step):
    step.dispatch(prompts=2, samples=2)
    groups = penalty(step.take())
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(groups)))):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()
'''
