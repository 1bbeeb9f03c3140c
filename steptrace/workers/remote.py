"""``steptrace.remote``: how to make a part, written down so that another process can do it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from steptrace.diag.loc import Loc
from steptrace.diag.workers import RemoteFactoryError
from steptrace.workers.packing import check_arguments


@dataclass(frozen=True)
class Remote:
    """A part that is made where it is needed.

    Attributes:
      factory: a function or class that can be imported by its module and name.
      args: its arguments.
      kwargs: its named arguments.
      loc: the line that wrote it down.
    """

    factory: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loc: Loc | None = None

    def build(self) -> Any:
        """The part, made in this process."""
        return self.factory(*self.args, **self.kwargs)

    def __str__(self) -> str:
        inner = self.args[0] if self.args else None
        return str(inner) if isinstance(inner, Remote) else f"remote({_named(self.factory)})"  # what a user wrote down


def remote(factory: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Remote:
    """A part that a worker makes: ``factory(*args, **kwargs)``, called there.

    Args:
      factory: a function or class at the top of a module or script; ``functools.partial`` of one will do.
      *args: plain data, numpy and JAX arrays, keys; anything that can be pickled.
      **kwargs: likewise.

    Raises:
      RemoteFactoryError: another process could not import the factory.
      UnpicklableError: an argument cannot be sent; its place is named.
    """
    caller = sys._getframe(1)
    loc = Loc(caller.f_code.co_filename, caller.f_lineno)
    _check_factory(factory, loc)
    check_arguments(args, kwargs, loc)
    return Remote(factory, args, kwargs, loc)


def _check_factory(factory: object, loc: Loc) -> None:
    """Raise when ``factory`` cannot be called, or not be imported by its name."""
    if isinstance(factory, functools.partial):
        check_arguments(factory.args, factory.keywords, loc)
        return _check_factory(factory.func, loc)
    if not callable(factory):
        raise RemoteFactoryError(
            f"a part is made by a function or class, not by {factory!r}",
            loc=loc,
            help="steptrace.remote(make_part, ...) calls make_part in the worker",
        )
    reason = _unnameable(factory)
    if reason:
        raise RemoteFactoryError(
            f"another process cannot import {reason}",
            loc=loc,
            help="define it at the top of a module, and pass what it needs as arguments of steptrace.remote",
        )
    return None


def _unnameable(factory: Callable[..., Any]) -> str:
    """Why ``factory`` cannot be found by module and name, "" when it can."""
    owner = getattr(factory, "__self__", None)
    if inspect.ismethod(factory) and not inspect.isclass(owner):
        return f"`{_named(factory)}`, a method of an object"
    name = getattr(factory, "__qualname__", "")
    if not name:
        return f"an object of type `{type(factory).__name__}`"
    if name.endswith("<lambda>"):
        return "a lambda"
    if "<locals>" in name:
        return f"`{name}`, which is defined inside a function"
    module = sys.modules.get(factory.__module__)
    if factory.__module__ == "__main__" and not hasattr(module, "__file__"):
        return f"`{name}`, which was typed at a prompt"
    found: object = module
    for attribute in name.split("."):
        found = getattr(found, attribute, None)
    return "" if found == factory else f"`{factory.__module__}.{name}`: that name stands for something else"


def _named(factory: object) -> str:
    return getattr(factory, "__qualname__", None) or repr(factory)
