"""Records carry their step; several updates merge as their union."""

import numpy as np
import optax
import pytest
from trainer_cases import Scale, linear_loss, numbers, train

from steptrace.run.trainer import JaxTrainer


@pytest.fixture
def trainer():
    return JaxTrainer(Scale(), optax.sgd(0.5), linear_loss)


def test_nothing_happened(trainer):
    assert trainer.get_metrics() == {}
    trainer.fwd_bwd(numbers(0, 1.0))
    assert trainer.get_metrics() == {}


def test_one_update_and_then_nothing(trainer):
    train(trainer, numbers(4, 1.0, 3.0), numbers(4, 8.0, index=1))
    assert trainer.get_metrics() == {
        "step": 4, "first_step": 4, "updates": 1, "loss": 0, "count": 3, "grad_norm": 4,
        "skipped": 0, "version": 1, "x": 4,
    }  # fmt: skip
    assert trainer.get_metrics() == {}


def test_labels_stay_with_their_values_however_late_they_are_fetched(trainer):
    for step in range(3):
        train(trainer, numbers(step, 10.0 * step + 1))
    trainer.fwd_bwd(numbers(3, 1000.0))  # the next step is under way
    assert [(r["step"], r["x"], r["version"]) for r in trainer.get_records()] == [(0, 1, 1), (1, 11, 2), (2, 21, 3)]
    trainer.update()
    metrics = trainer.get_metrics()
    assert (metrics["step"], metrics["x"]) == (3, 1000)


def test_updates_of_one_fetch_merge_as_over_their_union(trainer):
    train(trainer, numbers(5, 1.0, 2.0, 3.0))
    train(trainer, numbers(5, 10.0))
    metrics = trainer.get_metrics()
    assert (metrics["updates"], metrics["count"], metrics["x"]) == (2, 4, 4)
    assert metrics["loss"] == (0 + -1.0 * 10) / 4  # w is 0 in the first update and -1 in the second
    assert (metrics["grad_norm"], metrics["version"]) == (6, 2)


def test_control_a_mean_of_the_records_is_not_their_union(trainer):
    train(trainer, numbers(5, 1.0, 2.0, 3.0))
    train(trainer, numbers(5, 10.0))
    assert np.mean([record["x"] for record in trainer.get_records()]) != 4


def test_a_skip_among_others_shows(trainer):
    for step, value in enumerate((1.0, np.nan, 2.0)):
        train(trainer, numbers(step, value))
    metrics = trainer.get_metrics()
    assert (metrics["skipped"], metrics["updates"], metrics["version"]) == (1, 3, 2)
    assert np.isnan(metrics["grad_norm"])
