"""Effects of an op, derived from its row, its attributes and the contract; never stored, so they cannot go stale."""

from __future__ import annotations

import re
from functools import lru_cache

from steptrace.ir.builtin import RESOURCES
from steptrace.ir.kind import OpKind
from steptrace.ir.program import Contract, Op
from steptrace.ir.resource import ANY, Access, Effect, Index, ResourceKind
from steptrace.ir.schedule_ops import OUTSIDE
from steptrace.ir.types import AttrValue

_PATTERN = re.compile(r"(?P<name>\*|[\w.]+)(?:\[k(?P<step>(?:[+-](?:\d+|w))*)(?:, ?m(?P<micro>[+-]\d+)?(?P<m>))?\])?")


@lru_cache(maxsize=1024)
def parse_pattern(access: Access, pattern: str, staleness: int) -> Effect:
    """The effect that a pattern such as ``rollout.weights[k-1-w]`` stands for at this staleness."""
    match = _PATTERN.fullmatch(pattern)
    if match is None:
        raise ValueError(f"`{pattern}` is not an effect: expected a resource, with an index such as [k] or [k-1]")
    if "[" not in pattern:
        return Effect(access, match["name"])
    offset = sum(
        (staleness if term[1:] == "w" else int(term[1:])) * (1 if term[0] == "+" else -1)
        for term in re.findall(r"[+-](?:\d+|w)", match["step"] or "")
    )
    micro = None if match["m"] is None else int(match["micro"] or 0)
    return Effect(access, match["name"], Index(offset, micro))


def effects_of(op: Op, kind: OpKind, contract: Contract) -> tuple[Effect, ...]:
    """The effects of an op, derived from its row, its attributes and the contract; sorted, without repetition."""
    reads, writes = kind.reads, kind.writes
    for variant in kind.variants:
        if op.attr(variant.attr) == variant.value:
            reads, writes = reads + variant.reads, writes + variant.writes
    if kind.declares:
        declared = (op.attr("reads"), op.attr("writes"))
        if declared == (None, None):
            reads, writes = (ANY,), (ANY,)
        else:
            reads += _of_this_step(declared[0])
            writes += _of_this_step(declared[1])
    if op.micro is not None:
        reads, writes = (tuple(OUTSIDE.get(name, name) for name in names) for names in (reads, writes))
    effects = {
        parse_pattern(access, pattern, contract.staleness)
        for access, patterns in ((Access.READ, reads), (Access.WRITE, writes), (Access.AWAIT, kind.awaits))
        for pattern in patterns
    }
    return tuple(sorted(effects, key=Effect.sort_key))


def _of_this_step(declared: AttrValue | None) -> tuple[str, ...]:
    """Declared names as patterns: a built-in resource with one cell per step means the cell of this step."""
    names = declared if isinstance(declared, tuple) else ()
    cells = {name for name, resource in RESOURCES.items() if resource.kind is ResourceKind.CELL}
    return tuple(f"{name}[k]" if name in cells else name for name in names)
