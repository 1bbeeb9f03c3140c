"""What may stand for a program in a test, and how programs and errors are shown so that a text can expect them."""

from __future__ import annotations

import linecache
from copy import copy
from pathlib import Path
from typing import TypeAlias

from steptrace.diag.base import Note, SteptraceError
from steptrace.diag.loc import Loc
from steptrace.ir.nest import nest_view
from steptrace.ir.parser import parse
from steptrace.ir.printer import print_program, written_path
from steptrace.ir.program import Program
from steptrace.ir.verify import verify
from steptrace.lang.definition import ProgramDef, trace
from steptrace.lang.reference import resolve
from steptrace.lang.resources import apart
from steptrace.motion import Schedule

ProgramLike: TypeAlias = Program | ProgramDef | Schedule | str
"""A program; a function under ``@steptrace.program``, with the defaults of its parameters; a schedule; the text form;
or a name as on the command line: ``grpo{staleness=1}``, ``module:function``, ``file.st``."""

VIEWS = ("text", "nest", "grid")
"""The views that a test can expect."""


def program_of(program: ProgramLike) -> Program:
    """The program that a test means.

    Raises:
      SteptraceError: it cannot be traced, read or verified.
    """
    if isinstance(program, Schedule):
        return program.program
    if isinstance(program, ProgramDef):
        return trace(program)
    if isinstance(program, str):
        return read(program) if program.startswith("steptrace ") else resolve(program)
    return program


def read(text: str, name: str = "<text>") -> Program:
    """The program of a text, verified; ``name`` is what diagnostics call the text."""
    parsed = parse(text, name)
    verify(parsed.program, parsed.places)
    return parsed.program


def traced(source: str, name: str, line: int = 1) -> Program:
    """The program defined in Python text, which must hold exactly one.

    Args:
      source: the text; ``steptrace`` is there without an import.
      name: what diagnostics call the file.
      line: the line of the file at which the text stands.

    Raises:
      ValueError: it holds none, or several.
      SteptraceError: it cannot be traced.
    """
    import steptrace

    lines = ["\n"] * (line - 1) + source.splitlines(keepends=True)
    linecache.cache[name] = (len(source), None, lines, name)
    names: dict[str, object] = {"__name__": "case", "steptrace": steptrace}
    with apart():
        exec(compile("".join(lines), name, "exec"), names)
        found = [value for value in names.values() if isinstance(value, ProgramDef)]
        if len(found) != 1:
            raise ValueError(f"{name} defines {len(found)} programs, and a case needs one")
        return trace(found[0])


def shown(program: Program, view: str = "text", reference: Program | None = None) -> str:
    """A view of a program, as ``dump`` and ``opt`` print it; ``reference`` gives the grid its edges."""
    if view == "grid":
        from steptrace.check.edges import edges_of
        from steptrace.check.grid import grid_view

        return grid_view(program, edges=None if reference is None else edges_of(reference))
    return nest_view(program) if view == "nest" else print_program(program)


def rendered(error: SteptraceError) -> str:
    """A diagnostic as text that does not depend on where the package is installed."""
    same = copy(error)
    same.source = error.source or (error.loc.source() if error.loc is not None else "")
    same.loc = _written(error.loc)
    same.notes = tuple(Note(note.text, _written(note.loc)) for note in error.notes)
    return same.render() + "\n"


def _written(loc: Loc | None) -> Loc | None:
    return None if loc is None else Loc(written_path(loc.file), loc.line, loc.column)


def without_places(text: str) -> str:
    """A text with paths inside the package as they are written everywhere: ``steptrace/programs/grpo.py``."""
    return text.replace(f"{Path(__file__).parents[2]}/", "")
