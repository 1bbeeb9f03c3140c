"""The law ``stream``: a step in bulk is the step that packs groups as they arrive, with its stream drained first.

``take; reward; advantages; pack; loop m in %batch { next_mb(%batch); ... }  -->  loop m { stream_mb(); ... }``

Both take the same groups in the same order. That the same micro-batches come out of them is what the law assumes
(``ASSUMES``); everything else it checks: each op between the take and the loop looks at one group at a time, nothing
else sees the groups or the batch, and nothing in the loop would now come before a group that arrives later and minds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from steptrace.check.release_law import LENT
from steptrace.check.rewrite import fresh, spliced
from steptrace.check.units import conflict, is_stream
from steptrace.diag.base import Note
from steptrace.diag.loc import Loc
from steptrace.diag.schedule import LawError
from steptrace.ir.builtin import GROUP_ESTIMATORS, kinds_of
from steptrace.ir.effects import effects_of
from steptrace.ir.predicate import ALWAYS, flags_of
from steptrace.ir.program import Loop, Node, Op, Origin, Program, Result, Use, ops_of
from steptrace.ir.resource import Access, Effect

STREAM = "stream"
"""Name of the law, and the part that ``stream_mb`` is of the op that took micro-batches from the batch."""

ASSUMES = (
    "packing is prefix-stable, so that a group that arrives later changes no micro-batch that is complete; "
    "rewards and advantages look at one group at a time"
)
"""What the law takes for granted about the parts that are bound to a program."""

_HEAD = "next_mb"
_CHAIN = ("take", "reward", "advantages", "pack")
"""What the stream does with each group, in its order."""

_DROPPED = frozenset({"grads", "trainer.metrics", "trainer.calls"})
"""What is dropped when a step fails before its update, so that it may be written before the last group is there."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a step cannot be streamed.

    Attributes:
      before: the op that gives what is in the way, by id; ``""`` where no op is.
      after: the op that is in the way, by id.
      why: in a sentence without its beginning.
      loc: its line.
      help: the way out.
    """

    before: str
    after: str
    why: str
    loc: Loc | None
    help: str = ""


def streamed(program: Program, op: Op) -> Program:
    """The program with the law applied at the op that takes micro-batches from the batch.

    Raises:
      LawError: a condition of the law does not hold.
    """
    loop = next((node for node in program.body if isinstance(node, Loop) and op in node.body), None)
    if loop is None:
        raise _refusal(op, Obstacle("", op.id, "it stands in no loop directly in the step", op.loc))
    obstacle = obstacle_to_stream(program, loop)
    if obstacle is not None:
        raise _refusal(op, obstacle)
    chain = chain_of(program, loop)
    take, estimate = chain[0], chain[2]
    (id,) = fresh(program, "stream_mb")
    exists = next(result for result in take.results if result.type.base == "flag")
    results = (*op.results, Result(exists.name, exists.type))
    attrs = tuple(pair for pair in estimate.attrs if pair[0] == "estimator")
    attrs += tuple(pair for pair in op.attrs if pair[0] == LENT)
    source = op.origin.op if op.origin else op.id
    stream = replace(op, id=id, kind="stream_mb", args=(), results=results, attrs=attrs, origin=Origin(source, STREAM))
    rest = tuple(node for node in program.body if node not in chain)
    program = spliced(replace(program, body=rest), op.id, (stream,))
    return spliced(program, loop.id, (_without_batch(program, loop.id),))


def _refusal(op: Op, obstacle: Obstacle) -> LawError:
    notes = () if obstacle.after == op.id else (Note(f"`{op.id}` takes from the whole step's batch", op.loc),)
    message = f"`{STREAM}` cannot be applied to `{op.id}`: {obstacle.why}"
    return LawError(message, loc=obstacle.loc, notes=notes, help=obstacle.help)


def _without_batch(program: Program, loop_id: str) -> Loop:
    loop = next(node for node in program.body if node.id == loop_id)
    assert isinstance(loop, Loop), "the loop keeps its id"
    return replace(loop, over=None)


def assumptions_of(program: Program) -> tuple[str, ...]:
    """What is taken for granted about bound parts, for a schedule to equal its source."""
    applied = any(op.origin is not None and op.origin.part == STREAM for op in ops_of(program.body))
    return (ASSUMES,) if applied else ()


def chain_of(program: Program, loop: Loop) -> tuple[Op, ...]:
    """The ops that lead from the queue to the batch of a loop, in their order, as far as they are those of a stream."""
    makers = _makers(program.body)
    found: list[Op] = []
    use = loop.over
    for kind in reversed(_CHAIN):
        op = makers.get(use.name) if use is not None and not use.step else None
        if op is None or op.kind != kind:
            break
        found.append(op)
        use = op.args[0] if op.args else None
    return tuple(reversed(found))


def obstacle_to_stream(program: Program, loop: Loop) -> Obstacle | None:
    """The first thing in the way of streaming the micro-batches of a loop; None if nothing is."""
    return next(_obstacles(program, loop), None)


def _obstacles(program: Program, loop: Loop) -> Iterator[Obstacle]:
    head = loop.body[0]
    if not is_stream(loop) or not isinstance(head, Op) or loop not in program.body:
        yield Obstacle("", loop.id, "it stands in no loop over micro-batches directly in the step", loop.loc)
        return
    if loop.over is None:
        yield Obstacle("", head.id, f"`{head.id}` packs groups as they arrive already", head.loc)
        return
    if head.kind != _HEAD:
        yield Obstacle("", head.id, f"`{head.id}` does not take micro-batches one by one", head.loc)
        return
    chain = chain_of(program, loop)
    yield from _moved((*chain, head), head, loop)
    yield from _unlike(program, loop, chain)
    yield from _seen(program, loop, chain)
    yield from _between(program, loop, chain)
    yield from _inside(program, loop, (*chain, head))


def _unlike(program: Program, loop: Loop, chain: tuple[Op, ...]) -> Iterator[Obstacle]:
    """What needs all groups of the step on the way from the queue to the batch."""
    if len(chain) < len(_CHAIN):
        yield _stranger(program, loop, chain)
        return
    estimate = chain[2]
    if estimate.attr("estimator") not in GROUP_ESTIMATORS:
        name = estimate.attr("estimator")
        why = f"`{estimate.id}` normalises over the whole step (estimator `{name}`), so it needs its last group"
        ways = ", ".join(f"`{known}`" for known in GROUP_ESTIMATORS)
        yield Obstacle(chain[1].id, estimate.id, why, estimate.loc, f"estimators that look at one group: {ways}")


def _stranger(program: Program, loop: Loop, chain: tuple[Op, ...]) -> Obstacle:
    """The op in front of the chain that is none of a stream's."""
    use, user = (chain[0].args[0], chain[0].id) if chain else (loop.over, loop.id)
    makers = _makers(program.body)
    other = makers.get(use.name) if use is not None and not use.step else None
    if other is None:
        return Obstacle("", user, f"`{user}` uses what is not made directly in its step", loop.loc)
    maker = makers.get(other.args[0].name) if other.args else None
    why = f"`{other.id}` gets all groups of the step at once, and nothing says that it looks at one at a time"
    return Obstacle(maker.id if maker else "", other.id, why, other.loc, "score each group by itself, in the reward")


