"""Errors of cost files, and of what is asked of a period."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class CostFileError(SteptraceError):
    """A file with costs cannot be read, is no TOML, or has a table or key that means nothing.

    The tables are `ops.<op or kind>` (keys `issue`, `work`, `ship`, or `bytes` with `link`), `links.<name>`
    (`bandwidth`, `latency`), `sizes` (`params`, `optimizer`, `batch`, `micro_batch`) and `cell` (`micro_batches`).

        [ops.fwd_bwd]
        duration = "3 s"                                 # error[ST330]: there is no such key

    Ways out: mend the key that is named; `work = "3 s"` here.
    """

    code = "ST330"


class CostValueError(SteptraceError):
    """A cost is not a number with a unit that fits.

    Times have `s`, `ms`, `us`, `ns` or `min`, sizes `B`, `kB`, `MB`, `GB`, `TB` or `KiB` and so on, bandwidths a size
    with `/s`. None of them is below 0. A bare number has no meaning, since nobody can tell milliseconds from seconds.

        [ops.fwd_bwd]
        work = 12                                        # error[ST331]: say "12 ms"
        bytes = "50 ms"                                  # error[ST331]: a time is no size

    Way out: write the number and its unit in one string, `"12 ms"`, `"50 MB"`, `"10 GB/s"`.
    """

    code = "ST331"


class UnknownCostsError(SteptraceError):
    """A program has ops that the cost file says nothing of.

    What takes no time is said too, since an op that was forgotten would make every period too short. The parts that a
    pass splits an op into follow from the op; only the ops of the program as it is written are asked for.

        steptrace plan grpo --costs=costs.toml           # error[ST332]: `pack` has no cost

    Ways out: a table for each op that is named, or `[ops.other]` for all that have none: `issue = "0 s"`.
    """

    code = "ST332"


class NoPeriodError(SteptraceError):
    """A schedule has no steady state that its period could be the period of.

    Its lanes wait for one another; or what a run decides as it goes (whether a micro-batch is staged, which lane a
    device serves first) has not come to repeat itself within the steps that are looked at.

        period_of(plan, durations, micro_batches=0)      # error[ST333]: an op of the step asks for a micro-batch

    Ways out: check the schedule (`steptrace check`); simulate a number of steps instead of asking for a period.
    """

    code = "ST333"


class OverMemoryError(SteptraceError):
    """A schedule holds more in memory than it may.

    What is held for different reasons counts together: steps on the host, a copy of the parameters for a weight sync, a
    snapshot for a checkpoint, a micro-batch that is shipped ahead. With other times they may meet, even if they do not
    with those of the cost file. Only a budget in the schedule keeps copies apart.

        steptrace plan 'grpo{staleness=1}' -p take-ahead --costs=costs.toml --memory='1 GB'       # error[ST334]

    Ways out: `memory-budget{copies=1}` lets weight sync and checkpoint take turns; leave out the pass that holds what
    is named; allow more memory.
    """

    code = "ST334"
