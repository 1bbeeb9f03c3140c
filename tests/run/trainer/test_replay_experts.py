"""A decoder of experts under replay, against a trainer whose program never drops a token."""

import numpy as np
import optax
import pytest
from trainer_cases import LENGTH, VOCAB, batches, flat, one_each, params_of, sequences

from steptrace.lang.records import MicroBatch
from steptrace.run.models.moe import MoeConfig, MoeDecoder
from steptrace.run.trainer import GrpoLoss, JaxTrainer, Replay

CONFIG = MoeConfig(VOCAB, dim=16, layers=1, heads=2, max_length=LENGTH, experts=4, top_k=2, capacity_factor=0.7)
FILL = 3


def trainer_of(model, kind=JaxTrainer, **options):
    return kind(model, optax.sgd(0.02, momentum=0.0), GrpoLoss(kl_coef=0.1), **options)


def lossy(kind=JaxTrainer):
    return trainer_of(MoeDecoder(CONFIG, seed=5), kind, replay=Replay())


def whole():
    return trainer_of(MoeDecoder(CONFIG, seed=5).as_dropless())


def crowded(micro_batch):
    """All tokens the same, so that they crowd into the same experts."""
    arrays = dict(micro_batch.arrays)
    arrays["tokens"] = np.where(arrays["segment_ids"] > 0, 7, 0).astype(np.int32)
    return MicroBatch(micro_batch.step, micro_batch.index, arrays, (), last=micro_batch.last)


def step_of(step, count, flagged):
    """Short sequences in rows of their own, which leave room in the buffer unless they crowd."""
    made = batches(step, one_each(sequences(FILL * count, seed=step, shortest=13, longest=14)), count, fill=FILL)
    return [crowded(micro_batch) if micro_batch.index in flagged else micro_batch for micro_batch in made]


def settled_order(count, flagged):
    """The indices in the order in which their sums are added: a flagged one after the one behind it was tried."""
    order = []
    for index in range(count):
        order += [index] * (index not in flagged)
        order += [index - 1] * (index - 1 in flagged)
    return order + [count - 1] * (count - 1 in flagged)


STEPS = [
    (count, crowd) for count in (1, 2, 9) for crowd in (set(), {0}, {count - 1}, set(range(count)))
]  # how many micro-batches, and which of them crowd


class Noting(JaxTrainer):
    """Notes by step which micro-batches it ran again."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.flagged = [set() for _ in STEPS]

    def _run_again(self, attempt):
        index, step = (int(word) for word in attempt.name.split() if word.isdigit())
        self.flagged[step].add(index)
        super()._run_again(attempt)


def run(trainer, order):
    """Steps of unequal sizes, one after the other; gives the digest, the metrics, and the gradients of each.

    Parameters would not show the last bit of a gradient; the momentum that the optimizer keeps is the gradient itself.
    """
    metrics, grads = [], []
    for step, (count, crowd) in enumerate(STEPS):
        micro_batches = step_of(step, count, crowd)
        for index in order(step):
            trainer.fwd_bwd(micro_batches[index])
        trainer.update()
        metrics.append(trainer.get_metrics())
        grads.append(flat(trainer._state))
    return trainer.params_digest(), metrics, grads


def furthest(one, other):
    return max(np.abs(a - b).max() for a, b in zip(one, other, strict=True))


@pytest.mark.slow
def test_it_is_the_trainer_that_never_drops_bit_for_bit_in_the_order_of_settling(tmp_path):
    """All that replay changes is the order in which the sums of a step are added."""
    trainer = lossy(kind=Noting)
    digest, metrics, grads = run(trainer, lambda step: range(STEPS[step][0]))
    flagged = trainer.flagged
    assert [record.pop("replayed") for record in metrics] == [len(indices) for indices in flagged]
    assert all(crowd <= indices for (_, crowd), indices in zip(STEPS, flagged, strict=True))
    assert any(not indices for indices in flagged)
    assert min(record["grad_norm"] for record in metrics) > 0.1

    never = whole()
    never.save_checkpoint(tmp_path)
    settled = run(never, lambda step: settled_order(STEPS[step][0], flagged[step]))
    assert settled[:2] == (digest, metrics)
    assert furthest(grads, settled[2]) == 0
    never.restore_checkpoint(tmp_path)
    in_order = run(never, lambda step: range(STEPS[step][0]))
    never.restore_checkpoint(tmp_path)
    backwards = run(never, lambda step: range(STEPS[step][0])[::-1])
    floor = furthest(backwards[2], in_order[2])  # what another order does to the same sums
    assert 0 < floor < 1e-5
    assert 0 < furthest(grads, in_order[2]) <= 4 * floor


@pytest.mark.slow
def test_control_tokens_that_nobody_misses_show():
    trainer = trainer_of(MoeDecoder(CONFIG, seed=5))
    for one in (trainer, reference := whole()):
        for micro_batch in step_of(0, 2, {1}):
            one.fwd_bwd(micro_batch)
        one.update()
    assert np.abs(params_of(trainer) - params_of(reference)).max() > 1e-4


@pytest.mark.slow
def test_log_probs_never_drop():
    micro_batch = crowded(step_of(0, 1, ())[0])
    np.testing.assert_array_equal(lossy().old_logps(micro_batch), whole().old_logps(micro_batch))
    plain = trainer_of(MoeDecoder(CONFIG, seed=5)).old_logps(micro_batch)
    assert np.abs(np.asarray(plain) - np.asarray(whole().old_logps(micro_batch))).max() > 1e-3
