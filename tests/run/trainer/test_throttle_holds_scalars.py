"""What bounds the calls in flight holds numbers, not states: it pins no parameters, and donation does not reach it."""

from __future__ import annotations

import jax
import optax
import pytest
from trainer_cases import Scale, linear_loss, numbers

from steptrace.run.trainer import JaxTrainer


def driven(trainer, steps=12):
    """Steps of three micro-batches with metrics that are fetched two steps late; gives the live bytes behind each."""
    aside, live = [], []
    for step in range(steps):
        for index in range(3):
            trainer.fwd_bwd(numbers(step, 1.0, 2.0, index=index))
        trainer.update()
        aside.append(trainer.start_metrics())
        if len(aside) > 2:
            trainer.fetch_metrics(aside.pop(0))
        live.append(sum(array.nbytes for array in jax.live_arrays()))
    return live


class Pinning(JaxTrainer):
    """Throttles by whole states: what it waits for later are the parameters as each call found them."""

    def fwd_bwd(self, micro_batch, **how):
        made = super().fwd_bwd(micro_batch, **how)
        self._states = [*getattr(self, "_states", ()), self.state_of_parameters()]
        if len(self._states) > 2:
            for leaf in jax.tree.leaves(self._states.pop(0)):
                leaf.block_until_ready()
        return made

    def state_of_parameters(self):
        """The live parameters, which the next update gives away."""
        return self._params


def test_calls_in_flight_under_donation_with_metrics_fetched_later():
    trainer = JaxTrainer(Scale(), optax.adam(0.1), linear_loss, in_flight=2)
    live = driven(trainer)
    assert trainer.updates_applied == 12
    assert live[-1] <= live[5]


def test_what_is_waited_for_is_a_number():
    trainer = JaxTrainer(Scale(), optax.adam(0.1), linear_loss, in_flight=2)
    trainer.fwd_bwd(numbers(0, 1.0))
    trainer.fwd_bwd(numbers(0, 1.0, index=1))
    assert [token.size for token in trainer._waiting] == [1, 1]


def test_control_a_throttle_of_whole_states_meets_arrays_that_were_given_away():
    trainer = Pinning(Scale(), optax.adam(0.1), linear_loss, in_flight=2)
    with pytest.raises(RuntimeError, match="deleted"):
        driven(trainer)
