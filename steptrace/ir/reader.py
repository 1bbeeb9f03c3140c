"""A cursor over the tokens of a text, and the small phrases that all its lines share: literals, types, places."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from steptrace.diag.loc import Loc
from steptrace.diag.text import UnexpectedTokenError, UnknownFileError, UnreadableTextError
from steptrace.ir.lexer import Token, lines_of, tokens_of
from steptrace.ir.types import BASES, AttrValue, Type

_Part = TypeVar("_Part")


DEEPEST = 60
"""How many loops, or parentheses and `not`s of a condition, may stand inside one another."""


class Reader:
    """Reads tokens one after the other. Every refusal has the place, what was expected, and the line."""

    def __init__(self, text: str, filename: str) -> None:
        self.filename = filename
        self.lines = lines_of(text)
        self.tokens = tokens_of(self.lines, filename)
        self.position = 0
        self.files: dict[int, str] = {}
        self._depth = 0

    @contextmanager
    def inside(self, token: Token) -> Iterator[None]:
        """One level deeper, which ``token`` opens."""
        if self._depth >= DEEPEST:
            self.fail(f"nothing that opens a level here: {DEEPEST} stand inside one another", token)
        self._depth += 1
        yield
        self._depth -= 1

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.position]

    def ahead(self, count: int) -> Token:
        """The token ``count`` after the next."""
        return self.tokens[min(self.position + count, len(self.tokens) - 1)]

    def next(self) -> Token:
        """Takes the next token."""
        token = self.tokens[self.position]
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def loc(self, token: Token | None = None) -> Loc:
        """The place of a token, of the next one by default."""
        token = token or self.token
        return Loc(self.filename, token.line, token.column)

    def source(self, token: Token | None = None) -> str:
        """The line of a token, of the next one by default."""
        return self.lines[(token or self.token).line - 1]

    def fail(self, expected: str, token: Token | None = None, help: str = "") -> NoReturn:
        """Refuses: ``expected`` should stand where ``token`` (the next by default) does."""
        token = token or self.token
        raise UnexpectedTokenError(
            f"expected {expected}, found {describe(token)}", loc=self.loc(token), source=self.source(token), help=help
        )

    def at(self, *texts: str) -> bool:
        """Whether the next token is one of these names or punctuation marks."""
        token = self.token
        return token.text in texts and token.kind in ("name", "punct")

    def accept(self, text: str) -> bool:
        """Takes the next token if it is this name or punctuation mark."""
        if not self.at(text):
            return False
        self.position += 1
        return True

    def expect(self, *texts: str, after: str = "") -> Token:
        """Takes the next token, which must be one of these."""
        if not self.at(*texts):
            self.fail(" or ".join(f"`{text}`" for text in texts) + after)
        return self.next()

    def take(self, kind: str, expected: str) -> Token:
        """Takes the next token, which must be of this kind."""
        if self.token.kind != kind:
            self.fail(expected)
        return self.next()

    def end_of_line(self, *allowed: str) -> None:
        """Takes the end of the line; ``allowed`` is what else could have stood there."""
        if self.token.kind == "end":
            return
        self.take("newline", ", ".join((*(f"`{text}`" for text in allowed), "the end of the line")))

    def word(self, expected: str) -> str:
        """A dotted identifier, or a string that stands for a name."""
        return self.string(expected) if self.token.kind == "string" else self.take("name", expected).text

    def string(self, expected: str) -> str:
        """A string."""
        token = self.take("string", expected)
        try:
            return str(json.loads(token.text))
        except ValueError:
            message = "the string has an escape that JSON does not know, or a control character"
            raise UnreadableTextError(message, loc=self.loc(token), source=self.source(token)) from None

    def integer(self, expected: str) -> int:
        """A whole number without a sign."""
        token = self.take("number", expected)
        return int(token.text) if token.text.isdecimal() else self.fail(expected, token)

    def signed(self, expected: str) -> int:
        """A distance: a whole number other than 0, with its sign: ``+1``."""
        sign = -1 if self.expect("+", "-").text == "-" else 1
        token = self.token
        return sign * (self.integer(expected) or self.fail(f"{expected}, at least 1", token))

    def number(self, expected: str) -> int | float:
        """A number, possibly negative; a float where it has a point or an exponent."""
        sign = -1 if self.accept("-") else 1
        if self.at("inf", "nan"):
            return sign * float(self.next().text)
        text = self.take("number", expected).text
        return sign * (int(text) if text.isdecimal() else float(text))

    def some(self, part: Callable[[], _Part], closing: str, after: str) -> tuple[_Part, ...]:
        """Parts as in ``listed``, but at least one."""
        parts = [part()]
        while self.expect(",", closing, after=after).text == ",":
            parts.append(part())
        return tuple(parts)

    def listed(self, part: Callable[[], _Part], closing: str, after: str) -> tuple[_Part, ...]:
        """Parts with commas between them, up to ``closing``, which is taken; none if it stands first."""
        return () if self.accept(closing) else self.some(part, closing, after)

    def literal(self) -> AttrValue:
        """The value of an attribute: true, a number, a string, or strings in parentheses."""
        token = self.token
        if self.at("true", "false"):
            return self.next().text == "true"
        if token.kind == "string":
            return self.string("a string")
        if self.accept("("):
            return self.listed(lambda: self.string("a string"), ")", " after a string")
        if token.kind == "number" or self.at("-", "inf", "nan"):
            return self.number("a number")
        return self.fail("a value: `true`, `false`, a number, a string, or strings in parentheses")

    def type(self) -> Type:
        """``base<field, ...>[nB]``."""
        base = self.base()
        fields: tuple[str, ...] = ()
        if self.accept("<"):
            fields = self.some(lambda: self.word("the name of a field"), ">", " after a field")
        nbytes = None
        if self.accept("["):
            nbytes = self.integer("a size in bytes")
            self.expect("B")
            self.expect("]")
        return Type(base, fields, nbytes)

    def base(self) -> str:
        """The base of a type."""
        expected = f"a type ({', '.join(BASES)})"
        if self.token.text not in BASES:
            self.fail(expected)
        return self.take("name", expected).text

    def place(self) -> Loc | None:
        """``@file:line`` or ``@file:line:column`` of the source, or None where no ``@`` stands."""
        if not self.at("@"):
            return None
        self.next()
        token = self.token
        number = self.integer("the number of a `file` line")
        if number not in self.files:
            message = f"no `file {number}` line stands above"
            raise UnknownFileError(message, loc=self.loc(token), source=self.source(token))
        self.expect(":")
        line = self.integer("a line number")
        column = self.integer("a column number") if self.accept(":") else 0
        return Loc(self.files[number], line, column)


def describe(token: Token) -> str:
    """A token in words, for ``found ...``."""
    words = {"newline": "the end of the line", "end": "the end of the text"}
    text = f"%{token.text}" if token.kind == "value" else token.text
    return words.get(token.kind, f"`{text}`")
