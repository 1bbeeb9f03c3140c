"""A lane in virtual time: the same walk over a plan as `steptrace.run.lane`, as a generator."""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import Any, TypeAlias

from steptrace.lower import Call, Hold, Lane, LoopPlan, PlanNode, StreamPlan
from steptrace.lower.plan import calls_of
from steptrace.simulate.conditions import holds
from steptrace.simulate.instance import POLL, Instance
from steptrace.simulate.ops import perform
from steptrace.simulate.places import WHOLE, Places, Point, Wanted
from steptrace.simulate.record import Event
from steptrace.simulate.state import State, Value

Walk: TypeAlias = Generator[float | Wanted, None, Any]
"""What a lane yields: seconds to let pass, `POLL`, or what it waits for of another lane."""


class LaneWalk:
    """Walks a lane's nodes.

    Args:
      state: the run.
      places: where lanes meet.
      name: the lane's name.
    """

    def __init__(self, state: State, places: Places, name: str) -> None:
        self.name = name
        self._state, self._places = state, places
        self._rounds: tuple[int, ...] = ()
        self._count: int | None = None
        self._last = False
        self._reached, self._held_by = 0.0, ""

    def turns(self, lane: Lane) -> Walk:
        """Run the lane to the end of the steps."""
        exists = self._state.setting.counts.exists
        for turn in count(-lane.most):
            settled = turn + lane.least
            if settled >= 0 and not exists(settled):
                return
            for node in lane.nodes:
                step = turn + (node.op.shift if isinstance(node, Call) else 0)
                if exists(step):
                    yield from self.nodes((node,), step)
            self._state.turned(self.name, turn)

    def nodes(self, nodes: tuple[PlanNode, ...], step: int) -> Walk:
        """Run nodes for a step."""
        for node in nodes:
            if isinstance(node, Call):
                yield from self._op(node, step)
            elif isinstance(node, LoopPlan):
                yield from self._loop(node, step)
            else:
                yield from self._stream(node, step)

    def _op(self, call: Call, step: int) -> Walk:
        """One op: it waits, runs if its condition is true, and is passed either way."""
        yield from self._held(call, step, 0, 0)
        first = self._state.plan.peeled.get(call.op.id)
        if first is None:
            micro = self._rounds[-1] if self._rounds else 0
            if holds(call.when, self._state, step, micro, self._last):
                yield from self._call(call, step, None)
        else:
            yield from self._peeled(call, first, step)
        self._places.passed(call.op.id, (step, WHOLE))

    def _peeled(self, call: Call, first: Call, step: int) -> Walk:
        """An op that stands for the step's first micro-batch: there is one, or it does nothing."""
        made = self._state.values.get((first.op.results[0].name, step))
        last = made is not None and made.it is not None and made.it.last
        self._rounds, self._last = (0,), last
        there = call is first or call.kind.polls or (made is not None and made.it is not None)
        if there and holds(call.when, self._state, step, 0, last):
            yield from self._call(call, step, None)
        self._rounds, self._last = (), False

    def _loop(self, loop: LoopPlan, step: int) -> Walk:
        for hold in self._state.plan.holds.get(loop.id, ()):
            yield from self._wait(hold, (step - hold.distance, WHOLE), f"loop `{loop.id}` of step {step}")
        outer = (self._rounds, self._count, self._last)
        index, head = 0, loop.head
        while loop.count is None or index < loop.count:
            self._rounds, self._count = (*outer[0], index), loop.count
            if head is not None:
                yield from self._held(head, step, index, 0)
                made = yield from self._call(head, step, None)
                if made is None:
                    break
                if loop.kind == "micro_batches":
                    self._last = bool(made[1].it)
            yield from self.nodes(loop.body, step)
            index += 1
        self._rounds, self._count, self._last = outer
        for id in (loop.id, *(call.op.id for call in calls_of((loop,)))):
            self._places.passed(id, (step, WHOLE))

    def _stream(self, stream: StreamPlan, step: int) -> Walk:
        """This lane's part of a loop over micro-batches, each call for the round it is due in."""
        counted, peeled = self._state.counted, stream.peeled
        if stream.leads and peeled is not None and peeled.kind.name == "stream_mb":
            made = self._state.values.get((peeled.op.results[0].name, step))
            if made is None or made.it is None:
                counted[stream.id, step] = stream.start  # the stream has ended in front of the loop
        for turn in count(stream.start - stream.ahead):
            for call in stream.calls:
                micro = turn + call.op.shift
                if micro >= stream.start:
                    yield from self._in_round(call, stream, step, micro)
            if counted.get((stream.id, step), turn + 2) <= turn + 1:
                break
        self._rounds, self._last = (), False
        for id in (stream.id, *(call.op.id for call in stream.calls)):
            self._places.passed(id, (step, WHOLE))

    def _in_round(self, call: Call, stream: StreamPlan, step: int, micro: int) -> Walk:
        """One call of a round, if the step has that round."""
        head, counted = call is stream.head, self._state.counted
        yield from self._held(call, step, micro, stream.start)
        if not stream.leads:
            wanted = Wanted(stream.head.op.id, (step, micro), self._named(call, step, micro), "micro-batches")
            yield from self._until(wanted)
        if counted.get((stream.id, step), micro + 1) <= micro:
            return
        self._rounds = (micro,)
        if head:
            if (yield from self._call(call, step, micro)) is None:
                counted[stream.id, step] = micro
        else:
            last = self._state.rounds.get((stream.head.op.results[1].name, step, micro))
            self._last = last is not None and bool(last.it)
            if holds(call.when, self._state, step, micro, self._last):
                yield from self._call(call, step, micro)
        self._places.passed(call.op.id, (step, micro))

    def _held(self, call: Call, step: int, micro: int, start: int) -> Walk:
        """Wait for all that an op needs of other lanes."""
        self._reached, self._held_by = self._state.now, ""
        longest = 0.0
        for hold in self._state.plan.holds.get(call.op.id, ()):
            if hold.micro is None:
                point: Point = (step - hold.distance, WHOLE)
            elif micro - hold.micro >= start:
                point = (step, micro - hold.micro)
            else:
                continue
            before = self._state.now
            yield from self._wait(hold, point, self._named(call, step, micro if start or self._rounds else None))
            if self._state.now - before > longest:
                longest, self._held_by = self._state.now - before, hold.before

    def _wait(self, hold: Hold, point: Point, who: str) -> Walk:
        yield from self._until(Wanted(hold.before, point, who, hold.why))

    def _until(self, wanted: Wanted) -> Walk:
        if wanted.point[0] >= 0 and not self._places.is_past(wanted):
            yield wanted

    def _named(self, call: Call, step: int, micro: int | None) -> str:
        return f"`{call.op.id}` of step {step}" + ("" if micro is None else f", micro-batch {micro}")

    def _call(self, call: Call, step: int, micro: int | None) -> Walk:
        """Carry an op out and keep what it makes, by micro-batch where ``micro`` is given."""
        state = self._state
        if call.kind.polls:
            yield POLL
        inner = self._rounds[-1] if self._rounds else 0
        args: tuple[Value | None, ...] = tuple(
            state.value(use.name, step + use.step, inner + use.micro) for use in call.op.args
        )
        counted = self._rounds[-1] if self._rounds else None
        at = Instance(state, call, step, counted, self._rounds, self._count, args)
        start = state.now
        try:
            made = yield from perform(at)
        except Exception as error:
            error.add_note(f"in {self._named(call, step, counted)}, lane {self.name}, after {state.now:g} s")
            raise
        reached = min(self._reached, start) if state.plan.holds.get(call.op.id) else start
        done = state.now if at.done is None else at.done
        state.events.append(
            Event(
                call.op.id,
                call.kind.name,
                step,
                counted,
                self.name,
                reached,
                start,
                state.now,
                done,
                self._held_by if reached < start else "",
            )
        )
        if made is not None:
            state.put(call.op, step, micro, made)
        return made
