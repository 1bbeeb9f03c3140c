"""What the ops that call the trainer do: training calls whole, staged or closing a step, updates, metrics, weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from steptrace.diag.running import EmptyStepError
from steptrace.ir import Op
from steptrace.lang.records import MicroBatch
from steptrace.lower import Call
from steptrace.run.borders import checked_logps, checked_metrics, checked_weights
from steptrace.run.instance import At
from steptrace.run.remote.hosted import told
from steptrace.run.remote.part import RemotePart, fetched
from steptrace.run.session import Session

Results: TypeAlias = tuple[Any, ...]

LOST = (ConnectionError, TimeoutError)
"""What says that a call got lost on the way, as against a failure of the part that was called."""


def _old_logps(run: Session, at: At, micro_batch: MicroBatch) -> Results:
    run.calls.record("old_logps", micro_batch)
    logps = checked_logps(run.parts.trainer.old_logps(micro_batch), micro_batch, "trainer", at)
    return (micro_batch.with_array("old_logps", logps),)


def _fwd_bwd(run: Session, at: At, micro_batch: MicroBatch) -> Results:
    run.calls.record("fwd_bwd", micro_batch)
    call = run.parts.trainer.fwd_bwd
    _train(run, at, micro_batch, lambda **how: call(micro_batch, **how))
    return ()


def _fwd_bwd_staged(run: Session, at: At, request: Any) -> Results:
    assert run.staged is not None, "what runs staged was staged before"
    (_, micro_batch), run.staged = run.staged, None
    run.calls.record("fwd_bwd", micro_batch)
    call = run.parts.trainer.fwd_bwd_staged
    _train(run, at, micro_batch, lambda **how: call(request, **how))
    return ()


def _settle(run: Session, at: At, micro_batch: MicroBatch) -> Results:
    """Nothing: a trainer that may drop tokens reads a call's flag during the next one, the last one's in the update."""
    return ()


def _release(run: Session, at: At, micro_batch: MicroBatch) -> Results:
    """Let the parts that read a micro-batch where it lies say when they are done with it; the memory is free then."""
    if run.way(at.op) == "return":
        for part in (run.parts.reference, run.parts.trainer):
            give_back = getattr(part, "release", None)
            if callable(give_back):
                give_back(micro_batch)
    return ()


def _train(run: Session, at: At, micro_batch: MicroBatch, call: Callable[..., Any]) -> None:
    """One training call; the step's last one also closes it, as far as the trainer can."""
    closes = at.op.attr("closes") if micro_batch.last else None
    if closes == "defer" and run.defers:
        made = call(apply_optimizer=True, defer_update=True)
        run.update_held = bool(told(made, "update_deferred"))
        run.update_done = not run.update_held
    elif closes == "update" and run.fuses:
        call(apply_optimizer=True, wait_for_update=False)
        run.update_done = True
    else:
        call()
    run.pending_fwd_bwd += 1
    run.step_memory(at.step).count("micro_batches", 1.0)
    if closes == "update":
        _close(run, at.step)


def _close(run: Session, step: int) -> None:
    """Make the step's update, unless a call has made it."""
    run.calls.record("update")
    if run.update_held:
        made = run.parts.trainer.apply_deferred_update()
        if run.staged is not None:  # a stage in front of a held update waits for nothing, so this wait tells
            _latch(run, step, made)
    elif not run.update_done:
        run.parts.trainer.update()
    run.update_held = run.update_done = False
    run.updated = True
    run.pending_fwd_bwd = 0


def _update(run: Session, at: At) -> Results:
    if run.pending_fwd_bwd:
        _close(run, at.step)
    else:
        _skip(run, at.op, at.step)
    return ()


def _skip(run: Session, op: Op, step: int) -> None:
    """A step without a micro-batch: no update on nothing."""
    if run.plan.program.contract.empty == "error":
        raise EmptyStepError(f"`{op.id}` of step {step} has no micro-batch to update on", loc=op.loc)
    run.step_memory(step).count("empty_updates", 1.0)


def _stage(run: Session, at: At, micro_batch: MicroBatch | None) -> Results:
    """Ship a micro-batch if it is there, and if shipping is on: it is off for good once one did not arrive."""
    if micro_batch is None or not run.staging or run.way(at.op) == "never":
        return None, False
    try:
        request = run.parts.trainer.stage_fwd_bwd(micro_batch)
    except LOST as error:
        run.stop_staging(at.step, f"a micro-batch did not reach the trainer: {error}")
        return None, False
    run.staged = (request, micro_batch)
    if run.updated:  # in front of the first step of a run the device has nothing to do, and that tells nothing
        _latch(run, at.step, request)
    return request, True


def _latch(run: Session, step: int, made: Any) -> None:
    """Switch staging off once the device was idle when a micro-batch was in place: nothing was hidden behind it."""
    wait = told(made, "device_wait_s")
    if isinstance(wait, int | float) and wait < run.stage_latch_s:
        run.stop_staging(step, f"the device had {wait * 1e3:.3g} ms left to do, so shipping was not hidden")


def _poll(run: Session, at: At, micro_batch: MicroBatch | None) -> Results:
    return (micro_batch is not None,)


