"""The law ``release``: a micro-batch that is handed out takes a buffer, and an op gives it back after its last reader.

``loop m in %batch { %mb = next_mb(%batch); ... }  -->
loop m in %batch { %mb = next_mb(%batch) {lent=true}; ...; release(%mb) }``

A host that owns the memory of its micro-batches never notices. Where they are shipped through a ring of shared buffers,
a buffer may be used again only once the last call that reads it is done: on a CPU a device array can alias it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from steptrace.check.lifetime import aliases_of
from steptrace.check.rewrite import fresh, spliced
from steptrace.diag.schedule import LawError
from steptrace.ir.program import Loop, Node, Op, Origin, Program, Use, ops_of

RELEASE = "release"
"""Name of the law, of the part that gives the buffer back, and of its kind."""

LENT = "lent"
"""The attribute of an op whose micro-batches lie in buffers of a ring."""


def released(program: Program, op: Op) -> Program:
    """The program in which the micro-batches that an op hands out, in a loop or peeled, are given back.

    The release follows the last op that reads the micro-batch, on the lane of that op and as far ahead as the reader
    that is least so.

    Raises:
      LawError: they are given back already, or one is read in a later round or step.
    """
    if op.attr(LENT):
        raise _refusal(op, "its micro-batches are given back already")
    value = next(result.name for result in op.results if result.type.base == "micro_batch")
    names = aliases_of(ops_of(program.body), value)
    for other in ops_of(program.body):
        late = next((use for use in other.args if use.name in names and (use.step or use.micro)), None)
        if late is not None:
            raise _refusal(op, f"`{other.id}` reads `{late}`, when the buffer of that was given back")
    home = _home(program.body, op)
    assert home is not None, "the op is one of the program"
    readers = [node for node in home if isinstance(node, Op) and any(use.name in names for use in node.args)]
    shift = min([op.shift, *(reader.shift for reader in readers)])
    last = next((reader for reader in reversed(readers) if reader.shift == shift), op)
    suffix = op.id.removeprefix(op.kind) if op.id.startswith(op.kind) else f".{op.id}"
    (id,) = fresh(program, f"{RELEASE}{suffix}")
    origin = Origin(op.origin.op if op.origin else op.id, RELEASE)
    given = replace(
        op, id=id, kind=RELEASE, args=(Use(value),), results=(), attrs=(), shift=shift, lane=last.lane, origin=origin
    )
    program = spliced(program, last.id, (last, given))
    lent = replace(op, attrs=(*op.attrs, (LENT, True)))
    return spliced(program, op.id, (lent, given) if last is op else (lent,))


def _refusal(op: Op, why: str) -> LawError:
    return LawError(f"`{RELEASE}` cannot be applied to `{op.id}`: {why}", loc=op.loc)


def _home(nodes: tuple[Node, ...], op: Op) -> tuple[Node, ...] | None:
    """The nodes among which an op stands."""
    if op in nodes:
        return nodes
    inner: Iterator[tuple[Node, ...] | None] = (_home(node.body, op) for node in nodes if isinstance(node, Loop))
    return next((found for found in inner if found is not None), None)
