"""How durations are spread in virtual time: around what an op takes, and now and then far above it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from steptrace.diag.simulation import SimulationSettingError
from steptrace.ir import Op
from steptrace.simulate.durations import Cost, Varying

ALL = "*"
"""The name under which the spread of every op without one of its own stands."""

Straggling = Mapping[tuple[str, int, int], float]
"""Instances that take so many times as long: by op, step and micro-batch (0 outside loops)."""


MOST_TIMES = 1e6
"""No deviation and no straggler is more times what an op takes."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How an instance differs from what its op takes.

    Attributes:
      deviation: the standard deviation, as a share of what the op takes; log-normal, so that nothing is below 0, and
        what it takes stays the mean.
      chance: how likely an instance is to straggle.
      times: how many times as long it takes then.
    """

    deviation: float = 0.0
    chance: float = 0.0
    times: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.deviation <= MOST_TIMES and 0 <= self.chance <= 1 and 0 <= self.times <= MOST_TIMES):
            limits = f"shares and times from 0 to {MOST_TIMES:g}, and a chance up to 1"
            raise SimulationSettingError(f"{self} is no spread: {limits}")

    def factor(self, rng: Random) -> float:
        """How many times as long as the op an instance takes."""
        width = math.sqrt(math.log1p(self.deviation**2))
        usual = rng.lognormvariate(-(width**2) / 2, width) if width else 1.0
        return usual * (self.times if self.chance and rng.random() < self.chance else 1.0)

    @property
    def mean(self) -> float:
        """The mean of the factor."""
        return 1.0 + self.chance * (self.times - 1.0)


def varying(spreads: Mapping[str, Spread], seed: int = 0, straggling: Straggling = MappingProxyType({})) -> Varying:
    """What changes the cost of each instance; the same seed changes each in the same way, whatever the schedule.

    Args:
      spreads: by the id or the kind of an op, `ALL` for the others.
      seed: of the draws.
      straggling: instances that take longer without a draw.
    """

    def varied(op: Op, step: int, micro: int, cost: Cost) -> Cost:
        spread = spreads.get(op.id) or spreads.get(op.kind) or spreads.get(ALL)
        source = op.origin.op if op.origin is not None else op.id
        times = straggling.get((op.id, step, micro), 1.0)
        if spread is not None:
            times *= spread.factor(Random(f"{seed} {source} {step} {micro}"))
        return cost if times == 1.0 else Cost(cost.issue_s * times, cost.work_s * times, cost.ship_s * times)

    return varied
