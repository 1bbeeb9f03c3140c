"""How often loops of a compiled program run: as the compiler notes it, else from what counts and what it is held to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from steptrace_kernels.hlo_text import Computation, Instruction, Module

_NOTED = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_SAME = ("copy", "bitcast", "convert", "reshape", "copy-start", "copy-done", "optimization-barrier")


@dataclass(frozen=True)
class Place:
    """An instruction in a computation; for a fused one, with the instruction that it is fused into."""

    inside: Computation
    one: Instruction
    fused_into: Place | None = None


def trips(module: Module, inside: Computation, loop: Instruction) -> int | None:
    """How often the body of ``loop``, a ``while`` of the computation ``inside``, runs; None where that is not told.

    XLA's own note counts. Where there is none, as on TPU, the loop must count one element of its state up by a constant
    from a constant, and stop at a constant: all three are looked up, none is taken for granted.
    """
    noted = _NOTED.search(loop.attributes)
    if noted:
        return int(noted[1])
    condition, body = (_callee(module, loop, kind) for kind in ("condition", "body"))
    held = None if condition is None else _bound(module, condition)
    if held is None or body is None:
        return None
    index, bound, inclusive = held
    start, step = _initial(module, inside, loop, index), _step(module, body, index)
    if start is None or step is None or step <= 0:
        return None
    return max(0, -(-(bound + inclusive - start) // step))


def _bound(module: Module, condition: Computation) -> tuple[int, int, bool] | None:
    """Which element of the state is compared with which constant, and whether it may reach it."""
    compare = _followed(module, Place(condition, condition.root))
    direction = re.search(r"direction=(\w\w)", compare.one.attributes)
    if compare.one.opcode != "compare" or direction is None or len(compare.one.operands) != 2:
        return None
    sides = [_operand(module, compare, at) for at in (0, 1)]
    kind = direction[1]
    if kind in ("GT", "GE"):
        sides, kind = sides[::-1], {"GT": "LT", "GE": "LE"}[kind]
    index, bound = _element(sides[0]), _constant(sides[1])
    return None if kind not in ("LT", "LE") or index is None or bound is None else (index, bound, kind == "LE")


def _initial(module: Module, inside: Computation, loop: Instruction, index: int) -> int | None:
    """With what the state's element ``index`` begins."""
    state = _operand(module, Place(inside, loop), 0)
    if state is None or state.one.opcode != "tuple" or index >= len(state.one.operands):
        return None
    return _constant(_operand(module, state, index))


def _step(module: Module, body: Computation, index: int) -> int | None:
    """What a turn adds to the state's element ``index``."""
    state = _followed(module, Place(body, body.root))
    if state.one.opcode != "tuple" or index >= len(state.one.operands):
        return None
    added = _operand(module, state, index)
    if added is None or added.one.opcode != "add":
        return None
    sides = [_operand(module, added, at) for at in (0, 1)]
    numbers = [number for side in sides if (number := _constant(side)) is not None]
    return numbers[0] if len(numbers) == 1 and index in [_element(side) for side in sides] else None


def _element(place: Place | None) -> int | None:
    """Which element of the state stands there."""
    if place is None or place.one.opcode != "get-tuple-element":
        return None
    found = re.search(r"index=(\d+)", place.one.attributes)
    return int(found[1]) if found else None


def _constant(place: Place | None) -> int | None:
    """The whole number that stands there."""
    if place is None or place.one.opcode != "constant" or not re.fullmatch(r"-?\d+", place.one.arguments.strip()):
        return None
    return int(place.one.arguments)


def _operand(module: Module, place: Place, at: int) -> Place | None:
    """Where operand ``at`` comes from."""
    further = _next(place, at)
    return None if further is None else _followed(module, further)


def _followed(module: Module, place: Place) -> Place:
    """Behind copies and changes of type, into fusions, and out of them by their parameters."""
    while True:
        further: Place | None = None
        if place.one.opcode in _SAME:
            further = _next(place, 0)
        elif place.one.opcode in ("fusion", "call"):
            inner = _callee(module, place.one, "calls", "to_apply")
            further = None if inner is None else Place(inner, inner.root, place)
        elif place.one.opcode == "parameter" and place.fused_into is not None:
            further = _next(place.fused_into, int(place.one.arguments))
        if further is None:
            return place
        place = further


def _callee(module: Module, one: Instruction, *kinds: str) -> Computation | None:
    names = one.callees(*kinds)
    return module.computations.get(names[0]) if names else None


def _next(place: Place, at: int) -> Place | None:
    names = place.one.operands
    one = place.inside.instructions.get(names[at]) if at < len(names) else None
    return None if one is None else Place(place.inside, one, place.fused_into)
