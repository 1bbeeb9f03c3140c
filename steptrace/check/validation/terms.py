"""Hash-consed terms: what an op computes when nothing is known about it but its operands and what it reads."""

from __future__ import annotations

from typing import TypeAlias

Key: TypeAlias = tuple[object, ...]
"""A term: a tag, then what it is made of; other terms are in it by number."""


class Terms:
    """Numbers for terms: equal terms have equal numbers, in all runs that share the table."""

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}
        self._keys: list[Key] = []

    def number(self, key: Key) -> int:
        """The number of a term."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._keys)
            self._keys.append(key)
        return found

    def key(self, number: int) -> Key:
        """What a term is made of."""
        return self._keys[number]

    def __len__(self) -> int:
        return len(self._keys)
