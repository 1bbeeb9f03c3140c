"""Peeling: the first micro-batch of a loop stands before it, op by op."""

from __future__ import annotations

from dataclasses import replace

from steptrace.check.rewrite import fresh, renamed_op, spliced, with_resources
from steptrace.check.units import is_stream
from steptrace.diag.schedule import PeelError, UnknownOpError
from steptrace.ir.program import Loop, Op, Program


def peel_first(program: Program, loop_id: str) -> Program:
    """The program with the first round of a loop over micro-batches written out before it.

    ``loop micro_batches: m in %batch { a; b }  -->  a.first at(m=0); b.first at(m=0); loop ... from 1 { a; b }``

    A copy of op ``x`` is called ``x.first`` and stands for micro-batch 0: it runs in steps that have one. Its values
    are called ``%v.first``; its origin is that of the op in the loop.

    Raises:
      UnknownOpError: the step has no such loop.
      PeelError: the loop is not one over micro-batches directly in the step, starts later already, holds other
        loops or shifted ops, or looks at the micro-batch before.
    """
    loop = next((node for node in program.body if node.id == loop_id), None)
    if loop is None:
        raise UnknownOpError(f"no loop `{loop_id}` stands directly in the step of `{program.name}`", loc=program.loc)
    ops = _checked(loop)
    assert isinstance(loop, Loop), "only loops pass the check"
    ids = fresh(program, *(f"{op.id}.first" for op in ops))
    names = [result.name for op in ops for result in op.results]
    values = dict(zip(names, fresh(program, *(f"{name}.first" for name in names), values=True), strict=True))
    first = tuple(replace(renamed_op(op, values), id=id, micro=0) for op, id in zip(ops, ids, strict=True))
    return with_resources(spliced(program, loop_id, (*first, replace(loop, start=1))))


def _checked(node: Op | Loop) -> list[Op]:
    """The ops of a loop that can be peeled."""
    wrong = ""
    if not isinstance(node, Loop) or not is_stream(node):
        wrong = "it is no loop over micro-batches"
    elif node.start:
        wrong = "its first micro-batch is peeled already"
    elif any(isinstance(inner, Loop) for inner in node.body):
        wrong = "it holds another loop"
    else:
        for op in node.body:
            if isinstance(op, Op) and op.shift:
                wrong = f"`{op.id}` runs {op.shift} micro-batches ahead in it"
            if isinstance(op, Op) and any(use.micro for use in op.args):
                wrong = f"`{op.id}` uses a value of the micro-batch before, and the first has none before it"
    if wrong:
        raise PeelError(f"the first micro-batch of `{node.id}` cannot be peeled: {wrong}", loc=node.loc)
    assert isinstance(node, Loop), "guarded above"
    return [op for op in node.body if isinstance(op, Op)]
