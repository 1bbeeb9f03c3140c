"""What differs between two programs or schedules, op by op: what was moved, shifted, split, joined, added, left out."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import groupby
from typing import NamedTuple

from steptrace.check.laws import LAWS
from steptrace.ir.predicate import ALWAYS
from steptrace.ir.program import Loop, Node, Op, Program

_STEP = ""
"""The home of what stands directly in the step."""

_PARTS = {part: at for law in LAWS.values() for at, part in enumerate(law.parts)}


class Change(NamedTuple):
    """One difference.

    Attributes:
      subject: the op, loop or declaration it is about.
      words: what is different in the second program, a phrase.
    """

    subject: str
    words: str


class _Key(NamedTuple):
    """What pairs ops of two programs.

    Attributes:
      op: the source op.
      micro: the micro-batch it stands for outside its loop, None for none.
      part: which part of the source op.
      number: how many of the same stand before it.
    """

    op: str
    micro: int | None
    part: str
    number: int


@dataclass(frozen=True)
class _Side:
    """One program, laid out for comparison.

    Attributes:
      program: the program.
      ops: its ops by what pairs them, in order.
      home: for each op and loop the loop around it, or ``_STEP``.
      loops: its loops by id.
    """

    program: Program
    ops: dict[_Key, Op]
    home: dict[_Key, str]
    loops: dict[str, Loop]


def differences(before: Program, after: Program) -> tuple[Change, ...]:
    """What is different in ``after``; empty when the programs are the same but for the places in source files.

    Ops are paired by the op of the source that they stand for, so a program can be compared with its schedule, and two
    schedules of one program with each other. An op has moved if it stands elsewhere among those that have not; as few
    as possible are said to have moved.
    """
    one, other = _side(before), _side(after)
    found = (*_declarations(before, after), *_families(one, other), *_loops(one, other), *_moves(one, other))
    return tuple(_summed_up(found))


def _summed_up(changes: Iterable[Change]) -> Iterator[Change]:
    """One entry for what is said about one subject, and for neighbours of which the same is said."""
    of_subject = [
        Change(subject, "; ".join(change.words for change in group))
        for subject, group in groupby(changes, key=lambda change: change.subject)
    ]
    for words, group in groupby(of_subject, key=lambda change: change.words):
        yield Change(", ".join(change.subject for change in group), words)


def _side(program: Program) -> _Side:
    side = _Side(program, {}, {}, {})
    counts: dict[tuple[str, int | None, str], int] = defaultdict(int)

    def visit(nodes: Iterable[Node], home: str) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                side.loops[node.id] = node
                side.home[_Key(node.id, None, "loop", 0)] = home
                visit(node.body, node.id)
                continue
            assert node.origin is not None, "every op has an origin"
            name = (node.origin.op, node.micro, node.origin.part)
            key = _Key(*name, counts[name])
            counts[name] += 1
            side.ops[key] = node
            side.home[key] = home

    visit(program.prologue, "before")
    visit(program.body, _STEP)
    visit(program.epilogue, "after")
    return side


def _declarations(before: Program, after: Program) -> Iterator[Change]:
    for field in fields(before.contract):
        here, there = getattr(before.contract, field.name), getattr(after.contract, field.name)
        if here != there:
            yield Change("contract", f"{field.name}={there}, was {here}")
    for what in ("params", "carries", "kinds"):
        mine = {item[0] if what == "params" else item.name: item for item in getattr(before, what)}
        theirs = {item[0] if what == "params" else item.name: item for item in getattr(after, what)}
        yield from _entries({"params": "parameter", "carries": "carry", "kinds": "row"}[what], mine, theirs)
    resources, others = before.resource_table(), after.resource_table()
    for name in (name for name in resources if name in others):
        here, there = resources[name].capacity, others[name].capacity
        if here != there:
            yield Change(f"resource {name}", f"holds {there or 'any number'}, was {here or 'any number'}")


def _entries(noun: str, mine: dict[str, object], theirs: dict[str, object]) -> Iterator[Change]:
    for name in dict.fromkeys((*mine, *theirs)):
        if name not in theirs:
            yield Change(f"{noun} {name}", "left out")
        elif name not in mine:
            yield Change(f"{noun} {name}", "added")
        elif _plain(mine[name]) != _plain(theirs[name]):
            shown = f"{_value(theirs[name])}, was {_value(mine[name])}" if noun == "parameter" else "another one"
            yield Change(f"{noun} {name}", shown)


def _plain(item: object) -> tuple[object, ...]:
    """An entry without its place in a file."""
    if isinstance(item, tuple):
        return item
    return tuple(getattr(item, field.name) for field in fields(item) if field.name != "loc")  # type: ignore[arg-type]


def _value(item: object) -> object:
    return item[1] if isinstance(item, tuple) else item


def _families(one: _Side, other: _Side) -> Iterator[Change]:
    """Source ops of which the two programs have different parts, or that only one of them has."""
    mine, theirs = _grouped(one), _grouped(other)
    for origin in dict.fromkeys((*mine, *theirs)):
        here, there = mine.get(origin, {}), theirs.get(origin, {})
        if not there:
            yield Change(_names(here.values()), _gone(origin, other))
        elif not here:
            yield Change(_names(there.values()), _come(origin, one))
        else:
            yield from _regrouped(here, there)


def _grouped(side: _Side) -> dict[str, dict[_Key, Op]]:
    groups: dict[str, dict[_Key, Op]] = defaultdict(dict)
    for key, op in side.ops.items():
        groups[key.op][key] = op
    return groups


def _gone(origin: str, other: _Side) -> str:
    closing = [op.id for op in other.ops.values() if op.attr("closes") == origin]
    return f"done by the last call of {_quoted(closing)}" if closing else "left out"


def _come(origin: str, one: _Side) -> str:
    closing = [op.id for op in one.ops.values() if op.attr("closes") == origin]
    return f"an op of its own, was done by the last call of {_quoted(closing)}" if closing else "added"


def _regrouped(here: dict[_Key, Op], there: dict[_Key, Op]) -> Iterator[Change]:
    """The two have ops of one source op, but perhaps not the same ones."""
    inside = {key.micro for key in here}
    for key, op in there.items():
        if key.micro not in inside and key.micro is not None and not key.part:
            yield Change(f"`{op.id}`", f"micro-batch {key.micro} of `{key.op}`, taken out of the loop")
    for micro in dict.fromkeys(key.micro for key in (*here, *there)):
        mine = {key: op for key, op in here.items() if key.micro == micro}
        theirs = {key: op for key, op in there.items() if key.micro == micro}
        if not theirs:
            yield Change(_names(mine.values()), "back in the loop")
        elif mine and mine.keys() != theirs.keys():
            yield Change(_names(mine.values()), f"{_verb(mine, theirs)} {_names(theirs.values())}")
        elif not mine and any(key.part for key in theirs):
            yield Change(
                _names(theirs.values()),
                f"micro-batch {micro} of `{next(iter(theirs)).op}`, taken out of the loop, in parts",
            )


def _verb(mine: dict[_Key, Op], theirs: dict[_Key, Op]) -> str:
    if len(mine) == len(theirs):
        return "is now"
    return "split into" if len(mine) < len(theirs) else "joined to"


def _loops(one: _Side, other: _Side) -> Iterator[Change]:
    for id in dict.fromkeys((*one.loops, *other.loops)):
        if id not in other.loops:
            yield Change(f"loop {id}", "left out")
        elif id not in one.loops:
            yield Change(f"loop {id}", "added")
        else:
            mine, theirs = one.loops[id], other.loops[id]
            if mine.start != theirs.start:
                yield Change(f"loop {id}", f"starts with micro-batch {theirs.start}, was {mine.start}")
            for what, words in (("kind", "kind"), ("over", "operand"), ("count", "count")):
                here, there = getattr(mine, what), getattr(theirs, what)
                if here != there:
                    yield Change(f"loop {id}", f"{words} {there or 'none'}, was {here or 'none'}")


def _moves(one: _Side, other: _Side) -> Iterator[Change]:
    """Changes of the ops that both have, and of the parts of those that were split, in the order of the second."""
    here, there = _expanded(one, other), _expanded(other, one)
    stay = _staying(here, there)
    for home, keys in there.items():
        for at, key in enumerate(keys):
            mine, theirs = _nearest(one, key), other.ops.get(key)
            words = []
            if key not in stay and (theirs is not None or key.part == "loop"):
                words.append(_moved_words(other, home, keys[at - 1] if at else None))
            if mine is not None and theirs is not None:
                words += _op_words(mine, theirs, whole=key in one.ops)
            name = theirs.id if theirs is not None else f"loop {key.op}"
            yield from (Change(f"`{name}`" if theirs is not None else name, word) for word in words)


def _expanded(side: _Side, other: _Side) -> dict[str, list[_Key]]:
    """What stands in the step and in each loop, in order; with parts and peeled ops where the laws would put them."""
    homes: dict[str, list[_Key]] = defaultdict(list)
    family: dict[tuple[str, int | None], list[_Key]] = defaultdict(list)
    for key in other.ops:
        family[key.op, key.micro].append(key)
    for parts in family.values():
        parts.sort(key=lambda key: (_PARTS.get(key.part, 0), key.number))
    own = Counter((key.op, key.micro) for key in side.ops)
    done: set[tuple[str, int | None]] = set()
    for key, home in side.home.items():
        if key.part == "loop":
            for op in (inner for inner in side.loops[key.op].body if isinstance(inner, Op)):
                source = op.origin.op if op.origin else op.id
                for group in [name for name in family if name[0] == source and name[1] is not None]:
                    if group not in own:
                        homes[home] += family[group]
            homes[home].append(key)
            continue
        group = (key.op, key.micro)
        if key in other.ops or group not in family or own[group] >= len(family[group]):
            homes[home].append(key)
        elif group not in done:
            homes[home] += [part for part in family[group] if part not in side.ops]
        done.add(group)
    return homes


def _staying(here: dict[str, list[_Key]], there: dict[str, list[_Key]]) -> set[_Key]:
    """As many as possible of those that keep their order: in each home a longest increasing run."""
    stay: set[_Key] = set()
    for home, keys in there.items():
        place = {key: at for at, key in enumerate(here.get(home, []))}
        common = [key for key in keys if key in place]
        stay |= {common[at] for at in _longest_run([place[key] for key in common])}
    return stay


def _longest_run(numbers: list[int]) -> list[int]:
    """Indices of a longest increasing subsequence of different numbers."""
    tails: list[int] = []
    ends: list[int] = []
    parents: list[int] = []
    for at, number in enumerate(numbers):
        length = bisect_left(tails, number)
        parents.append(ends[length - 1] if length else -1)
        tails[length:] = [number, *tails[length + 1 :]]
        ends[length:] = [at, *ends[length + 1 :]]
    run: list[int] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        run.append(at)
        at = parents[at]
    return run[::-1]


def _nearest(side: _Side, key: _Key) -> Op | None:
    """The op of a side that a key stands for, or the one that it is a part or a first round of."""
    if key in side.ops:
        return side.ops[key]
    alike = [op for other, op in side.ops.items() if other.op == key.op]
    same = [op for other, op in side.ops.items() if other.op == key.op and other.micro == key.micro]
    return next(iter(same or alike), None)


def _moved_words(side: _Side, home: str, previous: _Key | None) -> str:
    places = {_STEP: "the step", "before": "what stands before step 0", "after": "what stands after the last step"}
    if previous is None:
        return f"now first of {places.get(home, f'loop {home}')}"
    before = side.ops.get(previous)
    return f"now after {f'`{before.id}`' if before is not None else f'loop {previous.op}'}"


def _op_words(mine: Op, theirs: Op, *, whole: bool) -> Iterator[str]:
    if theirs.shift != mine.shift:
        yield _ahead(theirs, mine)
    if theirs.lane != mine.lane:
        yield f"on lane {theirs.lane}, was {mine.lane}"
    if theirs.when != mine.when:
        yield f"when {theirs.when}" if theirs.when != ALWAYS else f"always, was when {mine.when}"
    if not whole:
        return
    if theirs.kind != mine.kind:
        yield f"in place of `{mine.id}`"
    mine_attrs, their_attrs = dict(mine.attrs), dict(theirs.attrs)
    for name in dict.fromkeys((*mine_attrs, *their_attrs)):
        if mine_attrs.get(name) != their_attrs.get(name):
            yield f"{name}={their_attrs.get(name, 'none')}, was {mine_attrs.get(name, 'none')}"
    if theirs.args != mine.args:
        yield f"takes ({', '.join(map(str, theirs.args))}), was ({', '.join(map(str, mine.args))})"
    if theirs.results != mine.results:
        yield f"gives ({', '.join(map(str, theirs.results))}), was ({', '.join(map(str, mine.results))})"


def _ahead(theirs: Op, mine: Op) -> str:
    unit = "step" if theirs.shift in (1, -1) else "steps"
    if not theirs.shift:
        return f"no longer {mine.shift} ahead"
    return f"{theirs.shift} {unit} ahead" if theirs.shift > 0 else f"{-theirs.shift} {unit} behind"


def _names(ops: Iterable[Op]) -> str:
    return ", ".join(f"`{op.id}`" for op in ops)


def _quoted(ids: list[str]) -> str:
    return ", ".join(f"`{id}`" for id in ids)