def _get_metrics(run: Session, at: At) -> Results:
    _note_unclosed(run, at)
    return (_fetched(run, at, run.parts.trainer.get_metrics()),)


def _start_metrics(run: Session, at: At) -> Results:
    _note_unclosed(run, at)
    if run.way(at.op) == "set-aside":
        memory = run.step_memory(at.step)
        memory.record, memory.aside = run.parts.trainer.start_metrics(), True
    else:
        _fetched(run, at, run.parts.trainer.get_metrics())
    return ()


def _fetch_metrics(run: Session, at: At) -> Results:
    memory = run.step_memory(at.step)
    if memory.aside:
        record, memory.record, memory.aside = memory.record, None, False
        _fetched(run, at, run.parts.trainer.fetch_metrics(record))
    return (memory.metrics,)


def _note_unclosed(run: Session, at: At) -> None:
    """Where the last training call closes the step, a step without one is seen when its metrics are asked for."""
    closing = run.closing
    if closing is not None and not run.step_memory(at.step).stats.get("micro_batches"):
        _skip(run, closing, at.step)


def _fetched(run: Session, at: At, made: Any) -> dict[str, float]:
    fetched = checked_metrics(made, "the trainer's get_metrics()", at)
    run.calls.settle()
    memory = run.step_memory(at.step)
    memory.metrics = {**_rollout_figures(memory.stats), **fetched, "step": float(at.step)}
    memory.fetched = True
    return memory.metrics


def fetch_early(run: Session, step: int) -> None:
    """Have the step's metrics on the host, where a schedule would fetch them later: a checkpoint holds them.

    Where the step saves before it asks for its metrics, a checkpoint holds none.
    """
    memory = run.memory.get(step)
    for call in run.plan.body:
        started = memory is not None and (memory.aside or memory.fetched)
        if started and isinstance(call, Call) and call.kind.name == "fetch_metrics":
            (metrics,) = _fetch_metrics(run, At(call.op, step))
            run.frames.put(call.op.results[0].name, step, metrics)


def _rollout_figures(stats: Mapping[str, float]) -> dict[str, float]:
    """What the log is told of a step's rollouts."""
    samples = max(stats.get("samples", 0.0), 1.0)
    figures = {
        name: stats.get(name, 0.0)
        for name in (
            "groups",
            "micro_batches",
            "completion_tokens",
            "groups_of_equal_rewards",
            "empty_updates",
            "rollout_version",
        )
    }
    figures["reward"] = stats.get("reward_sum", 0.0) / samples
    figures["finished"] = stats.get("finished", 0.0) / samples
    return figures


def _sync_weights(run: Session, at: At) -> Results:
    weights, version = checked_weights(run.parts.trainer.weights(), at)
    run.board.publish(at.step, weights, version)
    return (version,)


def _copy_weights(run: Session, at: At) -> Results:
    """Copy the weights; in another process that is not waited for, unless something reads the version."""
    trainer, copies = run.parts.trainer, run.way(at.op) == "copy"
    if copies and isinstance(trainer, RemotePart) and not run.reads(at.op):
        run.copying[at.step] = at, trainer.begin_copy_weights()
        return (None,)
    weights, version = checked_weights(trainer.copy_weights() if copies else trainer.weights(), at)
    run.copied[at.step] = (weights, version)
    return (version,)


def know_copy(run: Session, step: int) -> None:
    """Wait for the copy of a step's weights, where it is under way in another process."""
    if step in run.copying:
        at, coming = run.copying[step]
        run.copied[step] = checked_weights(coming.told(), at)
        del run.copying[step]


def _transfer_weights(run: Session, at: At) -> Results:
    """Bring the copy here from the trainer's process; nothing where that is this one: the copy is the rollout's."""
    if run.way(at.op) == "sent":
        weights, version = run.copied[at.step]
        run.copied[at.step] = (fetched(weights), version)
    return ()


def _apply_weights(run: Session, at: At) -> Results:
    weights, version = run.copied[at.step]
    run.board.publish(at.step, weights, version)
    return ()


TRAINING: Mapping[str, Callable[..., Results]] = MappingProxyType(
    {
        "old_logps": _old_logps,
        "fwd_bwd": _fwd_bwd,
        "update": _update,
        "get_metrics": _get_metrics,
        "sync_weights": _sync_weights,
    }
)
"""Ops of a step as its author writes it."""

PARTS: Mapping[str, Callable[..., Results]] = MappingProxyType(
    {
        "stage_fwd_bwd": _stage,
        "poll_packed": _poll,
        "fwd_bwd_staged": _fwd_bwd_staged,
        "attempt_fwd_bwd": _fwd_bwd,
        "attempt_staged": _fwd_bwd_staged,
        "settle": _settle,
        "release": _release,
        "apply_deferred_update": _update,
        "start_metrics": _start_metrics,
        "fetch_metrics": _fetch_metrics,
        "copy_weights": _copy_weights,
        "transfer_weights": _transfer_weights,
        "apply_weights": _apply_weights,
    }
)
"""Parts that laws split ops into."""
