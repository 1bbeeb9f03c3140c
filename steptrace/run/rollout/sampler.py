"""The jitted sampler: prefill once per prompt, repeat the cache, decode all samples in one scan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from steptrace.diag.rollout import SamplingOptionError
from steptrace.run.rollout.batches import PromptBatch


@runtime_checkable
class CachedModel(Protocol):
    """What the sampler needs of a model. The cache is a pytree of its own with a method ``repeat(samples)``."""

    vocab_size: int
    max_length: int

    def prefill(self, tokens: jax.Array, lengths: jax.Array, capacity: int) -> tuple[jax.Array, Any]:
        """float32 logits [rows, vocab] after each prompt (padded on the right), and a cache of ``capacity`` slots."""
        ...

    def decode(self, tokens: jax.Array, positions: jax.Array, cache: Any, slot: jax.Array) -> tuple[jax.Array, Any]:
        """Add one token to each row in cache slot ``slot``: logits [rows, vocab] after it, and the cache."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How completions are drawn.

    Attributes:
      max_new_tokens: longest completion, the stop token included.
      temperature: logits are divided by it, in float32; 0 takes the most likely token.
      stop_id: the token that ends a completion.
      pad_id: fills up after the end.

    Raises:
      SamplingOptionError: ST477, an option is out of its range.
    """

    max_new_tokens: int
    temperature: float
    stop_id: int
    pad_id: int

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise SamplingOptionError(f"max_new_tokens is {self.max_new_tokens}, it must be at least 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise SamplingOptionError(f"temperature is {self.temperature}, it must be finite and at least 0")


class Sampled(NamedTuple):
    """Completions of a batch.

    Attributes:
      tokens: int32 [rows, samples, max_new_tokens], pad tokens after the end.
      logps: float32 [rows, samples, max_new_tokens], log-prob of each token under the distribution it was
        drawn from, 0 after the end; at temperature 0 that distribution is one token, and all are 0.
      lengths: int32 [rows, samples], tokens up to and with the stop token.
    """

    tokens: jax.Array
    logps: jax.Array
    lengths: jax.Array


def sample(
    model: CachedModel, prompts: PromptBatch, key: jax.Array, *, samples: int, options: SamplingOptions
) -> Sampled:
    """Draw ``samples`` completions for each prompt; pure, for use inside ``jax.jit``.

    Token ``t`` of sample ``s`` of a prompt is drawn with the key folded with the prompt's words, ``s`` and
    ``t``: a draw depends on these and on the logits, not on what else is in the batch.
    """
    tokens, prompt_lengths, words = (jnp.asarray(array) for array in prompts)
    rows, bucket = tokens.shape
    # The last token is drawn and never read, so it needs no slot.
    logits, cache = model.prefill(tokens, prompt_lengths, bucket + options.max_new_tokens - 1)
    cache, lengths = cache.repeat(samples), jnp.repeat(prompt_lengths, samples)
    keys = _draw_keys(key, words, samples)
    token, logp = _draw(jnp.repeat(logits, samples, axis=0), keys, 0, options.temperature)

    def step(carry: tuple[jax.Array, jax.Array, Any], t: jax.Array) -> tuple[Any, tuple[jax.Array, ...]]:
        token, ended, cache = carry
        ended = ended | (token == options.stop_id)
        logits, cache = model.decode(token, lengths + t - 1, cache, bucket + t - 1)
        token, logp = _draw(logits, keys, t, options.temperature)
        token, logp = jnp.where(ended, options.pad_id, token), jnp.where(ended, 0.0, logp)
        return (token, ended, cache), (token, logp, ~ended)

    start = (token, jnp.zeros(token.shape, bool), cache)
    _, (tokens, logps, live) = jax.lax.scan(step, start, jnp.arange(1, options.max_new_tokens))
    shape = (rows, samples, options.max_new_tokens)
    return Sampled(
        jnp.concatenate([token[None], tokens]).T.reshape(shape),
        jnp.concatenate([logp[None], logps]).T.reshape(shape),
        1 + live.sum(axis=0, dtype=jnp.int32).reshape(shape[:2]),
    )


def _draw_keys(key: jax.Array, words: jax.Array, samples: int) -> jax.Array:
    """A key for each sample of each prompt, [rows * samples]."""

    def fold(key: jax.Array, word: jax.Array) -> tuple[jax.Array, None]:
        return jax.random.fold_in(key, word), None

    by_prompt = jax.vmap(lambda row: jax.lax.scan(fold, key, row)[0])(words)
    by_sample = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(by_prompt, jnp.arange(samples))
    return by_sample.reshape(-1)


def _draw(logits: jax.Array, keys: jax.Array, t: int | jax.Array, temperature: float) -> tuple[jax.Array, jax.Array]:
    """One token per row of ``logits`` [rows, vocab], int32, and its log-prob, float32."""
    logits = logits.astype(jnp.float32)
    if temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32), jnp.zeros(logits.shape[0], jnp.float32)
    logps = jax.nn.log_softmax(logits / temperature, axis=-1)
    token = jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, t), row))(keys, logps)
    return token.astype(jnp.int32), jnp.take_along_axis(logps, token[:, None], axis=-1)[:, 0]


class Sampler:
    """:func:`sample` jitted for one model: one compilation per bucket, number of rows and number of samples.

    Args:
      build: ``build(params, rest)`` gives the model, as in ``SplitModel``.
      options: how completions are drawn.
    """

    def __init__(self, build: Callable[[Any, Any], CachedModel], options: SamplingOptions) -> None:
        self.options = options
        self.traces = 0

        def traced(params: Any, rest: Any, prompts: PromptBatch, key: jax.Array, samples: int) -> Sampled:
            self.traces += 1
            return sample(build(params, rest), prompts, key, samples=samples, options=options)

        self._jitted = jax.jit(traced, static_argnames="samples")

    def __call__(self, params: Any, rest: Any, prompts: PromptBatch, key: jax.Array, *, samples: int) -> Sampled:
        """Completions of a batch of prompts; returns at dispatch. The key may be a typed or a raw one."""
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        sampled: Sampled = self._jitted(params, rest, prompts, key, samples=samples)
        return sampled
