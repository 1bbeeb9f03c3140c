"""Validation of a schedule against its source, and what it showed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from steptrace.check.validation.coverage import check_coverage
from steptrace.check.validation.crash import Resumable, check_crashes, resumable, roles_of
from steptrace.check.validation.failure import Suppressed, check_failures, suppressed
from steptrace.check.validation.finding import Finding
from steptrace.check.validation.instances import Setting, flag_text
from steptrace.check.validation.parts import LOOKS
from steptrace.check.validation.room import check_room
from steptrace.check.validation.runs import Run, Stuck, line_of, run_of
from steptrace.check.validation.sides import Pair, pair_of
from steptrace.check.validation.translation import Comparison, stuck_finding
from steptrace.check.validation.windows import Budget, Window, window_of
from steptrace.ir import Program

LAYERS = ("coverage", "order", "room", "translation", "failure", "crash")
"""The layers in the order in which each run goes through them."""

SHOWS = {
    "coverage": "every instance runs once, with one arm, and not before its step is known to exist",
    "order": "no run hangs",
    "room": "no run needs more places at a time than its resources have",
    "translation": "every channel, checkpoint, published weight, cursor and parameter is the source's",
    "failure": "after any one failure nothing stays that the source would not have left",
    "crash": "at every cut the disk holds a state from which each group is trained once",
}
"""What each layer shows, in words."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer showed.

    Attributes:
      name: one of ``LAYERS``.
      runs: in how many runs it was looked for.
      finding: the counterexample, None when none was found.
    """

    name: str
    runs: int
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a validation showed.

    Attributes:
      program: name of the program.
      layers: what each layer showed.
      window: the runs that were tried.
      impossible: runs left out because a polled flag would be true where its operand cannot be there.
      never: polled flags that are false in every possible run.
      proved: what another check has proved for all numbers of steps and micro-batches, and which; "" for nothing yet.
      assumed: what is taken for granted about the parts that are bound.
    """

    program: str
    layers: tuple[Layer, ...]
    window: Window
    impossible: int = 0
    never: tuple[str, ...] = ()
    proved: str = ""
    assumed: tuple[str, ...] = ()

    @property
    def counterexample(self) -> Finding | None:
        """The counterexample, None when there is none."""
        return next((layer.finding for layer in self.layers if layer.finding is not None), None)

    @property
    def ok(self) -> bool:
        """Whether no counterexample was found."""
        return self.counterexample is None

    def __str__(self) -> str:
        window = self.window
        lines = [f"{self.program}: {'equal to its source' if self.ok else 'not equal to its source'}"]
        lines += [f"  proved for all N and M: {self.proved}"] if self.proved else []
        lines += [f"  assumed: {one}" for one in self.assumed]
        for layer in self.layers:
            verdict = "ok" if layer.finding is None else f"error[{layer.finding.error.code}]"
            lines.append(f"  {layer.name:<12} {verdict:<13} {layer.runs:>5} runs  {SHOWS[layer.name]}")
        lines.append(f"  tried: {window.tried}; long runs of {window.long} steps")
        lines.append(
            f"  why that suffices: with shifts of at most {window.ahead}, ops of one lane change places only within "
            f"{window.ahead + 1} steps; a ring of waits over {window.lanes} lanes and devices, with distances of "
            f"at most {window.distance}, shows by {window.bound} steps"
        )
        if not window.whole:
            lines.append("  not exhaustive: the budget left out runs; see `tried`")
        if self.impossible:
            lines.append(f"  {self.impossible} settings cannot happen: a poll would find what is not there yet")
        lines += [f"  never true: {', '.join(self.never)}"] if self.never else []
        if self.counterexample is not None:
            lines.append(str(self.counterexample))
        return "\n".join(lines)


@dataclass(slots=True)
class _Tally:
    """What has been seen while going through the runs."""

    runs: dict[str, int] = field(default_factory=dict)
    impossible: int = 0
    possible: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)


def validate(
    program: Program,
    source: Program,
    *,
    budget: Budget | None = None,
    layers: tuple[str, ...] = LAYERS,
    proved: str = "",
) -> Report:
    """Runs a schedule beside its source and compares them, layer by layer; stops at the first counterexample.

    Args:
      program: the schedule.
      source: the program it was derived from.
      budget: how many runs may be tried.
      layers: the layers to go through, of ``LAYERS``.
      proved: what has been proved for all numbers of steps and micro-batches by other means, for the report.

    Raises:
      NotASourceError: the source was itself moved or split.
    """
    pair = pair_of(program, source)
    window = window_of(pair, budget or Budget())
    tally = _Tally(dict.fromkeys(layers, 0))
    found: tuple[str, Finding] | None = None
    for name, finding in _findings(pair, window, layers, tally):
        found = (name, finding)
        break
    shown = tuple(
        Layer(name, tally.runs[name], found[1] if found is not None and found[0] == name else None) for name in layers
    )
    never = tuple(sorted(tally.asked - tally.possible)) if tally.impossible else ()
    return Report(program.name, shown, window, tally.impossible, never if found is None else (), proved)


def prove(program: Program, source: Program, *, budget: Budget | None = None, proved: str = "") -> Report:
    """Validates a schedule and refuses it when it differs from its source; see ``validate``.

    Raises:
      SteptraceError: the counterexample, of ``steptrace.diag.validation``.
    """
    report = validate(program, source, budget=budget, proved=proved)
    if report.counterexample is not None:
        raise report.counterexample.raised()
    return report


def _findings(pair: Pair, window: Window, layers: tuple[str, ...], tally: _Tally) -> Iterator[tuple[str, Finding]]:
    comparison = Comparison(pair)
    roles = roles_of(pair.source)
    sources: dict[Setting, tuple[Run, Suppressed, Resumable]] = {}
    polled = {site.origin.op for site in pair.schedule.sites if site.kind.polls}
    for setting in window.runs:
        plain = Setting(setting.counts, frozenset(f for f in setting.flags if f[1] not in LOOKS), setting.phase)
        if plain not in sources:
            run = run_of(pair, pair.source, plain)
            line = line_of(run)
            assert not isinstance(line, Stuck), "a source runs in its own order"
            sources[plain] = (run, suppressed(run, line), resumable(run, line, roles))
        source, waits, disk = sources[plain]
        schedule = run_of(pair, pair.schedule, setting)
        tally.asked |= {flag_text(flag) for flag in setting.flags if flag[0] in polled and flag[1] in LOOKS}
        yield from _checked("coverage", layers, tally, check_coverage(source, schedule))
        order = line_of(schedule)
        if isinstance(order, Stuck):
            if order.polled:
                tally.impossible += 1
                continue
            yield from _checked("order", layers, tally, stuck_finding(schedule, order))
            continue
        tally.possible |= {flag_text(flag) for flag in setting.flags}
        yield from _checked("order", layers, tally, None)
        if "room" in layers:
            yield from _checked("room", layers, tally, check_room(schedule))
        if "translation" in layers:
            yield from _checked("translation", layers, tally, comparison.difference(source, schedule, order))
        if "failure" in layers:
            yield from _checked("failure", layers, tally, check_failures(waits, schedule, order))
        if "crash" in layers:
            yield from _checked("crash", layers, tally, check_crashes(disk, schedule, order))


def _checked(
    name: str, layers: tuple[str, ...], tally: _Tally, finding: Finding | None
) -> Iterator[tuple[str, Finding]]:
    if name not in layers:
        return
    tally.runs[name] += 1
    if finding is not None:
        yield name, finding
