"""The row of the op table that a user's function declares."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from steptrace.diag.loc import Loc
from steptrace.diag.tracing import OpDeclarationError
from steptrace.ir.builtin import BUILTIN
from steptrace.ir.kind import REQUIRED, UNSET, Attr, Given, Operand, OpKind
from steptrace.ir.resource import ANY
from steptrace.ir.types import BASES
from steptrace.lang.attributes import TYPE_NAMES, fitted
from steptrace.lang.resources import Pattern, patterns

CONTEXT = ("step", "key", "resources")
"""Keyword-only parameters without a default by which a function asks for the step, a PRNG key, and resources."""

_TYPE = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)\s*:\s*)?(?P<base>\w+)\s*(?:<(?P<fields>[^<>]*)>)?")
_ATTRIBUTE_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "tuple": tuple}


def declared_row(
    function: Callable[..., Any],
    loc: Loc,
    *,
    name: str,
    takes: Sequence[str],
    gives: str | Sequence[str],
    reads: Sequence[Pattern] | None,
    writes: Sequence[Pattern] | None,
    lane: str,
    blocking: bool,
    may_fail: bool,
) -> OpKind:
    """The row; see ``steptrace.op`` for the arguments. Refuses a declaration that does not fit the function."""
    _check_name(name, lane, loc)
    given = (gives,) if isinstance(gives, str) else gives
    for role, types in (("takes", takes), ("gives", given)):
        if isinstance(types, str) or not isinstance(types, Sequence):
            raise OpDeclarationError(f'`{role}` is a tuple of types, ("groups",), not {types!r}', loc=loc)
    operands, attrs = _parameters(function, takes, loc)
    silent = reads is None and writes is None
    return OpKind(
        name,
        operands=operands,
        results=_results(name, given, operands, loc),
        attrs=attrs,
        reads=(ANY,) if silent else patterns(reads or (), "reads", loc),
        writes=(ANY,) if silent else patterns(writes or (), "writes", loc),
        lane=lane,
        blocking=blocking,
        may_fail=may_fail,
        doc=(function.__doc__ or "").strip().partition("\n")[0],
        user=True,
        loc=loc,
    )


def _check_name(name: str, lane: str, loc: Loc) -> None:
    if not name.isidentifier():
        raise OpDeclarationError(
            f"an op needs a name, not `{name}`", loc=loc, help='@steptrace.op(name="...") names it'
        )
    if name in BUILTIN:
        raise OpDeclarationError(f"`{name}` is a built-in op", loc=loc, help='@steptrace.op(name="...") renames yours')
    if not isinstance(lane, str) or not lane.isidentifier():
        raise OpDeclarationError(f"the lane of `{name}` is a name such as `host`, not {lane!r}", loc=loc)


def _parameters(
    function: Callable[..., Any], takes: Sequence[str], loc: Loc
) -> tuple[tuple[Operand, ...], tuple[Attr, ...]]:
    """Operands and attributes of the function."""
    given = list(inspect.signature(function).parameters.values())
    named = [item for item in given if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    required = [item for item in named if item.default is item.empty]
    if len(required) != len(takes) or any(item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD) for item in given):
        raise OpDeclarationError(
            f"`{function.__name__}{inspect.signature(function)}` has {len(required)} operands (positional parameters "
            f"without a default), and `takes` has {len(takes)} {'type' if len(takes) == 1 else 'types'}",
            loc=loc,
            help="one type for each operand; attributes are keyword-only, or have a default",
        )
    operands = tuple(_operand(item.name, text, loc) for item, text in zip(required, takes, strict=True))
    return operands, tuple(_attribute(item, loc) for item in given if item not in required and not is_context(item))


def is_context(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is filled by the runtime when the op runs, not by the step that calls it."""
    asked = parameter.kind is parameter.KEYWORD_ONLY and parameter.name in CONTEXT
    return asked and parameter.default is parameter.empty


def _operand(name: str, text: str, loc: Loc) -> Operand:
    _, base, fields = _parsed(text, loc)
    return Operand(name, None if base == "any" else base, fields)


def _results(op_name: str, gives: Sequence[str], operands: tuple[Operand, ...], loc: Loc) -> tuple[Given, ...]:
    results = []
    for text in gives:
        name, base, fields = _parsed(text, loc)
        if base == "any":
            raise OpDeclarationError(f"a result has a type, not `any`; the opaque type is `value`: `{text}`", loc=loc)
        like = next((operand.name for operand in operands if operand.base == base), None)
        results.append(Given(name or like or base, base, like, fields))
    if len({given.name for given in results}) < len(results):
        raise OpDeclarationError(f"the results of `{op_name}` need names: `first: groups`", loc=loc)
    return tuple(results)


def _parsed(text: str, loc: Loc) -> tuple[str, str, tuple[str, ...]]:
    """Name, base and fields of a type such as ``"part: groups<rewards>"``."""
    match = _TYPE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or match["base"] not in (*BASES, "any"):
        raise OpDeclarationError(f"{text!r} is no type; the types are any, {', '.join(BASES)}", loc=loc)
    fields = tuple(sorted(field.strip() for field in (match["fields"] or "").split(",") if field.strip()))
    if not all(field.isidentifier() for field in fields):
        raise OpDeclarationError(f"{text!r} is no type: its fields are names", loc=loc)
    return match["name"] or "", match["base"], fields


def _attribute(parameter: inspect.Parameter, loc: Loc) -> Attr:
    annotation, default = parameter.annotation, parameter.default
    word = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    missing = default is parameter.empty
    type_: type | None = _ATTRIBUTE_TYPES.get(word.partition("[")[0])
    if type_ is None and annotation is parameter.empty and not missing:
        type_ = tuple if isinstance(default, list) else type(default)
    if type_ is None or type_ not in TYPE_NAMES:
        raise OpDeclarationError(f"attribute `{parameter}` is no int, float, bool, str or tuple of str", loc=loc)
    if missing or default is None:
        return Attr(parameter.name, type_, REQUIRED if missing else UNSET)
    fit = fitted(default, type_)
    if fit is None:
        raise OpDeclarationError(f"the default of `{parameter}` is not {TYPE_NAMES[type_]}", loc=loc)
    return Attr(parameter.name, type_, fit)
