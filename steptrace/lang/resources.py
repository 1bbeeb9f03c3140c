"""Resources that users declare, and the patterns that name resources in effects."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from steptrace.diag.base import Note
from steptrace.diag.loc import Loc
from steptrace.diag.tracing import ResourceError
from steptrace.ir.builtin import RESOURCES
from steptrace.ir.effects import parse_pattern
from steptrace.ir.resource import ANY, Access, Resource, ResourceKind
from steptrace.lang.place import user_loc

Pattern: TypeAlias = str | Resource
"""What an effect names: ``"host[k]"``, ``"params"``, or a declared resource."""

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

_declared: dict[str, tuple[Resource, Loc]] = {}


def resource(name: str, kind: str = "state", *, capacity: int = 0, doc: str = "") -> Resource:
    """Declare a resource that user ops read or write; the same declaration again is the same resource.

    A resource must be declared before an op names it: a misspelt name that silently became a resource of its
    own would lose an order.

    What is written to a state, a cell, a slot or a fifo of yours and read by no op is missed by nobody: a schedule may
    leave it out. What the world outside sees, such as an engine that is woken or a file, is a ``channel``.

    Args:
      name: dotted identifier; ``replay.cursor`` overlaps ``replay``.
      kind: ``state``, ``fifo``, ``channel``, ``slot`` or ``cell`` (one per step, ``name[k]``).
      capacity: entries that a slot holds, at least 1; 0 for the other kinds.
      doc: what it holds, one line.

    Raises:
      ResourceError: a bad name, kind or capacity, a built-in name, or a different declaration of the name.
    """
    loc = user_loc()
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ResourceError(f"the name of a resource is a dotted identifier, not {name!r}", loc=loc)
    if name in RESOURCES:
        raise ResourceError(f"`{name}` is built in: {RESOURCES[name].doc}", loc=loc)
    kinds = [member.value for member in ResourceKind]
    if kind not in kinds:
        raise ResourceError(f"`{name}` is of a kind among {', '.join(kinds)}, not {kind!r}", loc=loc)
    if (capacity > 0) != (kind == "slot") or capacity < 0:
        raise ResourceError(f"a slot has a capacity of at least 1, the other kinds none; `{name}` is a {kind}", loc=loc)
    made = Resource(name, ResourceKind(kind), capacity, doc)
    known, place = _declared.setdefault(name, (made, loc))
    if known != made and place != loc:
        raise ResourceError(
            f"`{name}` is declared in two ways", loc=loc, notes=(Note(f"as a {known.kind.value} here", place),)
        )
    _declared[name] = (made, loc)
    return made


@contextmanager
def apart() -> Iterator[None]:
    """Inside, nothing is declared yet; what is declared there is forgotten afterwards."""
    outside = dict(_declared)
    _declared.clear()
    try:
        yield
    finally:
        _declared.clear()
        _declared.update(outside)


def find(name: str) -> Resource | None:
    """The resource of that name, built in or declared."""
    if name in RESOURCES:
        return RESOURCES[name]
    return _declared[name][0] if name in _declared else None


def patterns(given: Sequence[Pattern], role: str, loc: Loc) -> tuple[str, ...]:
    """The patterns of effects as text; refuses what is no pattern and what names no resource."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ResourceError(f"`{role}` is a list of resources, not {given!r}", loc=loc, help='for example ["host[k]"]')
    return tuple(_pattern(item, role, loc) for item in given)


def _pattern(item: object, role: str, loc: Loc) -> str:
    """One pattern."""
    if isinstance(item, Resource):
        return item.name
    if not isinstance(item, str):
        raise ResourceError(f"`{role}` names resources, not {item!r}", loc=loc)
    try:
        name = parse_pattern(Access.READ, item, 0).resource
    except ValueError as error:
        raise ResourceError(str(error), loc=loc) from None
    if name != ANY and find(name) is None:
        close = difflib.get_close_matches(name, [*RESOURCES, *_declared], 1)
        proposal = f"did you mean `{close[0]}`? Otherwise declare" if close else "declare"
        raise ResourceError(
            f"`{role}` names the resource `{name}`, which nobody declared",
            loc=loc,
            help=f'{proposal} it first: steptrace.resource("{name}", kind="state")',
        )
    return item
