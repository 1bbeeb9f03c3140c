"""The trainer: owns parameters, accumulator and optimizer state, and runs jitted leaves on them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from steptrace.diag.training import (
    LossError,
    NoLogpsError,
    NothingAccumulatedError,
    TrainerSettingError,
    UpdateFailedError,
)
from steptrace.lang.records import MicroBatch
from steptrace.run.digest import tree_digest
from steptrace.run.models.split import SplitModel, split_model
from steptrace.run.trainer.accumulate import Loss
from steptrace.run.trainer.batch import Signature, check_arrays, named, signature
from steptrace.run.trainer.boundary import Boundary, StagedCall, check_call
from steptrace.run.trainer.checkpoint import load_state, save_state, sizes
from steptrace.run.trainer.evaluation import evaluated
from steptrace.run.trainer.leaves import Leaves
from steptrace.run.trainer.mesh import Rules, placement
from steptrace.run.trainer.metrics import Aside, Record, Records, fetched, merged
from steptrace.run.trainer.replay import Attempt, Replay, Unsettled
from steptrace.run.trainer.update import check_optimizer


class JaxTrainer:
    """Trains any flax model with any optax transform and any loss that gives ``(sum, count, aux)``.

    Gradients are added up as un-normalised sums and divided once, in ``update``, by the total count, so the
    update does not depend on how the samples of a step are split or packed. ``fwd_bwd`` and ``update`` return
    at dispatch. An update whose gradient norm is not finite, or whose count is 0, is skipped on the device: the
    accumulator is cleared, parameters, moments and the model's other state stay bit for bit what they were,
    and the record says so (``skipped``).

    With ``replay`` a model may drop tokens where a buffer of it is too small. A micro-batch that lost some counts for
    nothing, and is run again without loss. Whether it did is known one micro-batch late: ``fwd_bwd`` returns once the
    micro-batch *before* it is done, and ``update`` is dispatched once the step's last one is. Log-probs never drop.

    The trainer works on copies: the model keeps its arrays.

    Attributes:
      split: the model taken apart; ``split.build(weights, split.rest)`` is a callable model.
    """

    def __init__(
        self,
        model: Any,
        optimizer: optax.GradientTransformation,
        loss: Loss,
        *,
        linen_variables: Mapping[str, Any] | None = None,
        linen_rngs: Mapping[str, jax.Array] | None = None,
        wrt: Any = nnx.Param,
        logps_fn: Callable[[Any, Mapping[str, jax.Array]], jax.Array] | None = None,
        count_skips: bool = False,
        replay: Replay | None = None,
        mesh: Mesh | None = None,
        rules: Rules = (),
        in_flight: int = 2,
        max_records: int = 1024,
    ) -> None:
        """Make a trainer; nothing of the loss is compiled yet.

        Args:
          model: a flax NNX module, a linen module with ``linen_variables``, or a `SplitModel`.
          optimizer: an optax transform; clipping and schedules belong into it. It gets the mean loss as ``value``.
          loss: ``loss(model, batch)`` gives the sum of the loss terms, their number, and metrics as (sum, weight).
          linen_variables, linen_rngs, wrt: see `split_model`.
          logps_fn: ``logps_fn(model, batch)`` gives log-probs [rows, length] for ``old_logps``; by default the
            loss's method ``logps``, when it has one.
          count_skips: whether the count of learning-rate schedules also moves with an update that was skipped
            because its gradient was not finite. Off, it moves once per applied update. Either way an update
            on nothing (count 0) does not move it, nor does any skip move the count of Adam's bias correction.
          replay: how the model says that it dropped tokens, and never does; None for a model that drops nothing.
          mesh, rules: see `mesh.MeshPlacement`; None for one device. Weights and checkpoints do not depend on them.
          in_flight: how many micro-batches may be dispatched and not yet computed; beyond it ``fwd_bwd`` waits. Two
            keep a device busy. With more the caller runs ahead of it: a schedule then looks whether the next step's
            first micro-batch is packed long before the step's last one is computed, finds none, and ships none ahead.
          max_records: how many updates' metrics are kept for ``get_metrics``; the oldest go first, and are counted.

        Raises:
          ModelError, OptimizerError, TrainerSettingError, MeshError: a part cannot be used.
        """
        if in_flight < 1 or max_records < 1:
            raise TrainerSettingError(f"in_flight={in_flight} and max_records={max_records} must be at least 1")
        if not isinstance(model, SplitModel):
            model = split_model(model, linen_variables=linen_variables, linen_rngs=linen_rngs, wrt=wrt)
        check_optimizer(optimizer, model.params)
        self.split: SplitModel = model
        self._replay, self._reads = replay, tuple(getattr(loss, "reads", ()))
        self._place = place = placement(mesh, rules, model.params)
        self._leaves = Leaves(model, loss, logps_fn or getattr(loss, "logps", None), replay, place)
        self._optimizer, self._count_skips = optimizer, count_skips
        self._params = place.put(self._leaves.copy(model.params), place.params)
        self._state = self._leaves.init(optimizer, self._params)
        self._rest = self._new_rest = place.put(self._leaves.copy(model.rest), place.whole)
        self._applied = place.put(jnp.zeros((), jnp.int32), place.whole)
        self._acc: Any = None
        self._names: tuple[str, ...] = ()
        self._zeros: Any = None
        self._update: Any = None
        self._signatures: set[Signature] = set()
        self._step: int | None = None
        self._waiting, self._in_flight = deque[jax.Array](), in_flight
        self._records = Records(max_records)
        self._boundary, self._unsettled = Boundary(), Unsettled()

    def fwd_bwd(
        self,
        micro_batch: MicroBatch,
        *,
        apply_optimizer: bool = False,
        defer_update: bool = False,
        wait_for_update: bool = True,
    ) -> dict[str, Any] | None:
        """Add this micro-batch's gradient sums to the accumulator; returns at dispatch.

        Host arrays are copied: the caller may reuse its buffers at once.

        Args:
          micro_batch: the micro-batch.
          apply_optimizer: the call also closes the step: it makes the update.
          defer_update: with ``apply_optimizer``, hold the update back until ``apply_deferred_update``.
          wait_for_update: with ``apply_optimizer`` alone, return once the update has landed; else at its dispatch.

        Returns:
          None; for a call that closes the step ``update_deferred``, whether the update is held back.

        Raises:
          UnfinishedStepError: it belongs to another step than what is accumulated.
          HeldUpdateError: the update of a step is held back.
          TrainerCallError: options that contradict one another.
          MicroBatchError, MissingArrayError, LossError, ReplayError: before anything is compiled.
          ReleasedInputError: the micro-batch before it dropped tokens, and its arrays are gone.
        """
        self._boundary.refuse_held("another micro-batch")
        check_call(self._step, micro_batch, apply_optimizer, defer_update)
        arrays = self._checked(micro_batch)
        return self._train(micro_batch, arrays, apply_optimizer, defer_update, wait_for_update)

    def stage_fwd_bwd(self, micro_batch: MicroBatch) -> StagedCall:
        """Bring a micro-batch to the device, for `fwd_bwd_staged` to run it later without any data.

        While an update is held back it waits for nothing. Else it waits for the device once the micro-batch is in
        place, which says whether shipping it was hidden behind work, and confirms the update before it.

        Raises:
          AlreadyStagedError: one is staged already.
          UpdateFailedError: the wait met a failure, which is that of the update.
          MicroBatchError, MissingArrayError, LossError: before anything is compiled.
        """
        self._boundary.check_room(micro_batch)
        arrays = jax.device_put(self._checked(micro_batch))
        waited: float | None = None
        if self._boundary.held_step is None:
            waited = self._waited_for(f"staging {named(micro_batch)}")
        return StagedCall(self._boundary.put(micro_batch, arrays), waited, self._boundary.held_step is None)

    def fwd_bwd_staged(
        self,
        request: int | StagedCall,
        *,
        apply_optimizer: bool = False,
        defer_update: bool = False,
        wait_for_update: bool = True,
    ) -> dict[str, Any] | None:
        """As `fwd_bwd`, on the micro-batch that is staged under ``request``.

        Raises:
          NotStagedError: it is not staged. Otherwise as `fwd_bwd`; what is refused stays staged.
        """
        self._boundary.refuse_held("another micro-batch")
        check_call(self._step, self._boundary.staged(request), apply_optimizer, defer_update)
        micro_batch, arrays = self._boundary.pop()
        return self._train(micro_batch, arrays, apply_optimizer, defer_update, wait_for_update)

    def apply_deferred_update(self) -> dict[str, Any]:
        """Wait for the step's last micro-batch, make the update that was held back, and confirm it.

        Returns:
          ``device_wait_s``: seconds until the micro-batch was done; ``update_ready``: True.

        Raises:
          NothingHeldError: no update is held back.
          UpdateFailedError: the device failed; the update stays held back.
        """
        step = self._boundary.check_held()
        waited = self._waited_for(f"the update of step {step}")
        self._settle()
        self._boundary.held_step = None
        self.update()
        self.wait_for_update()
        return {"device_wait_s": waited, "update_ready": True}

    def wait_for_update(self) -> None:
        """Wait until the last update has landed."""
        self.last_update_token.block_until_ready()

    def wait_for_device(self) -> float:
        """Wait until all that was dispatched is done; returns the seconds that took.

        Waits on what the last micro-batch and the last update leave, the gradient norm among it: a failed update
        shows up here first.
        """
        start = time.perf_counter()
        last = self._records.last
        jax.block_until_ready((list(self._waiting)[-1:], last and last.values, self._applied))
        return time.perf_counter() - start

    def update(self) -> None:
        """Divide the accumulated sums by the total count, apply the optimizer once, clear; returns at dispatch.

        Raises:
          NothingAccumulatedError: no ``fwd_bwd`` since the last update.
          HeldUpdateError: the update of a step is held back.
          ReleasedInputError: the step's last micro-batch dropped tokens, and its arrays are gone.
        """
        self._boundary.refuse_held("an update")
        if self._step is None:
            raise NothingAccumulatedError(
                "update was called with no micro-batch since the last update",
                help="one update per step, after its fwd_bwd calls",
            )
        self._settle()
        record = self._apply_update(self._acc, self._new_rest)
        replayed = self._unsettled.close()
        self._records.append(Record(self._step, self._names, record, replayed if self._replay else None))
        self._step = None

    def start_metrics(self) -> Aside:
        """Set the records of all updates since the last call aside, for `fetch_metrics`; waits for nothing."""
        self._boundary.refuse_held("metrics")
        return self._records.set_aside()

    def fetch_metrics(self, aside: Aside) -> dict[str, float]:
        """The metrics that `start_metrics` has set aside, as `get_metrics` gives them; waits for them."""
        return fetched(aside)

    def get_metrics(self) -> dict[str, float]:
        """Metrics of all updates since the last call, see `metrics.merged`; waits for them; empties the buffer.

        Empty when there was no update. ``dropped_records`` is there when more than ``max_records`` had piled up.
        """
        return self.fetch_metrics(self.start_metrics())

    def get_records(self) -> list[dict[str, float]]:
        """As `get_metrics`, but one mapping for each update, in order."""
        return [merged([record]) for record in self.start_metrics()[0]]

    def weights(self) -> tuple[Any, int]:
        """A copy of the parameters that no later update touches, and the number of updates applied to them.

        Waits for the last update, since only the device knows whether it was skipped. After a skipped update
        the version is what it was, and so are the weights. From a mesh they come whole, on the default device.
        """
        self._boundary.refuse_held("a copy of the weights")
        copied = self._place.gathered(self._leaves.copy(self._params))
        return copied, self.updates_applied

    def copy_weights(self) -> tuple[Any, int]:
        """As `weights`: what that gives is a copy, made before any later call touches the parameters."""
        return self.weights()

    def old_logps(self, micro_batch: MicroBatch) -> jax.Array:
        """Log-probs of the micro-batch's tokens under the present parameters; returns at dispatch.

        Returns:
          float32 [rows, length], 0 on the first token of each sequence and on padding.

        Raises:
          NoLogpsError: neither the loss nor ``logps_fn`` makes log-probs.
          MicroBatchError, MissingArrayError: before anything is compiled.
        """
        self._boundary.refuse_held("log-probs")
        if self._leaves.logps is None:
            raise NoLogpsError("this trainer cannot make log-probs: its loss has no method `logps`")
        check_arrays(micro_batch.arrays, named(micro_batch))
        logps: jax.Array = self._leaves.logps(self._params, self._rest, self._place.batch(micro_batch.arrays))
        return logps

    def evaluate(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        """Loss and metrics of micro-batches under the present parameters, as means over all of them; waits for them.

        Makes no gradient, and neither the accumulator nor any other state of the trainer or the model is changed.

        Raises:
          HeldUpdateError: the update of a step is held back.
          MicroBatchError, MissingArrayError, LossError: before anything is compiled.
        """
        self._boundary.refuse_held("an evaluation")
        checked = [self._checked(micro_batch) for micro_batch in micro_batches]
        return evaluated([self._leaves.evaluate(self._params, self._rest, arrays) for arrays in checked])

    def save_checkpoint(self, directory: Path) -> None:
        """Write parameters, optimizer state, other model state and the version below ``directory``.

        Complete and on disk when it returns.

        Raises:
          OpenAccumulationError: gradients are accumulated.
          StateNotWrittenError: the folder cannot be written, or holds a trainer's state already.
        """
        self._boundary.refuse_open(self._step)
        save_state(Path(directory), self._saved())

    def snapshot_checkpoint(self) -> dict[str, Any]:
        """A copy of all that a checkpoint holds, on the device, which no later call touches; returns at dispatch.

        Raises:
          OpenAccumulationError, HeldUpdateError: the step is open.
        """
        self._boundary.refuse_open(self._step)
        copied: dict[str, Any] = jax.tree.map(jnp.copy, self._saved())
        return copied

    def write_checkpoint(self, snapshot: Mapping[str, Any], directory: Path) -> None:
        """Write a snapshot as `save_checkpoint` does; may run beside later calls.

        Raises:
          StateNotWrittenError: the folder cannot be written, or holds a trainer's state already.
        """
        save_state(Path(directory), snapshot)

    def restore_checkpoint(self, directory: Path) -> None:
        """Read back what ``save_checkpoint`` wrote.

        Drops accumulated gradients, an update held back, a staged micro-batch, and metrics not yet fetched.

        Raises:
          DamagedStateError, OtherModelError: the trainer is unchanged.
        """
        saved = load_state(Path(directory), self._saved())
        self._params, self._state = saved["params"], saved["optimizer"]
        self._rest, self._new_rest, self._applied = saved["rest"], saved["rest"], saved["applied"]
        self._drop_step()
        self._boundary.drop()
        self._waiting.clear()
        self._records.set_aside()

    def compile(self, micro_batch: MicroBatch) -> None:
        """Compile what a micro-batch of this form needs, and wait for it; trains nothing and changes no state.

        A micro-batch that is staged is dropped, and so is a step whose update is held back: an orchestrator that died
        in between must not make its successor's first stage fail.
        """
        if self._boundary.drop():
            self._drop_step()
        arrays = self._checked(micro_batch)
        jax.block_until_ready(self._leaves.fwd_bwd(self._zeros(self._params), self._params, self._rest, arrays))
        # An update on nothing gives back all state as it was, so the real buffers can go through it.
        jax.block_until_ready(self._apply_update(self._zeros(self._params), self._rest, keep=True))
        if self._leaves.logps is not None:
            jax.block_until_ready(self.old_logps(micro_batch))

    def lower(self, micro_batch: MicroBatch) -> jax.stages.Lowered:
        """The leaf of `fwd_bwd` for a micro-batch of this form, lowered, to read what it compiles to; runs nothing."""
        arrays, leaf = self._checked(micro_batch), self._leaves.fwd_bwd
        lowered: jax.stages.Lowered = leaf.lower(self._zeros(self._params), self._params, self._rest, arrays)
        return lowered

    def info(self) -> dict[str, Any]:
        """What the trainer can do and is: host data only, waits for nothing.

        Returns:
          ``capabilities`` (names of optional verbs and features to flags), ``reads`` (arrays that ops must make, as
          the loss's ``reads`` says), ``compiles`` (how often each leaf was traced), ``parameters`` (how many numbers),
          ``parameter_bytes``, ``fingerprint`` (of the parameters' paths, shapes and dtypes).
        """
        capabilities = {
            **self._leaves.makes,
            **dict.fromkeys(("save_checkpoint", "update_token", "stage_before_update", "fused_update"), True),
            "dropless_replay": self._replay is not None,
        }
        facts = {"capabilities": capabilities, "reads": self._reads, "compiles": dict(self._leaves.traces)}
        return {**facts, **sizes(self._params)}

    @property
    def updates_applied(self) -> int:
        """How many updates were applied: the version of the parameters. Waits for the last update."""
        return int(self._applied)

    @property
    def last_update_token(self) -> jax.Array:
        """A scalar that is ready once the last update has landed; nothing donates it."""
        return self._applied

    @property
    def last_call_token(self) -> jax.Array | None:
        """A scalar that is ready once the last training call's work is done; None when all were waited for."""
        return self._waiting[-1] if self._waiting else None

    def params_digest(self) -> str:
        """SHA-256 over the parameters in the order of their sorted paths, with paths, shapes and dtypes; waits."""
        return tree_digest(self._params)

    def _train(
        self, micro_batch: MicroBatch, arrays: dict[str, Any], closes: bool, defer: bool, wait: bool
    ) -> dict[str, Any] | None:
        """One training call, whole or staged."""
        if self._acc is None:
            self._acc = self._zeros(self._params)
        self._add(micro_batch, arrays)
        self._step = micro_batch.step
        while len(self._waiting) > self._in_flight:
            self._waiting.popleft().block_until_ready()
        if not closes:
            return None
        if defer:
            self._boundary.held_step = micro_batch.step
        else:
            self.update()
            if wait:
                self.wait_for_update()
        return {"update_deferred": defer}

    def _add(self, micro_batch: MicroBatch, arrays: dict[str, Any]) -> None:
        """Dispatch a micro-batch; under replay the one before it is settled while this one runs."""
        before = self._new_rest
        dropless = self._replay is not None and self._replay.dropless_last and micro_batch.last
        leaf = self._leaves.dropless if dropless else self._leaves.fwd_bwd
        self._acc, self._new_rest, token, flag = leaf(self._acc, self._params, before, arrays)
        self._waiting.append(token)
        if flag is not None:
            self._unsettled.add(Attempt(named(micro_batch), arrays, before, flag))
        self._settle(keep=int(flag is not None))

    def _settle(self, keep: int = 0) -> None:
        """Read the flags of all attempts but the newest ``keep``, and run again those that dropped tokens."""
        for attempt in self._unsettled.to_replay(keep):
            self._run_again(attempt)

    def _run_again(self, attempt: Attempt) -> None:
        """Add a micro-batch's sums by the program that drops nothing, from its own inputs alone."""
        self._acc, _, token, _ = self._leaves.dropless(self._acc, self._params, attempt.rest, attempt.arrays)
        self._waiting.append(token)

    def _drop_step(self) -> None:
        """Forget what is accumulated."""
        self._acc, self._step = None, None
        self._unsettled.drop()

    def _waited_for(self, seen_by: str) -> float:
        """Wait for the device; a failure is that of the last update, whoever sees it."""
        try:
            return self.wait_for_device()
        except Exception as error:
            last = self._records.last
            step = last.step if last else self._step
            message = f"the optimizer update of step {step} failed on the device; {seen_by} saw it: {error}"
            raise UpdateFailedError(message) from error

    def _checked(self, micro_batch: MicroBatch) -> dict[str, Any]:
        """The arrays for a leaf; a form not seen before is checked, against the loss too, before it compiles."""
        form = signature(micro_batch.arrays)
        if form not in self._signatures:
            check_arrays(micro_batch.arrays, named(micro_batch))
            _, (_, aux, _, _) = self._leaves.forms(self._params, self._rest, dict(micro_batch.arrays))
            self._set_names(tuple(sorted(aux)))
            if self._replay is not None:  # once on nothing, so that the first overflow of a run compiles nothing
                arrays = self._place.batch(micro_batch.arrays)
                self._leaves.dropless(self._zeros(self._params), self._params, self._rest, arrays)
            self._signatures.add(form)
        return self._place.batch(micro_batch.arrays)

    def _set_names(self, names: tuple[str, ...]) -> None:
        """Fix the metrics' names with the first micro-batch; the leaves that depend on them are made then."""
        if self._update is None:
            self._names = names
            self._zeros = self._leaves.zeros(names)
            self._update = self._leaves.update(self._optimizer, names, self._count_skips)
        elif names != self._names:
            raise LossError(f"the loss reports {', '.join(names)}, and reported {', '.join(self._names)} before")

    def _apply_update(self, acc: Any, new_rest: Any, *, keep: bool = False) -> jax.Array:
        """Run the update leaf on the trainer's state; gives the record."""
        out = self._update(self._params, self._state, acc, self._rest, new_rest, self._applied)
        self._params, self._state, self._applied, self._rest = out.params, out.optimizer, out.applied, out.rest
        if not keep:
            self._acc, self._new_rest = out.acc, out.rest
        record: jax.Array = out.record
        return record

    def _saved(self) -> dict[str, Any]:
        """All state that a checkpoint holds."""
        return {"params": self._params, "optimizer": self._state, "rest": self._rest, "applied": self._applied}
