"""All codes in one table: which class carries a code, and its manual page."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import steptrace.diag as room
from steptrace.diag.base import SteptraceError


def all_codes() -> dict[str, type[SteptraceError]]:
    """Every coded error class by its code, sorted. Two classes with one code are our own bug."""
    for module in pkgutil.iter_modules(room.__path__):
        importlib.import_module(f"{room.__name__}.{module.name}")
    table: dict[str, type[SteptraceError]] = {}
    pending = SteptraceError.__subclasses__()
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if "code" not in vars(cls) or not cls.__module__.startswith(room.__name__):
            continue
        assert table.setdefault(cls.code, cls) is cls, f"two classes carry the code {cls.code}"
    return dict(sorted(table.items()))


def manual_page(code: str) -> str | None:
    """The manual page of a code (``"ST101"``, any case), or None when there is no such code."""
    cls = all_codes().get(code.upper())
    return None if cls is None else inspect.cleandoc(cls.__doc__ or "")
