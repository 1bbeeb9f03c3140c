"""SIGKILL at every border between ops of a step, under every built-in schedule; then the run is resumed.

Under the target ``process`` it is the driver that is killed, whose workers then end by themselves, or each of the
workers, with which the run ends.

What is declared is the same for every cell: resumed under the schedule that it was killed under, and under another one
of the same program, the run trains the groups, and ends with the parameters, of the run that nobody killed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from steptrace.diag.workers import WorkerLostError
from steptrace.testing.cells import Cell, Child, Ended, Tell, run_cells
from steptrace.testing.durable_runs import Arm, Left, Pace, paced_parts, quickly, remote_parts, run_into
from steptrace.testing.fault_cells import calls_in, pace_of, runs_in
from steptrace.testing.fault_matrix import TARGETS, wholes_of
from steptrace.testing.faults import Fault, inject

KILLED_IN = (2, 3)
"""The steps at whose borders runs are killed: one that saves no checkpoint, and one that does."""

_TRIES = 4


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


@dataclass(frozen=True)
class CrashRow:
    """What became of a run that was killed.

    Attributes:
      arm, target, op, kind: the schedule, the target, id and kind of the op.
      step, micro, behind: the border.
      other: the second schedule that it was resumed under.
      ended: "same" when both resumed runs leave what the run left that nobody killed.
      why: what is wrong, "" if nothing is.
      left: what was left behind: processes, threads, files.
      hung: whether one of the runs did not end.
      seconds: how long it took.
    """

    arm: str
    target: str
    op: str
    kind: str
    step: int
    micro: int | None
    behind: bool
    other: str
    ended: str
    why: str
    left: tuple[str, ...]
    hung: bool
    seconds: float

    @property
    def as_declared(self) -> bool:
        """Whether all is as declared."""
        return not self.why

    def facts(self) -> dict[str, object]:
        """The row as JSON holds it."""
        return {**asdict(self), "declared": "same", "as_declared": self.as_declared}


def borders(arms: Sequence[Arm], counts: Mapping[str, Sequence[int]], *, quick: bool = False) -> Iterator[Border]:
    """Every border: before and behind each op of a step, and each round of its loops.

    Args:
      arms: the schedules.
      counts: by program, how many micro-batches its steps have.
      quick: only what stands behind an op, in one step, in one round of each loop.
    """
    for number, arm in enumerate(arms):
        same = [other for other in (*arms[number + 1 :], *arms[:number]) if other.program == arm.program]
        for place, (lane, call, looped) in enumerate(calls_in(arm)):
            for step in KILLED_IN[1:] if quick else KILLED_IN:
                if not lane or not runs_in(call, step):
                    continue
                rounds = range(_first(arm, call.op.id), counts[arm.program][step]) if looped else (None,)
                for micro in tuple(rounds)[-1:] if quick else rounds:
                    for behind in (True,) if quick else (False, True):
                        fault = Fault(call.op.id, step, micro, kind="kill", behind=behind)
                        other = same[place % len(same)] if same else arm
                        yield Border(arm, call.kind.name, fault, pace_of(call), other)


def worker_borders(arms: Sequence[Arm], *, quick: bool = False) -> Iterator[Border]:
    """Under the target ``process``: kills of the driver behind ops that leave something, and of each worker.

    Args:
      arms: the schedules.
      quick: only the first of each.
    """
    for arm in arms:
        seen = set[str]()
        other = next((one for one in arms if one.program == arm.program and one is not arm), arm)
        for lane, call, _ in calls_in(arm):
            name, role = call.kind.name, call.kind.binds.partition(".")[0]
            if not lane or not runs_in(call, KILLED_IN[1]) or pace_of(call) != "as it comes":
                continue
            if name in _LASTING and not (quick and "driver" in seen):
                seen.add("driver")
                fault = Fault(call.op.id, KILLED_IN[1], kind="kill", behind=True, driver=True)
                yield Border(arm, name, fault, "as it comes", other, "process")
            if name in _CALLING and role not in seen and not (quick and len(seen) > 1):
                seen.add(role)
                for step in KILLED_IN[1:] if quick else KILLED_IN:
                    yield Border(arm, name, Fault(call.op.id, step, kind="kill"), "as it comes", other, "process")


_LASTING = ("update", "apply_deferred_update", "save_checkpoint", "write_checkpoint", "sync_weights", "commit", "log")
_CALLING = ("dispatch", "ref_logps", "fwd_bwd", "attempt_fwd_bwd")


def _first(arm: Arm, op: str) -> int:
    """The first round of the loop that an op stands in."""
    from steptrace.lower import StreamPlan

    nodes = (node for lane in arm.plan.lanes for node in lane.nodes if isinstance(node, StreamPlan))
    return next((node.start for node in nodes if any(call.op.id == op for call in node.calls)), 0)


def crash(border: Border, whole: Left, folder: Path) -> Cell[CrashRow]:
    """Kill a run at a border and resume it twice; where the op did not run, it is tried again.

    Args:
      border: where.
      whole: what the program leaves when nobody kills it.
      folder: where runs may be kept while they last.
    """
    for _ in range(_TRIES):
        out = Path(tempfile.mkdtemp(dir=folder))
        first = yield Child(partial(_killed, border, out), limit_s=120.0)
        if first.told:
            break
        shutil.rmtree(out)
    killed = first.told and (first.signal or first.value == WorkerLostError.code)
    wrong, ended = "" if killed else f"it was not killed: {first.error or first.value}", [first]
    copy = out.with_name(f"{out.name}-other")
    if not wrong:
        shutil.copytree(out, copy)
        for place, arm in ((out, border.arm), (copy, border.other)):
            again = yield Child(partial(_resumed, arm, place), limit_s=120.0)
            ended.append(again)
            wrong = wrong or _wrong(arm, again, whole)
    for place in (out, copy):
        shutil.rmtree(place, ignore_errors=True)
    left = tuple(what for one in ended for what in one.left)
    fault = border.fault
    return CrashRow(
        border.arm.name,
        border.target,
        fault.op,
        border.kind,
        fault.step,
        fault.micro,
        fault.behind,
        border.other.name,
        "differs" if wrong else "same",
        wrong or (f"left behind: {', '.join(left)}" if left else ""),
        left,
        any(one.hung for one in ended),
        round(sum(one.seconds for one in ended), 3),
    )


def _killed(border: Border, out: Path, tell: Tell) -> str:
    faults = inject(border.fault, told=lambda fault: tell(str(fault)), may_miss=True)
    bound = paced_parts(border.pace) if border.target == "inline" else remote_parts(border.pace)
    try:
        run_into(out, border.arm, bound=bound, around=[faults], target=border.target)
    except WorkerLostError as error:
        return error.code
    return "it went through"


def _resumed(arm: Arm, out: Path, tell: Tell) -> Left:
    return run_into(out, arm)[0]


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
    quickly()
    wholes = wholes_of(arms)
    counts = {program: whole.counts for program, whole in wholes.items()}
    with tempfile.TemporaryDirectory(prefix="steptrace-crashes-") as folder:
        inline = borders(arms, counts, quick=quick) if "inline" in targets else ()
        process = worker_borders(arms, quick=quick) if "process" in targets else ()
        chosen = filter(only, (*inline, *process))
        cells = (crash(border, wholes[border.arm.program].left, Path(folder)) for border in chosen)
        rows = list(run_cells(cells, at_once=at_once))
    names = [arm.name for arm in arms]
    return sorted(rows, key=lambda row: names.index(row.arm))
