"""The log-prob reference against a float64 loop over tokens, and at its edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steptrace_kernels.logps import dense_logps

ROWS, LENGTH, VOCAB = 3, 9, 11


def oracle(logits, tokens, segments, temperature=1.0):
    """Log-prob and entropy of each token, one at a time, in float64."""
    logp, entropy = np.zeros(tokens.shape), np.zeros(tokens.shape)
    for r in range(tokens.shape[0]):
        for i in range(1, tokens.shape[1]):
            if segments[r, i] == 0 or segments[r, i] != segments[r, i - 1]:
                continue
            scaled = logits[r, i - 1].astype(np.float64) / temperature
            probs = np.exp(scaled - scaled.max())
            probs /= probs.sum()
            with np.errstate(divide="ignore"):
                logp[r, i] = np.log(probs[tokens[r, i]])
            entropy[r, i] = -sum(p * np.log(p) for p in probs if p > 0)
    return logp, entropy


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(ROWS, LENGTH, VOCAB)).astype(np.float32) * 3
    tokens = rng.integers(0, VOCAB, size=(ROWS, LENGTH)).astype(np.int32)
    segments = np.array([[1, 1, 1, 2, 2, 2, 2, 3, 0], [1] * 9, [1, 1, 2, 2, 0, 0, 0, 0, 0]], np.int32)
    return logits, tokens, segments


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
def test_agrees_with_the_loop(case, temperature):
    logp, entropy = oracle(*case, temperature)
    out = dense_logps(*case, temperature=temperature)
    np.testing.assert_allclose(out.logp, logp, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(out.entropy, entropy, rtol=1e-6, atol=1e-6)
    assert out.logp.shape == case[1].shape
    assert out.logp.dtype == out.entropy.dtype == jnp.float32


def test_control_a_shift_that_ignores_segments_disagrees(case):
    logits, tokens, segments = case
    flat = dense_logps(logits, tokens, np.ones_like(segments)).logp
    assert not np.allclose(flat, oracle(*case)[0], atol=1e-3)


def test_first_tokens_and_padding_are_exactly_zero_in_value_and_gradient(case):
    logits, tokens, segments = case
    first = np.ones(tokens.shape, bool)
    first[:, 1:] = (segments[:, 1:] != segments[:, :-1]) | (segments[:, 1:] == 0)
    # What stands before such a token must not matter, not even when it is no number.
    logits = logits.copy()
    logits[:, :-1][first[:, 1:]] = np.nan
    logits[:, -1] = np.nan
    tokens = np.where(first, -100, tokens)
    out = dense_logps(logits, tokens, segments)
    assert np.all(np.asarray(out.logp)[first] == 0)
    assert np.all(np.asarray(out.entropy)[first] == 0)
    np.testing.assert_allclose(
        np.asarray(out.logp), oracle(np.nan_to_num(logits), np.where(first, 0, tokens), segments)[0], atol=1e-6
    )
    grad = jax.grad(lambda x: sum(jnp.sum(part) for part in dense_logps(x, tokens, segments)))(logits)
    assert np.all(np.isfinite(grad))
    unused = np.concatenate([first[:, 1:], np.ones((ROWS, 1), bool)], axis=1)
    assert np.all(np.asarray(grad)[unused] == 0)
    assert np.all(np.any(np.asarray(grad)[~unused] != 0, axis=-1))


def test_gradients_agree_with_the_closed_form(case):
    logits, tokens, segments = case
    rng = np.random.default_rng(1)
    w, v = rng.normal(size=(2, *tokens.shape))
    grad = jax.grad(lambda x: jnp.sum(w * (out := dense_logps(x, tokens, segments)).logp + v * out.entropy))(logits)
    expected = np.zeros(logits.shape)
    for r in range(ROWS):
        for i in range(1, LENGTH):
            if segments[r, i] == 0 or segments[r, i] != segments[r, i - 1]:
                continue
            x = logits[r, i - 1].astype(np.float64)
            p = np.exp(x - x.max())
            p /= p.sum()
            entropy = -np.sum(p * np.log(p))
            expected[r, i - 1] = w[r, i] * (np.eye(VOCAB)[tokens[r, i]] - p) - v[r, i] * p * (np.log(p) + entropy)
    np.testing.assert_allclose(grad, expected, rtol=2e-5, atol=2e-6)


def test_masked_entries_add_nothing():
    logits = np.array([[[0.0, -np.inf, 1.0], [-np.inf] * 3, [0.0, -np.inf, 1.0], [0.0] * 3]], np.float32)
    tokens, segments = np.array([[0, 2, 0, 1]], np.int32), np.ones((1, 4), np.int32)
    out = dense_logps(logits, tokens, segments)
    p = np.exp([0.0, 1.0]) / np.exp([0.0, 1.0]).sum()
    np.testing.assert_allclose(out.logp[0], [0, np.log(p[1]), -np.inf, -np.inf], rtol=1e-6)
    np.testing.assert_allclose(out.entropy[0], [0, -np.sum(p * np.log(p)), 0, -np.sum(p * np.log(p))], rtol=1e-6)
    grad = jax.grad(lambda x: jnp.sum((out := dense_logps(x, tokens, segments)).logp + out.entropy))(logits)
    assert np.all(np.isfinite(grad))
    assert np.all(np.asarray(grad)[0, 1] == 0)
    assert np.all(np.asarray(grad)[0, :, 1] == 0)


def test_large_offsets_cost_no_digits_and_signs_hold():
    rng = np.random.default_rng(2)
    logits = rng.integers(-2048, 2048, size=(2, 64, 32)).astype(np.float32) / 256
    tokens, segments = rng.integers(0, 32, size=(2, 64)).astype(np.int32), np.ones((2, 64), np.int32)
    plain, moved = dense_logps(logits, tokens, segments), dense_logps(logits + 8192, tokens, segments)
    np.testing.assert_array_equal(plain.logp, moved.logp)
    np.testing.assert_array_equal(plain.entropy, moved.entropy)
    peaked = dense_logps(logits * 500, tokens, segments)
    for out in (plain, peaked):
        assert np.all(np.asarray(out.logp) <= 0)
        assert np.all(np.asarray(out.entropy) >= 0)


def test_low_precision_logits_are_brought_up_before_the_division(case):
    logits, tokens, segments = case
    low = jnp.asarray(logits, jnp.bfloat16)
    out = dense_logps(low, tokens, segments, temperature=0.7)
    assert out.logp.dtype == jnp.float32
    np.testing.assert_allclose(
        out.logp, oracle(np.asarray(low, np.float32), tokens, segments, 0.7)[0], rtol=1e-6, atol=1e-6
    )
    control = dense_logps(low / jnp.bfloat16(0.7), tokens, segments)
    assert not np.allclose(control.logp, out.logp, atol=1e-3)


def test_temperature_by_row_and_by_token(case):
    logits, tokens, segments = case
    rows = np.array([0.5, 1.0, 2.0], np.float32)
    out = dense_logps(logits, tokens, segments, temperature=rows)
    for r, temperature in enumerate(rows):
        one = dense_logps(logits[r : r + 1], tokens[r : r + 1], segments[r : r + 1], temperature=float(temperature))
        np.testing.assert_array_equal(out.logp[r], one.logp[0])
    spread = dense_logps(logits, tokens, segments, temperature=np.broadcast_to(rows[:, None], tokens.shape))
    np.testing.assert_array_equal(out.logp, spread.logp)


def test_a_token_out_of_range_is_nan_in_value_and_gradient(case):
    logits, tokens, segments = case
    for wrong in (-1, VOCAB):
        bad = tokens.copy()
        bad[1, 4] = wrong
        out = dense_logps(logits, bad, segments)
        assert np.argwhere(np.isnan(out.logp)).tolist() == [[1, 4]]
        grad = jax.grad(lambda x, bad=bad: jnp.sum(dense_logps(x, bad, segments).logp))(logits)
        assert sorted({tuple(at) for at in np.argwhere(np.isnan(grad))[:, :2].tolist()}) == [(1, 3)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": np.zeros((3, 8), np.int32)}, "tokens must be"),
        ({"segment_ids": np.zeros((2, 9), np.int32)}, "segment_ids must be"),
        ({"logits": np.zeros((3, 9), np.float32)}, "logits must be"),
        ({"tokens": np.zeros((3, 9), np.float32)}, "tokens must be integers"),
        ({"logits": np.zeros((3, 9, 11), np.int32)}, "logits must be floating"),
        ({"temperature": np.ones(4, np.float32)}, "temperature must be"),
        ({"temperature": 0.0}, "temperature must be above 0"),
    ],
)
def test_what_does_not_fit_is_refused_before_compiling(case, change, words):
    arguments = dict(zip(("logits", "tokens", "segment_ids"), case, strict=True)) | change
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(lambda: dense_logps(**arguments))


def test_one_token_and_no_rows():
    assert np.asarray(dense_logps(np.ones((2, 1, 5)), np.ones((2, 1), int), np.ones((2, 1), int)).logp).tolist() == [
        [0],
        [0],
    ]
    assert dense_logps(np.ones((0, 4, 5)), np.ones((0, 4), int), np.ones((0, 4), int)).logp.shape == (0, 4)
