"""What the ops that call the trainer do in virtual time: the same decisions as `steptrace.run.training_calls`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from steptrace.diag.running import EmptyStepError
from steptrace.simulate.instance import Instance, Work

LOST = (ConnectionError, TimeoutError)
"""What says that a micro-batch did not reach the trainer, as against a failure of the trainer itself."""


def _micro_batch(at: Instance) -> Any:
    (value,) = at.args
    assert value is not None, f"`{at.op.id}` runs with a micro-batch"
    return value.it


def _old_logps(at: Instance) -> Work:
    micro_batch = _micro_batch(at)
    at.state.training.calls.append(f"old_logps {micro_batch.step}.{micro_batch.index}")
    yield from at.state.trainer.old_logps(at, micro_batch)
    return (micro_batch,)


def _fwd_bwd(at: Instance) -> Work:
    micro_batch = _micro_batch(at)
    yield from _train(at, micro_batch, lambda **how: at.state.trainer.fwd_bwd(at, micro_batch, **how))
    return ()


def _fwd_bwd_staged(at: Instance) -> Work:
    training = at.state.training
    assert training.staged is not None, "what runs staged was staged before"
    (request, micro_batch), training.staged = training.staged, None
    yield from _train(at, micro_batch, lambda **how: at.state.trainer.fwd_bwd_staged(at, request, **how))
    return ()


def _settle(at: Instance) -> Work:
    """Nothing: a trainer that may drop tokens reads a call's flag during the next one, the last one's in the update."""
    yield 0.0
    return ()


def _train(at: Instance, micro_batch: Any, call: Callable[..., Work]) -> Work:
    """One training call; the step's last one also closes it, as far as the trainer can."""
    state, training = at.state, at.state.training
    training.calls.append(f"fwd_bwd {micro_batch.step}.{micro_batch.index}")
    closes = at.op.attr("closes") if micro_batch.last else None
    if closes == "defer" and state.defers:
        made = yield from call(apply_optimizer=True, defer_update=True)
        training.held = isinstance(made, Mapping) and bool(made.get("update_deferred"))
        training.done = not training.held
    elif closes == "update" and state.fuses:
        yield from call(apply_optimizer=True, wait_for_update=False)
        training.done = True
    else:
        yield from call()
    training.pending += 1
    training.trained[at.step] = training.trained.get(at.step, 0) + 1
    if closes == "update":
        yield from _close(at)


def _close(at: Instance) -> Work:
    """Make the step's update, unless a call has made it."""
    training, trainer = at.state.training, at.state.trainer
    training.calls.append("update")
    if training.held:
        made = yield from trainer.apply_deferred_update(at)
        if training.staged is not None:
            _latch(at, at.step, made)
    elif not training.done:
        yield from trainer.update(at)
    training.held = training.done = False
    training.updated = True
    training.pending = 0


def _update(at: Instance) -> Work:
    if at.state.training.pending:
        yield from _close(at)
    else:
        _skip(at)
    return ()


def _skip(at: Instance) -> None:
    """A step without a micro-batch: no update on nothing."""
    if at.state.plan.program.contract.empty == "error":
        raise EmptyStepError(f"`{at.op.id}` of step {at.step} has no micro-batch to update on", loc=at.op.loc)


def _stage(at: Instance) -> Work:
    """Ship a micro-batch if it is there, and if shipping is on."""
    training = at.state.training
    (value,) = at.args
    if not _there(at) or not training.staging or at.state.ways[at.op.id] == "never":
        return None, False
    assert value is not None, "a micro-batch that is there"
    try:
        request = yield from at.state.trainer.stage_fwd_bwd(at, value.it)
    except LOST as error:
        training.stop_staging(at.step, f"a micro-batch did not reach the trainer: {error}")
        return None, False
    training.staged = (request, value.it)
    training.stages.append(at.step)
    if training.updated:
        _latch(at, at.step - 1, request)
    return request, True


def _there(at: Instance) -> bool:
    """Whether the operand is there: the work that makes it is done by now."""
    (value,) = at.args
    return value is not None and value.it is not None and value.ready <= at.now


def _latch(at: Instance, border: int, told: Any) -> None:
    """Switch staging off once the device was idle when a micro-batch was in place: nothing was hidden behind it."""
    wait = told.get("device_wait_s") if isinstance(told, Mapping) else None
    if not isinstance(wait, int | float):
        return
    training = at.state.training
    training.waits[border] = float(wait)
    if wait < at.state.setting.latch_s:
        if training.staging:
            training.latched = border
        training.stop_staging(at.step, f"the device had {wait:.3g} s left to do, so shipping was not hidden")


def _poll(at: Instance) -> Work:
    yield 0.0
    return (_there(at),)


def _note_unclosed(at: Instance) -> None:
    """Where the last training call closes the step, a step without one is seen when its metrics are asked for."""
    if at.state.closing and not at.state.training.trained.get(at.step):
        _skip(at)


def _get_metrics(at: Instance) -> Work:
    _note_unclosed(at)
    metrics = yield from at.state.trainer.get_metrics(at)
    return (metrics,)


def _start_metrics(at: Instance) -> Work:
    _note_unclosed(at)
    trainer = at.state.trainer
    if at.state.ways[at.op.id] == "set-aside":
        at.state.asides["metrics", at.step] = yield from trainer.start_metrics(at)
    else:
        at.state.asides["metrics", at.step] = yield from trainer.get_metrics(at)
    return ()


def _fetch_metrics(at: Instance) -> Work:
    aside = at.state.asides.pop(("metrics", at.step))
    if at.state.ways[at.op.id] == "fetch":
        aside = yield from at.state.trainer.fetch_metrics(at, aside)
    return (aside,)


def _sync_weights(at: Instance) -> Work:
    _, version = yield from at.state.trainer.weights(at)
    return (version,)


def _copy_weights(at: Instance) -> Work:
    trainer = at.state.trainer
    _, version = yield from (trainer.copy_weights(at) if at.state.ways[at.op.id] == "copy" else trainer.weights(at))
    return (version,)


def _save_checkpoint(at: Instance) -> Work:
    yield from at.state.trainer.save_checkpoint(at)
    return ()


def _snapshot_checkpoint(at: Instance) -> Work:
    trainer = at.state.trainer
    if at.state.ways[at.op.id] == "copy":
        at.state.asides["snapshot", at.step] = yield from trainer.snapshot_checkpoint(at)
    else:
        yield from trainer.save_checkpoint(at)
    return ()


def _write_checkpoint(at: Instance) -> Work:
    if at.state.ways[at.op.id] == "write":
        yield from at.state.trainer.write_checkpoint(at, at.state.asides.pop(("snapshot", at.step)))
    return ()


TRAINING: Mapping[str, Callable[[Instance], Work]] = MappingProxyType(
    {
        "old_logps": _old_logps,
        "fwd_bwd": _fwd_bwd,
        "fwd_bwd_staged": _fwd_bwd_staged,
        "attempt_fwd_bwd": _fwd_bwd,
        "attempt_staged": _fwd_bwd_staged,
        "settle": _settle,
        "stage_fwd_bwd": _stage,
        "poll_packed": _poll,
        "update": _update,
        "apply_deferred_update": _update,
        "get_metrics": _get_metrics,
        "start_metrics": _start_metrics,
        "fetch_metrics": _fetch_metrics,
        "sync_weights": _sync_weights,
        "copy_weights": _copy_weights,
        "save_checkpoint": _save_checkpoint,
        "snapshot_checkpoint": _snapshot_checkpoint,
        "write_checkpoint": _write_checkpoint,
    }
)
"""What carries out each kind of op that calls the trainer."""
