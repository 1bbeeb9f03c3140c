"""Random small programs to draw schedules of.

Programs hold three to seven ops of rows of their own, which read and write a few resources of every kind. Most of
what they write is read later, as in a train step; some of it is dead. A stratum says which means a program uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from steptrace.ir.kind import Given, Operand, OpKind
from steptrace.ir.predicate import ALWAYS, Every, First, Flag, Last, MicroIs, Not, Predicate
from steptrace.ir.program import Contract, Loop, Node, Op, Origin, Program, Result, Use
from steptrace.ir.resource import Resource, ResourceKind
from steptrace.ir.types import Type
from steptrace.testing.facts import bits
from steptrace.testing.runs import source_of

STRATA = ("single lane", "lanes", "guards", "every", "micro-batch loops", "issue and done")
"""The strata of random programs. All but the first are scheduled on several lanes."""

DEVICES = ("trainer", "reference")
"""Devices of random rows."""

RESOURCES = MappingProxyType(
    {
        resource.name: resource
        for resource in (
            Resource("a", ResourceKind.STATE),
            Resource("b", ResourceKind.STATE),
            Resource("b.part", ResourceKind.STATE),
            Resource("cells", ResourceKind.CELL),
            Resource("bounded", ResourceKind.CELL, 2),
            Resource("queue", ResourceKind.FIFO),
            Resource("narrow", ResourceKind.FIFO, 2),
            Resource("out", ResourceKind.CHANNEL),
            Resource("log", ResourceKind.CHANNEL),
            Resource("disk", ResourceKind.CHANNEL),
            Resource("place", ResourceKind.SLOT, 1),
        )
    }
)
"""Resources of random programs."""

_STATES = ("a", "b", "b.part", "place")
_CHANNELS = ("out", "log", "disk")
_CELLS = ("cells[k]", "cells[k-1]", "cells[k]", "cells[k-2]", "cells")
_MICRO_CELLS = ("cells[k, m]", "cells[k, m-1]", "cells[k, m]", "cells[k]")


@dataclass
class _Row:
    """A row in the making, with the op that will use it."""

    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    awaits: set[str] = field(default_factory=set)
    args: list[Use] = field(default_factory=list)
    result: str = ""
    device: str = ""
    when: Predicate = ALWAYS
    inside: bool = False
    origin: Origin | None = None
    exists: bool = False
    count: int = 0


class _Maker:
    """Draws a program.

    Args:
      rng: where the draws come from.
      stratum: which means it uses.
    """

    def __init__(self, rng: Random, stratum: str) -> None:
        self.rng, self.stratum = rng, stratum
        self.rows: list[_Row] = []
        self.values: list[tuple[str, bool]] = []

    def program(self) -> Program:
        rng = self.rng
        looped = self.stratum == "micro-batch loops"
        sizes = (rng.randint(0, 2), rng.randint(1, 3), rng.randint(1, 2)) if looped else (rng.randint(3, 6), 0, 0)
        for part, size in enumerate(sizes):
            for _ in range(size):
                self.row(inside=part == 1)
        self.flagged()
        self.queue()
        self.rare()
        self.seen()
        for _ in range(_REPAIRS):
            program = self.built(sizes[0])
            ops, dead = dead_parts(program)
            if not ops and not dead:
                break
            for at in ops:
                if rng.random() < _REPAIRED:
                    self.show(at)
            for at, name in dead:
                if rng.random() < _REPAIRED:
                    self.use(at, name)
        return self.built(sizes[0])

    def use(self, at: int, name: str) -> None:
        """Lets the next writer of a resource read it, so that a write that nothing reads is read."""
        size = len(self.rows)
        bare = {pattern: pattern.partition("[")[0] for row in self.rows for pattern in row.writes}
        for other in range(at + 1, at + 1 + size):
            row = self.rows[other % size]
            mine = [pattern for pattern in sorted(row.writes) if bare[pattern] == name]
            if mine and (other % size != at or len(mine) == 1):
                row.reads |= set(mine)
                return

    def show(self, at: int) -> None:
        """Lets an op be seen that nothing sees the work of."""
        self.rows[at].writes.add(self.rng.choice(_CHANNELS))

    def row(self, *, inside: bool) -> None:
        rng, row = self.rng, _Row(inside=inside)
        for _ in range(rng.choice((1, 1, 2))):
            self.touch(row)
        if self.values and rng.random() < 0.4:
            name, within = rng.choice(self.values)
            if not within or inside:
                late = rng.random() < 0.25
                row.args.append(Use(name, 0, -1) if within and late else Use(name, -1 if late and not within else 0))
        if rng.random() < 0.35:
            row.result = f"v{len(self.rows)}"
            self.values.append((row.result, inside))
        if self.stratum == "issue and done" and rng.random() < 0.5:
            row.device = rng.choice(DEVICES)
        if self.stratum == "issue and done" and not row.device and rng.random() < 0.5:
            row.awaits.add(rng.choice(_STATES))
        if self.stratum == "every" and rng.random() < 0.4:
            row.when = Every(rng.choice((2, 3)))
        if inside and rng.random() < 0.2:
            row.when = rng.choice((First(), Last(), MicroIs(1), Not(First())))
        self.rows.append(row)

    def touch(self, row: _Row) -> None:
        """One access, or an update: mostly of states, sometimes of cells, the channel, or all of a resource."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.55:
            name = rng.choice(_STATES)
            how = rng.random()
            if how < 0.55:
                row.reads.add(name)
            if how > 0.35:
                row.writes.add(name)
        elif kind < 0.8:
            cells = _MICRO_CELLS if row.inside else _CELLS
            if rng.random() < 0.5:
                row.writes.add("cells[k, m]" if row.inside and rng.random() < 0.6 else "cells[k]")
            else:
                row.reads.add(rng.choice(cells))
        elif kind < 0.95:
            row.writes.add(rng.choice(_CHANNELS))
        else:
            row.reads.add("bounded[k]")

    def queue(self) -> None:
        """Perhaps a queue: one op fills it and a later one empties it."""
        rng = self.rng
        steps = [row for row in self.rows if not row.inside and row.when == ALWAYS]
        if len(steps) >= 2 and rng.random() < 0.25:
            push, pop = sorted(rng.sample(range(len(steps)), 2))
            name = rng.choice(("queue", "narrow"))
            steps[push].writes.add(name)
            steps[pop].reads.add(name)
            steps[pop].writes.add(name)

    def rare(self) -> None:
        """Now and then: an op that may touch everything, one that tells whether the step exists, a loop of epochs."""
        rng = self.rng
        draw, row = rng.random(), rng.choice(self.rows)
        steps = [row for row in self.rows if not row.inside and row.when == ALWAYS]
        if draw < 0.04:
            row.reads.add("*")
            row.writes.add("*")
        elif draw < 0.08 and steps and not steps[0].result:
            steps[0].exists = True
        elif draw < 0.14 and steps and not steps[-1].result:
            steps[-1].count = 2

    def flagged(self) -> None:
        """In the stratum of guards: one op decides, and some later ones run only if it says so."""
        if self.stratum != "guards":
            return
        at = self.rng.randrange(len(self.rows) - 1)
        self.rows[at].result = "flag"
        for row in self.rows[at + 1 :]:
            row.args = [use for use in row.args if use.name != f"v{at}"]
            draw = self.rng.random()
            if draw < 0.6:
                row.when = Flag("flag") if draw < 0.35 else Not(Flag("flag"))
        yes = [row for row in self.rows if row.when == Flag("flag") and not row.result]
        no = [row for row in self.rows if row.when == Not(Flag("flag")) and not row.result]
        if yes and no and self.rng.random() < 0.5:
            yes[0].origin, no[0].origin = Origin("choice", "yes"), Origin("choice", "no")

    def seen(self) -> None:
        """Lets something read most of what is written, so that few writes are dead."""
        rng = self.rng
        written = {name.partition("[")[0] for row in self.rows for name in row.writes}
        read = {name.partition("[")[0] for row in self.rows for name in (*row.reads, *row.awaits)}
        steps = [row for row in self.rows if not row.inside] or self.rows
        for name in sorted(written - read - set(_CHANNELS)):
            if rng.random() < 0.9:
                rng.choice(steps).reads.add(f"{name}[k]" if name in ("cells", "bounded") else name)
        if any("bounded[k]" in row.reads for row in self.rows):
            next(iter(steps)).writes.add("bounded[k]")
        if not any(row.writes for row in self.rows):
            rng.choice(steps).writes.add("out")

    def built(self, before: int) -> Program:
        kinds, ops = [], []
        for at, row in enumerate(self.rows):
            base = "flag" if row.result == "flag" or row.exists else "value"
            made = {"exists"} if row.exists else {row.result} - {""}
            args = tuple(use for use in row.args if use.name not in made and self.made(use))
            kinds.append(
                OpKind(
                    f"o{at}",
                    tuple(Operand(f"x{n}", None) for n in range(len(args))),
                    tuple(Given(name, base) for name in made),
                    reads=tuple(sorted(row.reads)),
                    writes=tuple(sorted(row.writes)),
                    awaits=tuple(sorted(row.awaits)),
                    device=row.device,
                    blocking=not row.device,
                    user=not row.exists,
                )
            )
            results = tuple(Result(name, Type(base)) for name in made)
            ops.append(Op(f"o{at}", f"o{at}", args, results, when=row.when, origin=row.origin))
        inner = tuple(op for op, row in zip(ops, self.rows, strict=True) if row.inside)
        nodes: list[Node] = [
            Loop(f"loop{at}", "repeat", "e", None, row.count, (op,)) if row.count else op
            for at, (op, row) in enumerate(zip(ops, self.rows, strict=True))
        ]
        body = tuple(nodes)
        if inner:
            loop = Loop("loop", "micro_batches", "m", None, None, inner)
            body = (*nodes[:before], loop, *nodes[before + len(inner) :])
        touched = {name.partition("[")[0] for row in self.rows for name in (*row.reads, *row.writes, *row.awaits)}
        resources = tuple(resource for name, resource in RESOURCES.items() if name in touched)
        return Program("random", (), Contract(), resources, tuple(kinds), body=body)

    def made(self, use: Use) -> bool:
        """Whether some op makes a value."""
        return any(row.result == use.name for row in self.rows)


_REPAIRS = 4
"""How often a draw with dead writes is repaired."""

_REPAIRED = 0.97
"""The share of dead writes that are repaired."""


def dead_parts(program: Program) -> tuple[list[int], list[tuple[int, str]]]:
    """Positions of the ops that nothing sees; and positions of ops with a resource whose write there nothing reads."""
    source = source_of(program)
    run = source.run((2, 1, 3, 2, 1))
    used: set[tuple[str, str]] = set()
    live: set[str] = set()
    for facts in run.facts:
        live |= {run.keys[at][0] for at in bits(facts.live)}
        used |= {(run.keys[read.writer][0], read.cell[0]) for read in facts.reads if read.writer >= 0}
    unread = []
    for at, id in enumerate(source.sheet.places):
        for touch in source.touches.by_op[id]:
            name = touch.resource.name
            if touch.writes and touch.exact and touch.resource.kind is not ResourceKind.FIFO and (id, name) not in used:
                unread.append((at, name))
    return [at for at, id in enumerate(source.sheet.places) if id not in live], unread


def random_program(rng: Random, stratum: str) -> Program:
    """A random source program."""
    return _Maker(rng, stratum).program()
