r"""Parser of the text form.

One op a line; ``#`` starts a comment; blank lines are skipped. The grammar, with ``NL`` the end of a line,
``{x}`` any number of x, ``[x]`` none or one, and ``list(x)`` one or more x with ``","`` between them::

    program   = "steptrace" INT NL  {file}  header  contract  {row}  {carry}
                "before" block  "step" "k" block  "after" block  {resource}
    file      = "file" INT STRING NL
    header    = "program" word [settings] [place] NL
    contract  = "contract" "weights" "=" ("pinned" | "freshest") "staleness" "=" INT
                "partial" "=" ("train" | "drop" | "error") "empty" "=" ("skip" | "error")
                ["saves" "=" ("before_sync" | "may_fail_late")]
                ["logs" "=" ("before_callbacks" | "may_fail_late")] NL
    row       = "op" NAME "(" [list(operand)] ")" ["->" "(" list(given) ")"] ["{" list(attr) "}"]
                "lane" "=" word patterns {"if" "(" word "=" literal ")" patterns} {setting} [place] NL
    patterns  = ["reads" "[" list(pattern) "]"] ["writes" "[" list(pattern) "]"] ["awaits" "[" list(pattern) "]"]
    pattern   = effect, where "w" may stand for the staleness: rollout.weights[k-1-w]
    setting   = NAME "=" literal                       (* a field of OpKind, in their order: blocking=false *)
    operand   = word ":" ("any" | BASE) ["<" list(word) ">"]
    given     = word ":" BASE ["<" list(word | word "." "*") ">"]
    attr      = word ":" ("bool" | "int" | "float" | "str" | "tuple") ["required" | "=" literal]
                ["in" "(" list(literal) ")"] [STRING]
    carry     = "carry" VALUE "=" NUMBER [place] NL
    resource  = "resource" NAME ":" ("state" | "channel" | ("fifo" | "cell") ["(" INT ")"] | "slot" "(" INT ")")
                [STRING] NL

    block     = "{" NL {node} "}" NL
    node      = op | loop
    loop      = "loop" ("micro_batches" | "repeat" | "mini_batches") [NAME] ":" NAME ["in" use] ["times" INT]
                ["from" INT] "{" [place] NL {node} "}" NL
    op        = [NAME ":"] [list(result) "="] NAME "(" [list(use)] ")" [settings]
                "lane" "=" word ["at" "(" "m" "=" INT ")"] ["shift" "=" SIGNED]
                ["when" "(" predicate ")"] ["from" "=" origin] effects [place] NL
    result    = VALUE ":" type
    use       = VALUE ["@" "k" SIGNED] ["@" "m" SIGNED]
    type      = BASE ["<" list(word) ">"] ["[" INT "B" "]"]
    origin    = NAME [":" word]                        (* op.part; the part starts at the first name after a dot *)
    effects   = ["reads" "[" list(effect) "]"] ["writes" "[" list(effect) "]"] ["awaits" "[" list(effect) "]"]
    effect    = ("*" | NAME) ["[" "k" [SIGNED] ["," "m" [SIGNED]] "]"]
    predicate = conjunct {"or" conjunct}
    conjunct  = atom {"and" atom}
    atom      = "always" | "first" | "last" | "m" "==" INT | "every" INT | "has" "(" NAME ")" | VALUE
              | "not" atom | "(" predicate ")"

    settings  = "{" list(word "=" literal) "}"
    literal   = "true" | "false" | NUMBER | STRING | "(" [list(STRING)] ")"
    place     = "@" INT ":" INT [":" INT]              (* file, line, column of the source *)
    word      = NAME | STRING
    NAME      = letter {letter | digit | "_"} {"." (letter | digit | "_") {letter | digit | "_"}}
    VALUE     = "%" NAME
    SIGNED    = ("+" | "-") INT                        (* not 0 *)

The ids of ops and loops default to their kinds. Types and effects are printed for the reader and derived again
here; a line that claims others is refused. A resource line stands for each resource that an op names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from steptrace.diag.base import Note
from steptrace.diag.loc import Loc
from steptrace.diag.text import (
    BadContractError,
    BadResourceError,
    BadRowError,
    DuplicateNameError,
    EffectsDisagreeError,
    UnknownVersionError,
)
from steptrace.ir.agree import CONTRACT_CHOICES, misfits, resource_misfit, row_misfit
from steptrace.ir.builtin import RESOURCES, kinds_of
from steptrace.ir.effects import effects_of
from steptrace.ir.kind import OpKind
from steptrace.ir.op_text import OpReader, PrintedEffects, read_settings
from steptrace.ir.places import Places
from steptrace.ir.printer import TEXT_VERSION
from steptrace.ir.program import Carry, Contract, Op, Program
from steptrace.ir.reader import Reader
from steptrace.ir.resource import COUNTED, Access, Effect, Resource, ResourceKind
from steptrace.ir.row_text import read_row


@dataclass(frozen=True, slots=True)
class Parsed:
    """A program and where its items stand in the text."""

    program: Program
    places: Places


def parse_program(text: str, filename: str = "<stdin>") -> Program:
    """The program that a text stands for; see ``parse``."""
    return parse(text, filename).program


def parse(text: str, filename: str = "<stdin>") -> Parsed:
    """Reads a program, checks that its lines agree with the op table, and keeps where each item stands.

    The structure of the program is another question: ``steptrace.ir.verify``.

    Args:
      text: the text form.
      filename: where it was read from, for diagnostics.

    Raises:
      SteptraceError: of ``steptrace.diag.text``, with file, line, column and the line itself.
    """
    return _Parser(Reader(text, filename)).parsed()


class _Parser:
    """Reads the sections of a text in their order."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.table: dict[tuple[str, str], Loc] = {}
        self.ops = OpReader(reader, self.table)

    def parsed(self) -> Parsed:
        reader = self.reader
        self.version()
        while reader.accept("file"):
            self.file()
        self.note("program")
        reader.expect("program", *(() if reader.files else ("file",)))
        name = reader.word("the name of the program")
        params = read_settings(reader, lambda name, token: None)
        loc = reader.place()
        reader.end_of_line("{", "@")
        contract = self.contract()
        kinds: list[Any] = []
        names: set[str] = set()
        while reader.at("op"):
            kinds.append(self.row(reader.next().line, names))
            names.add(kinds[-1].name)
        carries: list[Carry] = []
        while reader.accept("carry"):
            carries.append(self.carry())
        prologue, body, epilogue = self.block("before"), self.block("step", "k"), self.block("after")
        resources: list[Resource] = []
        while reader.accept("resource"):
            resources.append(self.resource())
        if reader.token.kind != "end":
            reader.fail("`resource` or the end of the text")
        program = Program(
            name, params, contract, tuple(resources), tuple(kinds), tuple(carries), prologue, body, epilogue, loc
        )
        places = Places(reader.lines, self.table)
        agree(program, places, self.ops.effects)
        return Parsed(program, places)

    def version(self) -> None:
        reader = self.reader
        if not reader.accept("steptrace"):
            reader.fail(f"`steptrace {TEXT_VERSION}` on the first line")
        token = reader.token
        if reader.integer("the version of the text form") != TEXT_VERSION:
            message = f"this is version {token.text} of the text form; this steptrace reads version {TEXT_VERSION}"
            raise UnknownVersionError(message, loc=reader.loc(token), source=reader.source(token))
        reader.end_of_line()

    def file(self) -> None:
        reader = self.reader
        token = reader.token
        number = reader.integer("the number of the file")
        if number in reader.files:
            self.duplicate(f"`file {number}` is declared twice", reader.loc(token))
        reader.files[number] = reader.string("the path of the file as a string")
        reader.end_of_line()

    def contract(self) -> Contract:
        reader = self.reader
        self.note("contract")
        reader.expect("contract")
        clauses: dict[str, Any] = {}
        for name in ("weights", "staleness", "partial", "empty", "saves", "logs"):
            if name in ("saves", "logs") and not reader.at(name):
                continue
            reader.expect(name)
            reader.expect("=")
            token = reader.token
            choices = CONTRACT_CHOICES.get(name, ())
            clauses[name] = reader.take("name", f"one of {', '.join(choices)}").text if choices else self.staleness()
            if choices and token.text not in choices:
                message = f"`{name}` of the contract is one of {', '.join(choices)}, not `{token.text}`"
                raise BadContractError(message, loc=reader.loc(token), source=reader.source(token))
        reader.end_of_line()
        return Contract(**clauses)

    def staleness(self) -> int:
        reader = self.reader
        if reader.at("-"):
            raise BadContractError(
                "the staleness is a number of updates, 0 or more", loc=reader.loc(), source=reader.source()
            )
        return reader.integer("a number of updates, 0 or more")

    def row(self, line: int, names: set[str]) -> Any:
        reader = self.reader
        loc = reader.loc()
        kind = read_row(reader)
        self.table[f"row {kind.name}", ""] = loc
        if kind.name in names:
            self.duplicate(f"two rows are called `{kind.name}`", loc)
        wrong = row_misfit(kind)
        if wrong:
            raise BadRowError(wrong, loc=loc, source=reader.lines[line - 1])
        return kind

    def carry(self) -> Carry:
        reader = self.reader
        loc = reader.loc()
        name = reader.take("value", "the value that is carried, `%name`").text
        if self.table.setdefault((f"carry {name}", ""), loc) is not loc:
            self.duplicate(f"`%{name}` is carried twice", loc)
        reader.expect("=")
        init = float(reader.number("the number before step 0"))
        place = reader.place()
        reader.end_of_line("@")
        return Carry(name, init, place)

    def block(self, *opening: str) -> Any:
        for token in (*opening, "{"):
            self.reader.expect(token)
        self.reader.end_of_line()
        return self.ops.nodes()

    def resource(self) -> Resource:
        reader = self.reader
        loc = reader.loc()
        name = reader.take("name", "the name of a resource").text
        if self.table.setdefault((f"resource {name}", ""), loc) is not loc:
            self.duplicate(f"resource `{name}` is declared twice", loc)
        reader.expect(":")
        kind = ResourceKind(reader.expect(*(kind.value for kind in ResourceKind)).text)
        capacity = 0
        if kind is ResourceKind.SLOT or (kind in COUNTED and reader.at("(")):
            reader.expect("(")
            token = reader.token
            capacity = reader.integer(f"how many entries the {kind.value} holds")
            if not capacity and kind is not ResourceKind.SLOT:
                reader.fail(f"how many entries the {kind.value} holds, at least 1", token)
            reader.expect(")")
        known = RESOURCES.get(name)
        doc = reader.string("a doc string") if reader.token.kind == "string" else (known.doc if known else "")
        resource = Resource(name, kind, capacity, doc)
        wrong = resource_misfit(resource)
        if wrong:
            raise BadResourceError(wrong, loc=loc, source=reader.lines[loc.line - 1])
        reader.end_of_line()
        return resource

    def duplicate(self, message: str, loc: Loc) -> None:
        raise DuplicateNameError(message, loc=loc, source=self.reader.lines[loc.line - 1])

    def note(self, item: str) -> None:
        self.table[item, ""] = self.reader.loc()


