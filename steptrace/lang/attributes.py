"""Attributes of ops and parameters of programs: plain values, fixed when a step is traced."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from steptrace.diag.base import did_you_mean
from steptrace.diag.loc import Loc
from steptrace.diag.tracing import AttributeValueError, OpCallError
from steptrace.ir.kind import REQUIRED, Attr, OpKind
from steptrace.ir.lexer import MOST_DIGITS
from steptrace.ir.types import AttrValue

TYPE_NAMES: Mapping[type, str] = {bool: "a bool", int: "an int", float: "a float", str: "a str", tuple: "a list of str"}
"""The types an attribute may have, in words."""


def fitted(value: object, type_: type) -> AttrValue | None:
    """``value`` as an attribute of ``type_``: ints serve as floats, lists as tuples; None when it does not fit."""
    if type_ is tuple:
        if isinstance(value, tuple | list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        return None
    if isinstance(value, bool):
        return value if type_ is bool else None
    if type_ is float and isinstance(value, int):
        return float(value) if abs(value) <= sys.float_info.max else None
    if (isinstance(value, float) and math.isnan(value)) or (isinstance(value, int) and abs(value) >= 10**MOST_DIGITS):
        return None
    return value if type_ in (int, float, str) and isinstance(value, type_) else None


def attributes(kind: OpKind, given: Mapping[str, object], loc: Loc) -> tuple[tuple[str, AttrValue], ...]:
    """The attributes of an op of this row, defaults filled in; refuses unknown, missing and wrong ones."""
    known = {spec.name: spec for spec in kind.attrs}
    for name in given:
        if name not in known:
            listed = ", ".join(known) or "none"
            message = f"`{kind.name}` has no attribute `{name}`; it has: {listed}"
            raise OpCallError(message, loc=loc, help=did_you_mean(name, known))
    chosen = ((spec.name, _attribute(kind, spec, given.get(spec.name), loc)) for spec in kind.attrs)
    return tuple((name, value) for name, value in chosen if value is not None)


def _attribute(kind: OpKind, spec: Attr, value: object, loc: Loc) -> AttrValue | None:
    """One attribute; None when it is left out."""
    if value is None:
        if spec.default is REQUIRED:
            raise OpCallError(f"`{kind.name}` needs its attribute `{spec.name}`: {spec.doc}", loc=loc)
        value = spec.default
        if value is None:
            return None
    result = fitted(value, spec.type)
    if result is None:
        wanted = TYPE_NAMES[spec.type]
        raise AttributeValueError(f"`{spec.name}` of `{kind.name}` is {wanted}, not {value!r}", loc=loc)
    if spec.choices and result not in spec.choices:
        allowed = ", ".join(map(str, spec.choices))
        raise AttributeValueError(f"`{spec.name}` of `{kind.name}` is one of {allowed}, not {value!r}", loc=loc)
    if spec.least is not None and isinstance(result, int | float) and result < spec.least:
        raise AttributeValueError(f"`{spec.name}` of `{kind.name}` is at least {spec.least}, not {value!r}", loc=loc)
    return result


def positive(what: str, value: object, loc: Loc) -> int:
    """``value``, a whole number of at least 1, known when the step is traced."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 10**MOST_DIGITS:
        raise AttributeValueError(f"{what} is a whole number of at least 1, not {value!r}", loc=loc)
    return value
