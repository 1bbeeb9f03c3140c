"""What stands for a value while the step is traced, and the conditions made of flags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from steptrace.diag.base import Note
from steptrace.diag.loc import Loc
from steptrace.diag.tracing import (
    ForeignValueError,
    NotTracedError,
    OpCallError,
    TracedAttributeError,
    TracedBranchError,
    TracedValueError,
)
from steptrace.ir.predicate import Flag, Not, Or, Predicate, conjunction
from steptrace.ir.types import Type
from steptrace.lang.place import user_loc

if TYPE_CHECKING:
    from steptrace.lang.tracer import Tracer


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """What the tracer knows of a value.

    Attributes:
      name: its name in the IR.
      type: its type.
      loops: ids of the loops around its op, outermost first.
      conditions: the conditions its op runs under.
      loc: the user's line that made it.
      step: 0, or -1 for the previous step's.
      counter: True for the counter of a loop, which no op takes.
    """

    name: str
    type: Type
    loops: tuple[str, ...]
    conditions: tuple[Predicate, ...]
    loc: Loc
    step: int = 0
    counter: bool = False

    def __str__(self) -> str:
        return f"%{self.name}@k{self.step:+d}" if self.step else f"%{self.name}"


_OWN_OP = "put the computation into an op of your own, with @steptrace.op"
_COMBINE = "combine conditions with `&`, `|` and `~`, and put the ops under `with step.when(...):`"


def _refused(verb: str, help: str = _OWN_OP) -> Callable[..., NoReturn]:
    """A special method that refuses: the value cannot be ``verb``-ed while the step is traced."""

    def refuse(self: Traced | Condition, *_: object, **__: object) -> NoReturn:
        raise self._tracer.refuse(
            TracedValueError(
                f"`{self._shown()}` cannot be {verb}: it has no value while the step is traced",
                loc=user_loc(),
                notes=self._made_here(),
                help=help,
            )
        )

    return refuse


class Traced:
    """A value of the step: a name and a type now, a value when the step runs.

    Flags combine with ``&``, ``|`` and ``~`` into conditions for ``step.when``. Anything else that Python
    could do with a value is refused, with the line that tried.
    """

    __slots__ = ("_definition", "_tracer")

    _tracer: Tracer
    _definition: Definition

    def __init__(self, tracer: Tracer, definition: Definition) -> None:
        object.__setattr__(self, "_tracer", tracer)
        object.__setattr__(self, "_definition", definition)

    def __repr__(self) -> str:
        return f"<traced {self._definition} : {self._definition.type}>"

    def __format__(self, spec: str) -> str:
        return self._unformatted(spec) if spec else str(self)

    def __copy__(self) -> Traced:
        return self

    def __deepcopy__(self, memo: object) -> Traced:
        return self

    def __bool__(self) -> bool:
        raise self._tracer.refuse(branch_error(str(self._definition), self._made_here()))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        # Not recorded as the trace's failure: `hasattr` may ask and go on.
        raise TracedAttributeError(
            f"`{self._definition}` has no `{name}`: it has no value while the step is traced",
            loc=user_loc(),
            notes=self._made_here(),
            help="read it in an op of your own, with @steptrace.op",
        )

    def __and__(self, other: object) -> Condition:
        return as_condition(self, self._tracer) & other

    def __or__(self, other: object) -> Condition:
        return as_condition(self, self._tracer) | other

    def __rand__(self, other: object) -> Condition:
        return as_condition(other, self._tracer) & self

    def __ror__(self, other: object) -> Condition:
        return as_condition(other, self._tracer) | self

    def __invert__(self) -> Condition:
        return ~as_condition(self, self._tracer)

    def _shown(self) -> str:
        return str(self._definition)

    def _made_here(self) -> tuple[Note, ...]:
        return (Note(f"`{self._definition}` : {self._definition.type} is made here", self._definition.loc),)

    __hash__ = object.__hash__
    __eq__ = _refused("compared")
    __ne__ = _refused("compared")
    __lt__ = __le__ = __gt__ = __ge__ = _refused("compared")
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refused("computed with")
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _refused("computed with")
    __divmod__ = __rdivmod__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refused("computed with")
    __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refused("computed with")
    __neg__ = __pos__ = __abs__ = __xor__ = __rxor__ = _refused("computed with")
    __int__ = __float__ = __index__ = __complex__ = _refused("turned into a number")
    __round__ = __trunc__ = __floor__ = __ceil__ = _refused("rounded")
    __array__ = __jax_array__ = _refused("turned into an array")
    _unformatted = _refused("written out in a format")
    __setattr__ = __delattr__ = _refused("changed")
    __await__ = __aiter__ = _refused("awaited")
    __reduce_ex__ = _refused("pickled")
    __enter__ = __exit__ = _refused("entered", "put the ops under `with step.when(...):`")
    __len__ = _refused("measured with len()")
    __iter__ = __next__ = __reversed__ = _refused("iterated over")
    __getitem__ = __setitem__ = __delitem__ = _refused("indexed")
    __contains__ = _refused("searched")
    __call__ = _refused("called")


class Condition:
    """A condition under which ops run: ``with`` traces what is inside under it.

    Made by ``step.every``, ``step.when``, ``step.first``, ``step.last``, ``step.micro_is`` and ``step.has``;
    combined with ``&``, ``|``, ``~``, also with flags.
    """

    __slots__ = ("_flags", "_predicate", "_tracer")

    def __init__(self, tracer: Tracer, predicate: Predicate, flags: tuple[Traced, ...] = ()) -> None:
        self._tracer = tracer
        self._predicate = predicate
        self._flags = flags

    def __repr__(self) -> str:
        return f"<condition {self._predicate}>"

    def __bool__(self) -> bool:
        raise self._tracer.refuse(branch_error(str(self._predicate)))

    def __call__(self, *args: object) -> NoReturn:
        """Refuses `step.first()`: only `every`, `when`, `micro_is` and `has` take something."""
        message = f"`{self._predicate}` is a condition, and takes no arguments or brackets"
        how = f"with step.{self._predicate}:" if str(self._predicate) in ("first", "last") else "with condition:"
        raise self._tracer.refuse(OpCallError(message, loc=user_loc(), help=f"write `{how}`"))

    def __and__(self, other: object) -> Condition:
        return self._joined(as_condition(other, self._tracer), conjunction)

    def __or__(self, other: object) -> Condition:
        return self._joined(as_condition(other, self._tracer), _disjunction)

    def __rand__(self, other: object) -> Condition:
        return as_condition(other, self._tracer) & self

    def __ror__(self, other: object) -> Condition:
        return as_condition(other, self._tracer) | self

    def __invert__(self) -> Condition:
        term = self._predicate
        negated = Condition(self._tracer, term.term if isinstance(term, Not) else Not(term), self._flags)
        return self._instead(negated, self)

    def __enter__(self) -> None:
        self._tracer.enter_condition(self)

    def __exit__(self, failed: object, *_: object) -> None:
        self._tracer.leave_condition(self, failed=failed is not None)

    def _joined(self, other: Condition, join: Callable[[Predicate, Predicate], Predicate]) -> Condition:
        joined = Condition(self._tracer, join(self._predicate, other._predicate), (*self._flags, *other._flags))
        return self._instead(joined, self, other)

    def _instead(self, made: Condition, *parts: Condition) -> Condition:
        """``made``, which is to be used where its parts were."""
        settled = [self._tracer.settle(part) for part in parts]
        if any(settled):
            self._tracer.expect_use(made)
        return made

    def _shown(self) -> str:
        return str(self._predicate)

    def _made_here(self) -> tuple[Note, ...]:
        return ()

    __hash__ = object.__hash__
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __xor__ = __rxor__ = _refused("compared", _COMBINE)
    __len__ = __iter__ = __contains__ = __int__ = __index__ = _refused("looked into", _COMBINE)


def _disjunction(a: Predicate, b: Predicate) -> Predicate:
    """``a or b``, flat and without repetitions."""
    flat = [part for term in (a, b) for part in (term.terms if isinstance(term, Or) else (term,))]
    terms = tuple(dict.fromkeys(flat))
    return terms[0] if len(terms) == 1 else Or(terms)


def branch_error(what: str, notes: tuple[Note, ...] = ()) -> TracedBranchError:
    """The error for Python branching on ``what``, at the user's line."""
    return TracedBranchError(
        f"Python cannot branch on `{what}`: it has no value while the step is traced",
        loc=user_loc(),
        notes=notes,
        help="put the ops under `with step.when(...):`; combine conditions with `&`, `|`, `~`",
    )


def as_condition(value: object, tracer: Tracer) -> Condition:
    """A condition of this trace: a flag or a condition. Anything else is refused."""
    if isinstance(value, Condition):
        if value._tracer is not tracer:
            raise tracer.refuse(
                ForeignValueError(f"condition `{value._predicate}` belongs to another trace", loc=user_loc())
            )
        return value
    if not isinstance(value, Traced):
        raise tracer.refuse(
            NotTracedError(
                f"a condition is made of flags and of the step's conditions, not of {value!r}",
                loc=user_loc(),
                help="step.first, step.last, step.every(n), step.has(...), or a flag that an op gave",
            )
        )
    definition = tracer.definition_of(value, "a condition")
    if definition.type.base != "flag":
        raise tracer.refuse(
            NotTracedError(
                f"a condition is made of flags: `{definition}` is of type {definition.type}",
                loc=user_loc(),
                notes=(Note("made here", definition.loc),),
            )
        )
    return Condition(tracer, Flag(definition.name), (value,))
