"""What a real run did, lane by lane and device by device, recorded at a cost that does not show in its times."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import jax

from steptrace.ir import Op, OpKind, kinds_of
from steptrace.lower import Plan
from steptrace.run.executor import Rule
from steptrace.run.instance import At
from steptrace.run.session import Session
from steptrace.run.verbs import Results
from steptrace.run.watch import Sent, Tokens, Watcher, done_by, is_ready
from steptrace.simulate import TRAINER, Event, Span
from steptrace.simulate.waits import lane_waits
from steptrace.timeline.recording import Recording, arrows_of, line_of

LIMIT = 1 << 16
"""How many instances are kept of each lane, and how much work of each device: the newest."""

_NONE = -1
_MOMENT_S = 1.0
"""Seconds that a trainer elsewhere is waited for behind a failure, and its answer as long again."""

_Known: TypeAlias = tuple[int, str, Callable[[int, At, float, float], None]]
"""An op's number, the device that its calls may send work to, and what notes an instance of it."""


class _Ring:
    """The newest instances of one lane, in memory that is taken once: 40 bytes each. One thread writes."""

    __slots__ = ("count", "ends", "limit", "micros", "numbers", "starts", "steps")

    def __init__(self, limit: int) -> None:
        self.limit, self.count = limit, 0
        self.starts, self.ends = array("d", bytes(8 * limit)), array("d", bytes(8 * limit))
        self.numbers, self.steps, self.micros = (array("q", bytes(8 * limit)) for _ in range(3))

    def note(self, number: int, at: At, start: float, end: float) -> None:
        place = self.count % self.limit
        self.count += 1
        self.numbers[place] = number
        self.steps[place] = at.step
        self.micros[place] = at.rounds[-1] if at.rounds else _NONE
        self.starts[place] = start
        self.ends[place] = end

    def rows(self) -> Iterator[tuple[int, int, int | None, float, float]]:
        """Number of the op, step, micro-batch, start and end, from the oldest on."""
        for turn in range(max(0, self.count - self.limit), self.count):
            at = turn % self.limit
            micro = None if self.micros[at] == _NONE else self.micros[at]
            yield self.numbers[at], self.steps[at], micro, self.starts[at], self.ends[at]


