"""Values: made before they are used, in scope, of the type that is needed, under conditions that fit."""

from __future__ import annotations

from dataclasses import dataclass

from steptrace.diag.base import Note
from steptrace.diag.structure import (
    ConditionalValueError,
    NotAFlagError,
    OperandTypeError,
    OtherMicroBatchError,
    OtherStepError,
    UndefinedValueError,
    UnusedResultError,
    ValueOutOfScopeError,
)
from steptrace.diag.text import DuplicateNameError
from steptrace.ir.predicate import ALWAYS, Predicate, flags_of
from steptrace.ir.program import Loop, Node, Op, Use
from steptrace.ir.resource import Access
from steptrace.ir.types import Type
from steptrace.ir.verify.conditions import exclusive, implies
from steptrace.ir.verify.ground import Ground

SOURCES = {"next_mb": "micro_batches", "stream_mb": "micro_batches", "next_part": "mini_batches"}
"""The ops that hand out what a round of a loop works on, and the loops whose first op they are."""

_SECTIONS = ("before step 0", "in the step", "after the last step")


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a node stands.

    Attributes:
      node: the op or loop.
      section: 0 before the first step, 1 in the step, 2 after the last.
      loops: the loops around it, outermost first.
      path: its index in the body of each of them, and in the section first of all.
    """

    node: Node
    section: int
    loops: tuple[Loop, ...]
    path: tuple[int, ...]

    @property
    def when(self) -> Predicate:
        """The condition under which it runs."""
        return self.node.when if isinstance(self.node, Op) else ALWAYS


@dataclass(frozen=True, slots=True)
class Made:
    """A value: its type and the op that makes it."""

    type: Type
    spot: Spot


def spots(ground: Ground) -> list[Spot]:
    """Every node of the program with its place in the structure, in order."""
    found: list[Spot] = []

    def visit(nodes: tuple[Node, ...], section: int, loops: tuple[Loop, ...], path: tuple[int, ...]) -> None:
        for index, node in enumerate(nodes):
            found.append(Spot(node, section, loops, (*path, index)))
            if isinstance(node, Loop):
                visit(node.body, section, (*loops, node), (*path, index))

    program = ground.program
    for section, nodes in enumerate((program.prologue, program.body, program.epilogue)):
        visit(nodes, section, (), ())
    return found


def check_values(ground: Ground, nodes: list[Spot]) -> None:
    """Each operand, loop and condition uses a value that exists there and fits."""
    made = _made(ground, nodes)
    _check_carries(ground, made)
    for spot in nodes:
        node = spot.node
        if isinstance(node, Loop):
            if node.over is not None:
                _check_use(ground, made, spot, node.over)
            continue
        row = ground.row(node)
        for position, use in enumerate(node.args):
            type_ = _check_use(ground, made, spot, use)
            wrong = row.misfits(position, type_) if type_ else ""
            if wrong:
                ground.report(OperandTypeError, wrong, node, str(use), notes=_made_here(ground, made, use.name))
        for name in flags_of(node.when):
            type_ = _check_use(ground, made, spot, Use(name), "when")
            if type_ and type_.base != "flag":
                message = f"`{node.id}` runs when `%{name}` is true, but that is a {type_.base}, not a flag"
                ground.report(NotAFlagError, message, node, "when", notes=_made_here(ground, made, name))


def check_unused(ground: Ground, nodes: list[Spot]) -> None:
    """An op that writes nothing makes something that is used."""
    used = {carry.name for carry in ground.program.carries}
    for spot in nodes:
        if isinstance(spot.node, Loop):
            used |= {spot.node.over.name} if spot.node.over else set()
        else:
            used |= {use.name for use in spot.node.args} | set(flags_of(spot.node.when))
    for spot in nodes:
        op = spot.node
        if isinstance(op, Loop) or not op.results or op.kind in SOURCES:
            continue
        writes = any(effect.access is Access.WRITE for effect in ground.effects(op))
        if not writes and used.isdisjoint(result.name for result in op.results):
            message = f"`{op.id}` only makes `%{op.results[0].name}`, which nothing uses"
            ground.report(UnusedResultError, message, op, help=_assign_back(op))


def _assign_back(op: Op) -> str:
    operand = f"{op.args[0].name.partition('.')[0]}" if op.args else ""
    return f"values do not change in place; assign the result: `{operand or 'x'} = step.{op.kind}({operand})`"


def _made(ground: Ground, nodes: list[Spot]) -> dict[str, list[Made]]:
    """Who makes each value. Several may: the arms of a choice."""
    made: dict[str, list[Made]] = {}
    for spot in nodes:
        if isinstance(spot.node, Loop):
            continue
        for result in spot.node.results:
            others = made.setdefault(result.name, [])
            if not all(_arms(spot.node, other) and other.type == result.type for other in others):
                message = f"`%{result.name}` is made twice"
                notes = _made_here(ground, made, result.name)
                ground.report(DuplicateNameError, message, spot.node, f"%{result.name}", notes=notes)
                continue
            others.append(Made(result.type, spot))
    return made


def _arms(op: Op, other: Made) -> bool:
    """Whether two ops are arms of one choice: one origin, and never both in one instance."""
    node = other.spot.node
    assert isinstance(node, Op), "loops make no values"
    same = op.origin and node.origin and op.origin.op == node.origin.op
    return bool(same) and exclusive(op.when, node.when)


def _check_carries(ground: Ground, made: dict[str, list[Made]]) -> None:
    seen = set()
    for carry in ground.program.carries:
        item, makers = f"carry {carry.name}", made.get(carry.name, [])
        if carry.name in seen:
            ground.report_item(DuplicateNameError, f"`%{carry.name}` is carried twice", item, carry.loc)
        seen.add(carry.name)
        if not makers or makers[0].spot.section != 1:
            ground.report_item(
                OtherStepError,
                f"`%{carry.name}` is carried over steps, and no op of the step makes it",
                item,
                carry.loc,
            )
            continue
        if any(maker.spot.loops or maker.spot.when != ALWAYS for maker in makers):
            message = f"`%{carry.name}` is carried over steps, and made only in a loop or under a condition"
            help = "make it outside of them: every step must hand on one value"
            ground.report(OtherStepError, message, makers[0].spot.node, f"%{carry.name}", help=help)
        if makers[0].type.base not in ("scalar", "value"):
            message = f"`%{carry.name}` is carried over steps from a number on, and is a {makers[0].type.base}"
            ground.report(OtherStepError, message, makers[0].spot.node, f"%{carry.name}", help="carry a scalar")


def _check_use(ground: Ground, made: dict[str, list[Made]], spot: Spot, use: Use, part: str = "") -> Type | None:
    """Checks one use of a value; its type, or None after a report."""
    part = part or str(use)
    node, makers = spot.node, made.get(use.name, [])
    if use.step:
        return _check_other_step(ground, made, spot, use, part)
    if not makers:
        message = f"`{node.id}` reads `%{use.name}`, which no op makes"
        ground.report(UndefinedValueError, message, node, part, help=_nearest(use.name, made))
        return None
    if use.micro:
        return _check_other_micro(ground, makers, spot, use, part)
    maker = makers[0].spot
    notes = _made_here(ground, made, use.name)
    if maker.section > spot.section or (maker.section, spot.section) == (1, 2):
        message = f"`%{use.name}` is made {_SECTIONS[maker.section]} and used {_SECTIONS[spot.section]}"
        ground.report(ValueOutOfScopeError, message, node, part, notes=notes, help="a `carry` hands a value on")
        return None
    if maker.loops != spot.loops[: len(maker.loops)]:
        message = f"`%{use.name}` is used outside the loop that makes it"
        ground.report(ValueOutOfScopeError, message, node, part, notes=notes, help="move the op into the loop")
        return None
    if not all(_before(other.spot, spot) for other in makers):
        message = f"`{node.id}` reads `%{use.name}`, which `{maker.node.id}` makes only after it"
        ground.report(UndefinedValueError, message, node, part, notes=notes)
        return None
    got = _rounds(spot)
    if isinstance(maker.node, Op) and maker.node.micro is not None and (got is None or got < maker.node.micro):
        message = f"`{node.id}` reads `%{use.name}` also in steps without a micro-batch {maker.node.micro}"
        ground.report(ConditionalValueError, message, node, part, notes=notes)
        return None
    if not implies(spot.when, tuple(other.spot.when for other in makers)):
        when = " or ".join(str(other.spot.when) for other in makers)
        message = f"`{node.id}` reads `%{use.name}` also when `{when}` is false, and then it does not exist"
        ground.report(ConditionalValueError, message, node, part, notes=notes)
        return None
    return makers[0].type


def _check_other_step(ground: Ground, made: dict[str, list[Made]], spot: Spot, use: Use, part: str) -> Type | None:
    carried = any(carry.name == use.name for carry in ground.program.carries)
    message = help = ""
    if not carried:
        message = f"`{spot.node.id}` reads `{use}`, and no carry hands `%{use.name}` from step to step"
        help = f"declare `carry %{use.name} = ...` with the value that step 0 sees"
    elif use.step != -1 or use.micro:
        message, help = f"`{spot.node.id}` reads `{use}`; a carry reaches back one step", f"read `%{use.name}@k-1`"
    elif spot.section == 0:
        message, help = f"`{spot.node.id}` reads `{use}`, and no step stands before step 0", ""
    if message:
        ground.report(OtherStepError, message, spot.node, part, help=help)
        return None
    makers = made.get(use.name)
    return makers[0].type if makers else None


def _check_other_micro(ground: Ground, makers: list[Made], spot: Spot, use: Use, part: str) -> Type | None:
    loops = [loop for loop in spot.loops if loop.kind == "micro_batches"]
    message = ""
    if not loops:
        message = f"`{spot.node.id}` reads `{use}` outside a loop over micro-batches"
    elif use.micro > 0:
        message = f"`{spot.node.id}` reads `{use}`, which a later round makes"
    elif loops[-1] not in makers[0].spot.loops:
        message = f"`{spot.node.id}` reads `{use}`, but `%{use.name}` is not made anew for each micro-batch"
    if message:
        ground.report(OtherMicroBatchError, message, spot.node, part)
        return None
    return makers[0].type


def _before(maker: Spot, user: Spot) -> bool:
    """Whether the value exists when its user runs, as far as the order on one lane tells.

    An op that is shifted ahead runs its instance in an earlier round. Between lanes, another shift than the
    maker's is a question of waits, which the order of the text does not answer.
    """
    if maker.section < user.section:
        return True
    depth = len(maker.loops)
    ahead = _shift(maker) - (_shift(user) if len(user.loops) == depth else 0)
    if ahead:
        return ahead > 0 or _lane(maker) != _lane(user)
    return maker.path[depth] < user.path[depth]


def _rounds(spot: Spot) -> int | None:
    """The first micro-batch that a node stands for, None outside of micro-batches."""
    if isinstance(spot.node, Op) and spot.node.micro is not None:
        return spot.node.micro
    return next((loop.start for loop in spot.loops if loop.kind == "micro_batches"), None)


def _shift(spot: Spot) -> int:
    return spot.node.shift if isinstance(spot.node, Op) else 0


def _lane(spot: Spot) -> str:
    return spot.node.lane if isinstance(spot.node, Op) else ""


def _made_here(ground: Ground, made: dict[str, list[Made]], name: str) -> tuple[Note, ...]:
    makers = made.get(name, [])
    return tuple(Note(f"`{maker.spot.node.id}` makes `%{name}` here", ground.at(maker.spot.node)) for maker in makers)


def _nearest(name: str, made: dict[str, list[Made]]) -> str:
    from difflib import get_close_matches  # only for a refusal: its import takes as long as a whole check

    near = get_close_matches(name, list(made), 1)
    return f"did you mean `%{near[0]}`?" if near else ""
