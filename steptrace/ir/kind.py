"""Rows of the op table: what an op takes, gives, reads, writes, where it runs, and what it means.

Tracer, parser, verifier, documentation and simulator all read the same rows; users add rows with
``@steptrace.op``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from steptrace.diag.loc import Loc
from steptrace.ir.types import AttrValue, Type


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a row.

    Attributes:
      name: what it is, for messages.
      base: its base type, or None when any type will do.
      needs: fields it must carry.
    """

    name: str
    base: str | None
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        base = self.base or "any"
        return f"{base}<{', '.join(self.needs)}>" if self.needs else base


@dataclass(frozen=True, slots=True)
class Given:
    """A result of a row.

    Attributes:
      name: default name of the value.
      base: its base type.
      like: name of the operand whose fields it keeps, if any.
      adds: fields it carries beside those.
    """

    name: str
    base: str
    like: str | None = None
    adds: tuple[str, ...] = ()

    def __str__(self) -> str:
        fields = [f"{self.like}.*"] if self.like else []
        fields += self.adds
        return f"{self.base}<{', '.join(fields)}>" if fields else self.base


class _Required(enum.Enum):
    REQUIRED = "required"


REQUIRED = _Required.REQUIRED
"""Default of an attribute that must be given."""

UNSET = None
"""Default of an attribute that may be left out."""


@dataclass(frozen=True, slots=True)
class Attr:
    """An attribute of a row.

    Attributes:
      name: its name.
      type: ``bool``, ``int``, ``float``, ``str`` or ``tuple`` (of strings).
      default: value when not given, ``REQUIRED``, or ``UNSET``.
      choices: the values allowed, empty for any.
      doc: what it sets, with its unit.
      least: the smallest number allowed, None for any.
    """

    name: str
    type: type
    default: AttrValue | _Required | None = UNSET
    choices: tuple[AttrValue, ...] = ()
    doc: str = ""
    least: int | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """What a row reads and writes besides when an attribute has a value.

    Attributes:
      attr: the attribute.
      value: its value.
      reads: further patterns.
      writes: further patterns.
    """

    attr: str
    value: AttrValue
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpKind:
    """A row of the op table.

    Effects are written as patterns: ``params``, ``metrics[k]``, ``rollout.weights[k-1-w]`` with ``w`` the
    staleness of the program's contract.

    Attributes:
      name: the kind.
      operands: what it takes.
      results: what it gives.
      attrs: its attributes.
      reads: patterns of what it reads.
      writes: patterns of what it writes.
      awaits: patterns of what must be done, not only issued, before it.
      variants: further effects that depend on an attribute.
      lane: the lane that issues it unless the schedule says otherwise.
      device: where its work runs once issued: ``trainer``, ``reference``, ``rollout``, or "" for the lane itself.
      blocking: whether the call returns only when its work is finished.
      polls: whether it looks if its operands are there instead of waiting for them, and says so in its last result.
      frees: whether it gives back the memory of its operand: it waits until all that reads that, or what was made from
        it, is done, not only issued.
      may_fail: whether it can fail for a reason outside the program.
      declares: whether attributes ``reads`` and ``writes`` give the effects; absent, it touches everything.
      binds: the part and method that implement it, ``trainer.fwd_bwd``; "" when the runtime does.
      cost: its class in the cost model: ``host``, ``device``, ``transfer``, ``wait``, ``disk``, ``none``.
      laws: names of the laws that split or fuse it.
      doc: one sentence.
      example: a line of the DSL.
      user: True for rows added by users.
      loc: where a user declared it.
    """

    name: str
    operands: tuple[Operand, ...] = ()
    results: tuple[Given, ...] = ()
    attrs: tuple[Attr, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    awaits: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    lane: str = "host"
    device: str = ""
    blocking: bool = True
    polls: bool = False
    frees: bool = False
    may_fail: bool = True
    declares: bool = False
    binds: str = ""
    cost: str = "host"
    laws: tuple[str, ...] = ()
    doc: str = ""
    example: str = ""
    user: bool = False
    loc: Loc | None = None

    @property
    def reads_buffer(self) -> bool:
        """Whether it takes a micro-batch, or a token of one that was shipped: it may read the buffer of that."""
        return any(operand.base in ("micro_batch", "token") for operand in self.operands)

    def attr_spec(self, name: str) -> Attr | None:
        """The attribute of that name, or None."""
        return next((attr for attr in self.attrs if attr.name == name), None)

    def result_types(self, operands: tuple[Type, ...]) -> tuple[Type, ...]:
        """Types of the results for operands of these types, which must fit the row."""
        by_name = {spec.name: type_ for spec, type_ in zip(self.operands, operands, strict=True)}
        return tuple(
            Type(given.base, (*(by_name[given.like].fields if given.like else ()), *given.adds))
            for given in self.results
        )

    def misfits(self, position: int, type_: Type) -> str:
        """Why a value of this type cannot be operand ``position``, in words; "" when it can."""
        spec = self.operands[position]
        if spec.base is not None and spec.base != type_.base:
            return f"`{self.name}` takes {spec} as its {spec.name}, not {type_}"
        missing = type_.missing(spec.needs)
        if missing:
            fields = ", ".join(f"`{name}`" for name in missing)
            return f"`{self.name}` reads {fields} of its {spec.name}, which no op before it has made"
        return ""
