"""Parameters of programs and options of their contracts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import get_args, get_type_hints

from steptrace.diag.base import did_you_mean
from steptrace.diag.loc import Loc
from steptrace.diag.tracing import ContractOptionError, ParameterError, ProgramSignatureError
from steptrace.ir.program import Contract
from steptrace.ir.types import AttrValue
from steptrace.lang.attributes import TYPE_NAMES, fitted

OPTIONS = tuple(option.name for option in fields(Contract))
"""Names of the contract's options."""

_MISSING = inspect.Parameter.empty
_PARAMETER_TYPES = {"int": int, "float": float, "bool": bool, "str": str}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a program.

    Attributes:
      name: its name.
      type: ``int``, ``float``, ``bool`` or ``str``.
      default: its value when not given; None when it must be given.
    """

    name: str
    type: type
    default: AttrValue | None = None

    def __str__(self) -> str:
        return self.name if self.default is None else f"{self.name}={self.default!r}"


def parameter_of(given: inspect.Parameter, loc: Loc) -> Parameter:
    """The parameter of a program that a parameter of its function declares."""
    if given.kind in (given.VAR_POSITIONAL, given.VAR_KEYWORD, given.POSITIONAL_ONLY):
        raise ProgramSignatureError(f"`{given}` is no parameter of a program: each has a name", loc=loc)
    if given.name in OPTIONS:
        raise ProgramSignatureError(
            f"`{given.name}` is an option of the contract, not a parameter",
            loc=loc,
            help=f"@steptrace.program({given.name}=...); it can be given when tracing all the same",
        )
    annotation = given.annotation
    word = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    type_: type | None = _PARAMETER_TYPES.get(word) or (type(given.default) if annotation is _MISSING else None)
    if type_ is None or type_ not in _PARAMETER_TYPES.values():
        raise ProgramSignatureError(f"parameter `{given}` is no int, float, bool or str", loc=loc)
    if given.default is _MISSING:
        return Parameter(given.name, type_)
    default = fitted(given.default, type_)
    if default is None:
        raise ProgramSignatureError(f"the default of `{given}` is not {TYPE_NAMES[type_]}", loc=loc)
    return Parameter(given.name, type_, default)


def contract_with(base: Contract, given: Mapping[str, object], loc: Loc) -> Contract:
    """The contract with the options given."""
    chosen = {name: getattr(base, name) for name in OPTIONS} | dict(given)
    allowed = get_type_hints(Contract)
    for name, value in chosen.items():
        if name not in OPTIONS:
            message = f"there is no option `{name}`; there are: {', '.join(OPTIONS)}"
            raise ContractOptionError(message, loc=loc, help=did_you_mean(name, OPTIONS))
        choices = get_args(allowed[name])
        if choices and value not in choices:
            message = f"`{name}` is one of {', '.join(choices)}, not {value!r}"
            raise ContractOptionError(message, loc=loc, help=did_you_mean(str(value), choices))
    staleness = fitted(chosen["staleness"], int)
    if not isinstance(staleness, int) or staleness < 0:
        raise ContractOptionError(f"`staleness` is a number of updates, not {chosen['staleness']!r}", loc=loc)
    return Contract(**chosen)


def values_of(
    name: str, parameters: tuple[Parameter, ...], given: Mapping[str, AttrValue], loc: Loc
) -> dict[str, AttrValue]:
    """The parameters of a trace, defaults filled in."""
    known = ", ".join(map(str, parameters)) or "none"
    for key in given:
        if key not in {parameter.name for parameter in parameters}:
            near = did_you_mean(key, [*(parameter.name for parameter in parameters), *OPTIONS])
            meant = next((option for option in OPTIONS if near and f"`{option}`" in near), "")
            known += f"; and, of the contract, {meant}" if meant else ""
            raise ParameterError(
                f"`{name}` has no parameter `{key}`; it has: {known}",
                loc=loc,
                help=near or f"the contract's options are {', '.join(OPTIONS)}",
            )
    values = {}
    for parameter in parameters:
        value = given.get(parameter.name, parameter.default)
        if value is None:
            raise ParameterError(f"`{name}` needs its parameter `{parameter.name}`", loc=loc)
        fit = fitted(value, parameter.type)
        if fit is None:
            wanted = TYPE_NAMES[parameter.type]
            raise ParameterError(f"`{parameter.name}` of `{name}` is {wanted}, not {value!r}", loc=loc)
        values[parameter.name] = fit
    return values
