"""A part in another process, as the run sees it: the methods that the part has, and no others."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from steptrace.lang.records import MicroBatch
from steptrace.run.remote.hosted import Attribute
from steptrace.run.remote.line import Line
from steptrace.run.remote.wire import How, Kept
from steptrace.run.watch import LONGEST_S
from steptrace.simulate import Span

_USUAL = (
    *("fwd_bwd", "fwd_bwd_staged", "stage_fwd_bwd", "update", "apply_deferred_update", "old_logps", "get_metrics"),
    *("start_metrics", "fetch_metrics", "weights", "copy_weights", "save_checkpoint", "restore_checkpoint"),
    *("snapshot_checkpoint", "write_checkpoint", "wait_for_device", "wait_for_update", "compile", "info"),
    *("params_digest", "last_update_token", "apply_weights", "drop_weights", "generate", "drain", "logps"),
)
"""What a run may look for, asked for at once; any other name is asked for when it is first looked up."""


class RemotePart:
    """Stands for a part in its own process: trainer, rollout, reference, or several of them in one.

    It has the methods that the part has, with their signatures, so that what a run makes of it is what it makes of the
    part in its own process. Results come as host arrays.

    Args:
      line: the line to the process.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self.__name__: str = line.ask("hosted_name")
        self._known: dict[str, Attribute | None] = line.ask("hosted_attributes", _USUAL)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._known:
            self._known |= self._line.ask("hosted_attributes", (name,))
        there = self._known[name]
        if there is None:
            raise AttributeError(f"`{self.__name__}`, in its own process, has no attribute `{name}`")
        if not there.verb:
            value = UpdateToken(self._line) if name == "last_update_token" else self._line.ask("hosted_value", name)
            if not isinstance(value, Attribute):
                return value
            there = self._known[name] = value  # a property that gives a method
        return Verb(self._line, name, there.signature)

    def release(self, micro_batch: MicroBatch) -> None:
        """Wait until the part's process reads a micro-batch no more; its buffers are used again."""
        self._line.loans.give_back(micro_batch, self._line.wait_s)

    def begin_copy_weights(self) -> ComingWeights:
        """``copy_weights``, which is not waited for: every later call comes behind it, and nobody needs to know it."""
        number = self._line.number()
        answer = self._line.send("copy_weights", keep=number)
        return ComingWeights(KeptWeights(self._line, number), answer)

    def watch_calls(self) -> None:
        """Have the part's process watch its device from here on."""
        self._line.ask("hosted_watch")
        self._line.watching = True

    def watched_calls(self, moment_s: float | None = None) -> tuple[tuple[Span, ...], int]:
        """What the device did since then, once all is done; times by the clock of this machine, `time.perf_counter`.

        Args:
          moment_s: behind a failure, how long that is waited for, in seconds, and then as long again for the answer.

        Returns:
          The work; and how much there is beside it, which was not done in time or had no room.
        """
        self._line.watching = False
        seen: tuple[tuple[Span, ...], int]
        if moment_s is not None:
            seen = self._line.worker.send("hosted_watched", moment_s).result(2 * moment_s)
        else:
            longest = LONGEST_S if self._line.wait_s is None else min(LONGEST_S, self._line.wait_s / 2)
            seen = self._line.ask("hosted_watched", longest)
        return seen

    def __repr__(self) -> str:
        return f"<{self.__name__} in process {self._line.worker.pid}>"


def line_of(part: RemotePart) -> Line:
    """The line to the part's process."""
    return part._line


def begin(part: RemotePart, wait_s: float, *, lends: bool = False) -> None:
    """Make a part ready for a run.

    Args:
      part: the part.
      wait_s: how many seconds an answer of it is waited for.
      lends: whether it reads micro-batches where they lie, until the run's schedule gives them back.
    """
    part._line.wait_s, part._line.lends = wait_s, lends
    part._line.renew()


class Verb:
    """A method of a part in its own process.

    Args:
      line: the line to the process.
      name: its name.
      signature: how it is called; None where it does not tell.
    """

    def __init__(self, line: Line, name: str, signature: inspect.Signature | None) -> None:
        self._line, self._call = line, _CALLS.get(name)
        self.__name__ = name
        if signature is not None:
            self.__signature__ = signature

    def __call__(self, *args: Any, **given: Any) -> Any:
        """Call it as the part would be; raises what the part raises."""
        if self._call is None:
            return self._line.call(self.__name__, *args, **given)
        return self._call(self._line, self.__name__, *args, **given)


