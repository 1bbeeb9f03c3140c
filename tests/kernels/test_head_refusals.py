"""What the log-prob head refuses, each before anything is compiled; and when it falls back, in words."""

import logging
import re
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from steptrace_kernels.logps import (
    CannotRunError,
    Head,
    Layout,
    LogpsError,
    Reason,
    RMSNorm,
    Strategy,
    dense_logps,
    fallback,
    fused_token_loss,
    logps,
)

ROWS, LENGTH, FEATURES, VOCAB = 2, 5, 4, 7


def arguments(**changes):
    rng = np.random.default_rng(0)
    given = {
        "hidden": rng.normal(size=(ROWS, LENGTH, FEATURES)).astype(np.float32),
        "tokens": rng.integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32),
        "head": Head(rng.normal(size=(VOCAB, FEATURES)).astype(np.float32)),
        "mesh": jax.make_mesh((1, 1), ("a", "b")),
        "layout": Layout(batch=("a",)),
    }
    return given | changes


def table(*shape, **more):
    return Head(np.zeros(shape, np.float32), **more)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": np.zeros((ROWS, LENGTH - 2), np.int32)}, r"tokens must be \[rows, length\] = \(2, 5\)"),
        ({"hidden": np.zeros((ROWS, FEATURES), np.float32)}, r"hidden must be \[rows, length, features\]"),
        ({"tokens": np.zeros((ROWS, LENGTH), np.float32)}, "tokens must be integers"),
        ({"hidden": np.zeros((ROWS, LENGTH, FEATURES), np.int32)}, "hidden must be one of"),
        ({"hidden": jnp.zeros((ROWS, LENGTH, FEATURES), jnp.float8_e4m3fn)}, "hidden must be one of"),
        ({"head": table(FEATURES, VOCAB)}, "is its orientation the other one"),
        ({"head": table(VOCAB, FEATURES + 1)}, "the table has 7 entries of 5 features, hidden has 4"),
        ({"head": table(VOCAB, FEATURES, orientation="hv")}, "orientation must be"),
        ({"head": table(VOCAB, FEATURES, bias=np.zeros(3, np.float32))}, r"bias must be \[7\], not \[3\]"),
        ({"head": table(VOCAB, FEATURES, norm=RMSNorm(np.zeros(3, np.float32)))}, "norm's scale must be"),
        ({"segment_ids": np.zeros((ROWS, 3), np.int32)}, "segment_ids must be"),
        ({"segment_ids": np.zeros((ROWS, LENGTH), np.float32)}, "segment_ids must be integers"),
        ({"needed": np.zeros((ROWS, LENGTH), np.int32)}, "needed must be bool"),
        ({"temperature": 0.0}, "temperature must be a number above 0"),
        ({"temperature": float("nan")}, "temperature must be a number above 0"),
        ({"temperature": np.ones((LENGTH,), np.float32)}, "temperature must be a scalar"),
        ({"soft_cap": 0.0}, "soft_cap must be a number above 0"),
        ({"soft_cap": -30.0}, "soft_cap must be a number above 0"),
        ({"logit_scale": float("inf")}, "logit_scale must be a number above 0"),
        ({"chunk_tokens": 0}, "chunk_tokens must be a whole number, at least 1"),
        ({"chunk_tokens": -4}, "chunk_tokens must be a whole number"),
        ({"strategy": Strategy(vocab_blocks=0)}, "vocab_blocks must be a whole number"),
        ({"strategy": Strategy(vocab_axes=("z",))}, "the mesh has no axis 'z', it has a, b"),
        ({"strategy": Strategy(vocab_axes=("a", "a"))}, "the axis 'a' is named twice"),
        ({"strategy": "fast"}, "strategy must be 'auto' or a Strategy"),
        ({"layout": Layout(batch=("a",), sequence=("a",))}, "batch and sequence: the axis 'a' is named twice"),
        ({"layout": Layout(table_vocab=("b",), table_embed=("b",))}, "table_vocab and table_embed"),
        ({"mode": "warn"}, "mode must be"),
        ({"compute_dtype": jnp.int8}, "compute_dtype must be one of"),
        ({"compute_dtype": "short"}, "compute_dtype must be one of"),
        ({"hidden_sums": jnp.int8}, "hidden_sums must be one of bfloat16, float16, float32, float64, not int8"),
        ({"hidden_sums": "int8"}, "hidden_sums must be one of"),
        ({"head": np.zeros((VOCAB, FEATURES), np.float32)}, "head must be a Head, not"),
        ({"head": table(VOCAB, FEATURES, norm=np.ones(FEATURES, np.float32))}, "norm must be an RMSNorm or None, not"),
        ({"hidden": np.zeros((ROWS, LENGTH, 0), np.float32), "head": table(VOCAB, 0)}, "7 entries of 0 features"),
        ({"layout": Layout(batch="a")}, r"batch must be a tuple of names of mesh axes, as \('data',\), not 'a'"),
        ({"layout": Layout(sequence=["a"])}, "sequence must be a tuple of names"),
        ({"layout": Layout(table_embed=None)}, "table_embed must be a tuple of names"),
        ({"layout": ("a", "b")}, "layout must be a Layout, not tuple"),
        ({"strategy": Strategy("b")}, "vocab_axes must be a tuple of names"),
        ({"mesh": {"a": 1, "b": 1}}, "mesh must be a Mesh or an AbstractMesh, not dict"),
    ],
)
@pytest.mark.parametrize("entry", [logps, fused_token_loss(lambda logp, entropy: logp)], ids=["logps", "fused"])
def test_refused(entry, changes, words):
    with pytest.raises(LogpsError, match=words):
        jax.eval_shape(lambda: entry(**arguments(**changes)))


