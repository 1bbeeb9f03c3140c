"""What happens in a run as a graph: events, and what each of them comes after, by how much."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

WAITS = 1000
"""Events of an instance have numbers from 1 on; the waits of its lane in front of it, numbers above this."""


class Moment(NamedTuple):
    """A point in time: so many seconds after an event."""

    event: int
    later_s: float = 0.0

    def plus(self, seconds: float) -> Moment:
        """The moment that much later."""
        return Moment(self.event, self.later_s + seconds) if seconds else self


class Name(NamedTuple):
    """Which event it is, whatever the step.

    Attributes:
      op: id of the op, or of the loop, it belongs to.
      rounds: the rounds of the loops around it.
      part: its number among the events of the instance.
      where: lane, device or link that is busy up to it.
    """

    op: str
    rounds: tuple[int, ...]
    part: int
    where: str


@dataclass
class Events:
    """The events of a run that was walked through without a clock.

    Attributes:
      names: of each event.
      steps: of each event, the step it belongs to.
      after: of each event, the moments that it comes after; it happens at the latest of them.
      sends: by device, what it was sent, in the order in which lanes were walked.
      ends: of each instance, by op, step and rounds: the moment at which its lane goes on, and that at which its work
        on a device is done.
    """

    names: list[Name] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    after: list[list[Moment]] = field(default_factory=list)
    sends: dict[str, list[Send]] = field(default_factory=dict)
    ends: dict[tuple[str, int, tuple[int, ...]], tuple[Moment, Moment]] = field(default_factory=dict)

    def add(self, name: Name, step: int, after: list[Moment]) -> int:
        """A new event."""
        self.names.append(name)
        self.steps.append(step)
        self.after.append(after)
        return len(self.names) - 1

    def in_order(self, order: Mapping[SendKey, int], by_step: Set[str] = frozenset()) -> None:
        """Let each device do one thing after the other; to be asked for once, behind the walk.

        A device does what one lane sends it as it is sent. One that several lanes send work to is left without an
        order where none is given.

        Args:
          order: the place of each piece of work in the order of a run, of the devices that have it.
          by_step: the devices that do it step by step, whatever it waits for on the same device.
        """
        ordered = {device for device, *_ in order}
        for device, sends in self.sends.items():
            if device in ordered:
                sends.sort(key=lambda send: order.get(send.key, len(order)))
            elif device in by_step:
                mine = {send.event for send in sends}
                sends.sort(key=lambda send: self.steps[send.event])
                for send in sends:
                    self.after[send.event] = [one for one in self.after[send.event] if one.event not in mine]
            elif len({send.lane for send in sends}) > 1:
                continue
            for before, send in pairwise(sends):
                self.after[send.event].append(Moment(before.event, send.work_s))

    def times(self) -> list[float]:
        """When each event happens in a run from second 0 on, in seconds; the graph has no circle."""
        known: list[float | None] = [None] * len(self.names)
        for start in range(len(known)):
            stack = [start]
            while stack:
                at = stack[-1]
                open_ = [moment.event for moment in self.after[at] if known[moment.event] is None]
                if open_ and known[at] is None:
                    stack += open_
                    continue
                stack.pop()
                if known[at] is None:
                    moments = ((known[event] or 0.0) + later for event, later in self.after[at])
                    known[at] = max(moments, default=0.0)
        return [time or 0.0 for time in known]


SendKey = tuple[str, str, int, int | None, str]
"""Work of a device: the device, the op, the step, the micro-batch, and what it is where it is not the op's own."""


@dataclass(frozen=True, slots=True)
class Send:
    """Work that a device was sent: the event of its end, and the lane that sent it."""

    key: SendKey
    event: int
    work_s: float
    lane: str
