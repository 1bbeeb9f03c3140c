"""The sampler: what it draws, with which log-probs, where it stops, and which draws depend on what."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rollout_parts import Letters, Script, chi_square, decoder, log_softmax, logits_of, params_of, prompts, scripted

from steptrace.diag.rollout import SamplingOptionError
from steptrace.lang.records import Prompt
from steptrace.run.models.split import split_model
from steptrace.run.rng import key_for
from steptrace.run.rollout import JaxRollout, SamplingOptions
from steptrace.run.rollout.batches import PromptBatch
from steptrace.run.rollout.sampler import sample

KEY = key_for(0, "generate", 1)
ASKED = prompts("reverse", "a", "hello", "of")


@functools.cache
def rollout_of(temperature=1.0, buckets=(8,), max_new_tokens=6, batch_size=4):
    rollout = JaxRollout(
        decoder(),
        Letters(),
        buckets=buckets,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        batch_size=batch_size,
    )
    rollout.apply_weights(params_of(decoder()), 0)
    return rollout


def generate(rollout, asked=ASKED, samples=8, key=KEY):
    return rollout.generate(asked, samples, version=0, key=key)


def tokens_of(groups):
    return [[completion.tokens.tolist() for completion in group] for group in groups]


@functools.cache
def scripted_rollout():
    return JaxRollout(scripted([0] * 13), Letters(), buckets=(8,), max_new_tokens=5, batch_size=2)


def follow(script, *texts):
    """Two completions for each prompt, by a model that is certain of the token at each position."""
    rollout = scripted_rollout()
    version = len(rollout.info()["versions"])
    rollout.apply_weights(params_of(scripted(script)), version)
    return rollout.generate(prompts(*texts), 2, version=version, key=KEY)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logps_equal_those_of_the_uncached_forward_pass_at_the_same_temperature(temperature):
    for prompt, group in zip(ASKED, generate(rollout_of(temperature)), strict=True):
        start = Letters().encode(prompt.text)
        for completion in group:
            logits = logits_of(decoder(), [*start, *completion.tokens])[len(start) - 1 : -1]
            expected = log_softmax(logits / temperature)[np.arange(len(completion.tokens)), completion.tokens]
            np.testing.assert_allclose(completion.logps, expected, atol=1e-5)


def test_control_logps_at_another_temperature_are_not_equal():
    completion = generate(rollout_of(0.6))[0][0]
    start = Letters().encode(ASKED[0].text)
    logits = logits_of(decoder(), [*start, *completion.tokens])[len(start) - 1 : -1]
    other = log_softmax(logits)[np.arange(len(completion.tokens)), completion.tokens]
    assert np.abs(completion.logps - other).max() > 0.1


def first_token_counts(temperature, draws=8192):
    rollout = rollout_of(temperature, max_new_tokens=1, batch_size=1)
    (group,) = generate(rollout, prompts("reverse"), samples=draws)
    return np.bincount([int(completion.tokens[0]) for completion in group], minlength=37)


def first_token_chances(temperature):
    return np.exp(log_softmax(logits_of(decoder(), Letters().encode("reverse"))[-1] / temperature))


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_first_tokens_are_drawn_as_often_as_the_softmax_says(temperature):
    statistic, limit = chi_square(first_token_counts(temperature), 8192 * first_token_chances(temperature))
    assert statistic < limit


def test_control_frequencies_at_another_temperature_are_told_apart():
    statistic, limit = chi_square(first_token_counts(1.5), 8192 * first_token_chances(1.0))
    assert statistic > 2 * limit


def uniform_draws():
    """[32 prompts, 64 samples, 4 positions] of draws among 6 equal tokens, none of them the stop token."""
    allowed = (np.arange(37) >= 2) & (np.arange(37) < 8)
    model = Script(np.where(allowed, 0.0, -1e9) * np.ones((16, 1)))
    rollout = JaxRollout(model, Letters(), buckets=(8,), max_new_tokens=4, batch_size=32)
    rollout.apply_weights(params_of(model), 0)
    groups = generate(rollout, [Prompt(str(index), "same") for index in range(32)], samples=64)
    return np.array(tokens_of(groups)) - 2


draws = pytest.fixture(uniform_draws, scope="module")


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["prompt", "sample", "position"])
def test_draws_of_neighbours_are_independent(draws, axis):
    pairs = np.take(draws, range(draws.shape[axis] - 1), axis) * 6 + np.take(draws, range(1, draws.shape[axis]), axis)
    statistic, limit = chi_square(np.bincount(pairs.ravel(), minlength=36), np.full(36, pairs.size / 36))
    assert statistic < limit


def test_control_a_key_without_the_sample_makes_neighbours_equal(monkeypatch):
    shared = lambda key, words, samples: jnp.repeat(key[None], len(words) * samples)  # noqa: E731
    monkeypatch.setattr("steptrace.run.rollout.sampler._draw_keys", shared)
    draws = uniform_draws()
    assert (draws == draws[:1, :1]).all()


def test_temperature_zero_is_the_argmax_of_the_full_forward_pass_step_by_step():
    rollout = rollout_of()
    for prompt, completion in zip(ASKED, rollout.greedy(ASKED, 0), strict=True):
        sequence = Letters().encode(prompt.text)
        for token in completion.tokens:
            assert token == logits_of(decoder(), sequence)[-1].argmax()
            sequence = [*sequence, token]
        assert len(completion.tokens) == 6 or completion.tokens[-1] == Letters.stop_id
        np.testing.assert_array_equal(completion.logps, 0)


def test_generate_at_temperature_zero_is_greedy_for_every_sample():
    groups, greedy = generate(rollout_of(0.0), samples=2), rollout_of().greedy(ASKED, 0)
    assert tokens_of(groups) == [[completion.tokens.tolist()] * 2 for completion in greedy]


def test_tokens_after_the_stop_token_are_dropped():
    # The prompt "ab" has positions 0 and 1, so its completion reads the script from position 2.
    (group,) = follow([9, 9, 5, 6, 1, 7, 8, 9, 9, 9, 9, 9, 9], "ab")
    for completion in group:
        assert completion.tokens.tolist() == [5, 6, 1]
        assert completion.logps.tolist() == [0.0, 0.0, 0.0]
        assert (completion.text, completion.finished) == ("de", True)
        assert (completion.tokens.dtype, completion.logps.dtype) == (np.int32, np.float32)


def test_a_completion_that_the_length_limit_cuts_is_not_finished():
    (group,) = follow([9, 9, 5, 6, 7, 8, 9, 1, 9, 9, 9, 9, 9], "ab")
    assert (group[0].tokens.tolist(), group[0].finished) == ([5, 6, 7, 8, 9], False)


@pytest.mark.parametrize(("text", "expected"), [("a", []), ("abcde", [5, 6, 7, 8])])
def test_stopping_at_once_and_at_the_last_token(text, expected):
    ((completion, _),) = follow([9, 1, 9, 9, 9, 5, 6, 7, 8, 1, 9, 9, 9], text)
    assert (completion.tokens.tolist(), completion.finished) == ([*expected, 1], True)


def test_each_row_stops_for_itself():
    groups = follow([9, 9, 5, 1, 6, 7, 1, 9, 9, 9, 9, 9, 9], "ab", "abcd")
    assert tokens_of(groups) == [[[5, 1]] * 2, [[6, 7, 1]] * 2]


def test_no_completion_of_the_decoder_has_a_token_after_its_stop():
    completions = [completion for group in generate(rollout_of(), samples=64) for completion in group]
    assert {completion.finished for completion in completions} == {True, False}
    for completion in completions:
        assert completion.finished == (completion.tokens[-1] == 1)
        assert completion.finished or len(completion.tokens) == 6
        assert (completion.tokens[:-1] != 1).all()
        assert len(completion.logps) == len(completion.tokens)
        assert (completion.logps < 0).all()


def test_the_same_key_gives_the_same_completions_and_another_key_others():
    first, again = generate(rollout_of()), generate(rollout_of())
    assert tokens_of(first) == tokens_of(again)
    np.testing.assert_array_equal(first[0][0].logps, again[0][0].logps)
    assert tokens_of(generate(rollout_of(), key=key_for(0, "generate", 2))) != tokens_of(first)


def test_a_raw_key_is_taken_as_the_typed_one():
    raw = jax.random.key_data(KEY)
    assert tokens_of(generate(rollout_of(), key=raw)) == tokens_of(generate(rollout_of()))


def test_a_prompt_does_not_depend_on_how_far_it_is_padded_nor_on_the_batch_size():
    short, long = generate(rollout_of()), generate(rollout_of(buckets=(3, 24), batch_size=3))
    assert tokens_of(short) == tokens_of(long)
    for left, right in zip(itertools.chain(*short), itertools.chain(*long), strict=True):
        np.testing.assert_allclose(left.logps, right.logps, atol=1e-5)


def test_prompts_in_another_order_give_the_same_completions_in_that_order():
    expected = dict(
        zip(
            (prompt.id for prompt in ASKED), tokens_of(generate(rollout_of(buckets=(3, 24), batch_size=3))), strict=True
        )
    )
    for order in ([3, 2, 1, 0], [1, 0, 3, 2]):
        asked = [ASKED[index] for index in order]
        found = tokens_of(generate(rollout_of(buckets=(3, 24), batch_size=3), asked))
        assert found == [expected[prompt.id] for prompt in asked]


def test_a_prompt_does_not_depend_on_the_other_prompts():
    expected = tokens_of(generate(rollout_of()))
    assert tokens_of(generate(rollout_of(), ASKED[2:3])) == expected[2:3]


def test_one_prompt_asked_twice_in_a_call_gets_two_sets_of_samples():
    first, second = tokens_of(generate(rollout_of(), [ASKED[0], ASKED[0]]))
    assert first != second
    assert first == tokens_of(generate(rollout_of()))[0]


def test_equal_texts_under_different_ids_get_different_samples():
    first, second = tokens_of(generate(rollout_of(), [Prompt("a:1", "hello"), Prompt("a", "hello")]))
    assert first != second


def test_one_shape_is_traced_once():
    split = split_model(decoder())
    options = SamplingOptions(max_new_tokens=3, temperature=1.0, stop_id=1, pad_id=0)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def once(params, batch, key):
        return sample(split.build(params, split.rest), batch, key, samples=2, options=options)

    for step in range(3):
        tokens = np.full((2, 8), step, np.int32)
        batch = PromptBatch(tokens, np.array([3, 8], np.int32), np.full((2, 3), step, np.uint32))
        sampled = once(split.params, batch, key_for(0, "generate", step))
        chex.assert_shape([sampled.tokens, sampled.logps], (2, 2, 3))
        chex.assert_shape(sampled.lengths, (2, 2))
    with pytest.raises(AssertionError):  # control: another bucket is another trace
        once(split.params, batch._replace(tokens=np.zeros((2, 9), np.int32)), KEY)


@pytest.mark.parametrize("wrong", [{"max_new_tokens": 0}, {"temperature": -0.1}, {"temperature": float("nan")}])
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(SamplingOptionError) as caught:
        SamplingOptions(**{"max_new_tokens": 4, "temperature": 1.0, "stop_id": 1, "pad_id": 0, **wrong})
    assert caught.value.code == "ST477"
