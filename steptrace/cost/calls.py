"""What a call does, as events: on its lane, on the link, on its device, and what its caller waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from steptrace.cost.machine import Value
from steptrace.cost.moments import Moment, Name, Send
from steptrace.lower import Call
from steptrace.simulate import LINK, TRAINER, Cost

if TYPE_CHECKING:
    from steptrace.cost.walk import LaneWalk

Made = tuple[object, ...] | None


class Instance:
    """One instance of an op, on its lane.

    Args:
      lane: the lane.
      call: the op.
      step: its step.
      args: its operands, None for what is not made.
    """

    def __init__(self, lane: LaneWalk, call: Call, step: int, args: tuple[Value | None, ...]) -> None:
        self.lane, self.call, self.step, self.args = lane, call, step, args
        self.machine = lane.machine
        self.micro = lane.rounds[-1] if lane.rounds else None
        self.cost = self.machine.durations.of(call.op, step, self.micro or 0)
        self.done: Moment | None = None
        self._part = 0

    def carried_out(self) -> tuple[Value, ...] | None:
        """Carry it out; gives its values, None from the head of a loop that has no further item."""
        lane, kind, op = self.lane, self.call.kind, self.call.op
        self.wait()
        if not kind.polls and self.machine.ways[op.id] != "in-trainer":
            self.wait(*self.machine.touched.awaited(op, self.step))
        made = RULES.get(kind.name, _other)(self)
        if lane.at.later_s:
            self.wait(lane.at)
        done = self.done or lane.at
        self.machine.touched.note(op, self.step, done)
        if kind.reads_buffer:
            self.machine.buffers[self.step, self.micro or 0].append(done)
        self.machine.events.ends[op.id, self.step, lane.rounds] = (lane.at, done)
        return None if made is None else tuple(Value(it, done) for it in made)

    # -- time --

    def takes(self, seconds: float) -> None:
        """Let the lane be busy for so long."""
        self.lane.at = self.lane.at.plus(seconds)

    def wait(self, *moments: Moment | None) -> None:
        """Let the lane go on once all of these have come."""
        after = [moment for moment in moments if moment is not None]
        self.lane.at = Moment(self._event(self.lane.name, [self.lane.at, *after]))

    def wait_for_device(self) -> None:
        """Let the lane go on once the trainer's device has done all it was sent."""
        self.wait(self.machine.training.idle)

    def operands(self) -> list[Moment]:
        """When the work that makes the operands is done."""
        return [value.ready for value in self.args if value is not None]

    def ship(self) -> Moment:
        """Send the op's data on its way; gives the moment at which it arrives."""
        if self.lane.at.later_s:
            self.wait()
        if not self.cost.ship_s:
            return self.lane.at
        return self._sent(LINK, self.cost.ship_s, self.operands(), "")

    def send(self, work_s: float | None = None, *, after: Moment | None = None, what: str = "") -> Moment:
        """Queue work on the op's device; gives the moment at which it is done."""
        ready = [*self.operands(), *self.machine.touched.ready(self.call.op, self.step)]
        if after is not None:
            ready.append(after)
        work = self.cost.work_s if work_s is None else work_s
        self.done = self._sent(self.call.kind.device or TRAINER, work, ready, what)
        return self.done

    def _sent(self, device: str, work_s: float, ready: list[Moment], what: str) -> Moment:
        if self.lane.at.later_s:
            self.wait()
        event = self._event(device, [moment.plus(work_s) for moment in (self.lane.at, *ready)])
        key = (device, self.call.op.id, self.step, self.micro, what)
        self.machine.events.sends.setdefault(device, []).append(Send(key, event, work_s, self.lane.name))
        return Moment(event)

    def _event(self, where: str, after: list[Moment]) -> int:
        self._part += 1
        name = Name(self.call.op.id, self.lane.rounds, self._part, where)
        return self.machine.events.add(name, self.step, list(dict.fromkeys(after)))


def _other(at: Instance) -> Made:
    kind = at.call.kind
    if kind.device:
        at.takes(at.cost.issue_s)
        done = at.send(after=at.ship())
        if kind.blocking:
            at.wait(done)
    else:
        at.wait(*at.operands())
        at.takes(at.cost.issue_s + at.cost.work_s)
    return tuple(_handed_on(at, given.base, number) for number, given in enumerate(kind.results))


