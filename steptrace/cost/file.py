"""Costs from a TOML file: numbers with units, checked, with the line of each mistake."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from steptrace.cost.profile import MUST_BE_SEEN
from steptrace.cost.quantity import Dimension, quantity
from steptrace.diag.base import Note, SteptraceError, did_you_mean
from steptrace.diag.cost import CostFileError, CostValueError, UnknownCostsError
from steptrace.diag.loc import Loc
from steptrace.ir import Program, kinds_of
from steptrace.simulate import Cost, Durations, Rollout, Spread
from steptrace.simulate.durations import FREE

OTHER = "other"
"""The table whose cost is that of all ops without one."""

SIZES = ("params", "optimizer", "batch", "micro_batch")
"""What may have a size: the parameters, the optimizer state, a step's groups on the host, a micro-batch."""

FIRST = "first"
"""The table below an op's whose cost is that of the step's first micro-batch."""

SPREADS: Mapping[str, str] = MappingProxyType(
    {"deviation": "deviation", "straggler_chance": "chance", "straggler_times": "times"}
)
"""The keys of an op that say how its instances differ, with the field of `Spread` that each is."""

DISPATCH = "dispatch"
"""The kind of op that sends a step's requests to the rollout."""

_TIMES = ("issue", "work", "ship")


@dataclass(frozen=True, slots=True)
class Costs:
    """What a cost file says.

    Attributes:
      ops: the cost of an op, by its id or kind.
      other: the cost of all others; None where the file does not say.
      sizes: bytes of what is held in memory, by name (see `SIZES`).
      micro_batches: how many a step of the cell has; None where the file does not say.
      file: its name.
      firsts: the cost of an op for a step's first micro-batch, where the file says another.
      spreads: how instances of an op differ, by its id or kind, where the file says so.
      rollout: the service that samples, where the file says how much it serves at a time.
    """

    ops: Mapping[str, Cost]
    other: Cost | None = None
    sizes: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    micro_batches: int | None = None
    file: str = "<costs>"
    firsts: Mapping[str, Cost] = field(default_factory=lambda: MappingProxyType({}))
    spreads: Mapping[str, Spread] = field(default_factory=lambda: MappingProxyType({}))
    rollout: Rollout | None = None

    def durations(self) -> Durations:
        """For `steptrace.simulate` and for periods; a step's requests are served together."""
        ops = self.ops
        if self.rollout is not None and DISPATCH in ops:
            whole = ops[DISPATCH].work_s * self.rollout.turns
            ops = MappingProxyType({**ops, DISPATCH: replace(ops[DISPATCH], work_s=whole)})
        return Durations(ops, FREE if self.other is None else self.other, firsts=self.firsts)

    def unknown(self, source: Program) -> tuple[str, ...]:
        """The ops of a program, as it is written, that the file says nothing of."""
        if self.other is not None:
            return ()
        names = [op.id for op in source.ops() if op.kind not in self.ops and op.id not in self.ops]
        return tuple(dict.fromkeys(names))

    def covering(self, source: Program) -> Durations:
        """The durations, if there is a cost for every op of a program.

        Raises:
          UnknownCostsError: there is none for some of them; all are listed. Or there is one for a name that is no op,
            and reads like one that would cost what all others do.
        """
        missing = self.unknown(source)
        if missing:
            lines = {op.id: op.loc for op in source.ops()}
            noun = "has no cost" if len(missing) == 1 else "have no costs"
            raise UnknownCostsError(
                f"{', '.join(f'`{name}`' for name in missing)} {noun} in `{self.file}`",
                notes=tuple(Note(f"`{name}` is called here", lines[name]) for name in missing),
                help=_how_to_know(missing, {op.id: op.kind for op in source.ops()}),
            )
        self._refuse_misspelt(source)
        return self.durations()

    def _refuse_misspelt(self, source: Program) -> None:
        """An op that is meant by a misspelt name has the cost of all others, and nobody would notice."""
        from difflib import get_close_matches  # its import takes as long as reading a file

        ops = {op.id: op for op in source.ops()}
        known = {*kinds_of(source), *ops}
        others = [id for id, op in ops.items() if id not in self.ops and op.kind not in self.ops]
        for name in self.ops:
            near = [] if name in known or name.partition(".")[0] in known else get_close_matches(name, others, 1, 0.75)
            if near:
                message = f"a cost for `{name}`, which is no op of `{source.name}`, and none for `{near[0]}`"
                raise UnknownCostsError(
                    f"`{self.file}` has {message}",
                    loc=ops[near[0]].loc,
                    help=f"did you mean [ops.{near[0]}]?",
                )

    def require_sizes(self) -> None:
        """Refuses a file that does not say how large everything is that schedules hold.

        Raises:
          UnknownCostsError: it does not.
        """
        missing = [name for name in SIZES if name not in self.sizes]
        if missing:
            raise UnknownCostsError(
                f"[sizes] in `{self.file}` has no {', '.join(missing)}, so nobody knows what a schedule holds",
                help='say it for each: params = "2 GB"; "0 B" for what takes no room',
            )


