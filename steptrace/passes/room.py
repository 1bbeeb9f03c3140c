"""Whether running ops ahead gains anything: chains of edges by which they wait for the step before all the same."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from steptrace.check.edge import Edge, EdgeKind
from steptrace.check.edges import edges_of
from steptrace.check.reasons import instance, older, reason_of
from steptrace.check.units import units_of
from steptrace.diag.base import Note
from steptrace.diag.motion import PassDeclinedError
from steptrace.ir.builtin import BUILTIN
from steptrace.ir.program import Op, Program
from steptrace.ir.resource import ANY
from steptrace.passes.base import declined
from steptrace.passes.roles import lasting_writes, reads_of

Chain = tuple[Edge, ...]
"""Edges one after the other."""

_MOST_STALENESS = 4


def chains_to(reference: Program, sources: Iterable[str], steps: int) -> dict[str, Chain]:
    """For each op that waits for one of the sources of step k in step k + ``steps``, a shortest chain that says so.

    Waiting for a buffer is no such chain: a lane of its own waits for that, and goes as far ahead as there are some.
    """
    ahead: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges_of(reference):
        if not edge.what.startswith("buffers."):
            ahead[edge.before].append(edge)
    reached: dict[str, tuple[int, int]] = {}
    found: dict[str, Chain] = {}
    heap: list[tuple[int, int, int, str, Chain]] = [(0, 0, at, id, ()) for at, id in enumerate(dict.fromkeys(sources))]
    heapq.heapify(heap)
    pushed = len(heap)
    while heap:
        distance, hops, _, id, chain = heapq.heappop(heap)
        if chain:
            found.setdefault(id, chain)
        if reached.get(id, (distance, hops + 1)) <= (distance, hops):
            continue
        reached[id] = (distance, hops)
        for edge in ahead[id]:
            if distance + edge.distance <= steps and (distance + edge.distance, hops + 1) < reached.get(
                edge.after, (steps + 1, 0)
            ):
                pushed += 1
                heapq.heappush(heap, (distance + edge.distance, hops + 1, pushed, edge.after, (*chain, edge)))
    return found


def no_room(
    reference: Program, what: str, op: str, sources: Iterable[str], group: Iterable[str], steps: int
) -> PassDeclinedError:
    """Why an op cannot usefully run ahead, for a pass to raise.

    Args:
      reference: the reference of the schedule.
      what: what cannot be done, the beginning of the sentence.
      op: the op, which waits for one of the sources.
      sources: the ops of step k that leave no room when they must come first.
      group: the ops that were to be moved; the edge shown is the last that enters it from outside.
      steps: how many steps ahead.
    """
    origins, inside = tuple(sources), set(group)
    chain = chains_to(reference, origins, steps)[op]
    entering = (n for n in reversed(range(len(chain))) if chain[n].before not in inside and chain[n].after in inside)
    at = next(entering, len(chain) - 1)
    edge, step = chain[at], sum(edge.distance for edge in chain[:at])
    units = units_of(reference)
    notes = (Note(instance(edge.before, step), units[edge.before].loc),)
    help = _declaration(reference, chain) or _staleness(reference, op, origins, steps)
    return declined(f"{what}: {reason_of(edge, step)}", loc=units[edge.after].loc, edge=edge, notes=notes, help=help)


def stays_written(reference: Program, what: str, op: str) -> PassDeclinedError:
    """Why a user's op cannot run ahead whose writes stay when a step fails, for a pass to raise.

    Args:
      reference: the reference of the schedule.
      what: what cannot be done because of it, the beginning of the sentence.
      op: the op, one of those of `leaving`.
    """
    node = units_of(reference)[op].node
    assert isinstance(node, Op), "no loop is the user's"
    writes = " and ".join(f"`{name}`" for name in lasting_writes(reference, node))
    help = f"write {writes} after the update, in an op of its own that takes what `{op}` gives; then `{op}` can move"
    if any(name in lasting_writes(reference, node) for name in reads_of(reference, node)):
        help = f"`{op}` can move if it neither reads nor writes {writes}; keep that in an op after the update"
    return declined(f"{what}: it writes {writes}, which stays when a step fails", loc=node.loc, help=help)


def _declaration(reference: Program, chain: Chain) -> str:
    """The op on a chain that touches everything because it declares nothing."""
    units = units_of(reference)
    for edge in chain:
        for id in (edge.before, edge.after) if edge.kind is EdgeKind.BARRIER else ():
            op = units[id].node
            if isinstance(op, Op) and any(effect.resource == ANY for effect in units[id].effects):
                how = f'step.{op.kind}(reads=["metrics"])' if op.kind in BUILTIN else "@steptrace.op(reads=[...])"
                return f"declare what `{id}` reads and writes: {how}"
    return ""


def _staleness(reference: Program, op: str, sources: tuple[str, ...], steps: int) -> str:
    """The staleness at which the op would no longer wait."""
    contract = reference.contract
    for staleness in range(contract.staleness + 1, contract.staleness + 1 + _MOST_STALENESS):
        looser = replace(reference, contract=replace(contract, staleness=staleness))
        if op not in chains_to(looser, sources, steps):
            name = f"{reference.name}{{staleness={staleness}}}"
            return f"allow it with staleness={staleness}, `{name}`: {older(staleness - contract.staleness)}"
    return ""
