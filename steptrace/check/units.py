"""The units that edges join: ops of a step, and loops that are moved only as a whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from steptrace.check.edge import Event
from steptrace.diag.loc import Loc
from steptrace.ir.builtin import kinds_of
from steptrace.ir.effects import effects_of
from steptrace.ir.predicate import flags_of
from steptrace.ir.program import Loop, Node, Op, Program, Use, ops_of
from steptrace.ir.resource import Access, Effect, overlaps
from steptrace.ir.verify.conditions import exclusive


@dataclass(frozen=True, slots=True)
class Presence:
    """In which steps a unit has an instance: in those with more than ``above`` micro-batches.

    Attributes:
      group: whose micro-batches are counted (``%batch``), ``""`` for a unit that every step has; counts of different
        batches are not compared.
      above: the number.
      arm: for an arm of a choice its id, else ``""``: another arm may run in its place.
    """

    group: str = ""
    above: int = -1
    arm: str = ""

    def implies(self, other: Presence) -> bool:
        """Whether a step that has this unit has the other one too."""
        if other.arm and other.arm != self.arm:
            return False
        return not other.group or (self.group == other.group and self.above >= other.above)


ALWAYS_PRESENT = Presence()


@dataclass(frozen=True, slots=True)
class Unit:
    """An op of the step, or a loop over epochs or mini-batches, which no motion opens.

    Attributes:
      id: id of the op or loop.
      index: its place among the units of the step in program order.
      node: the op or loop.
      ops: the op, or all ops inside the loop.
      loop: id of the loop over micro-batches around it, None outside.
      presence: in which steps it has instances.
      effects: what it reads, writes and awaits.
      device: the device that finishes its work later than its call returns, ``""`` when the call waits.
      polls: whether it looks for its operand instead of waiting for it.
    """

    id: str
    index: int
    node: Node
    ops: tuple[Op, ...]
    loop: str | None
    presence: Presence
    effects: tuple[Effect, ...]
    device: str
    polls: bool

    @property
    def loc(self) -> Loc | None:
        """The user's line."""
        return self.node.loc

    @property
    def event(self) -> Event:
        """What must have happened to it for what follows: a call that only sends work off must have been made."""
        return "issue" if self.device else "done"

    def uses(self) -> Iterator[Use]:
        """The values that it takes from outside, operands and flags; a polling op waits for no operand."""
        made = {result.name for op in self.ops for result in op.results}
        if isinstance(self.node, Loop) and self.node.over is not None:
            yield self.node.over
        for op in self.ops:
            wanted = () if self.polls else op.args
            for use in (*wanted, *map(Use, flags_of(op.when))):
                if use.name not in made or use.step or use.micro:
                    yield use


@dataclass(frozen=True)
class Units:
    """The units of a program's step, in program order.

    Attributes:
      program: the program.
      table: the units by id, in program order.
      arms: for an op that is one arm of a choice, the ids of the others.
    """

    program: Program
    table: dict[str, Unit]
    arms: dict[str, frozenset[str]]

    def __iter__(self) -> Iterator[Unit]:
        return iter(self.table.values())

    def __getitem__(self, id: str) -> Unit:
        return self.table[id]


def is_stream(node: Node) -> bool:
    """Whether a node is a loop over micro-batches, whose ops have instances of their own."""
    return isinstance(node, Loop) and node.kind == "micro_batches"


def conflict(one: tuple[Effect, ...], other: tuple[Effect, ...]) -> bool:
    """Whether two ops of one step touch the same cell of a resource, and one of them writes it."""
    return any(
        overlaps(a.resource, b.resource)
        and Access.WRITE in (a.access, b.access)
        and (a.index is None or b.index is None or a.index.step == b.index.step)
        for a in one
        for b in other
    )


@lru_cache(maxsize=64)
def units_of(program: Program) -> Units:
    """The units of a program's step; those around it (before step 0, after the last) have no edges.

    What stands before step 0 is over before any lane starts, and what stands after the last step begins when every
    lane is at its end.
    """
    arms = _arms_of(program)
    homes = _homes(program)
    kinds = kinds_of(program)
    table: dict[str, Unit] = {}

    def add(node: Node, loop: Loop | None) -> None:
        ops = (node,) if isinstance(node, Op) else tuple(ops_of(node.body))
        arm = node.id if node.id in arms else ""
        if loop is not None:
            presence = Presence(_counted(loop), loop.start, arm)
        elif isinstance(node, Op) and node.micro is not None:
            presence = Presence(homes.get(node.origin.op if node.origin else "", node.id), node.micro, arm)
        else:
            presence = Presence(arm=arm)
        rows = [kinds[op.kind] for op in ops]
        effects = dict.fromkeys(
            effect for op, row in zip(ops, rows, strict=True) for effect in effects_of(op, row, program.contract)
        )
        device = next((row.device or op.lane for op, row in zip(ops, rows, strict=True) if not row.blocking), "")
        polls = isinstance(node, Op) and rows[0].polls
        place = loop.id if loop else None
        table[node.id] = Unit(node.id, len(table), node, ops, place, presence, tuple(effects), device, polls)

    for node in program.body:
        if isinstance(node, Loop) and is_stream(node):
            for inner in node.body:
                add(inner, node)
        else:
            add(node, None)
    return Units(program, table, arms)


def _homes(program: Program) -> dict[str, str]:
    """For each source op inside a loop over micro-batches, what the loop counts; a peeled op counts as its origin."""
    return {
        op.origin.op: _counted(node)
        for node in program.body
        if isinstance(node, Loop) and is_stream(node)
        for op in ops_of(node.body)
        if op.origin is not None
    }


def _counted(loop: Loop) -> str:
    """What a loop over micro-batches counts: the batch, or what its own stream hands out."""
    return f"loop {loop.id}" if loop.over is None else str(loop.over)


def _arms_of(program: Program) -> dict[str, frozenset[str]]:
    """Ops of one origin whose conditions exclude one another: at most one of them runs in an instance."""
    families: dict[tuple[str, int | None], list[Op]] = defaultdict(list)
    for op in ops_of(program.body):
        if op.origin is not None:
            families[op.origin.op, op.micro].append(op)
    arms: dict[str, set[str]] = defaultdict(set)
    for family in families.values():
        for one, other in combinations(family, 2):
            if exclusive(one.when, other.when):
                arms[one.id].add(other.id)
                arms[other.id].add(one.id)
    return {id: frozenset(others) for id, others in arms.items()}
