"""What a run in virtual time knows: values by instance, micro-batch counts, and what the trainer was told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steptrace.diag.simulation import SimulationSettingError
from steptrace.ir import Op
from steptrace.lower import Plan
from steptrace.lower.choices import choices
from steptrace.simulate.durations import Durations
from steptrace.simulate.machine import Devices, Ledger
from steptrace.simulate.record import Event
from steptrace.simulate.service import Rollout, Service
from steptrace.simulate.trainer import VirtualTrainer, capabilities_of


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch in virtual time: where it belongs.

    Attributes:
      step: its step.
      index: its place there.
      last: whether it is the last one there.
    """

    step: int
    index: int
    last: bool


@dataclass(frozen=True, slots=True)
class Value:
    """A value that an op has made.

    Attributes:
      it: what it is.
      ready: when the work that makes it is done, in seconds.
    """

    it: Any
    ready: float = 0.0


@dataclass(frozen=True, slots=True)
class Feed:
    """When the groups of a step are there: evenly over the time that their generation takes.

    A double derives from it.
    """

    def arrived(self, step: int, share: float, start: float, end: float) -> float:
        """When that share of a step's groups is there, in seconds, generation running from ``start`` to ``end``."""
        return start + share * (end - start)


Flags = Mapping[str, Callable[[int, int], bool]]
"""For flags that users' ops make, by name: the value in a step and micro-batch."""


class Counts:
    """How many micro-batches each step has, and which steps there are.

    Args:
      micro_batches: the number for every step, or that of each step that there is data for.
      steps: how many steps to run, None for all that there is data for.

    Raises:
      SimulationSettingError: a count is below 0, or nothing says where the run ends.
    """

    def __init__(self, micro_batches: int | Sequence[int], steps: int | None) -> None:
        single = isinstance(micro_batches, int)
        counts = (micro_batches,) if isinstance(micro_batches, int) else tuple(micro_batches)
        if any(count < 0 for count in counts) or (steps is not None and steps < 0):
            raise SimulationSettingError(f"micro_batches={micro_batches!r} and steps={steps!r} are counts from 0 on")
        if single and steps is None:
            raise SimulationSettingError(
                "one count of micro-batches is given for every step, and no number of steps: the run would never end"
            )
        self._counts, self._single = counts, single
        self.steps = len(counts) if steps is None else steps if single else min(steps, len(counts))

    def exists(self, step: int) -> bool:
        """Whether there is such a step."""
        return 0 <= step < self.steps

    def of(self, step: int) -> int:
        """How many micro-batches a step has."""
        return self._counts[0] if self._single else self._counts[step]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run in virtual time is asked for; see `simulate`."""

    plan: Plan
    durations: Durations
    counts: Counts
    trainer: VirtualTrainer
    feed: Feed
    flags: Flags
    latch_s: float
    rollout: Rollout | None = None


class State:
    """What is known so far.

    Args:
      setting: what was asked for.
      same: devices that are one, see `Devices`.
    """

    def __init__(self, setting: Setting, same: Mapping[str, str]) -> None:
        self.setting = setting
        self.plan, self.trainer = setting.plan, setting.trainer
        self.able = setting.plan.target.capabilities | capabilities_of(setting.trainer)
        chosen = choices(setting.plan, self.able)
        rules = {(choice.rule, choice.way) for choice in chosen}
        self.ways = {choice.op: choice.way for choice in chosen}
        self.defers = ("apply_deferred_update", "deferred") in rules
        self.fuses = ("fwd_bwd closes=update", "fused") in rules
        self.closing = any(call.op.attr("closes") == "update" for call in setting.plan.calls())
        self.now = 0.0
        self.service = None if setting.rollout is None else Service(setting.rollout)
        self.devices = Devices(same)
        self.ledger = Ledger(setting.plan.program)
        self.buffers: dict[tuple[int, int], float] | None = (
            {} if any(call.kind.frees for call in setting.plan.calls()) else None
        )
        self.values: dict[tuple[str, int], Value] = {}
        self.rounds: dict[tuple[str, int, int], Value] = {}
        self.counted: dict[tuple[str, int], int] = {}
        self.generated: dict[int, tuple[float, float]] = {}
        self.asides: dict[tuple[str, int], Any] = {}
        self.events: list[Event] = []
        self.training = Training()
        self._turns = {lane.name: -lane.most for lane in setting.plan.lanes if lane.nodes}
        self._reach = 3 + setting.plan.program.contract.staleness + setting.plan.ahead

    def value(self, name: str, step: int, micro: int) -> Value | None:
        """A value of a round, of a step, or of before step 0; None when it is not made."""
        made = self.rounds.get((name, step, micro))
        if made is None:
            made = self.values.get((name, step))
        return self.values.get((name, -1)) if made is None else made

    def read(self, step: int, micro: int, done: float) -> None:
        """Note when the work is done that reads the buffer of a micro-batch, where buffers are given back."""
        if self.buffers is not None:
            self.buffers[step, micro] = max(done, self.buffers.get((step, micro), 0.0))

    def put(self, op: Op, step: int, micro: int | None, given: Sequence[Value]) -> None:
        """Keep the values that an op has made."""
        for result, value in zip(op.results, given, strict=True):
            if micro is None:
                self.values[result.name, step] = value
            else:
                self.rounds[result.name, step, micro] = value

    def turned(self, lane: str, turn: int) -> None:
        """Note that a lane is through with a turn; what no lane reaches back to is dropped."""
        oldest = min(self._turns.values())
        self._turns[lane] = turn
        reached = min(self._turns.values()) - self._reach
        if reached > 0 and min(self._turns.values()) > oldest:
            self.values = {key: value for key, value in self.values.items() if key[1] >= reached or key[1] == -1}
            self.rounds = {key: value for key, value in self.rounds.items() if key[1] >= reached}
            self.ledger.forget_before(reached)


@dataclass
class Training:
    """What the trainer was told, as the run keeps it.

    Attributes:
      calls: its calls, staged ones as whole ones.
      staged: the request and the micro-batch that it holds.
      staging: whether micro-batches are staged at all.
      held, done: whether the step's update is held back, or made by the call that closed the step.
      pending: training calls since the last update.
      updated: whether there was an update in this run.
      trained: by step, how many micro-batches were trained.
      stages: steps whose first micro-batch was staged.
      waits: by the step before, what the trainer told of the device's wait.
      latched: the step at whose border the device was found idle.
      remarks: why.
    """

    calls: list[str] = field(default_factory=list)
    staged: tuple[Any, Any] | None = None
    staging: bool = True
    held: bool = False
    done: bool = False
    pending: int = 0
    updated: bool = False
    trained: dict[int, int] = field(default_factory=dict)
    stages: list[int] = field(default_factory=list)
    waits: dict[int, float] = field(default_factory=dict)
    latched: int | None = None
    remarks: list[str] = field(default_factory=list)

    def stop_staging(self, step: int, why: str) -> None:
        """Stage nothing in the rest of the run."""
        if self.staging:
            self.staging = False
            self.remarks.append(f"staging is off since step {step}: {why}")
