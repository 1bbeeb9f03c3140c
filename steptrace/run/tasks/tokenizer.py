"""Tokenizers for small models: one built from a task's texts, one of plain bytes.

Both end an encoded prompt with an answer token, from which the model continues: without it a model could not
tell whether the last letters of a question are all of it. Log-probs, masks and lengths count it as part of the
prompt.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from steptrace.diag.tasks import TokenizerFileError, UnknownTokenError

_PIECE = re.compile(r" ?\w+| ?[^\w\s]+|\s")
_SPECIAL = 3
_FORMAT = 1


class TaskTokenizer:
    """Boilerplate in few tokens, everything else character by character.

    What all questions begin with is one token. After it, a word (or run of punctuation, each with the space before
    it) that stands in nearly every question is one token; the rest of a question, and all of an answer, is one
    token a character. So a prompt is short and the model still sees the letters that matter. A character that was
    in no text is written as its UTF-8 bytes, two half-byte tokens each: every text encodes, and decodes to itself.

    Ids: 0 pad, 1 stop, 2 answer (ends a prompt), then 16 half-bytes, then characters, then words, each sorted.

    Args:
      characters: single characters with a token of their own.
      words: pieces with a token of their own; those of several words stand for the beginning of a text.
    """

    pad_id = 0
    stop_id = 1
    answer_id = 2

    def __init__(self, characters: Iterable[str], words: Iterable[str]) -> None:
        self.characters = tuple(sorted(set(characters)))
        self.words = tuple(sorted(set(words)))
        self._openings = sorted((word for word in self.words if not _PIECE.fullmatch(word)), key=len, reverse=True)
        assert all(len(character) == 1 for character in self.characters), "a character is one code point"
        self._first = _SPECIAL + 16
        self._pieces = (*self.characters, *self.words)
        self._ids = {piece: self._first + place for place, piece in enumerate(self._pieces)}
        self.vocab_size = self._first + len(self._pieces)

    @classmethod
    def build(cls, questions: Sequence[str], answers: Iterable[str], *, share: float = 0.9) -> TaskTokenizer:
        """A tokenizer for these texts; the same texts in any order give the same tokenizer.

        Args:
          questions: prompts of the task.
          answers: right answers.
          share: a piece of two characters or more that stands in this share of the questions, after what all of them
            begin with, is one token; above 1, all is spelled.
        """
        opening = _opening(questions) if share <= 1 else ""
        rests = [question[len(opening) :] for question in questions]
        counts = Counter(piece for rest in rests for piece in set(_PIECE.findall(rest)))
        words = [piece for piece, count in counts.items() if len(piece) > 1 and count >= share * len(questions)]
        characters = {character for text in (*questions, *answers) for character in text}
        return cls(characters, [*words, opening] if opening else words)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, the answer token last."""
        opening = next((word for word in self._openings if text.startswith(word)), "")
        ids = [self._ids[opening]] if opening else []
        for piece in _PIECE.findall(text[len(opening) :]):
            known = self._ids.get(piece)
            ids += self._spell(piece) if known is None else [known]
        return [*ids, self.answer_id]

    def answer_tokens(self, text: str) -> list[int]:
        """Token ids of an answer as a model should sample it: its characters, then the stop token."""
        return [*self._spell(text), self.stop_id]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens; pad, stop and answer tokens are left out, half-bytes that form no text become U+FFFD.

        Raises:
          UnknownTokenError: an id is outside the vocabulary.
        """
        parts: list[bytes] = []
        half: int | None = None
        for token in map(int, tokens):
            if not 0 <= token < self.vocab_size:
                raise _unknown(token, self.vocab_size)
            nibble = token - _SPECIAL if _SPECIAL <= token < self._first else None
            if nibble is not None and half is not None:
                parts.append(bytes([16 * half + nibble]))
                half = None
                continue
            if half is not None:
                parts.append(b"\xff")
            half = nibble
            if token >= self._first:
                parts.append(self._pieces[token - self._first].encode("utf-8", "surrogatepass"))
        if half is not None:
            parts.append(b"\xff")
        return b"".join(parts).decode("utf-8", "replace")

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as JSON."""
        state = {
            "format": _FORMAT,
            "tokenizer": "task",
            "characters": list(self.characters),
            "words": list(self.words),
        }
        Path(path).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> TaskTokenizer:
        """Read what ``save`` wrote.

        Raises:
          TokenizerFileError: it cannot be read, or is something else.
        """
        state = _read(path, "task")
        lists = [state.get(name) for name in ("characters", "words")]
        for pieces in lists:
            if not isinstance(pieces, list) or not all(isinstance(piece, str) and piece for piece in pieces):
                raise TokenizerFileError(f"{path} holds no lists of characters and words")
        characters, words = lists
        if any(len(character) != 1 for character in characters or ()):
            raise TokenizerFileError(f"{path} holds a character that is longer than one")
        return cls(characters or (), words or ())

    def _spell(self, text: str) -> list[int]:
        """One token a character, or the half-bytes of one that is not known."""
        ids: list[int] = []
        for character in text:
            known = self._ids.get(character)
            if known is not None:
                ids.append(known)
                continue
            for byte in character.encode("utf-8", "surrogatepass"):
                ids += [_SPECIAL + byte // 16, _SPECIAL + byte % 16]
        return ids


class ByteTokenizer:
    """UTF-8 bytes as tokens; fits any text and any task. Ids: 0 pad, 1 stop, 2 answer, then the 256 bytes."""

    pad_id = 0
    stop_id = 1
    answer_id = 2
    vocab_size = _SPECIAL + 256

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, the answer token last."""
        return [*self._spell(text), self.answer_id]

    def answer_tokens(self, text: str) -> list[int]:
        """Token ids of an answer as a model should sample it: its bytes, then the stop token."""
        return [*self._spell(text), self.stop_id]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens; pad, stop and answer tokens are left out, bytes that form no text become U+FFFD.

        Raises:
          UnknownTokenError: an id is outside the vocabulary.
        """
        ids = [int(token) for token in tokens]
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise _unknown(token, self.vocab_size)
        return bytes(token - _SPECIAL for token in ids if token >= _SPECIAL).decode("utf-8", "replace")

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as JSON."""
        Path(path).write_text(json.dumps({"format": _FORMAT, "tokenizer": "bytes"}) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> ByteTokenizer:
        """Read what ``save`` wrote.

        Raises:
          TokenizerFileError: it cannot be read, or is something else.
        """
        _read(path, "bytes")
        return cls()

    def _spell(self, text: str) -> list[int]:
        return [_SPECIAL + byte for byte in text.encode("utf-8", "surrogatepass")]


def _opening(questions: Sequence[str]) -> str:
    """The pieces, two or more, that all questions begin with and none consists of; "" when there are none."""
    split = (_PIECE.findall(question)[:-1] for question in questions)
    common = takewhile(lambda pieces: len(set(pieces)) == 1, zip(*split, strict=False))
    opening = [pieces[0] for pieces in common]
    return "".join(opening) if len(opening) > 1 else ""


def _unknown(token: int, vocab_size: int) -> UnknownTokenError:
    return UnknownTokenError(f"token {token} is outside the vocabulary of {vocab_size}")


def _read(path: str | Path, kind: str) -> Mapping[str, Any]:
    """The JSON object of a tokenizer file of this kind."""
    try:
        state = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerFileError(f"cannot read a tokenizer from {path}: {error}") from error
    if not isinstance(state, dict) or (state.get("format"), state.get("tokenizer")) != (_FORMAT, kind):
        raise TokenizerFileError(f"{path} is not a {kind} tokenizer in format {_FORMAT}")
    return state
