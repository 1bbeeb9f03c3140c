"""How fast any legal schedule of a program can be.

Four things no motion can change: what a device has to do in a step, what goes over the link, what an op outside the
loops takes on whichever lane it stands, and the circles of edges: a version published, sampled from, trained on. Laws
change ops, so the bound is the least over the forms that the laws of the passes give the program (a weight sync in the
background, say). Room that a pass may enlarge bounds nothing, nor does the order of a lane.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import lcm
from types import MappingProxyType

from steptrace.check import Edge, EdgeKind, edges_of
from steptrace.check.laws import LAWS, apply_law
from steptrace.cost.folded import Arc, Folded, forwards
from steptrace.cost.moments import Name
from steptrace.cost.period import every_of
from steptrace.cost.ratio import Largest, largest_ratio
from steptrace.cost.surely import At, runs_surely
from steptrace.diag.base import SteptraceError
from steptrace.ir import Loop, Op, OpKind, Program, ResourceKind, kinds_of, walk
from steptrace.simulate import LINK, Cost, Durations

FORMS = ("start-fetch", "copy-transfer-apply", "snapshot-write")
"""The laws that change what an op waits for, each applied or not."""

STANDS_FOR: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"fwd_bwd": ("attempt_fwd_bwd",), "update": ("apply_deferred_update",)}
)
"""Kinds of ops that a law may put in the place of another one, and that may have been measured to be shorter."""

FIRST_STANDS_FOR: Mapping[str, tuple[str, ...]] = MappingProxyType({"fwd_bwd": ("fwd_bwd_staged", "attempt_staged")})
"""The same, for the first micro-batch of a step."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on the period of every legal schedule.

    Attributes:
      seconds: of a step.
      why: what it is due to, in words.
      form: the laws that give the form of the program with the least bound.
    """

    seconds: float
    why: str
    form: str


def bound_of(source: Program, durations: Durations, *, micro_batches: int) -> Bound:
    """The lower bound of a program, with as many micro-batches in every step."""
    found: dict[Program, Bound] = {}
    for chosen in product((False, True), repeat=len(FORMS)):
        laws = tuple(name for name, wanted in zip(FORMS, chosen, strict=True) if wanted)
        reference = _in_form(source, laws)
        if reference not in found:
            found[reference] = _of_form(reference, durations, micro_batches, ",".join(laws))
    return min(found.values(), key=lambda bound: bound.seconds)


def _in_form(source: Program, laws: tuple[str, ...]) -> Program:
    """A program with laws applied, where it has an op directly in its step that they are of and the contract agrees."""
    program = source
    for law in laws:
        late = law == "snapshot-write" and source.contract.saves != "may_fail_late"
        op = next((node for node in program.body if isinstance(node, Op) and node.kind == LAWS[law].splits), None)
        if op is None or late:
            continue
        try:
            program = apply_law(program, op.id, law)
        except SteptraceError:
            continue  # a condition of the law does not hold
    return program


def _of_form(reference: Program, durations: Durations, micro_batches: int, form: str) -> Bound:
    unrolled = _Unrolled(reference, durations, micro_batches)
    largest = unrolled.largest()
    seconds = float(largest.ratio) / unrolled.cadence
    ops = list(dict.fromkeys(unrolled.name_of(arc.target) for arc in largest.circle if arc.seconds > 0))
    candidates = [(seconds, f"no motion shortens the circle {' -> '.join([*ops, ops[0]])}" if ops else "nothing")]
    candidates += [(seconds, f"{what} has that much to do") for what, seconds in unrolled.busy().items()]
    seconds, why = max(candidates, key=lambda one: one[0])
    return Bound(seconds, why, form)


class _Unrolled:
    """The ops of a reference, written out over the common period of its cadences.

    Each instance has two events: its call, and its end.
    """

    def __init__(self, reference: Program, durations: Durations, micro_batches: int) -> None:
        self.reference, self.durations, self.rounds = reference, durations, micro_batches
        self.kinds = kinds_of(reference)
        self.ops = {op.id: (op, loops) for op, loops in walk(reference.body)}
        self.cadence = lcm(1, *(n for op, _ in self.ops.values() for n in every_of(op.when)))
        polls = (op for op, _ in self.ops.values() if self.kinds[op.kind].polls)
        self.open = frozenset(value.name for op in polls for value in op.results)
        self.numbers: dict[tuple[str, int, int, int], int] = {}
        for id, (op, loops) in self.ops.items():
            for step in range(self.cadence):
                for micro in self._rounds_of(loops):
                    counted = micro if len(loops) == 1 and loops[0].kind == "micro_batches" else None
                    if runs_surely(op.when, At(step, counted, micro + 1 == self.rounds, self.open)):
                        for end in (0, 1):
                            self.numbers[id, step, micro, end] = len(self.numbers)
        self.ids = [key[0] for key in self.numbers]

    def name_of(self, event: int) -> str:
        """The op of an event."""
        return self.ids[event]

    def busy(self) -> dict[str, float]:
        """Seconds a step that each device, the link, and each op outside of loops has to do."""
        found: dict[str, float] = defaultdict(float)
        for id, step, micro, end in self.numbers:
            op, loops = self.ops[id]
            kind, cost = self.kinds[op.kind], self._cost(op, step, micro)
            if not end or any(loop.kind != "micro_batches" for loop in loops):
                continue
            if sends(kind):
                found[f"device {kind.device}"] += cost.work_s / self.cadence
                found[LINK] += cost.ship_s / self.cadence
            elif not loops:
                found[f"`{id}`"] += (cost.issue_s + cost.work_s) / self.cadence
        return found

    def largest(self) -> Largest:
        """The circle of edges with the largest ratio."""
        names = tuple((Name(id, (micro,), end, ""), step) for id, step, micro, end in self.numbers)
        return largest_ratio(Folded(names, forwards(self._arcs(), len(names)), self.cadence))

    def _arcs(self) -> Iterator[Arc]:
        for (id, step, micro, end), number in self.numbers.items():
            if not end:
                yield Arc(number, number + 1, self._whole(id, step, micro), 0)
        for edge in edges_of(self.reference):
            if edge.kind is not EdgeKind.CAPACITY and edge.before in self.ops and edge.after in self.ops:
                yield from self._edge(edge)

    def _edge(self, edge: Edge) -> Iterator[Arc]:
        from_end, to_end, seconds = self._ends(edge)
        for id, step, micro, end in list(self.numbers):
            if id != edge.before or end != from_end:
                continue
            turns, at = divmod(step + edge.distance, self.cadence)
            later = range(max(1, self.rounds)) if edge.micro is None else (micro + edge.micro,)
            for other in later:
                target = self.numbers.get((edge.after, at, other, to_end))
                if target is not None:
                    yield Arc(self.numbers[id, step, micro, from_end], target, seconds, turns)

    def _ends(self, edge: Edge) -> tuple[int, int, float]:
        """Which events an edge joins, and how much later the second one is."""
        before, after = (self.ops[id][0] for id in (edge.before, edge.after))
        rows = self.kinds[before.kind], self.kinds[after.kind]
        if edge.kind is EdgeKind.VALUE and not rows[1].polls:
            return 1, 0, 0.0
        if rows[0].name == "dispatch" and rows[1].name == "take":
            return 1, 0, 0.0
        resource = self.reference.resource_table().get(edge.what.partition("[")[0])
        ordered = resource is not None and resource.kind not in (ResourceKind.FIFO, ResourceKind.CHANNEL)
        if sends(rows[1]) and ordered:
            return 1, 1, min(self._cost(after, 0, micro).work_s for micro in (0, 1))
        return (1 if edge.from_event == "done" else 0), 0, 0.0

    def _cost(self, op: Op, step: int, micro: int) -> Cost:
        """What an instance takes at least, whatever stands for it."""
        kinds = (*STANDS_FOR.get(op.kind, ()), *(FIRST_STANDS_FOR.get(op.kind, ()) if micro == 0 else ()))
        cost = self.durations.of(op, step, micro)
        return replace(cost, work_s=min([cost.work_s, *(self.durations.kind(kind).work_s for kind in kinds)]))

    def _whole(self, id: str, step: int, micro: int) -> float:
        op, _ = self.ops[id]
        cost = self._cost(op, step, micro)
        # A trainer's metrics, saves and settled calls take what they take after what they await: their edges say that.
        return cost.work_s + (cost.ship_s if sends(self.kinds[op.kind]) else cost.issue_s)

    def _rounds_of(self, loops: tuple[Loop, ...]) -> range:
        return range(self.rounds) if any(loop.kind == "micro_batches" for loop in loops) else range(1)


def sends(kind: OpKind) -> bool:
    """Whether an op's work is done by a device, in the order in which it is sent."""
    return bool(kind.device) and kind.name not in _ON_LANE


_ON_LANE = ("get_metrics", "save_checkpoint", "settle")
"""Ops of the trainer that take their time on the lane that calls them, once the device is done."""
