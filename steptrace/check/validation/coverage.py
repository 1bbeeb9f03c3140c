"""Coverage: every instance of the source runs exactly once, with exactly one arm, and nothing else runs.

Tried for every number of steps from 0, so that schedules deeper than the run are among them, and with the data ending
after each step: what belongs to a step must not run before the take knows that the step exists.
"""

from __future__ import annotations

from collections import Counter

from steptrace.check.validation.finding import Finding, Spot
from steptrace.check.validation.instances import Instance, where
from steptrace.check.validation.parts import RELEASE, WHOLE, WHOLES
from steptrace.check.validation.runs import Bond, Run
from steptrace.check.validation.sides import Site
from steptrace.diag.validation import CoverageError


def check_coverage(source: Run, schedule: Run) -> Finding | None:
    """The first instance of a run that is lost, runs twice, or runs though its step may not exist; None if none is."""
    return _strangers(schedule) or _counted(source, schedule) or _early(schedule)


def _strangers(run: Run) -> Finding | None:
    for position in range(len(run.lanes.instances)):
        if run.identities[position] is None:
            site = run.sites[position]
            message = f"`{site.op.id}` stands for `{site.origin}`, which the source does not have"
            return Finding(CoverageError, message, run.setting, (Spot(run.text(position), site.op.loc),))
    return None


def _counted(source: Run, schedule: Run) -> Finding | None:
    parts: dict[Instance, list[int]] = {}
    for position in range(len(schedule.lanes.instances)):
        for identity in stands_for(schedule, position):
            parts.setdefault(identity, []).append(position)
    expected = set(source.lanes.instances)
    for one in source.lanes.instances:
        found = parts.pop(one, [])
        update = source.side.sites[one.site] if source.side.sites[one.site].op.kind == "update" else None
        call = None if update is None else carrier(schedule, update, one)
        if call is not None and found:
            return _twice(schedule, source, one, [call, *found])
        untrained = update is not None and not found and source.setting.counts[one.step] == 0
        if call is None and not untrained and not _complete(schedule, one, found):
            return _miscounted(source, schedule, one, found)
    for one, found in parts.items():
        assert one not in expected, "what was expected was taken out"
        site = source.side.sites[one.site]
        message = (
            f"{schedule.text(found[0])} runs, and `{site.op.id}{where(one.step, one.path)}` of the source does not"
        )
        return Finding(CoverageError, message, schedule.setting, _spots(schedule, found))
    return None


def stands_for(run: Run, position: int, *, at_end: bool = False) -> tuple[Instance, ...]:
    """The instances of the source that one of a schedule stands for; of a stream also those that it does bit by bit.

    Args:
      run: the run of the schedule.
      position: the instance.
      at_end: whether the last call of a stream stands for those, not the first.
    """
    identity, one = run.identities[position], run.lanes.instances[position]
    assert identity is not None, "strangers were looked for first"
    drained = run.pair.streams.get(one.site)
    if drained is None or run.side is not run.pair.schedule:
        return (identity,)
    count, call = run.setting.counts[one.step], one.path[-1]
    draining = call == (max(count - 1, 0) if at_end else 0)
    bulk = tuple(Instance(site.number, one.step, ()) for site in drained) if draining else ()
    return (*bulk, identity) if call < count else bulk


def _complete(run: Run, one: Instance, found: list[int]) -> bool:
    if _lent(run, one, found) != any(run.sites[position].part == RELEASE for position in found):
        return False
    if len(found) == 1:
        return run.sites[found[0]].part == WHOLE
    counted = Counter(run.sites[position].part for position in found)
    return frozenset(counted) in WHOLES and set(counted.values()) == {1}


def _lent(run: Run, one: Instance, found: list[int]) -> bool:
    """Whether an instance hands out a micro-batch whose buffer has to be given back."""
    own = (position for position in found if run.identities[position] == one)
    return any(run.sites[position].op.attr("lent") for position in own)


def carrier(schedule: Run, update: Site, one: Instance) -> int | None:
    """The call of a schedule that carries an update of the source: the last one of the loop before it."""
    if not schedule.pair.carries:
        return None
    last = schedule.setting.counts[one.step] - 1
    for position, other in enumerate(schedule.lanes.instances):
        if schedule.pair.carries.get(other.site) is update and (other.step, other.path) == (
            one.step,
            (*one.path, last),
        ):
            return position
    return None


def _miscounted(source: Run, schedule: Run, one: Instance, found: list[int]) -> Finding:
    site = source.side.sites[one.site]
    name = f"`{site.op.id}{where(one.step, one.path)}`"
    spots = (Spot(f"{name} in the source", site.op.loc), *_spots(schedule, found))
    if not found:
        return Finding(CoverageError, f"{name} of the source never runs", schedule.setting, spots)
    counted = Counter(schedule.sites[position].part for position in found)
    if not any(parts <= frozenset(counted) for parts in WHOLES):
        shown = ", ".join(f"`{schedule.sites[position].op.id}`" for position in found)
        return Finding(CoverageError, f"of {name} of the source only {shown} runs", schedule.setting, spots)
    if max(counted.values()) == 1 and _lent(schedule, one, found) and RELEASE not in counted:
        message = f"the buffer of {name} is never given back, so its ring runs dry"
        return Finding(CoverageError, message, schedule.setting, spots)
    return _twice(schedule, source, one, found)


def _twice(schedule: Run, source: Run, one: Instance, found: list[int]) -> Finding:
    site = source.side.sites[one.site]
    name = f"`{site.op.id}{where(one.step, one.path)}`"
    spots = (Spot(f"{name} in the source", site.op.loc), *_spots(schedule, found))
    return Finding(CoverageError, f"{name} of the source runs more than once", schedule.setting, spots)


def _spots(run: Run, found: list[int]) -> tuple[Spot, ...]:
    return tuple(
        Spot(f"{run.text(position)} on lane {run.sites[position].op.lane}", run.sites[position].op.loc)
        for position in found
    )


def _early(run: Run) -> Finding | None:
    places = {position: (lane, at) for lane, line in run.lanes.lanes.items() for at, position in enumerate(line)}
    for position, needs in enumerate(run.needs):
        for before, bond in needs:
            (lane, at), (other, earlier) = places[position], places[before]
            if bond is Bond.EXISTS and lane == other and at < earlier:
                step = run.lanes.instances[position].step
                message = f"{run.text(position)} runs before {run.text(before)} can know whether step {step} exists"
                return Finding(CoverageError, message, run.setting, _spots(run, [position, before]))
    return None
