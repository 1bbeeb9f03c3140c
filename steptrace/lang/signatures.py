"""Calls of the step's methods, checked against their signatures so that a wrong one is a coded error."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from steptrace.diag.base import did_you_mean
from steptrace.diag.tracing import OpCallError
from steptrace.lang.place import user_loc
from steptrace.lang.tracer import Tracer


class Holder(Protocol):
    """Something that belongs to a trace."""

    _tracer: Tracer


S = TypeVar("S", bound=Holder)
P = ParamSpec("P")
R = TypeVar("R")


def recorded(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """``method``, refusing calls that do not fit its signature with the user's line."""
    signature = inspect.signature(method)
    name = method.__name__
    open_ended = any(item.kind is item.VAR_KEYWORD for item in signature.parameters.values())
    shown = ", ".join(str(parameter) for parameter in list(signature.parameters.values())[1:]).replace("'", "")

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        unknown = next((key for key in kwargs if key not in signature.parameters), None)
        if unknown is not None and not open_ended:
            near = did_you_mean(unknown, signature.parameters)
            message = f"`{name}` has no argument `{unknown}`"
            help = f"{near} step.{name}({shown})".strip()
            raise self._tracer.refuse(OpCallError(message, loc=user_loc(), help=help))
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            misuse = OpCallError(f"`{name}`: {error}", loc=user_loc(), help=f"step.{name}({shown})")
            raise self._tracer.refuse(misuse) from None
        return method(self, *args, **kwargs)

    return call
