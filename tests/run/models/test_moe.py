"""The decoder of experts: against plain loops, and its two modes against one another."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from steptrace.diag.rollout import DecoderConfigError
from steptrace.run.models.moe import MoeConfig, MoeDecoder
from steptrace.run.models.moe_experts import Experts
from steptrace.run.models.split import split_model

ROWS, LENGTH, VOCAB = 3, 20, 23


def config_of(factor, experts=4, top_k=2, **other):
    sizes = {"vocab_size": VOCAB, "dim": 16, "layers": 2, "heads": 2, "max_length": 32} | other
    return MoeConfig(**sizes, experts=experts, top_k=top_k, capacity_factor=factor)


def rows_of(seed, filled=LENGTH, one_token=False):
    """Tokens, positions and segment ids of packed rows, two sequences to a row, with padding behind them."""
    tokens = np.random.default_rng(seed).integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    if one_token:
        tokens[...] = 5
    segments = np.zeros((ROWS, LENGTH), np.int32)
    segments[:, :filled], segments[:, : filled // 2] = 2, 1
    places = np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1))
    return tokens, places - np.where(segments == 2, filled // 2, 0).astype(np.int32), segments


def numpy_experts(module, x, real, dropless):
    """Token by token in float64: its output, and which (token, choice) found no slot."""
    config = module.config
    scores = x @ np.asarray(module.router.kernel[...], np.float64)
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, : config.top_k]
    picked = np.take_along_axis(scores, chosen, axis=1)
    gates = np.exp(picked - picked.max(axis=1, keepdims=True))
    gates /= gates.sum(axis=1, keepdims=True)
    taken, lost, out = Counter(), set(), np.zeros_like(x)
    up, down = (np.asarray(p[...], np.float64) for p in (module.gate_up, module.down))
    for choice in range(config.top_k):
        for token in np.flatnonzero(real):
            expert = int(chosen[token, choice])
            taken[expert] += 1
            if taken[expert] > config.capacity(len(x)):
                lost.add((int(token), choice))
                if not dropless:
                    continue
            gate, value = np.split(x[token] @ up[expert], 2)
            out[token] += gates[token, choice] * ((gate / (1 + np.exp(-gate)) * value) @ down[expert])
    return out, lost


@pytest.mark.parametrize(
    ("experts", "top_k", "factor"), [(4, 2, 1.0), (4, 2, 2.0), (5, 3, 0.6), (3, 1, 0.2), (2, 2, 1)]
)
def test_experts_are_those_of_plain_loops(experts, top_k, factor):
    module = Experts(config_of(factor, experts, top_k), nnx.Rngs(0))
    rng = np.random.default_rng(experts)
    x, real = rng.normal(size=(30, 16)).astype(np.float32), rng.random(30) < 0.8
    for dropless in (False, True):
        out, overflow = module(jnp.asarray(x), jnp.asarray(real), dropless=dropless)
        wanted, lost = numpy_experts(module, x.astype(np.float64), real, dropless)
        np.testing.assert_allclose(out, wanted, atol=1e-5)
        assert bool(overflow) == bool(lost)
        assert not np.any(np.asarray(out)[~real])


def test_control_what_was_dropped_shows():
    module = Experts(config_of(0.6), nnx.Rngs(0))
    x, real = np.random.default_rng(1).normal(size=(30, 16)), np.ones(30, bool)
    (finite, lost), (whole, _) = (numpy_experts(module, x, real, dropless) for dropless in (False, True))
    assert lost
    assert {token for token, _ in lost} == set(np.flatnonzero(np.abs(finite - whole).max(axis=1) > 1e-9))


def test_the_overflow_begins_with_the_first_token_too_many():
    module = Experts(config_of(1.0, experts=4, top_k=1), nnx.Rngs(0))
    x = jnp.ones((40, 16))  # all choose the same expert, and that has 10 slots
    for real, overflows in ((10, False), (11, True)):
        assert bool(module(x, jnp.arange(40) < real, dropless=False)[1]) is overflows


class Measured:
    """Loss, gradients and flag of a split model in both modes, each one program."""

    def __init__(self, config):
        self.split = split_model(MoeDecoder(config, seed=2))
        both = jax.value_and_grad(self._loss, has_aux=True)
        self._jitted = jax.jit(both, static_argnums=2)

    def _loss(self, params, rows, dropless):
        model = self.split.build(params, self.split.rest)
        model = model.as_dropless() if dropless else model.watched()
        logp = jax.nn.log_softmax(model(*rows))
        picked = jnp.take_along_axis(logp, jnp.roll(rows[0], -1, axis=1)[..., None], axis=-1)[..., 0]
        return jnp.sum(jnp.where(rows[2] > 0, picked, 0)), None if dropless else model.overflowed()

    def __call__(self, rows, dropless):
        (loss, flag), grads = self._jitted(self.split.params, rows, dropless)
        return [np.asarray(leaf) for leaf in (loss, *jax.tree.leaves(grads))], flag


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1.4, 4, 2), (1.6, 8, 3), (1.9, 4, 1)])
def test_both_modes_agree_bit_for_bit_where_nothing_overflows_and_only_there(sizes):
    measured, agreed = Measured(config_of(*sizes)), []
    assert measured.split.rest == {}
    for seed in range(8):
        rows = rows_of(seed, filled=(LENGTH, 10)[seed % 2], one_token=seed == 7)
        finite, overflow = measured(rows, False)
        whole, _ = measured(rows, True)
        assert same(finite, whole) is not bool(overflow)
        agreed.append(not overflow)
    assert {True, False} <= set(agreed)


def test_watching_leaves_no_state_behind():
    split = split_model(MoeDecoder(config_of(0.5, layers=1)))

    def called(params, rows):
        model = split.build(params, split.rest)
        watched = model.watched()
        watched(*rows)
        assert not hasattr(model, "overflow")
        assert split.collect(watched) == {}
        return watched.overflowed()

    assert bool(jax.jit(called)(split.params, rows_of(0)))


@pytest.mark.slow
def test_sampling_never_drops():
    split = split_model(MoeDecoder(config_of(0.5, layers=1), seed=4))
    tokens = np.full((1, 8), 5, np.int32)
    rows = (tokens, np.arange(8, dtype=np.int32)[None], np.ones((1, 8), np.int32))

    def logits_of(params):
        model = split.build(params, split.rest)
        prefilled, cache = model.prefill(tokens[:, :7], np.array([7], np.int32), capacity=8)
        decoded, _ = model.decode(tokens[:, 7], np.array([7], np.int32), cache, jnp.int32(7))
        return model(*rows)[0], model.as_dropless()(*rows)[0], prefilled[0], decoded[0]

    packed, whole, prefilled, decoded = map(np.asarray, jax.jit(logits_of)(split.params))
    assert np.abs(packed - whole).max() > 1e-3  # packed rows do drop here
    np.testing.assert_allclose(prefilled, whole[6], atol=1e-5)
    np.testing.assert_allclose(decoded, whole[7], atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"top_k": 5}, "top_k is 5"),
        ({"top_k": 0}, "top_k is 0"),
        ({"factor": 0.0}, "capacity_factor is 0.0"),
        ({"factor": float("inf")}, "must be above 0 and finite"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(wrong, message):
    with pytest.raises(DecoderConfigError, match=message):
        config_of(**{"factor": 1.0} | wrong)


def test_the_buffer_holds_what_the_factor_says():
    config = config_of(1.25)
    assert (config.capacity(64), config.rounds(64)) == (40, 2)
    assert (config_of(9.0).capacity(64), config_of(9.0).rounds(64)) == (64, 1)
    assert (config_of(1e-6).capacity(64), config_of(1e-6).rounds(64)) == (1, 64)
