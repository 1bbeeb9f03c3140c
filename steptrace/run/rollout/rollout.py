"""The built-in rollout: a sampler on JAX with pinned versions of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from steptrace.diag.rollout import NotCacheableError, PromptTokensError, SamplingOptionError
from steptrace.lang.parts import Tokenizer
from steptrace.lang.records import Completion, Prompt
from steptrace.run.models.split import split_model
from steptrace.run.rollout.batches import draw_words, encode_prompts, make_batches
from steptrace.run.rollout.sampler import CachedModel, Sampled, Sampler, SamplingOptions
from steptrace.run.rollout.weights import HeldWeights, owned_copy


class JaxRollout:
    """Samples completions of prompts with exactly the version of the weights that is asked for.

    Satisfies ``steptrace.lang.parts.Rollout``. The model gives the shape of the parameters and the state
    that is not trained; its own parameters are never sampled from.

    Args:
      model: a flax NNX module that satisfies :class:`CachedModel`.
      tokenizer: text to tokens and back.
      buckets: prompt lengths, in tokens, that are compiled for; a prompt takes the smallest that holds it.
      max_new_tokens: longest completion, the stop token included.
      temperature: of :meth:`generate`; 0 is greedy.
      batch_size: prompts of one device call; calls with fewer are filled up, calls with more are divided.

    Raises:
      NotCacheableError: ST476, the model has no cached decoding.
      SamplingOptionError: ST477, an option is out of its range.
      PromptTokensError: ST478, the tokenizer has more ids than the model.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        buckets: Sequence[int],
        max_new_tokens: int,
        temperature: float = 1.0,
        batch_size: int = 32,
    ) -> None:
        options = SamplingOptions(max_new_tokens, temperature, tokenizer.stop_id, tokenizer.pad_id)
        _check_model(model, tokenizer)
        _check_shapes(buckets, max_new_tokens, batch_size, model.max_length)
        split = split_model(model)
        self._tokenizer = tokenizer
        self._vocab_size = int(model.vocab_size)
        self._buckets = tuple(sorted(set(buckets)))
        self._batch_size = batch_size
        self._weights = HeldWeights(split.params)
        self._rest = owned_copy(split.rest)
        self._sampler = Sampler(split.build, options)
        greedy = SamplingOptions(max_new_tokens, 0.0, tokenizer.stop_id, tokenizer.pad_id)
        self._greedy = Sampler(split.build, greedy)

    def apply_weights(self, weights: Any, version: int) -> None:
        """Hold a copy of ``weights`` under ``version``, beside the versions already held.

        Raises:
          VersionHeldError: ST473, the version is held already.
          WeightsMismatchError: ST474, the weights are not of this model.
        """
        self._weights.apply(weights, version)

    def drop_weights(self, version: int) -> None:
        """Forget a version.

        Raises:
          NoWeightsError, VersionNotHeldError: ST471, ST472, it is not held.
        """
        self._weights.drop(version)

    def generate(
        self, prompts: Sequence[Prompt], samples: int, *, version: int, key: jax.Array
    ) -> list[list[Completion]]:
        """``samples`` completions for each prompt, in order, made with exactly the weights of ``version``.

        The draws of a prompt depend on ``key``, on its id and on how many earlier prompts of the call have
        the same id; so prompts in another order give the same completions in that order.

        Raises:
          NoWeightsError, VersionNotHeldError: ST471, ST472, the version is not held.
          SamplingOptionError: ST477, ``samples`` is below 1.
          PromptTooLongError, PromptTokensError: ST475, ST478.
        """
        if samples < 1:
            raise SamplingOptionError(f"samples is {samples}, it must be at least 1")
        return self._run(self._sampler, prompts, samples, version, key)

    def greedy(self, prompts: Sequence[Prompt], version: int) -> list[Completion]:
        """The most likely token at each place, for evaluation; one completion per prompt, whose log-probs are 0.

        Raises:
          As :meth:`generate`.
        """
        unused = jax.random.key(0)
        return [completions[0] for completions in self._run(self._greedy, prompts, 1, version, unused)]

    def info(self) -> Mapping[str, Any]:
        """``versions``: those held; ``compiles``: how often each sampler was compiled so far."""
        compiles = {"generate": self._sampler.traces, "greedy": self._greedy.traces}
        return {"versions": self._weights.versions, "compiles": compiles}

    def _run(
        self, sampler: Sampler, prompts: Sequence[Prompt], samples: int, version: int, key: jax.Array
    ) -> list[list[Completion]]:
        weights = self._weights.read(version)
        longest = self._buckets[-1]
        encoded = encode_prompts(prompts, self._tokenizer, longest=longest, vocab_size=self._vocab_size)
        batches = make_batches(encoded, draw_words(prompts), buckets=self._buckets, rows=self._batch_size)
        # All batches are issued before the first result is waited for.
        issued = [(indices, sampler(weights, self._rest, batch, key, samples=samples)) for indices, batch in batches]
        results: list[list[Completion]] = [[] for _ in prompts]
        for indices, sampled in issued:
            for row, completions in zip(indices, self._completions(sampled, len(indices)), strict=True):
                results[row] = completions
        return results

    def _completions(self, sampled: Sampled, rows: int) -> list[list[Completion]]:
        """Host records of the first ``rows`` prompts of a batch."""
        tokens, logps, lengths = (np.asarray(array) for array in sampled)
        return [
            [
                self._completion(tokens[row, index, :length], logps[row, index, :length])
                for index, length in enumerate(lengths[row])
            ]
            for row in range(rows)
        ]

    def _completion(self, tokens: np.ndarray, logps: np.ndarray) -> Completion:
        finished = bool(tokens[-1] == self._tokenizer.stop_id)
        said = tokens[:-1] if finished else tokens
        return Completion(tokens, logps, self._tokenizer.decode(said.tolist()), finished)


def _check_model(model: Any, tokenizer: Tokenizer) -> None:
    lacking = [name for name in ("prefill", "decode", "vocab_size", "max_length") if not hasattr(model, name)]
    if lacking:
        raise NotCacheableError(
            f"{type(model).__name__} cannot decode with a cache: it lacks {', '.join(lacking)}",
            help=f"give the model what {CachedModel.__name__} asks for, or bind an own rollout",
        )
    if tokenizer.vocab_size > model.vocab_size:
        raise PromptTokensError(
            f"the tokenizer has {tokenizer.vocab_size} token ids, the model {model.vocab_size}",
            help="build the model with the tokenizer's vocab_size",
        )


def _check_shapes(buckets: Sequence[int], max_new_tokens: int, batch_size: int, max_length: int) -> None:
    if not buckets or min(buckets) < 1:
        raise SamplingOptionError(f"buckets are {tuple(buckets)}: at least one, and each at least 1 token")
    if batch_size < 1:
        raise SamplingOptionError(f"batch_size is {batch_size}, it must be at least 1")
    if max(buckets) + max_new_tokens > max_length:
        raise SamplingOptionError(
            f"a bucket of {max(buckets)} and {max_new_tokens} new tokens exceed the model's {max_length} tokens",
            help="use smaller buckets, fewer new tokens, or a model with a larger max_length",
        )
