"""Reads users' rows: ``op penalty(groups: groups) -> (groups: groups<groups.*, penalised>) lane=host ...``."""

from __future__ import annotations

from typing import Any

from steptrace.diag.text import UnexpectedTokenError
from steptrace.ir.kind import REQUIRED, UNSET, Attr, Given, Operand, OpKind, Variant
from steptrace.ir.printer import ROW_DEFAULTS, ROW_SETTINGS
from steptrace.ir.reader import Reader
from steptrace.ir.resource import Access
from steptrace.ir.types import AttrValue

ATTR_TYPES: dict[str, type] = {type_.__name__: type_ for type_ in (bool, int, float, str, tuple)}
"""The types of attributes by the name that a row's line gives them."""


def read_row(reader: Reader) -> OpKind:
    """A row, from the name of the op to the end of its line."""
    name = reader.take("name", "the name of an op").text
    reader.expect("(", after=" after the name of an op")
    operands = reader.listed(lambda: _operand(reader), ")", " after an operand")
    results: tuple[Given, ...] = ()
    if reader.accept("->"):
        reader.expect("(")
        results = reader.some(lambda: _given(reader), ")", " after a result")
    attrs = reader.some(lambda: _attr(reader), "}", " after an attribute") if reader.accept("{") else ()
    reader.expect("lane", after=" after the operands, results and attributes")
    reader.expect("=")
    lane = reader.word("the name of a lane")
    patterns = {access: _patterns(reader, access) for access in Access}
    variants: list[Variant] = []
    while reader.accept("if"):
        variants.append(_variant(reader))
    settings = _settings(reader)
    loc = reader.place()
    reader.end_of_line(*ROW_SETTINGS, "@")
    return OpKind(
        name,
        operands,
        results,
        attrs,
        patterns[Access.READ],
        patterns[Access.WRITE],
        patterns[Access.AWAIT],
        tuple(variants),
        lane,
        loc=loc,
        **settings,
    )


def _operand(reader: Reader) -> Operand:
    name = reader.word("the name of an operand")
    reader.expect(":", after=" after the name of an operand")
    base = None if reader.accept("any") else reader.base()
    needs: tuple[str, ...] = ()
    if reader.accept("<"):
        needs = reader.some(lambda: reader.word("the name of a field"), ">", " after a field")
    return Operand(name, base, needs)


def _given(reader: Reader) -> Given:
    name = reader.word("the name of a result")
    reader.expect(":", after=" after the name of a result")
    base, like = reader.base(), None
    adds: list[str] = []
    if reader.accept("<"):
        while True:
            field = reader.word("the name of a field")
            if like is None and not adds and reader.accept("."):
                reader.expect("*")
                like = field
            else:
                adds.append(field)
            if reader.expect(",", ">", after=" after a field").text == ">":
                break
    return Given(name, base, like, tuple(adds))


def _attr(reader: Reader) -> Attr:
    name = reader.word("the name of an attribute")
    reader.expect(":", after=" after the name of an attribute")
    type_ = ATTR_TYPES[reader.expect(*ATTR_TYPES).text]
    default: Any = UNSET
    if reader.accept("required"):
        default = REQUIRED
    elif reader.accept("="):
        default = reader.literal()
    choices: tuple[AttrValue, ...] = ()
    if reader.accept("in"):
        reader.expect("(")
        choices = reader.some(reader.literal, ")", " after a value")
    doc = reader.string("a doc string") if reader.token.kind == "string" else ""
    return Attr(name, type_, default, choices, doc)


def _patterns(reader: Reader, access: Access) -> tuple[str, ...]:
    if not reader.accept(access.value):
        return ()
    reader.expect("[")
    return reader.some(lambda: _pattern(reader), "]", " after an effect")


def _pattern(reader: Reader) -> str:
    """An effect of a row as it is written: ``rollout.weights[k-1-w]``."""
    start = end = reader.next() if reader.at("*") else reader.take("name", "a resource")
    if reader.accept("["):
        while not reader.at("]"):
            if reader.token.kind in ("newline", "end"):
                reader.fail("`]`")
            reader.next()
        end = reader.next()
    return reader.source(start)[start.column - 1 : end.column - 1 + len(end.text)]


def _variant(reader: Reader) -> Variant:
    """``if(attribute=value) reads[...] writes[...]``, after the ``if``."""
    reader.expect("(")
    name = reader.word("the name of an attribute")
    reader.expect("=")
    value = reader.literal()
    reader.expect(")")
    return Variant(name, value, _patterns(reader, Access.READ), _patterns(reader, Access.WRITE))


def _settings(reader: Reader) -> dict[str, Any]:
    settings: dict[str, Any] = {"user": True}
    for name in ROW_SETTINGS:
        if not reader.accept(name):
            continue
        reader.expect("=")
        token, value = reader.token, reader.literal()
        wanted = type(getattr(ROW_DEFAULTS, name))
        if type(value) is not wanted:
            message = f"expected a {wanted.__name__} for `{name}`, found `{token.text}`"
            raise UnexpectedTokenError(message, loc=reader.loc(token), source=reader.source(token))
        settings[name] = value
    return settings
