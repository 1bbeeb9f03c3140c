"""Why one op comes before another: the shortest chain of edges."""

from __future__ import annotations

import heapq
from collections import defaultdict

from steptrace.check.edge import Edge
from steptrace.check.edges import edges_of
from steptrace.check.reasons import instance, reason_of
from steptrace.check.units import is_stream, units_of
from steptrace.diag.base import Note
from steptrace.diag.schedule import UnknownOpError, UnorderedError
from steptrace.ir.program import Loop, Program, ops_of


def shortest_chain(reference: Program, a: str, b: str) -> list[Edge]:
    """The chain of edges by which ``a`` comes before ``b`` of the same step, or else of the nearest later one.

    The sum of the edges' distances says which step of ``b``. Of several such chains the one with the fewest edges.

    Args:
      reference: the program.
      a: id of the earlier op, or of a loop over epochs or mini-batches.
      b: id of the later one; the same as ``a`` asks about the next step.

    Raises:
      UnknownOpError: the step has no such op.
      UnorderedError: no chain leads from one to the other.
    """
    units = units_of(reference)
    for id in (a, b):
        if id not in units.table:
            raise _unknown(reference, id)
    chain = _chain(reference, a, b)
    if chain is None:
        raise _unordered(reference, a, b)
    return chain


def _chain(reference: Program, a: str, b: str) -> list[Edge] | None:
    """The chain, None where there is none."""
    ahead: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges_of(reference):
        ahead[edge.before].append(edge)
    best: dict[str, tuple[int, int]] = {}
    heap: list[tuple[int, int, int, str, tuple[Edge, ...]]] = [(0, 0, 0, a, ())]
    pushed = 0
    while heap:
        steps, hops, _, id, chain = heapq.heappop(heap)
        if id == b and chain:
            return list(chain)
        if best.get(id, (steps, hops + 1)) <= (steps, hops) and chain:
            continue
        best[id] = (steps, hops)
        for edge in ahead[id]:
            pushed += 1
            heapq.heappush(heap, (steps + edge.distance, hops + 1, pushed, edge.after, (*chain, edge)))
    return None


def _unordered(reference: Program, a: str, b: str) -> UnorderedError:
    """The refusal: the other way round there may be an order, which is then told."""
    units = units_of(reference)
    message = f"nothing orders `{a}` before `{b}`, in this step or a later one"
    chain = _chain(reference, b, a)
    if chain is None:
        return UnorderedError(message, loc=units[a].loc, help="a schedule may run them in any order, or at once")
    step, notes = 0, []
    for edge in chain:
        notes.append(Note(reason_of(edge, step), units[edge.after].loc))
        step += edge.distance
    message += f"; the other way round they are ordered: {instance(b)} comes before {instance(a, step)}"
    help = f"steptrace why {reference.name} {b} before {a}"
    return UnorderedError(message, loc=units[a].loc, notes=tuple(notes), help=help)


def _unknown(reference: Program, id: str) -> UnknownOpError:
    from difflib import get_close_matches  # only for a refusal: its import takes as long as a whole check

    for node in reference.body:
        if isinstance(node, Loop) and is_stream(node) and node.id == id:
            inside = ", ".join(f"`{op.id}`" for op in ops_of(node.body))
            message = f"`{id}` is a loop over micro-batches, whose ops are ordered one by one"
            return UnknownOpError(message, loc=node.loc, help=f"ask about one of them: {inside}")
        if isinstance(node, Loop) and id in _within(node):
            message = f"`{id}` runs inside loop `{node.id}`, which is ordered as a whole"
            return UnknownOpError(message, loc=node.loc, help=f"ask about `{node.id}`; inside, the order is as written")
    near = get_close_matches(id, list(units_of(reference).table), 1)
    help = f"did you mean `{near[0]}`?" if near else ""
    return UnknownOpError(f"the step of `{reference.name}` has no op `{id}`", loc=reference.loc, help=help)


def _within(loop: Loop) -> set[str]:
    """The ids of what stands inside a loop, at any depth."""
    inner = [_within(node) for node in loop.body if isinstance(node, Loop)]
    return {node.id for node in loop.body}.union(*inner)
