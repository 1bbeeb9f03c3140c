"""How far each lane has come: what other lanes wait for, and how a run that failed comes to its end."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from steptrace.diag import Note
from steptrace.diag.running import StalledRunError
from steptrace.ir import Op

Point = tuple[int, float]
"""A step and a micro-batch; all of the step with `WHOLE`."""

WHOLE = math.inf

_LOOK_S = 1.0
"""How often a lane that waits looks by itself, in seconds."""

_LOG = logging.getLogger("steptrace")


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a run.

    Attributes:
      error: the error.
      step: the step whose op it came from.
      lane: the lane.
    """

    error: BaseException
    step: int
    lane: str


class Progress:
    """Points that lanes have passed, by op; safe to use from all of them.

    A lane passes the place of an op whether or not the op ran there. The first failure, at step j, lets the lanes go
    on with steps before j, which need nothing of it, and stops each before its first op of step j or a later one.

    Args:
      ids: the ops that others wait for.
      first: the first step; those before it are passed.
      stall_s: how long an op may wait, in seconds.
    """

    def __init__(self, ids: Iterable[str], first: int, stall_s: float) -> None:
        self._passed: dict[str, Point] = dict.fromkeys(ids, (first - 1, WHOLE))
        self._lanes: dict[str, int] = {}
        self._waiting: dict[str, str] = {}
        self._stall_s = stall_s
        self._changed = threading.Condition()
        self.failure: Failure | None = None
        self.limit: float = math.inf
        self.watched: frozenset[str] = frozenset(self._passed)

    def passed(self, id: str, point: Point) -> None:
        """Note that a lane is past a place."""
        with self._changed:
            self._passed[id] = point
            self._changed.notify_all()

    def is_past(self, id: str, point: Point) -> bool:
        """Whether a place was passed."""
        return self._passed[id] >= point

    def wait(self, id: str, point: Point, step: int, who: Op, why: str) -> bool:
        """Wait until a place is passed; False when the run ends before ``step``.

        Raises:
          StalledRunError: it took too long; names what every lane waits for.
        """
        if self._passed[id] >= point:
            return step < self.limit
        given_up = time.monotonic() + self._stall_s
        with self._changed:
            self._waiting[who.lane] = f"`{who.id}` of step {step} waits for `{id}` of {_named(point)} ({why})"
            while self._passed[id] < point and step < self.limit:
                left = given_up - time.monotonic()
                if left <= 0:
                    raise self._stalled(who, step)
                # An interrupt that is handled on this thread, between the look and the wait, wakes nobody.
                self._changed.wait(min(left, _LOOK_S))
            del self._waiting[who.lane]
            return step < self.limit

    def lane_done(self, lane: str, step: int) -> None:
        """Note that a lane is past all of a step."""
        self._lanes[lane] = step

    def all_past(self, lanes: Iterable[str], first: int) -> int:
        """The last step that every lane is past."""
        return min(self._lanes.get(lane, first - 1) for lane in lanes)

    def fail(self, error: BaseException, step: int, lane: str) -> None:
        """Note a failure at a step; one that is no `Exception`, an interrupt say, stops every lane at once."""
        with self._changed:
            if self.failure is None:
                self.failure = Failure(error, step, lane)
            elif self.failure.error is not error:
                self.failure.error.add_note(f"afterwards, on lane {lane}: {type(error).__name__}: {error}")
            self.limit = min(self.limit, step if isinstance(error, Exception) else -math.inf)
            self._changed.notify_all()

    def stop(self, error: BaseException) -> None:
        """Stop every lane at the end of its current op."""
        self.fail(error, 0, "")

    def _stalled(self, who: Op, step: int) -> StalledRunError:
        notes = tuple(Note(f"lane {lane}: {what}") for lane, what in sorted(self._waiting.items()))
        message = f"`{who.id}` of step {step} has waited for {self._stall_s:g} s on lane {who.lane}"
        # The run ends once every lane does, and one of them may be in a call that never returns.
        _LOG.error("%s", "; ".join([message, *(note.text for note in notes)]))
        return StalledRunError(message, loc=who.loc, notes=notes, help="raise stall_s, or see what the others do")


def _named(point: Point) -> str:
    step, micro = point
    return f"step {step}" if micro == WHOLE else f"step {step}, micro-batch {micro:g}"


Watch = Callable[[int, Mapping[str, float]], None]
"""Told of each step that every lane is past: the step, and the time of each kind of op in seconds."""
