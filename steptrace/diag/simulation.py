"""Errors of runs in virtual time."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class SimulatedDeadlockError(SteptraceError):
    """In virtual time every lane waits for another one, so nothing can ever happen again.

    No plan that was lowered from an accepted schedule can lock up. One that was put together by hand can: where an op
    of one lane waits for an op that stands behind what waits for it. The notes name, for each lane, the op that
    waits, its step, and the op that it waits for.

        lower(schedule, source=source)                   # accepted: ends
        replace(plan, holds={"take": (Hold("free", 0, None, "by hand"),)})     # error[ST320] when it is simulated

    Ways out: lower the plan from a schedule that `steptrace check` accepts; take the wait out that closes the circle.
    """

    code = "ST320"


class SimulationSettingError(SteptraceError):
    """A run in virtual time was asked for something that has no meaning.

    Durations are seconds from 0 on, a step has 0 or more micro-batches, and a run that is to end needs a number of
    steps or a list of counts.

        simulate(plan, Durations({"fwd_bwd": Cost(work_s=-1.0)}), micro_batches=4, steps=3)      # error[ST321]

    Way out: give durations and counts from 0 on, and say where the run ends.
    """

    code = "ST321"
