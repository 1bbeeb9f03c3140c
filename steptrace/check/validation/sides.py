"""A program and its source laid side by side: where each op stands, which cells it touches, what it stands for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias

from steptrace.check.validation.parts import LOOKS, SPLITS, WHOLE, part_of
from steptrace.check.validation.visible import stays
from steptrace.diag.validation import NotASourceError, OtherContractError
from steptrace.ir import (
    ANY,
    Access,
    Contract,
    Effect,
    Flag,
    Has,
    Loop,
    Node,
    Not,
    Op,
    OpKind,
    Origin,
    Program,
    ResourceKind,
    Use,
    effects_of,
    kinds_of,
)
from steptrace.ir.predicate import And, Or, Predicate
from steptrace.ir.resource import overlaps

Region: TypeAlias = Literal["before", "step", "after"]

ValueKey: TypeAlias = tuple[str, str, int]
"""Source op, part (only of one that polls, whose results its source does not have), position of the result."""


@dataclass(frozen=True, slots=True)
class Touch:
    """What an op does to one leaf resource.

    Attributes:
      leaf: a resource that no other in use is a sub-cell of.
      kind: of that resource.
      step: which cell, ``k + step``; None for all of the resource.
      micro: of which micro-batch, ``m + micro``; None for none.
      reads: whether it reads it.
      writes: whether it writes it.
      awaits: whether it waits until the last writer is done.
    """

    leaf: str
    kind: ResourceKind
    step: int | None
    micro: int | None
    reads: bool
    writes: bool
    awaits: bool


@dataclass(frozen=True, slots=True)
class Site:
    """An op where it stands.

    Attributes:
      number: position among all ops of its program.
      op: the op.
      kind: its row.
      region: before the first step, in the step, or after the last.
      places: its position, and those of the loops around it, outermost first.
      loops: the loops around it, outermost first.
      part: which part of its source op it is.
      touches: what it reads, writes and awaits.
      closes: what its call on the last micro-batch of a step also does with the update: ``update``, ``defer`` or "".
      asynchronous: whether its call returns before its work is finished.
      depth: how many counters tell instances of a step apart.
      stays: whether it has effects that stay when a run ends early.
    """

    number: int
    op: Op
    kind: OpKind
    region: Region
    places: tuple[int, ...]
    loops: tuple[Loop, ...]
    part: str
    touches: tuple[Touch, ...]
    closes: str
    asynchronous: bool
    depth: int
    stays: bool

    @property
    def origin(self) -> Origin:
        """The source op that it stands for."""
        assert self.op.origin is not None, "every op has an origin"
        return self.op.origin

    def value(self, position: int) -> ValueKey:
        """The key of its result at a position: the same for every op that stands for one source op."""
        return (self.origin.op, self.part if self.part in LOOKS else "", position)


@dataclass(frozen=True, slots=True)
class Side:
    """A program with its ops numbered.

    Attributes:
      program: the program.
      sites: its ops, in order.
      by_id: the ops by id.
      makers: by the name of a value, the op that makes it and the position among its results.
      ahead: the largest number of steps that an op runs ahead.
      taking: numbers of the ops that tell whether a step exists.
      peeled_from: by the source op of a peeled op, the loop that the op was peeled from.
      uses: by the number of an op, its operands: the key of what is used, how many counters tell its instances apart,
        how many steps and micro-batches later it is.
      contested: by the number of an op, what it touches of the resources that some op writes.
      drains: numbers of the ops that drain a stream bit by bit; in a step without a micro-batch they run once, to find
        that out.
    """

    program: Program
    sites: tuple[Site, ...]
    by_id: dict[str, Site]
    makers: dict[str, tuple[Site, int]]
    ahead: int
    taking: frozenset[int]
    peeled_from: dict[str, Loop]
    uses: tuple[tuple[tuple[ValueKey, int, int, int], ...], ...]
    contested: tuple[tuple[Touch, ...], ...]
    drains: frozenset[int] = frozenset()

    def given(self, flag: str) -> str:
        """What a flag value is by its row: ``last``, ``exists``, or the row's own name for it."""
        site, position = self.makers[flag]
        return site.kind.results[position].name


