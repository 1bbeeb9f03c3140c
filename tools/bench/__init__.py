"""The benchmarks, one module each, made like the subcommands: `COMMAND` says what it is."""

NAMES = (
    "phases",
    "resume",
    "soundness",
    "mutants",
    "compile",
    "period",
    "autoschedule",
    "boundary",
    "overhead",
    "recorder",
    "logps",
    "faults",
    "crashes",
)
"""The benchmarks, in the order of the help page."""