def agree(program: Program, places: Places, printed: dict[str, PrintedEffects]) -> None:
    """Checks the lines of a parsed program against the op table, in the order of the text.

    Raises:
      SteptraceError: an op does not fit its row, or its line shows effects or types that it does not have.
    """
    kinds = kinds_of(program)
    types = {result.name: result.type for op in program.ops() for result in op.results}
    for op in program.ops():
        for misfit in misfits(op, kinds, types):
            loc = places.at(op.id, misfit.part)
            assert loc is not None, "every op of a text has a place"
            raise misfit.error(misfit.message, loc=loc, source=places.source(loc), help=misfit.help)
        try:
            _compare_effects(op, effects_of(op, kinds[op.kind], program.contract), printed[op.id], places)
        except EffectsDisagreeError as error:
            error.notes = tuple(_of_the_contract(op, kinds[op.kind], program.contract, printed[op.id], places))
            raise


def _of_the_contract(
    op: Op, kind: OpKind, contract: Contract, printed: PrintedEffects, places: Places
) -> Iterator[Note]:
    """Which staleness the effects of a line belong to, where they are true under another one than the contract's."""
    shown = {effect for effect, _ in printed}
    for staleness in range(contract.staleness + _NEAR):
        if shown == set(effects_of(op, kind, replace(contract, staleness=staleness))):
            words = f"its effects are those of staleness={staleness}, and the contract says staleness="
            yield Note(f"{words}{contract.staleness}: change both, or neither", places.at("contract"))
            return


