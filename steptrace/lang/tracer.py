"""The state of one trace: what was recorded so far, and which values are in scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from steptrace.diag.base import Note, SteptraceError
from steptrace.diag.loc import Loc
from steptrace.diag.tracing import (
    ConditionLeftError,
    ForeignValueError,
    LoopLeftError,
    NotTracedError,
    OperandError,
    OpNameClashError,
    OutOfScopeError,
    UnusedError,
)
from steptrace.ir.kind import OpKind
from steptrace.ir.predicate import Predicate, conjunction
from steptrace.ir.program import Carry, Contract, Loop, LoopKind, Node, Op, Result, Use
from steptrace.ir.types import AttrValue, Type
from steptrace.ir.verify.conditions import implies
from steptrace.lang.attributes import attributes
from steptrace.lang.place import user_loc
from steptrace.lang.values import Condition, Definition, Traced

ACTIVE: ContextVar[Tracer | None] = ContextVar("steptrace_trace", default=None)
"""The trace that is running, if any."""


class Names:
    """Unique names: ``mb``, ``mb.2``, ``mb.3``."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def fresh(self, base: str) -> str:
        """``base``, or the first ``base.N`` that is free; taken from now on."""
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}.{count}"
        self._taken.add(name)
        return name

    def __contains__(self, name: str) -> bool:
        return name in self._taken


@dataclass
class OpenLoop:
    """A loop whose body is being traced; ``conditions`` is how many it stands under."""

    id: str
    kind: LoopKind
    var: str
    over: Use | None
    count: int | None
    loc: Loc
    conditions: int
    body: list[Node] = field(default_factory=list)


