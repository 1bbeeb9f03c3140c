"""The rollout as a bound part: pinned versions, batches of few shapes, refusals."""

import jax
import numpy as np
import pytest
from flax import nnx
from rollout_parts import Letters, copied, decoder, params_of, prompts, scripted

from steptrace.diag.rollout import (
    NotCacheableError,
    NoWeightsError,
    PromptTokensError,
    PromptTooLongError,
    SamplingOptionError,
    VersionHeldError,
    VersionNotHeldError,
)
from steptrace.lang.parts import Rollout
from steptrace.run.rng import key_for
from steptrace.run.rollout import JaxRollout

KEY = key_for(0, "generate", 1)
ASKED = prompts("reverse", "a", "hello")


def rollout_of(model=None, **options):
    return JaxRollout(
        model or decoder(), Letters(), **{"buckets": (8,), "max_new_tokens": 4, "batch_size": 2, **options}
    )


def tokens(rollout, version, asked=ASKED, samples=4):
    groups = rollout.generate(asked, samples, version=version, key=KEY)
    return [[completion.tokens.tolist() for completion in group] for group in groups]


@pytest.fixture(scope="module")
def two_versions():
    """A rollout that holds version 0 (seed 0) and version 1 (seed 1)."""
    rollout = rollout_of()
    for version in (0, 1):
        rollout.apply_weights(params_of(decoder(seed=version)), version)
    return rollout


@pytest.fixture(scope="module")
def alone():
    """A rollout made from a model of seed 5, which holds no version between tests."""
    return rollout_of(decoder(seed=5))


def test_it_is_a_rollout():
    assert isinstance(rollout_of(), Rollout)


@pytest.mark.slow
def test_each_version_generates_what_it_would_generate_alone(two_versions, alone):
    for version in (0, 1):
        alone.apply_weights(params_of(decoder(seed=version)), version)
        assert alone.info()["versions"] == (version,)
        assert tokens(two_versions, version) == tokens(alone, version)
        greedy = [completion.tokens.tolist() for completion in two_versions.greedy(ASKED, version)]
        assert greedy == [completion.tokens.tolist() for completion in alone.greedy(ASKED, version)]
        alone.drop_weights(version)


def test_control_the_two_versions_generate_differently(two_versions):
    assert tokens(two_versions, 0) != tokens(two_versions, 1)


def test_the_parameters_of_the_model_it_was_made_with_are_never_sampled_from(two_versions, alone):
    alone.apply_weights(params_of(decoder(seed=1)), 7)
    assert tokens(alone, 7) == tokens(two_versions, 1)
    alone.drop_weights(7)


def test_weights_donated_after_they_were_applied_still_generate(alone):
    params = copied(params_of(decoder(seed=1)))
    alone.apply_weights(params, 8)
    before = tokens(alone, 8)
    zeroed = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0, tree), donate_argnums=0)(params)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(zeroed))
    assert tokens(alone, 8) == before
    alone.drop_weights(8)


def test_versions_that_are_not_held_are_refused():
    rollout = rollout_of()
    with pytest.raises(NoWeightsError):
        rollout.generate(ASKED, 1, version=0, key=KEY)
    rollout.apply_weights(params_of(decoder()), 0)
    with pytest.raises(VersionHeldError):
        rollout.apply_weights(params_of(decoder()), 0)
    rollout.apply_weights(params_of(decoder()), 1)
    rollout.drop_weights(0)
    assert rollout.info()["versions"] == (1,)
    with pytest.raises(VersionNotHeldError, match="held: 1"):
        rollout.generate(ASKED, 1, version=0, key=KEY)
    with pytest.raises(VersionNotHeldError, match="held: 1"):
        rollout.greedy(ASKED, 0)


class Compilations:
    """How many programs XLA compiled inside the block."""

    def __enter__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._see)
        return self

    def _see(self, event, duration, **details):
        del duration, details
        self.count += event.endswith("backend_compile_duration")

    def __exit__(self, *_):
        jax.monitoring.unregister_event_duration_listener(self._see)


