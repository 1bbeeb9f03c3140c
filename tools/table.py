"""Rows of text under one another, in columns."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, indent: int = 0) -> str:
    """The rows as lines, each column as wide as its longest cell, two spaces between; the last is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"{'':<{indent}}{line}".rstrip() for line in lines)
