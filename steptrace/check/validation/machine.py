"""Runs the instances of a line without interpreting them: resources hold terms, ops make terms.

The term of an instance is made of the op of the source it stands for, its step and counters, its attributes, its
operands and what the cells that it reads hold. Laws are normal forms: the first part of a split op makes the term of
the whole, each effect of the whole happens in the part that has it, an update that was held back or that a call carries
is the update, and a staged call is the call on what was staged. A write is taken to keep what the cell held: an effect
says that a cell is written, not that all of it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from steptrace.check.validation.instances import Instance, value_key, where
from steptrace.check.validation.parts import ATTEMPTS, LOOKS, RELEASE, SETTLE, SPLITS, STAGED, WHOLE, before
from steptrace.check.validation.runs import Run, cell_of
from steptrace.check.validation.sides import Pair, Site, Touch, plain_effects, touches_of
from steptrace.check.validation.terms import Terms
from steptrace.ir import ResourceKind

_UNSEEN = ("closes", "fuses", "head", "head_bytes", "head_reason", "lent")
"""Attributes that change no term: laws give them, and what they change is told elsewhere or is rounding."""


@dataclass(frozen=True, slots=True)
class Act:
    """What an op does to terms.

    Attributes:
      origin: the source op.
      attrs: number of the term of its kind and attributes.
      reads: what goes into its term.
      writes: what its term goes into.
      first: whether it makes the term of the whole; a later part uses that.
    """

    origin: Site
    attrs: int
    reads: tuple[Touch, ...]
    writes: tuple[Touch, ...]
    first: bool


@dataclass(slots=True)
class Trace:
    """What a run left.

    Attributes:
      made: the term of each instance of the source.
      channels: for each channel its entries in order.
      cells: for each resource what its cells hold.
      line: the instances of the source, in the order in which their terms were made, with their positions in the run.
      reruns: the settlings whose rerun would not find what its attempt found, by position in the run, each with the
        term of the micro-batch that it would find.
    """

    made: dict[Instance, int] = field(default_factory=dict)
    channels: dict[str, list[int]] = field(default_factory=dict)
    cells: dict[str, dict[tuple[int, ...] | None, int]] = field(default_factory=dict)
    line: list[tuple[Instance, int]] = field(default_factory=list)
    reruns: list[tuple[int, int]] = field(default_factory=list)


class Acts:
    """What each op of a pair does to terms.

    Attributes:
      source: by the number of an op of the source.
      schedule: by the number of an op of the schedule; None for what only the schedule has.
    """

    def __init__(self, pair: Pair, terms: Terms) -> None:
        self.pair = pair
        self.terms = terms
        self.source = tuple(self._of_source(site) for site in pair.source.sites)
        self.schedule = tuple(self._of_schedule(site) for site in pair.schedule.sites)

    def _of_source(self, site: Site) -> Act:
        reads, writes = self._shape(site)
        return Act(site, self._attrs(site, site), reads, writes, True)

    def _shape(self, origin: Site) -> tuple[tuple[Touch, ...], tuple[Touch, ...]]:
        """What a source op reads and writes; of one that is split only what its parts do too."""
        reads = tuple(touch for touch in origin.touches if touch.reads or touch.awaits)
        writes = tuple(touch for touch in origin.touches if touch.writes)
        if origin.number not in self.pair.split:
            return reads, writes
        parts = [site for site, its in zip(self.pair.schedule.sites, self.pair.origins, strict=True) if its is origin]
        first = [site for site in parts if site.part != WHOLE and not before(site.part)]
        seen = {_cell(touch) for site in first for touch in site.touches if touch.reads or touch.awaits}
        done = {_cell(touch) for site in parts if site.part != WHOLE for touch in site.touches if touch.writes}
        return (
            tuple(touch for touch in reads if _cell(touch) in seen),
            tuple(touch for touch in writes if _cell(touch) in done),
        )

    def _of_schedule(self, site: Site) -> Act | None:
        origin = self.pair.origins[site.number]
        if origin is None or site.part in LOOKS or site.part == RELEASE:
            return None
        if site.number in self.pair.streams:
            return self._of_source(origin)
        if any(site.part in split for split in SPLITS):
            reads, writes = self._shape(origin)
            own = {_cell(touch) for touch in site.touches if touch.writes}
            first = not before(site.part)
            mine = tuple(touch for touch in writes if _cell(touch) in own)
            seen = reads if first or site.part == SETTLE else ()
            return Act(origin, self._attrs(origin, origin), seen, mine, first)
        if site.part == "staged" or site.op.kind == "apply_deferred_update" or origin.number in self.pair.split:
            source = self._of_source(origin)
            return Act(origin, self._attrs(origin, origin), source.reads, source.writes, True)
        touches = touches_of(plain_effects(site.op, site.kind, self.pair.schedule.program), self.pair.leaves)
        reads = tuple(touch for touch in touches if touch.reads or touch.awaits)
        writes = tuple(touch for touch in touches if touch.writes)
        return Act(origin, self._attrs(site, origin), reads, writes, True)

    def _attrs(self, site: Site, origin: Site) -> int:
        attrs = tuple(pair for pair in site.op.attrs if pair[0] not in _UNSEEN)
        return self.terms.number(("attrs", origin.number, site.op.kind, attrs))


def _cell(touch: Touch) -> tuple[str, int | None, int | None]:
    return (touch.leaf, touch.step, touch.micro)


class Machine:
    """Runs one line."""

    def __init__(self, run: Run, acts: Acts) -> None:
        self.run = run
        self.acts = acts.source if run.side is run.pair.source else acts.schedule
        self.updates = acts.source
        self.terms = acts.terms
        self.trace = Trace()
        self.values: dict[tuple[object, ...], int] = {}
        self.lying: dict[int, int] = {}
        self.given_back: set[int] = set()
        self.parts: dict[tuple[Instance, str], int] = {}
        self.pushes: dict[str, list[tuple[int, int]]] = {}
        self.staged: list[int] = []
        self.slot: int | None = None
        self.inputs: dict[Instance, tuple[str, tuple[int, ...], tuple[int, ...]]] = {}
        self.held: tuple[int, tuple[int, ...]] | None = None
        self.streams = run.pair.streams if run.side is run.pair.schedule else {}
        self.partial: dict[tuple[str, tuple[int, ...] | None], tuple[int, int]] = {}
        self.skips = run.pair.source.program.contract.empty == "skip"

    def traced(self, line: tuple[int, ...]) -> Trace:
        """Runs the instances in the order of a line."""
        for position in line:
            self._step(position)
        return self.trace

    def _step(self, position: int) -> None:
        one = self.run.lanes.instances[position]
        site = self.run.side.sites[one.site]
        if site.part in LOOKS or site.part == RELEASE:
            if site.part == "stage":
                self._stage(site, one)
            elif site.part == RELEASE:
                self.given_back |= {self.lying.get(found, found) for found in self._operands(site, one)}
            return
        act = self.acts[one.site]
        assert act is not None, "coverage looks for ops that the source does not have"
        identity = Instance(act.origin.number, one.step, one.path)
        if act.origin.op.kind == "update" and self._untrained(one.step):
            return
        if one.site in self.streams:
            self._stream(site, act, one, position)
            return
        if act.first:
            operands = self._staged(site, one) if site.part in STAGED else self._operands(site, one)
            if site.op.kind == "apply_deferred_update":
                operands = self._applied(one)
            term = self._make(act, identity, operands, position)
            if site.part in ATTEMPTS:
                self.inputs[identity] = (site.part, operands, self._seen(act, identity))
        else:
            term = self._later(site, identity)
            if site.part == SETTLE:
                term = self._settled(site, act, position, identity, term)
        self.parts[identity, site.part] = term
        self._write(act.writes, identity, term)
        for at in range(len(site.op.results)):
            self.values[(*site.value(at), one.step, one.path)] = self.terms.number(("result", term, at))
        self._lie(site, one)
        self._close(site, one, position)

    def _stream(self, site: Site, act: Act, one: Instance, position: int) -> None:
        """A stream in normal form: its first call does what the source does in bulk, each call takes a micro-batch.

        Until the last call, who reads what the bulk wrote finds only a part of it there.
        """
        drained, count = self.streams[site.number], self.run.setting.counts[one.step]
        if one.path[-1] == 0:
            for bulk in drained:
                self._bulk(bulk, site, one.step, position)
        self._uncover()
        if one.path[-1] >= count:
            return
        identity = Instance(act.origin.number, one.step, one.path)
        term = self._make(act, identity, self._plain_operands(act.origin, one), position)
        self._results(act.origin, one.step, one.path, term)
        if one.path[-1] < count - 1:
            for bulk in drained:
                self._cover(bulk, Instance(bulk.number, one.step, ()), one.path[-1])

    def _bulk(self, bulk: Site, stream: Site, step: int, position: int) -> None:
        """What one op of the source does for the whole step, with what the stream says of it."""
        one, act = Instance(bulk.number, step, ()), self.updates[bulk.number]
        own = dict(stream.op.attrs)
        attrs = tuple((name, own.get(name, value)) for name, value in bulk.op.attrs)
        number = self.terms.number(("attrs", bulk.number, bulk.op.kind, attrs))
        term = self._make(replace(act, attrs=number), one, self._plain_operands(bulk, one), position)
        self._write(act.writes, one, term)
        self._results(bulk, step, (), term)

    def _plain_operands(self, origin: Site, one: Instance) -> tuple[int, ...]:
        """The operands that an op of the source has, in a run of the schedule."""
        uses = zip(self.run.pair.source.uses[origin.number], origin.op.args, strict=True)
        return tuple([self._value(value_key(known, one), use.name, use.step) for known, use in uses])

    def _results(self, origin: Site, step: int, path: tuple[int, ...], term: int) -> None:
        for at in range(len(origin.op.results)):
            self.values[(*origin.value(at), step, path)] = self.terms.number(("result", term, at))

    def _cover(self, bulk: Site, one: Instance, calls: int) -> None:
        """Hides what the bulk wrote behind the part that is there after some calls."""
        for touch in self.updates[bulk.number].writes:
            cells = self.trace.cells.get(touch.leaf, {})
            index = None if touch.kind is ResourceKind.FIFO else cell_of(touch, one)
            if index in cells and (touch.leaf, index) not in self.partial:
                part = self.terms.number(("partial", cells[index], calls))
                self.partial[touch.leaf, index] = (cells[index], part)
                cells[index] = part

    def _uncover(self) -> None:
        """Shows again what the bulk wrote; what others wrote over it meanwhile stays mixed with it."""
        for (leaf, index), (whole, part) in self.partial.items():
            cells = self.trace.cells[leaf]
            found = cells.get(index, -1)
            cells[index] = whole if found == part else self.terms.number(("both", found, whole))
        self.partial.clear()

    def _untrained(self, step: int) -> bool:
        """Whether a step has no micro-batch, so that its update is skipped."""
        counts = self.run.setting.counts
        return self.skips and 0 <= step < len(counts) and counts[step] == 0

    def _seen(self, act: Act, identity: Instance) -> tuple[int, ...]:
        return tuple([self._read(touch, identity) for touch in act.reads])

    def _settled(self, site: Site, act: Act, position: int, identity: Instance, term: int) -> int:
        """The term of an attempt, if a rerun would find what the attempt found: its own micro-batch, the same state."""
        part, operands, reads = self.inputs.get(identity, ("", (), ()))
        held = (self.slot,) if site.op.attr("from_slot") and part in STAGED and self.slot is not None else None
        found = self._operands(site, self.run.lanes.instances[position]) if held is None else held
        if (found, self._seen(act, identity)) == (operands, reads):
            return term
        self.trace.reruns.append((position, found[0]))
        return self.terms.number(("rerun", found[0], identity))

    def _make(self, act: Act, identity: Instance, operands: tuple[int, ...], position: int) -> int:
        term = self.terms.number(("op", identity, act.attrs, operands, self._seen(act, identity)))
        self.trace.made[identity] = term
        self.trace.line.append((identity, position))
        return term

    def _later(self, site: Site, identity: Instance) -> int:
        """The term of a split op, for a part after the first; another term where the part before has not run."""
        earlier = before(site.part)
        assert earlier, "only later parts come here"
        found = [self.parts[identity, part] for part in earlier if (identity, part) in self.parts]
        return found[0] if found else self.terms.number(("missing", earlier[0], site.part, identity))

    def _operands(self, site: Site, one: Instance) -> tuple[int, ...]:
        uses = zip(self.run.side.uses[site.number], site.op.args, strict=True)
        return tuple([self._value(value_key(known, one), use.name, use.step) for known, use in uses])

    def _value(self, key: tuple[object, ...], name: str, back: int) -> int:
        found = self.values.get(key)
        if found is not None:
            return self._there(found) if self.given_back else found
        carries = [carry for carry in self.run.side.program.carries if carry.name == name]
        if back and carries and len(key) == 5 and isinstance(key[3], int) and key[3] < 0:
            return self.terms.number(("carry", key[0], carries[0].init))
        return self.terms.number(("undefined", name))

    def _lie(self, site: Site, one: Instance) -> None:
        """A micro-batch that is made from another lies where that does."""
        bases = [operand.base for operand in site.kind.operands]
        if "micro_batch" not in bases:
            return
        found = self._operands(site, one)[bases.index("micro_batch")]
        for at, given in enumerate(site.kind.results):
            if given.base == "micro_batch":
                self.lying[self.values[(*site.value(at), one.step, one.path)]] = self.lying.get(found, found)

    def _there(self, found: int) -> int:
        """A value as it is read: what was given back holds something else by now."""
        lost = self.lying.get(found, found) in self.given_back
        return self.terms.number(("given back", found)) if lost else found

    def _stage(self, site: Site, one: Instance) -> None:
        """Holds the operand if the flag says that it was there; a second beside it is refused by the trainer."""
        last = len(site.op.results) - 1
        if (*site.value(last), one.step, one.path) not in self.run.setting.flags:
            return
        self.slot = self._operands(site, one)[0]
        self.staged.append(self.slot)

    def _staged(self, site: Site, one: Instance) -> tuple[int, ...]:
        if len(self.staged) != 1:
            return (self.terms.number(("staged", len(self.staged))),)
        return (self._there(self.staged.pop()),)

    def _applied(self, one: Instance) -> tuple[int, ...]:
        """The operands of an update that was held back: none, unless nothing, or another step's, is held."""
        held, self.held = self.held, None
        return () if held == (one.step, one.path) else (self.terms.number(("held", held)),)

    def _close(self, site: Site, one: Instance, position: int) -> None:
        """The last call of a step holds the update back, or carries it."""
        if not site.closes or one.path[-1] != self.run.setting.counts[one.step] - 1:
            return
        if site.closes == "defer":
            self.held = (one.step, one.path[:-1])
            return
        update = self.run.pair.carries.get(site.number)
        if update is not None:
            act = self.updates[update.number]
            identity = Instance(update.number, one.step, one.path[:-1])
            self._write(act.writes, identity, self._make(act, identity, (), position))

    def _read(self, touch: Touch, one: Instance) -> int:
        if touch.kind is ResourceKind.CHANNEL:
            return self.terms.number(("entries", *self.trace.channels.get(touch.leaf, ())))
        cells = self.trace.cells.get(touch.leaf, {})
        if touch.kind is ResourceKind.FIFO:
            sent = tuple(term for step, term in self.pushes.get(touch.leaf, ()) if step <= one.step)
            return self.terms.number(("queue", sent, cells.get(None, -1)))
        index = cell_of(touch, one)
        if index is not None:
            found = cells.get(index)
            everything = cells.get(None)
            if everything is None:
                return self.terms.number(("initial", touch.leaf, index)) if found is None else found
            return self.terms.number(("both", everything, -1 if found is None else found))
        if len(cells) == 1 and None in cells:
            return cells[None]
        return self.terms.number(("cells", touch.leaf, *sorted(cells.items(), key=lambda cell: cell[0] or ())))

    def _write(self, touches: tuple[Touch, ...], one: Instance, term: int) -> None:
        for touch in touches:
            if touch.kind is ResourceKind.CHANNEL:
                self.trace.channels.setdefault(touch.leaf, []).append(term)
                continue
            if touch.kind is ResourceKind.FIFO and not touch.reads:
                self.pushes.setdefault(touch.leaf, []).append((one.step, term))
                continue
            cells = self.trace.cells.setdefault(touch.leaf, {})
            index = None if touch.kind is ResourceKind.FIFO else cell_of(touch, one)
            cells[index] = self.terms.number(("left", term, cells.get(index, -1)))


def instance_text(pair: Pair, one: Instance) -> str:
    """An instance of the source in words."""
    return f"{pair.source.sites[one.site].op.id}{where(one.step, one.path)}"
