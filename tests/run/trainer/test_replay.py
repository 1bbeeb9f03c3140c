"""A micro-batch that lost tokens leaves nothing behind, and is run again without loss, one micro-batch late."""

import gc
import itertools
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from trainer_cases import Scale, backend_compiles, flat, linear_loss, numbers, params_of, train

from steptrace.diag import training as refused
from steptrace.lang.records import MicroBatch
from steptrace.run.trainer import JaxTrainer, Replay

SMALL, LARGE = (1.0, 2.0), (3.0, 400.0)


class Capped(nnx.Module):
    """``w * x``, but what is above 100 is lost, and then no number is right."""

    def __init__(self):
        self.w = nnx.Param(jnp.zeros(()))
        self.whole = False

    def __call__(self, x):
        lost = jnp.zeros((), bool) if self.whole else jnp.any(x > 100)
        if hasattr(self, "lost"):
            self.lost[...] = lost
        return self.w[...] * jnp.where(lost, jnp.nan, x)

    def watched(self):
        self.lost = nnx.Variable(jnp.zeros((), bool))
        return self

    def overflowed(self):
        return self.lost[...]

    def as_dropless(self):
        self.whole = True
        return self


def capped(replay=None, **options):
    return JaxTrainer(Capped(), optax.sgd(1.0), linear_loss, replay=replay or Replay(), **options)


def step_of(count, flagged, step=0):
    """Micro-batches whose indices in ``flagged`` are too large."""
    made = [numbers(step, *(LARGE if index in flagged else SMALL), index=index) for index in range(count)]
    return [MicroBatch(m.step, m.index, m.arrays, (), last=m.index == count - 1) for m in made]


PATTERNS = {
    "none": lambda count: (),
    "first": lambda count: (0,),
    "last": lambda count: (count - 1,),
    "every": range,
    "inner": lambda count: range(1, count - 1),
}


@pytest.mark.parametrize("last", [False, True], ids=["late", "last from the start"])
def test_the_update_is_the_mean_over_all_samples_each_counted_once(last):
    trainer = capped(Replay(dropless_last=last))
    before = np.float32(0)
    for step, (count, pattern) in enumerate(itertools.product((1, 2, 9, 3), PATTERNS)):
        flagged = set(PATTERNS[pattern](count))
        train(trainer, *step_of(count, flagged, step))
        shown = [value for index in range(count) for value in (LARGE if index in flagged else SMALL)]
        metrics = trainer.get_metrics()
        before -= np.float32(sum(shown)) / np.float32(len(shown))
        assert params_of(trainer) == [before]
        assert (metrics["count"], metrics["skipped"]) == (len(shown), 0)
        assert metrics["x"] == pytest.approx(np.mean(shown))
        assert metrics["replayed"] == len(flagged - ({count - 1} if last else set()))


def test_control_an_overflow_that_nobody_sees_ruins_the_update():
    trainer = capped(Replay(overflowed=lambda model: jnp.zeros((), bool)))
    train(trainer, *step_of(3, {1}))
    assert trainer.get_metrics()["skipped"] == 1


def test_without_replay_nobody_speaks_of_it():
    trainer = JaxTrainer(Scale(), optax.sgd(1.0), linear_loss)
    train(trainer, numbers(0, 1.0))
    assert "replayed" not in trainer.get_metrics()
    assert trainer.info()["capabilities"]["dropless_replay"] is False
    assert capped().info()["capabilities"]["dropless_replay"] is True


@pytest.fixture
def events(monkeypatch):
    """What a trainer dispatches, and where the host reads a flag, in order."""
    seen, kind = [], type(jnp.zeros(()))
    plain = kind.__bool__
    monkeypatch.setattr(kind, "__bool__", lambda self: seen.append("read") or plain(self))

    def follow(trainer):
        for name in ("fwd_bwd", "dropless"):
            leaf = getattr(trainer._leaves, name)
            setattr(trainer._leaves, name, lambda *a, _leaf=leaf, _name=name: seen.append(_name) or _leaf(*a))
        update = trainer._update
        trainer._update = lambda *a: seen.append("update") or update(*a)
        seen.clear()
        return seen

    return follow


def test_a_flag_is_read_once_the_next_micro_batch_is_sent_and_the_last_one_in_the_update(events):
    trainer = capped()
    trainer.compile(numbers(0, *SMALL))
    seen = events(trainer)
    train(trainer, *step_of(3, {0, 2}))
    late = ["fwd_bwd", "fwd_bwd", "read", "dropless", "fwd_bwd", "read", "read", "dropless", "update"]
    assert seen == late


