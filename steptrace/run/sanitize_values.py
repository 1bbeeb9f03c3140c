"""Values that an op must not change in place: held read-only while it runs, and compared afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from steptrace.run.digest import array_hash

_DEPTH = 8


def leaves_of(value: Any, path: str, depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """What a value is made of, each with its path: items of lists and mappings, fields of dataclasses.

    A container comes before what is in it, as its type and size, so that one that grows is seen.
    """
    if isinstance(value, Mapping):
        yield path, (type(value).__name__, tuple(map(str, value)))
        if depth:
            for name, item in value.items():
                yield from leaves_of(item, f"{path}[{name!r}]", depth - 1)
    elif isinstance(value, list | tuple):
        yield path, (type(value).__name__, len(value))
        if depth:
            for index, item in enumerate(value):
                yield from leaves_of(item, f"{path}[{index}]", depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield path, (type(value).__name__, id(value))
        if depth:
            for field in dataclasses.fields(value):
                yield from leaves_of(getattr(value, field.name, None), f"{path}.{field.name}", depth - 1)
    else:
        yield path, value


def fingerprint(value: Any, path: str) -> dict[str, object]:
    """A value by paths, so that two fingerprints differ where it was changed: arrays of numpy by their content."""
    return {where: _print_of(leaf) for where, leaf in leaves_of(value, path)}


def first_difference(before: Mapping[str, object], after: Mapping[str, object]) -> str | None:
    """The first path at which two fingerprints differ."""
    for path, was in before.items():
        if path not in after or after[path] != was:
            return path
    return next((path for path in after if path not in before), None)


@contextmanager
def read_only(values: Any) -> Iterator[None]:
    """Inside, the numpy arrays in ``values`` cannot be written; those that could be can be again afterwards."""
    held = [leaf for _, leaf in leaves_of(values, "") if isinstance(leaf, np.ndarray) and leaf.flags.writeable]
    for array in held:
        array.setflags(write=False)
    try:
        yield
    finally:
        for array in held:
            array.setflags(write=True)


def _print_of(leaf: Any) -> object:
    if isinstance(leaf, np.ndarray):
        return array_hash(leaf) if leaf.dtype != object else id(leaf)
    return leaf if isinstance(leaf, str | int | float | bool | tuple | None) else id(leaf)
