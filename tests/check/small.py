"""Random small programs and schedules, and their instances counted out one by one: the rules in another form.

Nothing here uses `steptrace.check`. What conflicts, and in which order instances run, is written down from its
meaning: every pair of instances is looked at.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace

from steptrace.ir import BUILTIN, Access, Loop, Op, OpKind, Program, Resource, ResourceKind, Result, Type, Use
from steptrace.ir.effects import effects_of
from steptrace.ir.resource import ANY, overlaps

RESOURCES = (
    Resource("a", ResourceKind.STATE),
    Resource("a.x", ResourceKind.STATE),
    Resource("a.y", ResourceKind.STATE),
    Resource("q", ResourceKind.FIFO),
    Resource("c", ResourceKind.CHANNEL),
    Resource("r", ResourceKind.CELL),
    Resource("p", ResourceKind.STATE),
)
PATTERNS = ("a", "a.x", "a.x", "a.y", "q", "c", "r", "r[k]", "r[k]", "r[k-1]", "r[k-2]", "r[k+1]", "p", "p")


def random_program(rng: random.Random, *, most: int = 6, loops: bool = True, barriers: bool = True) -> Program:
    """A step of at most ``most`` users' ops, some in a loop over micro-batches, with random effects and values."""
    kinds, body, inner = [], [], []
    count = rng.randint(2, most)
    inside = {rng.randrange(count) for _ in range(rng.choice((0, 2, 3)))} if loops else set()
    first = min(inside, default=0)
    values: list[str] = []
    inner_values: list[str] = []
    before_loop: list[str] = []
    for at in range(count):
        name = f"op{at}"
        reads = tuple(rng.sample(PATTERNS, rng.randint(0, 2)))
        writes = tuple(rng.sample(PATTERNS, rng.randint(0, 2)))
        awaits = (rng.choice(("p", "a", "c")),) if rng.random() < 0.15 else ()
        if barriers and rng.random() < 0.07:
            reads, writes, awaits = (ANY,), (ANY,), ()
        asynchronous = rng.random() < 0.4
        looped = at in inside
        if at == first and looped:
            before_loop = list(values)
        known = before_loop + inner_values if looped else values
        args = tuple(Use(value) for value in rng.sample(known, min(len(known), rng.choice((0, 0, 1)))))
        if looped and inner_values and rng.random() < 0.2:
            args = (Use(rng.choice(inner_values), micro=-1),)
        gives = rng.random() < 0.4
        kinds.append(
            OpKind(
                name,
                reads=reads,
                writes=writes,
                awaits=awaits,
                device=rng.choice(("trainer", "reference")) if asynchronous else "",
                blocking=not asynchronous,
                user=True,
            )
        )
        results = (Result(f"v{at}", Type("value")),) if gives else ()
        op = Op(name, name, args=args, results=results)
        if gives:
            (inner_values if looped else values).append(f"v{at}")
        if looped:
            if at == first:
                body.append(Loop("micro", "micro_batches", "m", None, None, ()))
            inner.append(op)
        else:
            body.append(op)
    body = [replace(node, body=tuple(inner)) if isinstance(node, Loop) else node for node in body]
    return Program("small", resources=RESOURCES, kinds=tuple(kinds), body=tuple(body))


def can_peel(program: Program) -> bool:
    """Whether the first micro-batch of the loop can be written out."""
    loops = [node for node in program.body if isinstance(node, Loop)]
    return bool(loops) and all(use.micro == 0 for op in loops[0].body for use in op.args)


def random_schedule(rng: random.Random, reference: Program, *, lanes: tuple[str, ...], edits: int) -> Program:
    """The reference after some random moves: positions, shifts, lanes."""
    body = list(reference.body)
    for _ in range(edits):
        what = rng.choice(("swap", "swap", "shift", "lane", "inner"))
        at = rng.randrange(len(body))
        node = body[at]
        if what == "swap" and at + 1 < len(body):
            body[at], body[at + 1] = body[at + 1], body[at]
        elif what == "shift" and isinstance(node, Op):
            body[at] = replace(node, shift=rng.choice((0, 1, 1, 2)))
        elif what == "lane" and isinstance(node, Op):
            body[at] = replace(node, lane=rng.choice(lanes))
        elif isinstance(node, Loop) and node.body:
            inner = list(node.body)
            which = rng.randrange(len(inner))
            choice = rng.choice(("swap", "shift", "lane"))
            if choice == "swap" and which + 1 < len(inner):
                inner[which], inner[which + 1] = inner[which + 1], inner[which]
            elif choice == "shift":
                inner[which] = replace(inner[which], shift=rng.choice((0, 1)))
            elif choice == "lane":
                inner[which] = replace(inner[which], lane=rng.choice(lanes))
            body[at] = replace(node, body=tuple(inner))
    return replace(reference, body=tuple(body))


