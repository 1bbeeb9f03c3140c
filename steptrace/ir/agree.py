"""Whether an op agrees with its row: attributes, operands, results, lane. Parser and verifier share these rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from steptrace.diag.base import SteptraceError
from steptrace.diag.text import (
    BadAttributeError,
    SignatureError,
    TypesDisagreeError,
    UnknownKindError,
    UnknownLaneError,
)
from steptrace.ir.builtin import BUILTIN, RESOURCES
from steptrace.ir.effects import parse_pattern
from steptrace.ir.kind import REQUIRED, Attr, OpKind
from steptrace.ir.printer import literal, type_text
from steptrace.ir.program import Op
from steptrace.ir.resource import COUNTED, Access, Resource, ResourceKind
from steptrace.ir.types import AttrValue, Type

LANES = ("host", "packer", "trainer", "reference", "rollout", "io", "device", "link")
"""The lanes that a program has beside those its users' rows name."""

CONTRACT_CHOICES = {
    "weights": ("pinned", "freshest"),
    "partial": ("train", "drop", "error"),
    "empty": ("skip", "error"),
    "saves": ("before_sync", "may_fail_late"),
    "logs": ("before_callbacks", "may_fail_late"),
}
"""What the clauses of a contract may say, but for the staleness, a number."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """One disagreement of an op with its row.

    Attributes:
      error: the class of the diagnostic.
      part: the part of the op, as ``steptrace.ir.places.Places`` names it.
      message: one sentence.
      help: the way out.
    """

    error: type[SteptraceError]
    part: str
    message: str
    help: str = ""


def misfits(op: Op, kinds: Mapping[str, OpKind], types: Mapping[str, Type]) -> Iterator[Misfit]:
    """Each disagreement of an op with its row.

    Args:
      op: the op.
      kinds: the rows a program may use, by name.
      types: types of the values of the program, by name. Results are compared only where every operand has
        one and fits the row.
    """
    kind = kinds.get(op.kind)
    if kind is None:
        yield Misfit(UnknownKindError, "kind", f"no op is called `{op.kind}`", _nearest(op.kind, tuple(kinds)))
        return
    yield from _attr_misfits(op, kind)
    yield from _signature_misfits(op, kind, types)
    if op.lane in LANES or op.lane == kind.lane:
        return
    if op.lane not in (lanes := lanes_of(kinds)):
        yield Misfit(UnknownLaneError, "lane", f"`{op.lane}` is no lane", f"the lanes are {', '.join(lanes)}")


def lanes_of(kinds: Mapping[str, OpKind]) -> tuple[str, ...]:
    """The lanes that there are: the usual ones, and those that users' rows name."""
    return tuple(dict.fromkeys((*LANES, *(row.lane for row in kinds.values()))))


def row_misfit(kind: OpKind) -> str:
    """What is wrong with a user's row, in words; "" when nothing is."""
    if kind.name in BUILTIN:
        return f"`{kind.name}` is a built-in op, so no other row can have its name"
    operands = [operand.name for operand in kind.operands]
    for given in kind.results:
        if given.like is not None and given.like not in operands:
            return f"result `{given.name}` keeps the fields of `{given.like}`, which is no operand of `{kind.name}`"
    varied = [pattern for variant in kind.variants for pattern in (*variant.reads, *variant.writes)]
    for pattern in (*kind.reads, *kind.writes, *kind.awaits, *varied):
        if not is_effect(pattern):
            return f"`{pattern}` is not an effect: expected a resource, with an index such as [k] or [k-1]"
    return ""


def resource_misfit(resource: Resource) -> str:
    """What is wrong with the declaration of a resource, in words; "" when nothing is."""
    known = RESOURCES.get(resource.name)
    if known is not None and known.kind is not resource.kind:
        return f"the built-in resource `{resource.name}` is a {known.kind.value}, not a {resource.kind.value}"
    if resource.kind is ResourceKind.SLOT and resource.capacity < 1:
        return f"slot `{resource.name}` must hold at least one entry"
    if resource.capacity < 0 or (resource.capacity and resource.kind not in COUNTED):
        return f"`{resource.name}` is one {resource.kind.value} and holds no {resource.capacity} entries"
    return ""


