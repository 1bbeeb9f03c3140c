"""Trainer, rollout and reference of one small decoder, as workers make them."""

from __future__ import annotations

import optax

from steptrace.lang.records import Prompt
from steptrace.run.data.packing import Packer
from steptrace.run.data.prompts import ListPrompts
from steptrace.run.models.decoder import Decoder, DecoderConfig
from steptrace.run.rollout import FrozenReference, JaxRollout
from steptrace.run.trainer import GrpoLoss, JaxTrainer
from steptrace.workers import remote


class Letters:
    """Letters as ids."""

    vocab_size, pad_id, stop_id = 16, 0, 1

    def encode(self, text):
        return [2 + ord(letter) % 14 for letter in text]

    def decode(self, tokens):
        return " ".join(map(str, tokens))


class Losing(JaxTrainer):
    """Can be told to lose the second micro-batch of a step."""

    loses = -1

    def lose(self, step):
        self.loses = step

    def fwd_bwd(self, micro_batch, **how):
        if (micro_batch.step, micro_batch.index) == (self.loses, 1):
            return {"update_deferred": False}
        return super().fwd_bwd(micro_batch, **how)


def model():
    return Decoder(DecoderConfig(vocab_size=16, dim=16, layers=1, heads=2, max_length=16))


def trainer():
    return Losing(model(), optax.adam(1e-2), GrpoLoss(kl_coef=0.1))


def rollout():
    return JaxRollout(model(), Letters(), buckets=(4,), max_new_tokens=6, batch_size=4)


def reference():
    return FrozenReference(model())


def different(prompt, completions):
    return [float(len(set(text.split()))) for text in completions]


def real_bind():
    """Parts for GRPO."""
    return {
        "trainer": remote(trainer),
        "rollout": remote(rollout),
        "reference": remote(reference),
        "reward": different,
        "prompts": ListPrompts([Prompt(f"p:{index}", "abcd"[: 2 + index % 3]) for index in range(12)]),
        "tokenizer": Letters(),
        "packer": Packer(rows=2, length=18),
    }