def test_a_last_micro_batch_that_never_drops_leaves_the_update_nothing_to_read(events):
    trainer = capped(Replay(dropless_last=True))
    trainer.compile(numbers(0, *SMALL))
    seen = events(trainer)
    train(trainer, *step_of(3, {0, 2}))
    assert seen == ["fwd_bwd", "fwd_bwd", "read", "dropless", "dropless", "read", "update"]


def test_the_first_overflow_of_a_run_compiles_nothing():
    trainer = capped()
    train(trainer, *step_of(3, ()))
    trainer.get_metrics()
    params_of(trainer)
    traces = trainer.info()["compiles"]
    with backend_compiles() as compiled:
        train(trainer, *step_of(3, {0, 2}, step=1))
        assert trainer.get_metrics()["replayed"] == 2
        params_of(trainer)
    assert compiled == []
    assert trainer.info()["compiles"] == traces
    assert (traces["fwd_bwd"], traces["dropless"]) == (1, 1)


def held_then_staged(trainer, step, following):
    """A step whose update is held back behind a stage; gives the request."""
    for micro_batch in step[:-1]:
        trainer.fwd_bwd(micro_batch)
    trainer.fwd_bwd(step[-1], apply_optimizer=True, defer_update=True)
    request = trainer.stage_fwd_bwd(following)
    assert request.device_wait_s is None
    trainer.apply_deferred_update()
    return request


def trained_across(trainer, count, first, second):
    """Digest and metrics of two steps, with the micro-batch in between staged."""
    steps = step_of(count, first), step_of(count, second, step=1)
    request = held_then_staged(trainer, steps[0], steps[1][0])
    metrics = [trainer.get_metrics()]
    if count == 1:
        trainer.fwd_bwd_staged(request, apply_optimizer=True, defer_update=True)
        trainer.apply_deferred_update()
    else:
        trainer.fwd_bwd_staged(request)
        train(trainer, *steps[1][1:])
    return trainer.params_digest(), [*metrics, trainer.get_metrics()]


def trained_plainly(trainer, count, first, second):
    metrics = []
    for step in (step_of(count, first), step_of(count, second, step=1)):
        train(trainer, *step)
        metrics.append(trainer.get_metrics())
    return trainer.params_digest(), metrics


def test_a_replay_in_a_held_update_needs_nothing_of_the_staged_micro_batch():
    across, plain = capped(), capped()
    for count, pattern in itertools.product((1, 2, 9), PATTERNS):
        flagged = set(PATTERNS[pattern](count))
        for first, second in ((flagged, ()), ((), flagged), (flagged, flagged)):
            assert trained_across(across, count, first, second) == trained_plainly(plain, count, first, second)


def test_control_a_rerun_that_reads_the_staged_micro_batch_is_seen():
    class Careless(JaxTrainer):
        """Runs again what lies in the slot where there is something."""

        def _run_again(self, attempt):
            slot = self._boundary._slot
            arrays = attempt.arrays if slot is None else slot.arrays
            self._acc = self._leaves.dropless(self._acc, self._params, attempt.rest, arrays)[0]

    def careless():
        return Careless(Capped(), optax.sgd(1.0), linear_loss, replay=Replay())

    assert trained_across(careless(), 3, {0}, ()) == trained_plainly(careless(), 3, {0}, ())
    assert trained_across(careless(), 3, {2}, ())[0] != trained_plainly(capped(), 3, {2}, ())[0]


def test_control_a_rerun_on_top_of_the_attempt_is_seen():
    class Twice(JaxTrainer):
        """Runs everything again."""

        def _settle(self, keep=0):
            again = [] if keep else list(self._unsettled._attempts)
            super()._settle(keep)
            for attempt in again:
                self._run_again(attempt)

    twice = Twice(Capped(), optax.sgd(1.0), linear_loss, replay=Replay())
    assert trained_plainly(twice, 3, {1}, {0})[0] != trained_plainly(capped(), 3, {1}, {0})[0]


def on_device(step, index, values):
    array = jnp.asarray(values, jnp.float32)
    return MicroBatch(step, index, {"x": array}, ()), weakref.ref(array)


