"""Evaluation: the loss and metrics of micro-batches as the next update would report them, and nothing changed."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from trainer_cases import Decoder, batches, numbers, one_each, sequences

from steptrace.diag import training as refused
from steptrace.run.trainer import GrpoLoss, JaxTrainer, Replay

STEP = batches(0, one_each(sequences(6)), 3, fill=2)


def decoder():
    return JaxTrainer(Decoder(nnx.Rngs(0)), optax.adam(0.1), GrpoLoss(kl_coef=0.1))


def stepped(trainer):
    for micro_batch in STEP:
        trainer.fwd_bwd(micro_batch)
    trainer.update()
    return trainer.get_metrics()


def test_it_gives_what_the_update_on_the_same_micro_batches_reports():
    trainer = decoder()
    made = trainer.evaluate(STEP)
    reported = stepped(trainer)
    assert {*made} <= {*reported}
    assert made == pytest.approx({name: reported[name] for name in made}, rel=1e-6)
    assert made["count"] > 0


def test_control_behind_the_update_it_gives_something_else():
    trainer = decoder()
    before = trainer.evaluate(STEP)
    stepped(trainer)
    assert trainer.evaluate(STEP)["loss"] != pytest.approx(before["loss"], rel=1e-6)


def test_it_changes_nothing_even_between_the_micro_batches_of_a_step():
    alone, asked = decoder(), decoder()
    asked.evaluate(STEP)
    for micro_batch in STEP:
        asked.fwd_bwd(micro_batch)
        asked.evaluate(STEP[:1])
    asked.update()
    assert asked.get_metrics() == stepped(alone)
    assert asked.params_digest() == alone.params_digest()


def test_nothing_evaluated_has_no_loss():
    assert decoder().evaluate([]) == {"loss": 0.0, "count": 0}


class Counting(nnx.Module):
    """Counts its calls in a state of its own."""

    def __init__(self):
        self.w = nnx.Param(jnp.ones(()))
        self.calls = nnx.BatchStat(jnp.zeros(()))


def counting_loss(model, batch):
    model.calls[...] += 1
    total = model.w[...] * batch["x"].sum() * model.calls[...]
    return total, batch["x"].size, {}


def test_the_models_own_state_is_not_changed():
    trainer = JaxTrainer(Counting(), optax.sgd(0.0), counting_loss)
    first = trainer.evaluate([numbers(0, 2.0)])
    assert trainer.evaluate([numbers(0, 2.0)]) == first


class Dropping(nnx.Module):
    """Loses all it gets, unless it is told to drop nothing."""

    def __init__(self):
        self.w = nnx.Param(jnp.ones(()))
        self.whole = False

    def watched(self):
        return self

    def overflowed(self):
        return jnp.asarray(not self.whole)

    def as_dropless(self):
        self.whole = True
        return self


def dropping_loss(model, batch):
    return model.w[...] * batch["x"].sum() * float(model.whole), batch["x"].size, {}


def test_under_replay_it_drops_no_tokens():
    trainer = JaxTrainer(Dropping(), optax.sgd(0.0), dropping_loss, replay=Replay())
    assert trainer.evaluate([numbers(0, 2.0)])["loss"] == 2.0


def test_it_compiles_once_for_a_form():
    trainer = decoder()
    for _ in range(3):
        trainer.evaluate(STEP)
    assert trainer.info()["compiles"]["evaluate"] == 1


def test_it_is_refused_while_an_update_is_held_back_and_passes_behind_it():
    trainer = decoder()
    for micro_batch in STEP[:-1]:
        trainer.fwd_bwd(micro_batch)
    trainer.fwd_bwd(STEP[-1], apply_optimizer=True, defer_update=True)
    with pytest.raises(refused.HeldUpdateError, match="an evaluation was asked for"):
        trainer.evaluate(STEP)
    trainer.apply_deferred_update()
    assert np.isfinite(trainer.evaluate(STEP)["loss"])
