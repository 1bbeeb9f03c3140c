"""Where the items of a parsed program stand in its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steptrace.diag.loc import Loc


@dataclass(frozen=True, slots=True)
class Places:
    """Positions in a text, for diagnostics of the program that was parsed from it.

    Attributes:
      lines: the lines of the text.
      table: the place of an item and of its parts. Items are ids of ops and loops, and ``resource NAME``,
        ``carry NAME``, ``row NAME``, ``contract`` and ``program``. Parts are ``""`` for the whole item,
        ``%name`` for an operand or result, ``args``, ``results``, ``lane``, ``when``, ``end``,
        ``attr NAME``, and ``reads``, ``writes`` and ``awaits``, by themselves or with an effect after them.
    """

    lines: tuple[str, ...]
    table: Mapping[tuple[str, str], Loc]

    def at(self, item: str, part: str = "") -> Loc | None:
        """The place of a part of an item, of the item where the part has none, or None."""
        return self.table.get((item, part)) or self.table.get((item, ""))

    def source(self, loc: Loc) -> str:
        """The line at a place of this text."""
        return self.lines[loc.line - 1] if 0 < loc.line <= len(self.lines) else ""
