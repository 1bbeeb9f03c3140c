"""Walks a lowered plan without a clock: every instance, what it waits for, and what its call does, as events.

The walk knows nothing of when things happen, only of what comes after what: a lane goes on where its waits are met. So
it ends where the lanes can end, whatever things take, and the events that it leaves are those of every run. What a run
decides by the time (`Decided`) is read from a run in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from steptrace.cost.calls import Instance
from steptrace.cost.machine import WHOLE, Locked, Machine, Point, Value, asks
from steptrace.cost.moments import WAITS, Events, Moment, Name
from steptrace.ir import Predicate, flags_of
from steptrace.lower import Call, Lane, LoopPlan, PlanNode, StreamPlan
from steptrace.lower.plan import calls_of
from steptrace.simulate.conditions import holds

Wish = tuple[str, Point, str]
"""What a lane waits for: a place, how far, and who waits."""


def walk(machine: Machine) -> Events:
    """Walk through all lanes; gives what happens in them. Devices have no order yet (`Events.in_order`).

    Raises:
      Locked: they wait for one another.
    """
    start = Moment(machine.events.add(Name("", (), 0, ""), -1, []))
    alone = LaneWalk(machine, "host", start)
    for _ in alone.nodes(machine.plan.base.prologue, -1):
        raise AssertionError("one lane waits for no other")
    walks = [LaneWalk(machine, lane.name, alone.at).turns(lane) for lane in machine.plan.lanes if lane.nodes]
    waiting: dict[int, Wish] = {}
    open_ = set(range(len(walks)))
    while open_:
        ready = [at for at in sorted(open_) if at not in waiting or machine.is_past(*waiting[at][:2])]
        if not ready:
            parked = (waiting[at] for at in sorted(open_))
            raise Locked(tuple(f"{who} waits for `{id}` of step {step}" for id, (step, _), who in parked))
        for at in ready:
            wish = next((wish for wish in walks[at] if not machine.is_past(*wish[:2])), None)
            if wish is None:
                open_.discard(at)
            else:
                waiting[at] = wish
    return machine.events


class LaneWalk:
    """Walks the nodes of one lane.

    Attributes:
      name: the lane.
      at: the moment at which it goes on.
      rounds: those of the loops around.
      count: how many rounds the innermost loop makes; None where only its head knows.
    """

    def __init__(self, machine: Machine, name: str, at: Moment) -> None:
        self.name, self.at = name, at
        self.machine = machine
        self.rounds: tuple[int, ...] = ()
        self.count: int | None = None
        self._last = False

    def turns(self, lane: Lane) -> Iterator[Wish]:
        """Walk to the end of the steps; yields what must be passed by other lanes first."""
        for turn in count(-lane.most):
            settled = turn + lane.least
            if settled >= 0 and not self.machine.exists(settled):
                return
            for node in lane.nodes:
                step = turn + (node.op.shift if isinstance(node, Call) else 0)
                if self.machine.exists(step):
                    yield from self.nodes((node,), step)

    def nodes(self, nodes: tuple[PlanNode, ...], step: int) -> Iterator[Wish]:
        """Walk nodes for a step."""
        for node in nodes:
            if isinstance(node, Call):
                yield from self._op(node, step)
            elif isinstance(node, LoopPlan):
                yield from self._loop(node, step)
            else:
                yield from self._stream(node, step)

    def _op(self, call: Call, step: int) -> Iterator[Wish]:
        yield from self._held(call, step, 0, 0)
        first = self.machine.plan.peeled.get(call.op.id)
        if first is None:
            micro = self.rounds[-1] if self.rounds else 0
            if self._holds(call, call.when, step, micro):
                self._call(call, step, None)
        else:
            self._peeled(call, first, step)
        self.machine.passes(call.op.id, (step, WHOLE), self.at)

    def _peeled(self, call: Call, first: Call, step: int) -> None:
        """An op that stands for the step's first micro-batch: there is one, or it does nothing."""
        made = self.machine.values.get((first.op.results[0].name, step))
        self.rounds = (0,)
        self._last = made is not None and made.it is not None and bool(made.it[1])  # type: ignore[index]
        there = call is first or call.kind.polls or self._looked(call) or (made is not None and made.it is not None)
        if there and self._holds(call, call.when, step, 0):
            self._call(call, step, None)
        self.rounds, self._last = (), False

    def _loop(self, loop: LoopPlan, step: int) -> Iterator[Wish]:
        for hold in self.machine.plan.holds.get(loop.id, ()):
            point: Point = (step - hold.distance, WHOLE)
            yield from self._until(hold.before, point, f"loop `{loop.id}` of step {step}", loop.id, step)
        outer = (self.rounds, self.count, self._last)
        index = 0
        while loop.count is None or index < loop.count:
            self.rounds, self.count = (*outer[0], index), loop.count
            if loop.head is not None:
                yield from self._held(loop.head, step, index, 0)
                made = self._call(loop.head, step, None)
                if made is None:
                    break
                if loop.kind == "micro_batches":
                    self._last = bool(made[1].it)
            yield from self.nodes(loop.body, step)
            index += 1
        self.rounds, self.count, self._last = outer
        for id in (loop.id, *(call.op.id for call in calls_of((loop,)))):
            self.machine.passes(id, (step, WHOLE), self.at)

    def _stream(self, stream: StreamPlan, step: int) -> Iterator[Wish]:
        """This lane's part of a loop over micro-batches, each call for the round it is due in."""
        total = max(self.machine.counts[step], stream.start)
        rounds = total if stream.leads and self._ended(stream, step) else total + 1
        for turn in range(stream.start - stream.ahead, rounds):
            over = False
            for call in stream.calls:
                micro = turn + call.op.shift
                if micro >= stream.start:
                    over |= call is stream.head and micro >= total
                    yield from self._in_round(call, stream, step, micro, total)
            if stream.leads and over and turn + 1 >= total:
                break
        self.rounds, self._last = (), False
        for id in (stream.id, *(call.op.id for call in stream.calls)):
            self.machine.passes(id, (step, WHOLE), self.at)

    def _ended(self, stream: StreamPlan, step: int) -> bool:
        """Whether the stream has ended in front of the loop."""
        peeled = stream.peeled
        if peeled is None or peeled.kind.name != "stream_mb":
            return False
        made = self.machine.values.get((peeled.op.results[0].name, step))
        return made is None or made.it is None

    def _in_round(self, call: Call, stream: StreamPlan, step: int, micro: int, total: int) -> Iterator[Wish]:
        """One call of a round, if the step has that round."""
        if micro > total:
            return
        if micro < total or call is stream.head:
            yield from self._held(call, step, micro, stream.start)
        if not stream.leads:
            yield from self._until(stream.head.op.id, (step, micro), call.op.id, call.op.id, step)
        if micro >= total and (call is not stream.head or self._ended(stream, step)):
            return
        self.rounds = (micro,)
        if call is stream.head:
            self._call(call, step, micro)
        else:
            last = self.machine.rounds.get((stream.head.op.results[1].name, step, micro))
            self._last = last is not None and bool(last.it)
            if self._holds(call, call.when, step, micro):
                self._call(call, step, micro)
        self.machine.passes(call.op.id, (step, micro), self.at)

    def _held(self, call: Call, step: int, micro: int, start: int) -> Iterator[Wish]:
        """Wait for all that an op needs of other lanes."""
        for hold in self.machine.plan.holds.get(call.op.id, ()):
            if hold.micro is None:
                point: Point = (step - hold.distance, WHOLE)
            elif micro - hold.micro >= start:
                point = (step, micro - hold.micro)
            else:
                continue
            yield from self._until(hold.before, point, f"`{call.op.id}` of step {step}", call.op.id, step)

    def _until(self, id: str, point: Point, who: str, op: str, step: int) -> Iterator[Wish]:
        if point[0] < 0:
            return
        if not self.machine.is_past(id, point):
            yield id, point, who
        self.wait([self.machine.when_past(id, point)], op, step)

    def wait(self, moments: list[Moment], op: str, step: int) -> None:
        """Go on once all of these moments have come."""
        name = Name(op, self.rounds, self._next_part(op, step), self.name)
        self.at = Moment(self.machine.events.add(name, step, [self.at, *moments]))

    def _next_part(self, op: str, step: int) -> int:
        """The number of the next wait in front of an instance; they are counted from `WAITS` on."""
        key = (op, step, self.rounds, self.name)
        self.machine.waits[key] += 1
        return WAITS + self.machine.waits[key]

    def _holds(self, call: Call, predicate: Predicate, step: int, micro: int) -> bool:
        if self.machine.polled & set(flags_of(predicate)):
            counted = self.rounds[-1] if self.rounds else None
            return (call.op.id, step, counted) in self.machine.decided.ran
        return holds(predicate, self.machine, step, micro, self._last)

    def _looked(self, call: Call) -> bool:
        """Whether it looks for its operands, or runs only where one that looked has found them: it waits for none."""
        return call.kind.polls or asks(call.when, self.machine.polled)

    def _call(self, call: Call, step: int, micro: int | None) -> tuple[Value, ...] | None:
        """Carry an op out and keep what it makes, by micro-batch where ``micro`` is given."""
        machine = self.machine
        inner = self.rounds[-1] if self.rounds else 0
        args = tuple(
            None if self._looked(call) else machine.value(use.name, step + use.step, inner + use.micro)
            for use in call.op.args
        )
        made: tuple[Value, ...] | None = Instance(self, call, step, args).carried_out()
        if made is not None:
            for result, value in zip(call.op.results, made, strict=True):
                if micro is None:
                    machine.values[result.name, step] = value
                else:
                    machine.rounds[result.name, step, micro] = value
        return made
