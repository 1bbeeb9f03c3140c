"""The kinds of edges: why two instances are ordered."""

from __future__ import annotations

import enum


class EdgeKind(enum.Enum):
    """Why two instances are ordered."""

    VALUE = "value"
    """One makes a value that the other uses."""
    RAW = "raw"
    """One writes what the other reads."""
    WAR = "war"
    """One reads what the other overwrites."""
    WAW = "waw"
    """Both write."""
    CHANNEL = "channel"
    """Both are observed from outside, in this order."""
    FIFO = "fifo"
    """One puts on a queue what the other takes, or both do the same to it."""
    CAPACITY = "capacity"
    """One releases the place that the other needs."""
    LIFETIME = "lifetime"
    """One reads memory that the other gives back."""
    EXISTS = "exists"
    """One finds out whether the step exists at all."""
    BARRIER = "barrier"
    """One of them declares no effects, so it may touch everything."""
