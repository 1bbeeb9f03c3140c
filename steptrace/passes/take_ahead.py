"""The pass ``take-ahead``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from steptrace.check.units import is_stream
from steptrace.diag.motion import PassDeclinedError, PassOptionError
from steptrace.ir.program import Loop, Node, Op, Program, ops_of
from steptrace.ir.verify.runs import Role
from steptrace.motion import Schedule, move_to_lane, peel, rename, rotate
from steptrace.passes.base import declined
from steptrace.passes.roles import (
    cells_written,
    feeding,
    first_calls,
    leaving,
    origin_of,
    pushes_and_pops,
    trained_units,
    training_node,
    used_by,
    with_role,
)
from steptrace.passes.room import chains_to, no_room, stays_written


@dataclass(frozen=True)
class TakeAhead:
    """Takes and packs the groups of the next step while this one trains.

    Hides generation, reward and packing of step k+depth behind the training of step k: the ops that lead from
    dispatch to the first micro-batch run on a lane of their own, ``packer``, so that waiting for data holds up no
    step's boundary. Where groups are packed as they arrive, the rest of the step's stream moves to that lane too.

    Holds in memory the groups and micro-batches of ``depth`` more steps: the resource that takes hold of a step's
    groups gets ``1 + depth`` cells, so the next take waits until the oldest step is freed. Groups taken ahead stay
    uncommitted until their own step commits them.

    Declines when there is nothing to gain, because a take of the next step waits for this step's training all the
    same: with staleness 0 its groups are sampled with the weights that this step publishes; a callback without
    declared effects lets nothing past. Ops that wait by themselves (log-probs under the actor, values of a critic
    that is still trained), and users' ops whose writes stay when a step fails (their own resources, channels), stay in
    their step, with what uses them; a remark names such an op of the user's.
    """

    name: ClassVar[str] = "take-ahead"
    depth: int = 1

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise PassOptionError(f"`depth` of `{self.name}` is a number of steps, at least 1, not {self.depth}")

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        loop = training_node(schedule.program)
        if isinstance(loop, Loop) and is_stream(loop) and not loop.start:
            schedule = peel(schedule, loop.id).schedule
        group = self._group(schedule)
        stream = _stream(schedule.program, loop.id, {origin_of(op) for op in group})
        ids = tuple(op.id for op in group)
        schedule = move_to_lane(schedule, (*ids, *stream), lane="packer").schedule
        for cell in sorted(_memory(schedule.program, group)):
            schedule = rename(schedule, cell, capacity=1 + self.depth).schedule
        others = [node.id for node in schedule.program.body if node.id not in ids]
        above = others[others.index(loop.id) + 1] if stream else others[0]
        return rotate(schedule, ids, ahead=self.depth, above=above).schedule

    def left(self, schedule: Schedule) -> Iterator[PassDeclinedError]:
        """The users' ops that stay in their step because what they write would stay when it fails."""
        for id in leaving(schedule.reference, _fed(schedule.program)):
            yield stays_written(schedule.reference, f"stopped at `{id}`", id)

    def _group(self, schedule: Schedule) -> tuple[Op, ...]:
        """The ops that move: those that feed the first micro-batch and do not wait for the step before."""
        fed = _fed(schedule.program)
        takes = [op for op in fed if op in pushes_and_pops(schedule.program)[1]]
        if not takes:
            raise declined("no op of the step takes groups from a queue", loc=schedule.program.loc)
        ahead = next((op for op in takes if op.shift), None)
        if ahead is not None:
            raise declined(f"`{ahead.id}` runs ahead already", loc=ahead.loc)
        sources = trained_units(schedule.reference, fed)
        held = chains_to(schedule.reference, sources, self.depth)
        marks = leaving(schedule.reference, fed)
        marked = {*marks, *chains_to(schedule.reference, marks, 0)}
        for op in takes:
            if op.id in held:
                what = f"`{op.id}` gains nothing from running ahead"
                raise no_room(schedule.reference, what, op.id, sources, [op.id for op in fed], self.depth)
        group = tuple(op for op in fed if op.id not in held and op.id not in marked and not op.shift)
        _check_lanes(schedule.program, group)
        return group


def _check_lanes(program: Program, group: tuple[Op, ...]) -> None:
    """Refuses a group of which a lane of its own makes something that stays: only the group kept that behind the steps.

    Raises:
      PassDeclinedError: there is such an op.
    """
    home = {op.lane for op in with_role(program, Role.ACCUMULATE)}
    apart = [op for op in ops_of(program.body) if op not in group and op.lane not in home]
    early = {result.name for op in group for result in op.results}
    lasting = leaving(program, apart)
    for op in apart:
        if not early.isdisjoint(used_by((op,))):
            if op.id in lasting:
                message = f"`{op.id}` would follow what is taken ahead, and what it writes stays when a step fails"
                raise declined(message, loc=op.loc, help=f"give `{op.id}` the lane that trains, {', '.join(home)}")
            early |= {result.name for result in op.results}


def _fed(program: Program) -> tuple[Op, ...]:
    """The ops directly in the step that feed its training, and those that put on the queue what they take."""
    targets: tuple[Node, ...] = (*first_calls(program), training_node(program))
    fed = feeding(program.body, used_by(targets))
    pushes, _ = pushes_and_pops(program)
    return tuple(op for op in program.body if isinstance(op, Op) and (op in fed or op in pushes))


def _stream(program: Program, loop: str, origins: set[str]) -> tuple[str, ...]:
    """The ops of the loop that feed the later micro-batches, where those are taken from the queue one by one."""
    node = next(node for node in program.body if node.id == loop)
    inside = [op for op in ops_of((node,)) if origin_of(op) in origins and op.results]
    _, pops = pushes_and_pops(program)
    return tuple(op.id for op in inside) if any(op in pops for op in inside) and is_stream(node) else ()


def _memory(program: Program, group: tuple[Op, ...]) -> set[str]:
    """What holds a step's groups: cells that a take writes and the end of the step releases."""
    _, pops = pushes_and_pops(program)
    taken = cells_written(program, [op for op in group if op.id in {pop.id for pop in pops}])
    released = cells_written(program, with_role(program, Role.FREE))
    return taken & released or taken
