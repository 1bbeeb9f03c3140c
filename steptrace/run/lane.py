"""A lane: runs its part of a plan, node by node, each op for the step it stands for."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

from steptrace.diag import Note, SteptraceError
from steptrace.run.calls import (
    CARRY,
    STEP,
    Ready,
    ReadyLoop,
    ReadyNode,
    ReadyStream,
    Round,
    holds,
    located,
)
from steptrace.run.frames import Frame
from steptrace.run.horizon import Horizon
from steptrace.run.instance import At
from steptrace.run.progress import WHOLE, Progress
from steptrace.run.session import Session

_NO_ROUND = Round()


class LaneRunner:
    """Runs nodes of a plan on the thread that calls it.

    Args:
      run: the session.
      name: the lane's name.
      progress: where lanes meet.
      first: the step that the run begins with; nothing before it is waited for.
      wait: waits for the device, in a timed run.
    """

    def __init__(
        self, run: Session, name: str, progress: Progress, first: int, wait: Callable[[], None] | None = None
    ) -> None:
        self.name = name
        self._run = run
        self._frames = run.frames
        self._able = run.capabilities
        self._progress = progress
        self._first = first
        self._wait = wait
        self._rounds: tuple[int, ...] = ()
        self._count: int | None = None
        self._round = _NO_ROUND

    def turns(
        self,
        nodes: tuple[ReadyNode, ...],
        horizon: Horizon,
        *,
        most: int,
        least: int,
        ended: Callable[[], None] | None = None,
    ) -> None:
        """Run the lane to its end: the end of the steps, or of the run.

        Args:
          nodes: what a turn runs, in order.
          horizon: which steps there are.
          most, least: the most and the least steps that one of them runs ahead.
          ended: called behind each turn.
        """
        progress, first = self._progress, self._first
        for turn in count(first - most):
            there = [turn + shift >= first and horizon.exists(turn + shift) for shift in range(most + 1)]
            settled = turn + least
            if settled >= first and (settled >= progress.limit or not there[least]):
                return
            for node in nodes:
                if there[node.shift] and turn + node.shift < progress.limit:
                    self.node(node, turn + node.shift)
            if settled >= first and settled < progress.limit:
                progress.lane_done(self.name, settled)
            if ended is not None:
                ended()

    def node(self, node: ReadyNode, step: int) -> None:
        """Run a node for a step; a failure of it is the run's."""
        frame = self._frames.at(step)
        try:
            if isinstance(node, Ready):
                self._op(node, step, frame)
            else:
                self.nodes((node,), step, frame)
        except Exception as error:
            self._progress.fail(error, step, self.name)

    def nodes(self, nodes: tuple[ReadyNode, ...], step: int, frame: Frame) -> None:
        """Run nodes for a step; errors come through."""
        for node in nodes:
            if isinstance(node, Ready):
                self._op(node, step, frame)
            elif isinstance(node, ReadyLoop):
                self._loop(node, step, frame)
            else:
                self._stream(node, step, frame)

    def _op(self, ready: Ready, step: int, frame: Frame) -> None:
        """One op: it waits, runs if its condition is true, and is passed either way."""
        if ready.holds and not self._held(ready, step, 0, 0):
            return
        first = ready.peeled
        if first is None:
            if ready.when is None or holds(ready.when, ready, frame, self._frames, self._round, self._able):
                self._call(ready, step, frame)
        else:
            self._peeled(ready, step, frame, bool(frame.values[first.writes[1]]), frame.values[first.writes[0]])
        if ready.watched:
            self._progress.passed(ready.call.op.id, (step, WHOLE))

    def _peeled(self, ready: Ready, step: int, frame: Frame, last: bool, micro_batch: Any) -> None:
        """An op that stands for the step's first micro-batch: there is one, or it does nothing."""
        self._rounds, self._round = (0,), Round(0, last)
        makes = ready.peeled is ready.call
        if (makes or ready.polls or micro_batch is not None) and (
            ready.when is None or holds(ready.when, ready, frame, self._frames, self._round, self._able)
        ):
            self._call(ready, step, frame)
        self._rounds, self._round = (), _NO_ROUND

    def _loop(self, loop: ReadyLoop, step: int, frame: Frame) -> None:
        for hold in loop.holds:
            if not self._held_by(loop, hold.before, hold.distance, step, hold.why):
                return
        outer = (self._rounds, self._count, self._round)
        index, plan, head = 0, loop.plan, loop.head
        micro_batches = plan.kind == "micro_batches" and head is not None
        while plan.count is None or index < plan.count:
            self._rounds, self._count = (*outer[0], index), plan.count
            if head is not None and (not self._waited(head, step, index) or self._call(head, step, frame) is None):
                break
            if micro_batches:
                assert head is not None, "micro-batches are made by a head"
                self._round = Round(index, bool(frame.values[head.call.writes[1]]))
            self.nodes(loop.body, step, frame)
            index += 1
        self._rounds, self._count, self._round = outer
        for id in loop.watched:
            self._progress.passed(id, (step, WHOLE))

    def _stream(self, stream: ReadyStream, step: int, frame: Frame) -> None:
        """This lane's part of a loop over micro-batches, each call for the round it is due in."""
        plan = stream.plan
        peeled, leads = plan.peeled, plan.leads
        if leads and peeled is not None and peeled.kind.name == "stream_mb" and frame.values[peeled.writes[0]] is None:
            frame.counts[plan.id] = plan.start  # the stream has ended in front of the loop
        single = not plan.shared
        for turn in count(plan.start - plan.ahead):
            for ready in stream.calls:
                micro = turn + ready.shift
                if micro >= plan.start and not self._in_round(ready, stream, step, micro, frame):
                    return
            if single:
                frame.rounds.pop(turn, None)
            if frame.counts.get(plan.id, turn + 2) <= turn + 1:
                break
        self._rounds, self._round = (), _NO_ROUND
        for id in stream.watched:
            self._progress.passed(id, (step, WHOLE))

    def _in_round(self, ready: Ready, stream: ReadyStream, step: int, micro: int, frame: Frame) -> bool:
        """One call of a round, if the step has that round; False when the run has stopped."""
        plan = stream.plan
        head = ready.call is plan.head
        if not self._waited(ready, step, micro, plan.start):
            return False
        if not head and not plan.leads and not self._follow(ready, plan.head.op.id, step, micro):
            return False
        if frame.counts.get(plan.id, micro + 1) <= micro:
            return True
        keyed = plan.shared or bool(plan.ahead)
        if keyed and head:
            frame.rounds[micro] = {}
        self._rounds = (micro,)
        if not head:
            slot = plan.head.writes[1]
            last = frame.rounds[micro].get(slot) if keyed else frame.values[slot]
            self._round = Round(micro, bool(last))
            if ready.when is None or holds(ready.when, ready, frame, self._frames, self._round, self._able):
                self._call(ready, step, frame, micro)
        elif self._call(ready, step, frame, micro) is None:
            frame.counts[plan.id] = micro
        if ready.watched or (head and plan.shared):
            self._progress.passed(ready.call.op.id, (step, micro))
        return True

    def _follow(self, ready: Ready, head: str, step: int, micro: int) -> bool:
        """Wait until the lane that makes the micro-batches has made one, or knows that there is none."""
        return self._progress.wait(head, (step, micro), step, ready.call.op, "micro-batches")

    def _waited(self, ready: Ready, step: int, micro: int, start: int = 0) -> bool:
        return not ready.holds or self._held(ready, step, micro, start)

    def _held(self, ready: Ready, step: int, micro: int, start: int) -> bool:
        """Wait for all that an op needs of other lanes; False when the run has stopped."""
        for hold in ready.holds:
            if hold.micro is None:
                point: tuple[int, float] = (step - hold.distance, WHOLE)
            elif micro - hold.micro >= start:
                point = (step, micro - hold.micro)
            else:
                continue
            if point[0] >= self._first and not self._progress.wait(hold.before, point, step, ready.call.op, hold.why):
                return False
        return True

    def _held_by(self, loop: ReadyLoop, before: str, distance: int, step: int, why: str) -> bool:
        at = step - distance
        op = next(iter(_ops(loop)))
        return at < self._first or self._progress.wait(before, (at, WHOLE), step, op, why)

    def _call(self, ready: Ready, step: int, frame: Frame, micro: int = 0) -> Any:
        call = ready.call
        args = self._operands(ready, step, frame, micro) if ready.reads else ()
        at = At(call.op, step, self._rounds, self._count)
        start = time.perf_counter()
        try:
            results = ready.rule(self._run, at, *args)
            if ready.waits and self._wait is not None:
                self._wait()
        except Exception as error:
            attribute(error, at)
            raise
        spent = frame.seconds.get(self.name)
        if spent is None:
            spent = frame.seconds[self.name] = {}
        spent[ready.kind] = spent.get(ready.kind, 0.0) + time.perf_counter() - start
        if results or (call.writes and results is not None):
            values: Any = frame.rounds[micro] if ready.keyed else frame.values
            for slot, value in zip(call.writes, results, strict=True):
                values[slot] = value
        return results

    def _operands(self, ready: Ready, step: int, frame: Frame, micro: int) -> list[Any]:
        values, frames = frame.values, self._frames
        return [
            values[slot]
            if where == STEP
            else frames.carry(name, step)
            if where == CARRY
            else located(where, slot, frame, frames, micro)
            for where, slot, name in ready.reads
        ]


def _ops(node: ReadyNode) -> Any:
    if isinstance(node, Ready):
        yield node.call.op
    elif isinstance(node, ReadyLoop):
        if node.head is not None:
            yield node.head.call.op
        for inner in node.body:
            yield from _ops(inner)


def attribute(error: Exception, at: At) -> None:
    """Say in the error which op and step it came from, and the user's line."""
    where = f"in `{at.op.id}` of step {at.step}, lane {at.op.lane}"
    if isinstance(error, SteptraceError):
        error.notes = (*error.notes, Note(where, at.op.loc if error.loc else None))
        error.loc = error.loc or at.op.loc
    else:
        error.add_note(f"{where} ({at.op.loc})" if at.op.loc else where)
