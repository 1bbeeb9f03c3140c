"""Hypothesis strategies: random pipelines of the passes there are, with options."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from steptrace.passes import PASSES, PIPELINES, Pass, text_of
from steptrace.passes.base import options_of

_VALUES: dict[type, st.SearchStrategy[Any]] = {int: st.integers(1, 3), bool: st.booleans()}
_NAMED: dict[str, st.SearchStrategy[Any]] = {"ring": st.integers(3, 5)}
"""Options whose numbers begin elsewhere."""


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    """A pass, with options drawn where they are numbers or switches."""
    cls = PASSES[draw(st.sampled_from(sorted(PASSES)))]
    drawn = {
        name: draw(_NAMED.get(name, _VALUES[type_])) for name, type_ in options_of(cls).items() if type_ in _VALUES
    }
    return cls(**drawn)


def pipelines(*, max_size: int = 5) -> st.SearchStrategy[str]:
    """The texts of pipelines of up to ``max_size`` passes, named pipelines among them; an empty one has none."""
    items = passes().map(text_of) | st.sampled_from(sorted(PIPELINES))
    return st.lists(items, max_size=max_size).map(",".join)
