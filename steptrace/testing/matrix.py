"""What the matrices of faults and of crashes have in common: their runs, their rows, and how they are gone through."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from steptrace.testing.cells import Cell, Child, Ended, Tell, run_cells
from steptrace.testing.durable_runs import Arm, Book, Left, quickly, run_into

TARGETS = ("inline", "process")
"""Where the parts may be."""

_TRIES = 4


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a cell.

    Attributes:
      arm, target, op, kind: the schedule, the target, id and kind of the op.
      step, micro, behind: the instance, and whether it happened behind it.
      ended: what came.
      why: what is not as declared, "" if all is.
      left: what was left behind: threads, processes, files, segments.
      hung: whether it did not end, and was not declared to.
      seconds: how long it took.
    """

    arm: str
    target: str
    op: str
    kind: str
    step: int
    micro: int | None
    behind: bool
    ended: str
    why: str
    left: tuple[str, ...]
    hung: bool
    seconds: float

    @property
    def as_declared(self) -> bool:
        """Whether all is as declared."""
        return not self.why

    def facts(self) -> dict[str, object]:
        """The row as JSON holds it."""
        return {**asdict(self), "as_declared": self.as_declared}


@dataclass(frozen=True)
class Whole:
    """A run that was left alone.

    Attributes:
      left: what it leaves.
      counts: how many micro-batches its steps have.
    """

    left: Left
    counts: tuple[int, ...]


def wholes_of(arms: Sequence[Arm]) -> dict[str, Whole]:
    """What the programs of some arms leave when they are run in their own order and left alone, by program."""
    return {arm.program: whole_of(Arm("", arm.program)) for arm in arms}


def whole_of(arm: Arm) -> Whole:
    """What an arm leaves when it is left alone."""
    counts: list[int] = []

    class Counts(Book):
        """Notes how many micro-batches steps have."""

        def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
            counts.append(int(metrics["micro_batches"]))

    with tempfile.TemporaryDirectory() as folder:
        left, _ = run_into(Path(folder), arm, book=Counts(Path(folder) / "log"))
    return Whole(left, tuple(counts))


def met(child: Callable[[Path], Child], folder: Path) -> Generator[Child, Ended, tuple[Path, Ended]]:
    """Run into a fault; where it did not come, because the op did not run, once more; gives the run's folder too.

    Args:
      child: what runs into it, in the folder that it is given.
      folder: where runs may be kept while they last.
    """
    for _ in range(_TRIES):
        out = Path(tempfile.mkdtemp(dir=folder))
        first = yield child(out)
        if first.told:
            break
        shutil.rmtree(out)
    return out, first


def resumed(arm: Arm, out: Path, tell: Tell) -> Left:
    """In a process of its own: go on from what is in a folder, with fresh parts in it; gives what that leaves."""
    return run_into(out, arm)[0]


class _OfArm(Protocol):
    @property
    def arm(self) -> Arm: ...


P = TypeVar("P", bound=_OfArm)
R = TypeVar("R", bound=Outcome)


Listed: TypeAlias = Callable[[Sequence[Arm], Mapping[str, Sequence[int]], bool], Iterator[P]]
"""Lists places of a matrix: given the schedules, the counts of micro-batches by program, and whether only some."""


def matrix_rows(
    arms: Sequence[Arm],
    places: Mapping[str, Listed[P]],
    cell: Callable[[P, Left, Path], Cell[R]],
    *,
    quick: bool,
    only: Callable[[P], bool],
    at_once: int,
    targets: Sequence[str],
) -> list[R]:
    """Run a matrix; gives its rows in the order of the arms.

    Args:
      arms: the schedules.
      places: what lists the places, by target.
      cell: what is done at a place; given what the program leaves when it is left alone, and a folder.
      quick: whether only some places are listed.
      only: which of them to run.
      at_once: processes at a time.
      targets: where the parts are.
    """
    quickly()
    wholes = wholes_of(arms)
    counts = {program: whole.counts for program, whole in wholes.items()}
    with tempfile.TemporaryDirectory(prefix="steptrace-matrix-") as folder:
        listed = [places[target](arms, counts, quick) for target in TARGETS if target in targets]
        cells = (cell(place, wholes[place.arm.program].left, Path(folder)) for place in chain(*listed) if only(place))
        rows = list(run_cells(cells, at_once=at_once))
    names = [arm.name for arm in arms]
    return sorted(rows, key=lambda row: names.index(row.arm))
