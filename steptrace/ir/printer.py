"""The text form of a program; ``steptrace.ir.parser`` reads it back and has its grammar."""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields

from steptrace.diag.loc import Loc
from steptrace.ir.builtin import RESOURCES, kinds_of
from steptrace.ir.effects import effects_of
from steptrace.ir.kind import REQUIRED, Attr, Given, Operand, OpKind
from steptrace.ir.lexer import NAME
from steptrace.ir.predicate import ALWAYS
from steptrace.ir.program import Contract, Loop, Node, Op, Origin, Program
from steptrace.ir.resource import Access, Effect, Resource, ResourceKind
from steptrace.ir.types import AttrValue, Type

TEXT_VERSION = 1
"""Version of the text form."""

ROW_DEFAULTS = OpKind("")
"""The values of a row that its line leaves out."""

_ROW_PHRASES = ("name", "operands", "results", "attrs", "reads", "writes", "awaits", "variants", "lane", "loc")

ROW_SETTINGS = tuple(field.name for field in fields(OpKind) if field.name not in _ROW_PHRASES)
"""The settings of a user's row that are written ``name=value``, in the order of its line."""

_PLAIN = re.compile(NAME)
_SOURCE_ID = re.compile(r"[^\W\d]\w*(?:\.\d\w*)*")
_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def print_program(program: Program) -> str:
    """The program as text: one op a line, types and effects spelled out, ends with a line feed.

    Every op must be of a known kind; otherwise the program must only be writable, not verified.
    """
    return "\n".join(_Printer(program).lines()) + "\n"


def word(text: str) -> str:
    """A name as written: bare where it is a dotted identifier, else as a string."""
    return text if _PLAIN.fullmatch(text) else string(text)


def string(text: str) -> str:
    """A string as written, on one line whatever it holds."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def literal(value: AttrValue) -> str:
    """An attribute's value as written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return string(value)
    if isinstance(value, tuple):
        return f"({', '.join(literal(part) for part in value)})"
    return repr(value)


def settings(pairs: Iterable[tuple[str, AttrValue]]) -> str:
    """`` {name=value, ...}``, or ``""`` without any."""
    inside = ", ".join(f"{word(name)}={literal(value)}" for name, value in pairs)
    return f" {{{inside}}}" if inside else ""


def type_text(type_: Type) -> str:
    """A type as written."""
    fields = f"<{', '.join(map(word, type_.fields))}>" if type_.fields else ""
    return type_.base + fields + ("" if type_.nbytes is None else f"[{type_.nbytes}B]")


def effects_text(effects: tuple[Effect, ...]) -> str:
    """`` reads[...] writes[...] awaits[...]``, without the empty ones."""
    text = ""
    for access in Access:
        targets = [effect.target for effect in effects if effect.access is access]
        if targets:
            text += f" {access.value}[{', '.join(targets)}]"
    return text


def origin_text(origin: Origin) -> str:
    """``op`` or ``op.part``; ``op:part`` where the dot would not tell where the part starts."""
    if _PLAIN.fullmatch(str(origin)) and split_origin(str(origin)) == origin:
        return str(origin)
    return f"{origin.op}:{word(origin.part)}" if origin.part else f'{origin.op}:""'


def split_origin(text: str) -> Origin:
    """The origin that ``op.part`` stands for: the part starts at the first name after a dot, ``fwd_bwd.2.grads``."""
    match = _SOURCE_ID.match(text)
    op = match[0] if match else text
    return Origin(op, text[len(op) + 1 :])


def contract_text(contract: Contract) -> str:
    """The line of a contract; ``saves`` and ``logs`` only where they are not as usual."""
    usual = Contract()
    late = [("saves", contract.saves, usual.saves), ("logs", contract.logs, usual.logs)]
    more = "".join(f" {name}={value}" for name, value, default in late if value != default)
    return (
        f"contract weights={contract.weights} staleness={contract.staleness} "
        f"partial={contract.partial} empty={contract.empty}{more}"
    )


def resource_text(resource: Resource) -> str:
    """The line of a resource; the doc of a built-in one is that of the table."""
    limited = resource.capacity or resource.kind is ResourceKind.SLOT
    kind = f"{resource.kind.value}({resource.capacity})" if limited else resource.kind.value
    known = RESOURCES[resource.name].doc if resource.name in RESOURCES else ""
    doc = "" if resource.doc == known else f" {string(resource.doc)}"
    return f"resource {resource.name} : {kind}{doc}"


def row_text(kind: OpKind) -> str:
    """The line of a user's row, without its place."""
    text = f"op {kind.name}({', '.join(map(_operand_text, kind.operands))})"
    if kind.results:
        text += f" -> ({', '.join(f'{word(given.name)}: {_given_text(given)}' for given in kind.results)})"
    if kind.attrs:
        text += f" {{{', '.join(map(_attr_text, kind.attrs))}}}"
    text += f" lane={word(kind.lane)}"
    text += _patterns_text(kind.reads, kind.writes, kind.awaits)
    for variant in kind.variants:
        text += f" if({word(variant.attr)}={literal(variant.value)})"
        text += _patterns_text(variant.reads, variant.writes)
    for name in ROW_SETTINGS:
        value = getattr(kind, name)
        default = True if name == "user" else getattr(ROW_DEFAULTS, name)
        text += "" if value == default else f" {name}={literal(value)}"
    return text


