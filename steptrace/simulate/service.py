"""A rollout service with room for so many requests at a time."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from random import Random

from steptrace.diag.simulation import SimulationSettingError
from steptrace.simulate.spread import Spread

MOST_REQUESTS = 1_000_000
"""So many requests of a step, and places for them, are followed one by one; no more."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A service that samples.

    Attributes:
      requests: how many a step sends, all at once.
      capacity: how many are served at a time; the others wait, in the order in which they were sent.
      spread: how requests differ in length.
      seed: of the draws.
    """

    requests: int
    capacity: int
    spread: Spread = field(default_factory=Spread)
    seed: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.requests <= MOST_REQUESTS and 1 <= self.capacity <= MOST_REQUESTS):
            message = f"{self.requests} requests, {self.capacity} at a time: both count from 1 to {MOST_REQUESTS}"
            raise SimulationSettingError(message)

    @property
    def turns(self) -> int:
        """How many times over the service is full with the requests of a step, if nothing else is being served."""
        return math.ceil(self.requests / self.capacity)


@dataclass
class Service:
    """The service in a run: when each of its places is free.

    Attributes:
      rollout: what it is.
      ends: by step, when its requests are served, in order.
    """

    rollout: Rollout
    ends: dict[int, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._free = [0.0] * self.rollout.capacity

    def serve(self, step: int, ready: float, request_s: float) -> tuple[float, float]:
        """Send the requests of a step; gives when the first one is begun, and when all are served.

        Args:
          step: the step.
          ready: the moment from which they can be served.
          request_s: seconds that a request takes.
        """
        rng = Random(f"{self.rollout.seed} rollout {step}")
        ends, begun = [], math.inf
        for _ in range(self.rollout.requests):
            start = max(ready, heapq.heappop(self._free))
            end = start + request_s * self.rollout.spread.factor(rng)
            heapq.heappush(self._free, end)
            ends.append(end)
            begun = min(begun, start)
        self.ends[step] = tuple(sorted(ends))
        return begun, self.ends[step][-1]

    def arrived(self, step: int, share: float) -> float:
        """When that share of a step's requests is served; the shortest come first."""
        ends = self.ends[step]
        return ends[max(0, min(len(ends), math.ceil(share * len(ends) - 1e-9)) - 1)]
