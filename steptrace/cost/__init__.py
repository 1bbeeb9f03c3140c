"""What a schedule will do: durations of its ops from a file, and the period that follows, with what it is due to.

``period_of(plan, durations, micro_batches=...)`` gives the time of a step once the run has settled, exactly, from the
graph of the plan's events, without a clock. Loads without jax and numpy.
"""

from steptrace.cost.bound import Bound, bound_of
from steptrace.cost.file import OTHER, SIZES, Costs, parse_costs, read_costs
from steptrace.cost.judged import Judged, judged
from steptrace.cost.memory import Held, bytes_of, check_memory, memory_of, memory_over_time
from steptrace.cost.period import Period, period_of
from steptrace.cost.quantity import quantity, seconds_in_words, size_in_words
from steptrace.cost.slack import instance_slack, slack, tight_s
from steptrace.cost.step_times import StepTimes, step_times
from steptrace.cost.words import Part, bottleneck, critical

__all__ = [
    "OTHER",
    "SIZES",
    "Bound",
    "Costs",
    "Held",
    "Judged",
    "Part",
    "Period",
    "StepTimes",
    "bottleneck",
    "bound_of",
    "bytes_of",
    "check_memory",
    "critical",
    "instance_slack",
    "judged",
    "memory_of",
    "memory_over_time",
    "parse_costs",
    "period_of",
    "quantity",
    "read_costs",
    "seconds_in_words",
    "size_in_words",
    "slack",
    "step_times",
    "tight_s",
]
