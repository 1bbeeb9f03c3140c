"""The state of one run: what the verbs read and write beside the trainer's own state."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steptrace.diag.running import PartialStepError
from steptrace.ir import Op, ops_of
from steptrace.lang.records import Group, GroupId, MicroBatch
from steptrace.lower import Plan
from steptrace.lower.choices import choices, head_choices, head_remarks
from steptrace.run.binding import Parts
from steptrace.run.board import WeightBoard
from steptrace.run.borders import CheckedPrompts
from steptrace.run.capabilities import capabilities_of
from steptrace.run.data.cursor import DataCursor, Draws
from steptrace.run.data.queue import GroupQueue
from steptrace.run.digest import EMPTY, CallLog, chain
from steptrace.run.dispatching import check_stagger, drawn_by
from steptrace.run.frames import Frames
from steptrace.run.instance import At
from steptrace.run.remote.part import ComingWeights
from steptrace.run.resources import OwnResources

RECORDS_KEPT = 10_000
"""How many steps' records a run holds for its caller; a tracker is told of all."""

LATCH_S = 1e-4
"""Below so many seconds of device work left, a stage has hidden nothing."""

_LOGGED_KEPT = 8
_LOG = logging.getLogger("steptrace")


@dataclass
class StepMemory:
    """Host memory of one step, from its dispatch to its ``free``.

    Attributes:
      cursor: the data cursor behind the step's prompts.
      taken: ids of the groups taken, in order.
      stats: figures of the rollouts, for the log.
      metrics: metrics fetched from the trainer.
      stream: the step's micro-batches as they come, when it streams.
      record: what the trainer set aside for the step's metrics, until they are fetched.
      aside: whether it has, and they are not fetched yet.
      fetched: whether the metrics are.
    """

    cursor: DataCursor
    taken: list[GroupId] = field(default_factory=list)
    stats: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    stream: Iterator[MicroBatch] | None = None
    record: Any = None
    aside: bool = False
    fetched: bool = False

    def count(self, name: str, value: float) -> None:
        """Add to a figure."""
        self.stats[name] = self.stats.get(name, 0.0) + value


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
        check_stagger(plan)
        self.plan = plan
        self.parts = parts
        self.seed = seed
        self.epochs = epochs
        self.out = out
        self.board = WeightBoard(parts.rollout)
        # A schedule dispatches ahead of what is committed: as far as its shifts and pinned weights let it.
        ahead = plan.ahead + plan.program.contract.staleness if plan.source is not None else 0
        self.queue = GroupQueue(capacity=2 + ahead, max_staleness=plan.program.contract.staleness)
        self.capabilities = plan.target.capabilities | capabilities_of(parts)
        self.choices = choices(plan, self.capabilities)
        self._ways = {choice.op: choice.way for choice in self.choices}
        self._used = frozenset(use.name for call in plan.calls() for use in call.op.args)
        rules = {(choice.rule, choice.way) for choice in self.choices}
        self.defers = ("apply_deferred_update", "deferred") in rules
        self.fuses = ("fwd_bwd closes=update", "fused") in rules
        self.closing = _closing(plan)
        prompts = None if parts.prompts is None else CheckedPrompts(parts.prompts)
        self.draws = None if prompts is None else Draws(prompts, seed=seed, epochs=epochs)
        self.cursor = DataCursor()
        self.calls = CallLog()
        self.groups_digest = EMPTY
        self.committed = 0
        self.pending_fwd_bwd = 0
        self.memory: dict[int, StepMemory] = {}
        carries = {carry.name: carry.init for carry in plan.program.carries}
        self.frames = Frames(plan.slots, _before_step_0(plan), carries)
        self.records: deque[Mapping[str, float]] = deque(maxlen=RECORDS_KEPT)
        self.logged: deque[tuple[int, dict[str, float]]] = deque(maxlen=_LOGGED_KEPT)
        self.saved: tuple[int, str] | None = None
        self.dispatches = tuple(call.op for call in plan.base.calls() if call.kind.name == "dispatch")
        self.staged: tuple[Any, MicroBatch] | None = None
        self.staging = True
        self.stage_latch_s = LATCH_S
        self.heads = head_choices(plan, self.capabilities)
        self.remarks: list[str] = list(head_remarks(self.heads))
        self.update_held = False
        self.update_done = False
        self.updated = False
        self.copied: dict[int, tuple[Any, int]] = {}
        self.copying: dict[int, tuple[At, ComingWeights]] = {}
        self.lost_rounds: dict[int, Exception] = {}
        self.saves: dict[int, Iterator[None]] = {}
        self.resources = OwnResources(self, plan.program)
        self.first = 0
        self.held_batch: Callable[[], None] | None = None
        self.held_source: int | None = None  # the step that published what it is sampled with
        self.stopped: Callable[[int], bool] = lambda step: False
        self.behind: Callable[[int], DataCursor | None] = lambda step: None
        self._adding = threading.Lock()

    def reads(self, op: Op) -> bool:
        """Whether anything uses a value that an op makes."""
        return not self._used.isdisjoint(value.name for value in op.results)

    def way(self, op: Op) -> str:
        """How an op is carried out: the choice that was made for it."""
        return self._ways[op.id]

    def drop_saves(self) -> None:
        """Give up the checkpoints whose second half is not written: they never become one."""
        self.saves.clear()

    def stop_staging(self, step: int, why: str) -> None:
        """Stage nothing in the rest of the run."""
        if self.staging:
            self.staging = False
            self.remarks.append(f"staging is off since step {step}: {why}")
            _LOG.info("%s", self.remarks[-1])

    def has_prompts(self, wanted: int, position: int) -> bool:
        """Whether the data has a step that draws ``wanted`` prompts from ``position`` on.

        What the contract says of a partial step counts.
        """
        if self.draws is None or not self.dispatches:
            return True
        least = wanted if self.plan.program.contract.partial == "drop" else 1
        return not self.draws.ended(DataCursor(position + max(least, 1) - 1))

    def position_after(self, position: int, drawn: int) -> int:
        """The position behind a step that draws so many prompts."""
        return position if self.draws is None else self.draws.after(DataCursor(position), drawn).position

    def refuse_partial(self, steps: int | None) -> None:
        """Refuse, where the contract says so, a run that would come to a step with fewer prompts than it asks for.

        Steps that draw different numbers of prompts are looked at when they come.

        Raises:
          PartialStepError: points at the dispatch.
        """
        if self.plan.program.contract.partial != "error" or self.epochs is None or len(self.dispatches) != 1:
            return
        there, per_step = self.epochs * len(self.parts.prompts), drawn_by(self.dispatches[0])
        if there % per_step and (steps is None or steps * per_step > there):
            raise PartialStepError(
                f"step {there // per_step} would get {there % per_step} of {per_step} prompts: there are {there}",
                loc=self.dispatches[0].loc,
            )

    def end_step(self, step: int) -> None:
        """Hold nothing of a step any more that every lane is past; what it carries on is kept."""
        self.frames.retire(step)
        self.resources.retire(step)
        self.calls.settle()
        self.memory.pop(step, None)

    def step_memory(self, step: int) -> StepMemory:
        """The host memory of a step, made when it is first asked for."""
        memory = self.memory.get(step)
        if memory is not None:
            return memory
        with self._adding:
            return self.memory.setdefault(step, StepMemory(self.behind(step) or self.cursor))

    def note_trained(self, ids: tuple[GroupId, ...]) -> None:
        """Add groups to the digest of trained groups, in order."""
        for name in ids:
            self.groups_digest = chain(self.groups_digest, name.prompt, str(name.draw))

    def note_groups(self, step: int, groups: list[Group]) -> None:
        """Add the figures of scored groups to those of the step."""
        rewards = [group.rewards.tolist() for group in groups if group.rewards is not None]
        completions = [completion for group in groups for completion in group.completions]
        memory = self.step_memory(step)
        memory.count("groups", len(groups))
        memory.count("samples", sum(map(len, rewards)))
        memory.count("reward_sum", sum(map(sum, rewards)))
        memory.count("completion_tokens", sum(len(completion.tokens) for completion in completions))
        memory.count("finished", sum(completion.finished for completion in completions))
        memory.count("groups_of_equal_rewards", sum(len(set(group)) == 1 for group in rewards))


def _closing(plan: Plan) -> Op | None:
    """The update of the program as written where the last training call makes it, so that no op does."""
    fused = any(call.op.attr("closes") == "update" for call in plan.calls())
    return next((call.op for call in plan.base.calls() if call.kind.name == "update"), None) if fused else None


def _before_step_0(plan: Plan) -> frozenset[str]:
    """Names of the values that are made before step 0 and stay."""
    return frozenset(result.name for op in ops_of(plan.program.prologue) for result in op.results)
