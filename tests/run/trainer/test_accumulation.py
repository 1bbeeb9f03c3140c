"""The update does not depend on how the samples of a step are split or packed."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from trainer_cases import LENGTH, Decoder, batches, greedy_rows, one_each, params_of, sequences, train

from steptrace.run.trainer import GrpoLoss, JaxTrainer, SftLoss

SEQUENCES = sequences(14, seed=3)
LOSSES = {
    "token_mean": GrpoLoss(kl_coef=0.05, entropy_coef=0.01),
    "sequence_mean": GrpoLoss(kl_coef=0.05, aggregation="sequence_mean"),
    "sft": SftLoss(),
}
# How rows are made, into how many micro-batches they are split, row length, rows to a micro-batch.
WHOLE = (one_each, 1, LENGTH, 14)
SPLITS = [(one_each, 2, LENGTH, 14), (one_each, 3, LENGTH, 14), (one_each, 7, LENGTH, 2)]
PACKINGS = [
    (greedy_rows, 1, LENGTH, 14),
    (greedy_rows, 3, LENGTH, 2),
    (lambda seqs: greedy_rows(seqs[::-1], 20), 2, 20, 8),
]


class Stepper:
    """One trainer that makes a first step over and over; a large rate, so that rounding the parameters is not seen."""

    def __init__(self, start, loss, optimizer=None, model=None):
        self.trainer = JaxTrainer(model or Decoder(nnx.Rngs(0)), optimizer or optax.sgd(64.0), loss)
        self.start = start
        self.trainer.save_checkpoint(start)
        self.before = params_of(self.trainer)

    def step(self, split):
        rows, parts, length, fill = split
        self.trainer.restore_checkpoint(self.start)
        train(self.trainer, *batches(0, rows(SEQUENCES), parts, length, fill))
        return params_of(self.trainer)

    def distance(self, *splits):
        """Largest norm of the difference to the unsplit, unpacked step, by the norm of the update."""
        whole = self.step(WHOLE)
        update = np.linalg.norm(whole - self.before)
        assert update > 1
        return max(np.linalg.norm(self.step(split) - whole) / update for split in splits)


@pytest.mark.parametrize(
    "loss", [pytest.param(loss, marks=[pytest.mark.slow] * (name != "sft"), id=name) for name, loss in LOSSES.items()]
)
def test_split_and_packing_do_not_matter(loss, tmp_path):
    assert Stepper(tmp_path, loss).distance(*SPLITS, *PACKINGS) <= 1e-6


def test_control_a_mean_of_means_depends_on_the_split(tmp_path):
    def mean(model, batch):
        total, count, aux = LOSSES["token_mean"](model, batch)
        return total / count, 1, aux

    assert Stepper(tmp_path, mean).distance(SPLITS[0]) > 1e-2


def test_control_a_row_taken_for_a_sequence_depends_on_the_packing(tmp_path):
    def by_row(model, batch):
        rows = {**batch, "segment_ids": jnp.minimum(batch["segment_ids"], 1)}
        return LOSSES["sequence_mean"](model, rows)

    assert Stepper(tmp_path, by_row).distance(PACKINGS[0]) > 1e-2


def test_control_a_model_that_looks_across_segments_depends_on_the_packing(tmp_path):
    assert Stepper(tmp_path, SftLoss(), model=Decoder(nnx.Rngs(0), isolate=False)).distance(PACKINGS[0]) > 1e-2


@pytest.mark.slow
def test_adam_stays_near(tmp_path):
    # Its first step is near the gradient's sign and hides errors of scale: SGD is the strict test, this one a bound.
    assert Stepper(tmp_path, LOSSES["token_mean"], optax.adam(1.0)).distance(*SPLITS) <= 1e-6


def test_the_count_is_the_trained_tokens_of_the_whole_step(tmp_path):
    stepper = Stepper(tmp_path, SftLoss())
    stepper.step(PACKINGS[1])
    assert stepper.trainer.get_metrics()["count"] == sum(len(seq.tokens) - seq.prompt for seq in SEQUENCES)


def test_a_micro_batch_without_a_valid_token_adds_nothing(tmp_path):
    stepper = Stepper(tmp_path, SftLoss())
    plain = stepper.step(WHOLE)
    stepper.trainer.restore_checkpoint(tmp_path)
    empty = batches(0, [], 1, fill=WHOLE[3])
    train(stepper.trainer, *empty, *batches(0, one_each(SEQUENCES), 1), *empty)
    np.testing.assert_array_equal(params_of(stepper.trainer), plain)
