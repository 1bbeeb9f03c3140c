"""Searches pipelines for the schedule with the smallest period.

Two searches, one behind the other. First a beam search over passes: each round puts one more pass, with each of its
options, behind each of the best pipelines so far, so that passes are tried in every order that leads on. Then, where
the bound is not reached, a best-first search over single places: each op of the step on each lane, a number of steps
ahead, above each of the ops there. The graph of the schedule judges every one, so what is found is legal and its period
exact; the lower bound of the program says when there is no more to find.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from itertools import count
from math import lcm
from random import Random
from typing import TypeAlias

from steptrace.check.schedule import keeps_order
from steptrace.cost import Bound, Judged, bound_of, critical, judged, seconds_in_words, tight_s
from steptrace.cost.period import every_of
from steptrace.diag.base import SteptraceError
from steptrace.ir import And, Every, Loop, Not, Op, Or, Predicate, Program, ops_of
from steptrace.motion import Schedule
from steptrace.passes.async_checkpoint import AsyncCheckpoint
from steptrace.passes.async_weight_sync import AsyncWeightSync
from steptrace.passes.base import Pass, text_of
from steptrace.passes.defer_metrics import DeferMetrics
from steptrace.passes.defer_update import DeferUpdate
from steptrace.passes.fuse_update import FuseUpdate
from steptrace.passes.memory_budget import MemoryBudget
from steptrace.passes.moves import key_of, moves_of
from steptrace.passes.pipeline_micro_batches import PipelineMicroBatches
from steptrace.passes.place import Place
from steptrace.passes.running import run_passes
from steptrace.passes.send_ahead import SendAhead
from steptrace.passes.stage_after_update import StageAfterUpdate
from steptrace.passes.stage_before_update import StageBeforeUpdate
from steptrace.passes.stream_micro_batches import StreamMicroBatches
from steptrace.passes.take_ahead import TakeAhead
from steptrace.simulate import Durations

LANES = ("host", "packer", "io")
"""The lanes that an op may be given, beside those that the schedule uses for ops of their own."""

WIDTH = 4
"""How many pipelines are carried on from round to round."""

MOST_PASSES = 10
"""The most rounds of the search over passes."""

NEAR = 1e-9
"""How near the bound, as a share of it, is on it."""

WHOLE = 24
"""Ops of a whole train step: of smaller programs more schedules are judged, of longer cadences fewer."""

TURNS = 4
"""The share of the tries that is left for a program with long cadences, once it was searched as if they came never."""

_NEVER = 1_000_000

MANY = 12
"""In a step of more nodes, places are tried only for the ops of the critical circle: no other one shortens it."""

Apply: TypeAlias = Callable[[Schedule, Pass], Schedule]
"""Applies a pass; raises SteptraceError where it declines."""


def verified(schedule: Schedule, pass_: Pass) -> Schedule:
    """The schedule with a pass applied and verified, as a pipeline does it; as it was where the pass declines."""
    return run_passes(schedule, (pass_,)).schedule


@dataclass(frozen=True)
class Limits:
    """How far a search goes.

    Attributes:
      tries: how many schedules of a whole train step are judged at most. One of fewer ops takes less time to judge,
        and one with cadences more, so of these there are as many as take as long (`scaled`).
      patience: how many of them in a row may give nothing faster, once places are tried.
      seed: of the order in which places are tried, where there are more than can be.
      ahead: how many steps ahead of its step an op may be placed.
      lanes: the lanes that an op may be placed on.
      fits: whether a schedule is within the memory; None for any.
      recompiled: whether passes may be used under which results agree only within rounding.
      passes: the passes that are tried; None for those of `candidates`.
      apply: applies a pass.
    """

    tries: int = 250
    patience: int = 60
    seed: int = 0
    ahead: int = 2
    lanes: tuple[str, ...] = LANES
    fits: Callable[[Judged], bool] | None = None
    recompiled: bool = False
    passes: tuple[Pass, ...] | None = None
    apply: Apply = verified

    def scaled(self, program: Program) -> Limits:
        """The limits for a program, by how long a turn of it takes to judge."""
        size = turn_of(program)
        tries, patience = (max(1, count * WHOLE // size) for count in (self.tries, self.patience))
        return replace(self, tries=tries, patience=patience)


def turn_of(program: Program) -> int:
    """Ops of a turn of a program: of as many steps as it takes until its cadences have been through."""
    ops = list(ops_of(program.body))
    return max(1, len(ops) * lcm(1, *(period for op in ops for period in every_of(op.when))))


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
      pipeline: the passes, as `steptrace opt -p` takes them; "" where nothing is faster than what there was.
      passes: the same passes.
      judged: the schedule, with its period.
      bound: of every legal schedule.
      tried: how many schedules were judged.
      stop: ``bound``: it is reached; ``exhausted``: there is nothing more to try; ``budget``: all tries are used up.
      why: the same in words, with what the bound is due to.
    """

    pipeline: str
    passes: tuple[Pass, ...]
    judged: Judged
    bound: Bound
    tried: int
    stop: str
    why: str

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        return self.judged.schedule


