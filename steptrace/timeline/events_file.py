"""Recordings as files: JSON, with a row for each instance, each work of a device, and each wait."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from steptrace.diag.timeline import EventsFileError
from steptrace.simulate import Event, Span
from steptrace.timeline.recording import Arrow, Line, Recording, problems

FORMAT = 1
"""Version of the format."""

_TABLES: Mapping[str, type[Event] | type[Span] | type[Arrow]] = MappingProxyType(
    {"events": Event, "spans": Span, "arrows": Arrow}
)
_NUMBERS = {"float": (int, float), "int": (int,), "int | None": (int, type(None)), "str": (str,), "ArrowKind": (str,)}

T = TypeVar("T", Event, Span, Arrow)


def write_events(recording: Recording, path: str | Path) -> None:
    """Write a recording; times are in seconds.

    Raises:
      OSError: the file cannot be written.
    """
    Path(path).write_text(json.dumps(_tables(recording), separators=(",", ":")) + "\n", encoding="utf-8")


def _tables(recording: Recording) -> dict[str, Any]:
    head = {
        "steptrace_events": FORMAT,
        "program": recording.program,
        "pipeline": recording.pipeline,
        "origin": recording.origin,
        "dropped": recording.dropped,
        "note": recording.note,
        "lines": {op: asdict(line) for op, line in recording.lines.items()},
    }
    for name, row in _TABLES.items():
        columns = [one.name for one in fields(row)]
        rows = [[getattr(one, column) for column in columns] for one in getattr(recording, name)]
        head[name] = {"columns": columns, "rows": rows}
    return head


def read_events(path: str | Path) -> Recording:
    """The recording in a file.

    Raises:
      EventsFileError: it cannot be read, or holds what cannot be of a run.
    """
    try:
        tables = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise EventsFileError(f"cannot read the events in `{path}`: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise EventsFileError(f"`{path}` is no JSON: {error}", help=_HELP) from error
    if not isinstance(tables, dict) or tables.get("steptrace_events") != FORMAT:
        raise EventsFileError(f"`{path}` holds no events of format {FORMAT}", help=_HELP)
    try:
        recording = _recording(tables)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise EventsFileError(f"`{path}` is incomplete: {error}", help=_HELP) from error
    for problem in problems(recording):
        raise EventsFileError(f"`{path}` holds what cannot be of a run: {problem}", help=_HELP)
    return recording


_HELP = "name the file that `steptrace run --events=FILE` wrote"


def _recording(tables: Mapping[str, Any]) -> Recording:
    origin = tables["origin"]
    if origin not in ("planned", "measured"):
        raise ValueError(f"origin is {origin!r}")
    return Recording(
        str(tables["program"]),
        str(tables["pipeline"]),
        origin,
        _rows(tables["events"], Event),
        _rows(tables["spans"], Span),
        _rows(tables["arrows"], Arrow),
        {str(op): Line(str(line["place"]), str(line["code"])) for op, line in tables["lines"].items()},
        int(tables["dropped"]),
        str(tables["note"]),
    )


def _rows(table: Mapping[str, Any], row: type[T]) -> tuple[T, ...]:
    wanted = {one.name: _NUMBERS[str(one.type)] for one in fields(row)}
    if table["columns"] != list(wanted):
        raise ValueError(f"the columns are {table['columns']}, not {list(wanted)}")
    for values in table["rows"]:
        for (name, types), value in zip(wanted.items(), values, strict=True):
            if not isinstance(value, types) or (isinstance(value, float) and not math.isfinite(value)):
                raise ValueError(f"{name} is {value!r}")
    return tuple(row(*values) for values in table["rows"])
