"""Hypothesis strategies: random programs that are well formed, with everything that the text form can say."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from steptrace.diag.loc import Loc
from steptrace.ir.builtin import ESTIMATORS, GROUP_ESTIMATORS
from steptrace.ir.kind import REQUIRED, UNSET, Attr, Given, Operand, OpKind, Variant
from steptrace.ir.predicate import (
    ALWAYS,
    And,
    Every,
    First,
    Flag,
    Has,
    Last,
    MicroIs,
    Not,
    Or,
    Predicate,
)
from steptrace.ir.program import Contract, Origin, Program, Use
from steptrace.ir.resource import Resource, ResourceKind
from steptrace.ir.types import AttrValue
from steptrace.testing.builder import Builder

_LETTERS = "abcxyz_"
_WORDS = st.text(_LETTERS, min_size=1, max_size=6).map(lambda text: f"u_{text}")
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
_OPERAND_BASES = (None, "groups", "micro_batch", "batch", "metrics", "scalar", "flag", "version", "value")

RESOURCES = (
    Resource("mine.cell", ResourceKind.CELL, doc="one per step"),
    Resource("mine.queue", ResourceKind.FIFO, 4),
    Resource("mine.slot", ResourceKind.SLOT, 3),
    Resource("mine.out", ResourceKind.CHANNEL, doc='what "it" writes'),
    Resource("mine.state", ResourceKind.STATE),
)
"""Resources of the random users' rows."""

_INDEXED = ("mine.cell[k]", "mine.cell[k-1]", "mine.cell[k-1-w]", "mine.cell[k+2, m]", "mine.cell[k, m-1]")
_READS = ("params", "rng", "metrics[k]", "mine.state", "mine.queue", "mine.slot", *_INDEXED, "*")
_WRITES = ("mine.out", "mine.state", "mine.queue", "mine.slot", *_INDEXED)

_LOGPS = ("ref_logps", "old_logps")
_OWN = (
    OpKind("adapt", (Operand("metrics", "metrics"),), (Given("next", "scalar"),), writes=("mine.out",), user=True),
    OpKind("look", (Operand("it", None),), writes=("mine.out",), user=True),
    OpKind("spend", (Operand("coefficient", "scalar"),), writes=("mine.out",), user=True),
)


def attr_values() -> st.SearchStrategy[AttrValue]:
    """Values of attributes, of every type that one may have."""
    return st.one_of(
        st.booleans(),
        st.integers(-(10**12), 10**12),
        st.floats(allow_nan=False),
        _TEXTS,
        st.lists(_TEXTS, max_size=3).map(tuple),
    )


def locs() -> st.SearchStrategy[Loc | None]:
    """Places in a source, or none."""
    files = st.sampled_from(("train.py", "steptrace/programs/grpo.py", "jobs/a b/ü.py"))
    return st.none() | st.builds(Loc, files, st.integers(1, 999), st.sampled_from((0, 0, 7)))


def contracts() -> st.SearchStrategy[Contract]:
    """Contracts."""
    return st.builds(
        Contract,
        st.sampled_from(("pinned", "freshest")),
        st.integers(0, 3),
        st.sampled_from(("train", "drop", "error")),
        st.sampled_from(("skip", "error")),
    )


def predicates(flags: tuple[str, ...] = (), *, micro: bool = False) -> st.SearchStrategy[Predicate]:
    """Conditions over these flags; with ``micro`` also those about the round of a loop over micro-batches."""
    atoms: list[st.SearchStrategy[Predicate]] = [
        st.just(ALWAYS),
        st.builds(Every, st.integers(1, 12)),
        st.builds(Has, st.sampled_from(("staged", "async_sync"))),
    ]
    if flags:
        atoms.append(st.builds(Flag, st.sampled_from(flags)))
    if micro:
        atoms += [st.just(First()), st.just(Last()), st.builds(MicroIs, st.integers(0, 3))]
    return st.recursive(
        st.one_of(atoms),
        lambda terms: st.one_of(
            st.builds(Not, terms),
            st.builds(And, st.lists(terms, min_size=2, max_size=3).map(tuple)),
            st.builds(Or, st.lists(terms, min_size=2, max_size=3).map(tuple)),
        ),
        max_leaves=4,
    )


@st.composite
def attr_specs(draw: st.DrawFn) -> Attr:
    """Attributes of rows."""
    type_ = draw(st.sampled_from((bool, int, float, str, tuple)))
    values: st.SearchStrategy[Any] = {
        bool: st.booleans(),
        int: st.integers(-99, 99),
        float: st.floats(allow_nan=False),
        str: _TEXTS,
        tuple: st.lists(_TEXTS, max_size=2).map(tuple),
    }[type_]
    choices = draw(st.just(()) | st.lists(values, min_size=1, max_size=3).map(tuple))
    value = draw(st.sampled_from(choices) if choices else values)
    default = draw(st.sampled_from((value, REQUIRED, UNSET)))
    return Attr(draw(_WORDS), type_, default, choices, draw(_TEXTS))


