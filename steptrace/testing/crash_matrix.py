"""SIGKILL at every border between ops of a step, under every built-in schedule; then the run is resumed.

Under the target ``process`` it is the driver that is killed, whose workers then end by themselves; and at each border
also each of the workers, with which the run ends, unless it goes through without that one.

What is declared is the same for every cell: resumed under the schedule that it was killed under, and under another one
of the same program, the run trains the groups, and ends with the parameters, of the run that nobody killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from steptrace.diag.workers import WorkerLostError
from steptrace.lower import Call, StreamPlan
from steptrace.run.remote.hosting import HOSTED
from steptrace.testing.cells import Cell, Child, Ended, Tell
from steptrace.testing.durable_runs import Arm, Left, Pace, run_at_pace
from steptrace.testing.fault_cells import calls_in, pace_of, runs_in
from steptrace.testing.faults import Fault, inject
from steptrace.testing.matrix import TARGETS, Outcome, matrix_rows, met, resumed

KILLED_IN = (2, 3)
"""The steps at whose borders runs are killed: one that saves no checkpoint, and one that does."""

_LIMIT_S = 120.0


@dataclass(frozen=True)
class Border:
    """Where a run is killed.

    Attributes:
      arm: the schedule.
      kind: kind of the op.
      fault: SIGKILL before an instance of the op, or behind it.
      pace: how micro-batches come to the trainer, so that the op runs.
      other: the schedule that the run is also resumed under.
      target: where the parts are.
    """

    arm: Arm
    kind: str
    fault: Fault
    pace: Pace
    other: Arm
    target: str = "inline"


@dataclass(frozen=True, kw_only=True)
class CrashRow(Outcome):
    """What became of a run that was killed; it has ``ended`` "same" where nothing was lost by it.

    Attributes:
      killed: what was killed: "driver", or the role of a worker's part.
      other: the second schedule that it was resumed under.
    """

    killed: str
    other: str

    def facts(self) -> dict[str, object]:
        """The row as JSON holds it."""
        return {**super().facts(), "declared": "same"}


def borders(arms: Sequence[Arm], counts: Mapping[str, Sequence[int]], quick: bool = False) -> Iterator[Border]:
    """Every border: before and behind each op of a step, and each round of its loops.

    Args:
      arms: the schedules.
      counts: by program, how many micro-batches its steps have.
      quick: only what stands behind an op, in one step, in one round of each loop.
    """
    for arm, call, other, places in _borders(arms, counts, quick):
        for step, micro in places:
            for behind in (True,) if quick else (False, True):
                fault = Fault(call.op.id, step, micro, kind="kill", behind=behind)
                yield Border(arm, call.kind.name, fault, pace_of(call), other)


def worker_borders(arms: Sequence[Arm], counts: Mapping[str, Sequence[int]], quick: bool = False) -> Iterator[Border]:
    """Under the target ``process``, behind each op of a step that saves: kills of the driver, and of each worker.

    The driver is killed in each round of a loop, a worker in its last one.

    Args:
      arms: the schedules.
      counts: by program, how many micro-batches its steps have.
      quick: only behind the update.
    """
    for arm, call, other, places in _borders(arms, counts, quick):
        if quick and call.kind.name not in ("update", "apply_deferred_update"):
            continue
        saving = [place for place in places if place[0] == KILLED_IN[1]]
        for role, at in (("", saving), *((role, saving[-1:]) for role in HOSTED)):
            for step, micro in at:
                fault = Fault(call.op.id, step, micro, kind="kill", behind=True, driver=not role, worker=role)
                yield Border(arm, call.kind.name, fault, pace_of(call), other, "process")


_Places = list[tuple[int, int | None]]


def _borders(
    arms: Sequence[Arm], counts: Mapping[str, Sequence[int]], quick: bool
) -> Iterator[tuple[Arm, Call, Arm, _Places]]:
    """Each op of a step, the schedule that runs killed there are also resumed under, and its instances."""
    for number, arm in enumerate(arms):
        same = [other for other in (*arms[number + 1 :], *arms[:number]) if other.program == arm.program]
        for place, (lane, call, looped) in enumerate(calls_in(arm)):
            places: _Places = []
            for step in KILLED_IN[1:] if quick else KILLED_IN:
                if lane and runs_in(call, step):
                    rounds = range(_first(arm, call.op.id), counts[arm.program][step]) if looped else (None,)
                    places += [(step, micro) for micro in (tuple(rounds)[-1:] if quick else rounds)]
            yield arm, call, same[place % len(same)] if same else arm, places


def _first(arm: Arm, op: str) -> int:
    """The first round of the loop that an op stands in."""
    nodes = (node for lane in arm.plan.lanes for node in lane.nodes if isinstance(node, StreamPlan))
    return next((node.start for node in nodes if any(call.op.id == op for call in node.calls)), 0)


def crash(border: Border, whole: Left, folder: Path) -> Cell[CrashRow]:
    """Kill a run at a border and resume it twice; where the op did not run, it is tried again.

    Args:
      border: where.
      whole: what the program leaves when nobody kills it.
      folder: where runs may be kept while they last.
    """
    out, first = yield from met(lambda out: Child(partial(_killed, border, out), limit_s=_LIMIT_S), folder)
    through = border.fault.worker and isinstance(first.value, Left) and not first.value.differs(whole)
    killed = first.told and (first.signal or first.value == WorkerLostError.code or through)
    wrong, ended = "" if killed else f"it was not killed: {first.error or first.value}", [first]
    copy = out.with_name(f"{out.name}-other")
    if not wrong:
        shutil.copytree(out, copy)
        for place, arm in ((out, border.arm), (copy, border.other)):
            again = yield Child(partial(resumed, arm, place), limit_s=_LIMIT_S)
            ended.append(again)
            wrong = wrong or _wrong(arm, again, whole)
    for place in (out, copy):
        shutil.rmtree(place, ignore_errors=True)
    left = tuple(what for one in ended for what in one.left)
    fault = border.fault
    return CrashRow(
        arm=border.arm.name,
        target=border.target,
        op=fault.op,
        kind=border.kind,
        step=fault.step,
        micro=fault.micro,
        behind=fault.behind,
        killed=fault.worker or "driver",
        other=border.other.name,
        ended="differs" if wrong else "same",
        why=wrong or (f"left behind: {', '.join(left)}" if left else ""),
        left=left,
        hung=any(one.hung for one in ended),
        seconds=round(sum(one.seconds for one in ended), 3),
    )


def _killed(border: Border, out: Path, tell: Tell) -> str | Left:
    faults = inject(border.fault, told=lambda fault: tell(str(fault)), may_miss=True)
    try:
        return run_at_pace(out, border.arm, border.pace, border.target, faults)[0]
    except WorkerLostError as error:
        return error.code


def _wrong(arm: Arm, again: Ended, whole: Left) -> str:
    if again.value is None:
        return f"it cannot be resumed under {arm.name}: {again.error or 'it hangs'}"
    different = again.value.differs(whole)
    return different and f"resumed under {arm.name}, it differs: {different}"


def crash_rows(
    arms: Sequence[Arm],
    *,
    quick: bool = False,
    only: Callable[[Border], bool] = lambda border: True,
    at_once: int = 2,
    targets: Sequence[str] = TARGETS,
) -> list[CrashRow]:
    """Run the matrix; gives its rows in the order of the arms.

    Args:
      arms: the schedules; those of one program are resumed under one another.
      quick: see `borders`.
      only: which borders to run.
      at_once: processes at a time.
      targets: where the parts are.
    """
    places = {"inline": borders, "process": worker_borders}
    return matrix_rows(arms, places, crash, quick=quick, only=only, at_once=at_once, targets=targets)
