"""The command line as a whole: dispatch, help, exit codes, and what it loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from steptrace.diag.command import OutputNotWritableError
from steptrace_tools import bench, cli, commands
from steptrace_tools.command import Command

SCRIPT = Path(sys.executable).with_name("steptrace")

WITHOUT_JAX = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"jax", "jaxlib", "numpy", "flax", "optax", "orbax", "chex"}:
            raise ImportError(f"{name} was loaded")
sys.meta_path.insert(0, Block())
from steptrace_tools.cli import main
sys.exit(main(sys.argv[1:]))
"""


def raising(error: BaseException) -> Command:
    def run(operands, flags):
        raise error

    return Command(name="broken", operands="", summary="Fails.", examples=(("broken", "fails"),), run=run)


def test_help_names_every_command(capsys):
    assert cli.main(["help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in (*commands.NAMES, "bench"))
    assert cli.main([]) == 0
    assert capsys.readouterr().out == shown
    assert cli.main(["--help"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("name", commands.NAMES)
def test_each_command_shows_its_usage_and_examples(name: str, capsys):
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: steptrace {name}")
    assert f"examples:\n  steptrace {name}" in shown
    assert cli.main(["help", name]) == 0
    assert capsys.readouterr().out == shown


COMMANDS = ", ".join((*commands.NAMES, "bench", "help"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["dmup"],
            f"steptrace: there is no command `dmup`; did you mean `dump`? (try: {COMMANDS})",
        ),
        (["zzz"], f"steptrace: there is no command `zzz` (try: {COMMANDS})"),
        (["dump"], "steptrace: `dump` needs PROGRAM"),
        (["ops", "update", "extra"], "steptrace: `ops` does not take `extra`"),
        (["dump", "grpo", "--veiw=nest"], "steptrace: Unknown command line flag 'veiw'. Did you mean: view ?"),
        (["bench", "nothing"], f"steptrace: there is no benchmark `nothing` (try: {', '.join(bench.NAMES)})"),
        (
            ["bench", "fases"],
            f"steptrace: there is no benchmark `fases`; did you mean `phases`? (try: {', '.join(bench.NAMES)})",
        ),
        (["run", "grpo", "--steps=abc"], "steptrace: --steps=abc is not a whole number"),
        (["run", "grpo", "--timed=maybe"], "steptrace: --timed=maybe is not true or false"),
        (
            ["help", "dmup"],
            f"steptrace: there is no command `dmup`; did you mean `dump`? (try: {COMMANDS})",
        ),
    ],
)
def test_wrong_usage_exits_2(arguments: list[str], message: str, capsys):
    assert cli.main(arguments) == 2
    assert capsys.readouterr() == ("", message + "\n")


def test_a_flag_value_that_does_not_fit_exits_2(capsys):
    assert cli.main(["dump", "grpo", "--view=tree"]) == 2
    assert "--view=tree" in capsys.readouterr().err


def test_a_coded_error_is_printed_without_a_stack_and_exits_1(monkeypatch, capsys):
    error = OutputNotWritableError("cannot write to `x`", help="name another folder")
    monkeypatch.setattr(cli, "load", lambda name, room: raising(error))
    assert cli.main(["broken"]) == 1
    assert capsys.readouterr() == ("", "error[ST600]: cannot write to `x`\n  help: name another folder\n")


def test_an_interrupt_exits_130(monkeypatch, capsys):
    monkeypatch.setattr(cli, "load", lambda name, room: raising(KeyboardInterrupt()))
    assert cli.main(["broken"]) == 130
    assert capsys.readouterr().err == "steptrace: interrupted\n"


def test_control_an_error_of_ours_keeps_its_stack(monkeypatch):
    monkeypatch.setattr(cli, "load", lambda name, room: raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["broken"])


def test_flags_may_stand_before_and_after_operands():
    command = cli.load("dump")
    before, flags_before = command.parse(["--view=nest", "-o", "f", "grpo"])
    after, flags_after = command.parse(["grpo", "-o", "f", "--view", "nest"])
    assert before == after == ["grpo"]
    assert (flags_before.view, flags_before.output) == (flags_after.view, flags_after.output) == ("nest", "f")


def test_flags_do_not_last_from_one_call_to_the_next():
    command = cli.load("dump")
    command.parse(["grpo", "--view=nest"])
    assert command.parse(["grpo"])[1].view == "text"


def test_a_lone_dash_is_an_operand():
    assert cli.load("check").parse(["-"])[0] == ["-"]


def test_the_console_script_gives_the_exit_code_to_the_shell():
    run = subprocess.run([SCRIPT, "explain", "ST600"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("ST600 OutputNotWritableError\n\nA file or folder that was named for output")
    assert subprocess.run([SCRIPT, "nothing"], capture_output=True, check=False).returncode == 2


def test_a_reader_that_goes_away_is_no_error():
    pipe = f"{SCRIPT} ops | true; echo ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", f"sleep 0; {pipe}"], capture_output=True, text=True, check=False)
    assert run.stderr == ""
    assert run.stdout.strip() in {"0", "141"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_that_is_full_is_a_coded_error():
    with open("/dev/full", "w") as full:
        run = subprocess.run([SCRIPT, "ops"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("error[ST600]: the output cannot be written: No space left")
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("arguments", [["help"], ["ops"], ["explain", "ST600"], ["explain"], ["programs"]])
def test_runs_where_jax_and_numpy_cannot_be_loaded(arguments: list[str]):
    run = subprocess.run([sys.executable, "-c", WITHOUT_JAX, *arguments], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_control_the_block_is_seen():
    code = WITHOUT_JAX.replace("from steptrace_tools", "import numpy\nfrom steptrace_tools")
    run = subprocess.run([sys.executable, "-c", code, "help"], capture_output=True, text=True, check=False)
    assert "numpy was loaded" in run.stderr
