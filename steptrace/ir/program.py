"""The program: ops, loops, and what stands around them. Everything here is immutable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from steptrace.diag.loc import Loc
from steptrace.ir.kind import OpKind
from steptrace.ir.predicate import ALWAYS, Predicate
from steptrace.ir.resource import Resource
from steptrace.ir.types import AttrValue, Type


@dataclass(frozen=True, slots=True)
class Use:
    """An operand: the value ``%name`` of this instance, or of another step or micro-batch.

    Attributes:
      name: the value's name, without ``%``.
      step: ``%name@k+step``.
      micro: ``%name@m+micro``; 0 is this micro-batch.
    """

    name: str
    step: int = 0
    micro: int = 0

    def __str__(self) -> str:
        text = f"%{self.name}"
        if self.step:
            text += f"@k{self.step:+d}"
        return f"{text}@m{self.micro:+d}" if self.micro else text


@dataclass(frozen=True, slots=True)
class Result:
    """A value that an op defines."""

    name: str
    type: Type

    def __str__(self) -> str:
        return f"%{self.name} : {self.type}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an op came from: the id of the source op, and which part of it (``""`` for the whole).

    Survives every motion and pairs instances in validation.
    """

    op: str
    part: str = ""

    def __str__(self) -> str:
        return f"{self.op}.{self.part}" if self.part else self.op


@dataclass(frozen=True, slots=True)
class Op:
    """A node of the IR.

    Attributes:
      id: unique within the program.
      kind: name of a row of the op table.
      args: operands, in the order of the row.
      results: values it defines.
      attrs: attributes by name, sorted by name.
      lane: what issues it: host, packer, io, ... A lane issues its ops one after the other.
      shift: how many steps ahead of its place it runs; inside a micro-batch loop, how many micro-batches.
      micro: outside the loop, the micro-batch it stands for (a peeled op); it runs in steps that have that many.
      when: the condition under which it runs.
      origin: the op of the source program it stands for.
      loc: file and line of the DSL call.
    """

    id: str
    kind: str
    args: tuple[Use, ...] = ()
    results: tuple[Result, ...] = ()
    attrs: tuple[tuple[str, AttrValue], ...] = ()
    lane: str = "host"
    shift: int = 0
    when: Predicate = ALWAYS
    origin: Origin | None = None
    loc: Loc | None = None
    micro: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", tuple(sorted(self.attrs)))
        if self.origin is None:
            object.__setattr__(self, "origin", Origin(self.id))

    def attr(self, name: str) -> AttrValue | None:
        """The attribute's value, or None when it is not set."""
        return dict(self.attrs).get(name)


LoopKind: TypeAlias = Literal["micro_batches", "repeat", "mini_batches"]


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of a step.

    ``micro_batches`` runs once for each micro-batch of the step (a run-time fact; its first op makes the
    micro-batch), ``repeat`` runs ``count`` times (PPO epochs), ``mini_batches`` once for each of ``count``
    parts of the step's samples.

    Attributes:
      id: unique within the program.
      kind: which loop.
      var: name of its counter, as printed: ``m`` for micro-batches.
      over: the value it runs over, None when its first op draws from a stream.
      count: how often it runs, None when that is a run-time fact.
      body: ops and loops.
      loc: file and line of the ``for`` statement.
      start: the first micro-batch it runs; those before are peeled ops of the same step.
    """

    id: str
    kind: LoopKind
    var: str
    over: Use | None
    count: int | None
    body: tuple[Node, ...]
    loc: Loc | None = None
    start: int = 0


Node: TypeAlias = Op | Loop


@dataclass(frozen=True, slots=True)
class Contract:
    """What must stay exact and what may lag.

    Attributes:
      weights: ``pinned``: the rollouts of step k are made with exactly the weights that step k-1-staleness
        published (the initial ones for k <= staleness); ``freshest``: with the newest applied.
      staleness: how many updates the weights that sampled a group may lag behind those it trains.
      partial: a last step with fewer groups than asked for, because the data ended: ``train`` it,
        ``drop`` its groups, or refuse with an ``error``.
      empty: a step without a micro-batch: ``skip`` its update, or refuse with an ``error``.
      saves: when a checkpoint is on disk: ``before_sync``, so that a save that fails suppresses all that follows it;
        ``may_fail_late``: the weight sync, the commit and later steps may precede its failure.
      logs: when a step's metrics are logged: ``before_callbacks``, so that a log that fails suppresses all that follows
        it; ``may_fail_late``: the step's callbacks and later steps may precede its failure.
    """

    weights: Literal["pinned", "freshest"] = "pinned"
    staleness: int = 0
    partial: Literal["train", "drop", "error"] = "train"
    empty: Literal["skip", "error"] = "skip"
    saves: Literal["before_sync", "may_fail_late"] = "before_sync"
    logs: Literal["before_callbacks", "may_fail_late"] = "before_callbacks"


@dataclass(frozen=True, slots=True)
class Carry:
    """A value carried from step to step: ``%name@k-1`` reads the previous step's, ``init`` before step 0."""

    name: str
    init: float
    loc: Loc | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A train step, and what stands before the first and after the last.

    Attributes:
      name: name of the program.
      params: the parameters it was traced with, by name.
      contract: what must stay exact.
      resources: every resource that its ops touch, in the order of declaration.
      kinds: rows of users' ops, beside the built-in table.
      carries: values carried over steps.
      prologue: ops before step 0.
      body: ops and loops of step k, in order.
      epilogue: ops after the last step.
      loc: where the program is defined.
    """

    name: str
    params: tuple[tuple[str, AttrValue], ...] = ()
    contract: Contract = Contract()
    resources: tuple[Resource, ...] = ()
    kinds: tuple[OpKind, ...] = ()
    carries: tuple[Carry, ...] = ()
    prologue: tuple[Node, ...] = ()
    body: tuple[Node, ...] = ()
    epilogue: tuple[Node, ...] = ()
    loc: Loc | None = None

    def __hash__(self) -> int:
        # Programs are keys of caches: a hash of all that is in them would cost more than what is looked up.
        return hash((self.name, self.params, self.contract, tuple(node.id for node in self.body)))

    def ops(self) -> Iterator[Op]:
        """Every op: prologue, body with its loops, epilogue, in order."""
        for part in (self.prologue, self.body, self.epilogue):
            yield from ops_of(part)

    def resource_table(self) -> Mapping[str, Resource]:
        """The resources by name."""
        return MappingProxyType({resource.name: resource for resource in self.resources})


def ops_of(nodes: tuple[Node, ...]) -> Iterator[Op]:
    """Every op of ``nodes``, those inside loops included, in order."""
    for node in nodes:
        if isinstance(node, Loop):
            yield from ops_of(node.body)
        else:
            yield node


def walk(nodes: tuple[Node, ...], loops: tuple[Loop, ...] = ()) -> Iterator[tuple[Op, tuple[Loop, ...]]]:
    """Every op with the loops around it, outermost first, in order."""
    for node in nodes:
        if isinstance(node, Loop):
            yield from walk(node.body, (*loops, node))
        else:
            yield node, loops
