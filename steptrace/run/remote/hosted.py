"""A part in its own process: what the process's calls reach."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from steptrace.diag.remote import AfterFailureError
from steptrace.run.remote.wire import Caller, How, Kept
from steptrace.workers import Remote

_PLAIN = How()
_WATCHED = 1 << 16
"""How much work of a device is kept, the newest."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """What a part has under a name.

    Attributes:
      verb: whether it can be called.
      signature: of a verb, without annotations and defaults; None where it does not tell.
    """

    verb: bool
    signature: inspect.Signature | None = None


class HostedPart:
    """Stands in front of a part in its process. Each method of the part is one here, with a `How` in front.

    Args:
      made: what makes the part.
    """

    def __init__(self, made: Remote) -> None:
        self._part = made.build()
        self._kept: dict[int, Any] = {}
        self._failed = ""
        self._watch: Watch | None = None

    def hosted_name(self) -> str:
        """The name of the part's class."""
        return type(self._part).__name__

    def hosted_attributes(self, names: Iterable[str]) -> dict[str, Attribute | None]:
        """What the part has under each name; None for nothing. No property is read."""
        return {name: self._attribute(name) for name in names}

    def hosted_value(self, name: str) -> Any:
        """An attribute that is no method; of a property that gives one, what `hosted_attributes` tells of a method."""
        value = getattr(self._part, name)
        return Attribute(verb=True, signature=_bare(value)) if callable(value) else value

    def hosted_landed(self) -> None:
        """Wait for the last update, as the part's ``last_update_token`` tells."""
        self._part.last_update_token.block_until_ready()

    def hosted_take(self, number: int) -> Any:
        """A kept value, which is kept no more."""
        return self._kept.pop(number)

    def hosted_change(self, change: Callable[..., None], *args: Any) -> None:
        """Let a function that can be imported do something to the part; for tests."""
        change(self._part, *args)

    def hosted_watch(self) -> None:
        """Watch the part's device from here on."""
        self._watch = Watch(self._part)

    def hosted_watched(self, wait_s: float) -> tuple[tuple[Any, ...], int]:
        """What the device did since then, once all is done, or ``wait_s`` seconds are over; and how much is not kept.

        That is what was not done by then, and what had no room.
        """
        watch, self._watch = self._watch, None
        return ((), 0) if watch is None else watch.close(wait_s)

    def hosted_renew(self) -> None:
        """Forget what has failed, and what is kept; watch no more."""
        self._failed = ""
        self._kept.clear()
        self.hosted_watched(0.0)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._part, name)
        return partial(self._called, name) if callable(value) else value

    def _attribute(self, name: str) -> Attribute | None:
        if isinstance(inspect.getattr_static(self._part, name, None), property):
            return Attribute(verb=False)
        try:
            value = getattr(self._part, name)
        except AttributeError:
            return None
        return Attribute(verb=True, signature=_bare(value)) if callable(value) else Attribute(verb=False)

    def _called(self, name: str, how: Any = _PLAIN, *args: Any, **given: Any) -> Any:
        if not isinstance(how, How):
            args, how = (how, *args), _PLAIN
        if self._failed:
            raise AfterFailureError(f"`{name}` was called behind a `{self._failed}` that had failed")
        called = time.perf_counter()
        try:
            made = getattr(self._part, name)(*map(self._arrived, args), **given)
        except BaseException:
            if how.loose:
                self._failed = name
            raise
        if self._watch is not None and how.watched is not None:
            self._watch.note(how.watched, called)
        for value in args:
            if isinstance(value, Kept):
                self._kept.pop(value.number, None)
        if how.keep:
            return self._keeping(name, made, how.keep)
        return made if how.read is None else read(made, how.read)

    def _arrived(self, value: Any) -> Any:
        return self._kept[value.number] if isinstance(value, Kept) else value

    def _keeping(self, name: str, made: Any, number: int) -> Any:
        """Keep a result; gives what of it can be told."""
        if name not in ("copy_weights", "weights"):
            self._kept[number] = made
            return {word: told(made, word) for word in ("device_wait_s", "update_ready")}
        if not isinstance(made, tuple) or len(made) != 2:
            return made
        self._kept[number] = made[0]
        return number, made[1]


class Watch:
    """Watches the device of a trainer, in the trainer's process.

    Args:
      trainer: the trainer.
    """

    def __init__(self, trainer: Any) -> None:
        from steptrace.run.watch import Tokens, Watcher
        from steptrace.simulate import TRAINER

        self._tokens, self._watcher = Tokens(trainer), Watcher(TRAINER, _WATCHED)

    def note(self, caller: Caller, called: float) -> None:
        """Have watched what a call has sent to the device."""
        from steptrace.run.watch import Sent, done_by

        returned = time.perf_counter()
        for what, token in self._tokens.new(caller.kind):
            done = done_by(token, returned)
            self._watcher.sent(Sent(caller, caller.step, caller.micro, what, called, returned, token, done))

    def close(self, wait_s: float) -> tuple[tuple[Any, ...], int]:
        """Wait for all that was sent, and no longer; gives what the device did, in order, and how much is not kept."""
        return self._watcher.close(wait_s), self._watcher.dropped


def told(made: Any, word: str) -> Any:
    """What a trainer said of a call under a word, in a mapping or as an attribute; None for nothing."""
    return made.get(word) if isinstance(made, Mapping) else getattr(made, word, None)


def read(made: Any, words: tuple[str, ...]) -> dict[str, Any]:
    """What of a call's result is read, and sent back: the rest may be what cannot be sent, or is not computed yet."""
    return {word: value for word in words if (value := told(made, word)) is not None}


def _bare(function: Any) -> inspect.Signature | None:
    """How a function is called, in what any process can read."""
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    none = inspect.Parameter.empty
    return inspect.Signature([item.replace(annotation=none, default=_optional(item.default)) for item in given])


def _optional(default: Any) -> Any:
    return default if default is inspect.Parameter.empty else None
