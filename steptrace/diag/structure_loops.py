"""Codes of the structural verifier: loops over micro-batches, and what is said of their rounds."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class MicroBatchSourceError(SteptraceError):
    """A loop over micro-batches does not start with exactly one op that makes its micro-batch.

    The first op of each round hands out the round's micro-batch: ``next_mb`` of the packed batch that the loop
    runs over, or ``stream_mb`` in a loop over a stream. It runs once a round, unconditionally, and nowhere else.
    The same holds for ``next_part`` and loops over mini-batches.

    Example::

        loop micro_batches: m in %batch {
          fwd_bwd(%mb) ...                      # no micro-batch was made
        }

    Ways out: start the body with ``next_mb(%batch)``; in Python, ``for mb in step.micro_batches(batch):`` does so.
    """

    code = "ST153"


class NestedMicroBatchesError(SteptraceError):
    """A loop over micro-batches stands inside another.

    Micro-batches are the smallest parts: what fits into memory in one forward and backward. Inside one there are
    no further micro-batches.

    Example::

        loop micro_batches: m in %batch {
          loop micro_batches inner: n in %batch {
          }
        }

    Ways out: use ``repeat`` for epochs and ``mini_batches`` for several updates, outside the loop over
    micro-batches.
    """

    code = "ST154"


class BadLoopError(SteptraceError):
    """A loop is empty, or does not say how often it runs.

    Example::

        loop repeat: e times 0 {
        }

    Ways out: give ``repeat`` and ``mini_batches`` a count of at least 1, and each loop a body.
    """

    code = "ST155"


class MicroBatchConditionError(SteptraceError):
    """A condition about micro-batches stands where there is no micro-batch.

    ``first``, ``last`` and ``m == 2`` speak of the round of the loop over micro-batches around the op.

    Example::

        update() lane=host when(last) ...       # outside the loop

    Ways out: move the op into the loop; for conditions on the step use ``every n`` or a flag.
    """

    code = "ST156"
