"""Which instance of an op is being run."""

from __future__ import annotations

from dataclasses import dataclass

from steptrace.ir import Op


@dataclass(slots=True, unsafe_hash=True)
class At:
    """An instance of an op. One is made for each op that runs: it is not frozen, which would take four times as long.

    Attributes:
      op: the op.
      step: the step k; -1 in the prologue.
      rounds: how many rounds each loop around it has made before, outermost first; empty outside loops.
      count: how many rounds the innermost loop makes, None when that is a run-time fact.
    """

    op: Op
    step: int
    rounds: tuple[int, ...] = ()
    count: int | None = None

    @property
    def item(self) -> int:
        """Rounds that the innermost loop has made before, 0 outside loops."""
        return self.rounds[-1] if self.rounds else 0

    @property
    def origin(self) -> str:
        """Id of the op of the program as written: the same under every schedule."""
        assert self.op.origin is not None, "every op has an origin"
        return self.op.origin.op

    @property
    def path(self) -> str:
        """The op and its place in the loops around the innermost one: with ``step`` and ``item`` a name for it."""
        return "/".join([self.origin, *map(str, self.rounds[:-1])])
