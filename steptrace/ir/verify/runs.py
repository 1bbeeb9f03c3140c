"""Small runs of a step: which ops run, in which order, for each truth of the conditions.

Counting rules (each accumulation reaches one update, one commit a step) are stated about a run, so that conditions,
arms of a choice and loops need no rules of their own.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from steptrace.diag.base import Note, SteptraceError
from steptrace.ir.predicate import ALWAYS, Last, MicroIs, Predicate
from steptrace.ir.program import Node, Op, ops_of
from steptrace.ir.resource import Access
from steptrace.ir.verify.conditions import MOST_FACTS, facts_of, holds, rewritten, tables
from steptrace.ir.verify.ground import Ground
from steptrace.ir.verify.values import SOURCES

MOST_ROUNDS = 16
"""Rounds of a loop over micro-batches that a run makes at most; two, unless a condition names a later one."""

_EXPORTS = {"rollout.weights", "checkpoints", "trainer.copies.sync", "trainer.copies.save"}


ACCUMULATOR = frozenset({"grads", "grads.sums"})
"""What who adds to the gradient sums writes: all of the accumulator, or the sums."""


class Role(enum.Enum):
    """What an op does to the train step, as its effects tell; so users' ops have roles too."""

    ACCUMULATE = "accumulate"
    APPLY = "apply"
    ANCHOR = "anchor"
    """Makes the log-probs that the ratio compares with, under the parameters as they are."""
    EXPORT = "export"
    """Hands out the parameters: publishes or saves them, or a copy."""
    PUBLISH = "publish"
    DISPATCH = "dispatch"
    TAKE = "take"
    COMMIT = "commit"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Event:
    """An op that runs.

    Attributes:
      op: the op.
      roles: what it does.
      stream: whether it is one of the rounds of a loop over micro-batches.
    """

    op: Op
    roles: frozenset[Role]
    stream: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a step.

    Attributes:
      facts: the truth of what its conditions speak of, rounds of loops aside.
      events: what runs, in order.
    """

    facts: Mapping[Predicate, bool]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of one run.

    Attributes:
      error: its class.
      op: the op it is about.
      message: one sentence.
      notes: other ops that belong to it, with a sentence.
      help: the way out.
    """

    error: type[SteptraceError]
    op: Op
    message: str
    notes: tuple[tuple[str, Op], ...] = ()
    help: str = ""


def roles_of(ground: Ground, op: Op) -> frozenset[Role]:
    """The roles of an op, derived from its effects and operands."""
    reads = {effect.resource for effect in ground.effects(op) if effect.access is Access.READ}
    writes = {effect.resource for effect in ground.effects(op) if effect.access is Access.WRITE}
    trains = any(operand.base in ("micro_batch", "token") for operand in ground.row(op).operands)
    attempts = "trainer.attempts" in writes
    settles = attempts and "trainer.attempts" in reads
    found = {
        Role.ACCUMULATE: (bool(ACCUMULATOR & writes) or attempts) and trains and not settles,
        Role.APPLY: bool(ACCUMULATOR & writes) and "params" in writes,
        Role.ANCHOR: "params" in reads and any("old_logps" in given.adds for given in ground.row(op).results),
        Role.EXPORT: "params" in reads and bool(writes & _EXPORTS),
        Role.PUBLISH: "rollout.weights" in writes,
        Role.DISPATCH: "queue.groups" in writes - reads,
        Role.TAKE: "queue.serving" in writes,
        Role.COMMIT: "queue.training" in writes,
        Role.FREE: op.kind == "free",
    }
    return frozenset(role for role, has in found.items() if has)


