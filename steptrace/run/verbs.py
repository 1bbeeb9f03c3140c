"""What each built-in op does when its turn comes: one function per row of the op table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from steptrace.diag.running import EmptyStepError, PartialStepError
from steptrace.lang.records import Group, MicroBatch
from steptrace.run.borders import checked_completions, checked_logps, same_groups
from steptrace.run.data.advantages import GlobalNormalized, GroupAdvantages, LeaveOneOut
from steptrace.run.data.rewards import score
from steptrace.run.manifest import append_trained, save_run
from steptrace.run.rng import key_for
from steptrace.run.session import At, Session, _int

Results: TypeAlias = tuple[Any, ...] | None
"""Values of an op's results in order; None from the head of a loop that has no further item."""

ADVANTAGES: Mapping[str, Callable[[list[Group]], list[Group]]] = MappingProxyType(
    {
        "grpo": GroupAdvantages(),
        "dr_grpo": GroupAdvantages(std=False),
        "rloo": LeaveOneOut(),
        "reinforce_pp": GlobalNormalized(),
    }
)
"""The estimators that a program can name."""


def _on_step_begin(run: Session, at: At) -> Results:
    for callback in run.parts.callbacks:
        begin = getattr(callback, "on_step_begin", None)
        if begin is not None:
            begin(at.step)
    return ()


def _on_step_end(run: Session, at: At) -> Results:
    metrics = dict(run.step_memory(at.step).metrics)
    for callback in run.parts.callbacks:
        end = getattr(callback, "on_step_end", None)
        if end is not None:
            end(at.step, metrics)
    return ()


def _dispatch(run: Session, at: At) -> Results:
    assert run.draws is not None, "a program that dispatches has prompts bound"
    count, samples = _int(at.op.attr("prompts")), _int(at.op.attr("samples"))
    contract = run.plan.program.contract
    drawn, cursor = run.draws.draw(run.cursor, count)
    if len(drawn) < count and contract.partial == "error":
        raise PartialStepError(f"step {at.step} gets {len(drawn)} of {count} prompts: the data ended", loc=at.op.loc)
    source = max(at.step - 1 - contract.staleness, -1) if contract.weights == "pinned" else run.board.newest()
    version = run.board.version(source)
    run.board.forget_before(source)
    run.cursor = cursor
    run.step_memory(at.step).cursor = cursor
    run.queue.expect(at.step, [name for name, _ in drawn])
    prompts = [prompt for _, prompt in drawn]
    made = run.parts.rollout.generate(prompts, samples, version=version, key=key_for(run.seed, at.op.id, at.step))
    for (name, prompt), completions in zip(drawn, checked_completions(made, prompts, samples, at), strict=True):
        tokens = run.parts.tokenizer.encode(prompt.text)
        run.queue.put(at.step, Group(name, at.step, prompt, tokens, completions, version))
    return ()


def _take(run: Session, at: At) -> Results:
    groups = run.queue.take(at.step, timeout_s=0.0 if run.plan.target.name == "inline" else None)
    if groups is None:
        return [], False
    run.step_memory(at.step).taken += [group.id for group in groups]
    return list(groups), True


def _reward(run: Session, at: At, groups: list[Group]) -> Results:
    scored = score(run.parts.reward, groups)
    run.note_groups(at.step, scored)
    return (scored,)


def _advantages(run: Session, at: At, groups: list[Group]) -> Results:
    estimate = run.parts.advantages or ADVANTAGES[str(at.op.attr("estimator"))]
    return (same_groups(estimate(groups), groups, at),)


def _pack(run: Session, at: At, groups: list[Group]) -> Results:
    return (run.parts.packer.pack(groups, step=at.step),)


def _next_mb(run: Session, at: At, batch: list[MicroBatch]) -> Results:
    if at.item >= len(batch):
        return None
    return batch[at.item], batch[at.item].last


def _stream_mb(run: Session, at: At) -> Results:
    memory = run.step_memory(at.step)
    if memory.stream is None:
        memory.stream = _stream(run, at)
    micro_batch = next(memory.stream, None)
    if micro_batch is None:
        memory.stream = None
        return None
    return micro_batch, micro_batch.last, True


def _stream(run: Session, at: At) -> Iterator[MicroBatch]:
    """Micro-batches of a step, each given out as soon as it is full."""
    result = _take(run, at)
    assert result is not None, "take always gives its results"
    stream = run.parts.packer.stream(at.step)
    for group in result[0]:
        scored = _reward(run, at, [group])
        assert scored is not None, "reward always gives its results"
        estimated = _advantages(run, at, scored[0])
        assert estimated is not None, "advantages always gives its results"
        yield from stream.add(estimated[0][0])
    yield from stream.close()


