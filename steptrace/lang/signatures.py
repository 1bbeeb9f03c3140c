"""Calls of the step's methods, checked against their signatures so that a wrong one is a coded error."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

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
    shown = ", ".join(str(parameter) for parameter in list(signature.parameters.values())[1:]).replace("'", "")

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            misuse = OpCallError(f"`{name}`: {error}", loc=user_loc(), help=f"step.{name}({shown})")
            raise self._tracer.refuse(misuse) from None
        return method(self, *args, **kwargs)

    return call
