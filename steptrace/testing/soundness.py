"""Whether the checker ever accepts a schedule that is not equal, and how often it refuses one that is.

Each random program is a reference. From it a walk goes: a random move, and where the checker accepts the schedule,
the walk goes on from there. Around the walk stand single edits, each one away from a schedule that was accepted. The
judge says of every schedule whether it is equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from steptrace.check import broken, check_order, edges_of, find_cycle, peel_first, places_of, units_of, waits_of
from steptrace.check.edge import Edge
from steptrace.diag.base import SteptraceError
from steptrace.diag.schedule import PeelError
from steptrace.ir.predicate import ALWAYS, Last
from steptrace.ir.printer import print_program
from steptrace.ir.program import Loop, Program, ops_of
from steptrace.testing.facts import bits
from steptrace.testing.judge import Verdict, bound_of, judge_run, long_vectors, phases_of
from steptrace.testing.overlap import Wait
from steptrace.testing.random_programs import STRATA, random_program
from steptrace.testing.random_schedules import edits_of, moves_of, shape_of
from steptrace.testing.runs import Run, Source, source_of
from steptrace.testing.unrolled import Sheet, sheet_of

Checker: TypeAlias = Callable[[Program, Program], tuple[Wait, ...] | None]
"""Says of a schedule and its reference: the waits that keep it, or None where it is refused."""

TURNS = 24
"""How many schedules a walk goes through."""

_TRIES = 6
"""How often a move is drawn again until one is accepted."""

_DROPS = 0.1
"""The share of accepted schedules with waits of which one wait is dropped, to see that it shows."""


@dataclass
class Stratum:
    """Counts of one stratum.

    Attributes:
      pairs: schedules that were looked at.
      accepted: those that the checker accepted.
      unsound: those that it accepted and that are not equal.
      over_refused: those that it refused and that are equal.
    """

    pairs: int = 0
    accepted: int = 0
    unsound: int = 0
    over_refused: int = 0

    @property
    def share(self) -> float:
        """The share of the refused that were equal."""
        return self.over_refused / max(1, self.pairs - self.accepted)


@dataclass
class Tally:
    """Counts of many pairs.

    Attributes:
      strata: counts by stratum.
      reasons: why schedules were refused that are equal.
      legal: pairs that are the next schedule of a walk.
      edits: pairs that are one edit away from a schedule of a walk.
      dropped: schedules of which one wait was dropped.
      implied: those of them that are equal all the same, since other waits imply it.
      examples: the first pairs that were accepted and are not equal, in full.
    """

    strata: dict[str, Stratum] = field(default_factory=lambda: {name: Stratum() for name in STRATA})
    reasons: Counter[str] = field(default_factory=Counter)
    legal: int = 0
    edits: int = 0
    dropped: int = 0
    implied: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def pairs(self) -> int:
        """All pairs."""
        return sum(stratum.pairs for stratum in self.strata.values())

    @property
    def accepted(self) -> int:
        """The accepted pairs."""
        return sum(stratum.accepted for stratum in self.strata.values())

    @property
    def unsound(self) -> int:
        """The pairs that were accepted and are not equal."""
        return sum(stratum.unsound for stratum in self.strata.values())

    @property
    def over_refused(self) -> int:
        """The pairs that were refused and are equal."""
        return sum(stratum.over_refused for stratum in self.strata.values())

    def add(self, other: Tally) -> None:
        """Adds the counts of another one."""
        for name, stratum in other.strata.items():
            mine = self.strata[name]
            mine.pairs += stratum.pairs
            mine.accepted += stratum.accepted
            mine.unsound += stratum.unsound
            mine.over_refused += stratum.over_refused
        self.reasons += other.reasons
        self.legal += other.legal
        self.edits += other.edits
        self.dropped += other.dropped
        self.implied += other.implied
        self.examples = (self.examples + other.examples)[:5]


def check(schedule: Program, reference: Program) -> tuple[Wait, ...] | None:
    """The checker of ``steptrace.check``."""
    try:
        check_order(schedule, reference)
    except SteptraceError:
        return None
    return waits_between(schedule, reference)


def waits_between(schedule: Program, reference: Program) -> tuple[Wait, ...]:
    """The waits that lowering gives a schedule."""
    return tuple(as_wait(wait.edge, bool(wait.device)) for wait in waits_of(schedule, reference))


def as_wait(edge: Edge, done: bool) -> Wait:
    """An edge as a wait."""
    return Wait(edge.before, edge.after, edge.distance, edge.micro, done)


def every_wait(schedule: Program, reference: Program) -> tuple[Wait, ...]:
    """All edges that the lanes' own order may not keep, as waits; none where the lanes make no sense."""
    try:
        places = places_of(schedule)
    except SteptraceError:
        return ()
    units = units_of(reference)
    found = []
    for edge in edges_of(reference, schedule):
        done = edge.from_event == "done" and bool(units[edge.before].device)
        if done or places[edge.before].lane != places[edge.after].lane:
            found.append(as_wait(edge, done))
    return tuple(found)


