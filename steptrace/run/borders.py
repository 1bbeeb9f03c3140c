"""Checks where values of users' parts enter the run: shapes, dtypes, counts and keys."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from steptrace.diag.base import Note, SteptraceError, a_or_an
from steptrace.diag.binding import PartResultError
from steptrace.diag.running import MixedGroupsError
from steptrace.lang.parts import PromptSource
from steptrace.lang.records import Completion, Group, MicroBatch, Prompt
from steptrace.run.instance import At

_LARGEST = 2**31 - 1
_SHOWN = 60


class CheckedPrompts:
    """A prompt source, each prompt of which is one: what it gives later may be another thing than what it gave first.

    Raises:
      PartResultError: when an index is read that holds no prompt.
    """

    def __init__(self, source: PromptSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Prompt:
        prompt = self._source[index]
        if not isinstance(prompt, Prompt):
            kind = a_or_an(type(prompt).__name__)
            raise PartResultError(f"prompt {index} of the source is {kind}, not a steptrace.Prompt(id, text, meta)")
        if not isinstance(prompt.id, str) or not isinstance(prompt.text, str):
            raise PartResultError(
                f"prompt {index} of the source has the id {prompt.id!r} and a {type(prompt.text).__name__} as its "
                "text, and both are str"
            )
        return prompt


def checked_weights(made: Any, at: At | None = None) -> tuple[Any, int]:
    """What a trainer's ``weights()`` returned, if it is a tree of arrays and a version; raises `PartResultError`."""
    loc = None if at is None else at.op.loc
    if not isinstance(made, tuple) or len(made) != 2:
        raise PartResultError(f"the trainer's weights() returned {described(made)}, not (weights, version)", loc=loc)
    try:
        version = operator.index(made[1])
    except TypeError:
        raise PartResultError(
            f"the trainer's weights() gave {made[1]!r} as the version, which is a whole number", loc=loc
        ) from None
    for leaf in jax.tree.leaves(made[0]):
        if isinstance(leaf, np.ndarray) and leaf.dtype.hasobject:
            raise PartResultError("the trainer's weights() hold an array of objects, and none of numbers", loc=loc)
        if callable(leaf) and not hasattr(leaf, "dtype"):
            raise PartResultError(f"the trainer's weights() hold a function among arrays, {described(leaf)}", loc=loc)
    return made[0], version


def checked_completions(
    made: Any, prompts: Sequence[Prompt], samples: int, at: At, *, may_lose: bool = False
) -> list[tuple[Completion, ...] | None]:
    """What a rollout returned, if it is ``samples`` completions for each prompt; raises `PartResultError`.

    With ``may_lose`` it may be None for a prompt.
    """
    if not _is_list(made) or len(made) != len(prompts):
        count = f"{len(made)} lists" if _is_list(made) else described(made)
        raise PartResultError(f"the rollout returned {count} for {len(prompts)} prompts", loc=at.op.loc)
    plain: list[np.ndarray] = []
    for prompt, completions in zip(prompts, made, strict=True):
        if completions is None and may_lose:
            continue
        if not _is_list(completions) or len(completions) != samples:
            count = f"{len(completions)} completions" if _is_list(completions) else described(completions)
            raise PartResultError(
                f"the rollout returned {count} for prompt {prompt.id!r}, not {samples}", loc=at.op.loc
            )
        for sample, completion in enumerate(completions):
            if _is_plain(completion):
                plain.append(completion.tokens)
            else:
                _check_completion(completion, f"sample {sample} of prompt {prompt.id!r}", at)
    if plain and _wrong_ids(np.concatenate(plain)).size:
        _name_wrong_ids(prompts, made, at)
    return [None if completions is None else tuple(completions) for completions in made]


def _is_plain(completion: Any) -> bool:
    """Whether a completion is what a rollout usually gives, but for the range of its ids: the check that costs least.

    One that is not may be right all the same, and is looked at closely.
    """
    if not isinstance(completion, Completion):
        return False
    tokens, logps = completion.tokens, completion.logps
    return (
        isinstance(tokens, np.ndarray)
        and isinstance(logps, np.ndarray)
        and tokens.dtype == np.int32
        and logps.dtype == np.float32
        and tokens.ndim == 1
        and logps.shape == tokens.shape
        and isinstance(completion.text, str)
    )


def _name_wrong_ids(prompts: Sequence[Prompt], made: Sequence[Any], at: At) -> None:
    """Raise for the first completion that has a token id that is none."""
    for prompt, completions in zip(prompts, made, strict=True):
        for sample, completion in enumerate(completions or ()):
            _check_completion(completion, f"sample {sample} of prompt {prompt.id!r}", at)


