"""What a program that is no schedule of another one must keep: cells of a step are made before they are read."""

from __future__ import annotations

from collections.abc import Iterator

from steptrace.diag.structure import UnmadeCellError
from steptrace.ir.program import Op, ops_of
from steptrace.ir.resource import Access, Effect, ResourceKind
from steptrace.ir.verify.ground import Ground
from steptrace.ir.verify.runs import Event, Finding, Run, report_runs


def check_order(ground: Ground, runs: list[Run]) -> None:
    """No op reads the cell of its own step that only an op below it writes."""
    cells = {one.name for one in ground.program.resources if one.kind is ResourceKind.CELL}
    early = {
        effect.resource
        for op in ops_of(ground.program.body)
        for effect in _of(ground, op, Access.WRITE)
        if effect.index is None or effect.index.step > 0
    }

    def findings(events: tuple[Event, ...]) -> Iterator[Finding]:
        return _read_too_early(ground, events, cells - early)

    report_runs(ground, findings, runs)


def _read_too_early(ground: Ground, events: tuple[Event, ...], cells: set[str]) -> Iterator[Finding]:
    """The ops of a run that read this step's part of a cell before its first writer."""
    writers: dict[str, int] = {}
    for at, event in enumerate(events):
        for cell in _cells(ground, event.op, Access.WRITE, cells):
            writers.setdefault(cell, at)
    for at, event in enumerate(events):
        for cell in _cells(ground, event.op, Access.READ, cells):
            if at < writers.get(cell, 0):
                writer = events[writers[cell]].op
                message = f"`{event.op.id}` reads `{cell}[k]`, which `{writer.id}` writes only after it"
                notes = ((f"`{writer.id}` writes it here", writer),)
                yield Finding(UnmadeCellError, event.op, message, notes, f"move `{event.op.id}` below `{writer.id}`")


def _cells(ground: Ground, op: Op, access: Access, cells: set[str]) -> Iterator[str]:
    """The cells of which an op accesses the part of its own step."""
    for effect in _of(ground, op, access):
        if effect.resource in cells and effect.index is not None and effect.index.step == 0:
            yield effect.resource


def _of(ground: Ground, op: Op, access: Access) -> Iterator[Effect]:
    return (effect for effect in ground.effects(op) if effect.access is access)
