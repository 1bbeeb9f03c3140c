"""What each op does in virtual time that does not call the trainer: data comes, values are handed on, time passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from steptrace.simulate.instance import Instance, Work
from steptrace.simulate.state import MicroBatch, Value
from steptrace.simulate.training import TRAINING


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a step's groups: mini-batch ``index`` of ``count``."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class _Batch:
    """A packed step, or part of one: its micro-batches."""

    micro_batches: tuple[MicroBatch, ...]


def perform(at: Instance) -> Work:
    """Carry an instance out; returns its values, or None from the head of a loop that has no further item."""
    state, kind = at.state, at.call.kind
    if not kind.polls and state.ways[at.op.id] != "in-trainer":
        yield at.until(state.ledger.awaited(at.op, at.step))
    made = yield from RULES.get(kind.name, _other)(at)
    done = at.now if at.done is None else at.done
    state.ledger.note(at.op, at.step, done)
    if kind.reads_buffer:
        state.read(at.step, at.micro or 0, done)
    return None if made is None else tuple(Value(it, done) for it in made)


def _other(at: Instance) -> Work:
    """An op as its row has it: on its lane, or sent off to a device, and waited for where the call blocks."""
    kind = at.call.kind
    if kind.device:
        yield at.cost.issue_s
        done = at.send(after=at.ship())
        if kind.blocking:
            yield at.until(done)
    else:
        yield at.until(at.operands_ready())
        yield at.cost.issue_s + at.cost.work_s
    return tuple(_handed_on(at, given.base, given.name) for given in kind.results)


def _handed_on(at: Instance, base: str, name: str) -> object:
    """What a result is: a flag as the run was told, else the operand that it was made from."""
    if base == "flag":
        decide = at.state.setting.flags.get(_result(at, name))
        return True if decide is None else decide(at.step, at.micro or 0)
    for operand, value in zip(at.call.kind.operands, at.args, strict=False):
        if operand.base == base and value is not None:
            return value.it
    return None


def _result(at: Instance, given: str) -> str:
    """The name that a result of the row has in the program."""
    for row, result in zip(at.call.kind.results, at.op.results, strict=True):
        if row.name == given:
            return result.name
    raise AssertionError(f"`{at.op.id}` has no result {given}")


def _dispatch(at: Instance) -> Work:
    """Generation is under way from here on."""
    yield at.cost.issue_s
    service = at.state.service
    if service is None:
        end = at.send(after=at.ship())
        at.state.generated[at.step] = (end - at.cost.work_s, end)
    else:
        at.state.generated[at.step] = at.serve(service, after=at.ship())
    return ()


def _arrival(at: Instance, share: float) -> float:
    """When that share of the step's groups is there; at once where the program dispatches nothing."""
    state = at.state
    if at.step not in state.generated:
        return state.setting.feed.arrived(at.step, share, at.now, at.now)
    if state.service is not None:
        return state.service.arrived(at.step, share)
    return state.setting.feed.arrived(at.step, share, *state.generated[at.step])


def _take(at: Instance) -> Work:
    yield at.until(_arrival(at, 1.0))
    yield at.cost.issue_s + at.cost.work_s
    return None if len(at.call.writes) > 2 else (True,) * len(at.call.writes)


def _stream_mb(at: Instance) -> Work:
    """Groups come evenly, and so do the micro-batches that are packed from them."""
    count, index = at.state.setting.counts.of(at.step), at.rounds[-1]
    share = 1.0 if index >= count else (index + 1) / count
    yield at.until(_arrival(at, share))
    if index >= count:
        return None
    yield at.cost.issue_s + at.cost.work_s
    return MicroBatch(at.step, index, index + 1 == count), index + 1 == count, True


def _next_part(at: Instance) -> Work:
    assert at.count is not None, "a loop over mini-batches says how many there are"
    yield at.cost.issue_s + at.cost.work_s
    return (_Part(at.rounds[-1], at.count),)


def _pack(at: Instance) -> Work:
    (groups,) = at.args
    assert groups is not None, "groups are packed once they are there"
    yield at.until(groups.ready)
    yield at.cost.issue_s + at.cost.work_s
    count = at.state.setting.counts.of(at.step)
    part = groups.it if isinstance(groups.it, _Part) else _Part(0, 1)
    first, end = (count * border // part.count for border in (part.index, part.index + 1))
    return (_Batch(tuple(MicroBatch(at.step, index, index + 1 == end) for index in range(first, end))),)


def _next_mb(at: Instance) -> Work:
    (batch,) = at.args
    assert batch is not None, "micro-batches are made once the step is packed"
    yield at.until(batch.ready)
    index, packed = at.rounds[-1], batch.it.micro_batches
    if index >= len(packed):
        return None
    yield at.cost.issue_s + at.cost.work_s
    return packed[index], packed[index].last


def _release(at: Instance) -> Work:
    """A buffer is given back once all that reads it is done."""
    assert at.state.buffers is not None, "buffers are given back here"
    yield at.until(at.state.buffers.pop((at.step, at.micro or 0), 0.0))
    yield at.cost.issue_s + at.cost.work_s
    return ()


RULES: Mapping[str, Callable[[Instance], Work]] = MappingProxyType(
    {
        **TRAINING,
        "dispatch": _dispatch,
        "take": _take,
        "stream_mb": _stream_mb,
        "next_part": _next_part,
        "pack": _pack,
        "next_mb": _next_mb,
        "release": _release,
    }
)
"""What carries out each kind of op that is not carried out as its row says."""
