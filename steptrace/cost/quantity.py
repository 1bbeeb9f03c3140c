"""Numbers with units, as cost files have them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

Dimension: TypeAlias = Literal["time", "size", "bandwidth"]

_SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

UNITS: Mapping[Dimension, Mapping[str, float]] = MappingProxyType(
    {
        "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0},
        "size": {**_SIZES, "TiB": 2**40},
        "bandwidth": {f"{unit}/s": scale for unit, scale in _SIZES.items()},
    }
)
"""What each unit is in seconds, bytes, and bytes a second."""

MOST = 1e30
"""No quantity is larger, in seconds, bytes, or bytes a second: sums and products of such numbers are numbers."""

_FORM = re.compile(r"\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z]+(?:/s)?)\s*")


def quantity(text: object, dimension: Dimension) -> float:
    """The number that a text stands for, in seconds, bytes, or bytes a second.

    Raises:
      ValueError: it is no number with a unit of that dimension, or below 0; in words.
    """
    units = UNITS[dimension]
    example = {"time": "12 ms", "size": "50 MB", "bandwidth": "10 GB/s"}[dimension]
    if not isinstance(text, str):
        raise ValueError(f'{text!r} has no unit; a {dimension} is written "{example}"')
    match = _FORM.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError(f'{text!r} is no {dimension}; one is written "{example}", with {", ".join(units)}')
    number = float(match[1]) * units[match[2]]
    if not math.isfinite(number) or number < 0 or (dimension == "bandwidth" and not number):
        raise ValueError(f"{text!r} is not a {dimension} {'above' if dimension == 'bandwidth' else 'from'} 0")
    if number > MOST:
        raise ValueError(f"{text!r} is more than any {dimension}")
    return number


def seconds_in_words(seconds: float) -> str:
    """Seconds with the unit that suits them: ``98.6 s``, ``12 ms``, ``0 s``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns" if seconds else "0 s"


def size_in_words(size: float) -> str:
    """Bytes with the unit that suits them: ``4.2 GB``, ``100 MB``, ``0 B``."""
    for unit in ("TB", "GB", "MB", "kB"):
        if size >= _SIZES[unit]:
            return f"{size / _SIZES[unit]:.4g} {unit}"
    return f"{size:.4g} B"
