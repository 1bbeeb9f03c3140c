"""The frozen reference: its log-probs, and that nothing moves them."""

import itertools
from dataclasses import replace

import jax
import numpy as np
import pytest
from rollout_parts import Letters, copied, decoder, log_softmax, logits_of, params_of, prompts

from steptrace.diag.rollout import SamplingOptionError
from steptrace.lang.parts import Reference
from steptrace.lang.records import MicroBatch
from steptrace.run.models.split import split_model
from steptrace.run.rng import key_for
from steptrace.run.rollout import FrozenReference, JaxRollout

SEQUENCES = ([[5, 6, 7, 8, 9], [3, 4, 5]], [[9, 8, 7, 6, 5, 4, 3]])


def micro_batch(rows, length=12):
    arrays = {name: np.zeros((len(rows), length), np.int32) for name in ("tokens", "positions", "segment_ids")}
    for row, sequences in enumerate(rows):
        at = 0
        for number, sequence in enumerate(sequences, start=1):
            span = slice(at, at + len(sequence))
            arrays["tokens"][row, span], arrays["segment_ids"][row, span] = sequence, number
            arrays["positions"][row, span] = np.arange(len(sequence))
            at += len(sequence)
    return MicroBatch(step=0, index=0, arrays=arrays, keys=((),) * len(rows))


def by_sequence(logps, rows):
    """The log-probs of each sequence, cut out of the packed rows."""
    cut = []
    for row, sequences in enumerate(rows):
        at = 0
        for sequence in sequences:
            cut.append(np.asarray(logps)[row, at : at + len(sequence)])
            at += len(sequence)
    return cut


def expected_logps(sequence, temperature=1.0):
    scaled = log_softmax(logits_of(decoder(), sequence)[:-1] / temperature)
    return np.concatenate([[0.0], scaled[np.arange(len(sequence) - 1), sequence[1:]]])


def test_it_is_a_reference_and_returns_a_device_array():
    reference = FrozenReference(decoder())
    assert isinstance(reference, Reference)
    assert isinstance(reference.logps(micro_batch(SEQUENCES)), jax.Array)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logps_belong_to_their_tokens_and_are_zero_at_starts_and_padding(temperature):
    logps = np.asarray(FrozenReference(decoder(), temperature=temperature).logps(micro_batch(SEQUENCES)))
    for found, sequence in zip(by_sequence(logps, SEQUENCES), itertools.chain(*SEQUENCES), strict=True):
        np.testing.assert_allclose(found, expected_logps(sequence, temperature), atol=1e-5)
    assert logps.dtype == np.float32
    assert (logps[0, 8:] == 0).all()
    assert (logps[1, 7:] == 0).all()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_its_logps_of_completions_equal_the_rollouts_under_the_same_weights(temperature):
    rollout = JaxRollout(decoder(), Letters(), buckets=(8,), max_new_tokens=6, temperature=temperature, batch_size=2)
    rollout.apply_weights(params_of(decoder()), 0)
    asked = prompts("reverse", "of")
    groups = rollout.generate(asked, 2, version=0, key=key_for(0, "generate", 0))
    starts = [Letters().encode(prompt.text) for prompt in asked]
    rows = [[[*start, *one.tokens] for one in group] for start, group in zip(starts, groups, strict=True)]
    logps = FrozenReference(decoder(), temperature=temperature).logps(micro_batch(rows, length=32))
    completions = [(start, one) for start, group in zip(starts, groups, strict=True) for one in group]
    for found, (start, one) in zip(by_sequence(logps, rows), completions, strict=True):
        np.testing.assert_allclose(found[len(start) :], one.logps, atol=1e-5)


def test_another_packing_of_the_same_sequences_gives_the_same_logps():
    reference = FrozenReference(decoder())
    other = ([SEQUENCES[0][1], SEQUENCES[1][0]], [SEQUENCES[0][0]])
    first, last, longest = by_sequence(reference.logps(micro_batch(SEQUENCES)), SEQUENCES)
    again_last, again_longest, again_first = by_sequence(reference.logps(micro_batch(other)), other)
    pairs = ((first, again_first), (last, again_last), (longest, again_longest))
    for left, right in pairs:
        np.testing.assert_allclose(left, right, atol=3e-6)


def test_it_outlives_a_trainer_that_donates_the_parameters_it_was_made_with():
    split = split_model(decoder())
    split = replace(split, params=copied(split.params))
    reference = FrozenReference(split)
    before = np.array(reference.logps(micro_batch(SEQUENCES)))
    jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0, tree), donate_argnums=0)(split.params)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(split.params))
    np.testing.assert_array_equal(reference.logps(micro_batch(SEQUENCES)), before)


def test_control_other_parameters_give_other_logps():
    first, second = (FrozenReference(decoder(seed=seed)).logps(micro_batch(SEQUENCES)) for seed in (0, 1))
    assert np.abs(np.asarray(first) - np.asarray(second)).max() > 0.1


def test_micro_batches_of_one_shape_compile_once():
    reference = FrozenReference(decoder())
    for _ in range(3):
        reference.logps(micro_batch(SEQUENCES))
    assert reference.info()["compiles"] == {"logps": 1}
    reference.logps(micro_batch(SEQUENCES, length=13))
    assert reference.info()["compiles"] == {"logps": 2}


def test_an_own_logps_function_takes_the_place_of_the_dense_one():
    class Result:
        def __init__(self, logp):
            self.logp = logp

    def marked(logits, tokens, segment_ids, *, temperature):
        return Result(tokens * temperature + 0 * logits[..., 0] + 0 * segment_ids)

    found = FrozenReference(decoder(), temperature=2.0, logps_fn=marked).logps(micro_batch(SEQUENCES))
    np.testing.assert_array_equal(found, 2.0 * micro_batch(SEQUENCES).arrays["tokens"])


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_without_log_probs_is_refused(temperature):
    with pytest.raises(SamplingOptionError):
        FrozenReference(decoder(), temperature=temperature)


def test_arrays_of_different_shapes_are_refused():
    batch = micro_batch(SEQUENCES).with_array("positions", np.zeros((2, 11), np.int32))
    with pytest.raises(AssertionError):
        FrozenReference(decoder()).logps(batch)
