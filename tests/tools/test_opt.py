"""`steptrace opt`: the schedule goes out, what became of the passes is told beside it, a crash leaves a reproducer."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from steptrace.ir import parse_program, print_program
from steptrace.motion import Schedule
from steptrace.passes.defer_metrics import DeferMetrics
from steptrace.programs import load
from steptrace_tools.cli import main


def opt(capsys, *arguments: str) -> tuple[str, str]:
    assert main(["opt", *arguments]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_the_schedule_goes_to_standard_output_and_nothing_else_does(capsys):
    out, err = opt(capsys, "grpo", "-p", "defer-metrics")
    assert err == ""
    assert [op.id for op in parse_program(out).body if "metrics" in op.id] == ["start_metrics", "fetch_metrics"]


def test_it_goes_to_a_file_that_reads_back(capsys, tmp_path: Path):
    file = tmp_path / "a.st"
    assert opt(capsys, "grpo{staleness=1}", "-p", "pipelined-boundary", "-o", str(file)) == ("", "")
    assert print_program(parse_program(file.read_text())) == file.read_text()


def test_an_empty_pipeline_is_wrong_usage(capsys):
    assert main(["opt", "grpo"]) == 2
    assert "`opt` needs a pipeline" in capsys.readouterr().err


def test_a_program_on_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(print_program(load("grpo").trace())))
    assert opt(capsys, "-", "-p", "defer-metrics")[0] == opt(capsys, "grpo", "-p", "defer-metrics")[0]


def test_remarks_say_what_was_done_and_what_was_left_with_the_lines_and_the_way_out(capsys):
    _, err = opt(capsys, "grpo", "-p", "take-ahead,defer-metrics", "--remarks")
    lines = err.splitlines()
    assert lines[0].startswith("missed[ST283] take-ahead: `take` gains nothing from running ahead: ")
    assert re.fullmatch(
        r"  steptrace/programs/grpo.py:\d+  step.dispatch\(prompts=prompts, samples=samples\)", lines[1]
    )
    assert re.fullmatch(r"  steptrace/programs/grpo.py:\d+  `sync_weights` of step k", lines[2])
    assert lines[3].startswith("  help: allow it with staleness=1, `grpo{staleness=1}`")
    assert lines[4].startswith("applied defer-metrics: split `get_metrics` into `start_metrics`, `fetch_metrics`")


def test_a_pass_that_declines_is_noted_in_one_line_and_the_rest_goes_on(capsys):
    out, err = opt(capsys, "grpo", "-p", "take-ahead,defer-metrics,dce")
    lines = err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("note: take-ahead declined: `take` gains nothing from running ahead: ")
    assert lines[1] == (
        "note: dce declined: every op of the step is seen by another one, or from outside; --remarks shows more"
    )
    assert all(line.endswith("; --remarks shows more") for line in lines)
    assert out == opt(capsys, "grpo", "-p", "defer-metrics")[0]


def test_remarks_take_the_place_of_the_note(capsys):
    _, err = opt(capsys, "grpo", "-p", "take-ahead", "--remarks")
    assert "note:" not in err
    assert err.startswith("missed[ST283] take-ahead: ")


def test_the_schedule_after_one_pass_or_each(capsys):
    pipeline = ("grpo{staleness=1}", "-p", "take-ahead,defer-metrics")
    _, one = opt(capsys, *pipeline, "--print-after=take-ahead")
    _, every = opt(capsys, *pipeline, "--print-after=all")
    assert [line for line in one.splitlines() if line.startswith("#")] == ["# after take-ahead{depth=1}"]
    assert [line for line in every.splitlines() if line.startswith("#")] == [
        "# after take-ahead{depth=1}",
        "# after defer-metrics",
    ]
    assert every.startswith(one)


def test_a_pass_that_is_not_in_the_pipeline_cannot_be_printed_after(capsys):
    assert main(["opt", "grpo", "-p", "defer-metrics", "--print-after=send-ahead"]) == 2
    assert "the pipeline has no pass `send-ahead`; it has defer-metrics" in capsys.readouterr().err


def test_dumps_are_numbered_files_and_the_last_is_the_result(capsys, tmp_path: Path):
    folder = tmp_path / "dumps"
    out, _ = opt(capsys, "grpo{staleness=1}", "-p", "pipelined-boundary", "--dump", str(folder))
    names = ["01-take-ahead.st", "02-defer-metrics.st", "03-stage-before-update.st", "04-send-ahead.st"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert (folder / names[-1]).read_text() == out


def test_times_name_each_pass(capsys):
    _, err = opt(capsys, "grpo", "-p", "defer-metrics,fuse-update", "--time")
    assert [line.split()[1:] for line in err.splitlines()] == [["ms", "defer-metrics"], ["ms", "fuse-update"]]


def test_the_motions_as_python_make_the_same_schedule(capsys):
    arguments = ("grpo{staleness=1}", "-p", "pipelined-boundary")
    text, _ = opt(capsys, *arguments)
    python, _ = opt(capsys, *arguments, "--python")
    names: dict[str, object] = {}
    exec(python, names)
    again = names["derive"](load("grpo").trace(staleness=1))
    assert isinstance(again, Schedule)
    assert print_program(again.program) == text


def test_the_grid_shows_what_each_lane_runs_when(capsys):
    out, _ = opt(capsys, "grpo{staleness=1}", "-p", "pipelined-boundary", "--view=grid")
    assert out.splitlines()[1].split() == ["packer", "host"]
    assert re.search(r"^\d+ +dispatch@1 .*@0", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("pipeline", "code"), [("no-such-pass", "ST302"), ("take-ahead{dept=1}", "ST285"), ("take-ahead{", "ST284")]
)
def test_a_pipeline_that_is_none_is_refused(pipeline: str, code: str, capsys):
    assert main(["opt", "grpo", "-p", pipeline]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error[{code}]: ")


def test_a_pass_that_crashes_leaves_a_file_with_which_it_crashes_again(capsys, tmp_path: Path, monkeypatch):
    def broken(self: DeferMetrics, schedule: Schedule) -> Schedule:
        raise KeyError("fetch")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(DeferMetrics, "run", broken)
    assert main(["opt", "grpo{staleness=1}", "-p", "take-ahead,defer-metrics,send-ahead"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error[ST287]: `defer-metrics` failed: KeyError: 'fetch'")
    assert "the program as the pass got it, and the pass: steptrace-crash-defer-metrics.st" in err
    file = tmp_path / "steptrace-crash-defer-metrics.st"
    assert file.read_text().startswith("# a pass fails on this program: -p defer-metrics\nsteptrace 1\n")
    assert "lane=packer" in file.read_text()
    assert main(["opt", str(file), "-p", "defer-metrics"]) == 1
    assert "error[ST287]" in capsys.readouterr().err


def test_control_a_pass_that_declines_leaves_no_file(capsys, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opt(capsys, "grpo", "-p", "take-ahead")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mesh", ["data=1000001", "data=2000,fsdp=2000", "fsdp=99999999999999999999"])
def test_a_mesh_of_more_devices_than_there_can_be_is_refused(mesh: str, capsys):
    assert main(["opt", "grpo", "-p", "select-logps-head", f"--mesh={mesh}"]) == 1
    assert "error[ST635]" in capsys.readouterr().err
