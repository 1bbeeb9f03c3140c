"""Single failure: when one op fails once, nothing has been done that the source would not have done by then.

Every instance that can fail fails in turn. An asynchronous call fails when its work is done, not when it is issued.
A lane on which an op fails still runs those of its later instances that stand before it in the source and do not need
it, and then ends the run; other lanes may have run whatever does not wait for it. So what must hold: an instance whose
effects stay (an update, a checkpoint, published weights, a commit, a log line, a callback, anything of the user's),
and which in the source waits for the op that failed, waits for it in the schedule too. Work of later steps whose
effects do not stay is free to have run: sent calls, whose gradients are dropped, and the serving cursor.

Parts of a split op fail for the whole. A part that its law takes out of the step's way (a metrics fetch, a weight
transfer and its application) fails for the first op that needs what it gives. A checkpoint that is written late fails
for the save, unless the contract says ``saves=may_fail_late``, and a log fails for nothing behind it where that says
``logs=may_fail_late``. A stage that fails on the way is no failure: its flag is
false, and the call is sent whole, which is one of the settings of the flags.
"""

from __future__ import annotations

from dataclasses import dataclass

from steptrace.check.validation.coverage import carrier, stands_for
from steptrace.check.validation.finding import Finding, Spot
from steptrace.check.validation.instances import Instance
from steptrace.check.validation.machine import instance_text
from steptrace.check.validation.parts import LATE, LOOKS, RELEASE
from steptrace.check.validation.runs import Bond, Run
from steptrace.check.validation.visible import stays
from steptrace.diag.validation import FailureOrderError

_DECLARED = {
    "log": "keep it behind the log, or declare logs=may_fail_late",
    "write_checkpoint": "keep it behind the checkpoint, or declare saves=may_fail_late",
}
"""What a contract may say of an op that fails late."""


@dataclass(frozen=True, slots=True)
class Suppressed:
    """What each instance of the source waits for, so that it does not run when that fails.

    Attributes:
      run: the run of the source.
      numbers: the bit of each instance.
      before: for each instance the bits of those that are finished when it is.
      failing: the bits of those that may fail.
    """

    run: Run
    numbers: dict[Instance, int]
    before: tuple[int, ...]
    failing: int


def suppressed(source: Run, line: tuple[int, ...]) -> Suppressed:
    """What each instance of a run of the source waits for; ``line`` is an order in which the run can happen."""
    numbers = {one: at for at, one in enumerate(source.lanes.instances)}
    before = _finished(source, line, [1 << at for at in range(len(numbers))])
    failing = sum(1 << at for at in range(len(numbers)) if source.sites[at].kind.may_fail)
    return Suppressed(source, numbers, tuple(before), failing)


def check_failures(plain: Suppressed, schedule: Run, order: tuple[int, ...]) -> Finding | None:
    """The first instance of a schedule that may have run although one that the source waits for has failed.

    Args:
      plain: what the instances of the source wait for, in a run with the same facts.
      schedule: the run of the schedule.
      order: an order in which it can happen.
    """
    source, numbers, before, failing = plain.run, plain.numbers, plain.before, plain.failing
    carriers = _carriers(source, schedule, numbers)
    known = _finished(schedule, order, carriers.bits)
    for position in order:
        site, identity = schedule.sites[position], schedule.identities[position]
        if identity is None or identity not in numbers or not site.stays or _untrained(schedule, identity):
            continue
        needed = before[numbers[identity]] & ~(1 << numbers[identity])
        missed = needed & failing & carriers.carried & ~known[position]
        if missed:
            failed = carriers.of[(missed & -missed).bit_length() - 1]
            return _finding(schedule, position, failed, source)
        for late, needers in carriers.late:
            if before[numbers[identity]] & needers and not known[position] & carriers.bits[late]:
                return _finding(schedule, position, late, source)
    return None


class _Carriers:
    """Which instances of a schedule fail for which of the source.

    Attributes:
      bits: for each instance of the schedule, the bits of those of the source that it fails for, or its own.
      of: by the bit of an instance of the source, the instance of the schedule that carries it.
      carried: all bits that are carried.
      late: instances of late parts, each with the bits of those of the source that first need what it gives.
    """

    def __init__(self, size: int) -> None:
        self.bits = [0] * size
        self.of: dict[int, int] = {}
        self.carried = 0
        self.late: list[tuple[int, int]] = []

    def carry(self, position: int, bit: int) -> None:
        """An instance of the schedule carries one of the source."""
        old = self.of.get(bit)
        if old is not None:
            self.bits[old] &= ~(1 << bit)
        self.of[bit] = position
        self.bits[position] |= 1 << bit
        self.carried |= 1 << bit


