"""Parts that compile, made once, and runs of them as they were made; letters for tokens."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fakes import CharTokenizer

import steptrace
from steptrace.lang.records import Prompt
from steptrace.run.data.prompts import ListPrompts
from steptrace.run.rollout import JaxRollout
from steptrace.run.rollout.weights import HeldWeights


class Letters(CharTokenizer):
    """Letters as ids below 16."""

    vocab_size, pad_id, stop_id = 16, 0, 1

    def encode(self, text):
        return [2 + ord(letter) % 14 for letter in text]

    def decode(self, tokens):
        return " ".join(map(str, tokens))


class Made:
    """A trainer, a rollout of its model, and a reference, as they were made.

    Args:
      model: what is sampled.
      trainer: its trainer.
      reference: the reference.
      batch_size: how many completions are sampled at a time.
    """

    def __init__(self, model, trainer, reference, *, batch_size: int) -> None:
        self.trainer, self.reference = trainer, reference
        self.rollout = JaxRollout(model, Letters(), buckets=(4,), max_new_tokens=6, batch_size=batch_size)
        self.folder = Path(tempfile.mkdtemp()) / "as-made"
        trainer.save_checkpoint(self.folder)

    def run(self, program, pipeline: str, *, steps: int, packer, prompts: int = 24, **parts):
        """A run with all parts as they were made: its digests and records, and its remarks."""
        self.trainer.restore_checkpoint(self.folder)
        self.rollout._weights = HeldWeights(self.trainer.split.params)
        bind = {
            "trainer": self.trainer,
            "rollout": self.rollout,
            "reference": self.reference,
            "reward": lambda prompt, completions: [float(len(set(text.split()))) for text in completions],
            "prompts": ListPrompts([Prompt(f"p:{index}", "abcd"[: 2 + index % 3]) for index in range(prompts)]),
            "tokenizer": Letters(),
            "packer": packer,
            **parts,
        }
        made = steptrace.run(program, bind, steps=steps, pipeline=pipeline, stall_s=240.0, stage_latch_s=0.0)
        digests = (made.params_digest, made.calls_digest, made.trained_groups_digest)
        return (digests, [dict(record) for record in made.records]), made.remarks
