"""What the structural checks share: the program, its rows, and how a problem is reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from steptrace.diag.base import Note, SteptraceError
from steptrace.diag.loc import Loc
from steptrace.ir.builtin import kinds_of
from steptrace.ir.effects import effects_of
from steptrace.ir.kind import OpKind
from steptrace.ir.places import Places
from steptrace.ir.program import Node, Op, Program
from steptrace.ir.resource import Effect


@dataclass
class Ground:
    """A program under verification.

    Attributes:
      program: the program.
      places: where its items stand in the text it was parsed from, None for a traced program.
      found: the problems so far.
    """

    program: Program
    places: Places | None = None
    found: list[SteptraceError] = field(default_factory=list)
    _effects: dict[str, tuple[Effect, ...]] = field(default_factory=dict)

    @cached_property
    def kinds(self) -> Mapping[str, OpKind]:
        """The rows that the program may use, by name."""
        return kinds_of(self.program)

    def row(self, op: Op) -> OpKind:
        """The row of an op."""
        return self.kinds[op.kind]

    def effects(self, op: Op) -> tuple[Effect, ...]:
        """The effects of an op."""
        if op.id not in self._effects:
            self._effects[op.id] = effects_of(op, self.row(op), self.program.contract)
        return self._effects[op.id]

    def at(self, node: Node) -> Loc | None:
        """The place of a node that a note points at: in the text if there is one, else in the user's source."""
        return (self.places and self.places.at(node.id)) or node.loc

    def report(
        self,
        error: type[SteptraceError],
        message: str,
        node: Node,
        part: str = "",
        *,
        notes: tuple[Note, ...] = (),
        help: str = "",
    ) -> None:
        """Notes a problem of an op or loop, at the given part of its line, with the line of the DSL beside it."""
        place = self.places.at(node.id, part) if self.places else None
        if self.places is None or place is None:
            self.found.append(error(message, loc=node.loc, notes=notes, help=help))
            return
        if node.loc is not None:
            notes = (Note(f"`{node.id}` was written here", node.loc), *notes)
        self.found.append(error(message, loc=place, notes=notes, help=help, source=self.places.source(place)))

    def report_item(
        self, error: type[SteptraceError], message: str, item: str, loc: Loc | None, *, help: str = ""
    ) -> None:
        """Notes a problem of what is no node; ``item`` as ``steptrace.ir.places.Places`` names it."""
        place = self.places.at(item) if self.places else None
        source = self.places.source(place) if self.places and place else ""
        self.found.append(error(message, loc=place or loc, help=help, source=source))
