"""What a trainer holds across the border of two steps: one staged micro-batch, and an update that is held back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from steptrace.diag.training import (
    AlreadyStagedError,
    HeldUpdateError,
    NothingHeldError,
    NotStagedError,
    OpenAccumulationError,
    TrainerCallError,
    UnfinishedStepError,
)
from steptrace.lang.records import MicroBatch


@dataclass(frozen=True, slots=True)
class StagedCall:
    """A micro-batch that the trainer holds for a later call.

    Attributes:
      request: by which the later call names it.
      device_wait_s: seconds that the stage waited for the device once the micro-batch was in place; None when it
        waited for nothing, since an update is held back. Near 0 the device was idle, and nothing was hidden.
      update_ready: whether the update before it is confirmed.
    """

    request: int
    device_wait_s: float | None
    update_ready: bool


@dataclass(frozen=True, slots=True)
class _Slot:
    request: int
    micro_batch: MicroBatch
    arrays: dict[str, Any]


class Boundary:
    """The staged micro-batch, at most one, and whether an update is held back."""

    def __init__(self) -> None:
        self._slot: _Slot | None = None
        self._requests = 0
        self.held_step: int | None = None

    def refuse_held(self, what: str) -> None:
        """Refuse what needs the step closed, while its update is held back."""
        if self.held_step is not None:
            raise HeldUpdateError(
                f"{what} was asked for while the update of step {self.held_step} is held back",
                help="apply_deferred_update first",
            )

    def refuse_open(self, step: int | None) -> None:
        """Refuse a checkpoint while a step is open: its update is held back, or it has gradients."""
        self.refuse_held("a checkpoint")
        if step is not None:
            raise OpenAccumulationError(
                f"a checkpoint was asked for while gradients of step {step} are accumulated",
                help="update first, then save",
            )

    def check_room(self, micro_batch: MicroBatch) -> None:
        """Refuse a second staged micro-batch."""
        if self._slot is not None:
            held = self._slot.micro_batch
            raise AlreadyStagedError(
                f"micro-batch {micro_batch.index} of step {micro_batch.step} was staged while micro-batch {held.index} "
                f"of step {held.step} is",
                help="run it with fwd_bwd_staged first",
            )

    def put(self, micro_batch: MicroBatch, arrays: dict[str, Any]) -> int:
        """Hold a micro-batch; gives the number that it is named by."""
        self._requests += 1
        self._slot = _Slot(self._requests, micro_batch, arrays)
        return self._requests

    def staged(self, request: int | StagedCall) -> MicroBatch:
        """The micro-batch of a request."""
        number = request.request if isinstance(request, StagedCall) else request
        if self._slot is None or self._slot.request != number:
            there = "nothing is" if self._slot is None else f"request {self._slot.request} is"
            raise NotStagedError(f"request {number} is not staged: {there}", help="stage it again, or send it whole")
        return self._slot.micro_batch

    def pop(self) -> tuple[MicroBatch, dict[str, Any]]:
        """The staged micro-batch, which is held no more."""
        assert self._slot is not None, "what is taken was found there"
        slot, self._slot = self._slot, None
        return slot.micro_batch, slot.arrays

    def check_held(self) -> int:
        """The step whose update is held back."""
        if self.held_step is None:
            raise NothingHeldError("apply_deferred_update was called, and no update is held back")
        return self.held_step

    def drop(self) -> bool:
        """Forget the staged micro-batch and the update; whether there was an update."""
        held = self.held_step is not None
        self._slot, self.held_step = None, None
        return held


def check_call(step: int | None, micro_batch: MicroBatch, closes: bool, defer: bool) -> None:
    """Refuse a training call whose options contradict one another, or that belongs to another step than is open."""
    if defer and not closes:
        raise TrainerCallError("defer_update=True was given without apply_optimizer=True")
    if step is not None and micro_batch.step != step:
        raise UnfinishedStepError(
            f"a micro-batch of step {micro_batch.step} came before the update of step {step}",
            help="call update once all micro-batches of a step are in",
        )
