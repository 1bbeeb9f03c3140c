"""Ops that nobody would miss: what they make is not used, and what they write is not seen."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from steptrace.check.rewrite import spliced, with_resources
from steptrace.ir.builtin import RESOURCES, kinds_of
from steptrace.ir.effects import effects_of
from steptrace.ir.kind import OpKind
from steptrace.ir.predicate import flags_of
from steptrace.ir.program import Op, Program, ops_of
from steptrace.ir.resource import ANY, Access, Effect, ResourceKind, overlaps


def dead_ops(program: Program) -> tuple[str, ...]:
    """The ops of the step that change nothing which anyone sees, by id, in order.

    Seen is what a built-in resource or a channel shows, and what an op without declared effects may look at. An op
    is alive if it writes such a thing, or if an op that is alive uses its value or reads what it writes.
    """
    kinds = kinds_of(program)
    effects = {op.id: effects_of(op, kinds[op.kind], program.contract) for op in program.ops()}
    everything = any(effect.resource == ANY for own in effects.values() for effect in own)
    channels = {one.name for one in program.resources if one.kind is ResourceKind.CHANNEL}
    steps = {op.id: op for op in ops_of(program.body)}
    pending = [op for op in program.ops() if _is_root(op, kinds[op.kind], effects[op.id], channels, everything)]
    makers = _makers(program)
    alive: set[str] = set()
    while pending:
        op = pending.pop()
        if op.id in alive:
            continue
        alive.add(op.id)
        pending += [maker for name in _uses(op) for maker in makers[name]]
        pending += [other for other in steps.values() if _feeds(effects[other.id], effects[op.id])]
    return tuple(id for id in steps if id not in alive)


def without(program: Program, ids: tuple[str, ...]) -> Program:
    """The program without some ops of its step, which no other op needs, and without what only they declared."""
    for id in ids:
        program = spliced(program, id, ())
    used = {op.kind for op in program.ops()}
    made = {result.name for op in program.ops() for result in op.results}
    kinds = tuple(kind for kind in program.kinds if kind.name in used)
    carries = tuple(carry for carry in program.carries if carry.name in made)
    return with_resources(replace(program, kinds=kinds, carries=carries))


def unseen_gone(program: Program, source: Program) -> tuple[str, ...]:
    """The ops of a source that a schedule of it leaves out and nobody misses, by id."""
    if len(program.kinds) == len(source.kinds) == 0:
        return ()
    there = {op.origin.op if op.origin is not None else op.id for op in program.ops()}
    gone = [op.id for op in ops_of(source.body) if op.id not in there]
    dead = dead_ops(source) if gone else ()
    return tuple(id for id in gone if id in dead)


def without_unseen(program: Program, source: Program) -> Program:
    """The source of a schedule, without the ops of it that the schedule leaves out and nobody misses."""
    gone = unseen_gone(program, source)
    return without(source, gone) if gone else source


def _is_root(op: Op, kind: OpKind, effects: tuple[Effect, ...], channels: set[str], everything: bool) -> bool:
    """Whether an op is alive whatever the others do."""
    if not kind.user or everything:
        return True
    written = {effect.resource for effect in effects if effect.access is Access.WRITE}
    return any(name in channels or any(overlaps(name, known) for known in RESOURCES) for name in written)


def _makers(program: Program) -> dict[str, list[Op]]:
    makers: dict[str, list[Op]] = defaultdict(list)
    for op in program.ops():
        for result in op.results:
            makers[result.name].append(op)
    return makers


def _uses(op: Op) -> tuple[str, ...]:
    return (*(use.name for use in op.args), *flags_of(op.when))


def _feeds(writer: tuple[Effect, ...], reader: tuple[Effect, ...]) -> bool:
    """Whether one op writes what another one reads or waits for."""
    written = [effect.resource for effect in writer if effect.access is Access.WRITE]
    read = [effect.resource for effect in reader if effect.access is not Access.WRITE]
    return any(overlaps(a, b) for a in written for b in read)