@dataclass(frozen=True, slots=True)
class Pair:
    """A schedule and the source it should equal.

    Attributes:
      schedule: the program to be validated.
      source: the program it came from.
      leaves: the resources of both, by leaf name.
      origins: by the number of an op of the schedule, the source op it stands for; None where the source has none.
      split: the parts by which a source op is split in the schedule, by its number.
      carries: by the number of a call of the schedule that carries an update, the update of the source.
      streams: by the number of an op of the schedule that packs groups as they arrive, the ops of the source that do so
        in bulk, in their order.
    """

    schedule: Side
    source: Side
    leaves: dict[str, ResourceKind]
    origins: tuple[Site | None, ...]
    split: dict[int, frozenset[str]]
    carries: dict[int, Site]
    streams: dict[int, tuple[Site, ...]]

    def origin(self, side: Side, site: Site) -> Site | None:
        """The source op that an op of either side stands for."""
        return site if side is self.source else self.origins[site.number]


def check_source(source: Program) -> None:
    """Refuses a program to compare with that is a schedule of another one.

    Raises:
      NotASourceError: it has ops that were moved, peeled or split.
    """
    for op in source.ops():
        if op.origin != Origin(op.id) or op.micro is not None or op.shift or part_of(op) != WHOLE:
            raise NotASourceError(
                f"`{op.id}` of the program to compare with was itself moved or split",
                loc=op.loc,
                help="compare with the program that both came from",
            )


def pair_of(program: Program, source: Program) -> Pair:
    """Lays a schedule beside its source.

    Raises:
      NotASourceError: the source itself has ops that were moved, peeled or split.
      OtherContractError: the contracts differ.
    """
    for clause in fields(Contract):
        mine, its = getattr(program.contract, clause.name), getattr(source.contract, clause.name)
        if mine != its:
            message = f"the contract says {clause.name}={mine}, that of the source {clause.name}={its}"
            raise OtherContractError(message, loc=source.loc, help="compare with the source under the same contract")
    check_source(source)
    leaves = _leaves(program, source)
    schedule, plain = side_of(program, leaves), side_of(source, leaves)
    origins = tuple(plain.by_id.get(site.origin.op) for site in schedule.sites)
    split: dict[int, frozenset[str]] = {}
    for site, origin in zip(schedule.sites, origins, strict=True):
        if origin is not None and any(site.part in parts for parts in SPLITS):
            split[origin.number] = split.get(origin.number, frozenset()) | {site.part}
    carries = {
        site.number: update
        for site, origin in zip(schedule.sites, origins, strict=True)
        if site.closes == "update" and origin is not None and (update := _following_update(plain, origin)) is not None
    }
    streams = {
        site.number: _drained(plain, origin)
        for site, origin in zip(schedule.sites, origins, strict=True)
        if origin is not None and (site.op.kind, origin.op.kind) == ("stream_mb", "next_mb")
    }
    schedule = replace(schedule, drains=frozenset(streams))
    return Pair(schedule, plain, leaves, origins, split, carries, streams)


_BULK = ("take", "reward", "advantages", "pack")
"""What a stream does with each group that arrives."""


def _drained(source: Side, head: Site) -> tuple[Site, ...]:
    """The ops of the source that make the batch of micro-batches that an op takes, as far as a stream does so too."""
    found: dict[int, Site] = {}
    pending = [head]
    while pending:
        makers = [source.makers[use.name][0] for use in pending.pop().op.args if use.name in source.makers]
        new = [site for site in makers if site.op.kind in _BULK and not site.loops and site.number not in found]
        found.update({site.number: site for site in new})
        pending += new
    return tuple(found[number] for number in sorted(found))


def _following_update(source: Side, call: Site) -> Site | None:
    """The update that follows the loop of a call in the source: the one that its closing call carries."""
    region = call.places[:-1]
    following = (
        site
        for site in source.sites
        if site.op.kind == "update" and site.places[:-1] == region[:-1] and site.places[-1:] > region[-1:]
    )
    return next(following, None) if region else None


def flag_names(predicate: Predicate) -> Iterator[Flag | Has]:
    """The facts of a run that a predicate reads: flag values and capabilities."""
    match predicate:
        case Flag() | Has():
            yield predicate
        case Not(term):
            yield from flag_names(term)
        case And(terms) | Or(terms):
            for term in terms:
                yield from flag_names(term)
        case _:
            return


