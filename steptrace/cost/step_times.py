"""How step times are spread, from runs in virtual time with durations that are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from steptrace.cost.file import DISPATCH, Costs
from steptrace.cost.judged import Judged
from steptrace.simulate import Durations, Spread, simulate, varying
from steptrace.simulate.durations import Varying
from steptrace.simulate.spread import Straggling

QUANTILES = (0.05, 0.5, 0.95, 0.99)
"""The quantiles of step times that are told."""

_NONE: Straggling = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The step times of runs that have settled.

    Attributes:
      seconds: all of them, sorted.
      mean_s: the seconds of the runs over the number of their steps.
      period_s: the period for durations that are fixed.
      runs: how many runs there were.
      steps: how many steps of each were looked at.
    """

    seconds: tuple[float, ...]
    mean_s: float
    period_s: float
    runs: int
    steps: int

    def quantile(self, share: float) -> float:
        """The step time that so large a share of steps does not exceed."""
        return self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]

    @property
    def stretch(self) -> float:
        """The mean as a multiple of the period: what spread durations cost, though their means are the same."""
        return self.mean_s / self.period_s if self.period_s else 1.0


def step_times(
    found: Judged,
    costs: Costs,
    *,
    spreads: Mapping[str, Spread] = MappingProxyType({}),
    straggling: Straggling = _NONE,
    runs: int = 20,
    steps: int = 40,
    seed: int = 0,
) -> StepTimes:
    """Run a schedule in virtual time, with other draws each time.

    Args:
      found: the schedule.
      costs: what its ops take, how that is spread, and how much the rollout serves at a time.
      spreads: how that is spread besides, by the id or kind of an op, `steptrace.simulate.ALL` for all others.
      straggling: instances that take longer without a draw.
      runs: how many runs.
      steps: how many steps of each, once it has settled.
      seed: of the draws.
    """
    usual = costs.durations()
    ops = usual.costs if costs.rollout is None else {**usual.costs, DISPATCH: costs.ops.get(DISPATCH, usual.other)}
    first, seconds, whole = found.period.first, [], 0.0
    for number in range(runs):
        varied = varying({**spreads, **costs.spreads}, seed * 10_007 + number, straggling)
        durations = Durations(ops, usual.other, _but_requests(varied, costs), usual.firsts)
        rollout = None if costs.rollout is None else replace(costs.rollout, seed=seed * 10_007 + number)
        run = simulate(
            found.period.plan, durations, micro_batches=found.micro_batches, steps=first + steps + 1, rollout=rollout
        )
        mine = [taken for step, taken in run.step_s().items() if first <= step < first + steps]
        seconds += mine
        whole += sum(mine)
    return StepTimes(tuple(sorted(seconds)), whole / max(1, len(seconds)), found.period.seconds, runs, steps)


def _but_requests(varied: Varying, costs: Costs) -> Varying:
    """The same for all ops but the dispatch, whose requests the service draws one by one."""
    if costs.rollout is None:
        return varied
    return lambda op, step, micro, cost: cost if op.kind == DISPATCH else varied(op, step, micro, cost)
