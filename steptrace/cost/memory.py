"""What a schedule holds in memory at most, once it has settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steptrace.simulate import Event, Run

_HOLDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "batch": (("take", "stream_mb"), ("free",), ("batch",)),
    "weight copies": (("copy_weights",), ("transfer_weights", "apply_weights"), ("params",)),
    "checkpoint copies": (("snapshot_checkpoint",), ("write_checkpoint",), ("params", "optimizer")),
    "staged": (("stage_fwd_bwd",), ("fwd_bwd_staged", "attempt_staged"), ("micro_batch",)),
}
"""By what is held: the ops that take hold of it, those that let go of it, and what a piece of it is, by size."""


@dataclass(frozen=True, slots=True)
class Held:
    """Something that is held in memory.

    Attributes:
      what: in a word.
      most: how many pieces at a time, at most.
      bytes: of all of them; None where the cost file does not say how large one is.
    """

    what: str
    most: int
    bytes: float | None


def memory_of(run: Run, sizes: Mapping[str, float]) -> tuple[Held, ...]:
    """What a run holds at most: steps on the host, copies on the trainer, micro-batches that are shipped ahead.

    Args:
      run: a run in virtual time.
      sizes: bytes of a piece, by name (`steptrace.cost.SIZES`).
    """
    found = []
    for what, (takes, frees, pieces) in _HOLDS.items():
        most = _most(run.events, takes, frees)
        if most:
            known = [sizes[piece] for piece in pieces if piece in sizes]
            found.append(Held(what, most, most * sum(known) if len(known) == len(pieces) else None))
    return tuple(found)


def bytes_of(held: tuple[Held, ...]) -> float:
    """All that is held, as far as sizes are known."""
    return sum(one.bytes or 0.0 for one in held)


def _most(events: tuple[Event, ...], takes: tuple[str, ...], frees: tuple[str, ...]) -> int:
    """How many steps' pieces are held at a time: from the end of what takes hold to the end of what lets go."""
    begun: dict[int, float] = {}
    over: dict[int, float] = {}
    for event in events:
        if event.kind in takes:
            begun[event.step] = min(begun.get(event.step, event.end), event.end)
        elif event.kind in frees:
            over[event.step] = max(over.get(event.step, 0.0), event.end)
    whole = [step for step in begun if step in over]
    moments = sorted([*((begun[step], 1) for step in whole), *((over[step], -1) for step in whole)])
    now = most = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most
