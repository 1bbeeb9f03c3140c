"""Where lanes have come to, in virtual time: what they wait for of one another."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

Point = tuple[int, float]
"""A step and a micro-batch; all of the step with `WHOLE`."""

WHOLE = math.inf


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a lane waits for: another one to be past a place.

    Attributes:
      id: the op, or loop, whose place it is.
      point: how far.
      who: the instance that waits, in words.
      why: the reason.
    """

    id: str
    point: Point
    who: str
    why: str

    def __str__(self) -> str:
        step, micro = self.point
        where = f"step {step}" if micro == WHOLE else f"step {step}, micro-batch {micro:g}"
        return f"{self.who} waits for `{self.id}` of {where} ({self.why})"


class Places:
    """Points that lanes have passed, by op; a lane passes the place of an op whether or not the op ran there.

    Args:
      ids: the ops and loops that others wait for.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._passed: dict[str, Point] = dict.fromkeys(ids, (-1, WHOLE))
        self.changed: list[str] = []

    def watches(self, id: str) -> bool:
        """Whether anyone waits for that place."""
        return id in self._passed

    def passed(self, id: str, point: Point) -> None:
        """Note that a lane is past a place."""
        if id in self._passed:
            self._passed[id] = point
            self.changed.append(id)

    def is_past(self, wanted: Wanted) -> bool:
        """Whether what is waited for has happened."""
        return self._passed[wanted.id] >= wanted.point