@pytest.mark.parametrize("values", [SMALL, LARGE])
def test_inputs_are_kept_until_they_are_settled_and_no_longer(values):
    trainer = capped()
    trainer.compile(numbers(0, *SMALL))
    first, kept = on_device(0, 0, values)
    trainer.fwd_bwd(first)
    del first
    gc.collect()
    assert kept() is not None
    second, kept_last = on_device(0, 1, values)
    trainer.fwd_bwd(second)
    del second
    gc.collect()
    assert (kept() is None, kept_last() is None) == (True, False)
    trainer.update()
    gc.collect()
    assert kept_last() is None


def test_inputs_that_were_given_away_before_they_settled_are_named():
    trainer = capped()
    micro_batch, _ = on_device(0, 0, LARGE)
    trainer.fwd_bwd(micro_batch, apply_optimizer=True, defer_update=True)
    micro_batch.arrays["x"].delete()
    with pytest.raises(refused.ReleasedInputError, match=r"micro-batch 0 of step 0 .* `x` was given away"):
        trainer.apply_deferred_update()
    with pytest.raises(refused.HeldUpdateError):  # the step is still open
        trainer.weights()


def test_inputs_given_away_once_they_settled_are_not_missed():
    trainer = capped()
    micro_batch, _ = on_device(0, 0, LARGE)
    trainer.fwd_bwd(micro_batch)
    trainer.fwd_bwd(numbers(0, *SMALL, index=1))
    micro_batch.arrays["x"].delete()
    trainer.update()
    assert params_of(trainer) == [-(sum(LARGE) + sum(SMALL)) / 4]


@pytest.mark.parametrize("how", ["compile", "restore"])
def test_what_is_dropped_with_a_step_is_not_run_again(how, tmp_path):
    trainer = capped()
    trainer.save_checkpoint(tmp_path / "saved")
    trainer.fwd_bwd(numbers(0, *LARGE), apply_optimizer=True, defer_update=True)
    if how == "compile":
        trainer.compile(numbers(0, *SMALL))
    else:
        trainer.restore_checkpoint(tmp_path / "saved")
    train(trainer, numbers(5, *SMALL))
    assert params_of(trainer) == [-1.5]
    assert trainer.get_metrics()["replayed"] == 0


class Busy(Capped):
    """Draws random numbers, and with ``norm`` keeps statistics of what it was shown."""

    def __init__(self, norm):
        super().__init__()
        rngs = nnx.Rngs(0)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.norm = nnx.BatchNorm(1, rngs=rngs) if norm else None

    def __call__(self, x):
        x = self.drop(x)
        return super().__call__(x if self.norm is None else self.norm(x[:, None])[:, 0])


@pytest.mark.slow
def test_a_rerun_draws_what_its_attempt_drew():
    lossy = JaxTrainer(Busy(norm=False), optax.sgd(1.0), linear_loss, replay=Replay())
    model = Busy(norm=False)
    model.whole = True
    whole = JaxTrainer(model, optax.sgd(1.0), linear_loss)
    for trainer in (lossy, whole):
        for step in range(3):
            train(trainer, *(numbers(step, *np.full(16, 200.0), index=index) for index in range(3)))
    # One power of two and few of them: sums are exact in any order.
    assert lossy.get_metrics()["replayed"] == 9
    np.testing.assert_array_equal(params_of(lossy), params_of(whole))
    np.testing.assert_array_equal(flat(jax.tree.map(_plain, lossy._rest)), flat(jax.tree.map(_plain, whole._rest)))


def _plain(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


REFUSED = {
    "has no method `watched`": (Scale, Replay()),
    r"bool scalar, not an array bool\[2\]": (Capped, Replay(overflowed=lambda model: jnp.zeros(2, bool))),
    r"bool scalar, not an array int32\[\]": (Capped, Replay(overflowed=lambda model: jnp.zeros((), jnp.int32))),
    "change its floating state": (lambda: Busy(norm=True), Replay()),
}


@pytest.mark.parametrize("message", REFUSED)
def test_models_that_cannot_be_replayed_are_refused_before_anything_is_compiled(message):
    model, replay = REFUSED[message]
    trainer = JaxTrainer(model(), optax.sgd(1.0), linear_loss, replay=replay)
    with pytest.raises(refused.ReplayError, match=message):
        trainer.fwd_bwd(numbers(0, *SMALL))
    assert trainer.info()["compiles"].get("fwd_bwd", 0) == 0
