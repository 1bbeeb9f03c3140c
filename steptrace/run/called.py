"""How a function is called: its page, and what is wrong with a call of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from steptrace.diag.binding import BadRunOptionError


def shown(function: Callable[..., Any]) -> str:
    """The page of a function: its summary, how it is called with one parameter a line, and the rest of its text."""
    summary, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n")
    signature = inspect.signature(function)
    given = list(signature.parameters.values())
    rows = [_row(parameter) for parameter in given]
    rows.insert(next((at for at, item in enumerate(given) if item.kind is item.KEYWORD_ONLY), len(rows)), "*")
    lines = ",\n".join(f"    {row}" for row in rows)
    return f"{summary}\n\nsteptrace.{function.__name__}(\n{lines},\n) -> {signature.return_annotation}\n{rest}"


def _row(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {parameter.annotation}{default}"


def check_call(function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Refuse arguments that the function does not take, or does not get.

    Raises:
      BadRunOptionError: names the argument, and the one that was meant.
    """
    signature = inspect.signature(function)
    name, known = function.__name__, signature.parameters
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, 1)
            listed = ", ".join(f"`{parameter}`" for parameter in known)
            help = f"did you mean `{near[0]}`?" if near else f"the options are {listed}"
            raise BadRunOptionError(f"{name} has no option `{option}`", help=help)
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        help = 'steptrace.run(my_step, {"trainer": ...}, steps=10); help(steptrace.run) shows all options'
        raise BadRunOptionError(f"{name} cannot be called like this: {error}", help=help) from None
