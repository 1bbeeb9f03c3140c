"""All legal schedules of a small program, written out one by one: what a search for the fastest is held against.

It shares nothing with motions, passes and the search over them: a schedule is drawn up from scratch for each way to
spread the ops over the lanes, each order on each lane, and each choice of how far ahead ops run. Ops of one lane that
all run a step further ahead make the same schedule, begun a step earlier, so on each lane some op runs no step ahead;
and lanes that no row names are alike, so those that differ by their names alone count once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product

from steptrace.check.schedule import problems
from steptrace.diag.base import SteptraceError
from steptrace.ir.program import Op, Program


def all_schedules(source: Program, lanes: Sequence[str], most_ahead: int) -> Iterator[Program]:
    """Every schedule of a program without loops, legal or not.

    Args:
      source: the program; its step has ops only.
      lanes: the lanes there are.
      most_ahead: how many steps ahead of another op of its lane an op may run.
    """
    ops = [node for node in source.body if isinstance(node, Op)]
    assert len(ops) == len(source.body), "a step with loops is not written out"
    for chosen in product(range(len(lanes)), repeat=len(ops)):
        if any(lane > max(chosen[:at], default=-1) + 1 for at, lane in enumerate(chosen)):
            continue
        groups = [[op for op, lane in zip(ops, chosen, strict=True) if lane == at] for at in range(len(lanes))]
        choices = [list(_on_lane(group, lane, most_ahead)) for group, lane in zip(groups, lanes, strict=True)]
        for orders in product(*choices):
            yield replace(source, body=tuple(_merged(orders, [op.id for op in ops])))


def legal_schedules(source: Program, lanes: Sequence[str], most_ahead: int) -> Iterator[Program]:
    """Those of `all_schedules` that the graph allows."""
    for program in all_schedules(source, lanes, most_ahead):
        try:
            legal = next(problems(program, source), None) is None
        except SteptraceError:
            legal = False
        if legal:
            yield program


def _on_lane(group: list[Op], lane: str, most_ahead: int) -> Iterator[tuple[Op, ...]]:
    """Each order of the ops of a lane, with each choice of how far ahead they run."""
    if not group:
        yield ()
        return
    for order in permutations(group):
        for shifts in product(range(most_ahead + 1), repeat=len(order)):
            if min(shifts) == 0:
                yield tuple(replace(op, lane=lane, shift=shift) for op, shift in zip(order, shifts, strict=True))


def _merged(orders: Sequence[tuple[Op, ...]], source: list[str]) -> Iterator[Op]:
    """The lanes as one body: which lane stands first in it has no meaning, so the order of the source decides."""
    rest = [list(order) for order in orders]
    while any(rest):
        nearest = min((lane for lane in rest if lane), key=lambda lane: source.index(lane[0].id) - 100 * lane[0].shift)
        yield nearest.pop(0)
