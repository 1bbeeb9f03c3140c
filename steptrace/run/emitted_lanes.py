"""Where the lanes of an emitted loop meet."""

from __future__ import annotations

import math
import threading
from collections import defaultdict

from steptrace.diag.running import StalledRunError

Point = tuple[int, float]
"""A step and a micro-batch; all of the step with `WHOLE`."""

WHOLE = math.inf


class StoppedLaneError(Exception):
    """Ends a lane of a run that has failed elsewhere."""


class Meeting:
    """Points that lanes are past, by op; safe to use from all of them.

    Args:
      stall_s: how long a lane may wait, in seconds.

    Attributes:
      failure: the first error of a lane, which ends every other one at its next turn or wait.
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._passed: dict[str, Point] = defaultdict(lambda: (-1, WHOLE))
        self._done: dict[str, int] = {}
        self._changed = threading.Condition()
        self.failure: BaseException | None = None

    def signal(self, id: str, point: Point) -> None:
        """Note that a lane is past a place."""
        with self._changed:
            self._passed[id] = point
            self._changed.notify_all()

    def wait(self, id: str, point: Point) -> None:
        """Wait until a lane is past a place.

        Raises:
          StoppedLaneError: the run has failed.
          StalledRunError: it took too long.
        """
        with self._changed:
            there = self._changed.wait_for(lambda: self.failure is not None or self._passed[id] >= point, self._stall_s)
        self.check()
        if not there:
            me = threading.current_thread().name
            raise StalledRunError(f"{me} has waited for `{id}` of step {point[0]} for {self._stall_s:g} s")

    def check(self) -> None:
        """Raise `StoppedLaneError` when the run has failed."""
        if self.failure is not None:
            raise StoppedLaneError

    def fail(self, error: BaseException) -> None:
        """Note an error; the first one is kept."""
        with self._changed:
            if self.failure is None:
                self.failure = error
            self._changed.notify_all()

    def done(self, lane: str, step: int) -> None:
        """Note that a lane is past all of a step."""
        self._done[lane] = step

    def past(self, lanes: int) -> int:
        """The last step that so many lanes are past."""
        done = [*self._done.values()]
        return min(done) if len(done) == lanes else -1
