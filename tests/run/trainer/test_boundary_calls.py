"""What a trainer holds across the border of two steps: staged micro-batches, updates held back, and all it refuses."""

import threading

import optax
import pytest
from flax import nnx
from trainer_cases import Decoder, Scale, batches, linear_loss, numbers, one_each, params_of, sequences

from steptrace.diag import training as refused
from steptrace.run.trainer import GrpoLoss, JaxTrainer


@pytest.fixture
def scale():
    return JaxTrainer(Scale(), optax.adam(0.1), linear_loss)


@pytest.fixture
def decoder():
    return JaxTrainer(Decoder(nnx.Rngs(0)), optax.adam(0.1), GrpoLoss(kl_coef=0.1))


STEP = batches(0, one_each(sequences(6)), 3, fill=2)
NEXT = batches(1, one_each(sequences(6, seed=1)), 3, fill=2)


def plain(trainer, *steps):
    for step in steps:
        for micro_batch in step:
            trainer.fwd_bwd(micro_batch)
        trainer.update()
    return trainer.params_digest(), trainer.get_metrics()


def held(trainer, step, staged=None):
    """A step whose first micro-batch may be staged and whose last one holds the update back."""
    for micro_batch in step[:-1]:
        if staged is not None and micro_batch is step[0]:
            trainer.fwd_bwd_staged(staged)
        else:
            trainer.fwd_bwd(micro_batch)
    return trainer.fwd_bwd(step[-1], apply_optimizer=True, defer_update=True)


def test_staged_and_held_back_trains_bit_for_bit_the_same(decoder):
    wanted = plain(JaxTrainer(Decoder(nnx.Rngs(0)), optax.adam(0.1), GrpoLoss(kl_coef=0.1)), STEP, NEXT)
    assert held(decoder, STEP) == {"update_deferred": True}
    staged = decoder.stage_fwd_bwd(NEXT[0])
    assert (staged.device_wait_s, staged.update_ready) == (None, False)
    applied = decoder.apply_deferred_update()
    assert applied["update_ready"] is True
    assert applied["device_wait_s"] >= 0.0
    held(decoder, NEXT, staged)
    decoder.apply_deferred_update()
    assert (decoder.params_digest(), decoder.get_metrics()) == wanted


def test_a_fused_call_trains_the_same(decoder):
    wanted = plain(JaxTrainer(Decoder(nnx.Rngs(0)), optax.adam(0.1), GrpoLoss(kl_coef=0.1)), STEP, NEXT)
    for step, wait in ((STEP, True), (NEXT, False)):
        for micro_batch in step[:-1]:
            assert decoder.fwd_bwd(micro_batch) is None
        assert decoder.fwd_bwd(step[-1], apply_optimizer=True, wait_for_update=wait) == {"update_deferred": False}
    assert (decoder.params_digest(), decoder.get_metrics()) == wanted


def test_control_the_staged_micro_batch_counts(decoder):
    wanted = plain(JaxTrainer(Decoder(nnx.Rngs(0)), optax.adam(0.1), GrpoLoss(kl_coef=0.1)), STEP, NEXT)
    held(decoder, STEP)
    decoder.stage_fwd_bwd(NEXT[0])
    decoder.apply_deferred_update()
    held(decoder, NEXT[1:])
    decoder.apply_deferred_update()
    assert decoder.params_digest() != wanted[0]


def test_a_staged_micro_batch_is_a_copy(scale):
    micro_batch = numbers(0, 1.0, 2.0)
    staged = scale.stage_fwd_bwd(micro_batch)
    for array in micro_batch.arrays.values():
        array[...] = 9
    scale.fwd_bwd_staged(staged.request)
    scale.update()
    other = JaxTrainer(Scale(), optax.adam(0.1), linear_loss)
    plain(other, [numbers(0, 1.0, 2.0)])
    assert params_of(scale) == params_of(other)