class Runner:
    """Runs the step of a program."""

    def __init__(self, ground: Ground) -> None:
        self.body = ground.program.body
        known = known_flags(ground)
        self.roles = {op.id: roles_of(ground, op) for op in ops_of(self.body)}
        self.when = {op.id: rewritten(op.when, known) for op in ops_of(self.body)}
        facts = dict.fromkeys(fact for when in self.when.values() for fact in facts_of(when))
        self.facts = tuple(fact for fact in facts if not isinstance(fact, Last | MicroIs))
        named = [fact.index for fact in facts if isinstance(fact, MicroIs)]
        peeled = [op.micro for op in ops_of(self.body) if op.micro is not None]
        self.rounds = min(2 + max([0, *named, *peeled]), MOST_ROUNDS)

    def runs(self) -> Iterator[Run]:
        """A run for each truth of the first few facts, all true first; further facts are taken as true."""
        rest = dict.fromkeys(self.facts[MOST_FACTS:], True)
        for table in tables(self.facts[:MOST_FACTS]):
            yield Run(table, tuple(self._events(self.body, table | rest, None)))

    def _events(self, nodes: Iterable[Node], facts: dict[Predicate, bool], round_: int | None) -> Iterator[Event]:
        for node in step_order(nodes):
            if isinstance(node, Op):
                at = round_ if node.micro is None else node.micro
                if holds(self.when[node.id], _Rounds(facts, at, self.rounds)):
                    yield self._event(node, at)
                continue
            micro = node.kind == "micro_batches"
            for index in range(node.start, self.rounds) if micro else range(min(2, node.count or 2)):
                yield from self._events(node.body, facts, index if micro else round_)

    def _event(self, op: Op, round_: int | None) -> Event:
        """The op as it runs in a round; an op that closes the step applies the update in the last round only."""
        roles = self.roles[op.id]
        if op.attr("closes") and round_ not in (None, self.rounds - 1):
            roles -= {Role.APPLY}
        return Event(op, roles, round_ is not None)


class _Rounds(dict[Predicate, bool]):
    """Facts, with those about the round of a loop over micro-batches."""

    def __init__(self, facts: Mapping[Predicate, bool], round_: int | None, rounds: int) -> None:
        super().__init__(facts)
        self.round = round_
        self.rounds = rounds

    def __missing__(self, fact: Predicate) -> bool:
        if isinstance(fact, MicroIs):
            return self.round == fact.index
        assert isinstance(fact, Last), "every other fact has a truth"
        return self.round == self.rounds - 1


def step_order(nodes: Iterable[Node]) -> list[Node]:
    """Nodes in the order in which one step's instances run: those shifted further ahead first."""
    return sorted(nodes, key=lambda node: -node.shift if isinstance(node, Op) else 0)


def known_flags(ground: Ground) -> dict[str, Predicate]:
    """What is known about flags: ``last`` of a micro-batch is the last round; a step that runs has groups."""
    flags: dict[str, Predicate] = {}
    for op in ground.program.ops():
        for result, given in zip(op.results, ground.row(op).results, strict=True):
            if op.kind in SOURCES and given.name == "last":
                flags[result.name] = Last()
            elif op.kind in (*SOURCES, "take") and given.name == "exists":
                flags[result.name] = ALWAYS
    return flags


def report_runs(ground: Ground, check: Callable[[tuple[Event, ...]], Iterable[Finding]], runs: list[Run]) -> None:
    """Applies a check to each run, and reports each finding once, with the facts where it does not always hold."""
    found: dict[tuple[type[SteptraceError], str], tuple[Finding, list[Run]]] = {}
    for run in runs:
        for finding in check(run.events):
            _, where = found.setdefault((finding.error, finding.op.id), (finding, []))
            if run not in where[-1:]:
                where.append(run)
    for finding, where in found.values():
        suffix = "" if len(where) == len(runs) else _in_words(where[0].facts)
        notes = tuple(Note(text, ground.at(op)) for text, op in finding.notes)
        ground.report(finding.error, finding.message + suffix, finding.op, notes=notes, help=finding.help)


def _in_words(facts: Mapping[Predicate, bool]) -> str:
    words = [f"`{fact}` is {'true' if value else 'false'}" for fact, value in facts.items()]
    return f", in steps where {' and '.join(words)}"
