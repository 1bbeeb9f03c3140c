"""One call of a user's op under the effect sanitizer, without a run around it."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from steptrace.ir import Contract, Effect, Op, effects_of
from steptrace.lang.user_ops import UserOp
from steptrace.run.own_ops import context_of
from steptrace.run.resources import Cell, Resources
from steptrace.run.rng import key_for
from steptrace.run.sanitize import check_captured, held_arrays, unchanged_behind


@dataclass
class _Given:
    """Values of resources by name as a test gives them, ``notes[k-1]``."""

    values: MutableMapping[str, Any]
    step: int
    names: dict[Cell, str] = field(default_factory=dict)

    def get(self, cell: Cell) -> Any:
        return self.values.get(self._name(cell))

    def put(self, cell: Cell, value: Any) -> None:
        self.values[self._name(cell)] = value

    def _name(self, cell: Cell) -> str:
        name, step, _ = cell
        if step is None:
            return name
        ahead = step - self.step
        return f"{name}[k{ahead:+d}]" if ahead else f"{name}[k]"


def sanitized_call(
    op: UserOp, *args: Any, step: int = 0, resources: MutableMapping[str, Any] | None = None, **attrs: Any
) -> Any:
    """Call an op as a sanitized run would, and return what it returns.

    Args:
      op: a function under ``@steptrace.op``.
      args: its operands.
      step: the step it is called for.
      resources: values by name, ``{"notes[k-1]": 3}``; what the op writes is added.
      attrs: its attributes.

    Raises:
      UndeclaredAccessError, UnreachableResourceError: it touched what it does not declare, or what there is not.
      CapturedStateError: it holds a model that it does not declare.
      ChangedInPlaceError: it changed an operand in place.
    """
    kind = op.kind
    declared = effects_of(Op(id=kind.name, kind=kind.name, attrs=tuple(attrs.items())), kind, Contract())
    check_captured(op.function, kind.name, declared, {}, frozenset())
    given = dict(attrs)
    asked = context_of(op.function, kind)
    if "step" in asked:
        given["step"] = step
    if "key" in asked:
        given["key"] = key_for(0, kind.name, step, 0)
    if "resources" in asked:
        given["resources"] = _resources(kind.name, declared, {} if resources is None else resources, step)
    operands = dict(zip((operand.name for operand in kind.operands), args, strict=True))
    with unchanged_behind(kind.name, op.function, operands, held_arrays(op.function)):
        return op.function(*args, **given)


def _resources(name: str, declared: tuple[Effect, ...], values: MutableMapping[str, Any], step: int) -> Resources:
    return Resources(name, declared, 0, step, 0, _Given(values, step))
