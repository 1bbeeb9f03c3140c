"""Random changes of a schedule: small moves, of which many are legal, and larger ones, of which few are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeAlias

from steptrace.ir.program import Loop, Node, Op, Program, ops_of

LANES = ("host", "packer", "io")
"""Lanes of random schedules."""

Move: TypeAlias = Callable[[Random, Program], Program]
"""Changes a schedule at random; gives the same one back where the move is not possible."""


def _swapped(nodes: tuple[Node, ...], at: int) -> tuple[Node, ...]:
    return (*nodes[:at], nodes[at + 1], nodes[at], *nodes[at + 2 :])


def _moved(nodes: tuple[Node, ...], source: int, target: int) -> tuple[Node, ...]:
    rest = [*nodes[:source], *nodes[source + 1 :]]
    rest.insert(target, nodes[source])
    return tuple(rest)


def _inside(program: Program, change: Callable[[tuple[Node, ...]], tuple[Node, ...]]) -> Program:
    """Changes the body of the loop over micro-batches, if there is one."""
    body = tuple(
        replace(node, body=change(node.body)) if isinstance(node, Loop) and node.kind == "micro_batches" else node
        for node in program.body
    )
    return replace(program, body=body)


def swap(rng: Random, program: Program) -> Program:
    """Swaps two neighbours, of the step or of the loop."""
    if rng.random() < 0.5 and any(isinstance(node, Loop) for node in program.body):
        return _inside(program, lambda nodes: _swapped(nodes, rng.randrange(len(nodes) - 1)) if nodes[1:] else nodes)
    if len(program.body) < 2:
        return program
    return replace(program, body=_swapped(program.body, rng.randrange(len(program.body) - 1)))


def jump(rng: Random, program: Program) -> Program:
    """Moves one op or loop of the step to another place."""
    size = len(program.body)
    return replace(program, body=_moved(program.body, rng.randrange(size), rng.randrange(size)))


def shift(rng: Random, program: Program) -> Program:
    """Lets one op run one step (or micro-batch) more or less ahead."""
    ops = list(ops_of(program.body))
    chosen, more = rng.choice(ops), rng.choice((1, 1, -1))
    if not 0 <= chosen.shift + more <= 2:
        more = -more
    return _with(program, chosen.id, lambda op: replace(op, shift=op.shift + more))


def rotate(rng: Random, program: Program) -> Program:
    """Moves the first op of the step (or loop) to its end, one step ahead; or the last one back."""

    def turned(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        first, last = nodes[0], nodes[-1]
        if rng.random() < 0.6:
            ahead = isinstance(first, Op) and first.shift < 2
            return (*nodes[1:], replace(first, shift=first.shift + 1)) if ahead and isinstance(first, Op) else nodes
        back = isinstance(last, Op) and last.shift > 0
        return (replace(last, shift=last.shift - 1), *nodes[:-1]) if back and isinstance(last, Op) else nodes

    if rng.random() < 0.4 and any(isinstance(node, Loop) for node in program.body):
        return _inside(program, turned)
    return replace(program, body=turned(program.body))


def relane(rng: Random, program: Program) -> Program:
    """Gives one op another lane."""
    chosen = rng.choice(list(ops_of(program.body)))
    lane = rng.choice([lane for lane in LANES if lane != chosen.lane])
    return _with(program, chosen.id, lambda op: replace(op, lane=lane))


def _with(program: Program, id: str, change: Callable[[Op], Op]) -> Program:
    def changed(node: Node) -> Node:
        if isinstance(node, Loop):
            return replace(node, body=tuple(changed(inner) for inner in node.body))
        return change(node) if node.id == id else node

    return replace(program, body=tuple(changed(node) for node in program.body))


_ONE_LANE: Sequence[Move] = (swap, swap, swap, rotate, rotate, shift, jump)
_LANES: Sequence[Move] = (swap, swap, rotate, relane, relane, shift, jump)


def moves_of(stratum: str) -> Sequence[Move]:
    """The moves of a stratum, the likelier ones more than once."""
    return _ONE_LANE if stratum == "single lane" else _LANES


_EDITS: Sequence[Move] = (shift, jump, swap, shift)


def edits_of(stratum: str) -> Sequence[Move]:
    """Larger changes, of which few are legal."""
    return _EDITS if stratum == "single lane" else (*_EDITS, relane)


def shape_of(program: Program) -> tuple[tuple[str, str, int], ...]:
    """What tells schedules of one reference apart: the order of the ops, their lanes and shifts."""
    return tuple((op.id, op.lane, op.shift) for op in ops_of(program.body))
