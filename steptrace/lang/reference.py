"""Names of programs as users write them: ``grpo{staleness=1}``, ``module:function``, ``file.st``, ``-``."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from steptrace.diag.loc import Loc
from steptrace.diag.tracing import (
    ContractOptionError,
    ParameterError,
    ProgramImportError,
    ProgramReferenceError,
    UnknownProgramError,
)
from steptrace.ir.program import Program
from steptrace.ir.types import AttrValue
from steptrace.ir.verify import verify
from steptrace.lang.definition import ProgramDef, trace

if TYPE_CHECKING:
    from steptrace.ir.parser import Parsed

_PARAMETER = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>\"[^\"]*\"|'[^']*'|[^\s,{}\"'=]+)\s*(?:,|$)")
_WORDS: dict[str, AttrValue] = {"true": True, "True": True, "false": False, "False": False}
_REGISTRY = "steptrace.programs"
"""The package of the built-in programs; imported by name, since it stands on this one."""


def resolve(reference: str, *, stdin: TextIO | None = None) -> Program:
    """The program that ``reference`` names, traced or read, and verified.

    Args:
      reference: ``grpo``, ``grpo{staleness=1, prompts=16}``, ``module:function`` (with parameters likewise),
        a ``.st`` file, or ``-`` for the text of a program on standard input. ``job/job.py:step`` stands for
        ``job.job:step``.
      stdin: what ``-`` reads; standard input when None.

    Raises:
      UnknownProgramError, ProgramReferenceError, ProgramImportError: it names no program.
      SteptraceError: what tracing, parsing or verifying the program raises.
    """
    if is_text(reference):
        parsed = read(reference, stdin=stdin)
        verify(parsed.program, parsed.places)
        return parsed.program
    head, params = split(reference)
    found = definition(head)
    try:
        return trace(found, **params)
    except (ParameterError, ContractOptionError) as error:
        # The user wrote the parameters in the reference, not where it is resolved.
        named = [name for name in params if f"`{name}`" in error.message]
        at = re.search(rf"\b{named[0]}\s*=", reference[len(head) :]) if named else None
        error.loc = Loc("<program>", 1, len(head) + at.start() + 1 if at else 1)
        error.source = reference
        raise


def is_text(reference: str) -> bool:
    """Whether ``reference`` names a text to be read, not a program to be traced."""
    return reference == "-" or reference.endswith(".st")


def read(reference: str, *, stdin: TextIO | None = None) -> Parsed:
    """The program in a ``.st`` file, or on standard input for ``-``: parsed, but not verified.

    Args:
      reference: a path, or ``-``.
      stdin: what ``-`` reads; standard input when None.

    Raises:
      ProgramImportError: the file cannot be read.
      SteptraceError: what parsing raises.
    """
    # Most programs are traced: the parser loads when a text is read.
    from steptrace.ir.parser import parse

    if reference == "-":
        return parse(_standard_input(stdin or sys.stdin), "<stdin>")
    return parse(_text(reference), reference)


def definition(name: str) -> ProgramDef:
    """The definition behind a built-in name or ``module:function``, without parameters."""
    if ":" in name:
        return _imported(name)
    programs = importlib.import_module(_REGISTRY)
    if name not in programs.NAMES:
        close = difflib.get_close_matches(name, programs.NAMES, 1)
        hint = f"did you mean `{close[0]}`?" if close else "own programs are named `module:function` or by a .st file"
        raise UnknownProgramError(
            f"there is no built-in program `{name}`; there are: {', '.join(programs.NAMES)}", help=hint
        )
    found = programs.load(name)
    assert isinstance(found, ProgramDef), "the registry holds definitions"
    return found


def split(reference: str) -> tuple[str, dict[str, AttrValue]]:
    """The name and the parameters of ``name{key=value, ...}``; values are numbers, true, false, or strings."""
    head, brace, _ = reference.partition("{")
    name = _as_module(head.strip())
    if not re.fullmatch(r"[\w.]+(:\w+)?", name):
        raise _syntax(reference, 0, "expected the name of a program", _instead_of_a_file(name))
    if not brace:
        return name, {}
    end = reference.rstrip()
    if not end.endswith("}"):
        raise _syntax(reference, len(end), "expected `}`")
    params: dict[str, AttrValue] = {}
    position, stop = len(head) + 1, len(end) - 1
    while reference[position:stop].strip():
        match = _PARAMETER.match(reference, position, stop)
        if match is None:
            raise _syntax(reference, position, "expected `name=value`, and `,` or `}` after it")
        if match["name"] in params:
            raise _syntax(reference, match.start("name"), f"`{match['name']}` is given twice")
        params[match["name"]] = _value(match["value"])
        position = match.end()
    return name, params


_MODULE_FILE = re.compile(r"(?:\./)?(?P<path>(?:[A-Za-z_]\w*/)*[A-Za-z_]\w*)\.py:(?P<name>\w+)")


def _as_module(name: str) -> str:
    """``folder/file.py:function`` below the working folder as ``folder.file:function``; other names as they are."""
    match = _MODULE_FILE.fullmatch(name)
    return f"{match['path'].replace('/', '.')}:{match['name']}" if match else name


def _instead_of_a_file(name: str) -> str:
    """The way out where a file is named that holds no text of a program."""
    path = name.partition(":")[0]
    if path.endswith(".py"):
        return "programs in Python are named module:function, with the module's place below the working folder"
    is_file = os.path.isfile(name)
    return "a file with the text of a program has a name that ends in .st, or is given as `- < FILE`" if is_file else ""


def _value(text: str) -> AttrValue:
    """A number, a truth value, or a string with or without quotes."""
    if text[0] in "\"'":
        return text[1:-1]
    if text in _WORDS:
        return _WORDS[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _syntax(reference: str, position: int, expected: str, help: str = "") -> ProgramReferenceError:
    return ProgramReferenceError(
        f"`{reference}` names no program: {expected}",
        loc=Loc("<program>", 1, position + 1),
        source=reference,
        help=help,
    )


def _imported(name: str) -> ProgramDef:
    """The program behind ``module:function``; the working folder is searched, as ``python -m`` does."""
    module, _, attribute = name.partition(":")
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    try:
        holder = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ProgramImportError(f"there is no module `{module}`", help=f"it was looked for in {folder} too") from None
    found = getattr(holder, attribute, None)
    if isinstance(found, ProgramDef):
        return found
    programs = [key for key, value in vars(holder).items() if isinstance(value, ProgramDef)]
    listed = f"; its programs are: {', '.join(programs)}" if programs else ""
    if found is None:
        raise ProgramImportError(f"module `{module}` has no `{attribute}`{listed}")
    raise ProgramImportError(f"`{name}` is no program{listed}", help="decorate the function with @steptrace.program")


def _standard_input(stream: TextIO) -> str:
    try:
        text = stream.read()
        text.encode("utf-8")  # under some locales what cannot be decoded arrives as lone surrogates
    except UnicodeError:
        raise ProgramImportError("standard input cannot be read: it is not UTF-8 text") from None
    return text


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ProgramImportError(f"`{path}` cannot be read: {reason}") from None
