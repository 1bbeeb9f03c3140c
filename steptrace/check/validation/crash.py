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
from steptrace.check.validation.parts import ATTEMPTS, LOOKS
from steptrace.check.validation.runs import Run
from steptrace.check.validation.sides import Side
from steptrace.diag.validation import CrashCutError

Trained: TypeAlias = Counter[tuple[int, int, tuple[int, ...]]]
"""How often each call of the source, by its number, step and counters, went into the parameters."""

State: TypeAlias = tuple[int | None, int | None]
"""The step of the last checkpoint on disk, and the last step committed; None for none."""


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
class _Memory:
    """What went into the accumulator, the parameters, and the copies of them that checkpoints hold, by step."""

    grads: Trained = field(default_factory=Counter)
    params: Trained = field(default_factory=Counter)
    snapshots: dict[int, Trained] = field(default_factory=dict)

    def update(self) -> None:
        """Applies what was accumulated."""
        self.params.update(self.grads)
        self.grads.clear()


_SUMS = frozenset({"grads", "grads.sums"})


def roles_of(side: Side) -> Roles:
    """The roles of the ops of a source, by what they read and write."""
    writes = {s.number: {touch.leaf for touch in s.touches if touch.writes} for s in side.sites if s.region == "step"}
    updates = {number for number, leaves in writes.items() if "params" in leaves and leaves & _SUMS}
    return Roles(
        frozenset(number for number, leaves in writes.items() if leaves & _SUMS and number not in updates),
        frozenset(updates),
        frozenset(number for number, leaves in writes.items() if "checkpoints" in leaves and number not in updates),
        frozenset(number for number, leaves in writes.items() if "queue.training" in leaves and "params" not in leaves),
    )


@dataclass(frozen=True, slots=True)
class Resumable:
    """What a run of the source leaves on disk when it is cut off.

    Attributes:
      roles: the roles of its ops.
      states: the pairs of checkpoint and commit that it can leave.
      trained: every call that trains, once.
      may_lag: whether the contract lets checkpoints land late.
    """

    roles: Roles
    states: frozenset[State]
    trained: Trained
    may_lag: bool


def resumable(source: Run, line: tuple[int, ...], roles: Roles) -> Resumable:
    """What a run of the source leaves on disk; ``line`` is an order in which the run can happen."""
    calls = Counter((one.site, one.step, one.path) for one in source.lanes.instances if one.site in roles.trains)
    may_lag = source.pair.source.program.contract.saves == "may_fail_late"
    return Resumable(roles, frozenset(state for state, _ in _states(source, line, roles)), calls, may_lag)


def check_crashes(plain: Resumable, schedule: Run, order: tuple[int, ...]) -> Finding | None:
    """The first cut of a schedule that leaves a state which cannot be resumed from, None if there is none.

    Args:
      plain: what the source leaves, in a run with the same facts.
      schedule: the run of the schedule.
      order: an order in which it can happen.
    """
    for position, step, holds in _saves(schedule, order, plain.roles):
        wrong = _resumed(holds, step, plain.trained, schedule, position)
        if wrong is not None:
            return wrong
    steps_saved = {None, *(saved for saved, _ in plain.states)}
    for state, last in _states(schedule, order, plain.roles):
        if state not in plain.states and not (plain.may_lag and state[0] in steps_saved):
            return _unknown(state, schedule, max(last, key=order.index))
    return None


def _number(run: Run, position: int) -> int:
    identity = run.identities[position]
    return -1 if identity is None else identity.site


def _saves(run: Run, line: tuple[int, ...], roles: Roles) -> Iterator[tuple[int, int, Trained]]:
    """Each checkpoint that lands: the instance, the step it was saved in, and what its parameters were trained on."""
    memory = _Memory()
    for position in line:
        site, one = run.sites[position], run.lanes.instances[position]
        number = _number(run, position)
        if number in roles.trains and site.part not in LOOKS | ATTEMPTS:
            memory.grads[number, one.step, one.path] += 1
            last = bool(one.path) and one.path[-1] == run.setting.counts[one.step] - 1
            if last and site.number in run.pair.carries and run.side is run.pair.schedule:
                memory.update()
        elif number in roles.updates:
            memory.update()
        elif number in roles.saves:
            if site.part != "write":
                memory.snapshots[one.step] = memory.params.copy()
            if site.part != "snapshot":
                yield position, one.step, memory.snapshots.get(one.step, Counter())


def _states(run: Run, line: tuple[int, ...], roles: Roles) -> Iterator[tuple[State, tuple[int, ...]]]:
    """Every pair of the last checkpoint on disk and the last commit that some cut of a run leaves, with those two.

    Checkpoints land in order, and so do commits. A pair can be met when neither of the two waits for what comes after
    the other.
    """
    saves, commits = [], []
    for position in line:
        number, part = _number(run, position), run.sites[position].part
        if number in roles.saves and part != "snapshot":
            saves.append(position)
        elif number in roles.commits:
            commits.append(position)
    before = _before(run, line)
    for at, saved in enumerate((None, *saves)):
        next_save = 1 << saves[at] if at < len(saves) else 0
        for other, committed in enumerate((None, *commits)):
            next_commit = 1 << commits[other] if other < len(commits) else 0
            behind = before[committed] & next_save if committed is not None else 0
            ahead = before[saved] & next_commit if saved is not None else 0
            last = tuple(position for position in (saved, committed) if position is not None)
            if last and not behind and not ahead:
                yield (_step(run, saved), _step(run, committed)), last


def _step(run: Run, position: int | None) -> int | None:
    return None if position is None else run.lanes.instances[position].step


def _before(run: Run, line: tuple[int, ...]) -> dict[int, int]:
    """For each instance the bits of all that come before it, whatever the timing."""
    found: dict[int, int] = {}
    behind: dict[str, int] = {}
    for position in line:
        lane = run.sites[position].op.lane
        bits = behind.get(lane, 0)
        for before, _ in run.needs[position]:
            if before in found:  # on one lane the schedule may have it the other way round
                bits |= found[before] | 1 << before
        found[position] = bits
        behind[lane] = bits | 1 << position
    return found


def _resumed(holds: Trained, step: int, expected: Trained, run: Run, position: int) -> Finding | None:
    """Whether the parameters that a checkpoint holds were trained on what a resumed run will not train again."""
    wanted = Counter({call: count for call, count in expected.items() if call[1] <= step})
    if holds == wanted:
        return None
    lost, twice = wanted - holds, holds - wanted
    (_, at, path), trains = (min(lost), "never trains") if lost else (min(twice), "trains twice")
    site = run.sites[position]
    return Finding(
        CrashCutError,
        f"a run that resumes from the checkpoint of step {step} {trains} micro-batch {where(at, path)}",
        run.setting,
        (
            Spot(f"cut off after {run.text(position)}", site.op.loc),
            Spot(f"it resumes at step {step + 1} with the parameters of that checkpoint"),
        ),
    )


def _unknown(state: State, run: Run, position: int) -> Finding:
    site = run.sites[position]
    saved = "no checkpoint" if state[0] is None else f"the checkpoint of step {state[0]}"
    committed = "no commit" if state[1] is None else f"the commit of step {state[1]}"
    return Finding(
        CrashCutError,
        f"cut off after {run.text(position)}, the disk can hold {saved} and {committed}",
        run.setting,
        (Spot(f"after {run.text(position)}", site.op.loc), Spot("the source never leaves that pair")),
        help="let the checkpoint land before the commit, or declare saves=may_fail_late",
    )
