"""What users' ops reach by ``resources``: values of their own resources, and the readable ones among the built-in."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from steptrace.diag.base import Note
from steptrace.diag.loc import Loc
from steptrace.diag.sanitize import UndeclaredAccessError, UnreachableResourceError
from steptrace.ir import ANY, RESOURCES, Access, Effect, OpKind, Program, ResourceKind, effects_of, parse_pattern
from steptrace.ir.resource import Resource
from steptrace.lang.resources import find
from steptrace.run.borders import checked_weights
from steptrace.run.instance import At

if TYPE_CHECKING:
    from steptrace.run.session import Session

_KEPT = 16
"""How many steps' cells are held for ops that declare nothing and may read any."""

Cell = tuple[str, int | None, int | None]
"""A resource, with step and micro-batch where it has cells."""


class Store(Protocol):
    """Where the values of resources are."""

    def get(self, cell: Cell) -> Any:
        """The value; None before it was written. Raises `UnreachableResourceError`."""
        ...

    def put(self, cell: Cell, value: Any) -> None:
        """Set a value. Raises `UnreachableResourceError`."""
        ...


@dataclass(frozen=True)
class Resources:
    """The resources of one instance of an op, as its function sees them.

    Every access is compared with what the op declares. A resource is named as in a declaration: ``"notes[k-1]"`` is the
    cell of the step before, a declared resource stands for itself.

    Attributes:
      op: id of the op.
      declared: its effects.
      staleness: of the contract, for patterns with ``w``.
      step: the step of the instance.
      micro: its micro-batch.
      store: where the values are.
      used: effects that were used are added to it.
    """

    op: str
    declared: tuple[Effect, ...]
    staleness: int
    step: int
    micro: int
    store: Store
    used: set[Effect] = field(default_factory=set)

    def read(self, what: str | Resource) -> Any:
        """The value of a resource, None before anything was written.

        Raises:
          UndeclaredAccessError: the op does not declare that it reads it.
          UnreachableResourceError: there is no such resource, or it cannot be read here.
        """
        return self.store.get(self._cell(Access.READ, what))

    def write(self, what: str | Resource, value: Any) -> None:
        """Set the value of a resource of one's own.

        Raises:
          UndeclaredAccessError: the op does not declare that it writes it.
          UnreachableResourceError: there is no such resource, or it is built in.
        """
        self.store.put(self._cell(Access.WRITE, what), value)

    def _cell(self, access: Access, what: str | Resource) -> Cell:
        try:
            wanted = parse_pattern(access, what if isinstance(what, str) else what.name, self.staleness)
        except ValueError as error:
            raise UnreachableResourceError(str(error), loc=calling_loc()) from None
        known = find(wanted.resource)
        if known is None:
            raise UnreachableResourceError(
                f"`{self.op}` asks for the resource `{wanted.resource}`, which nobody declared", loc=calling_loc()
            )
        celled = known.kind is ResourceKind.CELL
        if celled != (wanted.index is not None):
            form = f"{known.name}[k]" if celled else known.name
            raise UnreachableResourceError(f"`{what}` is asked for as `{form}`", loc=calling_loc())
        covering = [effect for effect in self.declared if _covers(effect, wanted)]
        if not covering:
            raise self._undeclared(wanted)
        self.used.update(covering)
        index = wanted.index
        if index is None:
            return (wanted.resource, None, None)
        return (wanted.resource, self.step + index.step, None if index.micro is None else self.micro + index.micro)

    def _undeclared(self, wanted: Effect) -> UndeclaredAccessError:
        """The error of an access that no declared effect covers."""
        did = "writes" if wanted.access is Access.WRITE else "reads"
        same = [effect for effect in self.declared if effect.resource == wanted.resource and _same_way(effect, wanted)]
        message = f"`{self.op}` {did} `{wanted.target}`, and does not declare it"
        if same:
            message = f"`{self.op}` declares that it {did} `{same[0].target}`, and {did} `{wanted.target}`"
        declared = ", ".join(f"{effect.access.value} {effect.target}" for effect in self.declared) or "nothing"
        return UndeclaredAccessError(
            message,
            loc=calling_loc(),
            notes=(Note(f"it declares: {declared}"),),
            help=f'add {did}=["{wanted.target}"] to its declaration, or {did[:-1]} what is declared',
        )


def _same_way(effect: Effect, wanted: Effect) -> bool:
    """Whether both write, or both look: what is awaited is read."""
    return (effect.access is Access.WRITE) == (wanted.access is Access.WRITE)


def _covers(effect: Effect, wanted: Effect) -> bool:
    """Whether a declared effect allows an access: the resource or one it is a part of, all its cells or that cell."""
    name = effect.resource
    return (
        _same_way(effect, wanted)
        and (name in (ANY, wanted.resource) or wanted.resource.startswith(f"{name}."))
        and (effect.index is None or effect.index == wanted.index)
    )


