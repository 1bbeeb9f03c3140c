"""Loops of a step, traced once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from steptrace.diag.base import Note
from steptrace.diag.loc import Loc
from steptrace.diag.tracing import LoopReusedError, UnusedError
from steptrace.ir.program import LoopKind, Use
from steptrace.lang.place import user_frame, user_loc
from steptrace.lang.tracer import OpenLoop, Tracer
from steptrace.lang.values import Traced


@dataclass(frozen=True, slots=True)
class Stream:
    """What ``step.stream`` returns: groups as they arrive, for ``step.micro_batches`` only.

    Attributes:
      tracer: the trace it belongs to.
      estimator: how rewards become advantages.
    """

    tracer: Tracer
    estimator: str


class TracedLoop:
    """A loop whose body is traced once and stands for every pass; it can be run over once."""

    def __init__(
        self,
        tracer: Tracer,
        kind: LoopKind,
        head: Callable[[OpenLoop], Traced],
        *,
        over: Use | None = None,
        count: int | None = None,
    ) -> None:
        self._tracer = tracer
        self._kind = kind
        self._head = head
        self._over = over
        self._count = count
        self._began: Loc | None = None
        tracer.expect(self, UnusedError(f"loop `{kind}` is never run over", loc=user_loc()))

    def __iter__(self) -> Iterator[Traced]:
        """The value of the one pass that is traced."""
        loc = self._tracer.require_open("a loop")
        if self._began is not None:
            raise self._tracer.refuse(
                LoopReusedError(
                    f"the traced loop `{self._kind}` is run over twice",
                    loc=loc,
                    notes=(Note("the first time is here", self._began),),
                    help="make the loop anew for each `for`",
                )
            )
        self._began = loc
        self._tracer.settle(self)
        return self._passes(loc)

    def _passes(self, loc: Loc) -> Iterator[Traced]:
        loop = self._tracer.open_loop(self._kind, self._over, self._count, loc)
        value = self._head(loop)
        try:
            yield value
        except GeneratorExit:
            # Python closes the generator when `break`, `return` or an exception leaves the loop. Raising
            # here would be lost, so the tracer keeps it.
            frame = user_frame()
            same = frame.f_code.co_filename == loc.file and frame.f_lineno >= loc.line
            self._tracer.loop_left(loop, Loc(loc.file, frame.f_lineno) if same else loc)
            raise
        self._tracer.close_loop(loop)
