"""Every op that may fail, every kind of fault, every built-in schedule: does the run end as is declared here?

What is declared follows from the row of an op and from the schedule:

- a slow op changes nothing.
- an error ends the run: it is the original one, with op, step and lane in its notes; the steps before are complete.
- a call that gets lost does the same, except for what is only shipped ahead: a stage that is lost falls back to the
  whole call, and log-probs of the reference for a staged micro-batch are asked for again. Nothing is trained otherwise.
- SIGKILL ends the process, and the folder has a run to resume.
- an op that hangs ends the run with ST315 once another lane has waited for it for ``stall_s``. Nobody can take a call
  back that hangs in this process: where no other lane waits for it, the run lasts as long as the call, and ends with
  whoever ends the process. That is why parts that may hang belong into processes of their own.

Whatever ended a run, resuming it trains what the run that was left alone has trained: no group is lost, none is trained
twice, and the parameters are the same, bit for bit.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from steptrace.diag import SteptraceError
from steptrace.diag.faults import InjectedFaultError
from steptrace.diag.running import StalledRunError
from steptrace.ir.predicate import Every, Predicate, flags_of
from steptrace.lower import Call
from steptrace.lower.plan import calls_of
from steptrace.run.executor import Around
from steptrace.testing.cells import Cell, Child, Ended, Tell, run_cells
from steptrace.testing.durable_runs import STEPS, Arm, Book, Left, Pace, paced_parts, quickly, run_into, trained_in
from steptrace.testing.faults import Fault, FaultKind, inject, may_fail
from steptrace.testing.waited import waited_for

Ending = Literal["same", "falls back", "error", "stalled", "killed", "hangs"]
"""How a run with a fault in it may end; each is explained at the head of this module."""

DECLARED: Mapping[FaultKind, Ending] = MappingProxyType(
    {
        "raise": "error",
        "lost-before": "error",
        "lost-after": "error",
        "kill": "killed",
        "hang": "stalled",
        "slow": "same",
    }
)
"""How a run ends with a fault of a kind, unless `declared` knows better."""

STALL_S = 0.5
"""How long an op may wait for another lane, where one hangs, in seconds."""

_EVERYWHERE: tuple[FaultKind, ...] = ("raise", "lost-before", "lost-after")
_ONCE: tuple[FaultKind, ...] = ("kill", "hang", "slow")
_SETTLE_S = 4 * STALL_S
_TRIES = 4


@dataclass(frozen=True)
class Setting:
    """A cell of the matrix.

    Attributes:
      arm: the schedule.
      call: the op.
      lane: the lane that issues it; "" for what stands before step 0.
      fault: what happens to it.
      pace: how micro-batches come to the trainer, so that the op runs.
      ending: what is declared.
    """

    arm: Arm
    call: Call
    lane: str
    fault: Fault
    pace: Pace
    ending: Ending


@dataclass(frozen=True)
class Row:
    """What became of a cell.

    Attributes:
      arm, target, op, kind: the schedule, the target, id and kind of the op.
      fault, behind, step, micro: the fault.
      declared, ended: what was declared, what came.
      resumed: whether the run was resumed afterwards.
      why: what is not as declared, "" if all is.
      left: what was left behind: threads, processes, files, segments.
      hung: whether it did not end, and was not declared to.
      seconds: how long it took.
    """

    arm: str
    target: str
    op: str
    kind: str
    fault: str
    behind: bool
    step: int
    micro: int | None
    declared: str
    ended: str
    resumed: bool
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
        return {**asdict(self), "as_declared": self.as_declared}


def declared(arm: Arm, call: Call, fault: Fault) -> Ending:
    """How a run ends with a fault in an op."""
    if fault.kind in ("lost-before", "lost-after"):
        stages = any(op.kind == "stage_fwd_bwd" for op in arm.schedule.ops())
        shipped = call.kind.name == "ref_logps" and call.op.micro is not None and call.op.shift > 0 and stages
        return "falls back" if shipped or call.kind.name == "stage_fwd_bwd" else "error"
    if fault.kind == "hang" and not waited_for(arm.plan, call.op.id, fault.step, STEPS - 1):
        return "hangs"
    return DECLARED[fault.kind]


def settings(arms: Sequence[Arm], wholes: Mapping[str, Sequence[int]], *, quick: bool = False) -> Iterator[Setting]:
    """The cells: every op that may fail, at its first and last instance and one between, with every kind of fault.

    Args:
      arms: the schedules.
      wholes: by program, how many micro-batches its steps have.
      quick: one instance of each op.
    """
    for arm in arms:
        for lane, call, looped in calls_in(arm):
            if not may_fail(call.kind):
                continue
            instances = list(_instances(arm, call, looped, wholes[arm.program]))
            for fault in _faults(call, instances, quick):
                yield Setting(arm, call, lane, fault, pace_of(call), declared(arm, call, fault))


def calls_in(arm: Arm) -> Iterator[tuple[str, Call, bool]]:
    """Every call of a plan, with its lane, and whether it stands in a loop over micro-batches."""
    plan = arm.plan
    for call in calls_of(plan.prologue):
        yield "", call, False
    for lane in plan.lanes:
        for node in lane.nodes:
            for call in calls_of((node,)):
                yield lane.name, call, not isinstance(node, Call)


def _instances(arm: Arm, call: Call, looped: bool, counts: Sequence[int]) -> Iterator[tuple[int, int | None]]:
    """Step and micro-batch of the instances that are tried."""
    if any(call is other for other in calls_of(arm.plan.prologue)):
        yield -1, None
        return
    due = [step for step in range(STEPS) if runs_in(call, step) and (counts[step] > 1 or not looped)]
    chosen = sorted({due[0], due[len(due) // 2], due[-1]})
    for place, step in enumerate(chosen):
        yield step, counts[step] - 1 if looped and place else None


def runs_in(call: Call, step: int) -> bool:
    """Whether a step has the op, as far as its number tells; what is shipped ahead is so from step 1 on."""
    ahead = any(flags_of(call.when)) or call.kind.polls
    return (step > 0 or not ahead) and all((step + 1) % period == 0 for period in _periods(call.when))


def _periods(predicate: Predicate) -> Iterator[int]:
    if isinstance(predicate, Every):
        yield predicate.period
    for term in getattr(predicate, "terms", ()):
        yield from _periods(term)


def _faults(call: Call, instances: Sequence[tuple[int, int | None]], quick: bool) -> Iterator[Fault]:
    """What is tried: errors and losses at the first and the last instance, the rest at the one between."""
    between = instances[len(instances) // 2]
    for step, micro in [between] if quick else sorted({instances[0], instances[-1]}, key=str):
        for kind in _EVERYWHERE:
            yield Fault(call.op.id, step, micro, kind=kind)
    # A process that is killed at every border is what the crash matrix is for.
    for kind in _ONCE:
        yield Fault(call.op.id, *between, kind=kind)
    yield Fault(call.op.id, *between, kind="raise", behind=True)


def pace_of(call: Call) -> Pace:
    """How micro-batches must come so that an op runs, by the flags of its condition."""
    flags = {str(term) for term in getattr(call.when, "terms", (call.when,))}
    names = set(flags_of(call.when))
    if call.kind.name == "stage_fwd_bwd" or any("staged" in flag and not flag.startswith("not ") for flag in flags):
        return "packed in time"
    if any("packed" in flag and not flag.startswith("not ") for flag in flags):
        return "stage lost"
    return "packed late" if names else "as it comes"


def cell(setting: Setting, whole: Left, folder: Path) -> Cell[Row]:
    """Run a cell; one whose fault did not come, because the op did not run, is tried again.

    Args:
      setting: the cell.
      whole: what the program leaves when it is left alone.
      folder: where runs may be kept while they last.
    """
    hangs = setting.ending == "hangs"
    for _ in range(_TRIES):
        out = Path(tempfile.mkdtemp(dir=folder))
        first = yield Child(partial(_faulty, setting, out), limit_s=30.0, behind_s=_SETTLE_S if hangs else None)
        if first.told:
            break
        shutil.rmtree(out)
    ended, why = _judged(setting, first, whole)
    left, resumed = first.left, (first.value or {}).get("resumed")
    if ended in ("killed", "hangs"):
        again = yield Child(partial(_again, setting.arm, out), limit_s=30.0)
        resumed, left = again.value, (*left, *again.left)
        if again.error or again.hung:
            why = why or f"it cannot be resumed: {again.error or 'it hangs'}"
    if isinstance(resumed, Left) and resumed.differs(whole):
        why = why or f"resumed, it differs: {resumed.differs(whole)}"
    shutil.rmtree(out, ignore_errors=True)
    fault = setting.fault
    return Row(
        setting.arm.name,
        "inline",
        setting.call.op.id,
        setting.call.kind.name,
        fault.kind,
        fault.behind,
        fault.step,
        fault.micro,
        setting.ending,
        ended,
        isinstance(resumed, Left),
        why or (f"left behind: {', '.join(left)}" if left else ""),
        left,
        first.hung and setting.ending != "hangs",
        round(first.seconds, 3),
    )


def _faulty(setting: Setting, out: Path, tell: Tell) -> dict[str, object]:
    """In a process of its own: run into the fault, and go on from what is there with fresh parts."""
    faults = inject(setting.fault, told=lambda fault: tell(str(fault)), may_miss=True)
    book = Book(out / "log")
    stall_s = STALL_S if setting.fault.kind == "hang" else 60.0
    said: dict[str, object] = {"left": None, "resumed": None, "error": None, "notes": (), "code": ""}
    try:
        said["left"], said["remarks"] = _run(setting, out, [faults], stall_s, book)
    except Exception as error:
        notes = [note.text for note in error.notes] if isinstance(error, SteptraceError) else []
        said |= {
            "error": type(error).__name__,
            "message": error.message if isinstance(error, SteptraceError) else str(error),
            "notes": (*notes, *getattr(error, "__notes__", ())),
            "code": getattr(error, "code", ""),
            "ended": tuple(book.ended),
            "trained": trained_in(out),
        }
        said["resumed"] = run_into(out, setting.arm)[0]
    return said


def _run(
    setting: Setting, out: Path, around: Sequence[Around], stall_s: float, book: Book
) -> tuple[Left, tuple[str, ...]]:
    """The run that has the fault."""
    bound = paced_parts(setting.pace)
    return run_into(out, setting.arm, bound=bound, around=around, stall_s=stall_s, book=book)


def _again(arm: Arm, out: Path, tell: Tell) -> Left:
    return run_into(out, arm)[0]


def _judged(setting: Setting, first: Ended, whole: Left) -> tuple[str, str]:
    """How a run has ended, and what is not as declared."""
    ended = _ending(first)
    if not first.told:
        return ended, f"the fault never came; the run ended: {ended} {first.error}"
    if ended != setting.ending:
        return ended, f"ended: {ended}; {first.error or first.value}"
    check = CHECKS.get(ended)
    return ended, "" if check is None else check(setting, first.value, whole)


def _ending(first: Ended) -> str:
    if first.hung:
        return "hangs"
    if first.signal:
        return "killed"
    if first.error:
        return "broken"
    said = first.value
    if said["error"] is None:
        fallen = any("staging is off" in remark and "a fault was put here" in remark for remark in said["remarks"])
        return "falls back" if fallen else "same"
    return "stalled" if said["code"] == StalledRunError.code else "error"


def _same(setting: Setting, said: Mapping[str, object], whole: Left) -> str:
    left = said["left"]
    assert isinstance(left, Left)
    return left.differs(whole) and f"differs: {left.differs(whole)}"


def _original(setting: Setting, said: Mapping[str, object], whole: Left) -> str:
    """The error is the one that was put there, and tells where it was; the steps before are complete."""
    wanted = InjectedFaultError.__name__ if setting.fault.kind == "raise" else "ConnectionError"
    if said["error"] != wanted or str(setting.fault) not in str(said["message"]):
        return f"another error: {said['error']}: {said['message']}"
    place = f"in `{setting.call.op.id}` of step {setting.fault.step}, lane {setting.lane or 'host'}"
    if not any(place in str(note) for note in said["notes"]):  # type: ignore[attr-defined]
        return f"not attributed to {place}: {said['notes']}"
    return _complete(setting, said, whole)


def _stalled(setting: Setting, said: Mapping[str, object], whole: Left) -> str:
    """The error names who waits, and the op that hung is told beside it."""
    if not any(str(setting.fault) in str(note) for note in said["notes"]):  # type: ignore[attr-defined]
        return f"the op that hung is not among the notes: {said['notes']}"
    return _complete(setting, said, whole)


def _complete(setting: Setting, said: Mapping[str, object], whole: Left) -> str:
    before = max(setting.fault.step, 0)
    if said["trained"][:before] != whole.trained[:before]:  # type: ignore[index]
        return f"steps before {before} are not committed: {said['trained']}"
    if said["ended"][:before] != tuple(range(before)):  # type: ignore[index]
        return f"steps before {before} have not ended: {said['ended']}"
    return ""


CHECKS: Mapping[str, Callable[[Setting, Mapping[str, object], Left], str]] = MappingProxyType(
    {"same": _same, "falls back": _same, "error": _original, "stalled": _stalled}
)
"""What is looked at beside the ending itself; each gives what is wrong, "" if nothing is."""


@dataclass(frozen=True)
class Whole:
    """A run that was left alone.

    Attributes:
      left: what it leaves.
      counts: how many micro-batches its steps have.
    """

    left: Left
    counts: tuple[int, ...]


def wholes_of(arms: Sequence[Arm]) -> dict[str, Whole]:
    """What the programs of some arms leave when they are run in their own order and left alone, by program."""
    return {arm.program: whole_of(Arm("", arm.program)) for arm in arms}


def whole_of(arm: Arm) -> Whole:
    """What an arm leaves when it is left alone."""
    counts: list[int] = []

    class Counts(Book):
        """Notes how many micro-batches steps have."""

        def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
            counts.append(int(metrics["micro_batches"]))

    with tempfile.TemporaryDirectory() as folder:
        left, _ = run_into(Path(folder), arm, book=Counts(Path(folder) / "log"))
    return Whole(left, tuple(counts))


def fault_rows(
    arms: Sequence[Arm],
    *,
    quick: bool = False,
    only: Callable[[Setting], bool] = lambda setting: True,
    at_once: int = 4,
) -> list[Row]:
    """Run the matrix; gives its rows in the order of the arms.

    Args:
      arms: the schedules.
      quick: one instance of each op.
      only: which cells to run.
      at_once: processes at a time; many of them wait.
    """
    quickly()
    wholes = wholes_of(arms)
    counts = {program: whole.counts for program, whole in wholes.items()}
    with tempfile.TemporaryDirectory(prefix="steptrace-faults-") as folder:
        chosen = filter(only, settings(arms, counts, quick=quick))
        cells = (cell(setting, wholes[setting.arm.program].left, Path(folder)) for setting in chosen)
        rows = list(run_cells(cells, at_once=at_once))
    names = [arm.name for arm in arms]
    return sorted(rows, key=lambda row: names.index(row.arm))