def read_costs(path: str | Path) -> Costs:
    """The costs in a file.

    Raises:
      CostFileError: it cannot be read, is no TOML, or has a table or key that means nothing.
      CostValueError: a value is no number with a unit that fits.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CostFileError(f"cannot read the costs in `{path}`: {said}", help="name a TOML file") from error
    return parse_costs(text, str(path))


def parse_costs(text: str, file: str = "<costs>") -> Costs:
    """The costs in a text; raises what `read_costs` does."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of TOML, of a number with too many digits, of brackets in brackets
        found = re.search(r"line (\d+), column (\d+)", str(error))
        loc = Loc(file, int(found[1]), int(found[2])) if found else Loc(file, 1)
        raise CostFileError(f"the costs are no TOML: {error}", loc=loc) from error
    return _Reader(text, file).costs(tables)


@dataclass(frozen=True)
class _Reader:
    """Reads tables; knows the text for the lines of mistakes."""

    text: str
    file: str

    def costs(self, tables: Mapping[str, Any]) -> Costs:
        self.keys(tables, ("ops", "links", "sizes", "cell", "rollout"), ())
        links = {
            name: self.link(name, self.table(tables["links"], ("links",), name)) for name in self.names(tables, "links")
        }
        ops = {
            name: self.op(("ops", name), self.table(tables["ops"], ("ops",), name), links)
            for name in self.names(tables, "ops")
        }
        firsts = {
            name: self.op(("ops", name, FIRST), self.table(tables["ops"][name], ("ops", name), FIRST), links)
            for name in ops
            if FIRST in tables["ops"][name]
        }
        sizes = self.table(tables, (), "sizes") if "sizes" in tables else {}
        self.keys(sizes, SIZES, ("sizes",))
        found = {name: self.number(sizes, name, "size", ("sizes",)) for name in sizes}
        other = ops.pop(OTHER, None)
        sized, first = MappingProxyType(found), MappingProxyType(firsts)
        read = {name: self.spread(name, tables) for name in self.names(tables, "ops")}
        spreads = MappingProxyType({name: spread for name, spread in read.items() if spread is not None})
        rollout = self.rollout(tables, spreads.get(DISPATCH, Spread()))
        return Costs(MappingProxyType(ops), other, sized, self.cell(tables), self.file, first, spreads, rollout)

    def spread(self, name: str, tables: Mapping[str, Any]) -> Spread | None:
        """How instances of an op differ; None where the file does not say."""
        table, at = tables["ops"][name], ("ops", name)
        if not any(key in table for key in SPREADS):
            return None
        values = {}
        for key, fields in SPREADS.items():
            value = table.get(key, 1.0 if fields == "times" else 0.0)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise self.error(CostValueError, f"`{'.'.join((*at, key))}`: {value!r} is no number", (*at, key))
            values[fields] = float(value)
        try:
            return Spread(**values)
        except SteptraceError as error:
            raise self.error(CostValueError, error.message, at) from error

    def rollout(self, tables: Mapping[str, Any], spread: Spread) -> Rollout | None:
        """The service that samples; None where the file does not say."""
        if "rollout" not in tables:
            return None
        table = self.table(tables, (), "rollout")
        self.keys(table, ("requests", "capacity"), ("rollout",))
        requests, capacity = table.get("requests"), table.get("capacity")
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in (requests, capacity)):
            message = "[rollout] has `requests` of a step and `capacity`, how many are served at a time, from 1 on"
            raise self.error(CostValueError, message, ("rollout",))
        try:
            return Rollout(int(requests or 0), int(capacity or 0), spread)
        except SteptraceError as error:
            raise self.error(CostValueError, f"[rollout]: {error.message}", ("rollout",)) from error

    def cell(self, tables: Mapping[str, Any]) -> int | None:
        cell = self.table(tables, (), "cell") if "cell" in tables else {}
        self.keys(cell, ("micro_batches",), ("cell",))
        count = cell.get("micro_batches")
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise self.error(
                CostValueError, f"{count!r} is no number of micro-batches from 1 on", ("cell", "micro_batches")
            )
        return count

    def link(self, name: str, table: Mapping[str, Any]) -> Callable[[float], float]:
        at = ("links", name)
        self.keys(table, ("bandwidth", "latency"), at)
        if "bandwidth" not in table:
            raise self.error(CostFileError, f"link `{name}` has no bandwidth", at)
        bandwidth = self.number(table, "bandwidth", "bandwidth", at)
        latency = self.number(table, "latency", "time", at) if "latency" in table else 0.0
        return lambda size: latency + size / bandwidth

    def op(self, at: tuple[str, ...], table: Mapping[str, Any], links: Mapping[str, Callable[[float], float]]) -> Cost:
        name = ".".join(at[1:])
        self.keys(table, (*_TIMES, "bytes", "link", *([FIRST, *SPREADS] if len(at) == 2 else [])), at)
        if not table.keys() - {FIRST, *SPREADS}:
            raise self.error(CostFileError, f"`{name}` has no cost: say what takes no time too", at)
        issue, work, ship = (self.number(table, key, "time", at) if key in table else 0.0 for key in _TIMES)
        if "bytes" in table:
            size, link = self.number(table, "bytes", "size", at), table.get("link", next(iter(links), None))
            if not isinstance(link, str) or link not in links:
                known = f"the file has {', '.join(links)}" if links else "the file has no links"
                raise self.error(CostFileError, f"`{name}` goes over `{link}`, and {known}", (*at, "link"))
            ship += links[link](size)
        elif "link" in table:
            raise self.error(CostFileError, f"`{name}` has a link and no bytes", (*at, "link"))
        try:
            return Cost(issue, work, ship)
        except SteptraceError as error:
            raise self.error(CostValueError, f"`{name}`: {error.message}", at) from error

    def number(self, table: Mapping[str, Any], key: str, dimension: Dimension, at: tuple[str, ...]) -> float:
        try:
            return quantity(table[key], dimension)
        except ValueError as error:
            raise self.error(CostValueError, f"`{'.'.join((*at, key))}`: {error}", (*at, key)) from error

    def names(self, tables: Mapping[str, Any], room: str) -> tuple[str, ...]:
        return tuple(self.table(tables, (), room)) if room in tables else ()

    def table(self, tables: Mapping[str, Any], at: tuple[str, ...], name: str) -> Mapping[str, Any]:
        found = tables[name]
        if not isinstance(found, dict):
            raise self.error(CostFileError, f"`{'.'.join((*at, name))}` is no table", (*at, name))
        return found

    def keys(self, table: Mapping[str, Any], known: tuple[str, ...], at: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                where = f"[{'.'.join(at)}]" if at else "the file"
                near = did_you_mean(key, known)
                message = f"{where} has no key `{key}`; there are {', '.join(known)}"
                raise self.error(CostFileError, message, (*at, key), help=near)

    def error(self, cls: type[SteptraceError], message: str, at: tuple[str, ...], help: str = "") -> SteptraceError:
        return cls(message, loc=Loc(self.file, line_of(self.text, at)), help=help)


def _how_to_know(missing: Sequence[str], kinds: Mapping[str, str]) -> str:
    """How to measure what has no cost, and how to say it by hand: what trains is not offered for free."""
    measured = "measure it: a run with `--profile FILE --timed` (`timed=True`) writes the costs of all that ran"
    trains = [name for name in missing if kinds[name] in MUST_BE_SEEN]
    others = '[ops.other] with issue = "0 s"'
    if not trains:
        return f"{measured}; or say it by hand, for each, or for all of them: {others}"
    each = ", ".join(f'[ops.{name}] with work = "N ms"' for name in dict.fromkeys(kinds[one] for one in trains))
    rest = f"; the others for each, or then for all of them: {others}" if len(trains) < len(missing) else ""
    return f"{measured}; or say by hand what it takes: {each}{rest}"


def line_of(text: str, path: tuple[str, ...]) -> int:
    """The line in which a key of a TOML text stands, as far as a look at each line tells; else its table's, else 1."""
    table: tuple[str, ...] = ()
    best, depth = 1, 0
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line)
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if head:
            table = _parts(head[1])
            here = table
        elif key:
            here = (*table, *_parts(key[1]))
        else:
            continue
        shared = 0
        while shared < min(len(here), len(path)) and here[shared] == path[shared]:
            shared += 1
        if shared > depth and (shared == len(here) or shared == len(path)):
            best, depth = number, shared
    return best


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip(" \"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.]+", dotted))