def _carriers(source: Run, schedule: Run, numbers: dict[Instance, int]) -> _Carriers:
    found = _Carriers(len(schedule.lanes.instances))
    contract = source.pair.source.program.contract
    saves_lag, logs_lag = (word == "may_fail_late" for word in (contract.saves, contract.logs))
    extra, late = len(numbers), list[int]()
    for position in schedule.reference:
        site, identity = schedule.sites[position], schedule.identities[position]
        if identity is None or site.part in LOOKS or site.part == RELEASE:
            continue
        stands = [one for one in stands_for(schedule, position, at_end=True) if one in numbers]
        if not stands:
            continue
        if site.part in LATE:
            found.bits[position] |= 1 << extra
            extra += 1
            if site.kind.may_fail:
                late.append(position)
        elif not ((saves_lag and site.part == "write") or (logs_lag and site.op.kind == "log")):
            for one in stands:
                found.carry(position, numbers[one])
    found.late += _needers(schedule, late, numbers).items()
    for one, at in numbers.items():
        site = source.side.sites[one.site]
        if site.op.kind == "update" and at not in found.of:
            call = carrier(schedule, site, one)
            if call is not None:
                found.carry(call, at)
    return found


def _needers(run: Run, late: list[int], numbers: dict[Instance, int]) -> dict[int, int]:
    """For each late part the bits of what it fails for: the first instances of the source that need what it gives."""
    among, found = set(late), dict.fromkeys(late, 0)
    for later in reversed(run.reference):
        identity = run.identities[later]
        for before, bond in run.needs[later]:
            if before not in among or bond is Bond.ORDER:
                continue
            if later in among:
                found[before] |= found[later]
            elif identity is not None and identity in numbers:
                found[before] |= 1 << numbers[identity]
    return found


def _untrained(run: Run, identity: Instance) -> bool:
    """Whether an instance is an update of a step that trains nothing, and so does nothing."""
    counts, kind = run.setting.counts, run.pair.source.sites[identity.site].op.kind
    return kind == "update" and counts[identity.step] == 0


def _finished(run: Run, line: tuple[int, ...], bits: list[int]) -> list[int]:
    """For each instance, the bits of all whose work is known to be finished when its own is."""
    size = len(run.lanes.instances)
    issued, done = [0] * size, [0] * size
    behind: dict[str, int] = {}
    on_device: dict[str, int] = {}
    for position in line:
        site = run.sites[position]
        at_issue, at_end = behind.get(site.op.lane, 0), 0
        for before, bond in run.needs[position]:
            at_issue |= issued[before]
            if bond in (Bond.DONE, Bond.EXISTS) or not run.sites[before].asynchronous:
                at_issue |= done[before]
            elif bond is Bond.DATA:
                at_end |= done[before]
        if site.kind.device:
            at_end |= on_device.get(site.kind.device, 0)
        issued[position] = at_issue
        done[position] = at_issue | at_end | bits[position]
        behind[site.op.lane] = at_issue if site.asynchronous else done[position]
        if site.kind.device:
            on_device[site.kind.device] = done[position]
    return done


def _finding(run: Run, position: int, failed: int, source: Run) -> Finding:
    site, cause = run.sites[position], run.sites[failed]
    identity = run.identities[position]
    assert identity is not None, "both stand for instances of the source"
    changed = [touch.leaf for touch in site.touches if touch.writes and stays(touch.leaf)]
    message = f"{run.text(position)} may have run when {run.text(failed)} fails"
    return Finding(
        FailureOrderError,
        message,
        run.setting,
        (
            Spot(f"{run.text(failed)} fails" + (" after it was issued" if cause.asynchronous else ""), cause.op.loc),
            Spot(f"{run.text(position)} has then changed {', '.join(f'`{leaf}`' for leaf in changed)}", site.op.loc),
            Spot(f"the source runs {instance_text(source.pair, identity)} only after that succeeded"),
        ),
        help=_DECLARED.get(cause.op.kind, ""),
    )
