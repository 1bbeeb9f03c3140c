"""The reference of a schedule: its source with the same laws and the same peeling applied in place.

Reference and schedule have the same ops; they differ in order, shifts, lanes and capacities. Edges are computed on
the reference and hold for the schedule op by op.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TypeAlias

from steptrace.check.dead import without_unseen
from steptrace.check.edge import Edge, EdgeKind
from steptrace.check.edges import edges_of
from steptrace.check.head_law import head_of, with_head
from steptrace.check.laws import LAWS, apply_law, law_of_part
from steptrace.check.peel import peel_first
from steptrace.check.rewrite import mapped, renamed_op, renamed_use
from steptrace.check.settle_law import ATTEMPT, SETTLE
from steptrace.check.stream_law import STREAM
from steptrace.diag.base import Note
from steptrace.diag.loc import Loc
from steptrace.diag.schedule import (
    ChangedOpError,
    DeclarationChangedError,
    DoubledOpError,
    ForeignOpError,
    MissingOpError,
)
from steptrace.ir.program import Contract, Loop, Node, Op, Origin, Program, ops_of, walk

_Key: TypeAlias = tuple[str, str, int | None, str]
"""What pairs ops: source op, part, peeled micro-batch, innermost loop."""


def reference_of(program: Program, source: Program) -> Program:
    """The reference of a schedule, recovered from the schedule's text alone.

    Which laws and which peeling made it is read from its ops: their origins and parts, ``at(m=0)``, ``closes``.

    Args:
      program: the schedule.
      source: the plain step it was derived from: traced, or a schedule of the same laws.

    Returns:
      The source with those laws applied in place and no shifts, its ops and values named as in the schedule, with the
      schedule's resources and their capacities; and without what the schedule leaves out and nobody misses.

    Raises:
      DeclarationChangedError: contract, carries, parameters or resources differ.
      MissingOpError: an op of the source, or a part of it, is not in the schedule.
      DoubledOpError: one is there twice.
      ForeignOpError: an op stands for nothing in the source.
      ChangedOpError: an op does something else than in the source.
      LawError, PeelError: a law was applied where its conditions do not hold.
    """
    source = without_unseen(program, source)
    _check_declarations(program, source)
    if program == source:
        return source
    plain = _headed(mapped(source, lambda op: replace(op, shift=0)), program)
    rewritten = _with_laws(_peeled(_streamed(plain, program), program), program)
    return replace(_matched(rewritten, program), resources=program.resources)


_DECLARED = {"contract": "contract", "carries": "carries", "params": "parameters", "kinds": "users' ops"}
"""What a program declares beside its ops, in words."""


def _check_declarations(program: Program, source: Program) -> None:
    for what, words in _DECLARED.items():
        mine, theirs = (_declared(one, what) for one in (program, source))
        if what == "kinds":  # one that is declared on one side only has its ops there only, which is told better
            mine, theirs = ({name: one[name] for name in mine.keys() & theirs.keys()} for one in (mine, theirs))
        if mine != theirs:
            changed = [name for name in {**theirs, **mine} if mine.get(name) != theirs.get(name)]
            message = f"{', '.join(changed)} of the {words} of `{program.name}` is not what it is in the source"
            shown = "; ".join(
                f"{name} is {mine.get(name, 'missing')}, was {theirs.get(name, 'missing')}" for name in changed
            )
            help = shown if len(shown) < 200 else ""
            if what == "contract" and changed == ["staleness"]:
                help += f"; compare it with `{program.name}{{staleness={mine['staleness']}}}`"
            raise DeclarationChangedError(message, loc=program.loc, help=help)
    declared = program.resource_table()
    for resource in source.resources:
        if resource.name in declared and declared[resource.name].kind is not resource.kind:
            message = f"`{resource.name}` is a {resource.kind.value} in the source"
            raise DeclarationChangedError(message, loc=program.loc)


def _declared(program: Program, what: str) -> dict[str, object]:
    """Declarations of one sort, by name."""
    if what == "contract":
        return {clause.name: getattr(program.contract, clause.name) for clause in fields(Contract)}
    if what == "params":
        return dict(program.params)
    if what == "carries":
        return {carry.name: carry.init for carry in program.carries}
    return {kind.name: replace(kind, loc=None) for kind in program.kinds}


def _headed(source: Program, program: Program) -> Program:
    """The source with the log-prob head that was selected in the schedule, which has to be that of all its ops."""
    selected = head_of(program)
    return source if selected is None or head_of(source) is not None else with_head(source, selected)


def _streamed(source: Program, program: Program) -> Program:
    """The source with those loops streamed that are so in the schedule; what is peeled is a stream by then."""
    heads = {op.origin.op for op in ops_of(program.body) if op.origin is not None and op.origin.part == STREAM}
    for op in tuple(ops_of(source.body)):
        if op.id in heads and op.kind == LAWS[STREAM].splits:
            source = apply_law(source, op.id, STREAM)
    return source


def _peeled(source: Program, program: Program) -> Program:
    """The source with those loops peeled that start later in the schedule."""
    started = {node.id for node in _loops(program.body) if node.start}
    for loop in _loops(source.body):
        if loop.id in started and not loop.start:
            source = peel_first(source, loop.id)
    return source


def _loops(nodes: tuple[Node, ...]) -> Iterator[Loop]:
    return (node for node in nodes if isinstance(node, Loop))


def _with_laws(reference: Program, program: Program) -> Program:
    """The source with the laws applied whose parts the schedule shows."""
    parts: dict[tuple[str, int | None], set[str]] = defaultdict(set)
    closes = {str(op.attr("closes")) for op in ops_of(program.body) if op.attr("closes")}
    for op in ops_of(program.body):
        if op.origin is not None:
            parts[op.origin.op, op.micro].add(op.origin.part)
    closing = {"defer": "deferred-update", "update": "fused-update"}
    for op in tuple(ops_of(reference.body)):
        origin = op.origin.op if op.origin else op.id
        if op.origin is None or op.origin.part not in ("", STREAM):
            continue
        shown = parts[origin, op.micro] - {op.origin.part}
        if SETTLE in shown and LAWS[SETTLE].takes(op.kind):
            reference = apply_law(reference, op.id, SETTLE)
            op, shown = _attempt(reference, origin, op.micro), shown - {ATTEMPT, SETTLE}
        laws = {law_of_part(part) for part in shown}
        if op.kind == "update" and op in reference.body:
            laws = {next((closing[how] for how in sorted(closes) if how in closing), "")}
        for law in LAWS:  # in this order: what was not shipped may be sent ahead whole, and keeps its name
            if law in laws and LAWS[law].takes(op.kind):
                reference = apply_law(reference, op.id, law)
    return reference


def _attempt(reference: Program, origin: str, micro: int | None) -> Op:
    """The attempt that the law `settle` made of a training call."""
    wanted = Origin(origin, ATTEMPT)
    return next(op for op in ops_of(reference.body) if op.origin == wanted and op.micro == micro)


def _keys(program: Program) -> dict[_Key, list[Op]]:
    """Every op of the step by what pairs it."""
    found: dict[_Key, list[Op]] = defaultdict(list)
    for op, loops in walk(program.body):
        assert op.origin is not None, "every op has an origin"
        found[op.origin.op, op.origin.part, op.micro, loops[-1].id if loops else ""].append(op)
    return found


def _matched(reference: Program, program: Program) -> Program:
    """The reference with the schedule's names, once every op was found to be the same."""
    wanted, given = _keys(reference), _keys(program)
    for key, ops in wanted.items():
        if len(given.get(key, ())) < len(ops):
            raise _missing(ops[-1], program, reference)
        if len(given[key]) > len(ops):
            one, other = given[key][:2]
            message = f"`{other.id}` runs `{key[0]}` of the source a second time"
            raise DoubledOpError(message, loc=other.loc, notes=(Note(f"`{one.id}` runs it already", one.loc),))
    for key, ops in given.items():
        if key not in wanted:
            raise _foreign(ops[0], reference)
    pairs = [(mine, theirs) for key in wanted for mine, theirs in zip(wanted[key], given[key], strict=True)]
    values = {a.name: b.name for mine, theirs in pairs for a, b in zip(mine.results, theirs.results, strict=False)}
    ids = {mine.id: theirs.id for mine, theirs in pairs}
    named = mapped(reference, lambda op: replace(renamed_op(op, values), id=ids[op.id]))
    named = replace(named, body=tuple(_renamed_loops(node, values) for node in named.body))
    theirs_by_id = {op.id: op for op in ops_of(program.body)}
    for op in ops_of(named.body):
        _check_same(op, theirs_by_id[op.id])
    _check_loops(named, program)
    return named