@dataclass(frozen=True)
class _State:
    pipeline: tuple[str, ...]
    passes: tuple[Pass, ...]
    schedule: Schedule
    judged: Judged
    fits: bool

    @property
    def rank(self) -> tuple[float, int, tuple[str, ...]]:
        return float(f"{self.judged.period.seconds:.12g}"), len(self.pipeline), self.pipeline


def candidates(program: Program, *, recompiled: bool = False, budgets: bool = False) -> tuple[Pass, ...]:
    """The passes that are tried on a program, with their options; none of them changes its contract."""
    ahead = (TakeAhead(depth) for depth in range(1, min(2, program.contract.staleness) + 1))
    found: list[Pass] = [
        AsyncCheckpoint(),
        AsyncWeightSync(),
        DeferMetrics(),
        DeferUpdate(),
        PipelineMicroBatches(),
        SendAhead(),
        StageAfterUpdate(),
        StageBeforeUpdate(),
        StreamMicroBatches(),
        *ahead,
        *((MemoryBudget(1), MemoryBudget(2)) if budgets else ()),
        *((FuseUpdate(),) if recompiled else ()),
    ]
    return tuple(sorted(found, key=text_of))


def search(start: Schedule, durations: Durations, *, micro_batches: int, limits: Limits = Limits()) -> Found | None:
    """Search for the schedule with the smallest period.

    The same arguments give the same answer.

    Args:
      start: what there is: a program as it is written, or a schedule of it.
      durations: how long its ops take.
      micro_batches: how many a step has.
      limits: how far to go.

    Returns:
      What was found; None where no schedule is within the memory.

    Raises:
      SteptraceError: the program itself has no period.
    """
    bound = bound_of(start.source, durations, micro_batches=micro_batches)
    hint: tuple[Pass, ...] = ()
    rare, scaled = without_cadences(start.source), limits.scaled(start.source)
    long = turn_of(start.source) > 2 * WHOLE and rare != start.source
    if long and not start.trail and start.program == start.source:
        # A turn of a cadence of ten steps takes ten times as long to judge: most of the search does without.
        found = search(Schedule.of(rare), durations, micro_batches=micro_batches, limits=limits)
        hint = () if found is None else found.passes
        tries = max(len(hint) + 1, scaled.tries // TURNS)
        scaled = replace(scaled, tries=tries, patience=scaled.patience // TURNS)
    return _Search(start, durations, micro_batches, scaled, bound).found(hint)


@dataclass
class _Search:
    start: Schedule
    durations: Durations
    micro_batches: int
    limits: Limits
    bound: Bound
    tried: int = 0
    improved: int = 0
    best: _State | None = None
    seen: set[tuple[object, ...]] = field(default_factory=set)

    def found(self, hint: tuple[Pass, ...] = ()) -> Found | None:
        """Search, and say why it stopped; from where ``hint`` leads on, too."""
        first = self._state((), self.start)
        assert first is not None, "the first schedule was seen by nobody"
        state = first
        for pass_ in hint:
            state = self._next(state, pass_) or state
        stop, kept = self._passes(state)
        if not stop:
            stop = self._places(kept)
        if self.best is None:
            return None
        pipeline = ",".join(self.best.pipeline)
        return Found(pipeline, self.best.passes, self.best.judged, self.bound, self.tried, stop, self._why(stop))

    def _why(self, stop: str) -> str:
        assert self.best is not None, "there is something to speak of"
        over = self.best.judged.period.seconds - self.bound.seconds
        if stop == "bound":
            return f"bound reached, no legal schedule is faster: {self.bound.why}"
        idle = self.tried - self.improved
        said = {
            "exhausted": "exhausted, no pass and no other place of an op leads further"
            + ("" if self.limits.fits is None else ", within the memory"),
            "budget": f"budget used up: {self.tried} schedules were judged, the last {idle} of them nothing faster",
        }[stop]
        return said + (f"; the bound is {seconds_in_words(over)} below: {self.bound.why}" if over > 0 else "")

    @property
    def _at_bound(self) -> bool:
        return self.best is not None and self.best.judged.period.seconds <= self.bound.seconds * (1 + NEAR)

    def _state(self, passes: tuple[Pass, ...], schedule: Schedule) -> _State | None:
        """A schedule that nobody has looked at yet, judged; None for others and for those that cannot be."""
        key = key_of(schedule.program)
        if key in self.seen:
            return None
        self.seen.add(key)
        self.tried += 1
        try:
            seen = judged(schedule, self.durations, micro_batches=self.micro_batches, bound=self.bound)
        except SteptraceError:
            if not passes:
                raise
            return None
        pipeline = tuple(map(text_in_short, passes))
        state = _State(pipeline, passes, schedule, seen, self.limits.fits is None or self.limits.fits(seen))
        if state.fits and (self.best is None or state.rank < self.best.rank):
            if self.best is None or state.rank[0] < self.best.rank[0]:
                self.improved = self.tried
            self.best = state
        return state

    def _next(self, state: _State, pass_: Pass) -> _State | None:
        if isinstance(pass_, Place) and not self._is_new(state.schedule, pass_):
            return None
        try:
            schedule = self.limits.apply(state.schedule, pass_)
        except SteptraceError:
            return None
        if schedule.program == state.schedule.program:
            return None
        return self._state((*state.passes, pass_), schedule)

    def _is_new(self, schedule: Schedule, place: Place) -> bool:
        """Whether a place gives a legal schedule that nobody has looked at; it costs much less than the pass itself."""
        try:
            program = place.edited(schedule.program)
            key = key_of(program)
            if key in self.seen:
                return False
            legal = keeps_order(program, schedule.reference)
        except SteptraceError:
            return False
        if not legal:
            self.seen.add(key)
        return legal

    def _passes(self, first: _State) -> tuple[str, list[_State]]:
        """The search over passes: why the whole search stops, if it does, and the schedules to go on from."""
        budgets = self.limits.fits is not None
        passes = self.limits.passes
        if passes is None:
            passes = candidates(self.start.source, recompiled=self.limits.recompiled, budgets=budgets)
        beam, kept = [first], [first]
        for _ in range(MOST_PASSES):
            fresh: list[_State] = []
            for state in beam:
                for pass_ in passes:
                    if self._at_bound:
                        return "bound", kept
                    if self.tried >= self.limits.tries:
                        return "budget", kept
                    longer = None if text_in_short(pass_) in state.pipeline else self._next(state, pass_)
                    fresh += [longer] if longer is not None else []
            if not fresh:
                break
            beam = sorted(fresh, key=lambda state: state.rank)[:WIDTH]
            kept += beam
        return ("bound" if self._at_bound else ""), kept

    def _places(self, kept: list[_State]) -> str:
        """The search over places, from the best of what the passes gave.

        The next move is always one of the schedule that looks best: of the shortest period, then of the least time on
        circles that leave no room. So what is found is gone on from at once, and the moves that are left of the
        schedule before wait.
        """
        within = sorted((state for state in kept if state.fits), key=lambda state: state.rank)[:WIDTH]
        queue = [(self._promise(state), number, state, self._moves(state)) for number, state in enumerate(within)]
        heapq.heapify(queue)
        begun, numbers = self.tried, count(len(queue))
        while queue:
            if self._at_bound:
                return "bound"
            if self.tried >= min(self.limits.tries, max(begun, self.improved) + self.limits.patience):
                return "budget"
            state, moves = queue[0][-2:]
            longer = None
            while moves and longer is None:
                longer = self._next(state, moves.pop())
            if not moves:
                heapq.heappop(queue)
            if longer is not None and longer.fits:
                heapq.heappush(queue, (self._promise(longer), next(numbers), longer, self._moves(longer)))
        return "bound" if self._at_bound else "exhausted"

    def _promise(self, state: _State) -> tuple[float, float, int]:
        return state.rank[0], float(f"{tight_s(state.judged.period):.9g}"), len(state.pipeline)

    def _moves(self, state: _State) -> list[Pass]:
        """The single moves that are tried, last those of ops on the critical circle, in an order of the seed."""
        program = state.schedule.program
        names = state.judged.period.graph.names
        circle = {names[arc.target][0].op for arc in state.judged.period.largest.circle}
        circle |= {part.op for part in critical(state.judged.period)}
        moves = list(moves_of(program, self.limits.lanes, self.limits.ahead))
        Random(f"{self.limits.seed} {len(self.seen)}").shuffle(moves)
        moves.sort(key=lambda move: not circle.isdisjoint(move.ops))
        few = len(program.body) <= MANY
        return [move for move in moves if few or not circle.isdisjoint(move.ops)]


def without_cadences(program: Program) -> Program:
    """The program with what runs every so many steps, two at least, running so rarely that it counts as never."""

    def rarely(predicate: Predicate) -> Predicate:
        match predicate:
            case Every(period) if period > 1:
                return Every(max(period, _NEVER))
            case Not(term):
                return Not(rarely(term))
            case And(terms) | Or(terms):
                return type(predicate)(tuple(map(rarely, terms)))
        return predicate

    def visit(node: Op | Loop) -> Op | Loop:
        if isinstance(node, Loop):
            return replace(node, body=tuple(map(visit, node.body)))
        return replace(node, when=rarely(node.when))

    return replace(program, body=tuple(map(visit, program.body)))


def text_in_short(pass_: Pass) -> str:
    """A pass as written in a pipeline, without the options that are as they are by default."""
    plain = type(pass_)()
    kept = {one.name for one in fields(pass_) if getattr(pass_, one.name) != getattr(plain, one.name)}  # type: ignore[arg-type]
    name, _, inside = text_of(pass_).partition("{")
    options = [option for option in inside.rstrip("}").split(", ") if option.partition("=")[0] in kept]
    return name + (f"{{{','.join(options)}}}" if options else "")