def touches_of(effects: tuple[Effect, ...], leaves: dict[str, ResourceKind]) -> tuple[Touch, ...]:
    """Effects as touches of leaves, one for each leaf and index."""
    found: dict[tuple[str, int | None, int | None], set[Access]] = {}
    for effect in effects:
        for leaf in _under(effect.resource, leaves):
            index = effect.index if leaf == effect.resource else None
            key = (leaf, None, None) if index is None else (leaf, index.step, index.micro)
            found.setdefault(key, set()).add(effect.access)
    return tuple(
        Touch(leaf, leaves[leaf], step, micro, Access.READ in how, Access.WRITE in how, Access.AWAIT in how)
        for (leaf, step, micro), how in found.items()
    )


def plain_effects(op: Op, kind: OpKind, program: Program) -> tuple[Effect, ...]:
    """The effects of an op without what closing the step adds."""
    attrs = tuple(pair for pair in op.attrs if pair[0] != "closes")
    return effects_of(replace(op, attrs=attrs), kind, program.contract)


def _leaves(*programs: Program) -> dict[str, ResourceKind]:
    kinds: dict[str, ResourceKind] = {}
    for program in programs:
        kinds.update({resource.name: resource.kind for resource in program.resources})
        rows = kinds_of(program)
        for op in program.ops():
            for effect in effects_of(op, rows[op.kind], program.contract):
                kinds.setdefault(effect.resource, ResourceKind.STATE)
    kinds.pop(ANY, None)
    return {name: kind for name, kind in kinds.items() if not any(other.startswith(name + ".") for other in kinds)}


def _under(resource: str, leaves: dict[str, ResourceKind]) -> tuple[str, ...]:
    return (resource,) if resource in leaves else tuple(leaf for leaf in leaves if overlaps(resource, leaf))


def use_of(makers: dict[str, tuple[Site, int]], use: Use) -> tuple[ValueKey, int, int, int]:
    """An operand as its op looks it up; a value that nothing makes has a key that nothing has."""
    if use.name not in makers:
        return (use.name, "nothing", 0), 0, use.step, use.micro
    site, position = makers[use.name]
    return site.value(position), site.depth, use.step, use.micro


def side_of(program: Program, leaves: dict[str, ResourceKind] | None = None) -> Side:
    """A program with its ops numbered; ``leaves`` are those of the program itself where none are given."""
    leaves = _leaves(program) if leaves is None else leaves
    rows = kinds_of(program)
    sites: list[Site] = []

    def visit(nodes: tuple[Node, ...], region: Region, places: tuple[int, ...], loops: tuple[Loop, ...]) -> None:
        for at, node in enumerate(nodes):
            if isinstance(node, Loop):
                visit(node.body, region, (*places, at), (*loops, node))
                continue
            kind = rows[node.kind]
            touches = touches_of(effects_of(node, kind, program.contract), leaves)
            closes, depth = str(node.attr("closes") or ""), len(loops) or int(node.micro is not None)
            asynchronous = not kind.blocking and bool(kind.device)
            sites.append(
                Site(
                    len(sites),
                    node,
                    kind,
                    region,
                    (*places, at),
                    loops,
                    part_of(node),
                    touches,
                    closes,
                    asynchronous,
                    depth,
                    any(touch.writes and stays(touch.leaf) for touch in touches),
                )
            )

    visit(program.prologue, "before", (), ())
    visit(program.body, "step", (), ())
    visit(program.epilogue, "after", (), ())
    written = {touch.leaf for site in sites for touch in site.touches if touch.writes}
    makers = {result.name: (site, at) for site in sites for at, result in enumerate(site.op.results)}
    return Side(
        program,
        tuple(sites),
        {site.op.id: site for site in sites},
        makers,
        max((site.op.shift for site in sites if not site.loops and site.op.shift > 0), default=0),
        frozenset(site.number for site in sites if any(given.name == "exists" for given in site.kind.results)),
        {site.origin.op: site.loops[-1] for site in sites if site.loops and site.loops[-1].kind == "micro_batches"},
        tuple(tuple(use_of(makers, use) for use in site.op.args) for site in sites),
        tuple(tuple(touch for touch in site.touches if touch.leaf in written) for site in sites),
    )
