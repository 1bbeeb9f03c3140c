"""The ``nest`` view: which ops run in which loop, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from steptrace.ir.predicate import ALWAYS
from steptrace.ir.printer import loop_text
from steptrace.ir.program import Loop, Node, Op, Program


def nest_view(program: Program) -> str:
    """The structure of a program, one op or loop a line, indented by its loops; ends with a line feed.

    An op is shown as its kind (``id: kind`` where they differ) with what a schedule says of it: its lane unless that is
    the host, its micro-batch outside a loop, whether it closes the step, its selected head, its shift, its condition.
    """
    lines = [f"program {program.name}"]
    for title, nodes in (("before", program.prologue), ("step k", program.body), ("after", program.epilogue)):
        if nodes:
            lines += [title, *_lines(nodes, "  ")]
    return "\n".join(lines) + "\n"


def _lines(nodes: tuple[Node, ...], indent: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Loop):
            yield indent + loop_text(node)
            yield from _lines(node.body, indent + "  ")
        else:
            yield indent + _op_text(node)


def _op_text(op: Op) -> str:
    text = op.kind if op.id == op.kind else f"{op.id}: {op.kind}"
    if op.lane != "host":
        text += f" lane={op.lane}"
    if op.micro is not None:
        text += f" at(m={op.micro})"
    if op.attr("closes") is not None:
        text += f" closes={op.attr('closes')}"
    if op.attr("head") is not None:
        text += f" head={op.attr('head')}"
    if op.shift:
        text += f" shift={op.shift:+d}"
    return text if op.when == ALWAYS else f"{text} when({op.when})"