def trial(seed: int, number: int, *, checker: Checker = check, limit: int | None = None) -> Tally:
    """One random program with a walk through its schedules.

    Args:
      seed: of all draws.
      number: which program; its stratum goes round.
      checker: what is tried.
      limit: pairs after which to stop.
    """
    return _Trial(seed, number, checker, limit).run()


class _Trial:
    """One program, its walk, and the counts."""

    def __init__(self, seed: int, number: int, checker: Checker, limit: int | None) -> None:
        self.rng = Random(f"{seed}/{number}")
        self.name = STRATA[number % len(STRATA)]
        self.checker = checker
        self.limit = limit
        self.tally = Tally()
        self.reference = _maybe_peeled(self.rng, random_program(self.rng, self.name))
        self.source = source_of(self.reference)
        self.seen = {shape_of(self.reference)}
        self.looped = any(isinstance(node, Loop) for node in self.reference.body)

    def run(self) -> Tally:
        current, edits = self.reference, 0
        moves, changes = moves_of(self.name), edits_of(self.name)
        for turn in range(1, TURNS + 1):
            for _ in range(_TRIES):
                candidate = self._new(self.rng.choice(moves)(self.rng, current))
                if candidate is None:
                    continue
                if self._pair(candidate):
                    current = candidate
                    self.tally.legal += 1
                    break
                edits += 1
            for _ in range(_TRIES):
                candidate = None if edits >= turn else self._new(self.rng.choice(changes)(self.rng, current))
                if candidate is not None:
                    self._pair(candidate)
                    edits += 1
            if self.limit is not None and self.tally.pairs >= self.limit:
                break
        self.tally.edits = self.tally.pairs - self.tally.legal
        return self.tally

    def _new(self, candidate: Program) -> Program | None:
        """The candidate, if it was not looked at before."""
        shape = shape_of(candidate)
        if shape in self.seen or (self.limit is not None and self.tally.pairs >= self.limit):
            return None
        self.seen.add(shape)
        return candidate

    def _pair(self, candidate: Program) -> bool:
        """Looks at one pair; whether it was accepted."""
        waits = self.checker(candidate, self.reference)
        counts = self.tally.strata[self.name]
        counts.pairs += 1
        if waits is None:
            self._refused(candidate)
            return False
        counts.accepted += 1
        verdict = self._judge(candidate, waits)
        if not verdict.equal:
            counts.unsound += 1
            self.tally.examples.append(example(self.reference, candidate, waits, verdict))
        elif waits and self.rng.random() < _DROPS:
            gone = self.rng.randrange(len(waits))
            self.tally.dropped += 1
            self.tally.implied += self._judge(candidate, (*waits[:gone], *waits[gone + 1 :])).equal
        return True

    def _refused(self, candidate: Program) -> None:
        verdict = self._judge(candidate, every_wait(candidate, self.reference))
        if verdict.equal:
            self.tally.strata[self.name].over_refused += 1
            self.tally.reasons[reason_of(self.source, candidate, self._vectors(sheet_of(candidate), ()))] += 1

    def _judge(self, candidate: Program, waits: Sequence[Wait]) -> Verdict:
        sheet = sheet_of(candidate, self.source.sheet.kinds)
        for counts in self._vectors(sheet, waits):
            for phase in phases_of(self.source, len(counts)):
                verdict = judge_run(self.source.run(counts, phase), sheet, waits)
                if not verdict.equal:
                    return verdict
        return verdict

    def _vectors(self, sheet: Sheet, waits: Sequence[Wait]) -> tuple[tuple[int, ...], ...]:
        """As many steps as it takes for a difference to show, with micro-batch counts that rise, fall and vanish."""
        steps = bound_of(self.source, sheet, waits)
        steps += steps % 2  # fewer lengths, so that runs of the source are used again
        return long_vectors(steps)[:3] if self.looped else ((1,) * steps,)


