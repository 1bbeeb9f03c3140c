"""A gradient that is no number leaves nothing behind but its record."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from trainer_cases import Scale, flat, linear_loss, numbers, params_of, train

from steptrace.lang.records import MicroBatch
from steptrace.run.trainer import JaxTrainer


class Noisy(nnx.Module):
    """State of every kind: parameters, batch statistics, an RNG stream."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.inner = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.head = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.head(self.drop(jnp.tanh(self.norm(self.inner(x)))))


def square_loss(model, batch):
    errors = (model(batch["x"])[:, 0] - batch["y"]) ** 2
    return jnp.sum(errors), errors.size, {}


def optimizer():
    schedule = optax.linear_schedule(1e-2, 0.0, 20)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule), optax.add_noise(1e-4, 0.5, 3))


def step_batches(step, poison=False):
    rng = np.random.default_rng(step)
    made = []
    for index in range(2):
        x, y = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=6).astype(np.float32)
        if poison and index == 0:
            y[3] = np.nan
        made.append(MicroBatch(step, index, {"x": x, "y": y}, ()))
    return made


def whole_state(trainer, folder):
    """All that a checkpoint holds, as one vector."""
    trainer.save_checkpoint(folder)
    return flat(
        [
            jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
            for x in jax.tree.leaves(trainer._saved())
        ]
    )


@pytest.mark.slow
def test_steps_after_a_nan_are_as_if_it_had_been_absent(tmp_path):
    poisoned, absent = (JaxTrainer(Noisy(), optimizer(), square_loss) for _ in range(2))
    for step in range(4):
        if step == 1:
            before = whole_state(poisoned, tmp_path / "before")
            train(poisoned, *step_batches(1, poison=True))
            np.testing.assert_array_equal(whole_state(poisoned, tmp_path / "after"), before)
            continue
        for trainer in (poisoned, absent):
            train(trainer, *step_batches(step))
    np.testing.assert_array_equal(whole_state(poisoned, tmp_path / "a"), whole_state(absent, tmp_path / "b"))
    assert poisoned.updates_applied == 3
    records = poisoned.get_records()
    assert [record["skipped"] for record in records] == [0, 1, 0, 0]
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    assert [np.isfinite(record["grad_norm"]) for record in records] == [True, False, True, True]
    assert [record["version"] for record in records] == [1, 1, 2, 3]


def test_control_the_same_gradients_given_to_the_optimizer_ruin_it():
    transform = optimizer()
    params = {"w": jnp.ones(3)}
    updates, _ = transform.update({"w": jnp.array([1.0, jnp.nan, 1.0])}, transform.init(params), params)
    assert not np.any(np.isfinite(flat(optax.apply_updates(params, updates))))


def test_weights_after_a_skip_are_those_before_under_the_same_version():
    trainer = JaxTrainer(Scale(1.0), optax.sgd(0.5), linear_loss)
    train(trainer, numbers(0, 1.0, 2.0))
    before, version = trainer.weights()
    train(trainer, numbers(1, np.inf))
    after, same = trainer.weights()
    assert (version, same) == (1, 1)
    np.testing.assert_array_equal(flat(before), flat(after))


def counts(trainer):
    """The optimizer's counts: of Adam's moments, and of the schedule."""
    return [int(count) for _, count in optax.tree_utils.tree_get_all_with_path(trainer._state, "count")]


@pytest.mark.parametrize(("count_skips", "schedule"), [(False, 2), (True, 3)])
def test_whether_the_schedule_moves_with_a_skip_is_an_option(count_skips, schedule):
    transform = optax.adam(optax.linear_schedule(1.0, 0.0, 10))
    trainer = JaxTrainer(Scale(), transform, linear_loss, count_skips=count_skips)
    for step, value in enumerate((1.0, np.nan, 2.0)):
        train(trainer, numbers(step, value))
    assert counts(trainer) == [2, schedule]


def test_hyperparameter_schedules_count_as_schedules():
    transform = optax.inject_hyperparams(optax.adam)(learning_rate=optax.linear_schedule(1.0, 0.0, 10))
    trainer = JaxTrainer(Scale(), transform, linear_loss, count_skips=True)
    for step, value in enumerate((1.0, np.nan, 2.0)):
        train(trainer, numbers(step, value))
    assert sorted(counts(trainer)) == [2, 3, 3]


@pytest.mark.parametrize("count_skips", [False, True])
def test_an_update_on_nothing_is_skipped_without_a_division(count_skips):
    def empty(model, batch):
        return 0.0 * jnp.sum(model(batch["x"])), 0, {"x": (0.0, 0.0)}

    trainer = JaxTrainer(Scale(3.0), optax.adam(optax.linear_schedule(1.0, 0.0, 9)), empty, count_skips=count_skips)
    before = params_of(trainer)
    train(trainer, numbers(0, 1.0))
    np.testing.assert_array_equal(params_of(trainer), before)
    assert counts(trainer) == [0, 0]
    metrics = trainer.get_metrics()
    assert (metrics["skipped"], metrics["loss"], metrics["grad_norm"], metrics["x"]) == (1, 0, 0, 0)