REFUSED = {
    "another micro-batch": lambda trainer, folder: trainer.fwd_bwd(numbers(0, 3.0)),
    "an update": lambda trainer, folder: trainer.update(),
    "metrics": lambda trainer, folder: trainer.get_metrics(),
    "a copy of the weights": lambda trainer, folder: trainer.copy_weights(),
    "an evaluation": lambda trainer, folder: trainer.evaluate([numbers(0, 3.0)]),
    "log-probs": lambda trainer, folder: trainer.old_logps(numbers(0, 3.0)),
    "a checkpoint": lambda trainer, folder: trainer.save_checkpoint(folder / "made"),
    "snapshot": lambda trainer, folder: trainer.snapshot_checkpoint(),
    "weights": lambda trainer, folder: trainer.weights(),
    "set aside": lambda trainer, folder: trainer.start_metrics(),
    "staged": lambda trainer, folder: trainer.fwd_bwd_staged(1),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_needs_the_step_closed_is_refused_while_its_update_is_held_back(scale, tmp_path, what):
    scale.fwd_bwd(numbers(0, 1.0), apply_optimizer=True, defer_update=True)
    scale.stage_fwd_bwd(numbers(1, 5.0))
    before = scale.params_digest()
    with pytest.raises(refused.HeldUpdateError, match="while the update of step 0 is held back"):
        REFUSED[what](scale, tmp_path)
    assert scale.params_digest() == before
    assert not (tmp_path / "made").exists()
    scale.apply_deferred_update()  # what was refused left nothing behind
    scale.fwd_bwd_staged(1)
    assert scale.updates_applied == 1


def test_control_the_same_calls_pass_once_it_is_applied(scale, tmp_path):
    scale.fwd_bwd(numbers(0, 1.0), apply_optimizer=True, defer_update=True)
    scale.apply_deferred_update()
    for what in (
        "metrics",
        "a copy of the weights",
        "a checkpoint",
        "snapshot",
        "weights",
        "set aside",
        "an evaluation",
    ):
        REFUSED[what](scale, tmp_path)


def test_one_micro_batch_is_staged_at_a_time(scale):
    staged = scale.stage_fwd_bwd(numbers(0, 1.0))
    with pytest.raises(refused.AlreadyStagedError, match="micro-batch 0 of step 0 is"):
        scale.stage_fwd_bwd(numbers(0, 2.0))
    with pytest.raises(refused.NotStagedError, match="request 7 is not staged: request 1 is"):
        scale.fwd_bwd_staged(7)
    scale.fwd_bwd_staged(staged)
    with pytest.raises(refused.NotStagedError, match="nothing is"):
        scale.fwd_bwd_staged(staged)


def test_nothing_is_held_back(scale):
    with pytest.raises(refused.NothingHeldError):
        scale.apply_deferred_update()
    scale.fwd_bwd(numbers(0, 1.0))
    with pytest.raises(refused.NothingHeldError):
        scale.apply_deferred_update()


def test_holding_back_goes_with_closing(scale):
    with pytest.raises(refused.TrainerCallError):
        scale.fwd_bwd(numbers(0, 1.0), defer_update=True)


@pytest.mark.parametrize("how", ["compile", "restore"])
def test_compile_and_restore_drop_what_is_staged_and_held_back(scale, tmp_path, how):
    scale.save_checkpoint(tmp_path / "saved")
    before = params_of(scale)
    scale.fwd_bwd(numbers(0, 1.0), apply_optimizer=True, defer_update=True)
    scale.stage_fwd_bwd(numbers(1, 5.0))
    if how == "compile":
        scale.compile(numbers(0, 1.0))
    else:
        scale.restore_checkpoint(tmp_path / "saved")
    with pytest.raises(refused.NotStagedError):
        scale.fwd_bwd_staged(1)
    with pytest.raises(refused.NothingHeldError):
        scale.apply_deferred_update()
    assert params_of(scale) == before
    scale.stage_fwd_bwd(numbers(3, 1.0))  # the successor's first stage
    with pytest.raises(refused.NothingAccumulatedError):
        scale.update()


def test_an_update_stays_held_back_until_the_device_was_waited_for(scale, monkeypatch):
    scale.fwd_bwd(numbers(0, 1.0), apply_optimizer=True, defer_update=True)

    def broken():
        raise RuntimeError("out of memory")

    monkeypatch.setattr(scale, "wait_for_device", broken)
    with pytest.raises(refused.UpdateFailedError, match="the update of step 0 saw it: out of memory"):
        scale.apply_deferred_update()
    with pytest.raises(refused.HeldUpdateError):
        scale.weights()
    monkeypatch.undo()
    scale.apply_deferred_update()
    assert scale.weights()[1] == 1


def test_a_failure_that_a_stage_meets_is_the_updates(scale, monkeypatch):
    plain(scale, [numbers(0, 1.0)])
    scale.fwd_bwd(numbers(1, 1.0), apply_optimizer=True)

    def broken():
        raise RuntimeError("out of memory")

    monkeypatch.setattr(scale, "wait_for_device", broken)
    with pytest.raises(
        refused.UpdateFailedError, match=r"update of step 1 failed .* staging micro-batch 0 of step 2 saw"
    ):
        scale.stage_fwd_bwd(numbers(2, 1.0))
    monkeypatch.undo()
    scale.stage_fwd_bwd(numbers(2, 1.0))  # nothing was staged by the one that failed


def test_a_stage_without_a_held_update_tells_how_long_the_device_took(scale):
    scale.fwd_bwd(numbers(0, 1.0), apply_optimizer=True, wait_for_update=False)
    staged = scale.stage_fwd_bwd(numbers(1, 1.0))
    assert staged.device_wait_s >= 0.0
    assert staged.update_ready is True


def test_metrics_set_aside_are_those_of_their_step(scale):
    wanted = [plain(JaxTrainer(Scale(), optax.adam(0.1), linear_loss), [numbers(0, 4.0)])[1]]
    scale.fwd_bwd(numbers(0, 4.0), apply_optimizer=True)
    aside = scale.start_metrics()
    scale.fwd_bwd(numbers(1, 50.0), apply_optimizer=True)
    assert [scale.fetch_metrics(aside)] == wanted
    assert scale.get_metrics()["step"] == 1.0


def test_a_snapshot_is_what_the_trainer_was(scale, tmp_path):
    plain(scale, [numbers(0, 1.0)])
    snapshot, digest = scale.snapshot_checkpoint(), scale.params_digest()
    plain(scale, [numbers(1, 5.0)])
    assert scale.params_digest() != digest
    scale.write_checkpoint(snapshot, tmp_path / "made")
    other = JaxTrainer(Scale(), optax.adam(0.1), linear_loss)
    other.restore_checkpoint(tmp_path / "made")
    assert other.params_digest() == digest
    assert other.updates_applied == 1


def written_by_another_thread(trainer, snapshot, folder):
    """Write a snapshot on a thread of its own while updates take the buffers that it was made of."""
    met = []

    def write():
        try:
            trainer.write_checkpoint(snapshot, folder)
        except Exception as error:
            met.append(error)

    thread = threading.Thread(target=write)
    plain(trainer, [numbers(1, 5.0)])
    thread.start()
    for step in range(2, 12):
        plain(trainer, [numbers(step, 5.0)])
    thread.join()
    return met


def test_a_snapshot_is_written_while_updates_take_the_buffers_it_was_made_of(scale, tmp_path):
    plain(scale, [numbers(0, 1.0)])
    digest = scale.params_digest()
    assert written_by_another_thread(scale, scale.snapshot_checkpoint(), tmp_path / "made") == []
    other = JaxTrainer(Scale(), optax.adam(0.1), linear_loss)
    other.restore_checkpoint(tmp_path / "made")
    assert other.params_digest() == digest != scale.params_digest()


def test_control_what_is_no_copy_is_gone_by_then(scale, tmp_path):
    plain(scale, [numbers(0, 1.0)])
    (error,) = written_by_another_thread(scale, scale._saved(), tmp_path / "made")
    assert "deleted" in str(error)


def test_a_staged_call_that_is_refused_keeps_its_micro_batch(scale):
    staged = scale.stage_fwd_bwd(numbers(1, 1.0))
    scale.fwd_bwd(numbers(0, 1.0))
    with pytest.raises(refused.UnfinishedStepError):
        scale.fwd_bwd_staged(staged)
    with pytest.raises(refused.TrainerCallError):
        scale.fwd_bwd_staged(staged, defer_update=True)
    scale.update()
    scale.fwd_bwd_staged(staged, apply_optimizer=True)
    assert scale.updates_applied == 2


def test_what_it_advertises(scale):
    said = scale.info()["capabilities"]
    assert said["stage_before_update"] is True
    assert said["fused_update"] is True


def test_staging_compiles_nothing_new(decoder):
    plain(decoder, STEP)
    before = decoder.info()["compiles"]
    held(decoder, NEXT, decoder.stage_fwd_bwd(NEXT[0]))
    decoder.apply_deferred_update()
    assert decoder.info()["compiles"] == before