def _handed_on(at: Instance, base: str, number: int) -> object:
    if base == "flag":
        decide = at.machine.flags.get(at.call.op.results[number].name)
        return True if decide is None else decide(at.step, at.micro or 0)
    for operand, value in zip(at.call.kind.operands, at.args, strict=False):
        if operand.base == base and value is not None:
            return value.it
    return None


# -- data --


def _dispatch(at: Instance) -> Made:
    at.takes(at.cost.issue_s)
    at.machine.generated[at.step] = (at.send(after=at.ship()), at.cost.work_s)
    return ()


def _arrival(at: Instance, share: float) -> Moment | None:
    """When that share of the step's groups is there: they come evenly while they are generated."""
    if at.step not in at.machine.generated:
        return None
    end, work_s = at.machine.generated[at.step]
    return end.plus(-(1.0 - share) * work_s)


def _take(at: Instance) -> Made:
    at.wait(_arrival(at, 1.0))
    at.takes(at.cost.issue_s + at.cost.work_s)
    return None if len(at.call.writes) > 2 else (True,) * len(at.call.writes)


def _stream_mb(at: Instance) -> Made:
    total, index = at.machine.counts[at.step], at.micro or 0
    at.wait(_arrival(at, 1.0 if index >= total else (index + 1) / total))
    if index >= total:
        return None
    at.takes(at.cost.issue_s + at.cost.work_s)
    last = index + 1 == total
    return (index, last), last, True


def _next_part(at: Instance) -> Made:
    at.takes(at.cost.issue_s + at.cost.work_s)
    return (("part", at.micro or 0, at.lane.count or 1),)


