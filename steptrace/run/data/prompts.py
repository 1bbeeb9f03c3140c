"""Prompt sources: a list in memory, or a JSON-lines file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from steptrace.diag import Loc, Note
from steptrace.diag.base import a_or_an
from steptrace.diag.data import BadPromptLineError, DuplicatePromptError, EmptyPromptsError, UnreadablePromptsError
from steptrace.lang.records import Prompt


class ListPrompts:
    """Prompts from memory. A text stands for a prompt whose id is its position.

    Raises:
      EmptyPromptsError: there are none.
      DuplicatePromptError: two have one id.
    """

    def __init__(self, prompts: Iterable[Prompt | str]) -> None:
        self._prompts = tuple(
            Prompt(str(position), prompt) if isinstance(prompt, str) else prompt
            for position, prompt in enumerate(prompts)
        )
        if not self._prompts:
            raise EmptyPromptsError("the list of prompts is empty")
        first: dict[str, int] = {}
        for position, prompt in enumerate(self._prompts):
            if first.setdefault(prompt.id, position) != position:
                raise DuplicatePromptError(f"prompts {first[prompt.id]} and {position} both have the id {prompt.id!r}")

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self._prompts[index]


class JsonlPrompts:
    """Prompts from a file with one JSON object a line, UTF-8. Blank lines are skipped.

    The file is read and checked whole when the source is made, so that a bad line is found before step 0. The
    prompt's ``meta`` is its whole object, for the reward to read.

    Args:
      path: the file.
      text_key: the key with the prompt's text.
      id_key: the key with the prompt's id, a text or an integer; None numbers the prompts by line, from 1.

    Raises:
      UnreadablePromptsError: no such file, no permission, or not UTF-8.
      BadPromptLineError: a line is no JSON object, or lacks a key; points at the line.
      DuplicatePromptError: two lines have one id; points at both.
      EmptyPromptsError: no prompt in the file.
    """

    def __init__(self, path: str | Path, text_key: str = "prompt", id_key: str | None = None) -> None:
        self.path = str(path)
        self._prompts: list[Prompt] = []
        first: dict[str, Loc] = {}
        for number, line in enumerate(_lines(self.path), start=1):
            if not line.strip():
                continue
            loc = Loc(self.path, number)
            prompt = _prompt(line, loc, text_key, id_key)
            if first.setdefault(prompt.id, loc) != loc:
                raise DuplicatePromptError(
                    f"the id {prompt.id!r} is given to two prompts",
                    loc=loc,
                    source=line,
                    notes=(Note("the first of them", first[prompt.id]),),
                )
            self._prompts.append(prompt)
        if not self._prompts:
            raise EmptyPromptsError(f"there is no prompt in {self.path}", loc=Loc(self.path, 1))

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self._prompts[index]


def _lines(path: str) -> list[str]:
    """Lines of the file, split at newlines only (JSON text may hold other line separators)."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise UnreadablePromptsError(f"cannot read prompts from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UnreadablePromptsError(f"{path} is not UTF-8 text: {error.reason}", loc=Loc(path, line)) from error


def _prompt(line: str, loc: Loc, text_key: str, id_key: str | None) -> Prompt:
    """One line as a prompt."""
    try:
        item = json.loads(line)
    except ValueError as error:
        column = error.colno if isinstance(error, json.JSONDecodeError) else 0
        raise BadPromptLineError(
            f"this line is not JSON: {error}", loc=Loc(loc.file, loc.line, column), source=line
        ) from error
    if not isinstance(item, dict):
        raise BadPromptLineError(
            f"this line is {a_or_an(type(item).__name__)}, not a JSON object", loc=loc, source=line
        )
    for key in (text_key, id_key):
        if key is not None and key not in item:
            found = ", ".join(repr(name) for name in item) or "none"
            raise BadPromptLineError(f"this line has no key {key!r} (its keys: {found})", loc=loc, source=line)
    text = item[text_key]
    if not isinstance(text, str):
        raise BadPromptLineError(
            f"{text_key!r} holds {a_or_an(type(text).__name__)}, and a prompt is a text", loc=loc, source=line
        )
    name = str(loc.line) if id_key is None else item[id_key]
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise BadPromptLineError(f"{id_key!r} holds {name!r}, and an id is a text or an integer", loc=loc, source=line)
    return Prompt(str(name), text, item)
