"""The decoder: packed forward against plain loops, cached decoding against the packed forward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from steptrace.diag.rollout import DecoderConfigError
from steptrace.run.models import attention, decoder
from steptrace.run.models.decoder import Decoder, DecoderConfig

CONFIG = DecoderConfig(vocab_size=37, dim=32, layers=2, heads=4, max_length=64)


LENGTH = 30


@pytest.fixture(scope="module")
def model():
    return Decoder(CONFIG, seed=3)


GRAPH = nnx.split(Decoder(CONFIG))[0]


def jitted(method, **options):
    """``method(model, ...)`` jitted on the model's split state."""
    run = jax.jit(lambda params, *args, **static: method(nnx.merge(GRAPH, params), *args, **static), **options)
    return lambda model, *args, **static: run(nnx.state(model), *args, **static)


forward = jitted(Decoder.__call__)
prefill = jitted(Decoder.prefill, static_argnames="capacity")
decode = jitted(Decoder.decode)


def draw_tokens(seed, *shape):
    return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, shape).astype(np.int32)


def row_of(*sequences, length=LENGTH):
    """One packed row of the sequences in order: tokens, positions, segment ids, each [1, length]."""
    tokens, positions, segments = (np.zeros((1, length), np.int32) for _ in range(3))
    at = 0
    for number, sequence in enumerate(sequences, start=1):
        span = slice(at, at + len(sequence))
        tokens[0, span], positions[0, span], segments[0, span] = sequence, np.arange(len(sequence)), number
        at += len(sequence)
    return tokens, positions, segments


def alone(model, sequence):
    """Logits [length, vocab] of one sequence in a row of its own."""
    return np.asarray(forward(model, *row_of(sequence)))[0, : len(sequence)]


def numpy_logits(model, sequence):
    """The same forward pass written out in float64 numpy, one token and one head at a time."""
    get = lambda parameter: np.asarray(parameter[...], np.float64)  # noqa: E731
    norm = lambda x, scale: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale  # noqa: E731
    half = CONFIG.head_dim // 2

    def turn(vector, position):
        angle = position * CONFIG.rope_theta ** (-np.arange(half) / half)
        pairs = (vector[:half] + 1j * vector[half:]) * np.exp(1j * angle)
        return np.concatenate([pairs.real, pairs.imag])

    x = get(model.embedding)[sequence]
    for block in model.blocks:
        query, key, value = np.split(norm(x, get(block.attention_norm.scale)) @ get(block.qkv.kernel), 3, axis=-1)
        mixed = np.zeros_like(x)
        for head in range(CONFIG.heads):
            part = slice(head * CONFIG.head_dim, (head + 1) * CONFIG.head_dim)
            keys = [turn(key[j, part], j) for j in range(len(x))]
            for i in range(len(x)):
                scores = np.array([turn(query[i, part], i) @ keys[j] for j in range(i + 1)])
                weights = np.exp(scores / np.sqrt(CONFIG.head_dim))
                mixed[i, part] = weights @ value[: i + 1, part] / weights.sum()
        x = x + mixed @ get(block.out.kernel)
        gate, up = np.split(norm(x, get(block.mlp_norm.scale)) @ get(block.gate_up.kernel), 2, axis=-1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ get(block.down.kernel)
    return norm(x, get(model.final_norm.scale)) @ get(model.head_kernel)


def test_the_forward_pass_equals_one_written_out_in_numpy(model):
    sequence = draw_tokens(0, 9)
    np.testing.assert_allclose(alone(model, sequence), numpy_logits(model, sequence), atol=2e-5)


def test_logits_are_float32_and_the_head_of_the_hidden_states(model):
    inputs = [jnp.asarray(array) for array in row_of(draw_tokens(1, 5), draw_tokens(2, 4), length=12)]
    hidden, logits = model.hidden(*inputs), model(*inputs)
    assert hidden.shape == (1, 12, 32)
    assert logits.shape == (1, 12, 37)
    assert logits.dtype == jnp.float32
    np.testing.assert_array_equal(model.head(hidden), logits)


def test_padding_gives_finite_logits_and_finite_gradients(model):
    inputs = row_of(draw_tokens(1, 5))
    graph, params = nnx.split(model)

    @jax.jit
    def loss(params):
        return jnp.sum(nnx.merge(graph, params)(*inputs)[0, :5] ** 2)

    assert np.isfinite(np.asarray(forward(model, *inputs))).all()
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(jax.grad(loss)(params)))


@pytest.mark.parametrize("before", [0, 1, 7, 16])
@pytest.mark.parametrize("after", [0, 5])
def test_logits_do_not_depend_on_what_a_sequence_is_packed_with(model, before, after):
    sequence = draw_tokens(4, 8)
    packed = row_of(draw_tokens(5, before), sequence, draw_tokens(6, after))
    logits = np.asarray(forward(model, *packed))[0, before : before + 8]
    np.testing.assert_allclose(logits, alone(model, sequence), atol=3e-6)