def _maybe_peeled(rng: Random, program: Program) -> Program:
    """The program, in a third of the draws with the first round of its loop taken out.

    Not where that would leave an op whose condition is never true, as one of ``m == 1`` in round 0.
    """
    loop = next((node for node in program.body if isinstance(node, Loop)), None)
    if loop is None or rng.random() > 1 / 3 or any(op.when not in (ALWAYS, Last()) for op in ops_of(loop.body)):
        return program
    try:
        return peel_first(program, loop.id)
    except PeelError:
        return program


def reason_of(source: Source, schedule: Program, vectors: Sequence[tuple[int, ...]]) -> str:
    """Why a schedule is equal that was refused, from the edge that it breaks."""
    edge = _edge_of(schedule, source.program)
    if edge is None:
        return "no edge is broken"
    if edge.kind.value == "capacity":
        return "the place is never short"
    runs = [source.run(counts, phase) for counts in vectors for phase in phases_of(source, len(counts))]
    ends = [_ran(run, edge.before) and _ran(run, edge.after) for run in runs]
    if not any(ends):
        return "a condition or loop that never comes true in the window"
    if not any(_together(run, edge) for run in runs):
        return "conditions that exclude each other"
    if any(id not in facts.visible for run in runs for facts in run.facts for id in (edge.before, edge.after)):
        return "an op that nothing sees"
    if not any(_read_between(run, edge) for run in runs):
        return "dead write"
    return "a write that is dead in this order"


def _edge_of(schedule: Program, reference: Program) -> Edge | None:
    edges = edges_of(reference, schedule)
    try:
        found = next(broken(schedule, edges), None)
        hops = () if found is not None else find_cycle(schedule, edges)
    except SteptraceError:
        return None
    return found or next((hop.edge for hop in hops if hop.edge is not None), None)


def _ran(run: Run, id: str) -> bool:
    return any(facts.ran >> at & 1 for facts in run.facts for at in run.by_op.get(id, ()))


def _together(run: Run, edge: Edge) -> bool:
    """Whether both ends of an edge ever run, in steps that far apart."""
    for facts in run.facts:
        steps = {run.keys[at][1] for at in bits(facts.ran) if run.keys[at][0] == edge.before}
        if any(run.keys[at][1] - edge.distance in steps for at in run.by_op.get(edge.after, ()) if facts.ran >> at & 1):
            return True
    return False


def _read_between(run: Run, edge: Edge) -> bool:
    """Whether anything that can be seen reads what one end wrote, of the resource that the edge speaks of."""
    name = edge.what.partition("[")[0]
    ends = {edge.before, edge.after}
    return any(
        read.cell[0] == name and read.writer >= 0 and run.keys[read.writer][0] in ends
        for facts in run.facts
        for read in facts.reads
    )


def example(reference: Program, schedule: Program, waits: Sequence[Wait], verdict: Verdict) -> str:
    """A pair in full, to be looked at."""
    parts = [f"{verdict.reason} (micro-batches {verdict.counts})", print_program(reference), print_program(schedule)]
    return "\n".join([*parts, *(str(wait) for wait in waits)])
