"""Rewards of groups, checked where they enter."""

from __future__ import annotations

import inspect
import numbers
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from steptrace.diag import Loc
from steptrace.diag.base import a_or_an
from steptrace.diag.data import RewardLengthError, RewardNotFiniteError, RewardRaisedError, RewardTypeError
from steptrace.lang.parts import Reward
from steptrace.lang.records import Group


def score(reward: Reward, groups: Sequence[Group]) -> list[Group]:
    """The groups in order with ``rewards`` set, float32 [samples]; the reward is called once per group.

    Policy for a reward that is no finite number, or for a wrong number of them: the step is refused. Nothing is
    replaced by 0, cut, padded or left out in silence; a reward function that cannot judge a completion says what
    that is worth by returning a number. Ints, bools, numpy and JAX scalars count as numbers.

    Raises:
      RewardRaisedError: the reward raised; its exception is the cause.
      RewardLengthError: not one reward per completion.
      RewardTypeError: ``None`` or another thing that is not a number.
      RewardNotFiniteError: NaN, infinity, or beyond float32.
    """
    return [replace(group, rewards=_rewards(reward, group)) for group in groups]


def _rewards(reward: Reward, group: Group) -> np.ndarray:
    """float32 [samples]."""
    try:
        given = reward(group.prompt, [completion.text for completion in group.completions])
    except Exception as error:
        raise RewardRaisedError(
            f"reward {_name(reward)} raised {type(error).__name__} on prompt {group.prompt.id!r}: {error}",
            loc=_raised_at(reward, error) or _loc(reward),
            help="catch what a completion can cause, and return the reward that it is worth",
        ) from error
    values = _listed(given)
    if values is None:
        what = "a single number" if getattr(given, "shape", None) == () else a_or_an(type(given).__name__)
        raise RewardTypeError(
            f"reward {_name(reward)} returned {what} on prompt {group.prompt.id!r}, not a sequence of numbers",
            loc=_loc(reward),
            help="return a list with one number for each completion, in order",
        )
    if len(values) != len(group.completions):
        raise RewardLengthError(
            f"reward {_name(reward)} returned {len(values)} rewards for {len(group.completions)} completions "
            f"of prompt {group.prompt.id!r}",
            loc=_loc(reward),
            help="return one number for each completion, in order: [judge(text) for text in completions]",
        )
    return np.array([_number(reward, group, sample, value) for sample, value in enumerate(values)], np.float32)


def _listed(given: object) -> list[object] | None:
    """The values of a sequence or an array in order; None for what has no order or no length."""
    if isinstance(given, str | bytes | Mapping) or getattr(given, "shape", None) == ():
        return None
    if not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        return None
    array = np.asarray(given) if hasattr(given, "__array__") else given
    return list(array)  # type: ignore[call-overload]


def _number(reward: Reward, group: Group, sample: int, value: object) -> np.float32:
    """One reward as float32, or the error that names the function, the prompt and the sample."""
    where = f"for sample {sample} of prompt {group.prompt.id!r}"
    scalar = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
    if not isinstance(scalar, numbers.Real):
        raise RewardTypeError(
            f"reward {_name(reward)} returned {scalar!r} {where}, not a number",
            loc=_loc(reward),
            help="return a number for every completion, 0.0 for one that cannot be judged",
        )
    with np.errstate(over="ignore"):
        try:
            number = np.float32(float(scalar))
        except OverflowError:
            number = np.float32(np.inf)
    if not np.isfinite(number):
        raise RewardNotFiniteError(
            f"reward {_name(reward)} returned {scalar!r} {where}, not a finite float32",
            loc=_loc(reward),
            help="return a finite number for every completion: clip logs and ratios, guard divisions by 0",
        )
    return number


def _name(reward: Reward) -> str:
    """The reward as its user knows it."""
    return f"`{getattr(reward, '__qualname__', type(reward).__qualname__)}`"


def _raised_at(reward: Reward, error: Exception) -> Loc | None:
    """The last line of the reward's own file that the error came through."""
    home = _loc(reward)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if home and frame.filename == home.file]
    return Loc(frames[-1].filename, frames[-1].lineno or 0) if frames else None


def _loc(reward: Reward) -> Loc | None:
    """Where the reward is defined, when it is a Python function, a method or an object with ``__call__``."""
    function = reward if inspect.isroutine(reward) else type(reward).__call__ if callable(reward) else reward
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else Loc(code.co_filename, code.co_firstlineno)
