"""The coded error every user-caused failure is raised as, and how it is rendered."""

from __future__ import annotations

import os.path
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
        rows: list[tuple[str, str]] = []
        if self.loc is not None:
            rows.append((place_of(self.loc), self.source.strip() or self.loc.source()))
        rows += [(place_of(note.loc) if note.loc else "", note.text) for note in self.notes]
        width = max((len(place) for place, _ in rows), default=0)
        lines = [f"error[{self.code}]: {self.message}"]
        lines += [f"  {place:<{width}}  {text}".rstrip() for place, text in rows]
        if self.loc is not None and self.loc.column and self.source:
            indent = len(self.source) - len(self.source.lstrip())
            lines.insert(2, " " * (2 + width + 2 + max(0, self.loc.column - 1 - indent)) + "^")
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)


def place_of(loc: Loc) -> str:
    """The location as printed: relative to the working folder when it lies below it."""
    if loc.file.startswith("<") or not os.path.isabs(loc.file):
        return str(loc)
    relative = os.path.relpath(loc.file)
    shown = loc.file if relative.startswith("..") else relative
    return str(Loc(shown, loc.line, loc.column))
