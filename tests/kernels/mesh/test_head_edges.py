"""Edges of the log-prob head: each a mistake that other implementations made, tried on one compiled call.

The call has everything: packed rows, needed tokens, a temperature for each, a soft cap, and sizes that do not divide
over the mesh. Its arrays change from test to test, not their shapes.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from logps_oracle import assert_same, by_kernel, make, oracle, valid

from steptrace_kernels.logps import Layout, Strategy

LAYOUT = Layout(batch=("f",), sequence=("c",), table_embed=("f", "e"))
ROWS, LENGTH, VOCAB = 3, 6, 11
PACKED = np.array([[1, 1, 2, 2, 2, 3], [1, 2, 2, 2, 3, 3], [0, 0, 1, 1, 1, 1]], np.int32)
RESULTS = ("logp", "entropy", "lse")


def full(**more):
    """A case with every array there is, so that all tests share what was compiled."""
    ones = np.ones((ROWS, LENGTH))
    more = {"segment_ids": ones.astype(np.int32), "needed": ones > 0, "temperature": ones.astype(np.float32)} | more
    return make(ROWS, LENGTH, 4, VOCAB, bias=True, norm=True, soft_cap=30.0, **more)


@pytest.fixture(scope="module")
def call():
    return by_kernel(LAYOUT, strategy=Strategy(("c", "e"), chunk_tokens=4))


def test_packed_sequences_do_not_see_each_other(call):
    case = full(segment_ids=PACKED)
    found = call(case)
    assert_same(found, oracle(case))
    first = ~valid(case)
    assert all(np.all(found[name][first] == 0) for name in RESULTS)
    unused = np.ones((ROWS, LENGTH), bool)
    unused[:, :-1] = first[:, 1:]
    assert np.all(found["d_hidden"][unused] == 0)
    assert np.all(np.any(found["d_hidden"][~unused] != 0, axis=-1))


def test_control_one_segment_gives_their_first_tokens_a_log_prob(call):
    whole = call(full())["logp"]
    assert np.all(whole[:, 1:] < 0)
    assert np.all(whole[:, 0] == 0)


def test_a_log_prob_belongs_to_its_token_wherever_the_pack_is_cut(call):
    case = full(segment_ids=PACKED)
    packed = call(case)["logp"]
    for row, start, stop in ((0, 2, 5), (1, 1, 4), (2, 2, 6)):
        alone = case.but(
            hidden=np.roll(case.hidden, -start, axis=1),
            tokens=np.roll(case.tokens, -start, axis=1),
            segment_ids=np.where(np.arange(LENGTH) < stop - start, 7, 0) * np.ones_like(PACKED),
        )
        np.testing.assert_allclose(call(alone)["logp"][row, : stop - start], packed[row, start:stop], atol=1e-6)


def test_a_token_for_each_position_comes_from_the_position_before_it(call):
    tokens = np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH).astype(np.int32) % VOCAB
    case = full().but(tokens=tokens)
    assert_same(call(case), oracle(case))


def test_what_is_not_needed_is_zero_whatever_stands_there(call):
    needed = np.random.default_rng(3).random((ROWS, LENGTH)) < 0.5
    case = full(needed=needed, segment_ids=PACKED)
    expected, ok = oracle(case), valid(case)
    hidden, tokens, warm = case.hidden.copy(), case.tokens.copy(), case.temperature.copy()
    sources = np.zeros((ROWS, LENGTH), bool)
    sources[:, :-1] = ok[:, 1:]
    hidden[~sources] = np.nan
    tokens[~ok] = -100
    warm[~ok] = np.nan
    assert_same(call(case.but(hidden=hidden, tokens=tokens, temperature=warm)), expected)


@pytest.mark.parametrize("ignored", [-1, -100, VOCAB, np.iinfo(np.int32).max])
def test_an_ignored_target_is_no_index(call, ignored):
    case = full(needed=np.arange(LENGTH) % 2 * np.ones((ROWS, 1)) > 0)
    expected = oracle(case)
    assert_same(call(case.but(tokens=np.where(case.needed, case.tokens, ignored).astype(np.int32))), expected)


@pytest.mark.parametrize("wrong", [-1, -100, VOCAB])
def test_a_token_out_of_range_is_nan_there_and_nowhere_else(call, wrong):
    case = full()
    tokens = case.tokens.copy()
    tokens[1, 3] = wrong
    found, right = call(case.but(tokens=tokens)), call(case)
    assert np.argwhere(np.isnan(found["logp"])).tolist() == [[1, 3]]
    np.testing.assert_array_equal(found["entropy"], right["entropy"])
    rows = np.isnan(found["d_hidden"]).any(axis=-1)
    assert np.argwhere(rows).tolist() == [[1, 2]]
    np.testing.assert_array_equal(found["d_hidden"][~rows], right["d_hidden"][~rows])
    assert np.isnan(found["d_weight"]).all()


def test_nothing_needed_is_zero_in_value_and_gradient(call):
    found = call(full(needed=np.zeros((ROWS, LENGTH), bool)))
    assert all(np.all(x == 0) for x in found.values())


def test_padding_adds_nothing_to_a_mean_over_valid_tokens(call):
    case = full(segment_ids=np.where(np.arange(LENGTH) < 3, 1, 0) * np.ones((ROWS, 1), np.int32))
    found, ok = call(case), valid(case)
    assert np.all(found["entropy"][~ok] == 0)
    assert found["entropy"].sum() / ok.sum() == pytest.approx(oracle(case)["entropy"][ok].mean(), rel=1e-6)


def test_masked_entries_add_nothing_and_stay_masked_under_the_cap(call):
    case = full()
    bias = case.bias.copy()
    bias[[2, 5]] = -np.inf
    case = case.but(bias=bias, tokens=np.where(np.isin(case.tokens, [2, 5]), 0, case.tokens))
    found = call(case)
    assert_same(found, oracle(case))
    assert np.all(found["d_weight"][[2, 5]] == 0)


def test_a_masked_token_is_minus_infinity_without_a_gradient(call):
    case = full()
    bias, tokens = case.bias.copy(), np.where(case.tokens == 4, 0, case.tokens)
    bias[4] = -np.inf
    by = np.array(case.by)
    by[0, 2, 2] = 0
    # As if nothing pulled at its log-prob; at entropy and lse of its distribution something does.
    want = oracle(case.but(bias=bias, tokens=tokens, by=by))
    tokens = tokens.copy()
    tokens[2, 2] = 4
    found = call(case.but(bias=bias, tokens=tokens))
    assert np.argwhere(np.isneginf(found["logp"])).tolist() == [[2, 2]]
    del found["logp"], want["logp"]
    assert_same(found, want)


def test_where_all_entries_are_masked_the_entropy_is_zero(call):
    case = full()
    found = call(case.but(bias=np.full_like(case.bias, -np.inf)))
    assert np.isneginf(found["logp"][:, 1:]).all()
    assert np.isneginf(found["lse"][:, 1:]).all()
    assert all(np.all(found[name] == 0) for name in ("entropy", "d_hidden", "d_weight", "d_bias", "d_scale"))


def test_a_soft_cap_bounds_large_logits(call):
    case = full()
    case = case.but(weight=case.weight * 60)
    assert_same(call(case), oracle(case))
    uncapped = oracle(case.but(soft_cap=None))
    assert np.max(np.abs(uncapped["logp"] - oracle(case)["logp"])) > 10


def test_temperature_by_token_and_by_row(call):
    rows = np.array([0.6, 1.0, 2.0], np.float32)[:, None] * np.ones((1, LENGTH), np.float32)
    for warm in (rows, np.random.default_rng(1).uniform(0.5, 2, (ROWS, LENGTH)).astype(np.float32)):
        case = full(temperature=warm)
        assert_same(call(case), oracle(case))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
def test_a_traced_temperature_that_is_none_is_nan(call, bad):
    warm = np.ones((ROWS, LENGTH), np.float32)
    warm[0, 4] = bad
    assert np.argwhere(np.isnan(call(full(temperature=warm))["logp"])).tolist() == [[0, 4]]


def test_a_hidden_state_that_is_no_number_poisons_only_its_own_gradient(call):
    case = full()
    hidden = case.hidden.copy()
    hidden[1, 2] = np.nan
    found = call(case.but(hidden=hidden))
    assert np.argwhere(np.isnan(found["d_hidden"]).any(axis=-1)).tolist() == [[1, 2]]
    assert np.argwhere(np.isnan(found["logp"])).tolist() == [[1, 3]]


@pytest.mark.slow
def test_a_common_offset_costs_no_digits_and_signs_hold(call):
    case = full().but(scale=np.ones(4, np.float32))
    case = case.but(bias=(np.arange(VOCAB) / 8).astype(np.float32), soft_cap=1e9)
    moved = case.but(bias=case.bias + np.float32(1024))
    found, shifted = call(case), call(moved)
    np.testing.assert_allclose(found["entropy"], shifted["entropy"], atol=3e-4)
    for out in (found, shifted, call(case.but(weight=case.weight * 1000))):
        assert np.all(out["logp"] <= 0)
        assert np.all(out["entropy"] >= 0)


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [3, 1])
def test_a_device_may_have_no_entry_at_all(vocab):
    case = make(2, 4, 4, vocab, bias=True)
    assert_same(by_kernel(LAYOUT, strategy=Strategy(("f", "c"), chunk_tokens=2))(case), oracle(case))


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (2, 2), (5, 3)])
def test_fewer_tokens_than_devices(rows, length):
    case = make(rows, length, 4, 6)
    layout = Layout(batch=("f",), sequence=("c", "e"), table_embed=("f",))
    assert_same(by_kernel(layout, strategy=Strategy(("e",)))(case), oracle(case))


@pytest.mark.slow
def test_low_precision_is_accumulated_in_float32_and_the_log_prob_is_never_above_zero():
    case = make(4, 32, 8, 24)
    low = case.but(hidden=jnp.asarray(case.hidden, jnp.bfloat16), weight=jnp.asarray(case.weight * 4, jnp.bfloat16))
    exact = oracle(low.but(hidden=np.asarray(low.hidden, np.float64), weight=np.asarray(low.weight, np.float64)))
    found = by_kernel(LAYOUT, strategy=Strategy(("e",), chunk_tokens=2))(low)
    np.testing.assert_allclose(found["logp"], exact["logp"], atol=2e-5)
    assert np.all(found["logp"] <= 0)
    assert_same(
        {name: found[name] for name in ("d_weight", "d_hidden")},
        {name: exact[name] for name in ("d_weight", "d_hidden")},
        tolerance=1e-2,
    )
