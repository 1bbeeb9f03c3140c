"""Checks where values of users' parts enter the run: shapes, dtypes, counts and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chex
import numpy as np

from steptrace.diag.binding import PartResultError
from steptrace.diag.running import MixedGroupsError
from steptrace.lang.records import Completion, Group, MicroBatch, Prompt
from steptrace.run.session import At


def checked_completions(made: Any, prompts: Sequence[Prompt], samples: int, at: At) -> list[tuple[Completion, ...]]:
    """What a rollout returned, if it is ``samples`` completions for each prompt; raises `PartResultError`."""
    if not isinstance(made, Sequence) or len(made) != len(prompts):
        count = len(made) if isinstance(made, Sequence) else type(made).__name__
        raise PartResultError(f"the rollout returned {count} lists for {len(prompts)} prompts", loc=at.op.loc)
    for prompt, completions in zip(prompts, made, strict=True):
        if len(completions) != samples:
            raise PartResultError(
                f"the rollout returned {len(completions)} completions of prompt {prompt.id!r}, not {samples}",
                loc=at.op.loc,
            )
        for sample, completion in enumerate(completions):
            _check_completion(completion, f"sample {sample} of prompt {prompt.id!r}", at)
    return [tuple(completions) for completions in made]


def _check_completion(completion: Any, where: str, at: At) -> None:
    if not isinstance(completion, Completion):
        raise PartResultError(
            f"the rollout returned a {type(completion).__name__} as {where}, not a steptrace.Completion", loc=at.op.loc
        )
    tokens, logps = np.asarray(completion.tokens), np.asarray(completion.logps)
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise PartResultError(
            f"tokens of {where} are {tokens.dtype}{list(tokens.shape)}, not int [length]", loc=at.op.loc
        )
    if logps.shape != tokens.shape:
        raise PartResultError(
            f"{where} has {tokens.size} tokens and log-probs of shape {list(logps.shape)}", loc=at.op.loc
        )


def checked_logps(logps: Any, micro_batch: MicroBatch, role: str, at: At) -> Any:
    """Log-probs a part returned, if they have the shape of the micro-batch; does not wait for them.

    Raises:
      PartResultError: another shape, or no floating dtype.
    """
    try:
        chex.assert_shape(logps, micro_batch.arrays["tokens"].shape)
        chex.assert_type(logps, float)
    except (AssertionError, TypeError, ValueError) as error:
        shape, dtype = getattr(logps, "shape", None), getattr(logps, "dtype", type(logps).__name__)
        rows, length = micro_batch.arrays["tokens"].shape
        raise PartResultError(
            f"the {role} returned log-probs {dtype}{list(shape) if shape is not None else ''}, "
            f"not float [{rows}, {length}], one for each token",
            loc=at.op.loc,
        ) from error
    return logps


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
