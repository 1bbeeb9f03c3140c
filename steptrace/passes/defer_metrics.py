"""The pass ``defer-metrics``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from steptrace.check.legal import legal_places
from steptrace.ir.program import Node, ops_of
from steptrace.ir.verify.runs import Role
from steptrace.motion import Schedule, sink, split
from steptrace.passes.base import declined
from steptrace.passes.roles import leaving, splittable, with_role
from steptrace.passes.room import Chain, chains_to, no_room


@dataclass(frozen=True)
class DeferMetrics:
    """Fetches the metrics of a step late, when the save, the weight sync and the commit have been sent off.

    Hides the wait for the update and the copy to the host behind what follows the update: the metrics are set aside
    on the device (which empties the buffer for the next step), and fetched just above the first op that reads them.
    Each record keeps its step, so the log may lag and its labels do not. With ``send-ahead``, the fetch waits while
    the next step's first micro-batch is computed.

    Holds in memory one step's metrics on the device.

    Declines when the next step's training depends on the metrics: a KL coefficient that adapts to them, say, must
    be known before the first micro-batch is sent; a callback without declared effects counts as such a reader. It
    declines too when a user's op whose writes stay (in a channel, or a resource of the user's) follows directly: the
    fetch is where a failed update ends the step, and stays above such an op.
    """

    name: ClassVar[str] = "defer-metrics"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        done = split(schedule, splittable(schedule.program, "start-fetch").id, law="start-fetch")
        fetch, schedule = next(iter(done.forwarding.values()))[-1], done.schedule
        calls = with_role(schedule.program, Role.ACCUMULATE)
        needing = chains_to(schedule.reference, (fetch,), 1)
        for call in calls:
            if call.id in needing:
                what = "the metrics cannot be fetched late"
                raise no_room(schedule.reference, what, call.id, (fetch,), _next_step(needing[call.id]), 1)
        return _sunk(schedule, fetch)


def _next_step(chain: Chain) -> tuple[str, ...]:
    """The ops of the next step on a chain."""
    steps = list(accumulate(edge.distance for edge in chain))
    return tuple(edge.after for edge, step in zip(chain, steps, strict=True) if step)


def _sunk(schedule: Schedule, fetch: str) -> Schedule:
    """The fetch directly above the first op of its lane that must follow it, or whose writes stay when it fails."""
    program = schedule.program
    ids = [node.id for node in program.body]
    at = ids.index(fetch)
    first = legal_places(program, schedule.reference, fetch).before
    end = ids.index(first) if first else len(ids)
    home = next(op.lane for op in ops_of(program.body) if op.id == fetch)
    lasting = leaving(program, (op for op in ops_of(program.body) if op.lane == home))
    stop = next((node for node in program.body[at + 1 : end] if _any(node, lasting)), None)
    if stop is not None and stop is program.body[at + 1]:
        message = f"`{stop.id}` follows the metrics, and what it writes stays when the update fails"
        raise declined(message, loc=stop.loc, help=f"move `{stop.id}` down, to where the metrics are used")
    last = ids[(ids.index(stop.id) if stop is not None else end) - 1]
    return schedule if last == fetch else sink(schedule, fetch, below=last).schedule


def _any(node: Node, wanted: tuple[str, ...]) -> bool:
    return any(op.id in wanted for op in ops_of((node,)))
