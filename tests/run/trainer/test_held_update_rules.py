"""A held update on the trainer itself: waited for, then made, and then what a checkpoint is stamped with."""

import optax
import pytest
from trainer_cases import Scale, linear_loss, numbers

from steptrace.diag.training import UnfinishedStepError
from steptrace.run.trainer import JaxTrainer


def made(trainer=JaxTrainer):
    return trainer(Scale(), optax.adam(0.1), linear_loss)


def closed(trainer):
    """The last call of step 0, which holds the update back."""
    trainer.fwd_bwd(numbers(0, 1.0), apply_optimizer=True, defer_update=True)
    return trainer


def test_a_checkpoint_is_stamped_with_the_step_that_the_update_returned(tmp_path):
    trainer = closed(made())
    at_return = trainer.updates_applied
    trainer.apply_deferred_update()
    trainer.save_checkpoint(tmp_path / "saved")
    other = made()
    other.restore_checkpoint(tmp_path / "saved")
    assert (at_return, other.updates_applied) == (0, 1)
    assert other.params_digest() == trainer.params_digest()


def listed(trainer, monkeypatch):
    """What applying a held update does, in order, and the wait that it tells."""
    events = []

    def note(name, gives=None):
        real = getattr(trainer, name)

        def noted():
            events.append(name)
            real()
            return gives

        monkeypatch.setattr(trainer, name, noted)

    note("wait_for_device", 5.0)
    note("update")
    told = closed(trainer).apply_deferred_update()
    return events, told["device_wait_s"]


class MeasuresBehind(JaxTrainer):
    """Makes the update, and measures what the device still has to do then."""

    def apply_deferred_update(self):
        self._boundary.held_step = None
        self.update()
        return {"device_wait_s": self.wait_for_device()}


def test_the_device_is_waited_for_and_that_is_told_before_the_update(monkeypatch):
    assert listed(made(), monkeypatch) == (["wait_for_device", "update"], 5.0)


def test_control_a_trainer_that_measures_behind_the_update_is_told_apart(monkeypatch):
    assert listed(made(MeasuresBehind), monkeypatch)[0] == ["update", "wait_for_device"]


class Forgetting(JaxTrainer):
    """Takes a held update for made."""

    def apply_deferred_update(self):
        self._boundary.held_step = None
        return {"device_wait_s": 0.0, "update_ready": True}


def test_control_an_update_that_was_never_made_is_met_by_the_next_step():
    trainer = closed(made(Forgetting))
    trainer.apply_deferred_update()
    with pytest.raises(UnfinishedStepError):
        trainer.fwd_bwd(numbers(1, 1.0))
    kept = closed(made())
    kept.apply_deferred_update()
    kept.fwd_bwd(numbers(1, 1.0))
