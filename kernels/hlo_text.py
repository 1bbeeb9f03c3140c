"""Optimized HLO as text, read into computations and instructions: as much of its grammar as counting needs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128, "bf16": 16}
_HEADER = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?(\S+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\dm\d\w*)?)\[([\d,<=]*)\]")
_CALLEE = re.compile(
    r"\b(calls|to_apply|condition|body|true_computation|false_computation|branch_computations|called_computations)="
    r"(\{[^}]*\}|%?[^\s,]+)"
)


@dataclass(frozen=True)
class Shape:
    """An array: the name of its dtype, and its dimensions, as they are on one device."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes it takes."""
        return -(-self.elements * _bits(self.dtype) // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name: its name, without the percent sign.
      opcode: as ``all-gather-start``.
      shapes: arrays of its result; of a tuple all, in order, nested ones too.
      arguments: what stands in its parentheses.
      operands: names of the instructions whose results it takes.
      attributes: what follows, as text.
      root: whether it is the result of its computation.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    arguments: str
    operands: tuple[str, ...]
    attributes: str
    root: bool

    def callees(self, *kinds: str) -> tuple[str, ...]:
        """Names of the computations that its attributes ``kinds`` name, as ``calls`` or ``body``."""
        found = []
        for kind, value in _CALLEE.findall(self.attributes):
            if kind in kinds:
                found += [name.strip().lstrip("%") for name in value.strip("{}").split(",") if name.strip()]
        return tuple(found)


@dataclass(frozen=True)
class Computation:
    """Instructions by name, in the order of the text: of a scheduled module, that of execution."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @property
    def root(self) -> Instruction:
        """The instruction whose result is the computation's."""
        return next((one for one in self.instructions.values() if one.root), [*self.instructions.values()][-1])

    def taken(self, instruction: Instruction) -> tuple[Shape, ...]:
        """Arrays that ``instruction`` takes: from the lines that make them, else as they stand in its own."""
        if instruction.operands and all(name in self.instructions for name in instruction.operands):
            return tuple(shape for name in instruction.operands for shape in self.instructions[name].shapes)
        return tuple(shapes_in(instruction.arguments))

    def users(self, name: str) -> list[Instruction]:
        """Instructions that take the result of the one called ``name``."""
        return [one for one in self.instructions.values() if name in one.operands]


@dataclass(frozen=True)
class Module:
    """A program for one device of ``devices``."""

    computations: dict[str, Computation]
    entry: Computation
    devices: int


def parse(text: str) -> Module:
    """The module that ``text`` is.

    Raises:
      ValueError: it has no entry computation, so that it is no optimized HLO.
    """
    computations: dict[str, Computation] = {}
    entry, current = None, None
    for line in text.splitlines():
        header = None if line.startswith(" ") else _HEADER.match(line)
        if header:
            current = Computation(header[2])
            computations[current.name] = current
            entry = current if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (found := _INSTRUCTION.match(line)):
            one = _instruction(found[2], found[3], root=bool(found[1]))
            current.instructions[one.name] = one
    if entry is None or not entry.instructions:
        raise ValueError("this is no text of a compiled program: it has no ENTRY computation")
    sizes = [int(n) for n in re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", text.partition("\n")[0])]
    return Module(computations, entry, math.prod(sizes))


def shapes_in(text: str) -> Iterator[Shape]:
    """The arrays that a type, or a list of typed operands, names."""
    for dtype, dims in _ARRAY.findall(text):
        yield Shape(dtype, tuple(int(n.removeprefix("<=")) for n in dims.split(",") if n))


def enclosed(text: str) -> str:
    """What stands between the bracket that ``text`` starts with and the one that closes it."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if not depth:
            return text[1:at]
    return text[1:]


def _instruction(name: str, rest: str, *, root: bool) -> Instruction:
    kind = f"({enclosed(rest)})" if rest.startswith("(") else rest.partition(" ")[0]
    opcode, _, _ = rest[len(kind) :].lstrip().partition("(")
    after = rest[len(kind) :].lstrip()[len(opcode) :]
    arguments = enclosed(after)
    operands = _operands(arguments) if opcode not in ("constant", "parameter", "iota") else ()
    attributes = after[len(arguments) + 2 :]
    return Instruction(name, opcode, tuple(shapes_in(kind)), arguments, operands, attributes, root)


def _operands(arguments: str) -> tuple[str, ...]:
    """Names, with or without percent signs, with or without types before them."""
    if "%" in arguments:
        return tuple(re.findall(r"%([^\s,()]+)", arguments))
    plain = re.sub(r"/\*.*?\*/|\[[^\]]*\]|\{[^}]*\}", "", arguments)
    return tuple(part.split()[-1] for part in plain.split(",") if part.split())


def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    number = re.search(r"\d+", dtype)
    return int(number[0]) if number else 0
