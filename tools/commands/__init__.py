"""The subcommands, one module each: `COMMAND` says what it is. What is slow to import is imported when it runs."""

NAMES = (
    "programs",
    "ops",
    "dump",
    "passes",
    "opt",
    "check",
    "plan",
    "timeline",
    "why",
    "diff",
    "explain",
    "run",
    "new",
)
"""The subcommands, in the order of the help page; `bench` stands beside them."""
