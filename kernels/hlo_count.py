"""Walks a compiled program as it is executed, and tallies what it meets."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from steptrace_kernels.hlo_loops import trips
from steptrace_kernels.hlo_text import Computation, Instruction, Module, Shape

_COLLECTIVE = re.compile(
    r"(ragged-)?(all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|collective-broadcast)(-start)?$"
)
_NO_BUFFER = ("parameter", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call", "constant")


@dataclass(frozen=True)
class Collective:
    """A collective operation.

    Attributes:
      name: of the instruction.
      kind: as ``all-gather``; a reduction of which each device keeps its part is a ``reduce-scatter``, however written.
      shapes: what a device puts in.
      group: how many devices take part together.
      bytes: that one device sends, each time.
      times: how often it is executed; None where that is not known.
      table: whether it moves the table, or its gradient.
      meanwhile: matmul FLOPs between its start and its end; 0 for one that the program waits for.
    """

    name: str
    kind: str
    shapes: tuple[Shape, ...]
    group: int
    bytes: float
    times: int | None
    table: bool = False
    meanwhile: float = 0.0


@dataclass(frozen=True)
class Table:
    """A vocabulary table, told from other arrays by the factors of its sizes that sharding cannot divide away."""

    vocab: int
    features: int
    devices: int

    def __post_init__(self) -> None:
        if self.factors == (1, 1):
            raise ValueError(
                f"a table [{self.vocab}, {self.features}] on {self.devices} devices cannot be told from other arrays "
                "by its size: choose sizes with another prime factor than those of the number of devices"
            )

    @property
    def factors(self) -> tuple[int, int]:
        """Of entries and features, what is left without factors 2 and those of the number of devices."""
        return _core(self.vocab, 2 * self.devices), _core(self.features, 2 * self.devices)

    def holds(self, shapes: tuple[Shape, ...]) -> bool:
        """Whether these are parts of the table."""
        elements = sum(shape.elements for shape in shapes)
        return elements > 0 and elements % math.prod(self.factors) == 0


@dataclass
class Tally:
    """What was met so far.

    Attributes:
      table: what to mark as the table's.
      unknown_trips: what to count a loop for that does not tell its trip count; None not to count it.
    """

    table: Table | None
    unknown_trips: int | None
    collectives: list[Collective] = field(default_factory=list)
    flops: float = 0.0
    buffers: list[Shape] = field(default_factory=list)
    unknown_loops: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)

    def fresh(self) -> Tally:
        """One of the same kind with nothing in it."""
        return Tally(self.table, self.unknown_trips)

    def absorb(self, other: Tally) -> None:
        """Add what another one has."""
        self.collectives += other.collectives
        self.flops += other.flops
        self.buffers += other.buffers
        self.unknown_loops += other.unknown_loops
        self.opaque += other.opaque

    @property
    def weight(self) -> tuple[float, float]:
        """By what branches are compared: bytes, then FLOPs."""
        return sum(one.bytes * (one.times or 1) for one in self.collectives), self.flops


def walk(
    module: Module,
    inside: Computation,
    times: int | None,
    tally: Tally,
    *,
    fused: bool = False,
    meanwhile: float = 0.0,
) -> None:
    """Tally what ``inside``, which is executed ``times`` times, does and calls.

    ``fused`` says that it is the inside of a fusion, whose arrays are not made; ``meanwhile`` how many matmul FLOPs are
    computed while it is under way, of an asynchronous call.
    """
    for one in inside.instructions.values():
        found = _COLLECTIVE.match(one.opcode)
        hidden = _meanwhile(module, inside, one) if one.opcode.endswith("-start") else meanwhile
        if found:
            tally.collectives.append(_collective(module, inside, one, found[2], times, tally, fused, hidden))
        elif one.opcode in ("dot", "convolution"):
            tally.flops += (times or 0) * _flops(inside, one)
        elif one.opcode == "custom-call":
            tally.opaque += re.findall(r'custom_call_target="([^"]+)"', one.attributes)
        if not fused and one.opcode not in _NO_BUFFER:
            tally.buffers += one.shapes
        _follow(module, inside, one, times, tally, fused, hidden)


def _follow(
    module: Module,
    inside: Computation,
    one: Instruction,
    times: int | None,
    tally: Tally,
    fused: bool,
    meanwhile: float,
) -> None:
    """Walk what ``one`` calls."""
    if one.opcode == "while":
        turns = trips(module, inside, one)
        if turns is None:
            tally.unknown_loops.append(one.name)
            turns = tally.unknown_trips
        again = None if turns is None or times is None else times * turns
        for name in one.callees("body", "condition"):
            walk(module, module.computations[name], again, tally)
    elif one.opcode == "conditional":
        kinds = ("branch_computations", "true_computation", "false_computation")
        branches = [tally.fresh() for _ in one.callees(*kinds)]
        for branch, name in zip(branches, one.callees(*kinds), strict=True):
            walk(module, module.computations[name], times, branch)
        tally.absorb(max(branches, key=lambda branch: branch.weight))
    elif one.opcode == "fusion":
        for name in one.callees("calls"):
            walk(module, module.computations[name], times, tally, fused=True, meanwhile=meanwhile)
    elif one.opcode in ("call", "async-start", "call-start", "fusion-start", "custom-call"):
        for name in one.callees("calls", "to_apply", "called_computations"):
            walk(module, module.computations[name], times, tally, fused=fused, meanwhile=meanwhile)


def _collective(
    module: Module,
    inside: Computation,
    one: Instruction,
    kind: str,
    times: int | None,
    tally: Tally,
    fused: bool,
    meanwhile: float,
) -> Collective:
    taken = inside.taken(one)
    users = inside.users(one.name)
    if kind == "all-reduce" and fused and users and all(user.opcode == "dynamic-slice" for user in users):
        # How the TPU compiler writes a reduce-scatter: one fusion of a reduction and the part that is kept of it.
        kind = "reduce-scatter"
    group = group_size(one.attributes, module.devices)
    size = sum(shape.bytes for shape in taken)
    share = (group - 1) / group
    sent = {
        "all-gather": size * (group - 1),
        "all-reduce": 2 * size * share,
        "reduce-scatter": size * share,
        "all-to-all": size * share,
    }.get(kind, size)
    table = tally.table is not None and tally.table.holds(taken)
    return Collective(one.name, kind, taken, group, float(sent), times, table, meanwhile)


def group_size(attributes: str, devices: int) -> int:
    """Devices of one replica group, in whichever form groups are written; all ``devices`` where none are.

    Lists ``{{0,1},{2,3}}``; the product of a reshaped iota, ``[groups,size]<=[...]``; or axes of a mesh,
    ``mesh['a'=4,'b'=2] {'b'}``, of which one may be split, as in ``'a':(1)2``.
    """
    if (found := re.search(r"replica_groups=\[(\d+),(\d+)\]<=", attributes)) is not None:
        return int(found[2])
    if (found := re.search(r"replica_groups=\{\{([\d,]*)\}", attributes)) is not None:
        return len([number for number in found[1].split(",") if number])
    mesh = re.search(r"replica_groups=@?\w*\[([^\]]*)\](?:, device_ids=\([^{]*\))? *\{([^}]*)\}", attributes)
    if mesh is None:
        return devices
    sizes = {name: int(size) for name, size in re.findall(r"['\"]?(\w+)['\"]?=(\d+)", mesh[1])}
    axes = re.findall(r"['\"]?(\w+)['\"]?(?::\(\d+\)(\d+))?", mesh[2])
    return math.prod(int(part) if part else sizes[name] for name, part in axes)


def _flops(inside: Computation, one: Instruction) -> float:
    """Of a dot or convolution: twice the elements of the result times the terms of each."""
    out = sum(shape.elements for shape in one.shapes)
    left, right = inside.taken(one)[:2]
    if one.opcode == "dot":
        dims = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.attributes)
        return 2.0 * out * math.prod(left.dims[int(at)] for at in dims[1].split(",") if at) if dims else 2.0 * out
    labels = re.search(r"dim_labels=\w+_(\w+)->", one.attributes)
    features = right.dims[labels[1].index("o")] if labels else 1
    return 2.0 * out * right.elements / features


def _meanwhile(module: Module, inside: Computation, start: Instruction) -> float:
    """Matmul FLOPs that stand between an asynchronous start and its end in the order of the text."""
    names = list(inside.instructions)
    after = names[names.index(start.name) + 1 :]
    waiting, between = {start.name}, Tally(None, 1)
    for name in after:
        one = inside.instructions[name]
        if waiting & set(one.operands):
            if one.opcode.endswith("-done"):
                return between.flops
            waiting.add(name)
        walk(module, Computation(inside.name, {**_makers(inside, one), name: one}), 1, between)
    return 0.0


def _makers(inside: Computation, one: Instruction) -> dict[str, Instruction]:
    """The instructions whose results ``one`` takes, as parameters: to be looked at, not to be counted."""
    return {
        name: Instruction(name, "parameter", made.shapes, "", (), "", False)
        for name in one.operands
        if (made := inside.instructions.get(name)) is not None
    }


def _core(number: int, without: int) -> int:
    """``number`` without the prime factors of ``without``."""
    while (common := math.gcd(number, without)) > 1:
        number //= common
    return number
