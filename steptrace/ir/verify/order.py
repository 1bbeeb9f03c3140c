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
        for cell in sorted(cells - early):
            yield from _read_too_early(ground, events, cell)

    report_runs(ground, findings, runs)


def _read_too_early(ground: Ground, events: tuple[Event, ...], cell: str) -> Iterator[Finding]:
    """The ops of a run that read this step's cell before its first writer."""
    writers = [at for at, event in enumerate(events) if _touches(ground, event.op, Access.WRITE, cell)]
    for event in events[: writers[0]] if writers else ():
        if _touches(ground, event.op, Access.READ, cell):
            writer = events[writers[0]].op
            message = f"`{event.op.id}` reads `{cell}[k]`, which `{writer.id}` writes only after it"
            notes = ((f"`{writer.id}` writes it here", writer),)
            yield Finding(UnmadeCellError, event.op, message, notes, f"move `{event.op.id}` below `{writer.id}`")


def _touches(ground: Ground, op: Op, access: Access, cell: str) -> bool:
    """Whether an op accesses the cell of its own step."""
    found = (effect for effect in _of(ground, op, access) if effect.resource == cell)
    return any(effect.index is not None and effect.index.step == 0 for effect in found)


def _of(ground: Ground, op: Op, access: Access) -> Iterator[Effect]:
    return (effect for effect in ground.effects(op) if effect.access is access)
