"""The text of a pipeline: passes with commas between them, options in braces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields

from steptrace.diag.binding import UnknownPassError
from steptrace.diag.motion import PassOptionError, PipelineSyntaxError
from steptrace.passes.base import Pass, options_of
from steptrace.passes.registry import PASSES, PIPELINES

_NAME = re.compile(r"[A-Za-z][\w-]*")
_ITEM = re.compile(r"\s*(?P<name>[A-Za-z][\w-]*)\s*(?:\{(?P<options>(?:[^{}\"]|\"[^\"]*\")*)\})?\s*")
_OPTION = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>[\w.+-]+|\"[^\"]*\")\s*")
_COMMA = re.compile(r",(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)")


def parse_pipeline(text: str, passes: Mapping[str, type[Pass]] = PASSES) -> tuple[Pass, ...]:
    """The passes of a pipeline, named pipelines written out.

    Grammar: ``pipeline = [item {"," item}]``, ``item = NAME ["{" [NAME "=" VALUE {"," NAME "=" VALUE}] "}"]``; spaces
    may stand between. A VALUE is a word, a number, or any text in double quotes.

    Args:
      text: the pipeline; an empty one has no passes.
      passes: the passes there are, by name.

    Raises:
      PipelineSyntaxError: the text is no pipeline.
      UnknownPassError: there is no pass or pipeline of a name.
      PassOptionError: a pass has no such option, or not with such a value.
    """
    return tuple(_passes(text, passes))


def _passes(text: str, passes: Mapping[str, type[Pass]]) -> Iterator[Pass]:
    for name, options in _items(text):
        if name in PIPELINES and name not in passes:
            if options:
                raise PassOptionError(f"the pipeline `{name}` has no options", help=f"it stands for {PIPELINES[name]}")
            yield from _passes(PIPELINES[name], passes)
        elif name in passes:
            yield _built(passes[name], dict(options))
        else:
            raise _unknown(name, (*passes, *PIPELINES))


def _items(text: str) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Each pass as written: its name and its options."""
    at, end = 0, len(text)
    if not text.strip():
        return
    while True:
        item = _ITEM.match(text, at)
        if item is None or (item.end() < end and text[item.end()] != ","):
            raise _unreadable(text, item.end() if item else at)
        yield item["name"], tuple(_options(text, item))
        at = item.end() + 1
        if item.end() >= end:
            return


def _options(text: str, item: re.Match[str]) -> Iterator[tuple[str, str]]:
    inside = item["options"] or ""
    if not inside.strip():
        return
    seen: set[str] = set()
    for part in _COMMA.split(inside):
        option = _OPTION.fullmatch(part)
        if option is None:
            raise PipelineSyntaxError(
                f"`{part.strip()}` is no option of `{item['name']}` in `{text}`",
                help="write name=value, with commas between",
            )
        if option["name"] in seen:
            raise PassOptionError(f"`{option['name']}` of `{item['name']}` is given twice")
        seen.add(option["name"])
        yield option["name"], option["value"]


def _unreadable(text: str, at: int) -> PipelineSyntaxError:
    rest = text[at:].strip()
    where = f"at `{rest}`" if rest else "at its end"
    help = "write passes with commas between them: take-ahead{depth=1},defer-metrics"
    return PipelineSyntaxError(f"the pipeline `{text}` cannot be read {where}", help=help)


def _unknown(name: str, known: tuple[str, ...]) -> UnknownPassError:
    from difflib import get_close_matches  # only for a refusal: its import takes as long as a whole pipeline

    near = get_close_matches(name, known, 1)
    help = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}"
    return UnknownPassError(f"there is no pass `{name}`", help=help)


def _built(cls: type[Pass], options: dict[str, str]) -> Pass:
    types = options_of(cls)
    values = {}
    for name, text in options.items():
        if name not in types:
            raise PassOptionError(f"`{cls.name}` has no option `{name}`", help=_known_options(cls))
        values[name] = _value(cls, name, types[name], text)
    return cls(**values)


def _value(cls: type[Pass], name: str, type_: type, text: str) -> object:
    """An option's value; whole numbers, numbers, true and false, or a word."""
    patterns = {int: r"[+-]?\d+", float: r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", bool: "true|false", str: r"(?s:.*)"}
    if not re.fullmatch(patterns[type_], text):
        words = {int: "a whole number", float: "a number", bool: "true or false"}
        raise PassOptionError(f"`{name}` of `{cls.name}` is {words[type_]}, not `{text}`", help=_known_options(cls))
    return text == "true" if type_ is bool else type_(text.strip('"'))


def _known_options(cls: type[Pass]) -> str:
    """The options of a pass with their types and defaults."""
    types = options_of(cls)
    shown = [f"{field.name}: {types[field.name].__name__} = {field.default}" for field in fields(cls)]  # type: ignore[arg-type]
    return f"its options: {', '.join(shown)}" if shown else "it has no options"
