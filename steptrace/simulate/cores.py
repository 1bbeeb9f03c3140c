"""The cores of the driver's machine, which the lanes share while they work and not while they wait."""

from __future__ import annotations

from steptrace.diag.simulation import SimulationSettingError


class Wait(float):
    """Seconds in which a lane waits, and needs no core."""


class Cores:
    """Lanes at work take turns in short slices: with more lanes than cores each is slowed by the same share.

    Args:
      count: how many cores there are; None for one for each lane.

    Raises:
      SimulationSettingError: there is no core.
    """

    def __init__(self, count: int | None) -> None:
        if count is not None and count < 1:
            raise SimulationSettingError(f"cores={count!r}: lanes need one at least")
        self._count = count
        self._left: dict[int, float] = {}
        self._since = 0.0

    def shared(self, seconds: float) -> bool:
        """Whether these seconds of a lane depend on the other lanes."""
        return self._count is not None and seconds > 0 and not isinstance(seconds, Wait)

    def begin(self, lane: int, seconds: float, now: float) -> None:
        """Let a lane work for so long, if it has a core for itself."""
        self._advance(now)
        self._left[lane] = seconds

    def next(self) -> tuple[float, int] | None:
        """When the next lane is done with its work, and which; None while none works."""
        if not self._left:
            return None
        lane = min(self._left, key=lambda lane: (self._left[lane], lane))
        return self._since + max(0.0, self._left[lane]) / self._rate(), lane

    def end(self, lane: int, now: float) -> None:
        """A lane is done with its work."""
        self._advance(now)
        del self._left[lane]

    def _rate(self) -> float:
        return min(1.0, (self._count or len(self._left)) / len(self._left))

    def _advance(self, now: float) -> None:
        if self._left:
            done = (now - self._since) * self._rate()
            self._left = {lane: left - done for lane, left in self._left.items()}
        self._since = now
