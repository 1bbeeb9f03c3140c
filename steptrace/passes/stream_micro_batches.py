"""The pass ``stream-micro-batches``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.check.edge import Edge
from steptrace.check.edges import edges_of
from steptrace.check.stream_law import Obstacle, obstacle_to_stream
from steptrace.ir.program import Program
from steptrace.motion import Schedule, stream
from steptrace.passes.base import declined
from steptrace.passes.roles import training_loop


@dataclass(frozen=True)
class StreamMicroBatches:
    """Takes, scores and packs groups as they arrive, so that a step trains on the first while others are sampled.

    Hides the training of a step's first micro-batches behind the generation of its last groups: no op waits for the
    whole step any more. By itself the loop then waits for groups on the lane that trains; `pipeline-micro-batches` or
    `take-ahead` after it move that to a lane of its own. Stands before them in a pipeline.

    Holds nothing more in memory.

    Declines when something needs all groups of the step: advantages normalised over the step, a user's op on its groups
    or batch, an op between the take and the loop, or one in the loop that sees the step's groups or leaves what stays
    when a later group fails. Takes for granted that packing is prefix-stable, which the remark says.
    """

    name: ClassVar[str] = "stream-micro-batches"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        loop = training_loop(schedule.program)
        obstacle = obstacle_to_stream(schedule.program, loop)
        if obstacle is None:
            return stream(schedule, loop.id).schedule
        edge = _edge(schedule.reference, obstacle)
        message = f"micro-batches cannot be made from the first groups alone: {obstacle.why}" + (
            f"; {edge.reason}" if edge else ""
        )
        raise declined(message, loc=obstacle.loc, edge=edge, help=obstacle.help)


def _edge(reference: Program, obstacle: Obstacle) -> Edge | None:
    """The edge by which what is in the way needs the step's groups, the nearest one first."""
    ends = (obstacle.before, obstacle.after)
    found = [edge for edge in edges_of(reference) if (edge.before, edge.after) == ends]
    return min(found, key=lambda edge: edge.distance, default=None)
