"""What a job trains: task, tokenizer, model, and the shapes that follow from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from steptrace.diag.job import NoAnswersError, NothingFitsError
from steptrace.lang.records import Prompt
from steptrace.run.data.packing import Packer
from steptrace.run.data.prompts import ListPrompts
from steptrace.run.job.recipe import Recipe
from steptrace.run.models.decoder import Decoder, DecoderConfig
from steptrace.run.tasks import Task, TaskTokenizer, load_task
from steptrace.run.trainer.mesh import POSITION_AXES, ROW_AXES


@dataclass(frozen=True)
class Blueprint:
    """A model before it is made.

    Attributes:
      sizes: its sizes.
      seed: of its parameters.
    """

    sizes: DecoderConfig
    seed: int

    def model(self) -> Decoder:
        """A new model, the same each time."""
        return Decoder(self.sizes, seed=self.seed)


@dataclass(frozen=True)
class Setup:
    """A task made ready for a model.

    Attributes:
      recipe: the recipe.
      task: the task.
      tokenizer: its tokenizer.
      train: questions that fit the model, each with an answer that does.
      held_out: questions for the evaluation, which are in no run's ``train``.
      left_out: how many questions were too long, on both sides.
      bucket: tokens of the longest prompt.
      max_new_tokens: tokens of the longest answer, its stop token included.
      packer: how sequences are laid into micro-batches.
    """

    recipe: Recipe
    task: Task
    tokenizer: TaskTokenizer
    train: ListPrompts
    held_out: ListPrompts
    left_out: int
    bucket: int
    max_new_tokens: int
    packer: Packer

    def blueprint(self, seed: int) -> Blueprint:
        """What any process makes the model of a seed from."""
        recipe = self.recipe
        sizes = DecoderConfig(
            self.tokenizer.vocab_size,
            recipe.dim,
            recipe.layers,
            recipe.heads,
            max_length=self.bucket + self.max_new_tokens,
            rope_theta=recipe.rope_theta,
        )
        return Blueprint(sizes, seed_of("model", seed) % 2**31)

    def model(self, seed: int) -> Decoder:
        """A new model; the same seed gives the same parameters."""
        return self.blueprint(seed).model()

    def packer_on(self, mesh: Mapping[str, int]) -> Packer:
        """The packer with rows and row length made up to what divides over a mesh of these sizes."""
        rows, length = (prod(mesh.get(axis, 1) for axis in axes) for axes in (ROW_AXES, POSITION_AXES))
        return replace(
            self.packer, rows=-(-self.packer.rows // rows) * rows, length=-(-self.packer.length // length) * length
        )

    def answer_tokens(self, prompt: Prompt) -> list[int]:
        """The right answer as a model should sample it."""
        answer = self.task.answer(prompt)
        assert answer is not None, "prompts without an answer are no part of a setup"
        return self.tokenizer.answer_tokens(answer)


def load_setup(task_name: str, recipe: Recipe, eval_size: int) -> Setup:
    """The task by its name, cut to what the recipe's model can hold.

    The data depend on the task and the recipe alone, not on the seed of the run, so that runs of several seeds are
    evaluated on the same held-out problems.

    Raises:
      TasksMissingError, UnknownTaskError, TaskConfigError, TooFewQuestionsError: from the task.
      NoAnswersError: it has no answers to warm up on.
      NothingFitsError: all its questions are too long.
    """
    task = load_task(task_name, size=recipe.questions, held_out=eval_size, **recipe.dataset)
    tokenizer = task.tokenizer()
    answered = [_answered(task, source) for source in (task.prompts, task.held_out)]
    if not all(answered):
        raise NoAnswersError(f"task {task_name!r} gives no right answers, so there is nothing to warm up on")
    sides = [[prompt for prompt in side if _fits(prompt, task, tokenizer, recipe)] for side in answered]
    if not all(sides):
        raise NothingFitsError(
            f"no question of task {task_name!r} has at most {recipe.longest_prompt} tokens "
            f"and an answer of at most {recipe.longest_answer}"
        )
    prompts = [*sides[0], *sides[1]]
    bucket = max(len(tokenizer.encode(prompt.text)) for prompt in prompts)
    longest = max(len(tokenizer.answer_tokens(task.answer(prompt) or "")) for prompt in prompts)
    return Setup(
        recipe=recipe,
        task=task,
        tokenizer=tokenizer,
        train=ListPrompts(sides[0]),
        held_out=ListPrompts(sides[1]),
        left_out=sum(map(len, answered)) - len(prompts),
        bucket=bucket,
        max_new_tokens=longest,
        packer=_packer(recipe, bucket + longest, tokenizer.pad_id),
    )


def seed_of(what: str, seed: int) -> int:
    """A seed of its own for each use, so that no two uses of a run's seed draw alike; 64 bits."""
    return int.from_bytes(hashlib.blake2b(f"{what} {seed}".encode(), digest_size=8).digest())


def _answered(task: Task, source: ListPrompts) -> list[Prompt]:
    prompts = (source[index] for index in range(len(source)))
    return [prompt for prompt in prompts if task.answer(prompt) is not None]


def _fits(prompt: Prompt, task: Task, tokenizer: TaskTokenizer, recipe: Recipe) -> bool:
    answer = tokenizer.answer_tokens(task.answer(prompt) or "")
    return len(tokenizer.encode(prompt.text)) <= recipe.longest_prompt and len(answer) <= recipe.longest_answer


def _packer(recipe: Recipe, longest: int, pad_id: int) -> Packer:
    length = longest * recipe.sequences_per_row
    return Packer(rows=max(1, round(recipe.micro_batch_tokens / length)), length=length, pad_id=pad_id)
