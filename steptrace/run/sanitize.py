"""The effect sanitizer: runs users' ops so that what they do beside their declaration is found.

It finds, and refuses with the user's line:

- a model or another part of the run that an op holds in its closure, in globals it names, in its defaults or in its
  object, before step 0;
- a value that an op is given and changes in place, and a numpy array that it holds and changes.

Accesses by ``resources`` that an op does not declare, wrong cells included, are refused in every run, sanitized or not.
At its end a run says which declared effects were never used by the ops that ask for ``resources``.

It cannot see: state of Python that is no array (a list that an op appends to, a file, a service); effects of the parts
that are bound to roles; reads of an array that is no parameter; changes that are undone before the op returns; changes
of an array through memory that numpy does not own, after which only the content is compared; whatever runs in another
process. What a run does not do, it does not check: an access behind a condition that is never true is not found.

Everything an op is given is hashed before and after it, so a sanitized run is slower; what it trains is the same.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from steptrace.diag.base import Note
from steptrace.diag.loc import Loc
from steptrace.diag.sanitize import CapturedStateError, ChangedInPlaceError
from steptrace.ir import ANY, Access, Effect, OpKind, effects_of
from steptrace.lower import Plan
from steptrace.run.binding import Parts
from steptrace.run.borders import checked_weights
from steptrace.run.instance import At
from steptrace.run.own_ops import OwnOp
from steptrace.run.resources import OwnResources, is_readable
from steptrace.run.sanitize_capture import held_by, is_copy, is_model, weight_hashes
from steptrace.run.sanitize_values import fingerprint, first_difference, read_only

if TYPE_CHECKING:
    from steptrace.run.session import Session

_OWN_STATE = {"trainer": "the trainer", "rollout": "the rollout", "reference": "the reference"}
_FROZEN = "reference.params"


@dataclass(frozen=True)
class SanitizedOp(OwnOp):
    """A user's op whose operands, and whose own arrays, are the same behind it as in front of it.

    Attributes:
      held: arrays of numpy that the function held when the run began, by name.
    """

    held: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __call__(self, run: Session, at: At, *args: Any) -> tuple[Any, ...]:
        """Run one instance.

        Raises:
          ChangedInPlaceError: it changed something in place; else as `OwnOp`.
        """
        names = [operand.name for operand in self.kind.operands]
        with unchanged_behind(at.op.id, self.function, dict(zip(names, args, strict=True)), self.held):
            return super().__call__(run, at, *args)


@contextmanager
def unchanged_behind(
    op: str, function: Any, given: Mapping[str, Any], held: Mapping[str, np.ndarray]
) -> Iterator[None]:
    """Inside, an op runs that must leave as they are what it is given, and the arrays that its function holds.

    Args:
      op: its id.
      function: its function.
      given: its operands by name.
      held: arrays that the function holds, by name.

    Raises:
      ChangedInPlaceError: it changed something.
    """
    before = _prints(given, held)
    try:
        with read_only(list(given.values())):
            yield
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        what = f"wrote to a read-only array, as those are that it is given: {error}"
        raise _changed(op, what, _last_line(error)) from error
    difference = first_difference(before, _prints(given, held))
    if difference is not None:
        raise _changed(op, f"changed `{difference}` in place", _defined(function))


def held_arrays(function: Any) -> dict[str, np.ndarray]:
    """Arrays of numpy that a function holds outside its operands, by name."""
    return {f"{name} (outside the op)": value for name, value in held_by(function) if isinstance(value, np.ndarray)}


def _prints(given: Mapping[str, Any], held: Mapping[str, np.ndarray]) -> dict[str, object]:
    prints: dict[str, object] = {}
    for name, value in (*given.items(), *held.items()):
        prints |= fingerprint(value, name)
    return prints


def sanitized(parts: Parts, plan: Plan) -> Parts:
    """The parts, with users' ops under the sanitizer.

    Raises:
      CapturedStateError: an op holds the trained model or another part, and does not declare it.
    """
    hashes = weight_hashes(checked_weights(parts.trainer.weights())[0]) if _can_say(parts.trainer) else frozenset()
    owned = {id(part): words for role, words in _OWN_STATE.items() if (part := getattr(parts, role)) is not None}
    ops = {}
    for call in plan.calls():
        own = parts.ops.get(call.kind.name)
        if own is not None and call.kind.name not in ops:
            declared = effects_of(call.op, call.kind, plan.program.contract)
            check_captured(own.function, call.op.id, declared, owned, hashes)
            ops[call.kind.name] = SanitizedOp(own.function, own.kind, own.context, held_arrays(own.function))
    return replace(parts, ops=ops)


def check_captured(
    function: Any, op: str, declared: tuple[Effect, ...], owned: Mapping[int, str], hashes: frozenset[bytes]
) -> None:
    """Refuse a function that holds parameters which the op does not declare.

    Args:
      function: the function of the op.
      op: its id.
      declared: its effects; one that declares nothing may hold anything, since it may not be moved at all.
      owned: parts of the run, in words by their identity.
      hashes: of the parameters that are trained.

    Raises:
      CapturedStateError: it does.
    """
    read = {effect.resource for effect in declared if effect.access is not Access.WRITE}
    if ANY in read:
        return
    for name, value in held_by(function):
        words = owned.get(id(value))
        if words is not None and (words != _OWN_STATE["reference"] or _FROZEN not in read):
            raise _captured(op, name, words, function)
        if read & {"params", _FROZEN}:
            continue
        if is_model(value):
            raise _captured(op, name, "a module of NNX, or part of one", function)
        if is_copy(value, hashes):
            raise _captured(op, name, "an array with the content of trained parameters", function)


def unused_effects(resources: OwnResources, plan: Plan, parts: Parts) -> list[str]:
    """What users' ops declare and never used in a run, in words."""
    remarks = []
    for id, used in sorted(resources.used.items()):
        call = next(call for call in plan.calls() if call.op.id == id)
        for effect in effects_of(call.op, call.kind, plan.program.contract):
            if effect not in used and effect.resource != ANY and not _by_operand(effect, call.kind):
                remarks.append(f"`{id}` declares that it {effect.access.value} `{effect.target}`, and never did")
    for call in plan.calls():
        own = parts.ops.get(call.kind.name)
        if own is None or "resources" in own.context:
            continue
        for effect in effects_of(call.op, call.kind, plan.program.contract):
            if is_readable(effect.resource) and not _by_operand(effect, call.kind):
                remarks.append(
                    f"`{call.op.id}` declares that it {effect.access.value} `{effect.target}`, "
                    "and asks for no `resources` to do it by"
                )
    return remarks