def _patterns_text(*patterns: tuple[str, ...]) -> str:
    """`` reads[...] writes[...] awaits[...]`` of a row, without the empty ones."""
    given = zip(Access, patterns, strict=False)
    return "".join(f" {access.value}[{', '.join(names)}]" for access, names in given if names)


def _operand_text(operand: Operand) -> str:
    needs = f"<{', '.join(map(word, operand.needs))}>" if operand.needs else ""
    return f"{word(operand.name)}: {operand.base or 'any'}{needs}"


def _given_text(given: Given) -> str:
    fields = [f"{word(given.like)}.*"] if given.like is not None else []
    fields += map(word, given.adds)
    return f"{given.base}<{', '.join(fields)}>" if fields else given.base


def _attr_text(attr: Attr) -> str:
    text = f"{word(attr.name)}: {attr.type.__name__}"
    if attr.default is REQUIRED:
        text += " required"
    elif attr.default is not None:
        assert not isinstance(attr.default, type(REQUIRED))
        text += f" = {literal(attr.default)}"
    if attr.choices:
        text += f" in ({', '.join(map(literal, attr.choices))})"
    return f"{text} {string(attr.doc)}" if attr.doc else text


def written_path(path: str) -> str:
    """A source file as written: ``steptrace/...`` inside the package, relative below the working folder."""
    if not os.path.isabs(path):
        return path
    for root in (_PACKAGE_PARENT, os.getcwd()):
        relative = os.path.relpath(path, root)
        inside = relative.split(os.sep)[0] == "steptrace" if root == _PACKAGE_PARENT else relative[:2] != ".."
        if inside:
            return relative.replace(os.sep, "/")
    return path


class _Printer:
    """Prints one program; numbers the source files in the order in which its lines name them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kinds = kinds_of(program)
        self.files: dict[str, int] = {}

    def lines(self) -> list[str]:
        program = self.program
        head = [
            f"program {word(program.name)}{settings(program.params)}{self.place(program.loc)}",
            contract_text(program.contract),
            *(row_text(kind) + self.place(kind.loc) for kind in program.kinds),
            *(
                f"carry %{carry.name} = {literal(float(carry.init))}{self.place(carry.loc)}"
                for carry in program.carries
            ),
        ]
        body: list[str] = []
        for opening, nodes in (("before", program.prologue), ("step k", program.body), ("after", program.epilogue)):
            body += [f"{opening} {{", *self.nodes(nodes, "  "), "}"]
        files = [f"file {number} {string(path)}" for path, number in self.files.items()]
        return [f"steptrace {TEXT_VERSION}", *files, *head, *body, *map(resource_text, program.resources)]

    def place(self, loc: Loc | None) -> str:
        """`` @file:line``, or ``""``."""
        if loc is None:
            return ""
        number = self.files.setdefault(written_path(loc.file), len(self.files) + 1)
        return f" @{number}:{loc.line}" + (f":{loc.column}" if loc.column else "")

    def nodes(self, nodes: tuple[Node, ...], indent: str) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, Op):
                yield indent + self.op(node)
                continue
            yield f"{indent}{loop_text(node)} {{{self.place(node.loc)}"
            yield from self.nodes(node.body, indent + "  ")
            yield indent + "}"

    def op(self, op: Op) -> str:
        text = "" if op.id == op.kind else f"{op.id}: "
        if op.results:
            text += ", ".join(f"%{result.name} : {type_text(result.type)}" for result in op.results) + " = "
        text += f"{op.kind}({', '.join(map(str, op.args))}){settings(op.attrs)} lane={word(op.lane)}"
        if op.micro is not None:
            text += f" at(m={op.micro})"
        if op.shift:
            text += f" shift={op.shift:+d}"
        if op.when != ALWAYS:
            text += f" when({op.when})"
        if op.origin is not None and op.origin != Origin(op.id):
            text += f" from={origin_text(op.origin)}"
        effects = effects_of(op, self.kinds[op.kind], self.program.contract)
        return text + effects_text(effects) + self.place(op.loc)


def loop_text(loop: Loop) -> str:
    """``loop kind id: counter in %value times count from start``, the id only where it is not the kind."""
    label = "" if loop.id == loop.kind else f" {loop.id}"
    over = "" if loop.over is None else f" in {loop.over}"
    count = "" if loop.count is None else f" times {loop.count}"
    start = f" from {loop.start}" if loop.start else ""
    return f"loop {loop.kind}{label}: {loop.var}{over}{count}{start}"
