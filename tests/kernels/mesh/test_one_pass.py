"""A loss in one pass: its value, its gradients, and the same log-probs as without it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from logps_oracle import assert_same, head_of, make, mesh_222, oracle, valid

from steptrace_kernels.logps import Layout, LogpsError, Strategy, fused_token_loss, logps

LAYOUT = Layout(batch=("f",), sequence=("c",), table_embed=("f", "e"))
KL = 0.3


def clipped(logp, entropy, old, advantage, trained, bonus):
    """A clipped-ratio loss with a KL penalty and an entropy bonus."""
    ratio = jnp.exp(logp - old)
    term = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage) + KL * (logp - old) ** 2
    return jnp.where(trained, term - bonus * entropy, 0.0)


def aux_of(case):
    rng = np.random.default_rng(8)
    shape = case.tokens.shape
    old = (oracle(case)["logp"] + rng.normal(size=shape) * 0.3).astype(np.float32)
    return old, rng.normal(size=shape).astype(np.float32), rng.random(shape) < 0.7


def expected_of(case, old, advantage, trained, bonus):
    """The loss and its gradients, by the oracle with the loss's own slopes as cotangents."""
    values, ok = oracle(case), valid(case)
    logp, entropy = values["logp"], values["entropy"]
    ratio = np.exp(logp - old)
    inside = ratio * advantage <= np.clip(ratio, 0.8, 1.2) * advantage
    live = ok & trained
    kl = KL * (logp - old) ** 2
    loss = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage) + kl - bonus * entropy
    slope = np.where(inside, -ratio * advantage, 0) + 2 * KL * (logp - old)
    by = np.stack([np.where(live, slope, 0), np.where(live, -bonus, 0), np.zeros_like(slope)])
    gradients = {name: x for name, x in oracle(case.but(by=by)).items() if name.startswith("d_")}
    return loss[live].sum(), gradients | {"d_old": np.where(live, -slope, 0), "d_bonus": -entropy[live].sum()}


def run(case, strategy, bonus=0.2):
    old, advantage, trained = aux_of(case)
    settings = {
        "mesh": mesh_222(),
        "layout": LAYOUT,
        "strategy": strategy,
        "soft_cap": case.soft_cap,
        "segment_ids": case.segment_ids,
        "needed": case.needed,
        "temperature": case.temperature,
    }

    def loss(hidden, head, old, bonus):
        return fused_token_loss(clipped)(hidden, case.tokens, head, old, advantage, trained, bonus, **settings)

    arguments = (case.hidden, head_of(case), old, bonus)
    (value, out), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))(*arguments)
    d_hidden, d_head, d_old, d_bonus = gradients
    found = {"d_hidden": d_hidden, "d_weight": d_head.weight, "d_bias": d_head.bias, "d_old": d_old, "d_bonus": d_bonus}
    found |= {} if d_head.norm is None else {"d_scale": d_head.norm.scale}
    want_value, want = expected_of(case, old, advantage, trained, bonus)
    assert float(value) == pytest.approx(want_value, rel=1e-5)
    assert_same({name: np.asarray(x, np.float64) for name, x in found.items()}, want, tolerance=4e-6)
    return loss, arguments, out, settings


def test_value_gradients_and_the_same_log_probs_bit_for_bit():
    rng = np.random.default_rng(2)
    case = make(
        *(3, 6, 5, 11),
        bias=True,
        norm=True,
        soft_cap=4.0,
        segment_ids=np.array([[1, 1, 2, 2, 2, 3], [1, 2, 2, 2, 3, 3], [0, 0, 1, 1, 1, 1]], np.int32),
        needed=rng.random((3, 6)) < 0.8,
        temperature=(rng.random((3, 6)) + 0.5).astype(np.float32),
    )
    loss, arguments, out, settings = run(case, Strategy(("c", "e"), chunk_tokens=2))
    _, plain = jax.jit(loss)(*arguments)
    alone = jax.jit(lambda hidden, head: logps(hidden, case.tokens, head, return_lse=True, **settings))
    for ours, no_gradient, by_logps in zip(out, plain, alone(*arguments[:2]), strict=True):
        np.testing.assert_array_equal(ours, no_gradient)
        np.testing.assert_array_equal(ours, by_logps)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Strategy(chunk_tokens=3), Strategy(("f", "c", "e")), "auto"])
def test_other_strategies(strategy):
    run(make(4, 6, 8, 12, bias=True, temperature=0.7), strategy)


@pytest.mark.slow
def test_explicit_axes_and_aux_that_lie_elsewhere():
    case = make(2, 4, 4, 6)
    mesh = jax.make_mesh((2, 2, 2), ("f", "c", "e"), axis_types=(AxisType.Explicit,) * 3)
    weights = np.asarray(case.by[0])

    def total(hidden, head, weights):
        fused = fused_token_loss(lambda logp, entropy, weight: weight * logp)
        return fused(hidden, case.tokens, head, weights, layout=LAYOUT)[0]

    with jax.set_mesh(mesh):
        found = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(case.hidden, head_of(case), weights)
    only = np.stack([weights, np.zeros_like(weights), np.zeros_like(weights)])
    want = oracle(case.but(by=only))
    want = {name: want[name] for name in ("d_hidden", "d_weight")} | {"d_aux": want["logp"]}
    assert_same({"d_hidden": found[0], "d_weight": found[1].weight, "d_aux": found[2]}, want)


@pytest.mark.slow
def test_returned_log_probs_are_constants():
    case = make(2, 4, 4, 6)

    def total(hidden):
        _, out = fused_token_loss(lambda logp, entropy: logp * 0)(
            hidden, case.tokens, head_of(case), mesh=mesh_222(), layout=LAYOUT
        )
        return jnp.sum(out.logp)

    assert np.all(np.asarray(jax.jit(jax.grad(total))(case.hidden)) == 0)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda logp, entropy: logp - jnp.mean(logp, axis=-1, keepdims=True), "not elementwise: it has reduce_sum"),
        (lambda logp, entropy: jnp.roll(logp, 1, axis=-1), "not elementwise"),
        (lambda logp, entropy: logp / logp.size, "it has div, by which a token's loss depends on its place, or on how"),
        (lambda logp, entropy: logp * (jnp.arange(logp.shape[1]) > 0), "no other: tuple index out of range"),
        (lambda logp, entropy: jnp.sum(logp), "of the shape of its arguments"),
        (lambda logp, entropy: logp > 0, "floating"),
    ],
)
def test_a_loss_in_which_tokens_meet_is_refused(loss, words):
    case = make(2, 4, 4, 6)
    with pytest.raises(LogpsError, match=words):
        fused_token_loss(loss)(case.hidden, case.tokens, head_of(case), mesh=mesh_222(), layout=LAYOUT)


def test_blocks_are_refused_and_so_are_aux_of_another_shape():
    case = make(2, 4, 4, 6)
    fused = fused_token_loss(lambda logp, entropy, *aux: logp)
    settings = {"mesh": mesh_222(), "layout": LAYOUT}
    with pytest.raises(LogpsError, match="vocab_blocks must be 1"):
        fused(case.hidden, case.tokens, head_of(case), strategy=Strategy(vocab_blocks=2), **settings)
    with pytest.raises(LogpsError, match=r"aux 0 must be a scalar or \[2, 4\], not \[2, 3\]"):
        fused(case.hidden, case.tokens, head_of(case), np.zeros((2, 3)), **settings)
