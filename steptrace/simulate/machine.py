"""The machine in virtual time: devices that finish in the order of issue, and when what was written is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from steptrace.ir import Access, Effect, Op, ResourceKind, effects_of, kinds_of, overlaps
from steptrace.ir.program import Program
from steptrace.ir.resource import ANY
from steptrace.simulate.record import Span

LINK = "link"
"""The device that brings data to where the work is."""

_UNORDERED = (ResourceKind.FIFO, ResourceKind.CHANNEL)


@dataclass
class Device:
    """Does one thing after the other, in the order in which they were sent.

    Attributes:
      name: its name.
      free_at: when it has done all that it was sent, in seconds.
      spans: what it did.
    """

    name: str
    free_at: float = 0.0
    spans: list[Span] = field(default_factory=list)

    def send(
        self, op: Op, step: int, micro: int | None, now: float, work_s: float, ready: float, what: str = ""
    ) -> Span:
        """Queue work that can start once ``ready`` has come; gives its span."""
        start = max(now, ready, self.free_at)
        span = Span(self.name, op.id, op.kind, step, micro, now, start, start + work_s, what)
        self.free_at = span.end
        self.spans.append(span)
        return span

    def serve(self, span: Span) -> None:
        """Note work that the device does beside other work, as a service with several places does."""
        self.free_at = max(self.free_at, span.end)
        self.spans.append(span)


class Devices:
    """The devices by name, made when they are first asked for.

    Args:
      same: devices that are one: ``{"reference": "trainer"}`` has the reference's work done by the trainer's device.
    """

    def __init__(self, same: Mapping[str, str]) -> None:
        self._same = dict(same)
        self._devices: dict[str, Device] = {}

    def __getitem__(self, name: str) -> Device:
        name = self._same.get(name, name)
        return self._devices.setdefault(name, Device(name))

    def spans(self) -> Iterable[Span]:
        """What they did, by device."""
        for name in sorted(self._devices):
            yield from self._devices[name].spans


Cell = tuple[str, int | None]
"""A resource, and a step for one that has a cell for each."""


class Ledger:
    """When the last writers and readers of each resource are done.

    Args:
      program: the program whose ops run.
    """

    def __init__(self, program: Program) -> None:
        names = [resource.name for resource in program.resources]
        self._kinds = {resource.name: resource.kind for resource in program.resources}
        self._near = {name: [other for other in names if overlaps(name, other)] for name in (*names, ANY)}
        self._written: dict[Cell, float] = {}
        self._read: dict[Cell, float] = {}
        self._steps: dict[str, set[int | None]] = {}
        rows = kinds_of(program)
        self._effects = {op.id: effects_of(op, rows[op.kind], program.contract) for op in program.ops()}

    def awaited(self, op: Op, step: int) -> float:
        """When what the op must find done is done."""
        return self._latest(op, step, (Access.AWAIT,), self._written)

    def ready(self, op: Op, step: int) -> float:
        """When work of the op on a device may start: what it reads is written, what it writes is read and written."""
        effects = (Access.READ, Access.WRITE, Access.AWAIT)
        return max(self._latest(op, step, effects, self._written), self._latest(op, step, (Access.WRITE,), self._read))

    def note(self, op: Op, step: int, done: float) -> None:
        """Note when an instance is done with what it touches."""
        for effect in self._effects[op.id]:
            table = self._written if effect.access is Access.WRITE else self._read
            names = self._near[ANY] if effect.resource == ANY else (effect.resource,)
            for name in names:
                cell = (name, _cell(effect, step))
                table[cell] = max(table.get(cell, 0.0), done)
                self._steps.setdefault(name, set()).add(cell[1])

    def forget_before(self, step: int) -> None:
        """Keep one cell for those of all steps before ``step``, which nothing reaches back to one by one."""
        for name, steps in self._steps.items():
            for old in [known for known in steps if known is not None and known < step]:
                steps.discard(old)
                for table in (self._written, self._read):
                    done = table.pop((name, old), 0.0)
                    table[name, None] = max(table.get((name, None), 0.0), done)

    def _latest(self, op: Op, step: int, accesses: tuple[Access, ...], table: dict[Cell, float]) -> float:
        latest = 0.0
        for effect in self._effects[op.id]:
            if effect.access not in accesses:
                continue
            for name in self._near[effect.resource]:
                if self._kinds[name] in _UNORDERED:
                    continue
                at = _cell(effect, step)
                steps = self._steps.get(name, ()) if at is None else (at, None)
                latest = max([latest, *(table.get((name, known), 0.0) for known in steps)])
        return latest


def _cell(effect: Effect, step: int) -> int | None:
    return None if effect.index is None else step + effect.index.step
