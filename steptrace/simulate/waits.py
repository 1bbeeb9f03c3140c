"""What the lanes of a run have waited for, each other and devices: of a run in virtual time, or of a recorded one."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from steptrace.lower import Hold, Plan
from steptrace.simulate.record import TRAINER, TRAINS, Event, Span

FOR_TRAINER = frozenset(
    {
        "get_metrics",
        "start_metrics",
        "fetch_metrics",
        "sync_weights",
        "copy_weights",
        "transfer_weights",
        "save_checkpoint",
        "snapshot_checkpoint",
        "apply_deferred_update",
        "settle",
    }
)
"""Kinds of ops whose call first waits for the trainer's device, and then does what is its own."""

AT_THE_END = TRAINS | {"stage_fwd_bwd"}
"""Kinds of ops whose call does what is its own, and then waits for the trainer's device, if at all."""

FOR_ROLLOUT = frozenset({"take", "stream_mb"})
"""Kinds of ops whose call first waits for groups."""

_NEAR, _NEAR_S = 0.05, 2e-4
"""A call that waits at its end returns this soon behind the work: a share of the call, but at least so many seconds."""


@dataclass(frozen=True, slots=True)
class LaneWait:
    """An op that waited for another lane.

    Attributes:
      before: place among the events of what it waited for.
      after: place among the events of what waited.
      why: the reason in a word, and what it is about.
    """

    before: int
    after: int
    why: str


@dataclass(frozen=True, slots=True)
class DeviceWait:
    """A call that waited for work of a device.

    Attributes:
      span: place among the spans of the work.
      event: place among the events of the call.
      side: ``first`` where the call does what is its own behind the wait, ``last`` where it does so in front of it.
    """

    span: int
    event: int
    side: Literal["first", "last"]


def lane_waits(events: Sequence[Event], plan: Plan) -> tuple[LaneWait, ...]:
    """For each event that was held up, the instance on another lane whose end it was held up by.

    Args:
      events: the instances of a run, in any order.
      plan: what they ran.
    """
    at: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, event in enumerate(events):
        at[event.op, event.step].append(place)
    found = []
    for place, event in enumerate(events):
        if event.held_s <= 0:
            continue
        holds = plan.holds.get(event.op, ())
        ended = [(events[b].end, b, hold.why) for hold in holds for b in _before(event, hold, at, events)]
        late = max(((end, b, why) for end, b, why in ended if end > event.reached), default=None)
        if late is not None:
            found.append(LaneWait(late[1], place, late[2]))
    return tuple(found)


def _before(event: Event, hold: Hold, at: Mapping[tuple[str, int], list[int]], events: Sequence[Event]) -> list[int]:
    """The instances that a hold names, on lanes other than the event's."""
    wanted = None if hold.micro is None or event.micro is None else event.micro - hold.micro
    return [
        place
        for place in at.get((hold.before, event.step - hold.distance), ())
        if events[place].lane != event.lane and (wanted is None or events[place].micro in (wanted, None))
    ]


def device_waits(events: Sequence[Event], spans: Sequence[Span]) -> tuple[DeviceWait, ...]:
    """For each call that waited for a device, the work whose end it waited for last."""
    ends: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for place, span in enumerate(spans):
        ends[span.device].append((span.end, place))
    for sorted_ends in ends.values():
        sorted_ends.sort()
    return tuple(_device_waits(events, spans, ends))


def _device_waits(
    events: Sequence[Event], spans: Sequence[Span], ends: Mapping[str, list[tuple[float, int]]]
) -> Iterator[DeviceWait]:
    for place, event in enumerate(events):
        device = "rollout" if event.kind in FOR_ROLLOUT else TRAINER
        if event.kind not in FOR_TRAINER | FOR_ROLLOUT | AT_THE_END or event.end <= event.start:
            continue
        known = ends.get(device, [])
        slack = 1e-9 * abs(event.end)
        index = bisect_right(known, (event.end + slack, len(spans)))
        while index and not _before_call(spans[known[index - 1][1]], event, slack):
            index -= 1
        if not index:
            continue
        end, span = known[index - 1]
        if end <= event.start:
            continue
        if event.kind not in AT_THE_END:
            yield DeviceWait(span, place, "first")
        elif event.end - end <= max(_NEAR_S, _NEAR * (event.end - event.start)):
            yield DeviceWait(span, place, "last")


def _before_call(span: Span, event: Event, slack: float) -> bool:
    """Whether work was sent before a call was made: its own, and what was sent behind it, it does not wait for."""
    own = (span.op, span.step, span.micro) == (event.op, event.step, event.micro)
    return not own and span.issued <= event.start + slack
