"""The program that a schedule was derived from, found by what the schedule's text says of it."""

from __future__ import annotations

from dataclasses import fields

from steptrace.diag.base import SteptraceError
from steptrace.diag.schedule import UnknownSourceError
from steptrace.ir.builtin import kinds_of
from steptrace.ir.program import Loop, Op, Program
from steptrace.lang.definition import trace
from steptrace.lang.reference import definition


def scheduled(program: Program) -> str:
    """What shows that a program is a schedule of another one, in words; ``""`` when its ops stand as they are written.

    An op that runs ahead, on a lane that is not its row's, outside its loop, in parts, or with a selected head. An op
    that has only changed its place shows nothing: that may be the order of a program of its own.
    """
    rows = kinds_of(program)
    moved = (_moved(op, rows[op.kind].lane) for op in program.ops())
    begun = (f"`{node.id}` begins with {node.start}" for node in program.body if isinstance(node, Loop) and node.start)
    return next((words for words in (*moved, *begun) if words), "")


def _moved(op: Op, lane: str) -> str:
    if op.shift:
        return f"it runs `{op.id}` {op.shift} ahead of its place"
    if op.lane != lane:
        return f"it runs `{op.id}` on lane {op.lane}"
    if op.micro is not None:
        return f"`{op.id}` stands for micro-batch {op.micro} outside its loop"
    if op.origin is not None and op.origin.part:
        return f"`{op.id}` is a part of `{op.origin.op}`"
    if op.attr("head"):
        return f"a head was selected for `{op.id}`"
    return f"`{op.id}` also closes the step" if op.attr("closes") else ""


def source_of(program: Program) -> Program:
    """The built-in program that a schedule names, with the parameters and the contract that it names.

    Raises:
      UnknownSourceError: there is none of that name, or it has no such parameters.
    """
    contract = {field.name: getattr(program.contract, field.name) for field in fields(program.contract)}
    try:
        return trace(definition(program.name), **{**dict(program.params), **contract})
    except SteptraceError as error:
        raise UnknownSourceError(
            f"this is a schedule ({scheduled(program)}), and the program that it was derived from is not known",
            loc=program.loc,
            help="name its source, as `check` takes it: --against=module:function, against=my_step in Python",
        ) from error


def named_source(program: Program) -> str:
    """How the source that `source_of` finds is named, with what is not its default: ``grpo{staleness=1}``."""
    contract = {field.name: getattr(program.contract, field.name) for field in fields(program.contract)}
    given = {**dict(program.params), **contract}
    usual = trace(definition(program.name))
    default = {**dict(usual.params), **{name: getattr(usual.contract, name) for name in contract}}
    other = ", ".join(f"{name}={value}" for name, value in given.items() if default.get(name) != value)
    return f"{program.name}{{{other}}}" if other else program.name
