"""The groups of one step in the queue, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from steptrace.diag import Note
from steptrace.diag.data import (
    DataStateError,
    GroupCollisionError,
    IncompleteGroupError,
    QueueFullError,
    StaleGroupError,
    TakeTimeoutError,
    UnexpectedGroupError,
)
from steptrace.lang.records import Group, GroupId

Incomplete = Literal["refuse", "drop", "shrink"]
"""What is done with a group of fewer samples than wanted: refuse it, drop it, or train what is there."""

Behind = Callable[[int], int]
"""How many versions of the weights were published since a version."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """What became of the committed steps.

    Attributes:
      groups: groups trained.
      dropped: groups given up, those given up before they were announced included.
      holes: steps to which no group was admitted.
    """

    groups: int = 0
    dropped: int = 0
    holes: int = 0

    def with_batch(self, batch: Batch) -> Ledger:
        """The counts with one more step."""
        return Ledger(
            groups=self.groups + len(batch.groups),
            dropped=self.dropped + len(batch.dropped) + batch.dropped_before,
            holes=self.holes + (not batch.groups),
        )


@dataclass(slots=True)
class Batch:
    """The groups of one step: which are expected, in dispatch order, and what became of each.

    Attributes:
      order: ids of all that are expected.
      sealed: whether no more will be.
      dropped_before: how many were given up before the step was announced.
      groups: those that came.
      dropped: those given up, and why.
    """

    order: list[GroupId]
    sealed: bool = True
    dropped_before: int = 0
    groups: dict[GroupId, Group] = field(default_factory=dict)
    dropped: dict[GroupId, str] = field(default_factory=dict)

    def missing(self) -> list[GroupId]:
        """Ids that neither came nor were given up."""
        return [name for name in self.order if name not in self.groups and name not in self.dropped]

    def settled(self) -> bool:
        """Whether all that will come has come."""
        return self.sealed and not self.missing()

    def is_hole(self) -> bool:
        """Whether the step is settled and nothing was admitted to it."""
        return self.settled() and not self.groups

    def trained(self) -> tuple[GroupId, ...]:
        """Ids of the groups that came, in dispatch order."""
        return tuple(name for name in self.order if name in self.groups)

    def drop_stale(self, behind: Behind, most: int) -> None:
        """Give up the groups that too many versions were published since."""
        for name, group in list(self.groups.items()):
            if (lag := behind(group.version)) > most:
                del self.groups[name]
                self.dropped[name] = too_old(group, lag, most)

    def admit(self, group: Group, wanted: int | None, incomplete: Incomplete) -> None:
        """Add a group, or apply the declared policy to one with another number of samples than wanted.

        Raises:
          IncompleteGroupError: it cannot be admitted.
        """
        given = len(group.completions)
        if given and wanted in (None, given):
            self.groups[group.id] = group
        elif incomplete == "drop" and given < (wanted or 1):
            self.dropped[group.id] = f"{given} of {wanted or 1} samples"
        elif incomplete == "shrink" and wanted is not None and 0 < given < wanted:
            self.groups[group.id] = group
        else:
            raise IncompleteGroupError(
                f"group {group.id} of step {group.step} has {given} samples, "
                f"and {'at least 1' if wanted is None else wanted} are due"
            )


def too_old(group: Group, lag: int, most: int) -> str:
    """Why a group is given up that was sampled with old weights, in words."""
    return f"sampled with version {group.version}, {lag} publications ago, and {most} are allowed"


def waiting(batch: Batch | None, step: int, name: GroupId) -> Batch:
    """The step's batch, if it still waits for this group.

    Raises:
      UnexpectedGroupError, GroupCollisionError: it does not.
    """
    if batch is None or name not in batch.order:
        due = "is not open" if batch is None else "does not expect it"
        raise UnexpectedGroupError(f"group {name} comes for step {step}, which {due}")
    if name in batch.dropped:
        raise UnexpectedGroupError(f"group {name} of step {step} was dropped before: {batch.dropped[name]}")
    if name in batch.groups:
        raise GroupCollisionError(f"group {name} of step {step} was delivered before")
    return batch


def too_late(batches: dict[int, Batch], step: int, limit: float) -> TakeTimeoutError:
    """The error of a wait for a step that ended: what is missing, of every step that is open."""
    notes = tuple(
        Note(f"step {open_step} waits for {', '.join(map(str, missing)) or 'its seal'}")
        for open_step, batch in sorted(batches.items())
        if (missing := batch.missing()) or not batch.sealed
    )
    batch = batches.get(step)
    what = "it was never dispatched" if batch is None else f"{len(batch.missing())} groups missing"
    return TakeTimeoutError(f"step {step} is not complete after {limit:g} s: {what}", notes=notes)


def too_full(step: int, first: int, following: int, capacity: int) -> QueueFullError:
    """The error of a step that has no room: steps ``first`` to ``following`` - 1 are not committed."""
    return QueueFullError(
        f"step {step} cannot be dispatched: steps {first} to {following - 1} are not committed "
        f"and the queue holds {capacity}"
    )


def refuse_collision(batches: Mapping[int, Batch], step: int, name: GroupId) -> None:
    """Refuse an id that is in use. Raises `GroupCollisionError`."""
    for other, batch in batches.items():
        if name in batch.order:
            raise GroupCollisionError(f"group {name} of step {step} is already a group of step {other}")


def refuse_stale(batch: Batch, behind: Behind, most: int) -> None:
    """Refuse a step that trained a group with weights that were too old. Raises `StaleGroupError`."""
    for group in batch.groups.values():
        if (lag := behind(group.version)) > most:
            raise StaleGroupError(f"group {group.id} of step {group.step} was {too_old(group, lag, most)}")


def counts_of(state: Mapping[str, object]) -> tuple[int, Ledger]:
    """The training cursor and the ledger of a saved state.

    Raises:
      DataStateError: it is no state of a queue.
    """
    names = ("training_cursor", "groups", "dropped", "holes")
    counts = [state.get(name) for name in names]
    whole = [count for count in counts if isinstance(count, int) and count >= 0]
    if len(whole) < len(names):
        raise DataStateError(f"the saved state of the queue is {dict(state)!r}; counts {', '.join(names)} are due")
    return whole[0], Ledger(*whole[1:])