def _next_part(run: Session, at: At, groups: list[Group]) -> Results:
    parts = _int(at.op.attr("parts"))
    if at.item >= parts:
        return None
    bounds = [len(groups) * part // parts for part in (at.item, at.item + 1)]
    return (groups[bounds[0] : bounds[1]],)


def _ref_logps(run: Session, at: At, micro_batch: MicroBatch) -> Results:
    logps = checked_logps(run.parts.reference.logps(micro_batch), micro_batch, "reference", at)
    return (micro_batch.with_array("ref_logps", logps),)


def _old_logps(run: Session, at: At, micro_batch: MicroBatch) -> Results:
    run.calls.record("old_logps", micro_batch)
    logps = checked_logps(run.parts.trainer.old_logps(micro_batch), micro_batch, "trainer", at)
    return (micro_batch.with_array("old_logps", logps),)


def _fwd_bwd(run: Session, at: At, micro_batch: MicroBatch) -> Results:
    run.calls.record("fwd_bwd", micro_batch)
    run.parts.trainer.fwd_bwd(micro_batch)
    run.pending_fwd_bwd += 1
    stats = run.step_memory(at.step).stats
    stats["micro_batches"] = stats.get("micro_batches", 0.0) + 1
    return ()


def _update(run: Session, at: At) -> Results:
    if run.pending_fwd_bwd:
        run.calls.record("update")
        run.parts.trainer.update()
        run.pending_fwd_bwd = 0
        return ()
    if run.plan.program.contract.empty == "error":
        raise EmptyStepError(f"step {at.step} has no micro-batch to update on", loc=at.op.loc)
    stats = run.step_memory(at.step).stats
    stats["empty_updates"] = stats.get("empty_updates", 0.0) + 1
    return ()


def _get_metrics(run: Session, at: At) -> Results:
    fetched = {name: float(value) for name, value in run.parts.trainer.get_metrics().items()}
    run.calls.settle()
    memory = run.step_memory(at.step)
    memory.metrics = {**_rollout_figures(run, at.step), **fetched, "step": float(at.step)}
    return (memory.metrics,)


def _rollout_figures(run: Session, step: int) -> dict[str, float]:
    stats = run.step_memory(step).stats
    samples = max(stats.get("samples", 0.0), 1.0)
    figures = {
        name: stats.get(name, 0.0)
        for name in ("groups", "micro_batches", "completion_tokens", "groups_of_equal_rewards", "empty_updates")
    }
    figures["reward"] = stats.get("reward_sum", 0.0) / samples
    figures["finished"] = stats.get("finished", 0.0) / samples
    return figures


def _save_checkpoint(run: Session, at: At) -> Results:
    run.calls.settle()
    save_run(run, at.step)
    return ()


def _sync_weights(run: Session, at: At) -> Results:
    weights, version = run.parts.trainer.weights()
    run.board.publish(at.step, weights, int(version))
    return (int(version),)


def _commit(run: Session, at: At) -> Results:
    ids = run.queue.commit(at.step)
    run.note_trained(ids)
    if run.out is not None:
        append_trained(run.out, at.step, ids)
    return ()


def _log(run: Session, at: At, metrics: dict[str, float]) -> Results:
    record = {**metrics, "step": float(at.step)}
    run.records.append(record)
    for tracker in run.parts.trackers:
        tracker.log(at.step, record)
    return ()


def _free(run: Session, at: At) -> Results:
    run.memory.pop(at.step, None)
    return ()


Verb: TypeAlias = Callable[..., Results]

VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "on_step_begin": _on_step_begin,
        "dispatch": _dispatch,
        "take": _take,
        "reward": _reward,
        "advantages": _advantages,
        "pack": _pack,
        "next_mb": _next_mb,
        "stream_mb": _stream_mb,
        "next_part": _next_part,
        "ref_logps": _ref_logps,
        "old_logps": _old_logps,
        "fwd_bwd": _fwd_bwd,
        "update": _update,
        "get_metrics": _get_metrics,
        "save_checkpoint": _save_checkpoint,
        "sync_weights": _sync_weights,
        "commit": _commit,
        "log": _log,
        "on_step_end": _on_step_end,
        "free": _free,
    }
)
"""The implementation of each built-in kind."""