def _check_completion(completion: Any, where: str, at: At) -> None:
    if not isinstance(completion, Completion):
        raise PartResultError(
            f"the rollout returned {described(completion)} as {where}, not a steptrace.Completion", loc=at.op.loc
        )
    tokens, logps = _array(completion.tokens), _array(completion.logps)
    if not _is_tokens(tokens):
        raise PartResultError(
            f"tokens of {where} are {tokens.dtype}{list(tokens.shape)}, not int [length]", loc=at.op.loc
        )
    _check_ids(tokens, f"of {where}", at, "leave padding out: a sequence has its own tokens only")
    if logps.shape != tokens.shape or not jnp.issubdtype(logps.dtype, jnp.floating):
        raise PartResultError(
            f"{where} has {tokens.size} tokens and log-probs {logps.dtype}{list(logps.shape)}, not one float for each",
            loc=at.op.loc,
        )
    if not isinstance(completion.text, str):
        raise PartResultError(f"{where} has {described(completion.text)} as its text, which is a str", loc=at.op.loc)


def checked_prompt_tokens(tokens: Any, prompt: Prompt, at: At) -> np.ndarray:
    """What a tokenizer made of a prompt as int32 [length]; raises `PartResultError` when it is no list of ids."""
    array = _array(tokens)
    if not _is_tokens(array):
        raise PartResultError(
            f"the tokenizer encoded prompt {prompt.id!r} as {array.dtype}{list(array.shape)}, not int [length]",
            loc=at.op.loc,
        )
    text = prompt.text if len(prompt.text) <= _SHOWN else f"{prompt.text[:_SHOWN]}..."
    help = "leave prompts out that the tokenizer has no ids for, or give it more"
    _check_ids(array, f"that the tokenizer made of prompt {prompt.id!r}", at, help, (Note(f"the prompt: {text!r}"),))
    return array.astype(np.int32)


def checked_logps(logps: Any, micro_batch: MicroBatch, role: str, at: At) -> Any:
    """Log-probs a part returned as float32, if they have the shape of the micro-batch; does not wait for them.

    Raises:
      PartResultError: another shape, or no floating dtype.
    """
    wanted = micro_batch.arrays["tokens"].shape
    array = logps if isinstance(logps, jax.Array) else _array(logps)
    if array.shape == wanted and array.dtype == np.float32:
        return array
    try:
        chex.assert_shape(array, wanted)
        chex.assert_type(array, float)
    except AssertionError as error:
        raise PartResultError(
            f"the {role} returned log-probs {array.dtype}{list(array.shape)}, not float {list(wanted)}, one for each "
            "token",
            loc=at.op.loc,
        ) from error
    return array if array.dtype == np.float32 else array.astype(np.float32)


def checked_metrics(made: Any, where: str, at: At, error: type[SteptraceError] = PartResultError) -> dict[str, float]:
    """Metrics as floats by name; raises ``error`` when they are not numbers by name."""
    if not isinstance(made, Mapping):
        raise error(f"{where} returned {described(made)}, not metrics: numbers by name", loc=at.op.loc)
    metrics = {}
    for name, value in made.items():
        if not isinstance(name, str) or not is_number(value):
            raise error(
                f"{where} returned {described(value)} as metric {name!r}, not a number by its name", loc=at.op.loc
            )
        metrics[name] = float(value)
    return metrics


def same_groups(result: Any, groups: Sequence[Group], at: At) -> list[Group]:
    """Groups an op returned, if each is one it was given and none comes twice; some may be left out.

    Raises:
      MixedGroupsError: an id that was not given, or one given twice.
    """
    known = {group.id for group in groups}
    seen = set()
    for group in result:
        if group.id not in known or group.id in seen:
            what = "twice" if group.id in seen else "which it was not given"
            raise MixedGroupsError(f"`{at.op.id}` returned group {group.id} {what}", loc=at.op.loc)
        seen.add(group.id)
    return list(result)


def is_groups(value: Any) -> bool:
    """Whether a value is a list of groups."""
    return _is_list(value) and all(isinstance(group, Group) for group in value)


def is_number(value: Any) -> bool:
    """Whether a value is one number: Python's, numpy's, or of JAX."""
    if isinstance(value, int | float):
        return True
    return getattr(value, "shape", None) == () and jnp.issubdtype(getattr(value, "dtype", object), jnp.number)


def _array(value: Any) -> np.ndarray:
    """A value as an array on the host; nested lists that are none give an array of one object."""
    try:
        return np.asarray(value)
    except ValueError:
        return np.array(None)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_tokens(array: np.ndarray) -> bool:
    """Whether an array is token ids; an empty list of them may have any dtype."""
    return array.ndim == 1 and (not array.size or array.dtype.kind in "iu")


def _check_ids(tokens: np.ndarray, whose: str, at: At, help: str, notes: tuple[Note, ...] = ()) -> None:
    """Refuse token ids that are none: marks of padding such as -100, and what 32 bits do not hold."""
    wrong = _wrong_ids(tokens)
    if wrong.size:
        message = f"a token {whose} is {wrong[0]}, and token ids are from 0 on, in 32 bits"
        raise PartResultError(message, loc=at.op.loc, notes=notes, help=help)


def _wrong_ids(tokens: np.ndarray) -> np.ndarray:
    """Those of an array that are no token ids."""
    if not tokens.size or (tokens.dtype == np.int32 and tokens.min() >= 0):
        return tokens[:0]
    return tokens[(tokens < 0) | (tokens > _LARGEST)]


def described(value: Any) -> str:
    """The kind of a value, in words."""
    return "nothing" if value is None else a_or_an(type(value).__name__)