class Recorder:
    """Records one run: give it to `steptrace.run` in ``around``, and ask for the `recording` once that is over.

    Of each instance of an op it keeps the step, the micro-batch, and when its call began and returned. Devices are
    watched where there is something to wait for: a trainer's ``last_call_token`` and ``last_update_token``, and arrays
    among the results of calls to other parts. Parts that share a device are drawn as one, the trainer's. The device of
    a trainer in a process of its own is watched there, by the same clock.

    Args:
      limit: how many instances are kept of each lane, and how much work of each device.
      annotate: also make a `jax.profiler.TraceAnnotation` around each op, ``op/step``, for a trace that is taken.
      wait: waits until all devices are idle; given, it is called behind each op that only sends work off, so that the
        op's call and its work are seen apart, even of parts that offer nothing to wait for. Such a run is slower.
    """

    def __init__(self, *, limit: int = LIMIT, annotate: bool = False, wait: Callable[[], None] | None = None) -> None:
        self._limit, self._annotate, self.wait = limit, annotate, wait
        self._lock = threading.Lock()
        self._rings: dict[str, _Ring] = {}
        self._ops: list[Op] = []
        self._known: dict[int, _Known] = {}
        self._session: Session | None = None
        self._blocking: dict[str, bool] = {}
        self._tokens: Tokens | None = None
        self._elsewhere: Any = None
        self._told: tuple[Span, ...] = ()
        self._untold = 0
        self._watchers: dict[str, Watcher] = {}
        self._names: dict[Any, str] = {}
        self._pending: deque[Sent] = deque()
        self._looking = threading.Lock()

    def __call__(self, rule: Rule) -> Rule:
        """As `around`."""
        return self.around(rule)

    def around(self, rule: Rule) -> Rule:
        """The rule, recorded; of those put around an op it is to be the innermost."""
        clock, known, pending = time.perf_counter, self._known, self._pending

        def recorded(session: Session, at: At, *operands: Any) -> Results:
            number, device, note = known.get(id(at.op)) or self._begin(session, at.op)
            start = clock()
            try:
                results = rule(session, at, *operands)
            except BaseException:
                note(number, at, start, clock())
                raise
            end = clock()
            if pending:
                self._look(end)
            if results is not None:
                note(number, at, start, end)
                if device:
                    self._watch(session, device, at, start, end, results)
            return results

        return self._annotated(recorded) if self._annotate else recorded

    def _annotated(self, rule: Rule) -> Rule:
        """The rule with an annotation around it, in a trace of `jax.profiler`."""

        def annotated(session: Session, at: At, *operands: Any) -> Results:
            with jax.profiler.TraceAnnotation(f"{at.op.id}/{at.step}"):
                return rule(session, at, *operands)

        return annotated

    def ended(self, session: Session) -> None:
        """Ask a trainer in another process what its device did, as long as it is there."""
        trainer, self._elsewhere = self._elsewhere, None
        if trainer is not None:
            self._told, self._untold = trainer.watched_calls()

    def failed(self, _: Session) -> None:
        """Behind a run that has failed, or was interrupted, watch no more. What was recorded until then is kept."""
        trainer, self._elsewhere = self._elsewhere, None
        if trainer is not None:
            with suppress(Exception):  # its process may be gone, or hang: what the run has failed with counts
                self._told, self._untold = trainer.watched_calls(_MOMENT_S)
        for watcher in self._watchers.values():
            watcher.stop()

    def recording(self, *, pipeline: str = "") -> Recording:
        """What was recorded, once the run is over; times are in seconds from its first op on."""
        session = self._session
        if session is None:
            return Recording("", pipeline, "measured", (), ())
        seen = [span for watcher in self._watchers.values() for span in watcher.close()]
        seen += self._told
        zero = min((row[3] for ring in self._rings.values() for row in ring.rows()), default=0.0)
        spans = tuple(_moved(span, zero) for span in seen)
        events = _held(self._events(zero, spans), session.plan)
        dropped = sum(max(0, ring.count - self._limit) for ring in self._rings.values())
        dropped += sum(watcher.dropped for watcher in self._watchers.values()) + self._untold
        lines = {op.id: line_of(op.loc) for op in self._ops if op.loc is not None}
        return Recording(
            session.plan.program.name,
            pipeline,
            "measured",
            events,
            spans,
            arrows_of(events, spans, session.plan),
            lines,
            dropped,
            f"jax {jax.__version__}, {jax.device_count()} x {jax.devices()[0].device_kind}",
        )

    @property
    def watching_s(self) -> float:
        """Processor time of the threads that watched the devices, in seconds, once the run is over."""
        return sum(watcher.cpu_s for watcher in self._watchers.values())

    def _begin(self, session: Session, op: Op) -> _Known:
        """Make room for an op that was not seen before, and for its lane."""
        with self._lock:
            if self._session is None:
                trainer = session.parts.trainer
                self._tokens = Tokens(trainer)
                self._names[_place(self._tokens.update) or TRAINER] = TRAINER
                self._session = session
                if self.wait is None and hasattr(type(trainer), "watch_calls"):
                    trainer.watch_calls()
                    self._elsewhere = trainer
            kind = kinds_of(session.plan.program)[op.kind]
            self._blocking[op.kind] = kind.blocking
            ring = self._rings.setdefault(op.lane, _Ring(self._limit))
            self._ops.append(op)
            found = (len(self._ops) - 1, _watched(kind), ring.note)
            self._known[id(op)] = found
            return found

    def _look(self, now: float) -> None:
        """Note what is found done by now: a call that has waited for it returns before a thread that waits wakes up."""
        pending = self._pending
        if not self._looking.acquire(blocking=False):
            return
        try:
            while pending and is_ready(pending[0].token):
                pending.popleft().by = now
        finally:
            self._looking.release()

    def _watch(self, session: Session, device: str, at: At, start: float, end: float, results: Any) -> None:
        """Have what a call has sent to a device watched."""
        tokens = self._tokens
        found = tokens.new(at.op.kind) if device == TRAINER and tokens is not None else _arrays(results)
        for what, token in found:
            self._sent(device, at, what, start, end, token)
        if self.wait is not None and not self._blocking[at.op.kind]:
            self.wait()
            if not found:
                self._sent(device, at, "", start, end, None)

    def _sent(self, device: str, at: At, what: str, start: float, end: float, token: Any) -> None:
        place = _place(token) or device
        name = self._names.get(place)
        if name is None:
            name = self._names[place] = device
        watcher = self._watchers.get(name)
        if watcher is None:
            with self._lock:
                watcher = self._watchers.setdefault(name, Watcher(name, self._limit))
        micro = at.rounds[-1] if at.rounds else None
        work = Sent(at.op, at.step, micro, what, start, end, token, done_by(token, end))
        if work.done is None and hasattr(token, "is_ready"):
            self._pending.append(work)
        watcher.sent(work)

    def _events(self, zero: float, spans: tuple[Span, ...]) -> tuple[Event, ...]:
        """The instances, each held up, for now, since its lane was done with the one before it."""
        done: dict[tuple[str, int, int | None], float] = {}
        for span in spans:
            key = (span.op, span.step, span.micro)
            done[key] = max(done.get(key, span.end), span.end)
        found = []
        for lane, ring in self._rings.items():
            before = None
            for number, step, micro, start, end in ring.rows():
                op, begin, stop = self._ops[number], start - zero, end - zero
                reached = begin if before is None else min(before, begin)
                late = max(stop, done.get((op.id, step, micro), stop))
                found.append(Event(op.id, op.kind, step, micro, lane, reached, begin, stop, late))
                before = stop
        return tuple(found)


def _watched(kind: OpKind) -> str:
    """Where a kind of op may send work: to the trainer's device wherever it calls the trainer."""
    return TRAINER if kind.device == TRAINER or kind.binds.startswith("trainer.") else kind.device


def _place(token: Any) -> Any:
    """The devices on which an array is; None of anything else."""
    devices = getattr(token, "devices", None)
    return frozenset(device.id for device in devices()) if callable(devices) else None


def _arrays(results: Any) -> list[tuple[str, Any]]:
    """The newest array on a device among the results of a call: of a micro-batch, the one that was added last."""
    for value in results:
        for held in (value, *reversed(tuple(getattr(value, "arrays", {}).values()))):
            if isinstance(held, jax.Array):
                return [("", held)]
    return []


def _held(events: tuple[Event, ...], plan: Plan) -> tuple[Event, ...]:
    """Events that were held up by what other lanes did; what lay in front of all others was no wait."""
    holding = {wait.after: events[wait.before].op for wait in lane_waits(events, plan)}
    return tuple(
        replace(event, held_by=holding[place]) if place in holding else replace(event, reached=event.start)
        for place, event in enumerate(events)
    )


def _moved(span: Span, zero: float) -> Span:
    return replace(span, issued=span.issued - zero, start=span.start - zero, end=span.end - zero)