def _by_operand(effect: Effect, kind: OpKind) -> bool:
    """Whether an effect is used by looking into an operand: groups and micro-batches are host memory."""
    bases = {operand.base for operand in kind.operands}
    held = {"host": {"groups", "batch", "micro_batch", None}, "metrics": {"metrics", None}}
    return bool(held.get(effect.resource, set()) & bases)


def _can_say(trainer: Any) -> bool:
    return callable(getattr(trainer, "weights", None))


def _captured(op: str, name: str, what: str, function: Any) -> CapturedStateError:
    return CapturedStateError(
        f"`{op}` holds `{name}`, {what}, and does not declare it",
        loc=_defined(function),
        help='add reads=["params"] and ask resources.read("params"); for a frozen model add reads=["reference.params"]',
    )


def _changed(op: str, what: str, loc: Loc | None) -> ChangedInPlaceError:
    help = "return a new value: dataclasses.replace(group, rewards=...), array.copy()"
    if "(outside the op)" in what:
        help = "keep it in a resource: steptrace.resource(...), declared in `reads` and `writes` of the op"
    notes = (Note("others read the same values, under a schedule at the same time"),)
    return ChangedInPlaceError(f"`{op}` {what}", loc=loc, notes=notes, help=help)


def _defined(function: Any) -> Loc | None:
    """Where a function is defined."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return None if code is None else Loc(code.co_filename, code.co_firstlineno)


def _last_line(error: BaseException) -> Loc | None:
    """The innermost line of a failure that is the user's."""
    frames = [
        frame
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("steptrace", "numpy")
    ]
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame in frames]
    return Loc(frames[-1].f_code.co_filename, lines[-1]) if frames else None
