"""Edits of a program's text, for tests that break a schedule by hand: one edit a line, ops named by their ids.

::

    move sync_weights before update
    move commit after free
    swap update and save_checkpoint
    drop commit
    in take replace "lane=packer" with "lane=host"
    insert after update: update.2: update() lane=host from=update ...

A loop is moved and dropped with all that is in it. ``in contract``, ``in program`` and ``in resource NAME`` name the
lines of declarations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_OP = re.compile(r"\s+(?:(?P<label>[\w.]+): )?(?:%.*? = )?(?P<kind>[\w.]+)\(")
_LOOP = re.compile(r"\s+loop (?P<kind>\w+)(?: (?P<label>[\w.]+))?: ")
_DECLARATION = re.compile(r"(?P<name>contract|program|(?:resource|carry|op) %?[\w.]+)\b")


class EditError(ValueError):
    """An edit that cannot be made: a line that is none, or an op that the program does not have."""


def edited(text: str, edits: str) -> str:
    """The text of a program after edits, made one after the other.

    Args:
      text: the text form.
      edits: one a line; blank lines and what follows ``#`` are skipped.

    Raises:
      EditError: a line is no edit, names an op that is not there, or changes nothing.
    """
    lines = text.splitlines()
    for line in edits.splitlines():
        edit = line.partition(" #")[0].strip()
        if edit and not edit.startswith("#"):
            lines = _one(lines, edit)
    return "\n".join(lines) + "\n"


def _one(lines: list[str], edit: str) -> list[str]:
    for pattern, apply in _EDITS:
        match = re.fullmatch(pattern, edit)
        if match:
            changed = apply(lines, *match.groups())
            if changed == lines:
                raise EditError(f"`{edit}` changes nothing")
            return changed
    raise EditError(f"`{edit}` is no edit")


def _move(lines: list[str], moved: str, side: str, anchor: str) -> list[str]:
    start, end = _span(lines, moved)
    block, rest = lines[start:end], lines[:start] + lines[end:]
    first, past = _span(rest, anchor)
    at = first if side == "before" else past
    indent = _indent(rest[first])
    block = [indent + line.removeprefix(_indent(block[0])) for line in block]
    return rest[:at] + block + rest[at:]


def _swap(lines: list[str], one: str, other: str) -> list[str]:
    spans = sorted((_span(lines, one), _span(lines, other)))
    (a, b), (c, d) = spans
    if b > c:
        raise EditError(f"`{one}` and `{other}` cannot change places: one holds the other")
    return lines[:a] + lines[c:d] + lines[b:c] + lines[a:b] + lines[d:]


def _drop(lines: list[str], dropped: str) -> list[str]:
    start, end = _span(lines, dropped)
    return lines[:start] + lines[end:]


def _replace(lines: list[str], where: str, old: str, new: str) -> list[str]:
    at, _ = _span(lines, where)
    return [*lines[:at], lines[at].replace(old, new, 1), *lines[at + 1 :]]


def _insert(lines: list[str], side: str, anchor: str, line: str) -> list[str]:
    first, past = _span(lines, anchor)
    at = first if side == "before" else past
    return [*lines[:at], _indent(lines[first]) + line, *lines[at:]]


_NAME = r"(?:(?:resource|carry|op) )?%?[\w.]+"
_EDITS: Sequence[tuple[str, Callable[..., list[str]]]] = (
    (rf"move ({_NAME}) (before|after) ({_NAME})", _move),
    (rf"swap ({_NAME}) and ({_NAME})", _swap),
    (rf"drop ({_NAME})", _drop),
    (rf'in ({_NAME}) replace "(.*)" with "(.*)"', _replace),
    (rf"insert (before|after) ({_NAME}): (.*)", _insert),
)


def _span(lines: list[str], name: str) -> tuple[int, int]:
    """Where the op, loop or declaration of that name stands: its first line, and one past its last."""
    for at, line in enumerate(lines):
        if _name(line) == name:
            return at, _end(lines, at)
    raise EditError(f"the program has no `{name}`")


def _end(lines: list[str], at: int) -> int:
    if not _LOOP.match(lines[at]):
        return at + 1
    closing = _indent(lines[at]) + "}"
    return lines.index(closing, at) + 1


def _name(line: str) -> str:
    match = _LOOP.match(line) or _OP.match(line)
    if match:
        return match["label"] or match["kind"]
    declared = _DECLARATION.match(line)
    return declared["name"] if declared else ""


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
