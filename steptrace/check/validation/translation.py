"""Translation validation: the schedule computes what the source computes, whatever the ops compute.

Both are run uninterpreted (see ``steptrace.check.validation.machine``), and what can be seen from outside is compared:
every channel entry by entry (the trainer's calls in normal form, checkpoints, log, callbacks), published weights and
versions, the training cursor, the trainer's parameters and optimizer, and each resource of the user.
Translation validation is after Pnueli, Siegel and Singerman (1998).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from steptrace.check.validation.finding import Finding, Spot
from steptrace.check.validation.instances import Instance, Setting, where
from steptrace.check.validation.machine import Act, Acts, Machine, Trace, instance_text
from steptrace.check.validation.runs import Run, Stuck, line_of
from steptrace.check.validation.sides import Pair
from steptrace.check.validation.terms import Terms
from steptrace.check.validation.visible import seen
from steptrace.diag.validation import DeadlockError, TranslationError

_START = "the start of the run"


@dataclass
class Comparison:
    """Compares runs of a pair; runs of the source are kept, since many settings of the schedule share them."""

    pair: Pair
    terms: Terms = field(default_factory=Terms)
    traces: dict[Setting, tuple[Run, Trace]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.acts = Acts(self.pair, self.terms)

    def source(self, run: Run) -> Trace:
        """What a run of the source leaves."""
        if run.setting not in self.traces:
            line = line_of(run)
            assert not isinstance(line, Stuck), "a source runs in its own order"
            self.traces[run.setting] = (run, Machine(run, self.acts).traced(line))
        return self.traces[run.setting][1]

    def difference(self, source: Run, schedule: Run, line: tuple[int, ...]) -> Finding | None:
        """The first difference that can be seen between the runs, None when there is none."""
        plain = self.source(source)
        trace = Machine(schedule, self.acts).traced(line)
        for leaf in sorted(self.pair.leaves, key=_telling):
            if not seen(leaf) or _left(plain, leaf) == _left(trace, leaf):
                continue
            return self._explained(leaf, source, plain, schedule, trace)
        return None

    def _explained(self, leaf: str, source: Run, plain: Trace, schedule: Run, trace: Trace) -> Finding:
        message, spots = self._where(leaf, plain, trace)
        for position, found in trace.reruns[:1]:
            text = f"a rerun in {schedule.text(position)} would find {self.words(found)}, not what its attempt found"
            return Finding(TranslationError, message, schedule.setting, (Spot(text, schedule.sites[position].op.loc),))
        for identity, position in trace.line:
            if plain.made.get(identity) != trace.made[identity]:
                spots += self._blame(identity, position, plain, schedule, trace)
                break
        else:
            spots += self._order(leaf, plain, schedule, trace)
        return Finding(TranslationError, message, schedule.setting, spots)

    def _where(self, leaf: str, plain: Trace, trace: Trace) -> tuple[str, tuple[Spot, ...]]:
        """The channel and position, or the cell, where the runs first differ, and what each has there."""
        if leaf in plain.channels or leaf in trace.channels:
            mine, its = trace.channels.get(leaf, []), plain.channels.get(leaf, [])
            at = next((n for n, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), min(len(mine), len(its)))
            ours, theirs = self._entry(mine, at), self._entry(its, at)
            message = f"entry {at} of `{leaf}` is not that of the source"
        else:
            mine_, its_ = trace.cells.get(leaf, {}), plain.cells.get(leaf, {})
            index = next(key for key in {**its_, **mine_} if mine_.get(key) != its_.get(key))
            ours, theirs = self.words(mine_.get(index)), self.words(its_.get(index))
            message = f"`{leaf}{'' if index is None else list(index)}` does not end as in the source"
        return message, () if ours == theirs else (Spot(f"source: {theirs}"), Spot(f"schedule: {ours}"))

    def _entry(self, entries: list[int], at: int) -> str:
        return self.words(entries[at]) if at < len(entries) else "nothing"

    def _blame(self, identity: Instance, position: int, plain: Trace, schedule: Run, trace: Trace) -> tuple[Spot, ...]:
        """The first instance of the schedule whose term is not that of the source, and the input that differs."""
        site = schedule.sites[position]
        name = schedule.text(position)
        if identity not in plain.made:
            return (Spot(f"{name} computes what the source never does", site.op.loc),)
        mine, its = self.terms.key(trace.made[identity]), self.terms.key(plain.made[identity])
        if mine[2] != its[2]:
            return (Spot(f"{name} has other attributes than `{site.origin.op}` of the source", site.op.loc),)
        what, here, there = self._input(identity, mine, its, schedule)
        writer = self._writer(there)
        loc = None if writer is None else self.pair.source.sites[writer.site].op.loc
        return (
            Spot(f"{name} reads {what} {self._as(here)}", site.op.loc),
            Spot(f"in the source it reads {what} {self._as(there)}", loc),
        )

    def _as(self, number: int) -> str:
        """In which state something is read: as an instance left it, or as it was at the start."""
        key = self.terms.key(number) if number >= 0 else ("initial", "", None)
        if key[0] == "undefined":
            return "before it is made"
        if key[0] == "given back":
            return "in a buffer that was given back"
        if key[0] in ("staged", "held", "rerun"):
            return f"of {self._other(key)}"
        if key[0] == "queue":
            return f"with {self._other(key)}"
        if key[0] == "partial" and isinstance(key[1], int):
            return f"as {self.words(key[1])} leaves it for the groups that have arrived"
        words = self.words(number) if number >= 0 else _START
        return "as it was at the start of the run" if words == _START else f"as {words} left it"

    def _input(self, identity: Instance, mine: tuple, its: tuple, schedule: Run) -> tuple[str, int, int]:  # type: ignore[type-arg]
        act = self.acts.source[identity.site]
        if mine[3] != its[3]:
            at = next((n for n, (a, b) in enumerate(zip(mine[3], its[3], strict=False)) if a != b), None)
            if at is None:
                return "its operands", mine[3][-1] if mine[3] else -1, its[3][-1] if its[3] else -1
            return f"`%{act.origin.op.args[at].name}`", mine[3][at], its[3][at]
        names = _names(act)
        at = next((n for n, (a, b) in enumerate(zip(mine[4], its[4], strict=False)) if a != b), 0)
        return f"`{names[at]}`", mine[4][at], its[4][at]

    def _order(self, leaf: str, plain: Trace, schedule: Run, trace: Trace) -> tuple[Spot, ...]:
        """Terms agree, their order or number does not: the instances at the first place of the channel that differs."""
        mine, its = trace.channels.get(leaf, []), plain.channels.get(leaf, [])
        places = dict(zip((trace.made[one] for one, _ in trace.line), trace.line, strict=True))
        at = next((n for n, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), min(len(mine), len(its)))
        spots = []
        for entries in (its, mine):
            if at < len(entries) and entries[at] in places:
                position = places[entries[at]][1]
                spots.append(Spot(schedule.text(position), schedule.sites[position].op.loc))
        return tuple(spots)

    def _writer(self, number: int) -> Instance | None:
        """The instance that made a term, or left it in a cell."""
        if number < 0:
            return None
        key = self.terms.key(number)
        if key[0] == "op" and isinstance(key[1], Instance):
            return key[1]
        if key[0] in ("left", "result") and isinstance(key[1], int):
            return self._writer(key[1])
        return None

    def words(self, number: int | None) -> str:
        """A term in words: the instance that made it."""
        if number is None or number < 0:
            return "nothing"
        writer = self._writer(number)
        if writer is not None:
            return instance_text(self.pair, writer)
        return self._other(self.terms.key(number))

    def _other(self, key: tuple[object, ...]) -> str:
        match key:
            case ("initial", _, _) | ("cells", _):
                return _START
            case ("cells", _, *cells):
                return " and ".join(self.words(cell[1]) for cell in cells if isinstance(cell, tuple))
            case ("queue", sent, popped) if isinstance(sent, tuple) and isinstance(popped, int):
                pushed = ", ".join(self.words(term) for term in sent) or "nothing"
                return f"what {pushed} sent" + (f" and {self.words(popped)} left" if popped >= 0 else "")
            case ("undefined", name):
                return f"`%{name}` before it is made"
            case ("missing", earlier, later, Instance() as one):
                return f"the `{later}` of {instance_text(self.pair, one)} without its `{earlier}`"
            case ("rerun", int() as found, Instance() as one):
                return f"a rerun of {instance_text(self.pair, one)} on {self.words(found)}"
            case ("staged", count):
                return f"a trainer that holds {count} staged micro-batches"
            case ("held", None):
                return "a trainer that holds no update back"
            case ("held", (step, path)) if isinstance(step, int) and isinstance(path, tuple):
                return f"a trainer that holds back the update{where(step, path)}"
            case ("both", everything, cell) if isinstance(everything, int) and isinstance(cell, int):
                return f"{self.words(everything)} and {self.words(cell)}"
            case ("partial", whole, _) if isinstance(whole, int):
                return f"a part of {self.words(whole)}"
            case ("entries", *entries):
                return " and ".join(self.words(term) for term in entries if isinstance(term, int)) or "nothing"
        return str(key[0])


def _telling(leaf: str) -> tuple[bool, str]:
    """The trainer's calls first: a difference there explains those that follow from it."""
    return leaf != "trainer.calls", leaf


def _names(act: Act) -> list[str]:
    return [touch.leaf for touch in act.reads]


def _left(trace: Trace, leaf: str) -> object:
    return trace.channels.get(leaf, ()) or trace.cells.get(leaf, {})


def stuck_finding(run: Run, stuck: Stuck) -> Finding:
    """The ring of waits of a run that cannot go on, as a counterexample."""
    spots: list[Spot] = []
    followers = (*stuck.chain[1:], stuck.chain[0])
    for (waiter, awaited), (head, _) in zip(stuck.chain, followers, strict=True):
        site, lane = run.sites[waiter], run.sites[head].op.lane
        text = f"lane {site.op.lane}: {run.text(waiter)} waits for {run.text(awaited)}"
        if awaited != head:
            text += f", which stands behind {run.text(head)} on lane {lane}"
        spots.append(Spot(text, site.op.loc))
    first = run.text(stuck.chain[0][0])
    message = f"the run hangs at {first}: each lane waits for another"
    return Finding(DeadlockError, message, run.setting, tuple(spots))
