"""Calls return at dispatch, memory stays flat, and the number of calls in flight is bounded."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from trainer_cases import Scale, linear_loss, numbers, params_of, train

from steptrace.lang.records import MicroBatch
from steptrace.run.trainer import JaxTrainer


class Long(nnx.Module):
    """As long as it is told to be: ``turns`` matrix products in a row."""

    def __init__(self):
        self.w = nnx.Param(jnp.eye(256) * 0.5)

    def __call__(self, x, turns):
        return jax.lax.fori_loop(0, turns[0], lambda _, y: jnp.tanh(y @ jnp.eye(256)), x @ self.w[...])


def long_loss(model, batch):
    return (
        jnp.sum(batch["x"] @ model.w[...]) + 0 * jnp.sum(jax.lax.stop_gradient(model(batch["x"], batch["turns"]))),
        1,
        {},
    )


def long_batch(step, turns, index=0):
    return MicroBatch(step, index, {"x": np.ones((256, 256), np.float32), "turns": np.array([turns], np.int32)}, ())


@pytest.fixture
def waits(monkeypatch):
    """How arrays were waited for or read on the host, in order."""
    seen, kind = [], type(jnp.zeros(()))
    for name in ("block_until_ready", "__array__", "__float__", "__int__", "__bool__"):
        plain = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self, *a, _p=plain, _n=name, **k: seen.append(_n) or _p(self, *a, **k))
    return seen


def test_fwd_bwd_and_update_return_while_the_device_computes(waits):
    trainer = JaxTrainer(Long(), optax.adam(0.1), long_loss, in_flight=4)
    train(trainer, long_batch(0, 1))
    assert trainer.updates_applied == 1
    waits.clear()
    trainer.fwd_bwd(long_batch(1, 3000))
    assert not trainer._acc.loss.is_ready()
    trainer.fwd_bwd(long_batch(1, 1, index=1))
    trainer.update()
    assert not trainer.last_update_token.is_ready()
    assert waits == []
    assert trainer.get_metrics()["skipped"] == 0
    assert trainer.updates_applied == 2


def test_control_weights_wait_for_the_update(waits):
    trainer = JaxTrainer(Long(), optax.adam(0.1), long_loss)
    train(trainer, long_batch(0, 300))
    assert trainer.weights()[1] == 1
    assert waits != []
    assert trainer.last_update_token.is_ready()


def test_no_more_than_in_flight_micro_batches_are_unfinished():
    trainer = JaxTrainer(Long(), optax.sgd(0.1), long_loss, in_flight=2)
    trainer.compile(long_batch(0, 1))
    tokens = []
    for index, turns in enumerate((200, 200, 200, 200, 3000)):
        trainer.fwd_bwd(long_batch(0, turns, index=index))
        tokens.append(trainer._waiting[-1])
        assert all(token.is_ready() for token in tokens[:-2])
    assert not tokens[-1].is_ready()


def test_host_buffers_may_be_reused_at_once():
    trainer = JaxTrainer(Scale(), optax.sgd(1.0), linear_loss)
    trainer.compile(numbers(0, *np.zeros(1 << 16)))
    for step in range(3):
        raw = np.zeros((1 << 16) + 16, np.float32)
        shift = (-raw.ctypes.data % 64) // 4  # a buffer that JAX would use in place
        buffer = raw[shift : shift + (1 << 16)]
        buffer[:] = 1.0
        trainer.fwd_bwd(MicroBatch(step, 0, {"x": buffer}, ()))
        buffer[:] = 100.0
        trainer.update()
    assert params_of(trainer) == [-3.0]


def test_memory_is_flat_over_ten_thousand_steps():
    trainer = JaxTrainer(Scale(), optax.adam(0.1), linear_loss)
    live = []
    for step in range(10_000):
        train(trainer, numbers(step, 1.0, 2.0))
        trainer.get_metrics()
        trainer.weights()
        if step in (100, 9_999):
            live.append((len(jax.live_arrays()), len(trainer._records), len(trainer._waiting)))
    assert live[0] == live[1]


def test_records_nobody_fetches_are_bounded_and_their_loss_is_told():
    trainer = JaxTrainer(Scale(), optax.sgd(0.1), linear_loss, max_records=4)
    for step in range(7):
        train(trainer, numbers(step, float(step)))
    metrics = trainer.get_metrics()
    assert (metrics["first_step"], metrics["step"], metrics["updates"], metrics["dropped_records"]) == (3, 6, 4, 3)
    assert metrics["x"] == (3 + 4 + 5 + 6) / 4
    train(trainer, numbers(7, 7.0))
    assert "dropped_records" not in trainer.get_metrics()
