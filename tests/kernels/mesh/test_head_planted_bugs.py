"""Mistakes put into the kernel on purpose: the comparison with the oracle must catch each, and nothing without them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from logps_oracle import assert_same, by_kernel, make, oracle

from steptrace_kernels.logps import Layout, Strategy, backward, blocks, forward, shifts, tile

pytestmark = pytest.mark.slow

LAYOUT = Layout(batch=("f",), sequence=("c",), table_embed=("f",))
SPLIT = Strategy(("e",), chunk_tokens=2)


@pytest.fixture(autouse=True)
def _compiled_anew():
    """What was compiled with a mistake in it must not serve those who come after."""
    jax.clear_caches()
    yield
    jax.clear_caches()


def found_and_expected(strategy=SPLIT, **more):
    case = make(2, 4, 4, 7, bias=True, **more)
    return by_kernel(LAYOUT, strategy=strategy)(case), oracle(case)


def assert_caught(names, strategy=SPLIT, **more):
    """Of the results, only ``names`` may be wrong, and all of them are."""
    found, expected = found_and_expected(strategy, **more)
    for name, want in expected.items():
        if name in names:
            with pytest.raises(AssertionError):
                assert_same({name: found[name]}, {name: want})
        else:
            assert_same({name: found[name]}, {name: want})


def test_control_nothing_is_caught_without_a_mistake():
    assert_same(*found_and_expected())


def test_planted_shift_dropped_at_a_shard_edge(monkeypatch):
    monkeypatch.setattr(shifts, "_from_neighbour", lambda edge, axes, step: jnp.zeros_like(edge))
    found, expected = found_and_expected()
    # The first token of the second shard has lost its log-prob, and the others have not.
    assert np.all(found["logp"][:, 2] == 0)
    assert np.all(expected["logp"][:, 2] < 0)
    np.testing.assert_allclose(found["logp"][:, [1, 3]], expected["logp"][:, [1, 3]], atol=1e-5)


def test_planted_roll_of_each_shard(monkeypatch):
    monkeypatch.setattr(shifts, "_from_neighbour", lambda edge, axes, step: edge)
    with pytest.raises(AssertionError):
        assert_same(*found_and_expected())


def test_planted_sum_over_an_idle_axis(monkeypatch):
    home = backward.returned

    def twice(setting, *gradients):
        return jax.tree.map(lambda x: lax.psum(x, "e"), home(setting, *gradients))

    monkeypatch.setattr(backward, "returned", twice)
    assert_caught({"d_weight", "d_bias"}, Strategy(chunk_tokens=2))


def test_planted_padding_lanes_unmasked(monkeypatch):
    ids = blocks.lane_ids

    def unmasked(route, block):
        return jnp.where(ids(route, block) == tile.PADDING, 10**6, ids(route, block))

    monkeypatch.setattr(blocks, "lane_ids", unmasked)
    monkeypatch.setattr(backward, "lane_ids", unmasked)
    assert_caught({"logp", "entropy", "lse", "d_hidden", "d_weight", "d_bias"})


def test_planted_mask_before_soft_cap(monkeypatch):
    right = tile.logits

    def wrong(x, slab, temperature, formula):
        z, slope = right(x, slab, temperature, formula)
        return jnp.where(jnp.isneginf(z), -formula.soft_cap, z), slope

    monkeypatch.setattr(tile, "logits", wrong)
    assert_caught({"logp", "entropy", "lse", "d_hidden", "d_weight", "d_bias"}, soft_cap=2.0)


def test_planted_entropy_without_gradient(monkeypatch):
    right = tile.pull

    def wrong(soft, target, vocab, d_logp, d_entropy, d_lse):
        return right(soft, target, vocab, d_logp, jnp.zeros_like(d_entropy), d_lse)

    monkeypatch.setattr(tile, "pull", wrong)
    assert_caught({"d_hidden", "d_weight", "d_bias"})


def test_planted_half_of_the_vocabulary_not_merged(monkeypatch):
    monkeypatch.setattr(
        forward, "merge_from_group", lambda setting, seen: tile.merge(jax.tree.map(lambda x: x[:1], seen))
    )
    with pytest.raises(AssertionError):
        assert_same(*found_and_expected())


def test_planted_accumulation_in_bfloat16_grows_with_the_number_of_chunks(monkeypatch):
    case = make(2, 64, 4, 6)
    low = case.but(hidden=jnp.asarray(case.hidden, jnp.bfloat16), weight=jnp.asarray(case.weight, jnp.bfloat16))
    exact = oracle(low.but(hidden=np.asarray(low.hidden, np.float64), weight=np.asarray(low.weight, np.float64)))

    def error(chunk):
        found = by_kernel(LAYOUT, strategy=Strategy(("e",), chunk_tokens=chunk))(low)["d_weight"]
        return np.linalg.norm(found - exact["d_weight"]) / np.linalg.norm(exact["d_weight"])

    few, many = error(16), error(1)
    assert max(few, many) < 4e-3
    assert many < 1.3 * few
    right = backward.absorb

    def wrong(*arguments):
        tokens_side, slab_side = right(*arguments)
        return tokens_side, jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(x.dtype), slab_side)

    monkeypatch.setattr(backward, "absorb", wrong)
    jax.clear_caches()
    assert error(1) > 2 * many
