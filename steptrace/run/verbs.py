"""What each built-in op does when its turn comes: one function per row of the op table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from steptrace.diag.binding import PartResultError
from steptrace.lang.records import Group, MicroBatch
from steptrace.run.borders import (
    checked_logps,
    described,
    is_groups,
    same_groups,
)
from steptrace.run.data.advantages import GlobalNormalized, GroupAdvantages, LeaveOneOut
from steptrace.run.data.rewards import score
from steptrace.run.dispatching import dispatch, take_groups
from steptrace.run.instance import At
from steptrace.run.manifest import save_run, saving
from steptrace.run.session import Session
from steptrace.run.store import append_trained
from steptrace.run.training_calls import LOST, PARTS, TRAINING

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
    metrics = run.step_memory(at.step).metrics
    for callback in run.parts.callbacks:
        end = getattr(callback, "on_step_end", None)
        if end is not None:
            end(at.step, dict(metrics))
    return ()


def _take(run: Session, at: At) -> Results:
    return take_groups(run, at), True


def _reward(run: Session, at: At, groups: list[Group]) -> Results:
    return (_scored(run, at, groups),)


def _scored(run: Session, at: At, groups: list[Group]) -> list[Group]:
    scored = score(run.parts.reward, groups)
    run.note_groups(at.step, scored)
    return scored


def _advantages(run: Session, at: At, groups: list[Group]) -> Results:
    return (_estimated(run, at, groups),)


def _estimated(run: Session, at: At, groups: list[Group]) -> list[Group]:
    estimate = run.parts.advantages or ADVANTAGES[str(at.op.attr("estimator"))]
    made = estimate(groups)
    if not is_groups(made):
        raise PartResultError(f"the advantages returned {described(made)}, not a list of groups", loc=at.op.loc)
    return same_groups(made, groups, at)


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
    groups = take_groups(run, at)
    stream = run.parts.packer.stream(at.step)
    for group in groups:
        for estimated in _estimated(run, at, _scored(run, at, [group])):
            yield from stream.add(estimated)
    yield from stream.close()


def _next_part(run: Session, at: At, groups: list[Group]) -> Results:
    assert at.count is not None, "a loop over mini-batches says how many there are"
    first, end = (len(groups) * part // at.count for part in (at.item, at.item + 1))
    return (groups[first:end],)


def _ref_logps(run: Session, at: At, micro_batch: MicroBatch) -> Results:
    try:
        made = run.parts.reference.logps(micro_batch)
    except LOST as error:
        if not _shipped(run, at):
            raise
        # Lost for a micro-batch that is shipped ahead: it is asked for again, and sent whole in its own step.
        run.stop_staging(at.step, f"the reference's log-probs of a micro-batch did not come: {error}")
        made = run.parts.reference.logps(micro_batch)
    return (micro_batch.with_array("ref_logps", checked_logps(made, micro_batch, "reference", at)),)


def _shipped(run: Session, at: At) -> bool:
    """Whether an op makes what is shipped to the trainer ahead of its step, and that is not off yet."""
    ahead = at.op.micro is not None and at.op.shift > 0
    return run.staging and ahead and any(op.kind == "stage_fwd_bwd" for op in run.plan.program.ops())


def _save_checkpoint(run: Session, at: At) -> Results:
    run.calls.settle()
    save_run(run, at.step, _behind(run, at))
    return ()


def _behind(run: Session, at: At) -> str:
    """The op of the program as written that a resumed run goes on behind; "" for a save behind the last step."""
    assert at.op.origin is not None, "every op has an origin"
    return at.op.origin.op if any(node is at.op for node in run.plan.program.body) else ""


def _snapshot_checkpoint(run: Session, at: At) -> Results:
    run.calls.settle()
    run.saves[at.step] = saving(run, at.step, _behind(run, at), copied=run.way(at.op) == "copy")
    next(run.saves[at.step], None)
    return ()


def _write_checkpoint(run: Session, at: At) -> Results:
    next(run.saves.pop(at.step), None)
    return ()


def _commit(run: Session, at: At) -> Results:
    # The queue of a resumed run counts the saved step's groups already: they are gone, and only their ids were kept.
    counted = at.step < run.queue.training_cursor
    ids = (
        tuple(run.step_memory(at.step).taken) if counted else run.queue.commit(at.step, behind=_behind_at(run, at.step))
    )
    run.committed = at.step + 1
    run.note_trained(ids)
    if run.out is not None:
        append_trained(run.out, at.step, ids)
    return ()


def _behind_at(run: Session, step: int) -> Callable[[int], int]:
    """How many versions were published since a version at the place of a step, whatever was published by now."""
    return lambda version: run.board.published_since(version, step - 1)


def _log(run: Session, at: At, metrics: dict[str, float]) -> Results:
    record = {**metrics, "step": float(at.step)}
    run.records.append(record)
    run.logged.append((at.step, record))
    for tracker in run.parts.trackers:
        tracker.log(at.step, dict(record))
    return ()


def _free(run: Session, at: At) -> Results:
    run.memory.pop(at.step, None)
    return ()


Verb: TypeAlias = Callable[..., Results]

VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "on_step_begin": _on_step_begin,
        "dispatch": dispatch,
        "take": _take,
        "reward": _reward,
        "advantages": _advantages,
        "pack": _pack,
        "next_mb": _next_mb,
        "stream_mb": _stream_mb,
        "next_part": _next_part,
        "ref_logps": _ref_logps,
        "save_checkpoint": _save_checkpoint,
        "commit": _commit,
        "log": _log,
        "on_step_end": _on_step_end,
        "free": _free,
        **TRAINING,
    }
)
"""The implementation of each built-in kind that stands in a step as its author writes it."""

PART_VERBS: Mapping[str, Verb] = MappingProxyType(
    {**PARTS, "snapshot_checkpoint": _snapshot_checkpoint, "write_checkpoint": _write_checkpoint}
)
"""The implementation of each part that laws split ops into."""
