"""The cells of the matrix of faults, and how each is declared to end.

What is declared follows from the row of an op and from the schedule:

- a slow op changes nothing.
- an error ends the run: it is the original one, with op, step and lane in its notes; the steps before are complete.
- a call that gets lost does the same, except for what is only shipped ahead: a stage that is lost falls back to the
  whole call, and log-probs of the reference for a staged micro-batch are asked for again; and a round of weights
  beside the step, which is made again. Nothing is trained otherwise.
- SIGKILL ends the process, and the folder has a run to resume.
- an op that hangs ends the run with ST315 once another lane has waited for it for ``stall_s``. Nobody can take a call
  back that hangs in this process: where no other lane waits for it, the run lasts as long as the call, and ends with
  whoever ends the process. That is why parts that may hang belong into processes of their own.

Under the target ``process``, trainer, rollout and reference have processes of their own, and a fault is that process's:

- one that is slow changes nothing; a request or an answer that is dropped is sent again, and carried out once.
- an error that a part raises there ends the run, as itself.
- one that is killed ends the run at once, one that hangs when its answer is due: with an error of its own, attributed
  to the op that had made the call. Both are ended with the run.

The other ops stay in the driver, and with a fault in them the run ends as it does with all parts in one process. No
worker outlives a driver that is killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from steptrace.ir.predicate import Every, Predicate, flags_of
from steptrace.lower import Call
from steptrace.lower.plan import calls_of
from steptrace.testing.durable_runs import STEPS, Arm, Pace
from steptrace.testing.faults import KINDS, Fault, FaultKind, may_fail
from steptrace.testing.hash_parts import HalfReference, HashRollout, StagingTrainer
from steptrace.testing.waited import waited_for

Ending = Literal["same", "falls back", "error", "stalled", "killed", "hangs", "worker lost", "no answer"]
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

WORKER_DECLARED: Mapping[FaultKind, Ending] = MappingProxyType(
    {
        "raise": "error",
        "lost-before": "same",
        "lost-after": "same",
        "kill": "worker lost",
        "hang": "no answer",
        "slow": "same",
    }
)
"""How a run ends with a fault in the process of a part."""

_EVERYWHERE: tuple[FaultKind, ...] = ("raise", "lost-before", "lost-after")
_ONCE: tuple[FaultKind, ...] = ("kill", "hang", "slow")
_IN_WORKERS = MappingProxyType({"trainer": StagingTrainer, "rollout": HashRollout, "reference": HalfReference})


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
      target: where the parts are.
    """

    arm: Arm
    call: Call
    lane: str
    fault: Fault
    pace: Pace
    ending: Ending
    target: str = "inline"


def declared(arm: Arm, call: Call, fault: Fault) -> Ending:
    """How a run ends with a fault in an op."""
    if fault.kind in ("lost-before", "lost-after"):
        if call.kind.name in ("transfer_weights", "apply_weights"):
            return "same"  # a round beside the step is made again
        stages = any(op.kind == "stage_fwd_bwd" for op in arm.schedule.ops())
        shipped = call.kind.name == "ref_logps" and call.op.micro is not None and call.op.shift > 0 and stages
        return "falls back" if shipped or call.kind.name == "stage_fwd_bwd" else "error"
    if fault.kind == "hang" and not waited_for(arm.plan, call.op.id, fault.step, STEPS - 1):
        return "hangs"
    return DECLARED[fault.kind]


def settings(arms: Sequence[Arm], counts: Mapping[str, Sequence[int]], quick: bool = False) -> Iterator[Setting]:
    """The cells: every op that may fail, at its first and last instance and one between, with every kind of fault.

    Args:
      arms: the schedules.
      counts: by program, how many micro-batches its steps have.
      quick: one instance of each op.
    """
    for arm in arms:
        for lane, call, looped in calls_in(arm):
            if not may_fail(call.kind):
                continue
            instances = list(_instances(arm, call, looped, counts[arm.program]))
            for fault in _faults(call, instances, quick):
                yield Setting(arm, call, lane, fault, pace_of(call), declared(arm, call, fault))


def worker_settings(arms: Sequence[Arm], counts: Mapping[str, Sequence[int]], quick: bool = False) -> Iterator[Setting]:
    """The cells of the target ``process``: every op that may fail, at one instance, with every kind of fault.

    Args:
      arms: the schedules.
      counts: by program, how many micro-batches its steps have.
      quick: only two ops that call a worker, and one that stays in the driver.
    """
    for arm in arms:
        left = {True: 2, False: 1}
        for lane, call, looped in calls_in(arm):
            remote = calls_worker(call)
            if not may_fail(call.kind) or (quick and (not lane or not left[remote])):
                continue
            left[remote] -= 1
            instances = list(_instances(arm, call, looped, counts[arm.program]))
            for kind in KINDS:
                fault = Fault(call.op.id, *instances[len(instances) // 2], kind=kind)
                ending = WORKER_DECLARED[kind] if remote else declared(arm, call, fault)
                yield Setting(arm, call, lane, fault, pace_of(call), ending, "process")


def calls_worker(call: Call) -> bool:
    """Whether an op calls a part that has a process of its own under the target ``process``."""
    role, _, method = call.kind.binds.partition(".")
    return role in _IN_WORKERS and hasattr(_IN_WORKERS[role], method) and call.kind.name != "settle"


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
