"""What ops are to a pass, told by their effects and rows, so that passes work on programs they have never seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from steptrace.check.laws import LAWS
from steptrace.check.units import is_stream, units_of
from steptrace.ir.builtin import RESOURCES, kinds_of
from steptrace.ir.effects import effects_of
from steptrace.ir.kind import OpKind
from steptrace.ir.predicate import flags_of
from steptrace.ir.program import Loop, Node, Op, Program, ops_of
from steptrace.ir.resource import Access, ResourceKind
from steptrace.ir.verify.ground import Ground
from steptrace.ir.verify.runs import Role, roles_of
from steptrace.passes.base import declined


def row_of(program: Program, op: Op) -> OpKind:
    """The row of an op."""
    return kinds_of(program)[op.kind]


@lru_cache(maxsize=256)
def with_role(program: Program, role: Role) -> tuple[Op, ...]:
    """The ops of the step that have a role, in order."""
    ground = Ground(program)
    return tuple(op for op in ops_of(program.body) if role in roles_of(ground, op))


def pushes_and_pops(program: Program) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """The ops that put entries on a queue, and those that take them off."""
    queues = {one.name for one in program.resources if one.kind is ResourceKind.FIFO}
    kinds = kinds_of(program)
    pushes, pops = [], []
    for op in ops_of(program.body):
        effects = effects_of(op, kinds[op.kind], program.contract)
        reads = {effect.resource for effect in effects if effect.access is Access.READ} & queues
        writes = {effect.resource for effect in effects if effect.access is Access.WRITE} & queues
        if writes & reads:
            pops.append(op)
        elif writes:
            pushes.append(op)
    return tuple(pushes), tuple(pops)


def cells_written(program: Program, ops: Iterable[Op]) -> set[str]:
    """The resources with one cell for each step that some ops write."""
    cells = {one.name for one in program.resources if one.kind is ResourceKind.CELL}
    kinds = kinds_of(program)
    return {
        effect.resource
        for op in ops
        for effect in effects_of(op, kinds[op.kind], program.contract)
        if effect.access is Access.WRITE
    } & cells


def leaving(program: Program, ops: Iterable[Op]) -> tuple[str, ...]:
    """The users' ops, by id, whose changes stay when their step fails: what they write is a channel or the users' own.

    Such an op must not run before what may still fail in the steps before it.
    """
    return tuple(op.id for op in ops if lasting_writes(program, op))


def lasting_writes(program: Program, op: Op) -> tuple[str, ...]:
    """What a user's op writes that stays when its step fails: channels and the users' own; nothing for other ops."""
    row = kinds_of(program)[op.kind]
    channels = {one.name for one in program.resources if one.kind is ResourceKind.CHANNEL}
    effects = effects_of(op, row, program.contract) if row.user else ()
    written = (effect.resource for effect in effects if effect.access is Access.WRITE)
    return tuple(dict.fromkeys(name for name in written if name in channels or name not in RESOURCES))


def reads_of(program: Program, op: Op) -> tuple[str, ...]:
    """The resources that an op reads, of whichever step."""
    effects = effects_of(op, kinds_of(program)[op.kind], program.contract)
    return tuple(dict.fromkeys(effect.resource for effect in effects if effect.access is Access.READ))


def training_node(program: Program) -> Node:
    """The loop of the step in which gradients are accumulated, or the op where there is no loop.

    Raises:
      PassDeclinedError: the step has none, or several.
    """
    ids = {op.id for op in with_role(program, Role.ACCUMULATE) if op.micro is None}
    found = [node for node in program.body if not ids.isdisjoint(op.id for op in ops_of((node,)))]
    if len(found) != 1:
        count = "none" if not found else f"{len(found)}: " + ", ".join(f"`{node.id}`" for node in found)
        raise declined(f"the pass needs one place where the step trains, and there are {count}", loc=program.loc)
    return found[0]


def training_loop(program: Program) -> Loop:
    """The loop over micro-batches, directly in the step, in which gradients are accumulated.

    Raises:
      PassDeclinedError: the step trains in none, or in one inside a loop over epochs or mini-batches.
    """
    node = training_node(program)
    if isinstance(node, Loop) and is_stream(node):
        return node
    where = f"inside loop `{node.id}`, which is moved as a whole" if isinstance(node, Loop) else "in no loop"
    raise declined(f"the step trains {where}, so it has no first micro-batch that could be moved", loc=node.loc)


def trained_units(reference: Program, fed: Iterable[Op]) -> tuple[str, ...]:
    """The ops of a step from its training on, by id, those aside that stand for the same source ops as ``fed``."""
    node, origins = training_node(reference), {origin_of(op) for op in fed}
    units = units_of(reference)
    inside = [op.id for op in node.body] if isinstance(node, Loop) and is_stream(node) else [node.id]
    first = min(units[id].index for id in inside)
    return tuple(
        unit.id
        for unit in units
        if unit.index >= first and not (isinstance(unit.node, Op) and origin_of(unit.node) in origins)
    )


def origin_of(op: Op) -> str:
    """The id of the source op that an op stands for."""
    return op.origin.op if op.origin else op.id


def first_calls(program: Program) -> tuple[Op, ...]:
    """The training calls on the peeled first micro-batch, in order: one, or the arms of a choice."""
    return tuple(op for op in with_role(program, Role.ACCUMULATE) if op.micro == 0 and op in program.body)


def splittable(program: Program, law: str) -> Op:
    """The one op directly in the step that a law can split.

    Raises:
      PassDeclinedError: there is none, or there are several.
    """
    kind = LAWS[law].splits
    whole = [op for op in program.body if isinstance(op, Op) and op.kind == kind and not (op.origin and op.origin.part)]
    if len(whole) > 1:
        names = ", ".join(f"`{op.id}`" for op in whole)
        raise declined(f"the pass needs one `{kind}` directly in the step, and there are {names}", loc=program.loc)
    if not whole:
        inner = next((op for op in program.ops() if op.kind == kind and op not in program.body), None)
        why = f"`{inner.id}` stands in a loop" if inner else "there is none, or it is split already"
        raise declined(f"the pass needs one `{kind}` directly in the step, and {why}", loc=(inner or program).loc)
    return whole[0]


def feeding(nodes: tuple[Node, ...], wanted: Iterable[str]) -> tuple[Op, ...]:
    """The ops among ``nodes`` that make some values, directly or through one another, in order."""
    makers = {result.name: op for op in nodes if isinstance(op, Op) for result in op.results}
    pending, found = list(wanted), set()
    while pending:
        op = makers.get(pending.pop())
        if op is not None and op.id not in found:
            found.add(op.id)
            pending += used_by((op,))
    return tuple(op for op in nodes if isinstance(op, Op) and op.id in found)


def used_by(nodes: Iterable[Node]) -> Iterator[str]:
    """The names of this step's values that nodes use, loops with all that is in them."""
    for node in nodes:
        if isinstance(node, Loop):
            if node.over is not None:
                yield node.over.name
            yield from used_by(node.body)
        else:
            yield from (use.name for use in node.args if not use.step)
            yield from flags_of(node.when)
