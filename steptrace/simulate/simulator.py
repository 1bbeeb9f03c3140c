"""Runs a plan in virtual time: the same plan as the executor in real time, with durations instead of work."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import count
from types import MappingProxyType

from steptrace.diag import Note
from steptrace.diag.simulation import SimulatedDeadlockError
from steptrace.lower import Lane, Plan, StreamPlan
from steptrace.lower.fallbacks import fitted
from steptrace.simulate.durations import Durations
from steptrace.simulate.instance import POLL
from steptrace.simulate.lane import LaneWalk, Walk
from steptrace.simulate.places import Places, Wanted
from steptrace.simulate.record import Run
from steptrace.simulate.service import Rollout
from steptrace.simulate.state import Counts, Feed, Flags, Setting, State
from steptrace.simulate.trainer import VirtualTrainer, capabilities_of

LATCH_S = 1e-4
"""Below so many seconds of device work left, a stage has hidden nothing; as in a run in real time."""

_NOTHING: Mapping[str, str] = MappingProxyType({})


def simulate(
    plan: Plan,
    durations: Durations,
    *,
    micro_batches: int | Sequence[int],
    steps: int | None = None,
    trainer: VirtualTrainer | None = None,
    feed: Feed | None = None,
    flags: Flags = MappingProxyType({}),
    same_device: Mapping[str, str] = _NOTHING,
    latch_s: float = LATCH_S,
    rollout: Rollout | None = None,
) -> Run:
    """Run a plan in virtual time.

    Every lane walks its part of the plan as the executor's threads do: it waits where the plan has it wait, an op
    takes its lane for as long as its call lasts, and a device finishes what it was sent in the order of issue. What
    polls at a moment sees all that has happened by then. The same arguments give the same run.

    The checkpoint that a run in real time leaves behind its last step is not part of it.

    Args:
      plan: a lowered program or schedule.
      durations: how long its ops take.
      micro_batches: how many each step has; a list ends the data behind its last step.
      steps: how many steps to run; None for all that the list has.
      trainer: who is called; by default one with every verb, see `VirtualTrainer`.
      feed: when groups are there; by default evenly over the time that their generation takes.
      flags: for flags that users' ops make, by the name of the value; those that are not there are true.
      same_device: devices that are one: ``{"reference": "trainer"}`` has the trainer's device do the reference's work.
      latch_s: staging is switched off once a device had less than this left to do when a micro-batch was in place.
      rollout: the service that samples, if it has room for so many requests at a time; what `dispatch` takes is then
        what a request takes. By default a step's requests are served together, one step after the other.

    Returns:
      Every instance, what the devices did, and figures of it.

    Raises:
      SimulationSettingError: a count or a duration has no meaning.
      SimulatedDeadlockError: the lanes wait for one another.
      NotLowerableError: the trainer can carry an op out in no way.
      whatever the trainer raises, with a note of the op, the step and the lane.
    """
    counts, trainer = Counts(micro_batches, steps), trainer or VirtualTrainer()
    plan, changed = fitted(plan, plan.target.capabilities | capabilities_of(trainer))
    setting = Setting(plan, durations, counts, trainer, feed or Feed(), flags, latch_s, rollout)
    state = State(setting, same_device)
    _alone(state, plan.base, "prologue", -1)
    _Lanes(state, plan.lanes).through()
    _alone(state, plan.base, "epilogue", counts.steps)
    training = state.training
    return Run(
        counts.steps,
        tuple(state.events),
        tuple(state.devices.spans()),
        tuple(training.stages),
        dict(training.waits),
        training.latched,
        (*changed, *training.remarks),
        tuple(training.calls),
        setting.trainer.trained,
        max([state.now, *(span.end for span in state.devices.spans())]),
    )


def _alone(state: State, base: Plan, which: str, step: int) -> None:
    """Run what stands before or behind the steps on the caller's lane."""
    nodes = base.prologue if which == "prologue" else base.epilogue
    walk = LaneWalk(state, Places(()), "host")
    for wish in walk.nodes(nodes, step):
        assert isinstance(wish, float | int), "one lane waits for no other"
        state.now += max(0.0, wish)


class _Lanes:
    """The lanes of a plan, each carried on when its moment comes."""

    def __init__(self, state: State, lanes: tuple[Lane, ...]) -> None:
        self._state = state
        held = {hold.before for holds in state.plan.holds.values() for hold in holds}
        streams = [node for lane in lanes for node in lane.nodes if isinstance(node, StreamPlan)]
        self._places = Places(held | {stream.head.op.id for stream in streams if stream.shared})
        self._walks: list[tuple[str, Walk]] = [
            (lane.name, LaneWalk(state, self._places, lane.name).turns(lane)) for lane in lanes if lane.nodes
        ]
        self._parked: dict[int, Wanted] = {}
        self._due: list[tuple[float, int, int, int]] = []
        self._sent = count()

    def through(self) -> None:
        """Carry the lanes on until all have come to their end."""
        for number in range(len(self._walks)):
            self._at(self._state.now, number)
        while self._due:
            self._state.now, _, _, number = heapq.heappop(self._due)
            self._carry_on(number)
        if self._parked:
            raise self._locked()

    def _carry_on(self, number: int) -> None:
        """Carry a lane on until it lets time pass, or waits."""
        walk, now = self._walks[number][1], self._state.now
        for wish in walk:
            self._wake(now)
            if isinstance(wish, Wanted):
                self._parked[number] = wish
                return
            if wish == POLL or wish > 0:
                self._at(now + max(0.0, wish), number, late=wish == POLL)
                return
        self._wake(now)

    def _at(self, moment: float, number: int, *, late: bool = False) -> None:
        """Carry a lane on at a moment; ``late`` behind all others of that moment."""
        heapq.heappush(self._due, (moment, int(late), next(self._sent), number))

    def _wake(self, now: float) -> None:
        """Carry on the lanes whose places were passed."""
        if not self._places.changed:
            return
        self._places.changed.clear()
        for number in [number for number, wanted in self._parked.items() if self._places.is_past(wanted)]:
            del self._parked[number]
            self._at(now, number)

    def _locked(self) -> SimulatedDeadlockError:
        waiting = [(self._walks[number][0], wanted) for number, wanted in sorted(self._parked.items())]
        ids = ", ".join(f"`{wanted.id}`" for _, wanted in waiting)
        return SimulatedDeadlockError(
            f"after {self._state.now:g} s every lane that has not ended waits: for {ids}",
            notes=tuple(Note(f"lane {lane}: {wanted}") for lane, wanted in waiting),
            help="lower the plan from a schedule that was checked",
        )