_NEAR = 4
"""How much larger a staleness is thought of."""

_HELP = "effects follow from the op's row, its attributes and the contract; they are printed, not set"


def _compare_effects(op: Op, derived: tuple[Effect, ...], printed: PrintedEffects, places: Places) -> None:
    shown = tuple(effect for effect, _ in printed)
    ordered = tuple(effect for access in Access for effect in derived if effect.access is access)
    if shown == ordered:
        return
    for at, (effect, loc) in enumerate(printed):
        if effect in shown[:at]:
            _disagree(f"`{op.id}` shows `{effect}` twice among what it {effect.access.value}", loc, places)
        if effect not in derived:
            _disagree(_lie(op, effect, derived, shown), loc, places)
    for effect in derived:
        if effect not in shown:
            part = effect.access.value if any(other.access is effect.access for other in shown) else "end"
            place = places.at(op.id, part)
            assert place is not None, "every op of a text has a place"
            _disagree(f"`{op.id}` {effect.access.value} `{effect}`, which its line leaves out", place, places)
    at = next(at for at, effect in enumerate(shown) if effect != ordered[at])
    _disagree(f"`{ordered[at]}` stands before `{shown[at]}`: effects are sorted by name", printed[at][1], places)


def _lie(op: Op, effect: Effect, derived: tuple[Effect, ...], shown: tuple[Effect, ...]) -> str:
    """The sentence about an effect that the op does not have: what stands there instead, if one fits."""
    verb = effect.access.value
    for true in derived:
        if true not in shown and true.access is effect.access and true.resource == effect.resource:
            return f"`{op.id}` {verb} `{true}`, not `{effect}`"
    return f"`{op.id}` does not have `{effect}` among what it {verb}"


def _disagree(message: str, loc: Loc, places: Places) -> None:
    raise EffectsDisagreeError(message, loc=loc, source=places.source(loc), help=_HELP)
