"""The gradient's denominator: one op counts what a micro-batch adds, and one divides by the count, once.

The accumulator holds sums (``grads.sums``) and their count (``grads.count``). Who names a part of it says what is done
with that part; an op that names the whole, and is neither a training call nor an update, says nothing about the count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from steptrace.diag.structure_training import DenominatorError
from steptrace.ir.program import Op, ops_of
from steptrace.ir.resource import Access
from steptrace.ir.verify.ground import Ground
from steptrace.ir.verify.runs import ACCUMULATOR, Event, Finding, Role

COUNT = "grads.count"
"""The part of the accumulator that says of how much the sums are."""

SUMS = "grads.sums"
"""The part that holds the sums."""

_TRAINED_ON = ("micro_batch", "batch", "groups")
"""Base types of values that a training call may be made of."""


@dataclass
class _Seen:
    """What has been done to the accumulator since the last update.

    Attributes:
      counter: the op that adds to the count, None before one did.
      divider: the op that divided by it, None before one did.
    """

    counter: Op | None = None
    divider: Op | None = None


def names_parts(ground: Ground) -> bool:
    """Whether an op says what it does with a part of the accumulator; else nothing is known about the count."""
    parts = (SUMS, COUNT)
    return any(effect.resource in parts for op in ops_of(ground.program.body) for effect in ground.effects(op))


def double_denominators(ground: Ground, events: tuple[Event, ...]) -> Iterator[Finding]:
    """Follows the count through one run of a step: who adds to it, and who divides by it."""
    seen = _Seen()
    for event in events:
        op = event.op
        if _counts(ground, event):
            yield from _counted(ground, seen, op)
            yield from _mixed(ground, seen, event)
            seen.counter = op
        if Role.APPLY in event.roles:
            yield from _applied(ground, seen, op)
            seen = _Seen()
        elif _divides(ground, op):
            if seen.divider not in (None, op):
                yield _twice(op, seen.divider)
            seen.divider = op


def _counts(ground: Ground, event: Event) -> bool:
    """Whether an op decides the count: a training call that writes all of the accumulator, or who names the count."""
    writes = _touched(ground, event.op, Access.WRITE)
    whole = Role.ACCUMULATE in event.roles and not writes & {SUMS}
    return whole or (COUNT in writes and Role.APPLY not in event.roles)


def _counted(ground: Ground, seen: _Seen, op: Op) -> Iterator[Finding]:
    """Two ops decide the count, and one of them says so by name; of two that name the whole nothing is known."""
    other = seen.counter
    if other is None or _source(other) == _source(op) or other.kind == op.kind:
        return
    if not any(COUNT in _touched(ground, one, Access.WRITE) for one in (op, other)):
        return
    message = f"`{op.id}` writes the count of the gradient sums, and `{other.id}` has decided it"
    help = f"let one op count: a training call may write `grads.sums` alone, the other op no `{COUNT}`"
    yield Finding(DenominatorError, op, message, ((f"`{other.id}` adds to it", other),), help)


def _source(op: Op) -> str:
    return op.origin.op if op.origin else op.id


def _mixed(ground: Ground, seen: _Seen, event: Event) -> Iterator[Finding]:
    """Who divides by a count that is not complete."""
    if seen.divider is None or not event.stream or Role.ACCUMULATE not in event.roles:
        return
    divider = seen.divider
    message = f"`{divider.id}` divides by the gradient's count while `{event.op.id}` still adds to it"
    notes = ((f"`{event.op.id}` adds to it", event.op),)
    help = "divide once, after the loop, or leave it to the update"
    yield Finding(DenominatorError, divider, message, notes, help)


def _applied(ground: Ground, seen: _Seen, op: Op) -> Iterator[Finding]:
    """The update divides, or what it applies was divided: not both, and not neither."""
    reads = _touched(ground, op, Access.READ)
    divides = bool(reads & {"grads", COUNT})
    if divides and seen.divider is not None:
        yield _twice(op, seen.divider)
    elif not divides and SUMS in reads and seen.divider is None:
        message = f"`{op.id}` applies gradient sums that nothing divides by their count"
        help = f"let it read `{COUNT}` too, or let an op before it divide"
        yield Finding(DenominatorError, op, message, (), help)


def _divides(ground: Ground, op: Op) -> bool:
    """Whether an op that is no update uses the count to scale sums, or what a training call makes them of."""
    if COUNT not in _touched(ground, op, Access.READ):
        return False
    feeds = any(given.base in _TRAINED_ON for given in ground.row(op).results)
    return feeds or bool(_touched(ground, op, Access.WRITE) & ACCUMULATOR)


def _twice(op: Op, first: Op) -> Finding:
    message = f"`{op.id}` divides the gradient by its count, and `{first.id}` has divided it"
    help = f"leave the division to one of them: an op that only scales names `grads`, not `{COUNT}`"
    return Finding(DenominatorError, op, message, ((f"`{first.id}` divides here", first),), help)


def _touched(ground: Ground, op: Op, access: Access) -> set[str]:
    return {effect.resource for effect in ground.effects(op) if effect.access is access}