def test_other_neighbours_of_the_same_lengths_change_no_bit(model):
    sequence = draw_tokens(4, 8)
    rows = [row_of(draw_tokens(seed, 7), sequence, draw_tokens(seed + 1, 5)) for seed in (10, 20)]
    first, second = (np.asarray(forward(model, *row))[0, 7:15] for row in rows)
    np.testing.assert_array_equal(first, second)


def test_control_without_the_segment_mask_neighbours_leak(model, monkeypatch):
    causal_only = lambda segments: attention.packed_mask(jnp.ones_like(segments))  # noqa: E731
    monkeypatch.setattr(decoder, "packed_mask", causal_only)
    sequence = draw_tokens(4, 8)
    packed = map(jnp.asarray, row_of(draw_tokens(5, 7), sequence))
    logits = np.asarray(model(*packed))[0, 7:15]  # not jitted: the compiled forward pass keeps its mask
    assert np.abs(logits - alone(model, sequence)).max() > 0.01


def test_control_with_positions_of_the_row_the_logits_change(model):
    sequence = draw_tokens(4, 8)
    tokens, positions, segments = row_of(sequence)
    stretched = np.asarray(forward(model, tokens, positions * 2, segments))[0, :8]
    assert np.abs(stretched - alone(model, sequence)).max() > 0.01


def test_a_later_token_changes_nothing_before_it(model):
    sequence = draw_tokens(7, 10)
    changed = sequence.copy()
    changed[6] = (changed[6] + 1) % CONFIG.vocab_size
    before, after = alone(model, sequence), alone(model, changed)
    np.testing.assert_array_equal(before[:6], after[:6])
    assert (before[6:] != after[6:]).any()


@pytest.mark.parametrize("bucket", [6, 8, 13])
def test_cached_decoding_equals_the_full_forward(model, bucket):
    prompts, more = [draw_tokens(8, 6), draw_tokens(9, 2)], draw_tokens(10, 2, 5)
    tokens = np.zeros((2, bucket), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    lengths = jnp.array([6, 2])
    logits, cache = prefill(model, jnp.asarray(tokens), lengths, capacity=bucket + 5)
    steps = [logits]
    for t in range(5):
        logits, cache = decode(model, jnp.asarray(more[:, t]), lengths + t, cache, bucket + t)
        steps.append(logits)
    for row, prompt in enumerate(prompts):
        full = alone(model, np.concatenate([prompt, more[row]]))[len(prompt) - 1 :]
        np.testing.assert_allclose(np.stack(steps, axis=1)[row], full, atol=1e-5)


def test_control_decoding_at_a_wrong_position_differs(model):
    prompt, token = draw_tokens(8, 1, 6), jnp.asarray(draw_tokens(9, 1))
    _, cache = prefill(model, jnp.asarray(prompt), jnp.array([6]), capacity=8)
    right, _ = decode(model, token, jnp.array([6]), cache, 6)
    wrong, _ = decode(model, token, jnp.array([9]), cache, 6)
    assert np.abs(right - wrong).max() > 1e-3


def test_a_repeated_cache_keeps_the_samples_of_a_prompt_together(model):
    _, cache = prefill(model, jnp.asarray(draw_tokens(8, 2, 6)), jnp.array([6, 4]), capacity=8)
    repeated = cache.repeat(3)
    np.testing.assert_array_equal(repeated.valid.sum(axis=1), [6, 6, 6, 4, 4, 4])
    np.testing.assert_array_equal(repeated.keys[1][2], cache.keys[1][0])
    np.testing.assert_array_equal(repeated.values[1][3], cache.values[1][1])


def test_the_seed_decides_the_parameters():
    digest = lambda seed: [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(Decoder(CONFIG, seed)))]  # noqa: E731
    for first, second in zip(digest(5), digest(5), strict=True):
        np.testing.assert_array_equal(first, second)
    assert any((first != second).any() for first, second in zip(digest(5), digest(6), strict=True))


def test_the_recipe_size_has_few_parameters():
    leaves = jax.tree.leaves(nnx.state(Decoder(DecoderConfig(vocab_size=100))))
    assert sum(leaf.size for leaf in leaves) == 111_552  # 2*100*64 + 2*(4*64*64 + 3*64*171 + 2*64) + 64
    assert all(leaf.dtype == jnp.float32 for leaf in leaves)


def test_bfloat16_computes_in_bfloat16_and_still_gives_float32_logits():
    model = Decoder(DecoderConfig(vocab_size=37, dim=32, heads=4, dtype="bfloat16"), seed=3)
    inputs = [jnp.asarray(array) for array in row_of(draw_tokens(1, 5), length=5)]
    assert model.hidden(*inputs).dtype == jnp.bfloat16
    assert model(*inputs).dtype == jnp.float32
    np.testing.assert_allclose(model(*inputs)[0], alone(Decoder(CONFIG, seed=3), inputs[0][0]), atol=0.1)


@pytest.mark.parametrize("sizes", [{"heads": 5}, {"dim": 36, "heads": 12}, {"layers": 0}, {"mlp_ratio": 0.0}])
def test_sizes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(DecoderConfigError) as caught:
        DecoderConfig(**{"vocab_size": 8, **sizes})
    assert caught.value.code == "ST470"