class Tracer:
    """Records ops, loops and conditions in the order in which the user's function calls for them.

    The first refusal is kept and raised again when the trace ends, so that user code that catches it cannot
    turn a refused step into a program.
    """

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.body: list[Node] = []
        self.rows: dict[str, OpKind] = {}
        self.carries: list[Carry] = []
        self.renamed: dict[str, str] = {}
        self.names = Names()
        self.ids = Names()
        self.failure: SteptraceError | None = None
        self.closed = False
        self._loops: list[OpenLoop] = []
        self._entered: list[tuple[Condition, Loc]] = []
        self._pending: dict[int, tuple[object, SteptraceError]] = {}

    def refuse(self, error: SteptraceError) -> SteptraceError:
        """Keep the first error of the trace; returns ``error`` to be raised."""
        if self.failure is None and not self.closed:
            self.failure = error
        return error

    def require_open(self, what: str) -> Loc:
        """The user's line; refuses ``what`` after the trace ended or once a loop was left."""
        loc = user_loc()
        if self.closed or ACTIVE.get() is not self:
            here = self.closed or ACTIVE.get() is not None
            raise self.refuse(
                ForeignValueError(
                    f"{what} belongs to a trace that " + ("is not running" if here else "runs in another thread"),
                    loc=loc,
                    help="use the step and its values only inside the function that is traced",
                )
            )
        if isinstance(self.failure, LoopLeftError):
            raise self.failure
        return loc

    # Ops

    def emit(
        self, kind: OpKind, operands: Sequence[object] = (), attrs: Mapping[str, object] | None = None
    ) -> tuple[Traced, ...]:
        """Record an op of this row; returns its results."""
        loc = self.require_open(f"`{kind.name}`")
        try:
            self._admit(kind, loc)
            used = [self.operand(kind, position, value) for position, value in enumerate(operands)]
            chosen = attributes(kind, attrs or {}, loc)
        except SteptraceError as error:
            raise self.refuse(error) from None
        types = kind.result_types(tuple(definition.type for definition in used))
        defined = [self.define(given.name, type_, loc) for given, type_ in zip(kind.results, types, strict=True)]
        self._record(kind, used, chosen, defined, loc)
        return tuple(Traced(self, definition) for definition in defined)

    def _record(
        self,
        kind: OpKind,
        used: Sequence[Definition],
        attrs: tuple[tuple[str, AttrValue], ...],
        defined: Sequence[Definition],
        loc: Loc,
    ) -> None:
        op = Op(
            id=self.ids.fresh(kind.name),
            kind=kind.name,
            args=tuple(Use(definition.name, definition.step) for definition in used),
            results=tuple(Result(definition.name, definition.type) for definition in defined),
            attrs=attrs,
            lane=kind.lane,
            when=conjunction(*self._conditions()),
            loc=loc,
        )
        self._innermost().append(op)

    def define(self, base: str, type_: Type, loc: Loc, *, counter: bool = False) -> Definition:
        """A new value in the present scope."""
        name = base if counter else self.names.fresh(base)
        return Definition(name, type_, self._loop_ids(), self._conditions(), loc, counter=counter)

    def definition_of(self, value: Traced, user: str) -> Definition:
        """What ``value`` is, which must be of this trace and in scope where ``user`` takes it."""
        definition = value._definition
        notes = (Note(f"`{definition}` is made here", definition.loc),)
        if value._tracer is not self:
            raise self.refuse(
                ForeignValueError(
                    f"`{definition}` belongs to another trace and cannot be given to {user}",
                    loc=user_loc(),
                    notes=notes,
                )
            )
        reason = self._hidden(definition)
        if reason:
            raise self.refuse(
                OutOfScopeError(f"`{definition}` is used {reason}", loc=user_loc(), notes=notes),
            )
        return definition

    def _hidden(self, definition: Definition) -> str:
        """Why a value need not exist here; "" when it does."""
        depth = len(definition.loops)
        if self._loop_ids()[:depth] != definition.loops:
            return "outside the loop that makes it"
        made, here = conjunction(*definition.conditions), conjunction(*self._conditions())
        return "" if implies(here, (made,)) else f"where the condition under which it is made may be false: {made}"

    def operand(self, kind: OpKind, position: int, value: object) -> Definition:
        """What ``value`` is, which must fit operand ``position`` of the row."""
        try:
            return self._fitting(kind, position, value)
        except SteptraceError as error:
            raise self.refuse(error) from None

    def _fitting(self, kind: OpKind, position: int, value: object) -> Definition:
        spec = kind.operands[position]
        if not isinstance(value, Traced) or value._definition.counter:
            what = f"the counter {value!r}" if isinstance(value, Traced) else repr(value)
            raise NotTracedError(
                f"`{kind.name}` takes {spec.name} that an op of this step made, not {what}",
                loc=user_loc(),
                help=f"for example: {kind.example}" if kind.example else "",
            )
        definition = self.definition_of(value, f"`{kind.name}`")
        misfit = kind.misfits(position, definition.type)
        if misfit:
            made = Note(f"`{definition}` : {definition.type} is made here", definition.loc)
            raise OperandError(misfit, loc=user_loc(), notes=(made,))
        return definition

    def _admit(self, kind: OpKind, loc: Loc) -> None:
        """Add a user's row to the program; two rows of one name clash."""
        if not kind.user:
            return
        known = self.rows.setdefault(kind.name, kind)
        if known is not kind:
            places = [Note("one is defined here", known.loc), Note("the other here", kind.loc)]
            raise OpNameClashError(
                f"two different functions are the op `{kind.name}` of this program",
                loc=loc,
                notes=tuple(places),
                help='give one another name: @steptrace.op(name="...")',
            )

    # Loops and conditions

    def open_loop(self, kind: LoopKind, over: Use | None, count: int | None, loc: Loc) -> OpenLoop:
        """Start to trace the body of a loop."""
        letter = {"micro_batches": "m", "repeat": "e", "mini_batches": "j"}[kind]
        taken = [loop.var for loop in self._loops]
        depth = sum(var.rstrip("0123456789") == letter for var in taken)
        var = f"{letter}{depth + 1}" if depth else letter
        loop = OpenLoop(self.ids.fresh(kind), kind, var, over, count, loc, len(self._entered))
        self._loops.append(loop)
        return loop

    def close_loop(self, loop: OpenLoop) -> None:
        """End a loop whose body was traced to its end."""
        if self.closed or self.failure is not None:
            return
        inner = self._loops[-1]
        if inner is not loop:
            notes = (Note("the loop inside begins here", inner.loc),)
            message = f"the traced loop `{loop.id}` ends before `{inner.id}` inside it does"
            raise self.refuse(LoopLeftError(message, loc=user_loc(), notes=notes, help="run over one inside the other"))
        self._same_conditions(loop.conditions, f"loop `{loop.id}` ends", loop.loc)
        self._loops.pop()
        node = Loop(loop.id, loop.kind, loop.var, loop.over, loop.count, tuple(loop.body), loop.loc)
        self._innermost().append(node)

    def loop_left(self, loop: OpenLoop, loc: Loc) -> None:
        """Note that a loop was left before its end; the next op, or the end of the trace, raises it."""
        self.refuse(
            LoopLeftError(
                f"the traced loop `{loop.id}` is left before its end",
                loc=loc,
                notes=(Note("the loop begins here", loop.loc),),
                help="put the ops under `with step.when(...):` instead",
            )
        )

    def enter_condition(self, condition: Condition) -> None:
        """What is traced from now on runs under ``condition``."""
        self.require_open(f"condition `{condition._predicate}`")
        for flag in condition._flags:
            self.definition_of(flag, "a condition")
        self.settle(condition)
        self._entered.append((condition, user_loc()))

    def leave_condition(self, condition: Condition, *, failed: bool) -> None:
        """End of ``with``, by an exception if it ``failed``."""
        if self.closed or failed or self.failure is not None:
            return
        around = self._loops[-1].conditions if self._loops else 0
        if len(self._entered) <= around or self._entered[-1][0] is not condition:
            message = f"condition `{condition._predicate}` is left where it is not the innermost"
            raise self.refuse(ConditionLeftError(message, loc=user_loc(), help="write `with` around the ops"))
        self._entered.pop()

    def _same_conditions(self, count: int, where: str, loc: Loc) -> None:
        """As many conditions as there were before must be left in force."""
        if len(self._entered) != count:
            condition, entered = self._entered[-1]
            raise self.refuse(
                ConditionLeftError(
                    f"condition `{condition._predicate}` is still entered where {where}",
                    loc=entered,
                    notes=(Note("it begins here", loc),) if self._loops else (),
                    help="write `with` around the ops",
                )
            )

    def _conditions(self) -> tuple[Predicate, ...]:
        return tuple(condition._predicate for condition, _ in self._entered)

    def expect_use(self, condition: Condition) -> None:
        """``condition`` must be entered, or be part of one that is."""
        message = f"condition `{condition._predicate}` is never used"
        loc = user_loc()
        line = loc.source().rstrip(";: ") if loc else ""
        help = (
            f"put ops under it: `with {line}:`" if line.startswith("step.") else "put ops under it: `with condition:`"
        )
        self.expect(condition, UnusedError(message, loc=loc, help=help))

    def expect(self, thing: object, otherwise: SteptraceError) -> None:
        """``thing`` (a loop, a stream, a condition, a carry) must be settled before the trace ends."""
        self._pending[id(thing)] = (thing, otherwise)

    def settle(self, thing: object) -> bool:
        """``thing`` was used; whether that was expected of it."""
        return self._pending.pop(id(thing), None) is not None

    def _innermost(self) -> list[Node]:
        return self._loops[-1].body if self._loops else self.body

    def _loop_ids(self) -> tuple[str, ...]:
        return tuple(loop.id for loop in self._loops)

    # The end

    def close(self) -> tuple[Node, ...]:
        """The body as recorded; raises what was refused, and what was begun and not ended."""
        if self.failure is None and self._loops:
            self.loop_left(self._loops[-1], self._loops[-1].loc)
        if self.failure is not None:
            raise self.failure
        self._same_conditions(0, "the step ends", self._entered[0][1] if self._entered else user_loc())
        for _, error in self._pending.values():
            raise error
        return tuple(self._with_names(node) for node in self.body)

    def _with_names(self, node: Node) -> Node:
        """The node with the names that `carry.set` gave to values."""
        if not self.renamed:
            return node
        if isinstance(node, Loop):
            return replace(node, body=tuple(map(self._with_names, node.body)), over=self._use(node.over))
        args = tuple(replace(use, name=self._name(use)) for use in node.args)
        results = tuple(replace(result, name=self.renamed.get(result.name, result.name)) for result in node.results)
        return replace(node, args=args, results=results)

    def _use(self, use: Use | None) -> Use | None:
        return None if use is None else replace(use, name=self._name(use))

    def _name(self, use: Use) -> str:
        return use.name if use.step else self.renamed.get(use.name, use.name)
