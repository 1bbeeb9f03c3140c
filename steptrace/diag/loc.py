"""Source locations: where a user wrote the thing a diagnostic is about."""

from __future__ import annotations

import linecache
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Loc:
    """A place in a source file.

    Attributes:
      file: path of the file as it was given, or ``<stdin>``.
      line: 1-based line.
      column: 1-based column, 0 when only the line is known.
    """

    file: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place}:{self.column}" if self.column else place

    def source(self) -> str:
        """The text of the line, stripped, or ``""`` when the file is not readable."""
        return linecache.getline(self.file, self.line).strip()