class UpdateToken:
    """Stands for what tells that the last update has landed."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def block_until_ready(self) -> UpdateToken:
        """Wait until it has."""
        self._line.ask("hosted_landed")
        return self


class KeptWeights:
    """A copy of the weights that has stayed in the trainer's process.

    Args:
      line: the line to it.
      number: the copy's number there.
    """

    def __init__(self, line: Line, number: int) -> None:
        self._line, self.number = line, number
        self._maker, self._issued = threading.get_ident(), line.issued

    def fetched(self) -> Any:
        """The copy as host arrays; once. On another lane it comes behind the next call of the one that made it."""
        if threading.get_ident() != self._maker:
            self._line.let_pass(self._issued)
        return self._line.ask("hosted_take", self.number)


@dataclass(frozen=True, slots=True)
class ComingWeights:
    """A copy of the weights that the trainer's process was sent for, and has not told of.

    Attributes:
      kept: the copy.
      answer: waits for what the call gives.
    """

    kept: KeptWeights
    answer: Callable[[], Any]

    def told(self) -> Any:
        """What the call has given, the copy and its version if it did as it should; waits for it."""
        return _copied(self.kept, self.answer())


def fetched(weights: Any) -> Any:
    """Weights in this process, wherever they are."""
    return weights.fetched() if isinstance(weights, KeptWeights) else weights


def _train(line: Line, verb: str, *args: Any, **given: Any) -> Any:
    """A training call: it is waited for where it says that an update is held back, or has landed."""
    if given.get("apply_optimizer") and (given.get("defer_update") or given.get("wait_for_update", True)):
        return line.call(verb, *args, how=How(read=("update_deferred",)), **given)
    line.send(verb, *args, **given)
    return {"update_deferred": False} if given.get("apply_optimizer") else None


def _close(line: Line, verb: str, *args: Any, **given: Any) -> Any:
    """The update that was held back: how long the device was waited for is known when the call returns."""
    return line.call(verb, *args, how=How(read=("device_wait_s", "update_ready")), **given)


def _done(line: Line, verb: str, *args: Any, **given: Any) -> None:
    """A call that is waited for, and whose result nobody reads."""
    line.call(verb, *args, how=How(read=()), **given)


def _loose(line: Line, verb: str, *args: Any, **given: Any) -> None:
    """A call that gives nothing."""
    line.send(verb, *args, **given)


def _stage(line: Line, verb: str, *args: Any, **given: Any) -> Kept:
    """What is staged stays there; how long the device was waited for is known when the call returns."""
    number = line.number()
    return Kept(number, **line.call(verb, *args, how=How(number), **given))


def _set_aside(line: Line, verb: str, *args: Any, **given: Any) -> Kept:
    """What is set aside stays there, and is not waited for."""
    kept = Kept(line.number())
    line.send(verb, *args, keep=kept.number, **given)
    return kept


def _copy_weights(line: Line, verb: str, *args: Any, **given: Any) -> Any:
    """The copy stays there; its version is known when the call returns."""
    number = line.number()
    made = line.call(verb, *args, how=How(number), **given)
    return _copied(KeptWeights(line, number), made)


def _copied(kept: KeptWeights, made: Any) -> Any:
    """What a trainer gave for a copy of its weights: the copy is where it was made."""
    return (kept, made[1]) if isinstance(made, tuple) and made[:1] == (kept.number,) else made


def _restore(line: Line, verb: str, *args: Any, **given: Any) -> None:
    """Behind a restored state, what failed before does not matter."""
    line.renew()
    _done(line, verb, *args, **given)


_CALLS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "fwd_bwd": _train,
        "fwd_bwd_staged": _train,
        "update": _loose,
        "apply_deferred_update": _close,
        "stage_fwd_bwd": _stage,
        "start_metrics": _set_aside,
        "snapshot_checkpoint": _set_aside,
        "copy_weights": _copy_weights,
        "restore_checkpoint": _restore,
        **dict.fromkeys(("apply_weights", "drop_weights", "drain", "save_checkpoint", "write_checkpoint"), _done),
    }
)
"""How verbs are called that are not called like any other: sent, waited for, answered."""
