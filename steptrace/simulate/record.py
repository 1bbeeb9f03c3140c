"""What is left of a run in virtual time: every instance with its times, what each device did, and figures of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median

TRAINER = "trainer"
"""The device of the actor's training."""

TRAINS = frozenset({"fwd_bwd", "fwd_bwd_staged", "attempt_fwd_bwd", "attempt_staged"})
"""Kinds of ops whose work is the forward and backward of a micro-batch."""


@dataclass(frozen=True, slots=True)
class Event:
    """An instance of an op, as its lane saw it.

    Attributes:
      op, kind: id and kind of the op.
      step: the step; -1 before step 0, and the number of steps behind the last.
      micro: the micro-batch, None outside loops over them.
      lane: who issued it.
      reached: when its lane came to it, in seconds.
      start: when it had all that it waits for of other lanes.
      end: when its lane went on.
      done: when its work on a device was finished; ``end`` where there is none.
      held_by: what it waited for longest of another lane, "" when it waited for nothing.
    """

    op: str
    kind: str
    step: int
    micro: int | None
    lane: str
    reached: float
    start: float
    end: float
    done: float
    held_by: str = ""

    @property
    def held_s(self) -> float:
        """Seconds that its lane was held up in front of it."""
        return self.start - self.reached

    def __str__(self) -> str:
        return f"{self.op}@{self.step}" if self.micro is None else f"{self.op}@({self.step}, {self.micro})"


@dataclass(frozen=True, slots=True)
class Span:
    """Work of a device.

    Attributes:
      device: the device; ``link`` for what is on its way to one.
      op, kind: id and kind of the op that sent it.
      step: its step.
      micro: its micro-batch, None outside loops over them.
      issued: when it was sent off, in seconds.
      start, end: when the device worked on it.
      what: "" for the op's own work; what else a trainer did, ``rerun`` say.
    """

    device: str
    op: str
    kind: str
    step: int
    micro: int | None
    issued: float
    start: float
    end: float
    what: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """A run in virtual time.

    Attributes:
      steps: how many steps were run.
      events: every instance that ran, by its end, then in the order of lanes.
      spans: what the devices did, by device and in the order of issue.
      stages: for each micro-batch that was staged, its step.
      device_waits: by the step whose border it is, seconds that the device still had to do when the next step's first
        micro-batch was in place, as the trainer told; a step without a stage has none.
      latched: the step at whose border staging was switched off because it hid nothing, None when it was not.
      remarks: why staging was switched off.
      calls: the trainer's calls in their order: ``fwd_bwd 0.1`` for step 0, micro-batch 1; staged calls as whole ones.
      trained: what the trainer says that its parameters hold; equal runs have equal ones.
      seconds: when everything was over.
    """

    steps: int
    events: tuple[Event, ...]
    spans: tuple[Span, ...]
    stages: tuple[int, ...]
    device_waits: dict[int, float]
    latched: int | None
    remarks: tuple[str, ...]
    calls: tuple[str, ...]
    trained: str
    seconds: float

    def of(self, op: str) -> tuple[Event, ...]:
        """The instances of an op, in order."""
        return tuple(event for event in self.events if event.op == op)

    def on(self, device: str) -> tuple[Span, ...]:
        """What a device did, in order."""
        return tuple(span for span in self.spans if span.device == device)

    def training(self, step: int) -> tuple[Span, ...]:
        """The work of a step's micro-batches, reruns of them included."""
        return tuple(
            span for span in self.on(TRAINER) if span.step == step and (span.kind in TRAINS or span.what == "rerun")
        )

    def step_s(self) -> dict[int, float]:
        """By step, from the start of its first micro-batch's work to that of the next step's, in seconds.

        Steps without a micro-batch, and the last one, have none.
        """
        starts = {step: spans[0].start for step in range(self.steps) if (spans := self.training(step))}
        return {step: starts[step + 1] - start for step, start in starts.items() if step + 1 in starts}

    def boundary_idle_s(self) -> dict[int, float]:
        """By step, how long the trainer's device was idle between its last micro-batch and the next step's first one.

        Updates, copies and reruns in between count as work.
        """
        idle = {}
        spans = self.on(TRAINER)
        for step in range(self.steps - 1):
            mine, following = self._attempts(step), self._attempts(step + 1)
            if mine and following:
                idle[step] = idle_between(spans, mine[-1].end, following[0].start)
        return idle

    def boundary_s(self) -> dict[int, float]:
        """By step, from the end of its last micro-batch's work to the start of the next step's first, in seconds."""
        gaps = {}
        for step in range(self.steps - 1):
            mine, following = self._attempts(step), self._attempts(step + 1)
            if mine and following:
                gaps[step] = following[0].start - mine[-1].end
        return gaps

    def idle_s(self) -> dict[int, float]:
        """By step, how long the trainer's device was idle from the start of its first micro-batch to the next's."""
        spans = self.on(TRAINER)
        starts = {step: mine[0].start for step in range(self.steps) if (mine := self._attempts(step))}
        return {
            step: idle_between(spans, start, starts[step + 1]) for step, start in starts.items() if step + 1 in starts
        }

    def busy_fraction(self, device: str = TRAINER) -> float:
        """Share of the time from a device's first work to its last that it worked; 0 when it did none."""
        spans = self.on(device)
        if not spans:
            return 0.0
        whole = max(span.end for span in spans) - spans[0].start
        return sum(span.end - span.start for span in spans) / whole if whole else 1.0

    def hold_ups(self) -> dict[tuple[str, str], float]:
        """By op, and what it waited for longest on another lane: seconds in all, the longest first."""
        found: dict[tuple[str, str], float] = defaultdict(float)
        for event in self.events:
            if event.held_s > 0:
                found[event.op, event.held_by] += event.held_s
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _attempts(self, step: int) -> tuple[Span, ...]:
        return tuple(span for span in self.on(TRAINER) if span.step == step and span.kind in TRAINS and not span.what)


def idle_between(spans: Iterable[Span], begin: float, end: float) -> float:
    """Seconds between two moments in which none of a device's spans, in their order, is under way."""
    idle, at = 0.0, begin
    for start, stop in _clipped(spans, begin, end):
        idle += max(0.0, start - at)
        at = max(at, stop)
    return idle + max(0.0, end - at)


def _clipped(spans: Iterable[Span], begin: float, end: float) -> Iterator[tuple[float, float]]:
    for span in spans:
        if span.end > begin and span.start < end:
            yield max(span.start, begin), min(span.end, end)


def steady(by_step: dict[int, float], *, skip: int = 1) -> float:
    """The median over the steps behind the first ``skip``; of all, when there are no others; 0 for no step."""
    late = [value for step, value in sorted(by_step.items()) if step >= skip]
    return median(late or by_step.values()) if by_step else 0.0
