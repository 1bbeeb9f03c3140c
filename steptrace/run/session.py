"""The state of one run: what the verbs read and write beside the trainer's own state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steptrace.ir import Op
from steptrace.lang.records import Group, GroupId, MicroBatch
from steptrace.lower import Plan
from steptrace.run.binding import Parts
from steptrace.run.board import WeightBoard
from steptrace.run.data.cursor import DataCursor, Draws
from steptrace.run.data.queue import GroupQueue
from steptrace.run.digest import EMPTY, CallLog, chain


@dataclass(frozen=True, slots=True)
class At:
    """Which instance of an op is being run.

    Attributes:
      op: the op.
      step: the step k; -1 in the prologue.
      item: how many items its loop has made before, 0 outside loops.
    """

    op: Op
    step: int
    item: int = 0


@dataclass
class StepMemory:
    """Host memory of one step, from its dispatch to its ``free``.

    Attributes:
      cursor: the data cursor behind the step's prompts.
      taken: ids of the groups taken, in order.
      stats: figures of the rollouts, for the log.
      metrics: metrics fetched from the trainer.
      stream: the step's micro-batches as they come, when it streams.
    """

    cursor: DataCursor
    taken: list[GroupId] = field(default_factory=list)
    stats: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    stream: Iterator[MicroBatch] | None = None


class Session:
    """One run of a plan with bound parts.

    Args:
      plan: the lowered program.
      parts: the bound parts.
      seed: of every draw.
      epochs: how often the prompts are gone through, None for without end.
      out: folder for checkpoints and the list of trained groups, None to keep nothing.
    """

    def __init__(self, plan: Plan, parts: Parts, *, seed: int, epochs: int | None, out: Path | None) -> None:
        self.plan = plan
        self.parts = parts
        self.seed = seed
        self.out = out
        self.board = WeightBoard(parts.rollout)
        self.queue = GroupQueue(capacity=2)
        self.draws = None if parts.prompts is None else Draws(parts.prompts, seed=seed, epochs=epochs)
        self.cursor = DataCursor()
        self.calls = CallLog()
        self.groups_digest = EMPTY
        self.pending_fwd_bwd = 0
        self.memory: dict[int, StepMemory] = {}
        self.slots: list[Any] = [None] * len(plan.slots)
        self.carries: dict[str, Any] = {carry.name: carry.init for carry in plan.program.carries}
        self.records: list[dict[str, float]] = []

    @property
    def prompts_per_step(self) -> int:
        """How many prompts a step draws, over all its dispatches."""
        return sum(_int(call.op.attr("prompts")) for call in self.plan.calls() if call.kind.name == "dispatch")

    def step_exists(self) -> bool:
        """Whether the data has another step, given what the contract says about a partial one."""
        if self.draws is None or not self.prompts_per_step:
            return True
        if self.draws.ended(self.cursor):
            return False
        if self.plan.program.contract.partial != "drop":
            return True
        drawn, _ = self.draws.draw(self.cursor, self.prompts_per_step)
        return len(drawn) == self.prompts_per_step

    def carried(self) -> dict[str, Any]:
        """The carried values as this step has set them: what the next step will read."""
        return {name: self.slots[self.plan.slots[name]] for name in self.carries}

    def end_step(self) -> None:
        """Hand the carried values over to the next step."""
        self.carries = self.carried()

    def step_memory(self, step: int) -> StepMemory:
        """The host memory of a step, made when it is first asked for."""
        return self.memory.setdefault(step, StepMemory(self.cursor))

    def note_trained(self, ids: tuple[GroupId, ...]) -> None:
        """Add groups to the digest of trained groups, in order."""
        for name in ids:
            self.groups_digest = chain(self.groups_digest, name.prompt, str(name.draw))

    def note_groups(self, step: int, groups: list[Group]) -> None:
        """Add the figures of scored groups to those of the step."""
        stats = self.step_memory(step).stats
        rewards = [float(reward) for group in groups if group.rewards is not None for reward in group.rewards]
        tokens = sum(len(completion.tokens) for group in groups for completion in group.completions)
        finished = sum(completion.finished for group in groups for completion in group.completions)
        flat = sum(1 for group in groups if group.rewards is not None and len(set(group.rewards.tolist())) == 1)
        for name, value in (
            ("groups", len(groups)),
            ("samples", len(rewards)),
            ("reward_sum", sum(rewards)),
            ("completion_tokens", tokens),
            ("finished", finished),
            ("groups_of_equal_rewards", flat),
        ):
            stats[name] = stats.get(name, 0.0) + value


def _int(value: Any) -> int:
    assert isinstance(value, int), f"the verifier lets only whole numbers through, not {value!r}"
    return value
