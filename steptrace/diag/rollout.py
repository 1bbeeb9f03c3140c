"""Codes of the sampler, the weights it holds, and the built-in decoder model."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class DecoderConfigError(SteptraceError):
    """The sizes of a decoder do not fit together.

    The width must split into the heads, and the width of one head must be even, because the rotary
    embedding turns pairs of features. All sizes are at least 1.

    Example::

        DecoderConfig(vocab_size=64, dim=64, heads=5)      # 64 does not split into 5 heads

    Ways out: choose ``dim`` as an even multiple of ``heads``.
    """

    code = "ST470"


class NoWeightsError(SteptraceError):
    """Generation was asked for before any weights were applied to the rollout.

    A rollout never samples from the model it was constructed with: that model gives only the shape of
    the parameters. The first dispatch therefore comes after a first ``sync_weights``.

    Example::

        rollout = JaxRollout(model, tokenizer, buckets=(32,), max_new_tokens=8)
        rollout.generate(prompts, 8, version=0, key=key)   # nothing was applied

    Ways out: call ``apply_weights(*trainer.weights())`` first; in a program, let the step's dispatch
    depend on a weight sync.
    """

    code = "ST471"


class VersionNotHeldError(SteptraceError):
    """The version asked for is not among the versions the rollout holds.

    It was never applied, or it was dropped. Sampling from another version instead would make the
    recorded version of the completions a lie, so it is refused.

    Example::

        rollout.apply_weights(weights, 0)
        rollout.generate(prompts, 8, version=3, key=key)   # holds only version 0

    Ways out: apply the version before it is read, and drop it only after its last reader.
    """

    code = "ST472"


class VersionHeldError(SteptraceError):
    """Weights were applied under a version that is already held.

    A version names one content. Whoever generates with version 3 must get the same weights before and
    after, so a held version is not overwritten.

    Example::

        rollout.apply_weights(weights_a, 3)
        rollout.apply_weights(weights_b, 3)                # one writer per version

    Ways out: apply the new weights under their own version; or drop the version first when a restored
    checkpoint counts its versions again.
    """

    code = "ST473"


class WeightsMismatchError(SteptraceError):
    """The weights do not have the structure, shapes or dtypes of the rollout's model.

    Example::

        trainer of a 4-layer model, rollout of a 2-layer model:
        rollout.apply_weights(*trainer.weights())          # other parameters

    Ways out: build trainer and rollout from the same model configuration; cast weights back to the
    model's dtype before they are applied.
    """

    code = "ST474"


class PromptTooLongError(SteptraceError):
    """A prompt has more tokens than the largest prompt bucket.

    Prompts are padded to the smallest bucket that holds them, so that a few shapes are compiled once.
    A longer prompt is refused instead of cut: a cut prompt asks another question.

    Example::

        JaxRollout(model, tokenizer, buckets=(16, 32), max_new_tokens=8)
        # and a prompt of 40 tokens

    Ways out: add a larger bucket, or leave such prompts out of the data.
    """

    code = "ST475"


class NotCacheableError(SteptraceError):
    """The model cannot decode with a cache, which the built-in sampler needs.

    The built-in sampler calls ``prefill`` and ``decode`` and reads ``vocab_size`` and ``max_length``,
    as ``steptrace.run.rollout.CachedModel`` describes. A model that only has ``model(tokens, ...)``
    lacks them.

    Example::

        JaxRollout(model_without_prefill, tokenizer, buckets=(32,), max_new_tokens=8)

    Ways out: give the model the two methods, or bind an own rollout class.
    """

    code = "ST476"


class SamplingOptionError(SteptraceError):
    """An option of the sampler is out of its range.

    Example::

        JaxRollout(model, tokenizer, buckets=(), max_new_tokens=8)                      # no bucket
        JaxRollout(model, tokenizer, buckets=(32,), max_new_tokens=8, temperature=-1.)  # below 0
        rollout.generate(prompts, 0, version=0, key=key)                                # no samples

    Ways out: at least one bucket, ``max_new_tokens``, ``samples`` and ``batch_size`` of at least 1, a
    finite temperature of at least 0 (0 is greedy), and a largest bucket that leaves room for the new
    tokens within the model's ``max_length``.
    """

    code = "ST477"


class PromptTokensError(SteptraceError):
    """The tokenizer and the model do not agree about a token, or a prompt has no tokens.

    A token id outside the model's vocabulary would be read as another token or as NaN, and an empty
    prompt has no last token to continue from.

    Example::

        a tokenizer of 120 ids bound with DecoderConfig(vocab_size=100)

    Ways out: build the model with the tokenizer's ``vocab_size``; let ``encode`` put a start token
    first, so that no prompt is empty.
    """

    code = "ST478"