def is_effect(pattern: str) -> bool:
    """Whether a pattern stands for an effect."""
    try:
        parse_pattern(Access.READ, pattern, 0)
    except ValueError:
        return False
    return True


def _attr_misfits(op: Op, kind: OpKind) -> Iterator[Misfit]:
    given = dict(op.attrs)
    for spec in kind.attrs:
        if spec.default is REQUIRED and spec.name not in given:
            yield Misfit(BadAttributeError, "kind", f"`{op.kind}` needs the attribute `{spec.name}`", spec.doc)
    for name, value in given.items():
        part, spec_of = f"attr {name}", kind.attr_spec(name)
        if spec_of is None:
            known = tuple(spec.name for spec in kind.attrs)
            yield Misfit(BadAttributeError, part, f"`{op.kind}` has no attribute `{name}`", _nearest(name, known))
        elif not _is_a(value, spec_of.type):
            message = f"`{name}` of `{op.kind}` is {_type_words(spec_of)}, not {literal(value)}"
            yield Misfit(BadAttributeError, part, message)
        elif spec_of.choices and value not in spec_of.choices:
            choices = ", ".join(map(literal, spec_of.choices))
            message = f"`{name}` of `{op.kind}` is one of {choices}, not {literal(value)}"
            yield Misfit(BadAttributeError, part, message)
        elif spec_of.least is not None and isinstance(value, int | float) and value < spec_of.least:
            message = f"`{name}` of `{op.kind}` is at least {spec_of.least}, not {literal(value)}"
            yield Misfit(BadAttributeError, part, message)
        elif kind.declares and name in ("reads", "writes") and isinstance(value, tuple):
            for pattern in value:
                if not is_effect(pattern):
                    message = f"`{pattern}` is not an effect: expected a resource, with an index such as [k]"
                    yield Misfit(BadAttributeError, part, message)


def _signature_misfits(op: Op, kind: OpKind, types: Mapping[str, Type]) -> Iterator[Misfit]:
    if len(op.args) != len(kind.operands):
        wanted = ", ".join(f"{spec.name}: {spec}" for spec in kind.operands)
        yield Misfit(SignatureError, "args", f"`{op.kind}` takes ({wanted}), not {_count(len(op.args), 'operand')}")
        return
    if len(op.results) != len(kind.results):
        wanted = ", ".join(given.name for given in kind.results)
        yield Misfit(SignatureError, "", f"`{op.kind}` gives ({wanted}), not {_count(len(op.results), 'result')}")
        return
    known = [types.get(use.name) for use in op.args]
    operands = tuple(type_ for type_ in known if type_ is not None)
    if len(operands) < len(known) or any(kind.misfits(at, type_) for at, type_ in enumerate(operands)):
        return
    for result, derived in zip(op.results, kind.result_types(operands), strict=True):
        if (result.type.base, result.type.fields) != (derived.base, derived.fields):
            message = f"`{op.kind}` gives {type_text(derived)} here, not {type_text(result.type)}"
            yield Misfit(TypesDisagreeError, f"%{result.name}", message)


def _is_a(value: AttrValue, type_: type) -> bool:
    """Whether an attribute's value is of a type; a whole number will do for a float, a bool for neither."""
    if type_ is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type_


def _type_words(spec: Attr) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    return words.get(spec.type, "strings in parentheses")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _nearest(name: str, known: tuple[str, ...]) -> str:
    from difflib import get_close_matches  # only for a refusal: its import takes as long as a whole parse

    near = get_close_matches(name, known, 1)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"known are {', '.join(known)}" if known else ""
