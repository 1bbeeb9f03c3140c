"""When the kernel cannot run: a typed reason, and either an error or one line in the log."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from enum import Enum

from steptrace_kernels.logps.validate import LogpsError

LOG = logging.getLogger("steptrace_kernels.logps")


class Reason(Enum):
    """Why the kernel cannot run; the value is the sentence."""

    NO_MESH = "there is no mesh: give one, or call inside jax.set_mesh"
    NO_LAYOUT = "no layout is given, and the types of the arrays tell none, as only those of explicit axes do"
    INSIDE_SHARD_MAP = "the call is already inside a shard_map"


@dataclass(frozen=True)
class Fallback:
    """That the kernel cannot run.

    Attributes:
      reason: why.
      detail: the axes it is about, or empty.
    """

    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return self.reason.value + (f" ({self.detail})" if self.detail else "")


class CannotRunError(LogpsError):
    """The kernel cannot run here, and ``mode="error"`` asks for no less.

    Attributes:
      fallback: the reason.
    """

    def __init__(self, fallback: Fallback) -> None:
        super().__init__(f"the sharded log-prob head cannot run: {fallback}")
        self.fallback = fallback


def fall_back(fallback: Fallback, mode: str) -> None:
    """Raise, or tell the log; the same reason is told once in a process.

    Raises:
      CannotRunError: ``mode`` is "error".
    """
    if mode == "error":
        raise CannotRunError(fallback)
    _tell(fallback)


@functools.cache
def _tell(fallback: Fallback) -> None:
    LOG.warning("log-probs by the chunked head without shard_map: %s", fallback)
