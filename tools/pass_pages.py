"""Passes and named pipelines as text: one line for each, and a page for one of them."""

from __future__ import annotations

import inspect
from dataclasses import fields

from steptrace.passes import PASSES, PIPELINES, Pass
from steptrace.passes.base import options_of

from .table import aligned


def pass_table() -> str:
    """One line for each pass and each named pipeline: its text form, and what it does or stands for."""
    rows = [("pass", "what it does"), *((text_form(cls), _summary(cls)) for cls in PASSES.values())]
    named = [("pipeline", "what it stands for"), *PIPELINES.items()]
    return f"{aligned(rows)}\n\n{aligned(named)}"


def pass_page(name: str) -> str:
    """The page of a pass or of a named pipeline.

    Raises:
      KeyError: there is neither of that name.
    """
    if name in PIPELINES:
        return _pipeline_page(name)
    cls = PASSES[name]
    return f"pass {name}\n\n{inspect.cleandoc(cls.__doc__ or '')}\n\n{_options(cls)}\n\n{_example(name)}"


def text_form(cls: type[Pass]) -> str:
    """How a pass is written in a pipeline, with the defaults of its options: ``take-ahead{depth=1}``."""
    inside = ", ".join(f"{field.name}={_literal(field.default)}" for field in fields(cls))  # type: ignore[arg-type]
    return cls.name + (f"{{{inside}}}" if inside else "")


def _pipeline_page(name: str) -> str:
    """What a pipeline is made of: each pass of it, other pipelines written out, with what it does."""
    from steptrace.passes import parse_pipeline, text_of

    rows = [(text_of(pass_), _summary(type(pass_))) for pass_ in parse_pipeline(name)]
    return f"pipeline {name}\n\nIt stands for {PIPELINES[name]}\n\n{aligned(rows, indent=2)}\n\n{_example(name)}"


def _options(cls: type[Pass]) -> str:
    types = options_of(cls)
    rows = [("written", text_form(cls))]
    rows += [("option", f"{name}: {_word(type_)}") for name, type_ in types.items()]
    return aligned(rows, indent=2)


def _word(type_: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(type_, "a word")


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def _summary(cls: type[Pass]) -> str:
    return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]


def _example(name: str) -> str:
    return f"  steptrace opt 'grpo{{staleness=1}}' -p {name} --remarks --view=nest"
