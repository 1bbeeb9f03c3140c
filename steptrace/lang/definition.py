"""Programs as users define them, and tracing them to IR."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

from steptrace.diag.loc import Loc
from steptrace.diag.tracing import (
    LoopLeftError,
    NestedTraceError,
    NotAProgramError,
    ProgramSignatureError,
)
from steptrace.ir.builtin import BUILTIN, RESOURCES
from steptrace.ir.effects import effects_of
from steptrace.ir.program import Contract, Node, Op, Program, Result, ops_of
from steptrace.ir.resource import ANY, Resource
from steptrace.ir.types import AttrValue, Type
from steptrace.ir.verify import verify
from steptrace.lang.parameters import OPTIONS, Parameter, contract_with, parameter_of, values_of
from steptrace.lang.place import loc_of, user_loc
from steptrace.lang.resources import find
from steptrace.lang.step import Step
from steptrace.lang.tracer import ACTIVE, Tracer

Weights = Literal["pinned", "freshest"]
Partial = Literal["train", "drop", "error"]
Empty = Literal["skip", "error"]
Saves = Literal["before_sync", "may_fail_late"]
Logs = Literal["before_callbacks", "may_fail_late"]
StepFunction = Callable[..., None]


@dataclass(frozen=True, slots=True)
class ProgramDef:
    """A step as its author wrote it, not traced yet.

    Attributes:
      name: name of the program.
      function: the step: ``function(step, **parameters)``.
      parameters: its parameters, in order.
      contract: its contract, unless the trace is given another option.
      doc: docstring of the function.
      loc: the line of its ``def``.
    """

    name: str
    function: StepFunction
    parameters: tuple[Parameter, ...]
    contract: Contract
    doc: str
    loc: Loc

    def trace(self, **params: AttrValue) -> Program:
        """The program as IR; the same as ``steptrace.trace(program, **params)``."""
        return trace(self, **params)


@overload
def program(function: StepFunction, /) -> ProgramDef: ...
@overload
def program(
    *,
    name: str = "",
    staleness: int = 0,
    weights: Weights = "pinned",
    partial: Partial = "train",
    empty: Empty = "skip",
    saves: Saves = "before_sync",
    logs: Logs = "before_callbacks",
) -> Callable[[StepFunction], ProgramDef]: ...
def program(
    function: StepFunction | None = None, /, *, name: str = "", **contract: Any
) -> ProgramDef | Callable[[StepFunction], ProgramDef]:
    """Make a function that writes out one train step a program.

    The function takes the step and then its parameters::

        @steptrace.program(staleness=1)
        def mine(step, prompts=32, samples=8):
            step.dispatch(prompts=prompts, samples=samples)
            ...

    Args:
      function: the function, when the decorator is used without parentheses.
      name: name of the program; the function's name when empty.
      **contract: what must stay exact and what may lag; see ``steptrace.ir.program.Contract``.
        ``staleness`` (updates), ``weights``, ``partial``, ``empty``, ``saves``, ``logs``.

    Raises:
      ProgramSignatureError: the function is no step.
      ContractOptionError: an option has a value it cannot have.
    """
    chosen = contract_with(Contract(), contract, user_loc())
    if function is not None:
        return _define(function, name, chosen)
    return lambda function: _define(function, name, chosen)


def _define(function: StepFunction, name: str, contract: Contract) -> ProgramDef:
    if not inspect.isfunction(function):
        raise ProgramSignatureError(f"a program is a function, not {function!r}", loc=user_loc())
    loc = loc_of(function)
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise ProgramSignatureError(f"`{function.__name__}` is no plain function: a step is straight code", loc=loc)
    given = list(inspect.signature(function).parameters.values())
    if not given or given[0].kind not in (given[0].POSITIONAL_ONLY, given[0].POSITIONAL_OR_KEYWORD):
        raise ProgramSignatureError(f"`{function.__name__}` takes no step: its first parameter is the step", loc=loc)
    parameters = tuple(parameter_of(parameter, loc) for parameter in given[1:])
    doc = inspect.cleandoc(function.__doc__ or "")
    return ProgramDef(name or function.__name__, function, parameters, contract, doc, loc)


def trace(program: ProgramDef, **params: AttrValue) -> Program:
    """Trace a program to IR: call its function once and record the ops; the result is verified.

    Before the step stands an initial weight sync; ``on_step_begin`` (with no effects) stands first and ``free``
    last in the step, unless the function wrote them.

    Args:
      program: what ``@steptrace.program`` made.
      **params: parameters of the program, and options of its contract (``staleness=1``).

    Raises:
      SteptraceError: with the user's line; see ``steptrace.diag.tracing`` and ``steptrace.diag.structure``.
      Exception: whatever the function itself raises, unchanged.
    """
    loc = user_loc()
    active = ACTIVE.get()
    if active is not None:
        raise active.refuse(NestedTraceError("a trace cannot start inside a trace", loc=loc))
    if not isinstance(program, ProgramDef):
        raise NotAProgramError(f"only programs are traced, not {program!r}", loc=loc)
    options = {name: value for name, value in params.items() if name in OPTIONS}
    contract = contract_with(program.contract, options, loc)
    given = {name: value for name, value in params.items() if name not in OPTIONS}
    values = values_of(program.name, program.parameters, given, loc)
    tracer = Tracer(contract)
    prologue = _initial_sync(tracer, program.loc)
    token = ACTIVE.set(tracer)
    try:
        program.function(Step(tracer), **values)
        body = tracer.close()
    except Exception as error:
        # What was refused before, and was caught or lost in another thread, is the cause of what failed later.
        if tracer.failure in (None, error) or isinstance(tracer.failure, LoopLeftError):
            raise
        raise tracer.failure from error
    finally:
        tracer.closed = True
        ACTIVE.reset(token)
    traced = _assemble(program, values, tracer, prologue, body)
    verify(traced, own_order=True)
    return traced


def _initial_sync(tracer: Tracer, loc: Loc) -> tuple[Node, ...]:
    """The weight sync before step 0: without it the first rollouts would come from weights nobody published."""
    kind = BUILTIN["sync_weights"]
    version = Result(tracer.names.fresh("v0"), Type(kind.results[0].base))
    return (Op(tracer.ids.fresh("initial_sync"), kind.name, results=(version,), lane=kind.lane, loc=loc),)


def _assemble(
    program: ProgramDef,
    values: Mapping[str, AttrValue],
    tracer: Tracer,
    prologue: tuple[Node, ...],
    body: tuple[Node, ...],
) -> Program:
    """The program around a traced body: what is inserted, its rows, and the resources it touches."""
    written = {op.kind for op in ops_of(body)}
    if "on_step_begin" not in written:
        body = (Op("on_step_begin", "on_step_begin", attrs=(("reads", ()), ("writes", ())), loc=program.loc), *body)
    if "free" not in written:
        body = (*body, Op("free", "free", lane=BUILTIN["free"].lane, loc=program.loc))
    return Program(
        name=program.name,
        params=tuple(values.items()),
        contract=tracer.contract,
        resources=_touched((*prologue, *body), tracer),
        kinds=tuple(tracer.rows.values()),
        carries=tuple(tracer.carries),
        prologue=prologue,
        body=body,
        loc=program.loc,
    )


def _touched(nodes: tuple[Node, ...], tracer: Tracer) -> tuple[Resource, ...]:
    """The resources that ops touch: the built-in ones in their order, then users' in order of first use."""
    rows = {**BUILTIN, **tracer.rows}
    names = dict.fromkeys(
        effect.resource
        for op in ops_of(nodes)
        for effect in effects_of(op, rows[op.kind], tracer.contract)
        if effect.resource != ANY
    )
    ordered = [name for name in RESOURCES if name in names] + [name for name in names if name not in RESOURCES]
    found = [find(name) for name in ordered]
    return tuple(resource for resource in found if resource is not None)
