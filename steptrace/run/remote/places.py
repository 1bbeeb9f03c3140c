"""The op that a thread is at: what a call that nobody waits for is attributed to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from steptrace.run.instance import At

_HERE = threading.local()


def placed(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that lets `here` tell which instance of which op it runs; goes around every op of a run."""

    def run(session: Any, at: At, *operands: Any) -> Any:
        _HERE.at = at
        try:
            return rule(session, at, *operands)
        finally:
            _HERE.at = None

    return run


def here() -> At | None:
    """The instance that this thread runs; None outside of one."""
    return getattr(_HERE, "at", None)
