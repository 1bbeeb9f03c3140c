"""Prompts as padded batches of few shapes, and the words that tell their random draws apart."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from steptrace.diag.base import Note
from steptrace.diag.rollout import PromptTokensError, PromptTooLongError
from steptrace.lang.parts import Tokenizer
from steptrace.lang.records import Prompt


class PromptBatch(NamedTuple):
    """Prompts of one bucket, padded to a fixed number of rows.

    Attributes:
      tokens: int32 [rows, bucket], each prompt from the left.
      lengths: int32 [rows], 1 on rows that only fill the batch.
      words: uint32 [rows, 3], see :func:`draw_words`.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    words: np.ndarray


def encode_prompts(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, *, longest: int, vocab_size: int
) -> list[np.ndarray]:
    """Token ids of each prompt, int32 [length].

    Raises:
      PromptTooLongError: ST475, a prompt has more than ``longest`` tokens.
      PromptTokensError: ST478, a prompt without a token, or with an id outside ``0 .. vocab_size-1``.
    """
    encoded = [np.asarray(tokenizer.encode(prompt.text), np.int32) for prompt in prompts]
    for prompt, tokens in zip(prompts, encoded, strict=True):
        where = (Note(f"prompt {prompt.id!r}: {_shortened(prompt.text)}"),)
        if len(tokens) > longest:
            raise PromptTooLongError(
                f"a prompt has {len(tokens)} tokens, the largest bucket holds {longest}",
                notes=where,
                help="add a larger bucket, or leave such prompts out of the data",
            )
        if not len(tokens):
            raise PromptTokensError(
                "a prompt has no tokens", notes=where, help="let the tokenizer's encode put a start token first"
            )
        if tokens.min() < 0 or tokens.max() >= vocab_size:
            outside = next(int(token) for token in tokens if not 0 <= token < vocab_size)
            raise PromptTokensError(
                f"token {outside} of a prompt is outside the model's vocabulary of {vocab_size}",
                notes=where,
                help="build the model with the tokenizer's vocab_size",
            )
    return encoded


def draw_words(prompts: Sequence[Prompt]) -> np.ndarray:
    """uint32 [prompts, 3]: what is folded into the key for each prompt's draws.

    Two words are a hash of the prompt's id, the third counts earlier prompts of the same id in the same
    call. So the draws of a prompt depend neither on its place in the call nor on the other prompts, and
    a prompt that is drawn twice in one call gets two different sets of samples.
    """
    words, seen = np.zeros((len(prompts), 3), np.uint32), Counter[str]()
    for row, prompt in enumerate(prompts):
        digest = hashlib.blake2b(prompt.id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        words[row] = (*np.frombuffer(digest, "<u4"), seen[prompt.id])
        seen[prompt.id] += 1
    return words


def make_batches(
    encoded: Sequence[np.ndarray], words: np.ndarray, *, buckets: Sequence[int], rows: int
) -> list[tuple[np.ndarray, PromptBatch]]:
    """Sort prompts into batches of ``rows`` prompts and one of the bucket lengths.

    Each prompt takes the smallest bucket that holds it, whatever else is in the call, so that its result
    does not depend on the others. The last batch of a bucket is filled up with rows of one pad token.

    Args:
      encoded: token ids of each prompt, none longer than the largest bucket.
      words: uint32 [prompts, 3].
      buckets: lengths in ascending order.
      rows: prompts of a batch.

    Returns:
      For each batch the indices of its prompts in ``encoded``, and its arrays.
    """
    fitting = np.searchsorted(np.asarray(buckets), [len(tokens) for tokens in encoded])
    batches = []
    for place, bucket in enumerate(buckets):
        indices = np.flatnonzero(fitting == place)
        for chunk in (indices[start : start + rows] for start in range(0, len(indices), rows)):
            batches.append((chunk, _padded([encoded[index] for index in chunk], words[chunk], bucket, rows)))
    return batches


def _padded(encoded: Sequence[np.ndarray], words: np.ndarray, bucket: int, rows: int) -> PromptBatch:
    batch = PromptBatch(np.zeros((rows, bucket), np.int32), np.ones(rows, np.int32), np.zeros((rows, 3), np.uint32))
    for row, tokens in enumerate(encoded):
        batch.tokens[row, : len(tokens)] = tokens
        batch.lengths[row] = len(tokens)
    batch.words[: len(encoded)] = words
    return batch


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
