"""A call of a part that raises once: what a fault does in the part's own process, which need not know of runs."""

from __future__ import annotations

from typing import Any

from steptrace.lang.records import MicroBatch


def raise_once(part: Any, method: str, error: Exception, behind: bool, item: tuple[int, int] | None) -> None:
    """Let the next call of a part's method raise, before the part does anything, or behind all that it does.

    Args:
      part: the part.
      method: the method's name.
      error: what it raises.
      behind: whether the part does what it is called for.
      item: step and number of the micro-batch that the call is for, since lanes may call at a time; None for any call.
    """
    real = getattr(part, method)

    def call(*args: Any, **how: Any) -> Any:
        if item is not None and item not in map(item_of, args):
            return real(*args, **how)
        setattr(part, method, real)
        if behind:
            real(*args, **how)
        raise error

    setattr(part, method, call)


def item_of(value: Any) -> tuple[int, int] | None:
    """Step and number of a micro-batch; None for what is none."""
    return (value.step, value.index) if isinstance(value, MicroBatch) else None