@st.composite
def rows(draw: st.DrawFn, name: str) -> OpKind:
    """Rows of users' ops; those with results write something, so that no result must be used."""
    operands = draw(
        st.lists(
            st.builds(Operand, _WORDS | _TEXTS, st.sampled_from(_OPERAND_BASES)),
            max_size=2,
            unique_by=lambda operand: operand.name,
        )
    )
    like = st.sampled_from((None, *(operand.name for operand in operands)))
    bases = st.sampled_from(("value", "scalar", "flag", "groups", "token"))
    adds = st.lists(_WORDS, max_size=2, unique=True).map(tuple)
    results = draw(
        st.lists(st.builds(Given, _WORDS, bases, like, adds), max_size=2, unique_by=lambda given: given.name)
    )
    attrs = draw(st.lists(attr_specs(), max_size=2, unique_by=lambda attr: attr.name))
    patterns = st.lists(st.sampled_from(_READS), max_size=2, unique=True).map(tuple)
    written = st.lists(st.sampled_from(_WRITES), min_size=1, max_size=2, unique=True).map(tuple)
    varied = [attr for attr in attrs if attr.choices]
    variants = tuple(Variant(attr.name, attr.choices[0], draw(patterns), draw(written)) for attr in varied)
    return OpKind(
        name,
        tuple(operands),
        tuple(results),
        tuple(attrs),
        draw(patterns),
        draw(written),
        draw(patterns),
        variants,
        lane=draw(st.sampled_from(("host", "io", "judge"))),
        device=draw(st.sampled_from(("", "reference"))),
        blocking=draw(st.booleans()),
        may_fail=draw(st.booleans()),
        binds=draw(st.sampled_from(("", "judge.score"))),
        cost=draw(st.sampled_from(("host", "disk", "wait"))),
        laws=tuple(draw(st.lists(_TEXTS, max_size=2))),
        doc=draw(_TEXTS),
        example=draw(_TEXTS),
        user=draw(st.booleans()),
        loc=draw(locs()),
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Well-formed programs: bulk, streamed or in mini-batches, with users' ops, conditions, carries and shifts."""
    kinds = tuple(draw(rows(f"user_{index}")) for index in range(draw(st.integers(0, 3))))
    builder = Builder(draw(contracts()), kinds=(*kinds, *_OWN), resources=RESOURCES)
    drawn = _Drawn(draw, builder, kinds)
    if draw(st.booleans()):
        builder.op("on_step_begin", loc=draw(locs()), attrs=draw(_declared()))
    drawn.users(())
    builder.op("dispatch", prompts=draw(st.integers(1, 64)), samples=draw(st.integers(1, 16)), loc=draw(locs()))
    draw(st.sampled_from((drawn.bulk, drawn.stream, drawn.parts)))()
    builder.op("sync_weights", loc=draw(locs()))
    builder.op("commit")
    (metrics,) = builder.op("get_metrics", id="fetch", loc=draw(locs()))
    builder.op("save_checkpoint", when=Every(draw(st.integers(1, 9))), loc=draw(locs()))
    if draw(st.booleans()):
        builder.carry("kl.coef", draw(st.floats(allow_nan=False)), draw(locs()))
        builder.op("adapt", metrics, names=("kl.coef",))
        builder.op("spend", Use("kl.coef", -1))
    builder.op("log", metrics)
    builder.op("on_step_end", attrs=draw(_declared()), loc=draw(locs()))
    builder.op("free")
    with builder.section("after"):
        drawn.users(())
    params = draw(st.dictionaries(_WORDS, attr_values(), max_size=3))
    return builder.program(draw(_WORDS), tuple(params.items()), draw(locs()))


def _declared() -> st.SearchStrategy[tuple[tuple[str, AttrValue], ...]]:
    """The attributes of a callback."""
    names = st.lists(st.sampled_from(("metrics", "params", "mine.state", "mine.cell[k-1]")), max_size=2, unique=True)
    reads = names.map(lambda found: ("reads", tuple(found)))
    return st.sampled_from(((), (("reads", ()), ("writes", ("mine.out",))))) | reads.map(lambda pair: (pair,))


class _Drawn:
    """Draws the middle of a step, and users' ops between its ops."""

    def __init__(self, draw: st.DrawFn, builder: Builder, kinds: tuple[OpKind, ...]) -> None:
        self.draw = draw
        self.builder = builder
        self.kinds = kinds

    def bulk(self) -> None:
        """Take all, train, update."""
        groups = self.taken()
        batch = self.packed(groups)
        self.trained(batch, (groups, batch))
        self.builder.op("update", loc=self.draw(locs()))

    def stream(self) -> None:
        """Train on groups as they arrive."""
        start = self.draw(st.sampled_from((1, 0)))
        with self.builder.loop("micro_batches", id="stream", start=start, loc=self.draw(locs())):
            mb, last, _ = self.builder.op("stream_mb", estimator=self.draw(st.sampled_from(GROUP_ESTIMATORS)))
            self.round(mb, last)
        self.builder.op("update")

    def parts(self) -> None:
        """Epochs over mini-batches, with an update in each."""
        groups = self.taken()
        with (
            self.builder.loop("repeat", count=self.draw(st.integers(1, 4))),
            self.builder.loop("mini_batches", groups, count=self.draw(st.integers(1, 4)), loc=self.draw(locs())),
        ):
            (part,) = self.builder.op("next_part", groups)
            self.trained(self.packed(part, GROUP_ESTIMATORS), (part,), logps=("ref_logps",))
            self.builder.op("update")

    def taken(self) -> str:
        groups, exists = self.builder.op("take", loc=self.draw(locs()), nbytes=self.draw(st.sampled_from((None, 4096))))
        self.users((groups, exists))
        return self.builder.op("reward", groups)[0]

    def packed(self, groups: str, estimators: tuple[str, ...] = ESTIMATORS) -> str:
        estimator = self.draw(st.sampled_from(estimators))
        (advantaged,) = self.builder.op("advantages", groups, estimator=estimator)
        return self.builder.op("pack", advantaged, loc=self.draw(locs()))[0]

    def trained(self, batch: str, values: tuple[str, ...], logps: tuple[str, ...] = _LOGPS) -> None:
        with self.builder.loop("micro_batches", batch, loc=self.draw(locs())):
            mb, last = self.builder.op("next_mb", batch)
            self.round(mb, last, values, logps)
        self.users(values)

    def round(self, mb: str, last: str, values: tuple[str, ...] = (), logps: tuple[str, ...] = _LOGPS) -> None:
        """The rest of a round: log-probs, users' ops, the gradient, perhaps as two arms of a choice."""
        (mb,) = self.builder.op(self.draw(st.sampled_from(logps)), mb, loc=self.draw(locs()))
        self.users((mb, last, *values), micro=True)
        if self.draw(st.booleans()):
            self.builder.op("look", Use(mb, 0, -1), when=self.draw(predicates((last,), micro=True)))
        if self.draw(st.booleans()):
            self.builder.op("fwd_bwd", mb)
            return
        arms: tuple[Predicate, ...] = (Flag(last), First(), Has("staged"))
        first = self.draw(st.sampled_from(arms))
        origin = Origin("fwd_bwd", self.draw(st.sampled_from(("first", "head.one"))))
        self.builder.op("fwd_bwd", mb, when=first, id="fwd_bwd.arm", origin=origin)
        self.builder.op("fwd_bwd", mb, when=Not(first), origin=Origin("fwd_bwd", "rest"))

    def users(self, values: tuple[str, ...], *, micro: bool = False) -> None:
        """Up to two users' ops that take some of these values."""
        for _ in range(self.draw(st.integers(0, 2)) if self.kinds else 0):
            self.user(self.draw(st.sampled_from(self.kinds)), values, micro)

    def user(self, row: OpKind, values: tuple[str, ...], micro: bool) -> None:
        args: list[str] = []
        for operand in row.operands:
            fitting = [name for name in values if operand.base in (None, self.builder.types[name].base)]
            if not fitting:
                return
            args.append(self.draw(st.sampled_from(fitting)))
        flags = tuple(name for name in values if self.builder.types[name].base == "flag")
        when = self.draw(st.just(ALWAYS) | predicates(flags, micro=micro))
        peeled = self.draw(st.sampled_from((None, None, 0, 2))) if not (micro or args or flags) else None
        self.builder.op(
            row.name,
            *args,
            id=self.draw(st.sampled_from((row.name, "mine", "mine.part"))),
            when=when,
            shift=0 if args or when != ALWAYS else self.draw(st.integers(-2, 2)),
            origin=self.draw(st.none() | st.builds(Origin, st.sampled_from(("a", "a.2", "a.b")), _WORDS | _TEXTS)),
            loc=self.draw(locs()),
            lane=self.draw(st.sampled_from((row.lane, "host", "io"))),
            micro=peeled,
            attrs=tuple(self._attrs(row)),
        )

    def _attrs(self, row: OpKind) -> list[tuple[str, AttrValue]]:
        found: list[tuple[str, AttrValue]] = []
        for spec in row.attrs:
            fixed: dict[type, AttrValue] = {bool: True, int: -3, float: 1e-07, str: "a\n", tuple: ("x", "")}
            value = spec.choices[0] if spec.choices else fixed[spec.type]
            if spec.default is REQUIRED or self.draw(st.booleans()):
                found.append((spec.name, value))
        return found
