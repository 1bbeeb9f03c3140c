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

    Ways out: measure them: a run with `--profile FILE --timed` (`timed=True`) writes a cost file; `--timed` waits for
    the work of a trainer that offers nothing to wait for, and without it its training is missing from the file. Or say
    it by hand, in a table for each op that is named: `[ops.fwd_bwd]` with `work = "150 ms"`. What takes no time may be
    said at once, once what trains has its tables: `[ops.other]` with `issue = "0 s"`.
    """

    code = "ST332"


class NoPeriodError(SteptraceError):
    """A schedule has no steady state that its period could be the period of.

    Its lanes wait for one another.

        period_of(plan, durations, micro_batches=0)      # error[ST333]: an op of the step asks for a micro-batch

    Way out: check the schedule (`steptrace check`).
    """

    code = "ST333"


class NoRepetitionError(NoPeriodError):
    """What a run of a schedule decides as it goes has not come to repeat itself within the steps that are looked at.

    That is whether a micro-batch is staged; or which lane a device serves first, where several lanes send work to it
    and something waits for it. If one of those lanes is faster than another and does not wait for it, it runs ahead
    for ever, and its work with it.

        lane=packer  fetch() every 5 s  \
                                         > reader: the host waits for it, behind more and more of what the packer sent
        lane=host    read() every 16 s  /                                                            # error[ST335]

    Ways out: let one lane send the work; let the faster lane wait for the slower one; simulate a number of steps
    instead of asking for a period.
    """

    code = "ST335"


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