@dataclass(frozen=True)
class Inst:
    """One instance: op, step, micro-batch (None outside the loop and for no peeled op)."""

    op: str
    k: int
    m: int | None


def instances(program: Program, counts: tuple[int, ...]) -> list[tuple[Inst, Op]]:
    """Every instance in the order of the text, step by step, as if all shifts were 0."""
    found = []
    for k, count in enumerate(counts):
        for node in program.body:
            if isinstance(node, Op):
                if node.micro is None or node.micro < count:
                    found.append((Inst(node.id, k, node.micro), node))
                continue
            for m in range(node.start, count):
                found += [(Inst(op.id, k, m), op) for op in node.body]
    return found


def lane_orders(program: Program, counts: tuple[int, ...]) -> dict[str, list[Inst]]:
    """What each lane runs, in order: a turn for each step, early turns for what is shifted ahead."""
    last = len(counts)
    ops = [node for node in program.body if isinstance(node, Op)]
    most = max((op.shift for op in ops), default=0)
    lanes: dict[str, list[Inst]] = {}
    for turn in range(-most, last):
        for node in program.body:
            if isinstance(node, Op):
                k = turn + node.shift
                if 0 <= k < last and (node.micro is None or node.micro < counts[k]):
                    lanes.setdefault(node.lane, []).append(Inst(node.id, k, node.micro))
                continue
            if not 0 <= turn < last:
                continue
            inner = max(op.shift for op in node.body)
            for u in range(-inner, counts[turn]):
                for op in node.body:
                    m = u + op.shift
                    if node.start <= m < counts[turn]:
                        lanes.setdefault(op.lane, []).append(Inst(op.id, turn, m))
    return lanes


class Facts:
    """Which pairs of instances of a reference must keep their order, and from which event of the first."""

    def __init__(self, reference: Program, counts: tuple[int, ...]) -> None:
        self.reference = reference
        self.counts = counts
        self.kinds = {kind.name: kind for kind in (*BUILTIN.values(), *reference.kinds)}
        self.run = instances(reference, counts)
        self.table = {**{resource.name: resource for resource in reference.resources}}
        self.effects = {op.id: effects_of(op, self.kinds[op.kind], reference.contract) for op in reference.ops()}
        self.queues = self._queues()

    def asynchronous(self, op: Op) -> str:
        kind = self.kinds[op.kind]
        return "" if kind.blocking else kind.device

    def pairs(self) -> list[tuple[Inst, Inst, str]]:
        """(first, second, event of the first) for all pairs that must keep their order."""
        found = []
        for at, (b, later) in enumerate(self.run):
            for a, earlier in self.run[:at]:
                conflict, awaited = self._conflict(a, earlier, b, later)
                if conflict or self._hands_over(a, earlier, b, later):
                    event = "issue" if self.asynchronous(earlier) and not awaited else "done"
                    found.append((a, b, event))
        return found + self._matched() + self._released()

    def _released(self) -> list[tuple[Inst, Inst, str]]:
        """With a capacity of c: whoever touches cell j comes before whoever writes cell j + c."""
        found = []
        for resource in self.reference.resources:
            if resource.kind is not ResourceKind.CELL or not resource.capacity:
                continue
            touched = [
                (inst, op, touch[1], touch[2])
                for inst, op in self.run
                for touch in self._touches(inst, op)
                if touch[0] == resource.name and touch[1] is not None
            ]
            for a, op, cell, _ in touched:
                for b, _, other, writes in touched:
                    if writes and other == cell + resource.capacity:
                        found.append((a, b, "issue" if self.asynchronous(op) else "done"))
        return found

    def _conflict(self, a: Inst, earlier: Op, b: Inst, later: Op) -> tuple[bool, bool]:
        found = awaited = False
        for one, other in itertools.product(self._touches(a, earlier), self._touches(b, later)):
            if not overlaps(one[0], other[0]) or not (one[2] or other[2]):
                continue
            if self._cells_differ(one, other):
                continue
            if self._queue_lets_pass(one, other):
                continue
            found = True
            awaited |= one[2] and other[3]
        return found, awaited

    def _touches(self, inst: Inst, op: Op) -> list[tuple[str, int | None, bool, bool, bool]]:
        """(resource, cell, writes, awaits, reads) of an instance."""
        groups: dict[tuple[str, int | None], set[Access]] = {}
        for effect in self.effects[op.id]:
            cell = None if effect.index is None else inst.k + effect.index.step
            groups.setdefault((effect.resource, cell), set()).add(effect.access)
        return [
            (name, cell, Access.WRITE in how, Access.AWAIT in how, Access.READ in how)
            for (name, cell), how in groups.items()
        ]

    def _cells_differ(self, one: tuple, other: tuple) -> bool:
        return one[1] is not None and other[1] is not None and one[1] != other[1]

    def _role(self, touch: tuple) -> str:
        resource = self.table.get(touch[0])
        if resource is None or resource.kind is not ResourceKind.FIFO or not touch[2]:
            return ""
        return "pop" if touch[4] else "push"

    def _queue_lets_pass(self, one: tuple, other: tuple) -> bool:
        roles = (self._role(one), self._role(other))
        if one[0] != other[0] or "" in roles or roles[0] == roles[1]:
            return False
        return roles == ("pop", "push") or one[0] in self.queues

    def _queues(self) -> dict[str, tuple[list[str], list[str]]]:
        """The fifos whose i-th push is what the i-th pop takes: pushes and pops of a step."""
        found = {}
        top = [node for node in self.reference.body if isinstance(node, Op)]
        for resource in self.reference.resources:
            ends: dict[str, list[tuple[int, str]]] = {"push": [], "pop": []}
            plain = True
            for place, (_, op) in enumerate(self._once()):
                for touch in self._touches(Inst(op.id, 0, None), op):
                    role = self._role(touch)
                    if touch[0] == resource.name and role:
                        ends[role].append((place, op.id))
                        plain &= op in top and op.micro is None
            paired = len(ends["push"]) == len(ends["pop"]) > 0
            if plain and paired and all(a[0] < b[0] for a, b in zip(ends["push"], ends["pop"], strict=True)):
                found[resource.name] = ([id for _, id in ends["push"]], [id for _, id in ends["pop"]])
        return found

    def _once(self) -> list[tuple[int, Op]]:
        flat = []
        for node in self.reference.body:
            flat += [node] if isinstance(node, Op) else list(node.body)
        return list(enumerate(flat))

    def _matched(self) -> list[tuple[Inst, Inst, str]]:
        found = []
        ops = {op.id: op for _, op in self._once()}
        for pushes, pops in self.queues.values():
            put = [inst for inst, _ in self.run if inst.op in pushes]
            taken = [inst for inst, _ in self.run if inst.op in pops]
            for a, b in zip(put, taken, strict=True):
                found.append((a, b, "issue" if self.asynchronous(ops[a.op]) else "done"))
        return found

    def _hands_over(self, a: Inst, earlier: Op, b: Inst, later: Op) -> bool:
        made = {result.name for result in earlier.results}
        for use in later.args:
            step, micro = b.k + use.step, None if b.m is None else b.m + use.micro
            inner = self._looped(earlier)
            name = use.name
            if inner and micro is not None and micro < self._start():
                continue
            if name in made and a.k == step and (not inner or a.m == micro):
                return True
            if use.micro and earlier.micro == micro and f"{name}.first" in made and a.k == step:
                return True
        return False

    def _looped(self, op: Op) -> bool:
        return any(isinstance(node, Loop) and op in node.body for node in self.reference.body)

    def _start(self) -> int:
        return next((node.start for node in self.reference.body if isinstance(node, Loop)), 0)