def _renamed_loops(node: Node, values: dict[str, str]) -> Node:
    if isinstance(node, Op):
        return node
    over = renamed_use(node.over, values) if node.over is not None else None
    return replace(node, over=over, body=tuple(_renamed_loops(inner, values) for inner in node.body))


def _missing(op: Op, program: Program, reference: Program) -> MissingOpError:
    assert op.origin is not None, "every op has an origin"
    part = f", part `{op.origin.part}` of `{op.origin.op}`," if op.origin.part else ""
    message = f"`{op.id}`{part} does not run in the schedule"
    elsewhere = [other for other in program.ops() if other.origin == op.origin and other.micro == op.micro]
    help = f"`{elsewhere[0].id}` stands in another loop, or in none" if elsewhere else ""
    notes = [Note(edge.reason, _loc(reference, edge.after)) for edge in _needing(op, reference)]
    if op.origin.part in _ARMS:
        notes.insert(0, Note(_ARMS[op.origin.part]))
    return MissingOpError(message, loc=op.loc or program.loc, notes=tuple(notes), help=help)


def _needing(op: Op, reference: Program) -> list[Edge]:
    """The edge that tells best what needs an op, if one does: by a value, by the parameters, or else by other state."""
    needs = [
        edge
        for edge in edges_of(reference)
        if edge.before == op.id != edge.after and edge.kind in (EdgeKind.VALUE, EdgeKind.RAW)
    ]
    return sorted(needs, key=lambda edge: (edge.kind is not EdgeKind.VALUE, edge.what != "params", edge.distance))[:1]


