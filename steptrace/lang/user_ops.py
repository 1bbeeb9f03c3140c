"""Ops that users write: the decorator, its row of the op table, and the implementations by row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, overload

from steptrace.diag.base import did_you_mean
from steptrace.diag.tracing import OpCallError, OpDeclarationError
from steptrace.ir.kind import OpKind
from steptrace.lang.place import loc_of, user_loc
from steptrace.lang.resources import Pattern
from steptrace.lang.rows import declared_row, is_context
from steptrace.lang.tracer import ACTIVE, Tracer
from steptrace.lang.values import Traced

_defined: dict[str, list[UserOp]] = {}


@dataclass(frozen=True, eq=False)
class UserOp:
    """A user's op: called while a step is traced it records itself, called outside with real values it runs.

    Attributes:
      function: the implementation: operands in order, attributes by name; returns what the row gives, a tuple
        when it gives more than one value.
      kind: its row of the op table.
    """

    function: Callable[..., Any]
    kind: OpKind

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.function.__doc__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record the op while a trace runs, or when an argument is traced; otherwise run it."""
        traced = [value for value in (*args, *kwargs.values()) if isinstance(value, Traced)]
        tracer = ACTIVE.get() or (traced[0]._tracer if traced else None)
        if tracer is None:
            return self.function(*args, **kwargs)
        return self._record(tracer, args, kwargs)

    def _signature(self) -> inspect.Signature:
        """What a step gives: the function's parameters without those that the runtime fills."""
        whole = inspect.signature(self.function)
        return whole.replace(parameters=[item for item in whole.parameters.values() if not is_context(item)])

    def _record(self, tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        signature = self._signature()
        unknown = next((key for key in kwargs if key not in signature.parameters), None)
        if unknown is not None:
            near = did_you_mean(unknown, signature.parameters)
            message = f"`{self.kind.name}` has no argument `{unknown}`"
            help = f"{near} {self.kind.name}{signature}".strip()
            raise tracer.refuse(OpCallError(message, loc=user_loc(), help=help))
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise tracer.refuse(OpCallError(f"`{self.kind.name}`: {error}", loc=user_loc())) from None
        names = [operand.name for operand in self.kind.operands]
        attrs = {name: value for name, value in bound.items() if name not in names}
        results = tracer.emit(self.kind, [bound[name] for name in names], attrs)
        if not results:
            return None
        return results[0] if len(results) == 1 else results


@overload
def op(function: Callable[..., Any], /) -> UserOp: ...
@overload
def op(
    *,
    takes: Sequence[str] = (),
    gives: str | Sequence[str] = (),
    reads: Sequence[Pattern] | None = None,
    writes: Sequence[Pattern] | None = None,
    lane: str = "host",
    blocking: bool = True,
    may_fail: bool = True,
    name: str = "",
) -> Callable[[Callable[..., Any]], UserOp]: ...
def op(
    function: Callable[..., Any] | None = None,
    /,
    *,
    takes: Sequence[str] = (),
    gives: str | Sequence[str] = (),
    reads: Sequence[Pattern] | None = None,
    writes: Sequence[Pattern] | None = None,
    lane: str = "host",
    blocking: bool = True,
    may_fail: bool = True,
    name: str = "",
) -> UserOp | Callable[[Callable[..., Any]], UserOp]:
    """Make a function an op of the step, whose body is its implementation::

        @steptrace.op(takes=("groups",), gives="groups<penalised>", reads=["host[k]"], writes=[])
        def length_penalty(groups, *, weight: float = 0.1):
            return [...]                                  # real groups: list of steptrace.Group

        @steptrace.program
        def mine(step):
            ...
            groups = length_penalty(groups, weight=0.2)   # recorded

    The first parameters are the operands, as many as ``takes`` has types; the others are attributes, fixed
    when the step is traced. Keyword-only parameters ``step``, ``key`` and ``resources`` without a default are filled
    when the op runs: the step's number; a JAX PRNG key that is a function of (seed, op, step, round of its loop); and
    the resources, with ``resources.read("notes[k-1]")`` and ``resources.write("notes[k]", value)``. An access that the
    op does not declare is an error.

    Args:
      function: the function, when the decorator is used without parentheses.
      takes: types of the operands: ``"groups"``, ``"groups<rewards>"`` (fields it reads), ``"any"``.
      gives: types of the results: ``"groups<penalised>"`` keeps the fields of the first operand with the same
        base type and adds one; ``"share: scalar"`` names the value.
      reads: resources it reads; with neither ``reads`` nor ``writes`` it touches everything.
      writes: resources it writes.
      lane: the lane that issues it.
      blocking: whether it returns only when its work is finished.
      may_fail: whether it can fail for a reason outside the program.
      name: its name; the function's name when empty.

    Returns:
      A ``UserOp``, or a decorator that makes one.

    Raises:
      OpDeclarationError: the declaration does not fit the function.
      ResourceError: an effect names no declared resource.
    """

    row_of = partial(
        declared_row,
        takes=takes,
        gives=gives,
        reads=reads,
        writes=writes,
        lane=lane,
        blocking=blocking,
        may_fail=may_fail,
    )
    return partial(_define, name, row_of) if function is None else _define(name, row_of, function)


def _define(name: str, row_of: Callable[..., OpKind], function: Callable[..., Any]) -> UserOp:
    if not inspect.isfunction(function):
        raise OpDeclarationError(f"an op is a function, not {function!r}", loc=user_loc())
    made = UserOp(function, row_of(function, loc_of(function), name=name or function.__name__))
    _defined.setdefault(made.kind.name, []).append(made)
    return made


def implementation(row: OpKind | str) -> Callable[..., Any] | None:
    """The function behind a user's op, or None when no module that defines it was imported.

    Args:
      row: a row of ``Program.kinds``, which is the very row of its op when the program was traced in this
        process. A row that was parsed stands for the function defined last with an equal row, at the same place
        if there is one (a text may spell the file otherwise); a name for the function defined last.
    """
    if isinstance(row, str):
        known = _defined.get(row, [])
        return known[-1].function if known else None
    known = _defined.get(row.name, [])
    alike = [candidate for candidate in known if _signature(candidate.kind) == _signature(row)]
    placed = [candidate for candidate in alike if candidate.kind.loc == row.loc]
    same = [candidate for candidate in placed if candidate.kind is row]
    chosen = same or placed or alike
    return chosen[-1].function if chosen else None


def _signature(row: OpKind) -> OpKind:
    """The row without what its text form does not carry."""
    return replace(row, loc=None, doc="", example="")
