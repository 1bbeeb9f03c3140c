"""Resources, the named state that ops read and write, and effects on them."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class ResourceKind(enum.Enum):
    """How instances of a resource relate to one another."""

    STATE = "state"
    """One mutable thing."""
    FIFO = "fifo"
    """A queue: what is written first is read first."""
    CHANNEL = "channel"
    """Something observed from outside: the order of writes is the meaning."""
    SLOT = "slot"
    """A buffer of fixed capacity; with cells as its parts, a pool of them."""
    CELL = "cell"
    """One cell per step: ``R[k]``."""


COUNTED = (ResourceKind.FIFO, ResourceKind.SLOT, ResourceKind.CELL)
"""The kinds that may hold a limited number of entries at a time."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Named state.

    A dotted name is a sub-cell: ``queue.serving`` overlaps ``queue`` and nothing else of it.

    Attributes:
      name: dotted identifier.
      kind: state, fifo, channel, slot or cell.
      capacity: how many entries a slot holds, or a queue, or of how many steps cells exist at a time (a ring); 0 for
        no limit, and for kinds without entries.
      doc: what it holds, one line.
    """

    name: str
    kind: ResourceKind
    capacity: int = 0
    doc: str = ""


ANY = "*"
"""The name that stands for every resource: the effect of an op that declares none."""


class Access(enum.Enum):
    """What an op does to a resource. An op that both reads and writes updates it in place."""

    READ = "reads"
    WRITE = "writes"
    AWAIT = "awaits"
    """Waits until the last writer is *done*, where a read waits only until it is issued."""


@dataclass(frozen=True, slots=True)
class Index:
    """Which cell of a resource: that of step ``k + step``, and of micro-batch ``m + micro`` if not None."""

    step: int = 0
    micro: int | None = None

    def __str__(self) -> str:
        text = f"k{self.step:+d}" if self.step else "k"
        if self.micro is None:
            return text
        return f"{text}, m{self.micro:+d}" if self.micro else f"{text}, m"


@dataclass(frozen=True, slots=True)
class Effect:
    """One access of an op to a resource.

    Attributes:
      access: read, write or await.
      resource: name of the resource, or ``ANY``.
      index: which cell, None for the whole resource.
    """

    access: Access
    resource: str
    index: Index | None = None

    def __str__(self) -> str:
        return self.target

    @property
    def target(self) -> str:
        """The resource with its index, as printed: ``rollout.weights[k-1]``."""
        return self.resource if self.index is None else f"{self.resource}[{self.index}]"

    def sort_key(self) -> tuple[str, str, str]:
        """The order in which effects are printed."""
        return (self.access.value, self.resource, str(self.index))


def parts_of_pool(resource: Resource, names: Iterable[str]) -> tuple[str, ...]:
    """The parts of a pool among resources given by name; none for a resource that is no pool.

    A slot is a pool of the cells that are its parts by name: of all its parts and all steps together no more cells are
    in use at a time than it has room for.
    """
    if resource.kind is not ResourceKind.SLOT:
        return ()
    return tuple(name for name in names if name.startswith(f"{resource.name}."))


def overlaps(a: str, b: str) -> bool:
    """Whether two resource names share state: equal, one a sub-cell of the other, or one of them ``ANY``."""
    return a == b or ANY in (a, b) or a.startswith(b + ".") or b.startswith(a + ".")