def _loc(reference: Program, id: str) -> Loc | None:
    return next((op.loc for op in reference.ops() if op.id == id), None)


def _foreign(op: Op, reference: Program) -> ForeignOpError:
    assert op.origin is not None, "every op has an origin"
    part = f"part `{op.origin.part}` of " if op.origin.part else ""
    message = f"`{op.id}` stands for {part}`{op.origin.op}`, which the source does not run there"
    return ForeignOpError(message, loc=op.loc or reference.loc)


def _check_same(mine: Op, theirs: Op) -> None:
    """The schedule's op does what the reference's does; place, shift and lane are its own."""
    for what, words in (
        ("kind", "another kind"),
        ("attrs", "other attributes"),
        ("args", "other operands"),
        ("results", "other results"),
        ("when", "another condition"),
    ):
        here, there = getattr(theirs, what), getattr(mine, what)
        if here != there:
            shown = f"it is {_shown(here)} here, and has to be {_shown(there)}"
            message = f"`{theirs.id}` has {words} than in its source"
            raise ChangedOpError(message, loc=theirs.loc, notes=_choice(mine), help=shown)


def _choice(op: Op) -> tuple[Note, ...]:
    """What the condition of one of two ops that send a micro-batch is for."""
    if op.origin is None or op.origin.part not in _ARMS:
        return ()
    return (Note(f"{_ARMS[op.origin.part]}; of the ops that send it exactly one runs"),)


_WHOLE = "it sends the micro-batch where none was sent ahead: not packed in time, or lost on the way"
_ARMS = {
    "staged": "it sends the micro-batch that was shipped ahead",
    "whole": _WHOLE,
    "early": "it sends the micro-batch ahead, packed in time",
    "late": _WHOLE,
}


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return (
            "(" + ", ".join(f"{item[0]}={item[1]!r}" if isinstance(item, tuple) else str(item) for item in value) + ")"
        )
    return f"`{value}`"


def _check_loops(reference: Program, program: Program) -> None:
    """Loops are those of the reference, and those that are moved as a whole hold the same ops in the same order."""
    theirs = {loop.id: loop for loop in _loops(program.body)}
    for loop in _loops(reference.body):
        other = theirs.pop(loop.id, None)
        if other is None:
            raise MissingOpError(f"loop `{loop.id}` does not run in the schedule", loc=loop.loc)
        for mine, their in zip(_nest(loop), _nest(other), strict=False):
            if mine != their:
                message = f"loop `{loop.id}` is not the loop of the source"
                raise ChangedOpError(message, loc=other.loc, help=f"the source has {mine}, the schedule {their}")
        if len(_nest(loop)) != len(_nest(other)):
            raise ChangedOpError(f"loop `{loop.id}` does not hold what it does in the source", loc=other.loc)
    for loop in theirs.values():
        raise ForeignOpError(f"the source has no loop `{loop.id}`", loc=loop.loc)
    for here, there in ((reference.prologue, program.prologue), (reference.epilogue, program.epilogue)):
        if [_plain(node) for node in here] != [_plain(node) for node in there]:
            message = "what stands before the first step and after the last is not what it is in the source"
            raise ChangedOpError(message, loc=program.loc)


def _nest(loop: Loop) -> list[str]:
    """A loop's head, and the order of what must not change inside it."""
    head = _head(loop)
    if loop.kind == "micro_batches":
        inner = sorted(node.id for node in loop.body if isinstance(node, Op))
        nested = [line for node in loop.body if isinstance(node, Loop) for line in _whole(node)]
        return [head, *inner, *nested]
    return _whole(loop)


def _head(loop: Loop) -> str:
    """What a loop runs over and how often, as its line says it."""
    over = f" in {loop.over}" if loop.over else ""
    times = f" times {loop.count}" if loop.count is not None else ""
    return loop.kind + over + times + (f" from {loop.start}" if loop.start else "")


def _whole(node: Node) -> list[str]:
    if isinstance(node, Op):
        return [f"`{node.id}`" + (f" {node.shift} ahead" if node.shift else "")]
    lines = [f"loop `{node.id}`: {_head(node)}"]
    return lines + [line for inner in node.body for line in _whole(inner)]


def _plain(node: Node) -> Node:
    """A node without what a schedule or a text may change: places in files."""
    if isinstance(node, Op):
        return replace(node, loc=None)
    return replace(node, loc=None, body=tuple(_plain(inner) for inner in node.body))
