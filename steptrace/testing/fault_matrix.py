"""Every op that may fail, every kind of fault, every built-in schedule: does the run end as it is declared to?

Which cells there are, and how each is declared to end, is in ``fault_cells``. Whatever ended a run, resuming it trains
what the run that was left alone has trained: no group is lost, none is trained twice, and the parameters are the same,
bit for bit.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from steptrace.diag import SteptraceError
from steptrace.diag.faults import InjectedFaultError
from steptrace.diag.running import StalledRunError
from steptrace.diag.workers import WorkerLostError, WorkerTimeoutError
from steptrace.testing.cells import Cell, Child, Ended, Tell
from steptrace.testing.durable_runs import Arm, Book, Left, run_at_pace, run_into, trained_in
from steptrace.testing.fault_cells import Ending, Setting, calls_worker, settings, worker_settings
from steptrace.testing.faults import inject
from steptrace.testing.matrix import TARGETS, Outcome, matrix_rows, met, resumed

STALL_S: Mapping[str, float] = MappingProxyType({"inline": 0.5, "process": 2.0})
"""How long an op waits for another lane, or for an answer of a worker, where one hangs, in seconds, by target."""

_LIMIT_S = 120.0
"""When a run that should have ended is taken for one that hangs, in seconds; on a busy machine workers start slowly."""


@dataclass(frozen=True, kw_only=True)
class Row(Outcome):
    """What became of a cell.

    Attributes:
      fault: the kind of the fault.
      declared: how it was declared to end.
      resumed: whether the run was resumed afterwards.
    """

    fault: str
    declared: str
    resumed: bool


def cell(setting: Setting, whole: Left, folder: Path) -> Cell[Row]:
    """Run a cell; one whose fault did not come, because the op did not run, is tried again.

    Args:
      setting: the cell.
      whole: what the program leaves when it is left alone.
      folder: where runs may be kept while they last.
    """
    behind_s = 2 * STALL_S[setting.target] if setting.ending == "hangs" else None
    out, first = yield from met(
        lambda out: Child(partial(_faulty, setting, out), limit_s=_LIMIT_S, behind_s=behind_s), folder
    )
    ended, why = _judged(setting, first, whole)
    left, again = first.left, (first.value or {}).get("resumed")
    if ended in ("killed", "hangs"):
        second = yield Child(partial(resumed, setting.arm, out), limit_s=30.0)
        again, left = second.value, (*left, *second.left)
        if second.error or second.hung:
            why = why or f"it cannot be resumed: {second.error or 'it hangs'}"
    if isinstance(again, Left) and again.differs(whole):
        why = why or f"resumed, it differs: {again.differs(whole)}"
    shutil.rmtree(out, ignore_errors=True)
    fault = setting.fault
    return Row(
        arm=setting.arm.name,
        target=setting.target,
        op=setting.call.op.id,
        kind=setting.call.kind.name,
        fault=fault.kind,
        behind=fault.behind,
        step=fault.step,
        micro=fault.micro,
        declared=setting.ending,
        ended=ended,
        resumed=isinstance(again, Left),
        why=why or (f"left behind: {', '.join(left)}" if left else ""),
        left=left,
        hung=first.hung and setting.ending != "hangs",
        seconds=round(first.seconds, 3),
    )


def _faulty(setting: Setting, out: Path, tell: Tell) -> dict[str, object]:
    """In a process of its own: run into the fault, and go on from what is there with fresh parts."""
    faults = inject(setting.fault, told=lambda fault: tell(str(fault)), may_miss=True)
    book = Book(out / "log")
    stall_s = STALL_S[setting.target] if setting.fault.kind == "hang" else 60.0
    said: dict[str, object] = {"left": None, "resumed": None, "error": None, "notes": (), "code": ""}
    try:
        said["left"], said["remarks"] = run_at_pace(
            out, setting.arm, setting.pace, setting.target, faults, stall_s=stall_s, book=book
        )
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
    ending = _CODES.get(said["code"], "error")
    late = ending == "stalled" and any(WorkerTimeoutError.__name__ in str(note) for note in said["notes"])
    return "no answer" if late else ending  # whether a lane or the call is due first is a matter of luck


_CODES: Mapping[str, Ending] = MappingProxyType(
    {StalledRunError.code: "stalled", WorkerLostError.code: "worker lost", WorkerTimeoutError.code: "no answer"}
)


def _same(setting: Setting, said: Mapping[str, object], whole: Left) -> str:
    left = said["left"]
    assert isinstance(left, Left)
    return left.differs(whole) and f"differs: {left.differs(whole)}"


def _original(setting: Setting, said: Mapping[str, object], whole: Left) -> str:
    """The error is the one that was put there, and tells where it was; the steps before are complete."""
    wanted = InjectedFaultError.__name__ if setting.fault.kind == "raise" else "ConnectionError"
    if said["error"] != wanted or str(setting.fault) not in str(said["message"]):
        return f"another error: {said['error']}: {said['message']}"
    return _attributed(setting, said, whole)


def _attributed(setting: Setting, said: Mapping[str, object], whole: Left) -> str:
    """The error tells the op, the step and the lane; the steps before are complete.

    Those, of an op in a worker that runs ahead, which do not need that worker any more: one that is gone is needed by
    all, a trainer that has failed is not called again. A worker that is gone may still be at a call that nobody has
    waited for: then it is that one's op.
    """
    place = f"in `{setting.call.op.id}` of step {setting.fault.step}, lane {setting.lane or 'host'}"
    told = _told(said)
    steps = range(setting.fault.step - setting.call.op.shift, setting.fault.step + 1)
    behind = [f"of step {step}, lane {setting.lane or 'host'}" for step in steps]
    gone = setting.ending in ("worker lost", "no answer")
    late = gone and any("not waited for" in words and any(one in words for one in behind) for words in told)
    if not late and not any(place in words for words in told):
        return f"not attributed to {place}: {said['notes']}"
    remote = setting.target == "process" and calls_worker(setting.call)
    ahead = setting.call.op.shift if gone or (remote and setting.call.kind.binds.startswith("trainer.")) else 0
    return _complete(min([setting.fault.step - ahead, *_waiting(told)]), said, whole)


def _told(said: Mapping[str, object]) -> list[str]:
    """What an error says, and its notes."""
    return [str(said["message"]), *map(str, said["notes"])]  # type: ignore[call-overload]


def _waiting(told: Sequence[str]) -> list[int]:
    """The steps whose ops have waited too long for another lane."""
    return [int(step) for words in told for step in _WAITED.findall(words)]


def _stalled(setting: Setting, said: Mapping[str, object], whole: Left) -> str:
    """The error names who waits, and the op that hung is told beside it; the steps before those are complete.

    A lane whose op hangs is late with all that it would have run behind it, also with ops of the step before.
    """
    told = _told(said)
    if not any(str(setting.fault) in words for words in told):
        return f"the op that hung is not among the notes: {said['notes']}"
    return _complete(min([setting.fault.step, *_waiting(told)]), said, whole)


_WAITED = re.compile(r"of step (\d+) has waited")


def _complete(step: int, said: Mapping[str, object], whole: Left) -> str:
    before = max(step, 0)
    if said["trained"][:before] != whole.trained[:before]:  # type: ignore[index]
        return f"steps before {before} are not committed: {said['trained']}"
    if said["ended"][:before] != tuple(range(before)):  # type: ignore[index]
        return f"steps before {before} have not ended: {said['ended']}"
    return ""


CHECKS: Mapping[str, Callable[[Setting, Mapping[str, object], Left], str]] = MappingProxyType(
    {
        "same": _same,
        "falls back": _same,
        "error": _original,
        "stalled": _stalled,
        "worker lost": _attributed,
        "no answer": _attributed,
    }
)
"""What is looked at beside the ending itself; each gives what is wrong, "" if nothing is."""


def fault_rows(
    arms: Sequence[Arm],
    *,
    quick: bool = False,
    only: Callable[[Setting], bool] = lambda setting: True,
    at_once: int = 4,
    targets: Sequence[str] = TARGETS,
) -> list[Row]:
    """Run the matrix; gives its rows in the order of the arms.

    Args:
      arms: the schedules.
      quick: one instance of each op.
      only: which cells to run.
      at_once: processes at a time; many of them wait.
      targets: where the parts are.
    """
    places = {"inline": settings, "process": worker_settings}
    return matrix_rows(arms, places, cell, quick=quick, only=only, at_once=at_once, targets=targets)
