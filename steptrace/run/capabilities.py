"""What the bound parts can do: the methods that they have, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from steptrace.lower.choices import WAYS
from steptrace.run.binding import Parts

_VERBS = tuple(
    dict.fromkeys(need for ways in WAYS.values() for way in ways for need in way.needs if need.startswith("trainer."))
)


def capabilities_of(parts: Parts) -> frozenset[str]:
    """Capabilities of the parts: ``trainer.<verb>`` for each method of it, and the words that parts advertise.

    A part advertises with ``info()["capabilities"]``: names by whether they hold, or a list of names. What a reference
    advertises is named after it: ``reference.logps_head``.
    """
    of_reference = (f"reference.{word}" for word in _advertised(parts.reference))
    own = (_advertised(part) for part in (parts.trainer, parts.rollout))
    return frozenset(chain(_methods(parts.trainer), *own, of_reference))


def _methods(trainer: Any) -> Iterator[str]:
    for verb in _VERBS:
        if callable(getattr(trainer, verb.partition(".")[2], None)):
            yield verb


def _advertised(part: Any) -> Iterator[str]:
    info = getattr(part, "info", None)
    said = info() if callable(info) else {}
    words = said.get("capabilities", {}) if isinstance(said, Mapping) else {}
    if isinstance(words, Mapping):
        yield from (str(name) for name, holds in words.items() if holds)
    elif isinstance(words, list | tuple | set | frozenset):
        yield from map(str, words)