def _makers(nodes: tuple[Node, ...]) -> dict[str, Op]:
    return {result.name: node for node in nodes if isinstance(node, Op) for result in node.results}


def _seen(program: Program, loop: Loop, chain: tuple[Op, ...]) -> Iterator[Obstacle]:
    """Who else uses the groups, the batch, or the flag of the take."""
    makers = _makers(chain)
    own = {op.id for op in chain} | {loop.body[0].id}
    for node, use in _uses(program.prologue + program.body + program.epilogue):
        if use.name in makers and node.id not in own and node is not loop:
            maker = makers[use.name].id
            why = f"`{node.id}` wants `{use}` as a whole, which `{maker}` gives"
            yield Obstacle(maker, node.id, why, node.loc)


def _uses(nodes: tuple[Node, ...]) -> Iterator[tuple[Node, Use]]:
    for node in nodes:
        if isinstance(node, Loop):
            if node.over is not None:
                yield node, node.over
            yield from _uses(node.body)
        else:
            yield from ((node, use) for use in (*node.args, *map(Use, flags_of(node.when))))


def _moved(ops: tuple[Op, ...], head: Op, loop: Loop) -> Iterator[Obstacle]:
    """Ops that a schedule has moved already, or that run under a condition."""
    if loop.start:
        yield Obstacle("", head.id, f"the first micro-batch of `{loop.id}` stands outside it already", loop.loc)
    for op in ops:
        if op.shift or op.lane != head.lane or op.when != ALWAYS or (op.origin and op.origin.part):
            why = f"`{op.id}` runs ahead already, on another lane than `{head.id}`, or under a condition"
            yield Obstacle("", op.id, why, op.loc, "stream the step before other passes")


def _between(program: Program, loop: Loop, chain: tuple[Op, ...]) -> Iterator[Obstacle]:
    """Who stands between the take and the loop: it would come before what it stood behind."""
    first, last = program.body.index(chain[0]), program.body.index(loop)
    for node in program.body[first:last]:
        if node not in chain:
            why = f"`{node.id}` stands between `{chain[0].id}` and the loop, behind the whole step's groups"
            help = f"write it before `{chain[0].id}`, or after the loop"
            yield Obstacle(chain[0].id, node.id, why, node.loc, help)


def _inside(program: Program, loop: Loop, ops: tuple[Op, ...]) -> Iterator[Obstacle]:
    """Who sees, in the loop, what only all groups together leave, or leaves what a later group could not take back."""
    for op in ops_of(loop.body):
        if op in ops or kinds_of(program)[op.kind].frees:
            continue
        mine = _effects(program, op)
        for other in reversed(ops):
            if conflict(_effects(program, other), mine):
                why = f"`{op.id}` touches what `{other.id}` leaves once all groups of the step are there"
                yield Obstacle(other.id, op.id, why, op.loc, "move it behind the loop")
        lasting = sorted(one.resource for one in mine if one.access is Access.WRITE and one.resource not in _DROPPED)
        if lasting:
            why = f"`{op.id}` writes `{lasting[0]}`, which stays when a group that arrives later fails"
            yield Obstacle(ops[0].id, op.id, why, op.loc, "move it behind the loop")


def _effects(program: Program, op: Op) -> tuple[Effect, ...]:
    """What an op touches on a micro-batch that is not the step's last; that one closes the step behind every group."""
    plain = replace(op, attrs=tuple(pair for pair in op.attrs if pair[0] != "closes"))
    return effects_of(plain, kinds_of(program)[op.kind], program.contract)
