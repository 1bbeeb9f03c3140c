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

SPLITS = (("start", "fetch"), ("snapshot", "write"), ("copy", "transfer", "apply"))
"""The parts that one law makes, in the order in which they run."""

WHOLES = frozenset(
    frozenset(parts) for parts in ((WHOLE,), ("stage", WHOLE), ("stage", "staged"), ("poll", WHOLE), *SPLITS)
)
"""The sets of parts that make one instance of a source op, each part once."""

RANK: Mapping[str, int] = MappingProxyType(
    {WHOLE: 1, "stage": 0, "poll": 0, "staged": 1, **{part: at for split in SPLITS for at, part in enumerate(split)}}
)
"""The order of the parts of one instance in the reference."""

LATE = frozenset({"fetch", "transfer", "apply"})
"""Parts whose failure is that of the first op that needs what they give: their law takes them out of the step's way."""


def part_of(op: Op) -> str:
    """The part of its source op that an op is; ``WHOLE`` where no law has split it.

    ``apply_deferred_update`` is a whole ``update``; a peeled op is the instance of its loop's op.
    """
    return PART_OF_KIND.get(op.kind, WHOLE)


def before(part: str) -> str | None:
    """The part of the same law that must have run before this one, or None."""
    for split in SPLITS:
        if part in split[1:]:
            return split[split.index(part) - 1]
    return None
