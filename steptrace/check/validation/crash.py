"""Crash cuts: whenever the run is cut off, what is on disk is a state from which a resumed run trains each group once.

A run resumes from the last checkpoint that landed: with the parameters that it holds, at the step after the one it was
saved in; groups that were taken or committed beyond that are taken again. So at each cut

- the parameters of the last checkpoint were trained on every micro-batch of every step up to its own, each once;
- the training cursor has not passed a step whose checkpoint was due and had not landed, unless the source lets it (or
  the contract, by ``saves=may_fail_late``): recovery meets no pair of checkpoint and cursor that the source never
  leaves.

This layer counts what was trained; it knows no terms and no edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from steptrace.check.validation.finding import Finding, Spot
from steptrace.check.validation.instances import where
from steptrace.check.validation.runs import Run
from steptrace.check.validation.sides import Side
from steptrace.diag.validation import CrashCutError

Trained: TypeAlias = Counter[tuple[int, int, tuple[int, ...]]]
"""How often each call of the source, by its number, step and counters, went into the parameters."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The ops of a source that matter when a run is cut off, by number.

    Attributes:
      trains: add the gradient of a micro-batch to the accumulator.
      updates: apply it.
      saves: write a checkpoint.
      commits: move the training cursor.
    """

    trains: frozenset[int]
    updates: frozenset[int]
    saves: frozenset[int]
    commits: frozenset[int]


@dataclass(slots=True)
class _Disk:
    """What a run has done so far: in memory, on its way to the disk, and on it."""

    grads: Trained = field(default_factory=Counter)
    params: Trained = field(default_factory=Counter)
    held: bool = False
    snapshots: dict[int, Trained] = field(default_factory=dict)
    saved: int | None = None
    committed: int = -1


def roles_of(side: Side) -> Roles:
    """The roles of the ops of a source, by what they read and write."""
    writes = {s.number: {touch.leaf for touch in s.touches if touch.writes} for s in side.sites if s.region == "step"}
    updates = {number for number, leaves in writes.items() if {"params", "grads"} <= leaves}
    return Roles(
        frozenset(number for number, leaves in writes.items() if "grads" in leaves and number not in updates),
        frozenset(updates),
        frozenset(number for number, leaves in writes.items() if "checkpoints" in leaves and number not in updates),
        frozenset(number for number, leaves in writes.items() if "queue.training" in leaves and "params" not in leaves),
    )


def check_crashes(
    source: Run, line: tuple[int, ...], schedule: Run, order: tuple[int, ...], roles: Roles
) -> Finding | None:
    """The first cut of a schedule that leaves a state which cannot be resumed from, None if there is none."""
    left = {(disk.saved, disk.committed) for disk, _ in _cuts(source, line, roles)}
    may_lag = source.pair.source.program.contract.saves == "may_fail_late"
    steps_saved = {saved for saved, _ in left}
    expected = _trained(source, roles)
    for disk, position in _cuts(schedule, order, roles):
        if _number(schedule, position) in roles.saves and disk.saved is not None:
            wrong = _resumed(disk, disk.saved, expected, schedule, position)
            if wrong is not None:
                return wrong
        if (disk.saved, disk.committed) in left or (may_lag and disk.saved in steps_saved):
            continue
        return _unknown(disk, schedule, position)
    return None


def _trained(run: Run, roles: Roles) -> Trained:
    """Every call that trains, once."""
    return Counter((one.site, one.step, one.path) for one in run.lanes.instances if one.site in roles.trains)


def _number(run: Run, position: int) -> int:
    identity = run.identities[position]
    return -1 if identity is None else identity.site


def _cuts(run: Run, line: tuple[int, ...], roles: Roles) -> Iterator[tuple[_Disk, int]]:
    """What a run has done after each instance that changes what is on disk, with that instance."""
    disk = _Disk()
    for position in line:
        site, one = run.sites[position], run.lanes.instances[position]
        number = _number(run, position)
        if number in roles.trains and site.part != "stage":
            disk.grads[number, one.step, one.path] += 1
            last = bool(one.path) and one.path[-1] == run.setting.counts[one.step] - 1
            if last and site.number in run.pair.carries and run.side is run.pair.schedule:
                _update(disk)
        elif number in roles.updates:
            _update(disk)
        elif number in roles.saves:
            if site.part != "write":
                disk.snapshots[one.step] = disk.params.copy()
            if site.part != "snapshot":
                disk.saved = one.step
                yield disk, position
        elif number in roles.commits:
            disk.committed = one.step
            yield disk, position


def _update(disk: _Disk) -> None:
    disk.params.update(disk.grads)
    disk.grads.clear()


def _resumed(disk: _Disk, step: int, expected: Trained, run: Run, position: int) -> Finding | None:
    """Whether the parameters that a checkpoint holds were trained on what a resumed run will not train again."""
    holds = disk.snapshots.get(step, Counter())
    wanted = Counter({call: count for call, count in expected.items() if call[1] <= step})
    if holds == wanted:
        return None
    lost, twice = wanted - holds, holds - wanted
    (_, at, path), verb = (min(lost), "never") if lost else (min(twice), "twice")
    site = run.sites[position]
    return Finding(
        CrashCutError,
        f"a run that resumes from the checkpoint of step {step} trains micro-batch {where(at, path)} {verb}",
        run.setting,
        (
            Spot(f"cut off after {run.text(position)}", site.op.loc),
            Spot(f"it resumes at step {step + 1} with the parameters of that checkpoint"),
        ),
    )


def _unknown(disk: _Disk, run: Run, position: int) -> Finding:
    site = run.sites[position]
    saved = "no checkpoint" if disk.saved is None else f"the checkpoint of step {disk.saved}"
    return Finding(
        CrashCutError,
        f"cut off after {run.text(position)}, the disk holds {saved} and the cursor of step {disk.committed}",
        run.setting,
        (Spot(f"after {run.text(position)}", site.op.loc), Spot("the source never leaves that pair")),
        help="let the checkpoint land before the commit, or declare saves=may_fail_late",
    )
