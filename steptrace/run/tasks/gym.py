"""Tasks of the package reasoning-gym: prompts, held-out prompts, and the package's own scorer as the reward."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType, ModuleType
from typing import Any

from steptrace.diag import SteptraceError
from steptrace.diag.tasks import (
    SolverMissingError,
    TaskConfigError,
    TasksMissingError,
    TooFewQuestionsError,
    UnknownTaskError,
)
from steptrace.lang.records import Prompt
from steptrace.run.data.prompts import ListPrompts
from steptrace.run.tasks.tokenizer import TaskTokenizer

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "spell_backward": MappingProxyType({"min_word_len": 3, "max_word_len": 4}),
        "chain_sum": MappingProxyType({"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}),
    }
)
"""Settings under which a small model learns a dataset; a setting given to ``load_task`` wins."""


@dataclass(frozen=True)
class Task:
    """A dataset of questions, split in two, with its scorer. Its bound ``reward`` is a reward part.

    Attributes:
      name: the dataset.
      prompts: questions to train on, each text once.
      held_out: questions no training run of this task ever sees.
      dataset: the reasoning-gym dataset, for its ``score_answer``.
    """

    name: str
    prompts: ListPrompts
    held_out: ListPrompts
    dataset: Any = field(repr=False)

    def reward(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        """The dataset's own score of each completion, partial credit included.

        A completion on which the scorer raises could not be parsed as an answer, and is worth 0.
        """
        return [self._score(prompt, text) for text in completions]

    def exact(self, prompt: Prompt, text: str) -> bool:
        """Whether the answer is right: a full score, for some datasets give a part to wrong answers."""
        return self._score(prompt, text) >= 1.0

    def answer(self, prompt: Prompt) -> str | None:
        """A right answer, for supervised warm-up; None where the dataset gives none."""
        answer = prompt.meta["answer"]
        return answer if isinstance(answer, str) else None

    def tokenizer(self) -> TaskTokenizer:
        """A tokenizer built from the training side: its questions and their answers."""
        prompts = [self.prompts[index] for index in range(len(self.prompts))]
        answers = [answer for answer in map(self.answer, prompts) if answer is not None]
        return TaskTokenizer.build([prompt.text for prompt in prompts], answers)

    def _score(self, prompt: Prompt, text: str) -> float:
        try:
            return float(self.dataset.score_answer(text, prompt.meta["entry"]))
        except SteptraceError:
            raise
        except Exception:
            return 0.0


def task_names() -> list[str]:
    """All datasets that ``load_task`` takes, sorted.

    Raises:
      TasksMissingError: reasoning-gym is not installed.
    """
    return sorted(_gym("reasoning_gym.factory").DATASETS)


def load_task(
    name: str, *, size: int = 4000, held_out: int = 200, seed: int = 0, held_out_share: float = 0.2, **config: Any
) -> Task:
    """A task of reasoning-gym by name.

    A question is held out by a hash of its text, so the two sides never share a question, whatever seeds they
    are made with: a held-out question of one seed is in no seed's training prompts. Each side holds distinct
    questions in the order they are generated. A configuration that has fewer than asked for (one-digit sums of
    two terms are 200 in all) gives fewer: the run then goes through the same prompts in more epochs.

    Args:
      name: a dataset, as ``task_names()`` lists them.
      size: training questions wanted.
      held_out: held-out questions wanted.
      seed: of the generator.
      held_out_share: the share of all questions that the hash holds out, in (0, 1).
      config: settings of the dataset, over those in ``PRESETS``.

    Raises:
      TasksMissingError, UnknownTaskError, TaskConfigError, TooFewQuestionsError: see their pages.
    """
    if not 0.0 < held_out_share < 1.0 or size < 1 or held_out < 1:
        raise TaskConfigError(
            f"a split of {size} and {held_out} questions with held_out_share={held_out_share:g} has an empty side",
            help="at least 1 question on each side, and a share between 0 and 1",
        )
    dataset = _dataset(name, budget=4 * (size + held_out), seed=seed, config={**PRESETS.get(name, {}), **config})
    wanted = {False: size, True: held_out}
    sides: dict[bool, list[Prompt]] = {False: [], True: []}
    for prompt in _distinct(name, dataset):
        side = is_held_out(prompt.text, held_out_share)
        if len(sides[side]) < wanted[side]:
            sides[side].append(prompt)
        if all(len(sides[side]) == wanted[side] for side in sides):
            break
    for side, what in ((False, "training"), (True, "held-out")):
        if not sides[side]:
            raise TooFewQuestionsError(
                f"task {name!r} has {len(sides[not side])} distinct questions, and none of them is a {what} one",
                help="widen the configuration, or change held_out_share",
            )
    return Task(name, ListPrompts(sides[False]), ListPrompts(sides[True]), dataset)


def is_held_out(text: str, share: float) -> bool:
    """Whether a question belongs to the held-out side: a function of its text alone."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"held out").digest()
    return int.from_bytes(digest) < share * 2**64


