"""Reads the lines of ops and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from steptrace.diag.loc import Loc
from steptrace.diag.text import DuplicateNameError
from steptrace.ir.lexer import Token
from steptrace.ir.predicate import ALWAYS, Predicate
from steptrace.ir.predicate_text import read_predicate
from steptrace.ir.printer import split_origin
from steptrace.ir.program import Loop, LoopKind, Node, Op, Origin, Result, Use
from steptrace.ir.reader import Reader
from steptrace.ir.resource import Access, Effect, Index
from steptrace.ir.types import AttrValue

PrintedEffects = tuple[tuple[Effect, Loc], ...]
"""The effects on an op's line, each with its place."""

NoteName = Callable[[str, Token], None]
"""Hears of a name and the token it stands in."""

LOOP_KINDS: tuple[LoopKind, ...] = get_args(LoopKind)


class OpReader:
    """Reads nodes, and notes where each stands and which effects its line shows.

    Attributes:
      places: the table of ``steptrace.ir.places.Places``, as it grows.
      effects: printed effects by op id.
    """

    def __init__(self, reader: Reader, places: dict[tuple[str, str], Loc]) -> None:
        self.reader = reader
        self.places = places
        self.effects: dict[str, PrintedEffects] = {}

    def nodes(self) -> tuple[Node, ...]:
        """Ops and loops up to the closing brace, which is taken with the rest of its line."""
        nodes: list[Node] = []
        while not self.reader.accept("}"):
            is_loop = self.reader.at("loop") and self.reader.ahead(1).kind == "name"
            nodes.append(self._loop() if is_loop else self._op())
        self.reader.end_of_line()
        return tuple(nodes)

    def _loop(self) -> Loop:
        reader = self.reader
        start = reader.next()
        kind = next((kind for kind in LOOP_KINDS if reader.at(kind)), None)
        if kind is None:
            reader.fail(f"a loop ({', '.join(LOOP_KINDS)})")
        label = reader.next()
        if not reader.at(":"):
            label = reader.take("name", "`:` or the id of the loop")
        self._new_id(label.text, label, start)
        reader.expect(":")
        var = reader.take("name", "the name of the loop's counter").text
        over = self._use(label.text) if reader.accept("in") else None
        count = reader.integer("how often the loop runs") if reader.accept("times") else None
        first = reader.integer("the first micro-batch it runs") if reader.accept("from") else 0
        reader.expect("{")
        loc = reader.place()
        reader.end_of_line("@")
        with reader.inside(start):
            body = self.nodes()
        return Loop(label.text, kind, var, over, count, body, loc, first)

    def _op(self) -> Op:
        reader = self.reader
        start = label = reader.token
        closed = reader.at("step", "after", "resource") and reader.ahead(1).text not in ("(", ":")
        if closed or label.kind not in ("name", "value"):
            reader.fail("an op, `loop` or the `}` that closes the block")
        labelled = label.kind == "name" and reader.ahead(1).text == ":"
        if labelled:
            reader.next()
            reader.next()
        results = self._results()
        kind = reader.take("name", "the kind of an op")
        op_id = label if labelled else kind
        self._new_id(op_id.text, op_id, start)
        self._note(op_id.text, "kind", kind)
        for name, token in results:
            self._note(op_id.text, f"%{name.name}", token)
        self._note(op_id.text, "args", reader.token)
        reader.expect("(", after=" after the kind of an op")
        args = reader.listed(lambda: self._use(op_id.text), ")", " after an operand")
        attrs = self._attrs(op_id.text)
        reader.expect("lane", after=" after the operands and attributes")
        reader.expect("=")
        self._note(op_id.text, "lane", reader.token)
        lane = reader.word("the name of a lane")
        micro = self._micro()
        shift = self._shift()
        when = self._when(op_id.text)
        origin = self._origin()
        self._effects(op_id.text)
        self._note(op_id.text, "end", reader.token)
        loc = reader.place()
        reader.end_of_line("reads", "writes", "awaits", "@")
        return Op(
            op_id.text,
            kind.text,
            args,
            tuple(result for result, _ in results),
            attrs,
            lane,
            shift,
            when,
            origin,
            loc,
            micro,
        )

    def _results(self) -> list[tuple[Result, Token]]:
        reader = self.reader
        results: list[tuple[Result, Token]] = []
        while reader.token.kind == "value":
            token = reader.next()
            reader.expect(":", after=" after the name of a result")
            results.append((Result(token.text, reader.type()), token))
            if reader.expect(",", "=", after=" after the type of a result").text == "=":
                break
            if reader.token.kind != "value":
                reader.fail("a result `%name : type`")
        return results

    def _use(self, item: str) -> Use:
        """``%name``, ``%name@k-1`` or ``%name@m-1``."""
        reader = self.reader
        token = reader.take("value", "an operand `%name`")
        step = micro = 0
        if reader.at("@") and reader.ahead(1).kind == "name":
            reader.next()
            if reader.expect("k", "m").text == "k":
                step = reader.signed("a number of steps")
                if reader.accept("@"):
                    reader.expect("m")
                    micro = reader.signed("a number of micro-batches")
            else:
                micro = reader.signed("a number of micro-batches")
        use = Use(token.text, step, micro)
        self._note(item, str(use), token)
        return use

    def _attrs(self, item: str) -> tuple[tuple[str, AttrValue], ...]:
        reader = self.reader
        return read_settings(reader, lambda name, token: self._note(item, f"attr {name}", token))

    def _micro(self) -> int | None:
        """``at(m=0)`` of a peeled op."""
        reader = self.reader
        if not reader.accept("at"):
            return None
        for text in ("(", "m", "="):
            reader.expect(text)
        micro = reader.integer("the micro-batch that the op stands for")
        reader.expect(")")
        return micro

    def _shift(self) -> int:
        if not self.reader.accept("shift"):
            return 0
        self.reader.expect("=")
        return self.reader.signed("a number of steps")

    def _when(self, item: str) -> Predicate:
        reader = self.reader
        if not reader.accept("when"):
            return ALWAYS
        reader.expect("(")
        self._note(item, "when", reader.token)
        predicate = read_predicate(reader)
        reader.expect(")", after=" after the condition")
        return predicate

    def _origin(self) -> Origin | None:
        reader = self.reader
        if not reader.accept("from"):
            return None
        reader.expect("=")
        op = reader.take("name", "the op of the source program").text
        return Origin(op, reader.word("a part")) if reader.accept(":") else split_origin(op)

    def _effects(self, item: str) -> None:
        reader = self.reader
        printed: list[tuple[Effect, Loc]] = []
        for access in Access:
            if not reader.accept(access.value):
                continue
            self._note(item, access.value, reader.token)
            reader.expect("[")
            while True:
                token = reader.token
                effect = self._effect(access)
                self._note(item, f"{access.value} {effect}", token)
                printed.append((effect, reader.loc(token)))
                if reader.expect(",", "]", after=" after an effect").text == "]":
                    break
        self.effects[item] = tuple(printed)

    def _effect(self, access: Access) -> Effect:
        reader = self.reader
        name = reader.next().text if reader.at("*") else reader.take("name", "a resource").text
        if not reader.accept("["):
            return Effect(access, name)
        reader.expect("k")
        step = reader.signed("a number of steps") if reader.at("+", "-") else 0
        micro = None
        if reader.accept(","):
            reader.expect("m")
            micro = reader.signed("a number of micro-batches") if reader.at("+", "-") else 0
        reader.expect("]")
        return Effect(access, name, Index(step, micro))

    def _new_id(self, name: str, token: Token, start: Token) -> None:
        first = self.places.get((name, ""))
        if first is not None:
            raise DuplicateNameError(
                f"`{name}` is the id of two ops or loops, the first on line {first.line}",
                loc=self.reader.loc(token),
                source=self.reader.source(token),
                help=f"write a label before the second: `{name}.2: ...`",
            )
        self.places[name, ""] = self.reader.loc(start)

    def _note(self, item: str, part: str, token: Token) -> None:
        self.places.setdefault((item, part), self.reader.loc(token))


def read_settings(reader: Reader, note: NoteName) -> tuple[tuple[str, AttrValue], ...]:
    """``{name=value, ...}``, or nothing; ``note`` hears of each name and its token."""
    if not reader.accept("{"):
        return ()
    found: dict[str, AttrValue] = {}

    def one() -> None:
        token = reader.token
        name = reader.word("the name of an attribute")
        if name in found:
            message = f"`{name}` is given twice"
            raise DuplicateNameError(message, loc=reader.loc(token), source=reader.source(token))
        note(name, token)
        reader.expect("=", after=" after the name of an attribute")
        found[name] = reader.literal()

    reader.some(one, "}", " after a value")
    return tuple(found.items())
