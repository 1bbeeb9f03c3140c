"""The coded error every user-caused failure is raised as, and how it is rendered."""

from __future__ import annotations

import os.path
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from steptrace.diag.loc import Loc


@dataclass(frozen=True, slots=True)
class Note:
    """One line under a diagnostic: a sentence, and the place it speaks about.

    Attributes:
      text: one plain sentence.
      loc: the line it points at, if any.
    """

    text: str
    loc: Loc | None = None


class SteptraceError(Exception):
    """Base of all coded errors. A subclass sets ``code``; its docstring is the manual page.

    The manual page (shown by ``steptrace explain CODE``) says what is wrong, shows an example that
    causes it, and the ways out.

    Args:
      message: one plain sentence, no trailing full stop.
      loc: the user's line.
      notes: further lines, each with its own place.
      help: the way out, one sentence.
      source: text of the line at ``loc`` when it cannot be read from a file (standard input).
    """

    code: ClassVar[str] = "ST000"

    def __init__(
        self,
        message: str,
        *,
        loc: Loc | None = None,
        notes: tuple[Note, ...] = (),
        help: str = "",
        source: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.loc = loc
        self.notes = notes
        self.help = help
        self.source = source

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        """The diagnostic as text: headline, user's line, notes, way out."""
        headline = f"error[{self.code}]: {self.message}"
        return laid_out(headline, loc=self.loc, notes=self.notes, help=self.help, source=self.source)


def laid_out(
    headline: str, *, loc: Loc | None = None, notes: tuple[Note, ...] = (), help: str = "", source: str = ""
) -> str:
    """A headline with the lines it is about below it, places on the left, and the way out last.

    Args:
      headline: the first line.
      loc: the user's line.
      notes: further lines.
      help: the way out.
      source: text of the line at ``loc`` when it cannot be read from a file.
    """
    rows = [] if loc is None else [(place_of(loc), source.strip() or loc.source())]
    rows += [(place_of(note.loc) if note.loc else "", note.text) for note in notes]
    width = max((len(place) for place, _ in rows), default=0)
    lines = [headline, *(f"  {place:<{width}}  {text}".rstrip() for place, text in rows)]
    if loc is not None and loc.column and source:
        indent = len(source) - len(source.lstrip())
        lines.insert(2, " " * (2 + width + 2 + max(0, loc.column - 1 - indent)) + "^")
    if help:
        lines.append(f"  help: {help}")
    return "\n".join(lines)


def place_of(loc: Loc) -> str:
    """The location as printed: relative to the working folder when it lies below it."""
    if loc.file.startswith("<") or not os.path.isabs(loc.file):
        return str(loc)
    relative = os.path.relpath(loc.file)
    shown = loc.file if relative.startswith("..") else relative
    return str(Loc(shown, loc.line, loc.column))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The question after the name that was meant, "" when none is near."""
    from difflib import get_close_matches  # only for a refusal: its import takes as long as a whole check

    near = get_close_matches(name, list(known), 1)
    return f"did you mean `{near[0]}`?" if near else ""


def a_or_an(noun: str) -> str:
    """A noun with its article: ``a str``, ``an int``."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
