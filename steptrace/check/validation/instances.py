"""What a schedule means: which instances each lane runs, in which order, for given counts and flags.

For each lane, for t from -S to N-1 with S the largest shift, for each node of the step in order: an op runs
step t + shift if that exists, a peeled op only where its step has that micro-batch; a loop runs step t, and inside
it an op runs micro-batch u + shift for u from -s, with s the largest shift inside, where that is one of the loop's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from steptrace.check.validation.sides import Pair, Side, ValueKey, flag_names, side_of, use_of
from steptrace.ir import (
    ALWAYS,
    Always,
    And,
    Every,
    First,
    Flag,
    Has,
    Last,
    Loop,
    MicroIs,
    Node,
    Not,
    Op,
    Or,
    Predicate,
    Program,
    Use,
    ops_of,
)

FlagKey: TypeAlias = tuple[str, str, int, int, tuple[int, ...]]
"""A flag of a run: source op, part, position of the result, step, counters; for a capability its name and zeros."""


class Instance(NamedTuple):
    """One run of an op.

    Attributes:
      site: number of the op in its program.
      step: its step; -1 before the first.
      path: its counters in the loops around it: ``(m,)`` in a micro-batch loop, ``(e, j, m)`` in epochs.
    """

    site: int
    step: int
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """The facts of one run.

    Attributes:
      counts: micro-batches of each step; its length is the number of steps.
      flags: the flags that are true.
      phase: the step of the whole run at which this window begins, for conditions ``every n``.
    """

    counts: tuple[int, ...]
    flags: frozenset[FlagKey] = frozenset()
    phase: int = 0

    def __str__(self) -> str:
        counts = ", ".join(map(str, self.counts)) or "no"
        steps = "1 step" if len(self.counts) == 1 else f"{len(self.counts)} steps"
        text = f"{steps} of {counts} micro-batch{'' if counts == '1' else 'es'}"
        if self.phase:
            text += f" that begins with step {self.phase}"
        shown = ", ".join(sorted(flag_text(flag) for flag in self.flags))
        return text + (f" in which {shown} {'is' if len(self.flags) == 1 else 'are'} true" if shown else "")


@dataclass(frozen=True, slots=True)
class Lanes:
    """The instances of a run.

    Attributes:
      instances: all of them; lanes and orders speak of positions in it.
      lanes: for each lane its instances, in the order in which it runs them.
      gates: for an instance the keys of values that its lane has looked at by then, to know what to run: the flags of
        conditions, and the batch that says how many micro-batches there are.
    """

    instances: tuple[Instance, ...]
    lanes: dict[str, tuple[int, ...]]
    gates: dict[int, tuple[tuple[object, ...], ...]]


def flag_text(flag: FlagKey) -> str:
    """A flag in words: ``fwd_bwd.stage@(1,0)``, ``has(async_sync)``."""
    op, part, position, step, path = flag
    if part == "has":
        return f"has({op})"
    name = f"{op}.{part}" if part else op
    return f"{name}{where(step, path)}" + (f"[{position}]" if not part else "")


def where(step: int, path: tuple[int, ...]) -> str:
    """The place of an instance: ``@1`` or ``@(1,0)``."""
    return f"@({','.join(map(str, (step, *path)))})" if path else f"@{step}"


def run_order(
    program: Program, counts: tuple[int, ...], flags: frozenset[FlagKey] = frozenset()
) -> dict[str, list[tuple[str, int, tuple[int, ...]]]]:
    """What each lane of a program runs: op id, step and counters, in order; see the module.

    Args:
      program: a program or a schedule.
      counts: micro-batches of each step.
      flags: the flags that are true.
    """
    side = side_of(program)
    found = lanes_of(side, Setting(counts, flags))
    return {
        lane: [
            (side.sites[one.site].op.id, one.step, one.path) for one in (found.instances[position] for position in line)
        ]
        for lane, line in found.lanes.items()
    }


def lanes_of(side: Side, setting: Setting) -> Lanes:
    """The instances of a run, lane by lane."""
    return _Enumeration(side, setting).lanes()


class _Enumeration:
    """Walks a step for each t, and notes the instances that run."""

    def __init__(self, side: Side, setting: Setting) -> None:
        self.side = side
        self.setting = setting
        self.steps = len(setting.counts)
        self.instances: list[Instance] = []
        self.order: dict[str, list[int]] = {}
        self.gates: dict[int, tuple[tuple[object, ...], ...]] = {}
        self.pending: dict[str, list[tuple[object, ...]]] = {}

    def lanes(self) -> Lanes:
        program = self.side.program
        self._nodes(program.prologue, -1, ())
        for at in range(-self.side.ahead, self.steps):
            for node in program.body:
                if isinstance(node, Loop):
                    if at >= 0:
                        self._loop(node, at, ())
                else:
                    self._top(node, at + node.shift)
        self._nodes(program.epilogue, self.steps, ())
        return Lanes(tuple(self.instances), {lane: tuple(line) for lane, line in self.order.items()}, self.gates)

    def _top(self, op: Op, step: int) -> None:
        if not 0 <= step < self.steps:
            return
        if op.micro is None:
            self._run(op, step, ())
        elif op.micro < self.setting.counts[step] or self._closes(op, step):
            self._run(op, step, (op.micro,))
        else:
            self._absent(op, step)

    def _closes(self, op: Op, step: int) -> bool:
        """Whether an op finds out that the stream of a step has no micro-batch."""
        return not self.setting.counts[step] and self.side.by_id[op.id].number in self.side.drains

    def _absent(self, op: Op, step: int) -> None:
        """A peeled op whose micro-batch does not exist: its lane waits until that is known, unless it only polls."""
        site = self.side.by_id[op.id]
        loop = self.side.peeled_from.get(site.origin.op)
        never = Setting(self.setting.counts, frozenset(), self.setting.phase)
        if (
            loop is None
            or loop.over is None
            or site.kind.polls
            or not holds(op.when, self.side, never, step, (op.micro or 0,))
        ):
            return
        self._look(op.lane, loop.over, step, ())

    def _look(self, lane: str, use: Use, step: int, path: tuple[int, ...]) -> None:
        """What a lane looks at before it runs on."""
        self.pending.setdefault(lane, []).append(value_key(use_of(self.side.makers, use), Instance(-1, step, path)))

    def _nodes(self, nodes: tuple[Node, ...], step: int, path: tuple[int, ...]) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                self._loop(node, step, path)
            else:
                self._run(node, step, path)

    def _loop(self, loop: Loop, step: int, path: tuple[int, ...]) -> None:
        if loop.kind != "micro_batches":
            for item in range(loop.count or 0):
                self._nodes(loop.body, step, (*path, item))
            return
        count = self.setting.counts[step] if 0 <= step < self.steps else 0
        if loop.over is not None:
            for lane in dict.fromkeys(op.lane for op in ops_of(loop.body)):
                self._look(lane, loop.over, step, path)
        for node in loop.body if self.side.drains and 0 <= step < self.steps and not loop.start else ():
            if isinstance(node, Op) and self._closes(node, step):
                self._run(node, step, (*path, 0))
        ahead = max((node.shift for node in loop.body if isinstance(node, Op)), default=0)
        for at in range(-max(ahead, 0), count):
            for node in loop.body:
                item = at + node.shift if isinstance(node, Op) else at
                if loop.start <= item < count:
                    self._nodes((node,), step, (*path, item))

    def _run(self, op: Op, step: int, path: tuple[int, ...]) -> None:
        site = self.side.by_id[op.id]
        if op.when != ALWAYS:
            for fact in flag_names(op.when):
                if isinstance(fact, Flag):
                    self._look(op.lane, Use(fact.name), step, path)
            if not holds(op.when, self.side, self.setting, step, path):
                return
        if op.lane in self.pending:
            self.gates[len(self.instances)] = tuple(self.pending.pop(op.lane))
        self.order.setdefault(op.lane, []).append(len(self.instances))
        self.instances.append(Instance(site.number, step, path))


def holds(predicate: Predicate, side: Side, setting: Setting, step: int, path: tuple[int, ...]) -> bool:
    """Whether a condition is true for the instance of a step with these counters."""
    match predicate:
        case Always():
            return True
        case First():
            return path[-1] == 0
        case Last():
            return path[-1] == setting.counts[step] - 1
        case MicroIs(index):
            return path[-1] == index
        case Every(period):
            return (step + setting.phase + 1) % period == 0
        case Has(capability):
            return (capability, "has", 0, 0, ()) in setting.flags
        case Flag(name):
            return _flag(name, side, setting, step, path)
        case Not(term):
            return not holds(term, side, setting, step, path)
        case And(terms):
            return all(holds(term, side, setting, step, path) for term in terms)
        case Or(terms):
            return any(holds(term, side, setting, step, path) for term in terms)


def _flag(name: str, side: Side, setting: Setting, step: int, path: tuple[int, ...]) -> bool:
    site, position = side.makers[name]
    if side.given(name) == "exists":
        return True
    inside = path[: site.depth]
    if side.given(name) == "last":
        return inside[-1] == setting.counts[step] - 1
    return (*site.value(position), step, inside) in setting.flags


Makers: TypeAlias = dict[FlagKey, list[tuple[Side, Predicate, int, tuple[int, ...]]]]
"""The free flags, and of each the side, condition, step and counters of the ops that make it; none of a capability."""


def free_flags(pair: Pair, counts: tuple[int, ...]) -> tuple[FlagKey, ...]:
    """The flags on which the conditions of a pair depend in a run of these counts, and which nothing else settles."""
    return tuple(makers_of_flags(pair, counts))


def made_flags(makers: Makers, setting: Setting) -> Setting:
    """A setting without the flags that are true and never made, because of the others: a look that is not taken.

    Args:
      makers: of the free flags of the counts of the setting.
      setting: with any of these flags true.
    """
    kept = frozenset(
        flag
        for flag in setting.flags
        if not makers[flag] or any(holds(when, side, setting, step, path) for side, when, step, path in makers[flag])
    )
    return setting if kept == setting.flags else made_flags(makers, replace(setting, flags=kept))


def makers_of_flags(pair: Pair, counts: tuple[int, ...]) -> Makers:
    """The flags of ``free_flags`` in their order, with what makes them."""
    found: Makers = {}
    for side in (pair.source, pair.schedule):
        facts = dict.fromkeys(fact for site in side.sites for fact in flag_names(site.op.when))
        makers: dict[int, list[int]] = {}
        for fact in facts:
            if isinstance(fact, Has):
                found[fact.capability, "has", 0, 0, ()] = []
            elif fact.name in side.makers and side.given(fact.name) not in ("last", "exists"):
                site, position = side.makers[fact.name]
                makers.setdefault(site.number, []).append(position)
        if makers:
            for one in lanes_of(side, Setting(counts)).instances:
                for position in makers.get(one.site, ()):
                    flag = (*side.sites[one.site].value(position), one.step, one.path)
                    found.setdefault(flag, []).append((side, side.sites[one.site].op.when, one.step, one.path))
    return dict(sorted(found.items(), key=lambda item: (item[0][3], item[0][4], item[0][:3])))


def value_key(use: tuple[ValueKey, int, int, int], one: Instance) -> tuple[object, ...]:
    """The key of the value that an instance uses: what made it, in which step and with which counters.

    Args:
      use: the operand, as in ``Side.uses``.
      one: the instance.
    """
    maker, depth, step, micro = use
    path = one.path[:depth]
    if micro and path:
        path = (*path[:-1], path[-1] + micro)
    return (*maker, one.step + step, path)
