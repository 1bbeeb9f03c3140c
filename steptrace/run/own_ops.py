"""Users' ops: which function stands behind one, what it is given, and what it must give back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from steptrace.diag.base import Note
from steptrace.diag.binding import UnboundOpError, WrongPartError
from steptrace.diag.running import TaskValueError
from steptrace.ir import Op, OpKind
from steptrace.lang.records import Group, MicroBatch
from steptrace.lang.rows import CONTEXT
from steptrace.lang.user_ops import UserOp, implementation
from steptrace.lower import Call
from steptrace.run.borders import checked_metrics, described, is_groups, is_number, same_groups
from steptrace.run.instance import At
from steptrace.run.rng import key_for

if TYPE_CHECKING:
    from steptrace.run.session import Session


@dataclass(frozen=True, slots=True)
class OwnOp:
    """A user's op, bound.

    Attributes:
      function: the implementation.
      kind: its row.
      context: which of `steptrace.lang.rows.CONTEXT` it asks for.
    """

    function: Callable[..., Any]
    kind: OpKind
    context: tuple[str, ...]

    def __call__(self, run: Session, at: At, *args: Any) -> tuple[Any, ...]:
        """Run one instance.

        Raises:
          TaskValueError: it returned something else than its row declares.
          MixedGroupsError: it returned groups that it was not given.
        """
        given: dict[str, Any] = dict(at.op.attrs)
        if "step" in self.context:
            given["step"] = at.step
        if "key" in self.context:
            given["key"] = key_for(run.seed, at.path, at.step % 2**32, at.item)
        if "resources" in self.context:
            given["resources"] = run.resources.of(self.kind, at)
        made = self.function(*args, **given)
        declared = self.kind.results
        if not declared:
            return ()
        values = made if len(declared) > 1 else (made,)
        if not isinstance(values, tuple) or len(values) != len(declared):
            raise TaskValueError(
                f"`{at.op.id}` returned a {type(made).__name__}, and declares {len(declared)} results, in a tuple",
                loc=at.op.loc,
                help=f"return {', '.join(result.name for result in declared)}",
            )
        given_groups = [
            arg
            for arg, spec in zip(args, self.kind.operands, strict=True)
            if spec.base in ("groups", None) and is_groups(arg)
        ]
        return tuple(
            _checked(value, result.base, given_groups, at) for value, result in zip(values, declared, strict=True)
        )


def own_op(call: Call, bind: Mapping[str, Any], roles: Sequence[str]) -> OwnOp:
    """The function behind a user's op: what was bound by name, else what defined it.

    Args:
      call: a call of the op.
      bind: parts by role, and functions by name.
      roles: the names that stand for roles, never for an op.

    Raises:
      UnboundOpError: there is none.
      WrongPartError: it cannot be called as the op is.
    """
    name = call.kind.name
    bound = None if name in roles else bind.get(name)
    function = bound if bound is not None else implementation(call.kind)
    if function is None:
        raise UnboundOpError(
            f"the op `{name}` has no implementation here",
            loc=call.op.loc,
            notes=_other_declaration(name),
            help=f'import the module that defines it, or bind it: bind={{"{name}": ...}}',
        )
    if isinstance(function, UserOp):
        function = function.function
    if not callable(function):
        raise WrongPartError(f"`{name}` is bound to a {type(function).__name__}, which cannot be called")
    context = context_of(function, call.kind)
    _check_signature(function, call.op, context)
    return OwnOp(function, call.kind, context)


def _other_declaration(name: str) -> tuple[Note, ...]:
    if implementation(name) is None:
        return ()
    return (Note(f"an op `{name}` is defined, with another declaration than the program has"),)


def context_of(function: Callable[..., Any], kind: OpKind) -> tuple[str, ...]:
    """Which of `CONTEXT` the function asks for; an attribute of that name is an attribute."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins do not tell
        return ()
    asked = [name for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    return tuple(name for name in CONTEXT if name in asked and kind.attr_spec(name) is None)


def _check_signature(function: Callable[..., Any], op: Op, context: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*op.args, **dict(op.attrs), **dict.fromkeys(context))
    except TypeError as error:
        raise WrongPartError(
            f"the function of `{op.kind}`, {signature}, cannot be called as the step calls it: {error}", loc=op.loc
        ) from None


def _checked(value: Any, base: str, given_groups: Sequence[Sequence[Group]], at: At) -> Any:
    """A value that a user's op returned, if it is of type ``base``; groups among those it was given, if any were."""
    if base == "metrics":
        return checked_metrics(value, f"`{at.op.id}`", at, TaskValueError)
    if not _FITS.get(base, _is_something)(value):
        declared = _WORDS.get(base, f"a {base}")
        gone = (
            "end the op with a `return`"
            if value is None
            else "return what `gives` declares, or declare what it returns"
        )
        message = f"`{at.op.id}` returned {described(value)}, and declares {declared}"
        raise TaskValueError(message, loc=at.op.loc, help=gone)
    if base != "groups":
        return value
    return (
        same_groups(value, [group for groups in given_groups for group in groups], at) if given_groups else list(value)
    )


def _is_something(value: Any) -> bool:
    return value is not None


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or (
        getattr(value, "shape", None) == () and jnp.issubdtype(getattr(value, "dtype", object), jnp.bool_)
    )


def _is_version(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_micro_batch(value: Any) -> bool:
    """Whether a value is a micro-batch whose arrays are all of one shape."""
    if not isinstance(value, MicroBatch):
        return False
    return len({tuple(getattr(array, "shape", ())) for array in value.arrays.values()}) == 1


def _is_batch(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_micro_batch, value))


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "groups": is_groups,
    "batch": _is_batch,
    "micro_batch": _is_micro_batch,
    "version": _is_version,
    "flag": _is_flag,
    "scalar": is_number,
}

_WORDS: Mapping[str, str] = {
    "groups": "groups: a list of steptrace.Group",
    "batch": "a batch: a list of steptrace.MicroBatch",
    "micro_batch": "a steptrace.MicroBatch whose arrays are all [rows, length]",
    "version": "a version: an int",
    "flag": "a flag: True or False",
    "scalar": "a scalar: a number",
}
