"""Tables and plots over settings: `steptrace plan PROGRAM --sweep`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import escape
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from .command import UsageError
from .table import aligned

if TYPE_CHECKING:
    from steptrace.cost import Costs, Judged

Judge = Callable[[str, list[int] | None], "tuple[Judged, str]"]
"""Judges a program by its name, with its counts of micro-batches or those of the command; gives its pipeline too."""

MOST = 10_000
"""Most micro-batches of a step, and most combinations of a sweep."""
_DIGITS = 18

FIGURES = ("period_s", "idle_s", "memory_bytes", "staleness")
"""What is plotted of each row, but for what is swept itself."""


def settings_of(text: str) -> dict[str, list[str]]:
    """The settings of a sweep: ``staleness=0..4 micro_batches=4,8,16``; ``4..0`` counts down.

    Raises:
      UsageError: a word of it is no setting, or one that was given already; or there are too many combinations.
    """
    found: dict[str, list[str]] = {}
    for word in text.split():
        match = re.fullmatch(r"([a-z_]+)=(?:(\d+)\.\.(\d+)|([\w.]+(?:,[\w.]+)*))", word)
        if match is None:
            raise UsageError(f"--sweep: `{word}` is no setting; one is staleness=0..4 or micro_batches=4,8,16")
        if match[1] in found:
            raise UsageError(f"--sweep: `{match[1]}` is given twice; its values are written together: staleness=0,2,4")
        first, last, several = match[2], match[3], match[4]
        if not several and max(len(first), len(last)) > _DIGITS:
            raise UsageError(f"--sweep: `{match[1]}` has a number of more than {_DIGITS} digits")
        many = len(several.split(",")) if several else abs(int(first) - int(last)) + 1
        if prod(map(len, found.values())) * many > MOST:
            raise UsageError(f"--sweep: with `{word}` there are more than {MOST:,} combinations")
        found[match[1]] = several.split(",") if several else _from_to(int(first), int(last))
        if match[1] == "micro_batches":
            for one in found[match[1]]:
                check_micro_batches(one, f"--sweep: `{word}`")
    return found


def check_micro_batches(text: str, where: str) -> int:
    """How many micro-batches of a step were asked for.

    Raises:
      UsageError: it is no such number, or too large a one.
    """
    if not re.fullmatch(r"[1-9]\d*", text):
        raise UsageError(f"{where}: numbers of micro-batches, from 1 on")
    if len(text) > len(str(MOST)) or int(text) > MOST:
        raise UsageError(f"{where}: a step has at most {MOST:,} micro-batches here")
    return int(text)


def _from_to(first: int, last: int) -> list[str]:
    """The numbers from the first to the last, counted down where that is the smaller one."""
    step = 1 if first <= last else -1
    return [str(number) for number in range(first, last + step, step)]


def with_parameters(name: str, more: dict[str, str]) -> str:
    """A program's name with more parameters."""
    if not more:
        return name
    base, _, inside = name.partition("{")
    own = dict(pair.split("=", 1) for pair in inside.rstrip("}").split(",") if "=" in pair)
    return f"{base}{{{','.join(f'{key}={value}' for key, value in {**own, **more}.items())}}}"


def sweep(
    name: str, settings: dict[str, list[str]], costs: Costs, judge: Judge, *, begun: Callable[[str], None]
) -> list[dict[str, Any]]:
    """What is said of a schedule under each combination of settings; what is refused has the reason instead.

    ``begun`` is told each combination as its turn comes, with the number of it.
    """
    from steptrace.diag.base import SteptraceError

    from .plan_facts import facts_of

    rows: list[dict[str, Any]] = []
    of = prod(map(len, settings.values()))
    for chosen in product(*settings.values()):
        named = dict(zip(settings, chosen, strict=True))
        row: dict[str, Any] = {key: int(text) if text.isdigit() else text for key, text in named.items()}
        begun(f"{setting_of(row, settings)} ... {len(rows) + 1} of {of}")
        counts = [row["micro_batches"]] if "micro_batches" in row else None
        parameters = {key: text for key, text in named.items() if key != "micro_batches"}
        try:
            found, used = judge(with_parameters(name, parameters), counts)
            facts = facts_of(found, costs)
            row |= {key: facts[key] for key in ("period_s", "bound_s", "over_bound", "staleness")}
            row |= {"micro_batches": facts["micro_batches"], "idle_s": facts["idle"]["step_s"]}
            row |= {"memory_bytes": facts["memory"]["bytes"], "pipeline": used}
        except SteptraceError as error:
            row["refused"] = f"{error.code}: {error.message}"
        rows.append(row)
    return rows


