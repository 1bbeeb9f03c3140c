"""Numbers carried from step to step."""

from __future__ import annotations

from steptrace.diag.base import Note
from steptrace.diag.loc import Loc
from steptrace.diag.tracing import CarryError
from steptrace.ir.program import Carry
from steptrace.ir.types import Type
from steptrace.lang.attributes import fitted
from steptrace.lang.tracer import Tracer
from steptrace.lang.values import Definition, Traced


def declare(tracer: Tracer, name: str, init: float) -> CarriedValue:
    """A new carry of this trace; its name must be free."""
    loc = tracer.require_open(f"carry `{name}`")
    if not isinstance(name, str) or not name.isidentifier() or name in tracer.names:
        raise tracer.refuse(CarryError(f"a carry needs a name that no value has, not {name!r}", loc=loc))
    if not isinstance(init, int | float) or fitted(init, float) is None:
        raise tracer.refuse(CarryError(f"carry `{name}` starts from a number, not {init!r}", loc=loc))
    tracer.names.fresh(name)
    tracer.carries.append(Carry(name, float(init), loc))
    carried = CarriedValue(tracer, name, loc)
    tracer.expect(carried, CarryError(f"carry `{name}` is never set", loc=loc))
    return carried


class CarriedValue:
    """A carry within its step. Set it once, outside loops and conditions."""

    def __init__(self, tracer: Tracer, name: str, loc: Loc) -> None:
        self._tracer = tracer
        self._name = name
        self._loc = loc
        self._set_at: Loc | None = None

    def __repr__(self) -> str:
        return f"<carry %{self._name}>"

    @property
    def value(self) -> Traced:
        """The value that the previous step set; ``init`` in step 0. A scalar."""
        self._tracer.require_open(f"carry `{self._name}`")
        return Traced(self._tracer, Definition(self._name, Type("scalar"), (), (), self._loc, step=-1))

    def set(self, value: Traced) -> None:
        """Let the next step see ``value``, a scalar that an op of this step made."""
        loc = self._tracer.require_open(f"carry `{self._name}`")
        reason = self._misfit(value)
        if reason:
            notes = [Note("the carry is declared here", self._loc)]
            notes += [Note("it is set here", self._set_at)] if self._set_at else []
            raise self._tracer.refuse(CarryError(f"carry `{self._name}` {reason}", loc=loc, notes=tuple(notes)))
        self._set_at = loc
        self._tracer.settle(self)
        self._tracer.renamed[value._definition.name] = self._name

    def _misfit(self, value: object) -> str:
        """Why ``value`` cannot be carried; "" when it can."""
        if self._set_at is not None:
            return "is set twice"
        if not isinstance(value, Traced):
            return f"is set to what an op of this step made, not to {value!r}"
        definition = self._tracer.definition_of(value, f"carry `{self._name}`")
        if definition.type.base != "scalar":
            return f"is a scalar; `{definition}` is of type {definition.type}"
        if definition.counter or definition.step or definition.name in self._tracer.renamed:
            return f"needs a value of its own; `{definition}` is not made by an op of this step, or is carried already"
        if definition.loops or definition.conditions:
            return "is set outside loops and conditions: every step must hand on a value"
        return ""
