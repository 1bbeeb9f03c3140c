"""`steptrace bench mutants`: every single edit of the built-in schedules, and what becomes of it."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from absl import flags

from ..command import Command
from ..table import aligned

if TYPE_CHECKING:
    from steptrace.testing.mutants import Subject

FATES = ("killed", "equal, accepted", "equal, refused", "escaped")
"""What becomes of a mutant; see ``steptrace.testing.mutants``."""


@dataclass
class Table:
    """Counts of mutants.

    Attributes:
      schedules: how many schedules were mutated.
      counts: by kind and fate.
      refusals: codes under which mutants were refused that are equal.
      escaped: the mutants that escaped, in words.
    """

    schedules: int = 0
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    escaped: list[str] = field(default_factory=list)

    def add(self, other: Table) -> None:
        """Adds the counts of another one."""
        self.schedules += other.schedules
        self.counts += other.counts
        self.refusals += other.refusals
        self.escaped += other.escaped

    def total(self, fate: str) -> int:
        """How many mutants had a fate; "equal" is both kinds of it."""
        return sum(count for (_, other), count in self.counts.items() if other.startswith(fate))


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("only", "", "only schedules whose name holds this", flag_values=values)
    flags.DEFINE_integer("jobs", os.cpu_count() or 1, "processes to spread the work over", 1, flag_values=values)
    flags.DEFINE_bool("json", False, "end with one JSON object", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    begin = time.monotonic()
    table = measure(values.only, values.jobs)
    seconds = time.monotonic() - begin
    print(report(table, seconds))
    if values.json:
        print(json.dumps(figures(table, seconds)))
    return 1 if table.total("escaped") else 0


def measure(only: str = "", jobs: int = 1) -> Table:
    """Judges every mutant of the built-in schedules.

    Args:
      only: part of the names of the schedules to take, "" for all.
      jobs: processes to spread the work over; the counts do not depend on it.
    """
    from steptrace.testing.mutants import subjects

    chosen = [subject for subject in subjects() if only in subject.name]
    table = Table()
    for part in _parts(chosen, jobs):
        table.add(part)
    return table


def _parts(chosen: list[Subject], jobs: int) -> Iterator[Table]:
    if jobs == 1:
        yield from map(_of_schedule, chosen)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_of_schedule, chosen)


def _of_schedule(subject: Subject) -> Table:
    """The table of one schedule."""
    from steptrace.testing.mutants import outcomes

    table = Table(schedules=1)
    for outcome in outcomes(subject):
        fate = outcome.fate
        if fate == "equal":
            fate += ", refused" if outcome.refusal else ", accepted"
            table.refusals[outcome.refusal] += bool(outcome.refusal)
        elif fate == "escaped":
            table.escaped.append(f"{subject.name}: {outcome.mutant.edit}: {outcome.verdict.reason}")
        table.counts[outcome.mutant.kind, fate] += 1
    return table


def figures(table: Table, seconds: float) -> dict[str, Any]:
    """The counts as they are written."""
    from steptrace.testing.mutants import KINDS

    return {
        "killed": table.total("killed"),
        "equal": table.total("equal"),
        "escaped": table.total("escaped"),
        "by_kind": {kind: {fate: table.counts[kind, fate] for fate in FATES} for kind in KINDS},
        "refusals": dict(sorted((+table.refusals).items())),
        "escapes": table.escaped,
        "schedules": table.schedules,
        "seconds": round(seconds, 1),
    }


def report(table: Table, seconds: float) -> str:
    """The table by kind, with the reasons of equal mutants that were refused."""
    from steptrace.testing.mutants import KINDS

    rows: list[tuple[str, ...]] = [("edit", *FATES)]
    rows += [(kind, *(f"{table.counts[kind, fate]:,}" for fate in FATES)) for kind in KINDS]
    rows.append(("all", *(f"{table.total(fate):,}" for fate in FATES)))
    parts = [aligned(rows), f"{table.schedules} schedules, {seconds:.0f} seconds"]
    if +table.refusals:
        reasons = [(f"{count:,}", code) for code, count in (+table.refusals).most_common()]
        parts.append("equal, refused under:\n" + aligned(reasons, indent=2))
    parts += [f"escaped: {line}" for line in table.escaped]
    return "\n\n".join(parts)


COMMAND = Command(
    name="bench mutants",
    operands="",
    summary="Every single edit of the built-in schedules: killed, equal, or escaped.",
    examples=(
        ("bench mutants", "all built-in programs under all named pipelines"),
        ("bench mutants --only=grpo_stream", "those of one program"),
        ("bench mutants --json", "for scripts"),
    ),
    run=_run,
    define=_define,
    details="An edit is killed when the checker refuses it and the judge finds an order of events that differs; "
    "equal when no order differs; escaped when the checker accepts it although one does. The last makes it exit "
    "with 1.",
)
