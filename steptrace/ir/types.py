"""Types of the values that ops hand to one another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

AttrValue: TypeAlias = bool | int | float | str | tuple[str, ...]
"""What an attribute of an op or a parameter of a program may be."""

BASES = (
    "prompts",
    "groups",
    "batch",
    "micro_batch",
    "metrics",
    "version",
    "token",
    "flag",
    "scalar",
    "value",
)
"""The base types. ``value`` is the opaque type of users' own ops."""


@dataclass(frozen=True, slots=True)
class Type:
    """A base type, the fields it carries so far, and its size where known.

    ``micro_batch<advantages, ref_logps>`` is a micro-batch to which advantages and reference log-probs were
    added: an op that needs a field no op has made is a type error.

    Attributes:
      base: one of ``BASES``.
      fields: names of the fields added by ops, sorted.
      nbytes: size in bytes on the host, None where unknown.
    """

    base: str
    fields: tuple[str, ...] = ()
    nbytes: int | None = None

    def __post_init__(self) -> None:
        assert self.base in BASES, f"unknown base type {self.base}"
        object.__setattr__(self, "fields", tuple(sorted(set(self.fields))))

    def __str__(self) -> str:
        text = f"{self.base}<{', '.join(self.fields)}>" if self.fields else self.base
        return text if self.nbytes is None else f"{text}[{self.nbytes}B]"

    def adding(self, *fields: str) -> Type:
        """The type with more fields."""
        return replace(self, fields=(*self.fields, *fields))

    def missing(self, needs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of ``needs`` that the type does not carry."""
        return tuple(need for need in needs if need not in self.fields)
