"""Remarks: what a pass did, and what it could not do and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from steptrace.check.edge import Edge
from steptrace.diag.base import Note, SteptraceError, laid_out, place_of
from steptrace.diag.loc import Loc
from steptrace.motion import Schedule, Step
from steptrace.motion.proof import BrokenEdge


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that a pass did or left.

    Attributes:
      kind: ``applied``, ``missed``, or ``found`` for what a pass has to say of what it came to.
      pass_name: name of the pass.
      op: id of the op it is about, ``""`` for the program.
      message: one sentence.
      edge: the edge that leaves no room, or, of what was applied, the tightest one consulted; None for none.
      loc: line of the DSL.
      code: code of the refusal.
      notes: further lines, each with its own place.
      help: the way out.
    """

    kind: Literal["applied", "missed", "found"]
    pass_name: str
    op: str
    message: str
    edge: Edge | None = None
    loc: Loc | None = None
    code: str = ""
    notes: tuple[Note, ...] = ()
    help: str = ""

    def __str__(self) -> str:
        """The remark as text; one that was left with the lines it speaks of, and the way out."""
        if self.kind != "missed":
            return f"{self.kind} {self.pass_name}: {self.message}" + (f"  ({place_of(self.loc)})" if self.loc else "")
        headline = f"missed[{self.code}] {self.pass_name}: {self.message}"
        return laid_out(headline, loc=self.loc, notes=self.notes, help=self.help)


def applied(pass_name: str, before: Schedule, after: Schedule) -> Iterator[Remark]:
    """A remark for each motion of a pass."""
    for step in after.trail[len(before.trail) :]:
        tightest = min(step.obligation.edges, key=lambda consulted: consulted.slack, default=None)
        edge, shown = tightest.edge if tightest else None, step.obligation
        message = shown.claim + (f"; assumed: {shown.assumes}" if shown.assumes else "")
        yield Remark("applied", pass_name, _first(step), message, edge, shown.loc)


def _first(step: Step) -> str:
    """The op that a motion is about."""
    if not step.args:
        return ""
    ids = step.args[0]
    return ids[0] if isinstance(ids, tuple) else str(ids)


def missed(pass_name: str, error: SteptraceError) -> Remark:
    """The remark of a refusal."""
    edge = error.__cause__.edge if isinstance(error.__cause__, BrokenEdge) else None
    op = edge.after if edge else ""
    return Remark("missed", pass_name, op, error.message, edge, error.loc, error.code, error.notes, error.help)


def found(pass_name: str, message: str) -> Remark:
    """The remark of what a pass has to say."""
    return Remark("found", pass_name, "", message)