def sweep_table(rows: list[dict[str, Any]]) -> str:
    """The rows of a sweep to be read."""
    from steptrace.cost import seconds_in_words, size_in_words

    def shown(key: str, value: object) -> str:
        if isinstance(value, float) and key.endswith("_s"):
            return seconds_in_words(value)
        if isinstance(value, float) and key.endswith("_bytes"):
            return size_in_words(value)
        return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    keys = list(dict.fromkeys(key for row in rows for key in row))
    return aligned([keys, *([shown(key, row.get(key, "")) for key in keys] for row in rows)])


def sweep_plot(rows: list[dict[str, Any]], settings: dict[str, list[str]], *, width: int = 40) -> str:
    """The rows of a sweep as bars, for a terminal: a block for each figure, as long as its share of the largest."""
    blocks = []
    for figure, bars in _bars(rows, settings):
        lines = [(setting, ("#" * round(width * share)).ljust(width), said) for setting, share, said in bars]
        blocks.append(f"{figure}\n{aligned(lines, indent=2)}")
    return "\n\n".join(blocks)


def _bars(
    rows: list[dict[str, Any]], settings: dict[str, list[str]]
) -> Iterator[tuple[str, list[tuple[str, float, str]]]]:
    """For each figure its name and its bars: the setting, the share of the largest, and the figure in words."""
    from steptrace.cost import seconds_in_words, size_in_words

    words: dict[str, Callable[[float], str]] = {"memory_bytes": size_in_words, "staleness": lambda n: f"{n:g}"}
    for figure in (figure for figure in FIGURES if figure not in settings):
        values = [None if "refused" in row else row.get(figure) for row in rows]
        largest = max((value for value in values if value is not None), default=None)
        if largest is None:
            continue
        bars = []
        for row, value in zip(rows, values, strict=True):
            share = value / largest if value is not None and largest else 0.0
            told = "" if value is None else words.get(figure, seconds_in_words)(value)
            bars.append((setting_of(row, settings), share, "refused" if "refused" in row else told))
        yield figure.rpartition("_")[0] or figure, bars


def setting_of(row: dict[str, Any], settings: dict[str, list[str]]) -> str:
    """The combination of settings that a row is of."""
    return " ".join(f"{key}={row[key]}" for key in settings)


def sweep_svg(rows: list[dict[str, Any]], settings: dict[str, list[str]], title: str) -> str:
    """The rows of a sweep as a page of bars in SVG: no script, no font and no file from elsewhere."""
    letters = max((len(setting_of(row, settings)) for row in rows), default=0)
    left = max(150, 34 + 7 * letters)
    width = max(left + 510, 32 + 9 * len(title))
    parts, top = [f'<text x="16" y="26" class="title">{escape(title)}</text>'], 52
    for figure, bars in _bars(rows, settings):
        parts.append(f'<text x="16" y="{top}" class="head">{figure}</text>')
        for setting, share, said in bars:
            top += 20
            parts.append(f'<text x="16" y="{top}">{escape(setting)}</text>')
            parts.append(f'<rect x="{left}" y="{top - 11}" width="{380 * share:.1f}" height="13" class="bar"/>')
            parts.append(f'<text x="{left + 6 + 380 * share:.1f}" y="{top}">{escape(said)}</text>')
        top += 36
    style = (
        "text{font:12px sans-serif;fill:#222}.title{font-size:15px;font-weight:bold}.head{font-weight:bold}"
        ".bar{fill:#3b76c4}.back{fill:#fff}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.bar{fill:#6ea0e6}.back{fill:#1b1b1f}}"
    )
    height = top - 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    back = f'<rect class="back" width="{width}" height="{height}"/>'
    return "\n".join([head, f"<style>{style}</style>", back, *parts, "</svg>"]) + "\n"