def test_control_what_fits_is_not_refused():
    shapes = jax.eval_shape(lambda: logps(**arguments(), return_lse=True))
    assert [x.shape for x in shapes] == [(ROWS, LENGTH)] * 3
    assert logps(**arguments(), return_entropy=False).entropy is None


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_no_tokens_at_all(shape):
    empty = {"hidden": np.zeros((*shape, FEATURES), np.float32), "tokens": np.zeros(shape, np.int32)}
    assert logps(**arguments(**empty)).logp.shape == shape


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"mesh": None}, Reason.NO_MESH), ({"layout": None}, Reason.NO_LAYOUT)],
)
def test_the_reason_is_an_error_or_one_line_in_the_log(caplog, changes, reason):
    with pytest.raises(CannotRunError) as caught:
        logps(**arguments(**changes))
    assert caught.value.fallback.reason is reason
    fallback._tell.cache_clear()
    given = arguments(**changes)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            jax.eval_shape(lambda: logps(**given, mode="fallback"))
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [reason.value]


@pytest.mark.slow
def test_what_it_falls_back_to_gives_the_same():
    given = arguments(mesh=None)
    out = logps(**given, mode="fallback", chunk_tokens=2)
    want = dense_logps(given["hidden"] @ given["head"].weight.T, given["tokens"], np.ones((ROWS, LENGTH), int))
    np.testing.assert_allclose(out.logp, want.logp, atol=2e-6)
    np.testing.assert_allclose(out.entropy, want.entropy, atol=2e-6)


def test_a_masked_token_has_no_gradient_in_what_it_falls_back_to():
    given = arguments(mesh=None, layout=None)
    tokens, weight = np.array(given["tokens"]), given["head"].weight
    tokens[tokens == 3] = 0
    tokens[0, 2] = 3
    bias = np.where(np.arange(VOCAB) == 3, -np.inf, 0).astype(np.float32)

    def total(hidden, bias):
        logp = logps(hidden, tokens, Head(weight, bias), mode="fallback").logp
        return jnp.sum(logp), logp

    (d_hidden, d_bias), logp = jax.grad(total, argnums=(0, 1), has_aux=True)(given["hidden"], bias)
    assert np.isneginf(logp[0, 2])
    assert np.all(np.asarray(d_hidden)[0, 1] == 0)
    assert np.all(np.asarray(d_hidden)[0, 2] != 0)
    assert np.isfinite(d_bias).all()


def test_what_stands_in_aux_where_there_is_no_log_prob_does_not_matter_to_what_it_falls_back_to():
    given = arguments(mesh=None, layout=None)
    tokens, head = given["tokens"], given["head"]
    fused = fused_token_loss(lambda logp, entropy, odds: logp * jnp.log(odds))

    def total(hidden, odds):
        return fused(hidden, tokens, head, odds, mode="fallback")[0]

    odds = np.full((ROWS, LENGTH), 0.5, np.float32)
    odds[:, 0] = 0
    d_hidden, d_odds = jax.grad(total, argnums=(0, 1))(given["hidden"], odds)
    assert np.all(np.isfinite(d_hidden))
    assert np.all(np.asarray(d_odds)[:, 0] == 0)
    assert np.all(np.asarray(d_odds)[:, 1:] != 0)


def test_the_reason_inside_a_shard_map():
    given = arguments()
    spec = jax.sharding.PartitionSpec()

    def inside(hidden):
        return logps(**given | {"hidden": hidden}).logp

    with pytest.raises(CannotRunError, match=r"already inside a shard_map \(a, b\)") as caught:
        jax.shard_map(inside, mesh=given["mesh"], in_specs=spec, out_specs=spec)(given["hidden"])
    assert caught.value.fallback.reason is Reason.INSIDE_SHARD_MAP


def test_forward_mode_is_refused_in_words():
    given = arguments()
    hidden = given.pop("hidden")
    with pytest.raises(TypeError, match=r"can't apply forward-mode .* to a custom_vjp"):
        jax.jvp(lambda hidden: logps(hidden, **given).logp, (hidden,), (hidden,))


@pytest.mark.parametrize("known", [True, False])
def test_results_that_nobody_uses_on_explicit_axes(known):
    # Their cotangents are zeros, which lie nowhere in particular.
    mesh = jax.make_mesh((1, 1), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    given = arguments(mesh=mesh)
    with jax.set_mesh(mesh) if known else nullcontext():
        found = jax.eval_shape(
            jax.grad(lambda hidden: jnp.sum(logps(**given | {"hidden": hidden}).logp)), given["hidden"]
        )
    assert found.shape == (ROWS, LENGTH, FEATURES)


def test_every_matmul_of_low_precision_is_written_to_give_float32():
    # XLA:CPU rounds none of them whatever is written, so that no number could tell there.
    hidden, weight = (jnp.zeros(shape, jnp.bfloat16) for shape in ((ROWS, LENGTH, FEATURES), (VOCAB, FEATURES)))

    def total(hidden, weight):
        return jnp.sum(logps(**arguments(hidden=hidden, head=Head(weight))).logp)

    written = re.findall(r"preferred_element_type=(\w+)", str(jax.make_jaxpr(jax.grad(total, (0, 1)))(hidden, weight)))
    assert len(written) >= 4
    assert set(written) == {"float32"}