def _pack(at: Instance) -> Made:
    at.wait(*at.operands())
    at.takes(at.cost.issue_s + at.cost.work_s)
    total = at.machine.counts[at.step]
    (groups,) = at.args
    it = groups.it if groups is not None else None
    index, parts = (it[1], it[2]) if isinstance(it, tuple) and it[:1] == ("part",) else (0, 1)
    first, end = (total * border // parts for border in (index, index + 1))
    return (tuple((one, one + 1 == end) for one in range(first, end)),)


def _next_mb(at: Instance) -> Made:
    at.wait(*at.operands())
    (batch,) = at.args
    packed = batch.it if batch is not None else ()
    assert isinstance(packed, tuple)
    index = at.micro or 0
    if index >= len(packed):
        return None
    at.takes(at.cost.issue_s + at.cost.work_s)
    return packed[index], packed[index][1]


# -- the trainer --


def _dispatched(at: Instance) -> None:
    at.takes(at.cost.issue_s)
    at.machine.training.idle = at.send()


def _old_logps(at: Instance) -> Made:
    _dispatched(at)
    (micro_batch,) = at.args
    return (micro_batch.it if micro_batch is not None else None,)


def _fwd_bwd(at: Instance) -> Made:
    at.takes(at.cost.issue_s)
    return _train(at, at.ship())


def _fwd_bwd_staged(at: Instance) -> Made:
    training = at.machine.training
    arrived, training.staged = training.staged, None
    at.takes(at.cost.issue_s)
    return _train(at, arrived)


def _train(at: Instance, arrived: Moment | None) -> Made:
    """One training call; the step's last one also closes it, as far as the trainer can."""
    machine, training = at.machine, at.machine.training
    done = training.idle = at.send(after=arrived)
    training.calls.append(done)
    if len(training.calls) > machine.in_flight:
        at.wait(training.calls.pop(0))
    closes = at.call.op.attr("closes") if _is_last(at) else None
    if closes == "defer" and machine.defers:
        training.held = True
    elif closes == "update" and machine.fuses:
        _make_update(at, machine.durations.kind("update"), "update")
        training.done = True
    training.pending += 1
    if closes == "update":
        _close(at)
    return ()


def _is_last(at: Instance) -> bool:
    """Whether its micro-batch is the step's last; of a staged one the count says so."""
    for value in at.args:
        if value is not None and isinstance(value.it, tuple) and len(value.it) == 2:
            return bool(value.it[1])
    return at.machine.counts[at.step] == (at.micro or 0) + 1


def _make_update(at: Instance, cost: Cost, what: str = "") -> None:
    at.takes(cost.issue_s)
    at.machine.training.idle = at.send(cost.work_s, what=what)


def _close(at: Instance) -> None:
    """Make the step's update, unless a call has made it."""
    training = at.machine.training
    if training.held:
        at.wait_for_device()
        _make_update(at, at.cost)
        at.wait_for_device()
    elif not training.done:
        _make_update(at, at.cost)
    training.held = training.done = False
    training.pending = 0


def _update(at: Instance) -> Made:
    if at.machine.training.pending:
        _close(at)
    return ()


def _nothing(at: Instance) -> Made:
    return ()


def _stage(at: Instance) -> Made:
    training = at.machine.training
    if at.step not in at.machine.decided.staged:
        return None, False
    at.takes(at.cost.issue_s)
    training.staged = at.ship()
    if not training.held:
        at.wait(training.staged)
        at.wait_for_device()
    return "request", True


def _poll(at: Instance) -> Made:
    return (None,)


def _get_metrics(at: Instance) -> Made:
    at.wait_for_device()
    at.takes(at.cost.issue_s + at.cost.work_s)
    return (None,)


def _start_metrics(at: Instance) -> Made:
    if at.machine.ways[at.call.op.id] == "set-aside":
        _dispatched(at)
        at.machine.training.asides[at.step] = at.machine.training.idle
    else:
        _get_metrics(at)
    return ()


def _fetch_metrics(at: Instance) -> Made:
    aside = at.machine.training.asides.pop(at.step, None)
    if at.machine.ways[at.call.op.id] == "fetch":
        at.wait(aside)
        at.takes(at.cost.issue_s + at.cost.work_s)
    return (None,)


def _weights(at: Instance) -> Made:
    _dispatched(at)
    at.wait_for_device()
    return (None,)


def _copy_weights(at: Instance) -> Made:
    if at.machine.ways[at.call.op.id] != "copy":
        return _weights(at)
    _dispatched(at)
    return (None,)


def _save_checkpoint(at: Instance) -> Made:
    at.wait_for_device()
    at.takes(at.cost.issue_s + at.cost.work_s)
    return ()


def _snapshot_checkpoint(at: Instance) -> Made:
    if at.machine.ways[at.call.op.id] != "copy":
        return _save_checkpoint(at)
    _dispatched(at)
    return ()


def _write_checkpoint(at: Instance) -> Made:
    if at.machine.ways[at.call.op.id] == "write":
        at.takes(at.cost.issue_s + at.cost.work_s)
    return ()


def _release(at: Instance) -> Made:
    """A buffer is given back once all that reads it is done."""
    at.wait(*at.machine.buffers.pop((at.step, at.micro or 0), ()))
    at.takes(at.cost.issue_s + at.cost.work_s)
    return ()


RULES: Mapping[str, Callable[[Instance], Made]] = MappingProxyType(
    {
        "dispatch": _dispatch,
        "take": _take,
        "stream_mb": _stream_mb,
        "next_part": _next_part,
        "pack": _pack,
        "next_mb": _next_mb,
        "old_logps": _old_logps,
        "fwd_bwd": _fwd_bwd,
        "fwd_bwd_staged": _fwd_bwd_staged,
        "attempt_fwd_bwd": _fwd_bwd,
        "attempt_staged": _fwd_bwd_staged,
        "settle": _nothing,
        "release": _release,
        "stage_fwd_bwd": _stage,
        "poll_packed": _poll,
        "update": _update,
        "apply_deferred_update": _update,
        "get_metrics": _get_metrics,
        "start_metrics": _start_metrics,
        "fetch_metrics": _fetch_metrics,
        "sync_weights": _weights,
        "copy_weights": _copy_weights,
        "save_checkpoint": _save_checkpoint,
        "snapshot_checkpoint": _snapshot_checkpoint,
        "write_checkpoint": _write_checkpoint,
    }
)
"""What each kind of op does that does not do as its row says."""
