"""Tokens of the text form, each with its line and column."""

from __future__ import annotations

import re
from typing import NamedTuple

from steptrace.diag.loc import Loc
from steptrace.diag.text import UnreadableTextError

NAME = r"[^\W\d]\w*(?:\.\w+)*"
"""A dotted identifier: ``queue.groups``, ``mb.2``."""

MOST_DIGITS = 400
"""How long a number may be."""

_TOKEN = re.compile(
    rf"""
      (?P<space>[ \t\r]+|\#.*)
    | (?P<name>{NAME})
    | (?P<value>%{NAME})
    | (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<punct>==|->|[:=(){{}}\[\]<>,@*.+-])
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    """A piece of a line.

    Attributes:
      kind: name, value, number, string, punct, newline or end.
      text: as written; of a value the name without ``%``.
      line: 1-based line.
      column: 1-based column of its first character.
    """

    kind: str
    text: str
    line: int
    column: int


def lines_of(text: str) -> tuple[str, ...]:
    """The lines of a text, split at line feeds only: other line separators may stand in comments."""
    return tuple(line.rstrip("\r") for line in text.removeprefix("\ufeff").split("\n"))


def tokens_of(lines: tuple[str, ...], filename: str) -> list[Token]:
    """The tokens of a text, with one ``newline`` after each line that holds any, and an ``end``.

    Raises:
      UnreadableTextError: a character belongs to no token, or a number is too long.
    """
    tokens: list[Token] = []
    for number, line in enumerate(lines, 1):
        before, at = len(tokens), 0
        while at < len(line):
            match = _TOKEN.match(line, at)
            if match is None:
                raise _unreadable(line, Loc(filename, number, at + 1))
            kind = match.lastgroup or ""
            if kind == "number" and len(match[0]) > MOST_DIGITS:
                message = f"a number has at most {MOST_DIGITS} digits"
                raise UnreadableTextError(message, loc=Loc(filename, number, at + 1), source=line)
            if kind != "space":
                tokens.append(Token(kind, match[0][1:] if kind == "value" else match[0], number, at + 1))
            at = match.end()
        if len(tokens) > before:
            tokens.append(Token("newline", "", number, len(line) + 1))
    last = tokens[-1].line + 1 if tokens else 1
    tokens.append(Token("end", "", min(last, len(lines)), 1))
    return tokens


def _unreadable(line: str, loc: Loc) -> UnreadableTextError:
    character = line[loc.column - 1]
    if character == '"':
        return UnreadableTextError('the string has no closing `"` on its line', loc=loc, source=line)
    if character == "%":
        return UnreadableTextError("expected the name of a value after `%`", loc=loc, source=line)
    return UnreadableTextError(f"unexpected character `{character}`", loc=loc, source=line)
