"""Edits of a program's step: where nodes stand, and the same program with nodes at other places."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from steptrace.check.rewrite import find
from steptrace.check.units import is_stream
from steptrace.diag.motion import MotionArgumentError, PlaceError
from steptrace.ir.program import Loop, Node, Op, Program, ops_of

STEP = ""
"""The home of nodes that stand directly in the step."""


def ids_of(ops: str | Iterable[str]) -> tuple[str, ...]:
    """The ids that a motion was given: one, or several.

    Raises:
      MotionArgumentError: none at all.
    """
    ids = (ops,) if isinstance(ops, str) else tuple(dict.fromkeys(ops))
    if not ids:
        raise MotionArgumentError("a motion moves one op at least", help='give it an id: hoist(schedule, "log", ...)')
    return ids


def home_of(program: Program, node_id: str) -> str:
    """Where a node of the step stands: ``STEP``, or the id of the loop over micro-batches around it.

    Raises:
      UnknownOpError: the step has no such op or loop.
      PlaceError: it stands inside a loop over epochs or mini-batches.
    """
    for node in program.body:
        if node.id == node_id:
            return STEP
        if isinstance(node, Loop) and is_stream(node) and any(inner.id == node_id for inner in node.body):
            return node.id
    op = find(program, node_id)
    loop = next(node for node in program.body if isinstance(node, Loop) and op in ops_of(node.body))
    message = f"`{node_id}` stands inside loop `{loop.id}`, which is moved as a whole"
    raise PlaceError(message, loc=op.loc, help=f"move `{loop.id}`")


def common_home(program: Program, ids: tuple[str, ...]) -> str:
    """Where a group of nodes stands.

    Raises:
      PlaceError: they do not stand beside one another.
    """
    homes = {id: home_of(program, id) for id in ids}
    for id, home in homes.items():
        if home != homes[ids[0]]:
            message = f"`{ids[0]}` stands {_words(homes[ids[0]])} and `{id}` {_words(home)}"
            raise PlaceError(message, loc=node_of(program, id).loc, help="move them one after the other")
    return homes[ids[0]]


def _words(home: str) -> str:
    return f"in loop `{home}`" if home else "directly in the step"


def node_of(program: Program, node_id: str) -> Node:
    """The op or loop of that id, which the step must have."""
    return next(node for node in nodes_at(program, home_of(program, node_id)) if node.id == node_id)


def nodes_at(program: Program, home: str) -> tuple[Node, ...]:
    """The nodes of the step, or of a loop in it."""
    if home == STEP:
        return program.body
    return next(node.body for node in program.body if isinstance(node, Loop) and node.id == home)


def with_nodes(program: Program, home: str, nodes: tuple[Node, ...]) -> Program:
    """The program with other nodes there."""
    if home == STEP:
        return replace(program, body=nodes)
    body = tuple(
        replace(node, body=nodes) if isinstance(node, Loop) and node.id == home else node for node in program.body
    )
    return replace(program, body=body)


def place_of(program: Program, home: str, node_id: str) -> int:
    """The index of a node among those at its home."""
    return next(at for at, node in enumerate(nodes_at(program, home)) if node.id == node_id)


def check_anchor(program: Program, ids: tuple[str, ...], anchor: str) -> str:
    """The common home of a group and of the node that it is to stand beside.

    Raises:
      PlaceError: they have none, or the node is one of the group.
    """
    home, other = common_home(program, ids), home_of(program, anchor)
    if anchor in ids:
        raise PlaceError(f"`{anchor}` cannot move past itself", loc=node_of(program, anchor).loc)
    if home != other:
        message = f"`{ids[0]}` stands {_words(home)}, so it cannot stand beside `{anchor}`, which is {_words(other)}"
        help = f"name the loop `{other}`" if other else ""
        raise PlaceError(message, loc=node_of(program, ids[0]).loc, help=help)
    return home


def regrouped(program: Program, home: str, ids: tuple[str, ...], before: str | None) -> Program:
    """The program with a group of nodes, in the order they had, directly before a node, or at the end."""
    nodes = nodes_at(program, home)
    group = [node for node in nodes if node.id in ids]
    rest = [node for node in nodes if node.id not in ids]
    at = len(rest) if before is None else next(at for at, node in enumerate(rest) if node.id == before)
    return with_nodes(program, home, (*rest[:at], *group, *rest[at:]))


def following(program: Program, home: str, ids: tuple[str, ...], anchor: str) -> str | None:
    """The first node after ``anchor`` that is none of the group, or None."""
    rest = [node.id for node in nodes_at(program, home) if node.id not in ids]
    at = rest.index(anchor) + 1
    return rest[at] if at < len(rest) else None


def changed(program: Program, ids: tuple[str, ...], change: Callable[[Op], Op]) -> Program:
    """The program with some ops of its step changed; of a loop that is named, all ops."""

    def visit(nodes: tuple[Node, ...], inside: bool) -> tuple[Node, ...]:
        return tuple(
            replace(node, body=visit(node.body, inside or node.id in ids))
            if isinstance(node, Loop)
            else (change(node) if inside or node.id in ids else node)
            for node in nodes
        )

    return replace(program, body=visit(program.body, False))
