"""Rewriting programs in place: the few operations that laws, peeling and motions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from steptrace.diag.schedule import UnknownOpError
from steptrace.ir.builtin import RESOURCES, kinds_of
from steptrace.ir.effects import effects_of
from steptrace.ir.predicate import And, Flag, Not, Or, Predicate
from steptrace.ir.program import Loop, Node, Op, Program, Use, ops_of
from steptrace.ir.resource import ANY, parts_of_pool


def find(program: Program, op_id: str) -> Op:
    """The op of the step with that id.

    Raises:
      UnknownOpError: there is none.
    """
    for op in ops_of(program.body):
        if op.id == op_id:
            return op
    from difflib import get_close_matches  # only for a refusal: its import takes as long as a whole check

    near = get_close_matches(op_id, [op.id for op in ops_of(program.body)], 1)
    help = f"did you mean `{near[0]}`?" if near else ""
    raise UnknownOpError(f"the step of `{program.name}` has no op `{op_id}`", loc=program.loc, help=help)


def spliced(program: Program, node_id: str, nodes: tuple[Node, ...]) -> Program:
    """The program with the op or loop ``node_id`` of its step replaced by ``nodes``, at any depth."""

    def visit(body: tuple[Node, ...]) -> tuple[Node, ...]:
        found: list[Node] = []
        for node in body:
            if node.id == node_id:
                found += nodes
            else:
                found.append(replace(node, body=visit(node.body)) if isinstance(node, Loop) else node)
        return tuple(found)

    return replace(program, body=visit(program.body))


def mapped(program: Program, change: Callable[[Op], Op]) -> Program:
    """The program with every op of its step changed."""

    def visit(body: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(replace(node, body=visit(node.body)) if isinstance(node, Loop) else change(node) for node in body)

    return replace(program, body=visit(program.body))


def fresh(program: Program, *names: str, values: bool = False) -> tuple[str, ...]:
    """Names for new ops (or values), numbered where they are taken."""
    nodes = _ids(program.prologue + program.body + program.epilogue)
    taken = {result.name for op in program.ops() for result in op.results} if values else nodes
    return tuple(_free(name, taken) for name in names)


def _free(name: str, taken: set[str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    taken.add(free)
    return free


def _ids(nodes: tuple[Node, ...]) -> set[str]:
    inner = [_ids(node.body) for node in nodes if isinstance(node, Loop)]
    return {node.id for node in nodes}.union(*inner)


def with_resources(program: Program) -> Program:
    """The program with the resources that its ops touch declared: those it had, then new ones in table order.

    A pool that it had stays as long as an op touches a part of it.
    """
    kinds = kinds_of(program)
    touched = dict.fromkeys(
        effect.resource
        for op in program.ops()
        for effect in effects_of(op, kinds[op.kind], program.contract)
        if effect.resource != ANY
    )
    kept = tuple(
        resource for resource in program.resources if resource.name in touched or parts_of_pool(resource, touched)
    )
    known = {resource.name for resource in kept}
    new = tuple(resource for name, resource in RESOURCES.items() if name in touched and name not in known)
    return replace(program, resources=kept + new)


def renamed_op(op: Op, values: Mapping[str, str]) -> Op:
    """The op with its values renamed: operands, results and flags."""
    return replace(
        op,
        args=tuple(renamed_use(use, values) for use in op.args),
        results=tuple(replace(result, name=values.get(result.name, result.name)) for result in op.results),
        when=renamed_flags(op.when, values),
    )


def renamed_use(use: Use, values: Mapping[str, str]) -> Use:
    """The operand with its value renamed."""
    return replace(use, name=values.get(use.name, use.name))


def renamed_flags(predicate: Predicate, values: Mapping[str, str]) -> Predicate:
    """The condition with its flags renamed."""
    match predicate:
        case Flag(name):
            return Flag(values.get(name, name))
        case Not(term):
            return Not(renamed_flags(term, values))
        case And(terms):
            return And(tuple(renamed_flags(term, values) for term in terms))
        case Or(terms):
            return Or(tuple(renamed_flags(term, values) for term in terms))
    return predicate