def test_after_the_warm_up_nothing_compiles_again():
    model = scripted([5] * 12)
    rollout = rollout_of(model, buckets=(4, 8))
    rollout.apply_weights(params_of(model), 0)
    rollout.generate(ASKED, 2, version=0, key=KEY)
    rollout.greedy(ASKED, 0)
    key = key_for(0, "generate", 2)
    with Compilations() as seen:
        rollout.apply_weights(params_of(model), 1)
        for asked in (ASKED[:1], ASKED[1:], prompts(*"bcdefgh"), prompts("abcdefgh")):
            rollout.generate(asked, 2, version=1, key=key)
            rollout.greedy(asked, 1)
        rollout.drop_weights(0)
    assert seen.count == 0
    assert rollout.info()["compiles"] == {"generate": 2, "greedy": 2}  # one for each bucket


def test_control_another_number_of_samples_compiles_and_is_counted():
    rollout = rollout_of(scripted([5] * 12), buckets=(8,))
    rollout.apply_weights(params_of(scripted([5] * 12)), 0)
    rollout.generate(ASKED, 2, version=0, key=KEY)
    with Compilations() as seen:
        rollout.generate(ASKED, 3, version=0, key=KEY)
    assert seen.count == 1
    assert rollout.info()["compiles"] == {"generate": 2, "greedy": 0}


def test_as_many_groups_as_prompts_and_as_many_completions_as_samples(two_versions):
    groups = two_versions.generate(ASKED, 4, version=0, key=KEY)
    assert [len(group) for group in groups] == [4, 4, 4]
    assert two_versions.generate([], 3, version=0, key=KEY) == []
    assert two_versions.greedy([], 0) == []


def test_a_prompt_of_exactly_a_bucket_fits_and_one_more_is_refused(two_versions):
    assert len(two_versions.greedy(prompts("abcdefgh"), 0)) == 1
    with pytest.raises(PromptTooLongError) as caught:
        two_versions.generate(prompts("abcdefghi"), 1, version=0, key=KEY)
    assert "error[ST475]: a prompt has 9 tokens, the largest bucket holds 8" in str(caught.value)
    assert "'id:abcdefghi'" in str(caught.value)


class Shifted(Letters):
    def encode(self, text):
        return [token + 30 for token in super().encode(text)]


class Large(Letters):
    vocab_size = 38


def test_tokens_the_model_does_not_know_are_refused(two_versions):
    with pytest.raises(PromptTokensError, match="a prompt has no tokens"):
        two_versions.greedy(prompts(""), 0)
    rollout = JaxRollout(decoder(), Shifted(), buckets=(8,), max_new_tokens=4)
    rollout.apply_weights(params_of(decoder()), 0)
    with pytest.raises(PromptTokensError, match="token 37 of a prompt is outside the model's vocabulary of 37"):
        rollout.greedy(prompts("af"), 0)
    with pytest.raises(PromptTokensError, match="the tokenizer has 38 token ids, the model 37"):
        JaxRollout(decoder(), Large(), buckets=(8,), max_new_tokens=4)


def test_a_model_without_a_cache_is_refused():
    with pytest.raises(NotCacheableError, match="it lacks prefill, decode, vocab_size, max_length"):
        rollout_of(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"buckets": ()},
        {"buckets": (0, 8)},
        {"batch_size": 0},
        {"max_new_tokens": 0},
        {"temperature": float("inf")},
        {"max_new_tokens": 57},  # 8 + 57 > 64
    ],
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(SamplingOptionError):
        rollout_of(**wrong)


def test_no_samples_are_refused(two_versions):
    with pytest.raises(SamplingOptionError, match="samples is 0"):
        two_versions.generate(ASKED, 0, version=0, key=KEY)
