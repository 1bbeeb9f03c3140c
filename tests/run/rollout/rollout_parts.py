"""Small parts the rollout tests share: a tokenizer by character, a decoder, and a model that follows a script."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from steptrace.lang.records import Prompt
from steptrace.run.models.decoder import Decoder, DecoderConfig
from steptrace.run.models.split import split_model

CONFIG = DecoderConfig(vocab_size=37, dim=32, layers=2, heads=4, max_length=64)
LENGTH = 32


class Letters:
    """One token per letter from 2 on; 0 pads, 1 stops."""

    vocab_size = 37
    pad_id = 0
    stop_id = 1

    def encode(self, text):
        return [2 + (ord(letter) - ord("a")) % 35 for letter in text]

    def decode(self, tokens):
        return "".join(chr(ord("a") + token - 2) for token in tokens if token > 1)


class Script(nnx.Module):
    """The logits of the token at position p are row p of a table, whatever came before."""

    def __init__(self, table):
        self.table = nnx.Param(jnp.asarray(table, jnp.float32))
        self.max_length, self.vocab_size = self.table[...].shape

    def prefill(self, tokens, lengths, capacity):
        del capacity
        return self.table[...][lengths], NoCache(jnp.zeros(tokens.shape[:1]))

    def decode(self, tokens, positions, cache, slot):
        del tokens, slot
        return self.table[...][positions + 1], cache


@jax.tree_util.register_pytree_node_class
class NoCache:
    def __init__(self, rows):
        self.rows = rows

    def repeat(self, samples):
        return NoCache(jnp.repeat(self.rows, samples))

    def tree_flatten(self):
        return (self.rows,), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


def scripted(tokens_by_position, vocab_size=37):
    """A :class:`Script` that is certain of the token at each position."""
    return Script(1e4 * np.eye(vocab_size)[np.asarray(tokens_by_position)])


@functools.cache
def decoder(seed=3):
    return Decoder(CONFIG, seed=seed)


def params_of(model):
    """The model's own parameters."""
    return split_model(model).params


def copied(tree):
    """Parameters that a test may donate."""
    return jax.tree.map(jnp.copy, tree)


def prompts(*texts):
    return [Prompt(f"id:{text}", text) for text in texts]


@functools.cache
def _forward():
    split = split_model(decoder())
    return jax.jit(lambda params, *inputs: split.build(params, split.rest)(*inputs))


def logits_of(model, sequence):
    """Logits [length, vocab] of one sequence by the uncached forward pass."""
    tokens, positions, segments = (np.zeros((1, LENGTH), np.int32) for _ in range(3))
    tokens[0, : len(sequence)], segments[0, : len(sequence)] = sequence, 1
    positions[0] = np.arange(LENGTH)
    return np.asarray(_forward()(params_of(model), tokens, positions, segments))[0, : len(sequence)]


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def chi_square(counts, expected):
    """Pearson's statistic, and the limit that a right sampler passes but for one seed in millions."""
    counts, expected = np.asarray(counts, float).ravel(), np.asarray(expected, float).ravel()
    assert expected.min() > 4, "too few draws for the statistic"
    freedom = len(counts) - 1
    return ((counts - expected) ** 2 / expected).sum(), freedom + 6 * np.sqrt(2 * freedom)
