"""The values of a run by instance: a table for each step that is in flight, and what lasts beyond a step."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any


class Frame:
    """The values of one step.

    Attributes:
      step: the step.
      values: by slot; None for what is not made yet.
      rounds: values of a loop's rounds by micro-batch, then by slot, where lanes share or shift them.
      counts: by loop, how many micro-batches it has, once that is known.
      seconds: by lane, time spent in each kind of op.
    """

    __slots__ = ("counts", "rounds", "seconds", "step", "values")

    def __init__(self, step: int, slots: int) -> None:
        self.step = step
        self.values: list[Any] = [None] * slots
        self.rounds: dict[int, dict[int, Any]] = {}
        self.counts: dict[str, int] = {}
        self.seconds: dict[str, dict[str, float]] = {}


class Frames:
    """The frames of a run; safe to use from its lanes.

    Args:
      slots: slot of each value by name.
      kept: names of the values that are made before step 0 and last.
      carries: initial values of what is carried from step to step.
    """

    def __init__(self, slots: Mapping[str, int], kept: frozenset[str], carries: Mapping[str, float]) -> None:
        self._slots = slots
        self._names = kept
        self._initial = dict(carries)
        self._carried: dict[int, dict[str, float]] = {}
        self._live: dict[int, Frame] = {}
        self._adding = threading.Lock()
        self.before = Frame(-1, len(slots))
        self.kept_slots = frozenset(slots[name] for name in kept)

    def at(self, step: int) -> Frame:
        """The frame of a step, made when it is first asked for."""
        frame = self._live.get(step)
        if frame is not None:
            return frame
        with self._adding:
            return self._live.setdefault(step, Frame(step, len(self._slots)))

    @property
    def live(self) -> tuple[int, ...]:
        """The steps in flight, in order."""
        return tuple(sorted(self._live))

    def oldest(self, default: int) -> int:
        """The first step in flight."""
        return min(tuple(self._live), default=default)

    def carry(self, name: str, step: int) -> float:
        """What ``step`` reads of a carried value: as the step before has set it."""
        frame = self._live.get(step - 1)
        if frame is not None:
            return float(frame.values[self._slots[name]])
        return self._carried.get(step - 1, self._initial)[name]

    def carries(self, step: int) -> dict[str, float]:
        """All carried values as ``step`` reads them."""
        return {name: self.carry(name, step) for name in self._initial}

    def restore_carries(self, step: int, carries: Mapping[str, float]) -> None:
        """What ``step`` will read."""
        self._carried = {step - 1: dict(carries)}

    def retire(self, step: int) -> Frame:
        """Let go of a step that every lane is past; what it carries on is kept for the next one."""
        frame = self.at(step)
        carried = {name: float(frame.values[self._slots[name]]) for name in self._initial}
        self._carried = {step: carried}
        self._live.pop(step, None)
        return frame

    def value(self, name: str, step: int) -> Any:
        """A value of a step, or one that lasts; None when it is not made."""
        slot = self._slots[name]
        if name in self._names:
            return self.before.values[slot]
        frame = self._live.get(step)
        return None if frame is None else frame.values[slot]

    def put(self, name: str, step: int, value: Any) -> None:
        """Set a value of a step, or one that lasts."""
        frame = self.before if name in self._names else self.at(step)
        frame.values[self._slots[name]] = value
