"""Wrong parts, wrong arrays and wrong orders of calls are coded errors, before anything compiles."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from trainer_cases import Decoder, Scale, batches, linear_loss, numbers, one_each, params_of, sequences, train

from steptrace.diag import training as refused
from steptrace.lang.records import MicroBatch
from steptrace.run.trainer import GrpoLoss, JaxTrainer


@pytest.fixture
def scale():
    return JaxTrainer(Scale(), optax.sgd(1.0), linear_loss)


@pytest.fixture(scope="module")
def decoder():
    return JaxTrainer(Decoder(nnx.Rngs(0)), optax.sgd(1.0), GrpoLoss(kl_coef=0.1))


def test_a_micro_batch_of_another_step(scale):
    scale.fwd_bwd(numbers(0, 1.0))
    with pytest.raises(refused.UnfinishedStepError, match="of step 1 came before the update of step 0"):
        scale.fwd_bwd(numbers(1, 50.0))
    scale.update()  # what was refused left nothing behind
    assert params_of(scale) == [-1.0]
    scale.fwd_bwd(numbers(1, 1.0))


def test_an_update_on_nothing(scale):
    with pytest.raises(refused.NothingAccumulatedError, match="no micro-batch since the last update"):
        scale.update()
    train(scale, numbers(0, 1.0))
    with pytest.raises(refused.NothingAccumulatedError):
        scale.update()


def test_a_checkpoint_in_the_middle_of_a_step(scale, tmp_path):
    scale.fwd_bwd(numbers(3, 1.0))
    with pytest.raises(refused.OpenAccumulationError, match="while gradients of step 3 are accumulated"):
        scale.save_checkpoint(tmp_path)


def test_log_probs_nobody_makes(scale):
    with pytest.raises(refused.NoLogpsError, match="cannot make log-probs"):
        scale.old_logps(numbers(0, 1.0))


def changed(**arrays):
    (micro_batch,) = batches(2, one_each(sequences(3)), 1)
    kept = {name: array for name, array in (dict(micro_batch.arrays) | arrays).items() if array is not None}
    return MicroBatch(2, 1, kept, ())


@pytest.mark.parametrize(
    ("arrays", "error", "words"),
    [
        ({"tokens": np.zeros((3, 32), np.float32)}, refused.MicroBatchError, "of micro-batch 1 of step 2 is float32"),
        ({"advantages": np.zeros((3, 32))}, refused.MicroBatchError, r"is float64 \[3, 32\], not float32 \[3, 32\]"),
        ({"positions": np.zeros((3, 32), np.int64)}, refused.MicroBatchError, "`positions` .* is int64"),
        ({"loss_mask": np.zeros((3, 31), np.float32)}, refused.MicroBatchError, r"`loss_mask` .* float32 \[3, 31\]"),
        ({"segment_ids": np.zeros(32, np.int32)}, refused.MicroBatchError, r"`segment_ids` .* int32 \[32\]"),
        ({"ref_logps": [[0.0]]}, refused.MicroBatchError, "`ref_logps` .* is no array of numbers but a list"),
        ({"mine": np.array(["a"], object)}, refused.MicroBatchError, "`mine` .* is no array"),
        ({"mine": np.array(["a"])}, refused.MicroBatchError, "`mine` .* is no array"),
        ({"mine": np.zeros(2, [("a", np.int32)])}, refused.MicroBatchError, "`mine` .* is no array"),
        ({"mine": np.zeros(2, "datetime64[s]")}, refused.MicroBatchError, "`mine` .* is no array"),
        ({"ref_logps": None}, refused.MissingArrayError, "the loss reads `ref_logps`"),
        ({"advantages": None}, refused.MissingArrayError, "the loss reads `advantages`"),
        ({"rollout_logps": None}, refused.MissingArrayError, "the loss reads `rollout_logps`"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit(decoder, arrays, error, words):
    with pytest.raises(error, match=words):
        decoder.fwd_bwd(changed(**arrays))
    assert "fwd_bwd" not in decoder.info()["compiles"]


@pytest.mark.parametrize(
    "mine", [np.float32(3), np.zeros(2, bool), jnp.zeros(2, jnp.bfloat16), np.zeros(0), jax.random.key(0)]
)
def test_control_arrays_of_ones_own_may_hold_any_numbers(decoder, mine):
    decoder.fwd_bwd(changed(mine=mine))


def gives(result):
    return lambda model, batch: result(jnp.sum(model(batch["x"])))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (gives(lambda s: s), r"must give \(sum, count, aux\), not an array \[\]"),
        (gives(lambda s: (s, 1)), "not a tuple of 2"),
        (gives(lambda s: (s, 1, None)), "must give"),
        (gives(lambda s: (s[None], 1, {})), r"sum must be a scalar, not an array \[1\]"),
        (gives(lambda s: (s, jnp.ones(2), {})), r"count must be a scalar, not an array \[2\]"),
        (gives(lambda s: (s, "3", {})), "count is no number but a str"),
        (gives(lambda s: (1, 1, {})), "sum is not floating"),
        (gives(lambda s: (s, 1, {"kl": s})), r"metric `kl` must be \(sum, weight\)"),
        (gives(lambda s: (s, 1, {"kl": (s, jnp.ones(2))})), "`kl` weight must be a scalar"),
        (gives(lambda s: (s, 1, {"grad_norm": (s, 1)})), "cannot report `grad_norm`"),
        (gives(lambda s: (None, 1, {})), "sum is no number but a NoneType"),
        (gives(lambda s: (s, None, {})), "count is no number but a NoneType"),
        (gives(lambda s: (s, 1, {"kl": (None, 1)})), "`kl` sum is no number but a NoneType"),
        (gives(lambda s: (s, 1, {"kl": (s, 1), 1: (s, 1)})), "under 1, and the name of a metric is a text"),
    ],
)
def test_losses_of_another_form(loss, words):
    trainer = JaxTrainer(Scale(), optax.sgd(1.0), loss)
    with pytest.raises(refused.LossError, match=words):
        trainer.fwd_bwd(numbers(0, 1.0))


def test_a_loss_whose_metrics_change(scale):
    def loss(model, batch):
        return *linear_loss(model, batch)[:2], {f"m{batch['x'].size}": (0.0, 1.0)}

    trainer = JaxTrainer(Scale(), optax.sgd(1.0), loss)
    trainer.fwd_bwd(numbers(0, 1.0))
    with pytest.raises(refused.LossError, match="reports m2, and reported m1 before"):
        trainer.fwd_bwd(numbers(0, 1.0, 2.0))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: JaxTrainer(Scale(), optax.adam, linear_loss), refused.OptimizerError, "not a function"),
        (lambda: JaxTrainer(Scale(), optax.lbfgs(), linear_loss), refused.OptimizerError, "gradients alone"),
        (lambda: JaxTrainer(Scale(), optax.sgd(1.0), None), refused.LossError, "a NoneType cannot be called"),
        (lambda: JaxTrainer(object(), optax.sgd(1.0), linear_loss), refused.ModelError, "not a object"),
        (
            lambda: JaxTrainer(Scale(), optax.sgd(1.0), linear_loss, in_flight=0),
            refused.TrainerSettingError,
            "in_flight=0",
        ),
    ],
)  # fmt: skip
def test_parts_that_cannot_be_used(make, error, words):
    with pytest.raises(error, match=words):
        make()
