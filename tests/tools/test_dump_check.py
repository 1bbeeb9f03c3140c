"""`steptrace programs`, `dump` and `check`: what is printed reads back, and a hand edit that lies is refused."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from steptrace.ir import print_program
from steptrace.lang.reference import resolve
from steptrace.programs import NAMES
from steptrace_tools.cli import main

SCRIPT = Path(sys.executable).with_name("steptrace")

JOB = '''\
import steptrace


@steptrace.program
def tiny(step, prompts=2):
    """A small step."""
    step.dispatch(prompts=prompts, samples=2)
    groups = step.advantages(step.reward(step.take()))
    for mb in step.micro_batches(step.pack(groups)):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()
'''

NEST = """\
program tiny
before
  initial_sync: sync_weights
step k
  on_step_begin
  dispatch
  take
  reward
  advantages
  pack
  loop micro_batches: m in %batch
    next_mb
    fwd_bwd
  update
  sync_weights
  commit
  free
"""


def dumped(capsys, *arguments: str) -> str:
    assert main(["dump", *arguments]) == 0
    return capsys.readouterr().out


def check_text(text: str, monkeypatch) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return main(["check", "-"])


@pytest.fixture
def job(tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "job_of_test.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_names_are_printed_one_a_line(capsys):
    assert main(["programs", "--names"]) == 0
    assert capsys.readouterr().out.splitlines() == [*NAMES]


def test_the_table_of_programs_shows_parameters(capsys):
    assert main(["programs"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["program", *NAMES]
    assert "prompts=32, samples=8" in rows[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_dump_checks_and_dumps_again_to_the_same_text(name: str, capsys, tmp_path: Path):
    first, second = tmp_path / "a.st", tmp_path / "b.st"
    assert main(["dump", name, "-o", str(first)]) == 0
    assert main(["check", str(first)]) == 0
    assert main(["dump", str(first), "--output", str(second)]) == 0
    assert first.read_text() == second.read_text() == dumped(capsys, name).partition("\n")[2]


def test_the_console_script_pipes_a_dump_into_a_check():
    run = subprocess.run(
        ["bash", "-c", f"set -o pipefail; '{SCRIPT}' dump grpo | '{SCRIPT}' check -"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert re.fullmatch(r"ok: grpo: \d+ ops, 1 loop, \d+ resources, 1 update a step\n", run.stdout)


def test_a_program_of_ones_own_by_module_and_function(job: Path, capsys):
    assert dumped(capsys, "job_of_test:tiny", "--view=nest") == NEST
    assert main(["check", "job_of_test:tiny{prompts=4}"]) == 0
    assert re.fullmatch(r"ok: tiny: 13 ops, 1 loop, \d+ resources, 1 update a step\n", capsys.readouterr().out)


def test_parameters_reach_the_program(capsys):
    text = dumped(capsys, "grpo{prompts=4, staleness=2}")
    assert "contract weights=pinned staleness=2" in text
    assert "dispatch() {prompts=4, samples=8}" in text


EDITS = {
    "an effect left out": ("writes[checkpoints, trainer.calls]", "writes[trainer.calls]", "[trainer.calls]"),
    "an effect made up": ("reads[reference.params]", "reads[params, reference.params]", "params"),
    "a distance": ("rollout.weights[k-1]", "rollout.weights[k-2]", "rollout.weights"),
    "an operand of another type": ("fwd_bwd(%mb.2)", "fwd_bwd(%batch)", "%batch"),
    "an operand without its field": ("pack(%advantaged)", "pack(%scored)", "%scored"),
    "an operand that is not there": ("log(%metrics)", "log(%numbers)", "%numbers"),
    "a type": ("%scored : groups<rewards>", "%scored : groups<advantages>", "%scored"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_hand_edit_is_refused_with_line_and_column(edit: str, capsys, monkeypatch):
    true, lie, at = EDITS[edit]
    text = dumped(capsys, "grpo")
    assert text.count(true) == 1
    assert check_text(text.replace(true, lie), monkeypatch) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.match(r"error\[ST\d\d\d\]: ", err)
    place = re.search(r"^  <stdin>:(\d+):(\d+) ", err, re.MULTILINE)
    assert place, err
    lines = text.replace(true, lie).splitlines()
    line = lines[int(place[1]) - 1]
    assert lie in line
    assert line.index(lie) <= int(place[2]) - 1 <= line.index(lie) + len(lie)
    assert line[int(place[2]) - 1 :].startswith(at), line[int(place[2]) - 1 :]


def test_control_the_text_without_an_edit_is_accepted(capsys, monkeypatch):
    assert check_text(dumped(capsys, "grpo"), monkeypatch) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_program_that_lost_its_update_is_refused(name: str, capsys, monkeypatch):
    lines = dumped(capsys, name).splitlines(keepends=True)
    rest = [line for line in lines if not re.search(r"(^|[^_a-z])update\b", line)]
    assert len(rest) < len(lines)
    assert check_text("".join(rest), monkeypatch) == 1
    assert re.match(r"error\[ST1\d\d\]: ", capsys.readouterr().err)


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, capsys):
    path = tmp_path / "missing" / "grpo.st"
    assert main(["dump", "grpo", "-o", str(path)]) == 1
    assert capsys.readouterr() == (
        "",
        f"error[ST600]: cannot write `{path}`: No such file or directory\n  help: name another file\n",
    )


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("grppo", "there is no built-in program `grppo`"),
        ("nowhere.st", "`nowhere.st` cannot be read: No such file or directory"),
        ("no_such_module:step", "there is no module `no_such_module`"),
        ("grpo{prompts}", "`grpo{prompts}` names no program"),
        ("grpo{colour=1}", "`grpo` has no parameter `colour`"),
    ],
)
def test_what_names_no_program_is_refused(program: str, sentence: str, capsys):
    assert main(["check", program]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.match(rf"error\[ST\d\d\d\]: {re.escape(sentence)}", err)


def test_check_of_a_program_refuses_a_cell_that_is_read_above_its_writer(tmp_path, capsys):
    lines = print_program(resolve("grpo")).splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if " commit(" in line)
    (tmp_path / "right.st").write_text("".join(lines))
    lines[at - 1], lines[at] = lines[at], lines[at - 1]
    (tmp_path / "wrong.st").write_text("".join(lines))
    assert main(["check", str(tmp_path / "wrong.st")]) == 1
    err = capsys.readouterr().err
    assert "error[ST162]: `commit` reads `policy.version[k]`, which `sync_weights` writes only after it" in err
    assert f"wrong.st:{at}" in err
    assert main(["check", str(tmp_path / "right.st")]) == 0
    assert main(["check", str(tmp_path / "wrong.st"), "--against", "grpo"]) == 1
    assert "error[ST204]" in capsys.readouterr().err
