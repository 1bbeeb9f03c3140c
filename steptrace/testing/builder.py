"""Builds programs by hand, without the tracer: types, names and resources are filled in, nothing is checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from steptrace.diag.loc import Loc
from steptrace.ir.builtin import BUILTIN, RESOURCES, kinds_of
from steptrace.ir.effects import effects_of
from steptrace.ir.kind import OpKind
from steptrace.ir.predicate import ALWAYS, Predicate
from steptrace.ir.program import Carry, Contract, Loop, LoopKind, Node, Op, Origin, Program, Result, Use
from steptrace.ir.resource import ANY, Resource, ResourceKind
from steptrace.ir.types import AttrValue, Type


class Builder:
    """Collects the nodes of a program; ``program`` puts it together.

    Args:
      contract: contract of the program.
      kinds: rows of users' ops.
      resources: resources that are not built in.
      sync: whether the initial weight sync is put before step 0.
    """

    def __init__(
        self,
        contract: Contract | None = None,
        *,
        kinds: tuple[OpKind, ...] = (),
        resources: tuple[Resource, ...] = (),
        sync: bool = True,
    ) -> None:
        self.contract = contract or Contract()
        self.kinds = {**BUILTIN, **{kind.name: kind for kind in kinds}}
        self.rows = kinds
        self.resources = {resource.name: resource for resource in resources}
        self.carries: list[Carry] = []
        self.types: dict[str, Type] = {}
        self.sections: dict[str, list[Node]] = {"before": [], "step": [], "after": []}
        self._open: list[list[Node]] = [self.sections["step"]]
        self._names: set[str] = set()
        if sync:
            with self.section("before"):
                self.op("sync_weights", id="initial_sync", names=("v0",))

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """What is built inside stands ``before`` step 0 or ``after`` the last step."""
        self._open.append(self.sections[name])
        yield
        self._open.pop()

    @contextmanager
    def loop(
        self,
        kind: LoopKind,
        over: str | None = None,
        *,
        count: int | None = None,
        id: str = "",
        start: int = 0,
        loc: Loc | None = None,
    ) -> Iterator[None]:
        """What is built inside is the body of a loop."""
        body: list[Node] = []
        self._open.append(body)
        yield
        self._open.pop()
        use = None if over is None else Use(over)
        var = {"micro_batches": "m", "repeat": "e", "mini_batches": "j"}[kind]
        node = Loop(self.fresh(id or kind, "id "), kind, var, use, count, tuple(body), loc, start)
        self._open[-1].append(node)

    def op(
        self,
        kind: str,
        *args: str | Use,
        id: str = "",
        names: tuple[str, ...] = (),
        when: Predicate = ALWAYS,
        shift: int = 0,
        origin: Origin | None = None,
        loc: Loc | None = None,
        lane: str = "",
        micro: int | None = None,
        nbytes: int | None = None,
        attrs: tuple[tuple[str, AttrValue], ...] = (),
        **more: AttrValue,
    ) -> tuple[str, ...]:
        """Adds an op; returns the names of its results.

        Args:
          kind: its kind.
          *args: operands: names of values, or uses of other steps.
          id: its id; by default the kind, with a number when it repeats.
          names: names of its results, by default those of the row.
          when: its condition.
          shift: how many steps ahead it runs.
          origin: where it came from.
          loc: line of the DSL.
          lane: the lane, by default that of the row.
          micro: the micro-batch it stands for outside the loop.
          nbytes: size of its results in bytes.
          attrs: its attributes.
          **more: further attributes.
        """
        row = self.kinds[kind]
        uses = tuple(Use(arg) if isinstance(arg, str) else arg for arg in args)
        types = row.result_types(tuple(self.types.get(use.name, Type("value")) for use in uses))
        self._names |= {f"%{name}" for name in names}
        given = names or tuple(self.fresh(result.name, "%") for result in row.results)
        self.types |= {name: replace(type_, nbytes=nbytes) for name, type_ in zip(given, types, strict=True)}
        results = tuple(Result(name, self.types[name]) for name in given)
        all_attrs = (*attrs, *more.items())
        op_id = self.fresh(id or kind, "id ")
        op = Op(op_id, kind, uses, results, all_attrs, lane or row.lane, shift, when, origin, loc, micro)
        self._open[-1].append(op)
        return given

    def carry(self, name: str, init: float, loc: Loc | None = None) -> None:
        """Declares a value that is carried from step to step."""
        self.carries.append(Carry(name, init, loc))
        self.types.setdefault(name, Type("scalar"))

    def fresh(self, base: str, space: str) -> str:
        """``base``, or the first of ``base.2``, ``base.3``, ... that is free."""
        name, count = base, 1
        while space + name in self._names:
            count += 1
            name = f"{base}.{count}"
        self._names.add(space + name)
        return name

    def program(
        self, name: str = "grpo", params: tuple[tuple[str, AttrValue], ...] = (), loc: Loc | None = None
    ) -> Program:
        """The program, with the resources that its ops touch."""
        program = Program(
            name,
            params,
            self.contract,
            kinds=self.rows,
            carries=tuple(self.carries),
            prologue=tuple(self.sections["before"]),
            body=tuple(self.sections["step"]),
            epilogue=tuple(self.sections["after"]),
            loc=loc,
        )
        return replace(program, resources=self._touched(program))

    def _touched(self, program: Program) -> tuple[Resource, ...]:
        kinds = kinds_of(program)
        names = dict.fromkeys(
            effect.resource
            for op in program.ops()
            for effect in effects_of(op, kinds[op.kind], program.contract)
            if effect.resource != ANY
        )
        known = {**RESOURCES, **self.resources}
        return tuple(known.get(name, Resource(name, ResourceKind.STATE)) for name in names)
