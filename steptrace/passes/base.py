"""What a pass is: a policy made of motions, with typed options and a text form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import ClassVar, Protocol, get_type_hints, runtime_checkable

from steptrace.check.edge import Edge
from steptrace.diag.base import Note
from steptrace.diag.loc import Loc
from steptrace.diag.motion import PassDeclinedError
from steptrace.motion import Schedule
from steptrace.motion.proof import BrokenEdge

_WORD = re.compile(r"[\w.+-]+")


@runtime_checkable
class Pass(Protocol):
    """A pass is a frozen dataclass: its fields are its options.

    It builds new schedules by motions only. A motion that is refused ends it, and the schedule stays as it was; what it
    did, and what stood in the way, becomes remarks.

    Attributes:
      name: its name in pipelines.
    """

    name: ClassVar[str]

    def run(self, schedule: Schedule) -> Schedule:
        """The schedule with the pass applied.

        Raises:
          SteptraceError: a motion was refused, or the pass declined; nothing of it is kept.
        """
        ...


@runtime_checkable
class Partial(Pass, Protocol):
    """A pass that may be applied in part, and says what it left."""

    def left(self, schedule: Schedule) -> Iterable[PassDeclinedError]:
        """What the pass leaves where it is, of a schedule that it can be applied to; one refusal for each reason."""
        ...


@runtime_checkable
class Telling(Pass, Protocol):
    """A pass that has something to say of what it came to, beside its motions."""

    def told(self, schedule: Schedule) -> tuple[Schedule, str]:
        """The schedule with the pass applied, and what there is to say; raises what `run` does."""
        ...


def declined(
    message: str, *, loc: Loc | None = None, edge: Edge | None = None, notes: tuple[Note, ...] = (), help: str = ""
) -> PassDeclinedError:
    """The error by which a pass declines; ``edge`` is what leaves no room."""
    error = PassDeclinedError(message, loc=loc, notes=notes, help=help)
    if edge is not None:
        error.__cause__ = BrokenEdge(edge)
    return error


def text_of(pass_: Pass) -> str:
    """A pass as written in a pipeline, options spelled out: ``take-ahead{depth=1}``."""
    options = [(name, getattr(pass_, name)) for name in options_of(type(pass_))]
    inside = ", ".join(f"{name}={_literal(value)}" for name, value in options)
    return pass_.name + (f"{{{inside}}}" if inside else "")


def options_of(cls: type[Pass]) -> dict[str, type]:
    """The options of a pass with their types."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}  # type: ignore[arg-type]


def _literal(value: object) -> str:
    if isinstance(value, str) and not _WORD.fullmatch(value):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)
