"""The console script `steptrace`: finds the subcommand, parses its flags, and turns outcomes into exit codes.

Exit codes: 0 ok; 1 refused, with a coded diagnostic on standard error; 2 the command line is wrong;
130 interrupted; 141 the reader of the output went away. Any other exception is an error of ours and is shown
with its stack.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from steptrace.diag import SteptraceError
from steptrace.diag.base import did_you_mean
from steptrace.diag.command import OutputNotWritableError

from . import bench, commands
from .command import Command, UsageError
from .table import aligned

OK, REFUSED, USAGE, INTERRUPTED, NO_READER = 0, 1, 2, 130, 141

_HELP = ("--help", "-help", "-h")

_ABOUT = """\
usage: steptrace COMMAND ...

One definition of the RL train step: shown, checked, and run.

commands:
{commands}

PROGRAM is a built-in name, with parameters if any (grpo, 'grpo{{staleness=1}}'), module:function,
a .st file, or - for standard input.

steptrace COMMAND --help shows the flags of a command and examples.
exit codes: 0 ok, 1 refused with a coded diagnostic, 2 wrong usage."""

_ABOUT_BENCH = """\
usage: steptrace bench NAME ...

benchmarks:
{commands}

steptrace bench NAME --help shows the flags of a benchmark and examples."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name; default: the process's own). Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments, commands)
        sys.stdout.flush()
    except UsageError as error:
        print(f"steptrace: {error}", file=sys.stderr)
        return USAGE
    except SteptraceError as error:
        print(error.render(), file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("steptrace: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return NO_READER
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _forget_output()
        full = OutputNotWritableError(f"the output cannot be written: {error.strerror}", help="free disk space")
        print(full.render(), file=sys.stderr)
        return REFUSED
    return code


def _forget_output() -> None:
    """The interpreter flushes standard output once more when it ends; let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str], room: ModuleType) -> int:
    """Carry out ``arguments``, which start with the name of a command in ``room``."""
    match arguments:
        case [] | ["help"]:
            print(overview(room))
        case ["bench", *rest] if room is commands:
            return _dispatch(rest, bench)
        case ["help", *names]:
            return _dispatch([*names, "--help"], room)
        case ["--version"]:
            print(f"steptrace {_version()}")
        case [flag, *_] if flag in _HELP:
            print(overview(room))
        case [name, *rest] if asks_for_help(rest):
            print(load(name, room).help())
        case [name, *rest]:
            command = load(name, room)
            return command.run(*command.parse(rest))
    return OK


def load(name: str, room: ModuleType = commands) -> Command:
    """The command of that name; its module is imported only now.

    Raises:
      UsageError: there is none.
    """
    if name not in room.NAMES:
        known = (*room.NAMES, "bench", "help") if room is commands else room.NAMES
        near = did_you_mean(name, known)
        what = "command" if room is commands else "benchmark"
        raise UsageError(f"there is no {what} `{name}`{f'; {near}' if near else ''} (try: {', '.join(known)})")
    command = importlib.import_module(f"{room.__name__}.{name}").COMMAND
    assert isinstance(command, Command)
    return command


def asks_for_help(arguments: list[str]) -> bool:
    """Whether a help flag stands before a closing ``--``."""
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(flag in _HELP for flag in flags)


def overview(room: ModuleType = commands) -> str:
    """The help page of the whole command line, or of the benchmarks."""
    rows = [(name, load(name, room).summary) for name in room.NAMES]
    if room is commands:
        rows.append(("bench", "Measures: a benchmark by name."))
    return (_ABOUT if room is commands else _ABOUT_BENCH).format(commands=aligned(rows, indent=2))


def _version() -> str:
    from importlib.metadata import version

    return version("steptrace")