def calling_loc() -> Loc | None:
    """The innermost line outside of steptrace."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "steptrace":
        frame = frame.f_back
    return None if frame is None else Loc(frame.f_code.co_filename, frame.f_lineno)


class OwnResources:
    """The resources of a run: those of users hold values, built-in ones are read where they are.

    Args:
      run: the session.
      program: the program; how far back its users' ops read bounds the cells that are held.

    Attributes:
      used: by op that asked for its resources, which of its effects it has used.
    """

    def __init__(self, run: Session, program: Program) -> None:
        self._run = run
        self._contract = program.contract
        self._declared: dict[str, tuple[Effect, ...]] = {}
        self.used: dict[str, set[Effect]] = {}
        self._values: dict[Cell, Any] = {}
        self._changing = threading.Lock()
        self._back = _furthest_back(program.kinds, program.contract.staleness)

    def of(self, kind: OpKind, at: At) -> Resources:
        """What one instance of an op is given."""
        declared = self._declared.get(at.op.id)
        if declared is None:
            declared = self._declared[at.op.id] = effects_of(at.op, kind, self._contract)
            self.used[at.op.id] = set()
        used = self.used[at.op.id]
        return Resources(at.op.id, declared, self._contract.staleness, at.step, at.item, self, used)

    def get(self, cell: Cell) -> Any:
        """The value of a cell: a user's own, or a built-in one that can be read."""
        reader = _READERS.get(cell[0])
        if reader is not None:
            return reader(self._run, cell[1])
        _check_own(cell[0])
        with self._changing:
            return self._values.get(cell)

    def put(self, cell: Cell, value: Any) -> None:
        """Set a cell of a user's own resource."""
        _check_own(cell[0])
        with self._changing:
            self._values[cell] = value

    def retire(self, step: int) -> None:
        """Let go of the cells that no step behind ``step`` reads."""
        with self._changing:
            gone = [cell for cell in self._values if cell[1] is not None and cell[1] <= step - self._back]
            for cell in gone:
                del self._values[cell]

    @property
    def held(self) -> int:
        """How many values are held."""
        return len(self._values)


def is_readable(name: str) -> bool:
    """Whether a built-in resource can be read by users' ops."""
    return name in _READERS


def _check_own(name: str) -> None:
    """Refuse what holds no value for users' ops."""
    known = find(name)
    if name in RESOURCES:
        why = "it is built in, and ops of users read some of those and write none"
    elif known is not None and known.kind not in (ResourceKind.STATE, ResourceKind.CELL):
        why = f"it is a {known.kind.value}, which stands for an order; values are held by a state or a cell"
    else:
        return
    readable = ", ".join(f"`{readable}`" for readable in _READERS)
    raise UnreachableResourceError(
        f"`{name}` has no value here: {why}", loc=calling_loc(), help=f"of the built-in ones can be read: {readable}"
    )


def _metrics(run: Session, step: int | None) -> dict[str, float] | None:
    memory = None if step is None else run.memory.get(step)
    return None if memory is None else dict(memory.metrics)


def _version(run: Session, step: int | None) -> int:
    return run.board.version(-1 if step is None else max(step, -1))


def _rollout_weights(run: Session, step: int | None) -> Any:
    return run.board.weights(_version(run, step))


def _params(run: Session, step: int | None) -> Any:
    return checked_weights(run.parts.trainer.weights())[0]


def _trainer_step(run: Session, step: int | None) -> int:
    return checked_weights(run.parts.trainer.weights())[1]


def _training_cursor(run: Session, step: int | None) -> int:
    return run.queue.training_cursor


def _serving_cursor(run: Session, step: int | None) -> int:
    return run.queue.serving_cursor


def _prompts_cursor(run: Session, step: int | None) -> int:
    return run.cursor.position


_READERS: Mapping[str, Callable[[Session, int | None], Any]] = MappingProxyType(
    {
        "metrics": _metrics,
        "policy.version": _version,
        "rollout.weights": _rollout_weights,
        "params": _params,
        "trainer.step": _trainer_step,
        "queue.training": _training_cursor,
        "queue.serving": _serving_cursor,
        "prompts.cursor": _prompts_cursor,
    }
)
"""How built-in resources are read; a step before the first one stands for the initial weights."""


def _furthest_back(kinds: Iterable[OpKind], staleness: int) -> int:
    """How many steps back users' ops read cells."""
    back = 0
    for kind in kinds:
        for pattern in (*kind.reads, *kind.writes):
            effect = parse_pattern(Access.READ, pattern, staleness)
            if effect.resource == ANY:
                back = max(back, _KEPT)
            elif effect.index is not None:
                back = max(back, -effect.index.step)
    return back


def keeps_values(kinds: Iterable[OpKind]) -> OpKind | None:
    """The first row that writes a user's own state or cell."""
    for kind in kinds:
        for pattern in kind.writes:
            name = re.split(r"\[", pattern)[0]
            known = find(name)
            own = known is not None and name not in RESOURCES
            if name == ANY or (own and known is not None and known.kind in (ResourceKind.STATE, ResourceKind.CELL)):
                return kind
    return None
