"""How long things take in virtual time: for each op, on the lane that issues it, on the way, and on its device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from steptrace.diag.simulation import SimulationSettingError
from steptrace.ir import Op

MOST_S = 1e30
"""No time is longer: periods and runs add many of them."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one instance of an op takes.

    Attributes:
      issue_s: seconds on the lane that issues it; for an op that calls no device, all of its time but ``work_s``.
      work_s: seconds on its device; for an op without a device, on its lane.
      ship_s: seconds on the link, from the call on, until its data is where the work is; the lane does not wait.
    """

    issue_s: float = 0.0
    work_s: float = 0.0
    ship_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("issue_s", "work_s", "ship_s"):
            seconds = getattr(self, name)
            if not (isinstance(seconds, int | float) and 0 <= seconds <= MOST_S):
                raise SimulationSettingError(f"{name}={seconds!r} is not a number of seconds from 0 to {MOST_S:g}")


FREE = Cost()
"""The cost of what takes no time."""

Varying = Callable[[Op, int, int, Cost], Cost]
"""Changes the cost of an instance: called with the op, the step, the micro-batch (0 outside loops) and the cost."""


def _as_stage(whole: Cost) -> Cost:
    return Cost(issue_s=whole.issue_s, ship_s=whole.ship_s)


def _as_staged(whole: Cost) -> Cost:
    return Cost(work_s=whole.work_s)


def _whole(whole: Cost) -> Cost:
    return whole


PARTS: Mapping[str, tuple[str, Callable[[Cost], Cost]]] = MappingProxyType(
    {
        "stage_fwd_bwd": ("fwd_bwd", _as_stage),
        "fwd_bwd_staged": ("fwd_bwd", _as_staged),
        "attempt_fwd_bwd": ("fwd_bwd", _whole),
        "attempt_staged": ("fwd_bwd", _as_staged),
        "apply_deferred_update": ("update", _whole),
        "fetch_metrics": ("get_metrics", _whole),
        "write_checkpoint": ("save_checkpoint", _whole),
        "transfer_weights": ("sync_weights", _whole),
    }
)
"""What the part of a law takes that has no cost of its own: of the whole op, that which the part does.

A stage ships, so it takes what the whole call takes before its work; the staged call has the work left. The parts that
are not here (a copy on the device, a poll) take no time unless they are given some.
"""


@dataclass(frozen=True, slots=True)
class Durations:
    """The costs of a program's ops.

    A cost is looked up by the id of the op, then by its kind, then, for the part of a law, by `PARTS`. So durations
    that were measured on a program as written serve every schedule of it.

    Attributes:
      costs: by id or kind.
      other: the cost of what is not among them.
      varying: changes the cost of single instances; None for none.
      firsts: by id or kind, the costs for the step's first micro-batch, where those are others.
    """

    costs: Mapping[str, Cost] = field(default_factory=lambda: MappingProxyType({}))
    other: Cost = FREE
    varying: Varying | None = None
    firsts: Mapping[str, Cost] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, op: Op, step: int, micro: int = 0) -> Cost:
        """The cost of an instance."""
        costs = {**self.costs, **self.firsts} if self.firsts and not micro else self.costs
        cost = costs[op.id] if op.id in costs else self._kind(op.kind, costs)
        return cost if self.varying is None else self.varying(op, step, micro, cost)

    def kind(self, name: str) -> Cost:
        """The cost of a kind of op."""
        return self._kind(name, self.costs)

    def _kind(self, name: str, costs: Mapping[str, Cost]) -> Cost:
        if name in costs:
            return costs[name]
        if name in PARTS:
            whole, part = PARTS[name]
            return part(costs.get(whole, self.other))
        return self.other