def _distinct(name: str, dataset: Any) -> Iterator[Prompt]:
    """Questions of the dataset in order, each text once, until it hardly yields new ones."""
    seen: set[str] = set()
    stale = 0
    for index in range(len(dataset)):
        entry = _entry(name, dataset, index)
        text = entry["question"]
        stale += 1
        if text not in seen:
            seen.add(text)
            stale = 0
            yield Prompt(f"{name}:{index}", text, {"answer": entry["answer"], "entry": entry})
        # Of n equally likely questions one stays unseen through 4n draws with probability exp(-4).
        if stale > 4 * len(seen) + 100:
            return


def _entry(name: str, dataset: Any, index: int) -> Any:
    """One item of the dataset; some settings show only here that nothing can be made with them."""
    try:
        return dataset[index]
    except SteptraceError:
        raise
    except Exception as error:
        raise TaskConfigError(
            f"dataset {name!r} could not make its item {index}: {type(error).__name__}: {error}"
        ) from error


def _dataset(name: str, *, budget: int, seed: int, config: Mapping[str, Any]) -> Any:
    """The dataset, its settings checked by the package itself."""
    factory = _gym("reasoning_gym.factory")
    if name not in factory.DATASETS:
        near = difflib.get_close_matches(name, factory.DATASETS, n=3, cutoff=0.5)
        raise UnknownTaskError(
            f"reasoning-gym has no dataset {name!r}",
            help=f"did you mean {', '.join(near)}?" if near else "`steptrace.run.tasks.task_names()` lists them",
        )
    # Item i is made from seed + i, so neighbouring seeds would share all items but one.
    spread = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest()) // 4
    try:
        return factory.create_dataset(name, size=budget, seed=spread, **config)
    except (TypeError, ValueError, AssertionError) as error:
        known = [item.name for item in fields(factory.DATASETS[name][1]) if item.name not in ("size", "seed")]
        raise TaskConfigError(
            f"dataset {name!r} refuses {dict(config)!r}: {error or type(error).__name__}",
            help=f"its settings: {', '.join(known) or 'none'}",
        ) from error


def _gym(module: str) -> ModuleType:
    """A module of reasoning-gym, with all datasets registered."""
    _stand_in_for_pycosat()
    try:
        importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise TasksMissingError(
            f"the tasks need the package reasoning-gym, and it cannot be imported: {error}",
            help="in the folder of steptrace: make setup, or python -m pip install -e '.[tasks]'",
        ) from error
    return importlib.import_module(module)


def _stand_in_for_pycosat() -> None:
    """Register a module that refuses to solve where pycosat is not installed.

    reasoning-gym imports pycosat for all datasets, and uses it for logic puzzles only; it is built from source
    and needs a C compiler.
    """
    try:
        importlib.import_module("pycosat")
    except ImportError:
        sys.modules["pycosat"] = _pycosat()


def _pycosat() -> ModuleType:
    """A module with pycosat's two functions, both of which refuse."""

    def refuse(*_: object, **__: object) -> None:
        raise SolverMissingError(
            "this dataset solves logic formulas with pycosat, which is not installed",
            help="with a C compiler installed: python -m pip install pycosat",
        )

    module = ModuleType("pycosat", "Stands in for the SAT solver, which is not installed.")
    module.solve = module.itersolve = refuse  # type: ignore[attr-defined]
    return module
