"""How often each compiled leaf was traced: after the first step, and in the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class CompileWatch:
    """Reads the parts' counts of compilations; is a tracker, so that it is told of the first step that is done.

    That is the first whole one: a resumed run logs the step of its checkpoint too, of which it runs the rest alone.

    Args:
      parts: by name, each with ``info()["compiles"]``, how often each of its leaves was traced.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts
        self._after_first: dict[str, int] | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing to keep."""

    def phases(self, step: int, seconds: Mapping[str, float]) -> None:
        """A step is done that this run has begun."""
        if self._after_first is None:
            self._after_first = self._now()

    def close(self) -> None:
        """Nothing to release."""

    def counts(self) -> dict[str, Any]:
        """Traces by ``part.leaf`` (``after_first_step``, ``at_end``), and the leaves traced later (``again``)."""
        now = self._now()
        first = self._after_first if self._after_first is not None else now
        again = sorted(name for name, count in now.items() if count > first.get(name, 0))
        return {"after_first_step": first, "at_end": now, "again": again}

    def _now(self) -> dict[str, int]:
        return {
            f"{name}.{leaf}": int(count)
            for name, part in self._parts.items()
            for leaf, count in part.info()["compiles"].items()
        }