Event = tuple[Inst, str]


class Order:
    """A partial order of events, closed under what follows; devices finish in the order of issue."""

    def __init__(self, facts: Facts, arcs: list[tuple[Event, Event]]) -> None:
        self.events = [(inst, event) for inst, _ in facts.run for event in ("issue", "done")]
        self.number = {event: at for at, event in enumerate(self.events)}
        self.after = [0] * len(self.events)
        self.device = {inst: facts.asynchronous(op) for inst, op in facts.run}
        for inst, _ in facts.run:
            self._arc((inst, "issue"), (inst, "done"))
        for one, other in arcs:
            self._arc(one, other)
        self._close()

    def _arc(self, one: Event, other: Event) -> None:
        self.after[self.number[one]] |= 1 << self.number[other]

    def _close(self) -> None:
        sent = [inst for inst in self.device if self.device[inst]]
        while True:
            before = list(self.after)
            for middle in range(len(self.after)):
                bit, reach = 1 << middle, self.after[middle]
                for at in range(len(self.after)):
                    if self.after[at] & bit:
                        self.after[at] |= reach
            for a, b in itertools.permutations(sent, 2):
                if self.device[a] == self.device[b] and self.before((a, "issue"), (b, "issue")):
                    self._arc((a, "done"), (b, "done"))
            if self.after == before:
                return

    def before(self, one: Event, other: Event) -> bool:
        """Whether one event comes before the other."""
        return bool(self.after[self.number[one]] >> self.number[other] & 1)

    def cyclic(self) -> bool:
        """Whether some event comes before itself."""
        return any(reach >> at & 1 for at, reach in enumerate(self.after))

    def pairs(self) -> set[tuple[Event, Event]]:
        """All ordered pairs."""
        return {
            (one, other)
            for at, one in enumerate(self.events)
            for to, other in enumerate(self.events)
            if self.after[at] >> to & 1
        }
