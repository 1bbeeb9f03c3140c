"""The parts that laws make of an op, and which of them together stand for the whole."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from steptrace.ir import Op

WHOLE = ""
"""The part of an op that no law has split."""

PART_OF_KIND: Mapping[str, str] = MappingProxyType(
    {
        "stage_fwd_bwd": "stage",
        "fwd_bwd_staged": "staged",
        "poll_packed": "poll",
        "release": "release",
        "attempt_fwd_bwd": "attempt",
        "attempt_staged": "staged attempt",
        "settle": "settle",
        "start_metrics": "start",
        "fetch_metrics": "fetch",
        "snapshot_checkpoint": "snapshot",
        "write_checkpoint": "write",
        "copy_weights": "copy",
        "transfer_weights": "transfer",
        "apply_weights": "apply",
    }
)
"""The part that an op of a schedule row is; an op of any other row is a whole."""

LOOKS = frozenset({"stage", "poll"})
"""Parts that only look whether their operand is there, and give a flag that the source does not have."""

RELEASE = "release"
"""The part that gives back the buffer of a micro-batch that its source op handed out; it changes no value."""

STAGED = frozenset({"staged", "staged attempt"})
"""Parts whose operand is what the trainer holds."""

ATTEMPTS = frozenset({"attempt", "staged attempt"})
"""Parts that train a micro-batch, if what settles them finds that they dropped nothing."""

SETTLE = "settle"
"""The part that adds what an attempt, or its rerun, has computed."""

SPLITS = (
    ("start", "fetch"),
    ("snapshot", "write"),
    ("copy", "transfer", "apply"),
    *((attempt, SETTLE) for attempt in sorted(ATTEMPTS)),
)
"""The parts that one law makes, in the order in which they run."""

WHOLES = frozenset(
    frozenset(parts)
    for parts in (
        (WHOLE,),
        ("stage", WHOLE),
        ("stage", "staged"),
        ("stage", "poll", WHOLE),
        ("poll", WHOLE),
        ("stage", "attempt", SETTLE),
        ("stage", "staged attempt", SETTLE),
        ("stage", "poll", "attempt", SETTLE),
        ("poll", "attempt", SETTLE),
        (WHOLE, RELEASE),
        *SPLITS,
    )
)
"""The sets of parts that make one instance of a source op, each part once."""

_LOOKS_FIRST = {WHOLE: 1, "stage": 0, "poll": 0, "staged": 1}

RANK: Mapping[str, int] = MappingProxyType(
    _LOOKS_FIRST
    | {part: at for split in SPLITS for at, part in enumerate(split)}
    | dict.fromkeys(ATTEMPTS, 1)
    | {SETTLE: 2, RELEASE: 3}
)
"""The order of the parts of one instance in the reference."""

LATE = frozenset({"fetch", "transfer", "apply"})
"""Parts whose failure is that of the first op that needs what they give: their law takes them out of the step's way."""


def part_of(op: Op) -> str:
    """The part of its source op that an op is; ``WHOLE`` where no law has split it.

    ``apply_deferred_update`` is a whole ``update``; a peeled op is the instance of its loop's op.
    """
    return PART_OF_KIND.get(op.kind, WHOLE)


def before(part: str) -> tuple[str, ...]:
    """The parts of the same law of which one must have run before this one; none for a first part."""
    return tuple(split[split.index(part) - 1] for split in SPLITS if part in split[1:])
