"""What the lanes of a walk share: values, places they have passed, what the trainer was told, and the events so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType

from steptrace.cost.ledger import Touched
from steptrace.cost.moments import Events, Moment
from steptrace.ir import And, Flag, Or, Predicate
from steptrace.lower import Plan
from steptrace.lower.choices import choices
from steptrace.simulate import Durations, VirtualTrainer
from steptrace.simulate.trainer import capabilities_of

Point = tuple[int, float]
"""A step and a micro-batch; all of the step with `WHOLE`."""

WHOLE = inf


@dataclass(frozen=True)
class Decided:
    """What a run decides by the time.

    Attributes:
      ran: for ops whose condition asks for a flag of an op that polls: the instances that ran.
      staged: the steps whose first micro-batch was staged.
    """

    ran: frozenset[tuple[str, int, int | None]] = frozenset()
    staged: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Value:
    """A value: what a walk must know of it, and the moment at which the work that makes it is done."""

    it: object
    ready: Moment


class Locked(Exception):  # noqa: N818
    """The lanes wait for one another; the notes say for what."""

    def __init__(self, waiting: tuple[str, ...]) -> None:
        super().__init__("; ".join(waiting))
        self.waiting = waiting


@dataclass
class Machine:
    """What the lanes of a walk share.

    Attributes:
      plan: the plan.
      durations: how long its ops take.
      counts: micro-batches of each step; the steps are those of the list.
      decided: what a run decided.
      flags: for flags of users' ops, by name: their value in a step and micro-batch; true where none is given.
    """

    plan: Plan
    durations: Durations
    counts: tuple[int, ...]
    decided: Decided
    flags: Mapping[str, Callable[[int, int], bool]] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        trainer = VirtualTrainer()
        self.in_flight = trainer.in_flight
        self.able = self.plan.target.capabilities | capabilities_of(trainer)
        chosen = choices(self.plan, self.able)
        rules = {(choice.rule, choice.way) for choice in chosen}
        self.ways = {choice.op: choice.way for choice in chosen}
        self.defers = ("apply_deferred_update", "deferred") in rules
        self.fuses = ("fwd_bwd closes=update", "fused") in rules
        self.events = Events()
        self.touched = Touched(self.plan.program)
        self.buffers: dict[tuple[int, int], list[Moment]] = defaultdict(list)
        self.values: dict[tuple[str, int], Value] = {}
        self.rounds: dict[tuple[str, int, int], Value] = {}
        self.generated: dict[int, tuple[Moment, float]] = {}
        self.passed: dict[str, dict[Point, Moment]] = defaultdict(dict)
        self.furthest: dict[str, Point] = {}
        self.waits: dict[tuple[str, int, tuple[int, ...], str], int] = defaultdict(int)
        self.training = Training()
        self.polled = frozenset(
            result.name for call in self.plan.calls() if call.kind.polls for result in call.op.results
        )

    def exists(self, step: int) -> bool:
        """Whether there is such a step."""
        return 0 <= step < len(self.counts)

    def value(self, name: str, step: int, micro: int) -> Value | None:
        """A value of a round, of a step, or of before step 0; None when it is not made."""
        made = self.rounds.get((name, step, micro), self.values.get((name, step)))
        return self.values.get((name, -1)) if made is None else made

    def passes(self, id: str, point: Point, at: Moment) -> None:
        """Note that a lane is past a place."""
        self.passed[id][point] = at
        self.furthest[id] = point

    def is_past(self, id: str, point: Point) -> bool:
        """Whether a lane is past a place."""
        return self.furthest.get(id, (-1, WHOLE)) >= point

    def when_past(self, id: str, point: Point) -> Moment:
        """The moment at which a lane was past a place; that of the whole step where it has no such round."""
        there = self.passed[id]
        return there[point] if point in there else there[point[0], WHOLE]


@dataclass
class Training:
    """What the trainer was told; see `steptrace.simulate.trainer`.

    Attributes:
      staged: the moment at which what was staged arrives.
      idle: the moment at which the trainer's device has done all it was sent.
      held, done: whether the step's update is held back, or made by the call that closed the step.
      pending: training calls since the last update.
      calls: the moments at which training calls are computed.
      asides: by step, when the metrics that were set aside are complete.
    """

    staged: Moment | None = None
    idle: Moment | None = None
    held: bool = False
    done: bool = False
    pending: int = 0
    calls: list[Moment] = field(default_factory=list)
    asides: dict[int, Moment | None] = field(default_factory=dict)


def asks(predicate: Predicate, flags: frozenset[str]) -> bool:
    """Whether a condition asks for one of these flags to be true."""
    match predicate:
        case Flag(name):
            return name in flags
        case And(terms) | Or(terms):
            return any(asks(term, flags) for term in terms)
    return False
