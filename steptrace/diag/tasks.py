"""Coded errors of the tasks and their tokenizers."""

from __future__ import annotations

from typing import ClassVar

from steptrace.diag.base import SteptraceError


class TasksMissingError(SteptraceError):
    """The package that generates the tasks is not installed.

    The tasks come from ``reasoning-gym``, an optional dependency.

    Example that causes it::

        load_task("spell_backward")                     # in an environment without reasoning-gym

    Ways out: ``make setup`` or ``python -m pip install -e '.[tasks]'`` in the folder of
    steptrace, or bring your own prompts and reward.
    """

    code: ClassVar[str] = "ST450"


class UnknownTaskError(SteptraceError):
    """No dataset of reasoning-gym has this name.

    Example that causes it::

        load_task("spell_backwards")

    Ways out: one of the names the message proposes; ``task_names()`` lists them all.
    """

    code: ClassVar[str] = "ST451"


class TaskConfigError(SteptraceError):
    """A dataset of reasoning-gym refuses its configuration.

    Example that causes it::

        load_task("spell_backward", min_word_len=5, max_word_len=4)
        load_task("spell_backward", words=4)            # no such setting

    Ways out: the settings the message lists, within the bounds the dataset states.
    """

    code: ClassVar[str] = "ST452"


class TooFewQuestionsError(SteptraceError):
    """A dataset has too few distinct questions to split into training and held-out ones.

    A question is held out by a hash of its text, so that training never sees it. When the configuration
    allows only a handful of questions, one of the two sides may stay empty.

    Example that causes it::

        load_task("spell_backward", min_word_len=1, max_word_len=1)

    Ways out: a wider configuration, or another ``held_out_share``.
    """

    code: ClassVar[str] = "ST453"


class SolverMissingError(SteptraceError):
    """A logic puzzle needs the package ``pycosat``, which is not installed.

    ``pycosat`` is built from source and needs a C compiler. Only logic puzzles use it, so the other
    datasets work without it.

    Example that causes it::

        load_task("zebra_puzzles")                      # in an environment without pycosat

    Ways out: install a C compiler, then ``python -m pip install pycosat``; or choose another dataset.
    """

    code: ClassVar[str] = "ST454"


class TokenizerFileError(SteptraceError):
    """A tokenizer file cannot be read, or is not one that ``save`` wrote.

    Example that causes it::

        TaskTokenizer.load("metrics.jsonl")

    Ways out: name the file that ``save`` wrote; build the tokenizer again from its task.
    """

    code: ClassVar[str] = "ST455"


class UnknownTokenError(SteptraceError):
    """A token id is outside the tokenizer's vocabulary.

    Example that causes it::

        ByteTokenizer().decode([9999])

    Ways out: give the model the tokenizer's ``vocab_size``; decode with the tokenizer that encoded.
    """

    code: ClassVar[str] = "ST456"
