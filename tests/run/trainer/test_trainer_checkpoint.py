"""Saving and restoring: the same trainer bit for bit, and nothing from a file that is not whole."""

import gc

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from test_skipped_updates import Noisy, optimizer, square_loss, step_batches
from trainer_cases import Scale, backend_compiles, linear_loss, numbers, params_of, train

from steptrace.diag.training import DamagedStateError, OtherModelError, StateNotWrittenError
from steptrace.run.digest import tree_digest
from steptrace.run.trainer import JaxTrainer


def noisy():
    return JaxTrainer(Noisy(), optimizer(), square_loss)


def digest(trainer):
    plain = [jax.random.key_data(x) if x.dtype.name.startswith("key") else x for x in jax.tree.leaves(trainer._saved())]
    return tree_digest(plain)


@pytest.mark.slow
def test_a_restored_trainer_goes_on_bit_for_bit(tmp_path):
    trainer = noisy()
    for step in range(2):
        train(trainer, *step_batches(step))
    trainer.save_checkpoint(tmp_path / "two")
    at_two = digest(trainer)
    other = noisy()
    train(other, *step_batches(7))
    other.fwd_bwd(step_batches(8)[0])  # dropped by the restore
    other.restore_checkpoint(tmp_path / "two")
    assert digest(other) == at_two
    assert other.get_metrics() == {}
    assert other.weights()[1] == 2
    with backend_compiles() as compiled:
        for each in (trainer, other):
            for step in range(2, 4):
                train(each, *step_batches(step))
    assert compiled == []
    assert digest(other) == digest(trainer) != at_two
    assert other.params_digest() == trainer.params_digest()
    assert other.get_records() == trainer.get_records()[-2:]


def test_the_optimizer_count_is_restored(tmp_path):
    schedule = optax.linear_schedule(1.0, 0.0, 4)
    trainer = JaxTrainer(Scale(), optax.sgd(schedule), linear_loss)
    train(trainer, numbers(0, 1.0))
    trainer.save_checkpoint(tmp_path)
    fresh = JaxTrainer(Scale(), optax.sgd(schedule), linear_loss)
    fresh.restore_checkpoint(tmp_path)
    train(fresh, numbers(1, 1.0))
    assert params_of(fresh) == [-1.75]


@pytest.fixture
def saved(tmp_path):
    trainer = JaxTrainer(Scale(2.0), optax.adam(0.1), linear_loss)
    train(trainer, numbers(0, 1.0))
    trainer.save_checkpoint(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # reads that Orbax leaves behind
@pytest.mark.parametrize("harm", ["cut", "empty", "garbled", "gone"])
def test_no_harm_to_any_file_goes_unseen(saved, harm):
    files = sorted(path for path in saved.rglob("*") if path.is_file() and path.stat().st_size)
    assert len(files) > 3
    refused = 0
    for path in files:
        whole = path.read_bytes()
        trainer = JaxTrainer(Scale(5.0), optax.adam(0.1), linear_loss)
        if harm == "gone":
            path.unlink()
        else:
            middle = len(whole) // 2
            flipped = whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]
            path.write_bytes({"cut": whole[:middle], "empty": b"", "garbled": flipped}[harm])
        try:
            trainer.restore_checkpoint(saved)
        except DamagedStateError:
            refused += 1
            assert params_of(trainer) == [5.0]
        except OtherModelError:
            refused += 1
        else:  # a file that restoring does not need
            train(trainer, numbers(1, 1.0))
            np.testing.assert_allclose(params_of(trainer), [1.8], rtol=1e-6)
        path.write_bytes(whole)
    assert refused >= 2
    gc.collect()  # the reads that Orbax leaves behind complain when they go


def test_no_checkpoint_there(tmp_path):
    with pytest.raises(DamagedStateError, match="no whole trainer state"):
        JaxTrainer(Scale(), optax.sgd(0.1), linear_loss).restore_checkpoint(tmp_path / "none")


def test_another_optimizer_or_model(saved):
    with pytest.raises(OtherModelError, match="another model or optimizer") as error:
        JaxTrainer(Scale(), optax.sgd(0.1), linear_loss).restore_checkpoint(saved)
    assert "saved:   optimizer.0.mu.w [] float32" in str(error.value)
    with pytest.raises(OtherModelError):
        JaxTrainer(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), optax.adam(0.1), linear_loss).restore_checkpoint(saved)


def test_a_folder_that_cannot_be_written(saved):
    trainer = JaxTrainer(Scale(), optax.sgd(0.1), linear_loss)
    with pytest.raises(StateNotWrittenError):
        trainer.save_checkpoint(saved)
    (saved / "file").write_text("")
    with pytest.raises(StateNotWrittenError):
        trainer.save_checkpoint(saved / "file")
