"""What an update does: one schedule count each, exact sums, donation, any optimizer."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from trainer_cases import (
    Decoder,
    LinenDecoder,
    Scale,
    backend_compiles,
    batches,
    flat,
    greedy_rows,
    linear_loss,
    numbers,
    one_each,
    params_of,
    sequences,
    train,
)

from steptrace.lang.parts import Checkpointable, Trainer
from steptrace.run.trainer import GrpoLoss, JaxTrainer, SftLoss


def test_the_schedule_moves_once_per_update_over_epochs_and_mini_batches():
    # 2 epochs of 3 mini-batches in one step, of 1, 2 and 3 micro-batches; the gradient is 1 throughout.
    schedule = optax.linear_schedule(1.0, 0.0, 6)
    trainer = JaxTrainer(Scale(), optax.sgd(schedule), linear_loss)
    places = [params_of(trainer)[0]]
    for _ in range(2):
        for parts in (1, 2, 3):
            train(trainer, *(numbers(0, 1.0, 1.0, index=i) for i in range(parts)))
            places.append(params_of(trainer)[0])
    np.testing.assert_allclose(-np.diff(places), [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6], rtol=1e-6)
    assert trainer.updates_applied == 6


def test_the_update_is_the_mean_over_all_samples():
    trainer = JaxTrainer(Scale(), optax.sgd(1.0), linear_loss)
    train(trainer, numbers(0, 4.0, 4.0, 4.0), numbers(0, 8.0, index=1))
    assert params_of(trainer) == [-5.0]
    train(trainer, numbers(1, 1.0))
    assert params_of(trainer) == [-6.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(0.1, 0.0, 50))),
        lambda: optax.MultiSteps(optax.adam(0.1), every_k_schedule=2).gradient_transformation(),
        lambda: optax.contrib.schedule_free_sgd(0.1),
        lambda: optax.adafactor(0.1),
        lambda: optax.chain(optax.adam(0.1), optax.contrib.reduce_on_plateau(patience=1)),
        lambda: optax.lbfgs(0.1, linesearch=None),
        lambda: optax.multi_transform({"a": optax.adam(0.1), "b": optax.set_to_zero()}, {"w": "a"}),
    ],
    ids=["clip-adamw", "multi-steps", "schedule-free", "adafactor", "plateau", "lbfgs", "partition"],
)
def test_optax_transforms_train_as_by_hand(make):
    trainer = JaxTrainer(Scale(1.0), make(), lambda m, b: (jnp.sum((m(b["x"]) - 3) ** 2), b["x"].size, {}))
    by_hand, params = optax.with_extra_args_support(make()), {"w": jnp.float32(1.0)}
    state = by_hand.init(params)

    @jax.jit
    def step(params, state, x):
        value, grads = jax.value_and_grad(lambda p: jnp.sum((p["w"] * x - 3) ** 2) / x.size)(params)
        updates, state = by_hand.update(grads, state, params, value=value)
        return optax.apply_updates(params, updates), state

    for k in range(5):
        x = np.array([1.0, 0.5 + k], np.float32)
        train(trainer, numbers(k, *x))
        params, state = step(params, state, x)
    np.testing.assert_allclose(params_of(trainer), flat(params), rtol=1e-5)


def test_a_transform_that_takes_nothing_but_gradients_trains():
    def plain(grads, state, params=None):
        return jax.tree.map(lambda grad: -0.5 * grad, grads), state

    optimizer = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), plain)
    trainer = JaxTrainer(Scale(), optimizer, linear_loss)
    train(trainer, numbers(0, 4.0, 2.0))
    assert params_of(trainer) == [-1.5]


def test_a_linen_module_trains():
    net = LinenDecoder()
    rows = greedy_rows(sequences(6))
    first = batches(0, rows, 2)
    arrays = first[0].arrays
    variables = net.init(jax.random.key(0), arrays["tokens"], arrays["positions"], arrays["segment_ids"])
    trainer = JaxTrainer(net, optax.adam(0.05), SftLoss(), linen_variables=variables)
    losses = []
    for step in range(30):
        train(trainer, *batches(step, rows, 2))
        losses.append(trainer.get_metrics()["loss"])
    assert losses[-1] < 0.5 * losses[0]


def test_buffers_are_donated_and_weights_survive():
    model = Decoder(nnx.Rngs(0))
    trainer = JaxTrainer(model, optax.adam(0.1), SftLoss())
    untouched = flat(trainer.split.params)
    weights, version = trainer.weights()
    kept = flat(weights)
    params, moments = jax.tree.leaves(trainer._params), jax.tree.leaves(trainer._state)
    micro_batch = batches(0, one_each(sequences(2)), 1)[0]
    trainer.fwd_bwd(micro_batch)
    sums = jax.tree.leaves(trainer._acc)
    trainer.fwd_bwd(micro_batch)
    assert all(leaf.is_deleted() for leaf in sums)
    trainer.update()
    assert all(leaf.is_deleted() for leaf in params + moments)
    np.testing.assert_array_equal(flat(weights), kept)
    assert not np.array_equal(params_of(trainer), kept)
    assert (version, trainer.weights()[1]) == (0, 1)
    np.testing.assert_array_equal(flat(trainer.split.params), untouched)  # the user's model keeps its arrays
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(trainer.split.params))


def test_low_precision_parameters_accumulate_in_float32():
    class Low(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.zeros((), jnp.bfloat16))

        def __call__(self, x):
            return self.w[...].astype(jnp.float32) * x

    trainer = JaxTrainer(Low(), optax.adam(0.125), linear_loss)
    # In bfloat16 a sum of ones stops growing at 256, and 256 / 1024 would be the mean.
    train(trainer, *(numbers(0, 1.0, index=i) for i in range(1024)))
    assert trainer.get_metrics()["grad_norm"] == 1.0
    assert {leaf.dtype.name for leaf in jax.tree.leaves(trainer.weights()[0])} == {"bfloat16"}


def test_nothing_compiles_again_after_warm_up():
    loss = GrpoLoss(kl_coef=0.1)
    traced = chex.assert_max_traces(lambda model, batch: loss(model, batch), n=2)  # once for its form, once to compile
    adam = optax.adamw(optax.linear_schedule(0.1, 0.0, 50))
    counted = optax.GradientTransformation(adam.init, chex.assert_max_traces(adam.update, n=2))
    trainer = JaxTrainer(Decoder(nnx.Rngs(0)), counted, traced, logps_fn=loss.logps)
    rows = greedy_rows(sequences(6))
    trainer.compile(batches(0, rows, 1)[0])
    traces = dict(trainer.info()["compiles"])
    with backend_compiles() as compiled:
        for step in range(4):
            train(trainer, *batches(step, rows, 1))
            trainer.get_metrics()
            trainer.weights()
            trainer.old_logps(batches(step, rows, 1)[0])
    assert compiled == []
    assert trainer.info()["compiles"] == traces
    assert traces == {"copy": 3, "init": 1, "zeros": 1, "fwd_bwd": 1, "update": 1, "old_logps": 1}


def test_control_a_micro_batch_of_another_shape_compiles_once_more():
    trainer = JaxTrainer(Scale(), optax.sgd(1.0), linear_loss)
    train(trainer, numbers(0, 1.0))
    with backend_compiles() as compiled:
        train(trainer, numbers(1, 1.0, 2.0))
    assert compiled != []
    assert trainer.info()["compiles"]["fwd_bwd"] == 2


def test_compiling_changes_no_state():
    rows = greedy_rows(sequences(6))
    warm, cold = (JaxTrainer(Decoder(nnx.Rngs(0)), optax.adam(0.1), SftLoss(), count_skips=True) for _ in range(2))
    warm.compile(batches(0, rows, 1)[0])
    assert warm.get_metrics() == {}
    assert warm.updates_applied == 0
    for trainer in (warm, cold):
        train(trainer, *batches(0, rows, 1))
    assert warm.params_digest() == cold.params_digest()
    assert warm.info()["compiles"]["fwd_bwd"] == 1


def test_old_logps_are_those_of_the_present_parameters():
    loss = GrpoLoss(temperature=0.7)
    trainer = JaxTrainer(Decoder(nnx.Rngs(0)), optax.sgd(1.0), loss)
    micro_batch = batches(0, greedy_rows(sequences(6)), 1)[0]
    for _ in range(2):
        logps = np.asarray(trainer.old_logps(micro_batch))
        model = trainer.split.build(trainer.weights()[0], trainer.split.rest)
        np.testing.assert_allclose(logps, loss.logps(model, micro_batch.arrays), rtol=1e-5, atol=1e-6)
        assert np.all(logps[micro_batch.arrays["segment_ids"] == 0] == 0)
        train(trainer, micro_batch.with_array("old_logps", trainer.old_logps(micro_batch)))
        assert trainer.get_metrics()["ratio"] == pytest.approx(1, abs=1e-6)


def test_it_is_a_trainer_with_a_checkpoint():
    trainer = JaxTrainer(Scale(), optax.sgd(1.0), linear_loss)
    assert isinstance(trainer, Trainer)
    assert isinstance(trainer, Checkpointable)


def test_info_tells_models_apart():
    def info(dim):
        return JaxTrainer(Decoder(nnx.Rngs(0), dim=dim), optax.sgd(1.0), SftLoss()).info()

    small, again, large = info(16), info(16), info(32)
    assert small["fingerprint"] == again["fingerprint"] != large["fingerprint"]
    assert small["parameters"] == 11 * 16 + 32 * 16 + 16 * 48 + 16 * 11 + 11
    assert small["parameter_bytes"] == 4 * small["parameters"]
    assert small["capabilities"]["old_logps"] is True
