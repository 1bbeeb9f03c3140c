"""One instance of an op while it is carried out, and what it asks its lane for."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from steptrace.ir import Op
from steptrace.lower import Call
from steptrace.simulate.durations import Cost
from steptrace.simulate.machine import LINK
from steptrace.simulate.record import TRAINER, Span
from steptrace.simulate.service import Service
from steptrace.simulate.state import State, Value

POLL = -1.0
"""What an instance yields to be carried on once all else that happens at this moment has happened."""

Work: TypeAlias = Generator[float, None, Any]
"""What carries an instance out: it yields seconds to let pass, or `POLL`."""


@dataclass
class Instance:
    """An instance of an op: the clock that a trainer's verb sees.

    Attributes:
      state: the run.
      call: the op, resolved.
      step: its step.
      micro: its micro-batch, None outside loops over them.
      rounds: the rounds of the loops around it, outermost first.
      count: how many rounds the innermost loop makes, None when that is a run-time fact.
      args: its operands; None for what is not made.
      done: when its work is done; None while it has sent none.
    """

    state: State
    call: Call
    step: int
    micro: int | None
    rounds: tuple[int, ...] = ()
    count: int | None = None
    args: tuple[Value | None, ...] = ()
    done: float | None = None
    _cost: Cost | None = field(default=None, repr=False)

    @property
    def op(self) -> Op:
        """The op."""
        return self.call.op

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.state.now

    @property
    def cost(self) -> Cost:
        """What the op takes."""
        if self._cost is None:
            self._cost = self.state.setting.durations.of(self.op, self.step, self.micro or 0)
        return self._cost

    def cost_of(self, kind: str) -> Cost:
        """What another kind of op takes."""
        return self.state.setting.durations.kind(kind)

    def until(self, moment: float) -> float:
        """Seconds from now until a moment, 0 when it has passed."""
        return max(0.0, moment - self.now)

    def ship(self) -> float:
        """Send the op's data on its way; gives the moment at which it arrives."""
        if not self.cost.ship_s:
            return self.now
        return self._send(LINK, self.cost.ship_s, self.operands_ready(), "")

    def send(self, work_s: float | None = None, *, after: float = 0.0, what: str = "") -> float:
        """Queue work on the op's device; gives the moment at which it is done."""
        ready = max(after, self.operands_ready(), self.state.ledger.ready(self.op, self.step))
        done = self._send(self.call.kind.device or TRAINER, self.cost.work_s if work_s is None else work_s, ready, what)
        self.done = done if self.done is None else max(self.done, done)
        return done

    def serve(self, service: Service, *, after: float) -> tuple[float, float]:
        """Send the step's requests to a service; gives when the first one is begun, and when all are served."""
        ready = max(after, self.operands_ready(), self.state.ledger.ready(self.op, self.step))
        begun, end = service.serve(self.step, max(self.now, ready), self.cost.work_s)
        device = self.state.devices[self.call.kind.device or TRAINER]
        device.serve(Span(device.name, self.op.id, self.op.kind, self.step, self.micro, self.now, begun, end))
        self.done = end if self.done is None else max(self.done, end)
        return begun, end

    def operands_ready(self) -> float:
        """When the work that makes the operands is done."""
        return max((value.ready for value in self.args if value is not None), default=0.0)

    def _send(self, device: str, work_s: float, ready: float, what: str) -> float:
        there = self.state.devices[device]
        return there.send(self.op, self.step, self.micro, self.now, work_s, ready, what).end
