"""A schedule: a program, the source it came from, and the motions that led from one to the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from steptrace.check import Edge
from steptrace.check.reference import reference_of
from steptrace.diag.loc import Loc
from steptrace.ir.program import Program

MotionClass: TypeAlias = Literal["order", "recompiled", "contract"]
"""What a motion leaves equal: ``order``: bit for bit; ``recompiled``: within rounding, as other programs are compiled;
``contract``: what the relaxed contract allows."""

Discharged: TypeAlias = Literal["no edge", "slack", "law", "contract"]
"""How an obligation was met: no edge joins what changed places, every such edge has slack left, a law says that both
sides are equal, or the contract was changed."""

Argument: TypeAlias = str | int | tuple[str, ...]
"""What motions take."""


@dataclass(frozen=True, slots=True)
class Consulted:
    """An edge that a motion looked at.

    Attributes:
      edge: the edge.
      slack: how many steps (for an edge that counts them, micro-batches) the later end could still move towards the
        earlier one; 0 when not one.
    """

    edge: Edge
    slack: int


@dataclass(frozen=True, slots=True)
class Obligation:
    """What a motion had to show, and how it did.

    Attributes:
      motion: name of the motion.
      class_: what the motion leaves equal.
      claim: what was done, one sentence.
      edges: the edges that were consulted, each with its slack.
      discharged: how the obligation was met.
      loc: line of the DSL of the first op that moved.
      assumes: what is taken for granted about the parts that are bound, ``""`` for nothing.
    """

    motion: str
    class_: MotionClass
    claim: str
    edges: tuple[Consulted, ...]
    discharged: Discharged
    loc: Loc | None
    assumes: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """An entry of a trail: a motion with its arguments, as it can be called again.

    Attributes:
      motion: name of the function in ``steptrace.motion``.
      args: its positional arguments after the schedule.
      options: its named arguments.
      forwarding: which ops each changed op became.
      obligation: what was shown.
    """

    motion: str
    args: tuple[Argument, ...]
    options: tuple[tuple[str, Argument], ...]
    forwarding: Mapping[str, tuple[str, ...]] = field(hash=False)
    obligation: Obligation

    def __str__(self) -> str:
        """The call, with ``schedule`` for the schedule: ``hoist(schedule, 'log', above='commit')``."""
        args = ["schedule", *map(repr, self.args), *(f"{name}={value!r}" for name, value in self.options)]
        return f"{self.motion}({', '.join(args)})".replace("'", '"')


@dataclass(frozen=True, slots=True)
class Schedule:
    """A program and how it came about. Motions make new ones; nothing else does.

    Attributes:
      source: what the program must stay equal to.
      reference: the source with the same laws and the same peeling applied in place; edges are computed on it.
      program: the schedule.
      trail: the motions applied, in order.
    """

    source: Program
    reference: Program
    program: Program
    trail: tuple[Step, ...] = ()

    @classmethod
    def of(cls, program: Program, source: Program | None = None) -> Schedule:
        """The schedule that runs a program as written, or one read from a text, with the program it came from.

        Raises:
          SteptraceError: ``program`` is no schedule of ``source``.
        """
        if source is None:
            return cls(program, program, program)
        return cls(source, reference_of(program, source), program)

    def as_python(self) -> str:
        """Python text of a function ``derive(program)`` that applies the trail and returns the schedule."""
        verbs = sorted({step.motion for step in self.trail}, key=str.lower)
        calls = [f"schedule = {step}.schedule" for step in self.trail]
        head = [f"from steptrace.motion import {', '.join(['Schedule', *verbs])}", "", "", "def derive(program):"]
        body = ["schedule = Schedule.of(program)", *calls, "return schedule"]
        return "\n".join([*head, *(f"    {line}" for line in body)]) + "\n"


@dataclass(frozen=True, slots=True)
class Moved:
    """What a motion gives.

    Attributes:
      schedule: the new schedule.
      forwarding: which ops each op that changed became, by id; ops not named are as they were.
      obligation: what was shown.
    """

    schedule: Schedule
    forwarding: Mapping[str, tuple[str, ...]]
    obligation: Obligation


NOTHING_FORWARDED: Mapping[str, tuple[str, ...]] = MappingProxyType({})
"""The forwarding map of a motion that makes no new ops."""
