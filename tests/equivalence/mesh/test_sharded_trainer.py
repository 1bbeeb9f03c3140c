"""The trainer on eight devices: what lies where, and the same updates as on one."""

from __future__ import annotations

import functools

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, PartitionSpec

from steptrace.diag.training import MeshError
from steptrace.lang.records import MicroBatch
from steptrace.run.models.decoder import Decoder, DecoderConfig
from steptrace.run.models.moe import MoeConfig, MoeDecoder
from steptrace.run.rollout import FrozenReference
from steptrace.run.trainer import GrpoLoss, JaxTrainer
from steptrace_kernels.hlo_report import hlo_report

pytestmark = pytest.mark.slow

ROWS, LENGTH, VOCAB = 8, 12, 40
DIM = 16
AXES = ("data", "fsdp", "context")
LEARNING_RATE = 0.1


def mesh_of(*sizes, axes=AXES, kind=AxisType.Auto):
    return jax.make_mesh(sizes, axes, axis_types=(kind,) * len(axes))


def micro_batch(step, index, rows=ROWS, *, seed=0, order=None, last=False):
    """Rows of two sequences and some padding; ``order`` lays the same rows otherwise."""
    rng = np.random.default_rng([seed, step, index])
    shape = (rows, LENGTH)
    segments = np.tile(np.repeat(np.array([1, 2, 0], np.int32), (5, 5, 2)), (rows, 1))
    arrays = {
        "tokens": rng.integers(2, VOCAB, shape).astype(np.int32),
        "segment_ids": segments,
        "positions": np.tile(np.r_[0:5, 0:5, 0:2].astype(np.int32), (rows, 1)),
        "loss_mask": (segments > 0).astype(np.float32),
        "rollout_logps": -rng.uniform(1, 4, shape).astype(np.float32),
        "ref_logps": -rng.uniform(1, 4, shape).astype(np.float32),
        "advantages": rng.normal(size=shape).astype(np.float32),
    }
    if order is not None:
        arrays = {name: array[order] for name, array in arrays.items()}
    return MicroBatch(step, index, arrays, (), last=last)


def trainer(mesh=None, head="dense", **settings):
    model = Decoder(DecoderConfig(vocab_size=VOCAB, dim=DIM, layers=1, heads=2, max_length=LENGTH))
    loss = GrpoLoss(kl_coef=0.1, head=head)
    return JaxTrainer(model, optax.sgd(LEARNING_RATE, momentum=0.9), loss, mesh=mesh, **settings)


@functools.cache
def sharded():
    """One trainer for all tests, which compiles once; each begins with `fresh`."""
    return trainer(mesh_of(2, 2, 2))


@pytest.fixture
def fresh(tmp_path_factory):
    """The sharded trainer as it was made."""
    made, folder = sharded(), tmp_path_factory.getbasetemp() / "as-made"
    if not folder.exists():
        made.save_checkpoint(folder)
    made.restore_checkpoint(folder)
    return made


def train(made, steps=2, counts=(3, 2), unmasked=None, **settings):
    """Steps of unequal numbers of micro-batches; one of these may have one trained token less."""
    for step in range(steps):
        for index in range(counts[step]):
            made_up = micro_batch(step, index, **settings)
            if (step, index) == unmasked:
                made_up.arrays["loss_mask"][0, 1] = 0
            made.fwd_bwd(made_up)
        made.update()
    return made


def flat(made):
    """All parameters as one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(made.weights()[0])]).astype(np.float64)


def specs(tree):
    return {tuple(leaf.sharding.spec) for leaf in jax.tree.leaves(tree)}


def test_the_update_is_that_of_one_device_up_to_rounding(fresh, tmp_path):
    """The noise floor is measured: one device, the rows of each micro-batch laid in four other orders.

    These differ in nothing but the order of float32 sums, as shards do. What the mesh makes may be twice as far from
    one device as the farthest of them; a loss mask with one token less is a hundred times as far.
    """
    alone = trainer()
    start = flat(alone)
    alone.save_checkpoint(tmp_path)

    def on_one(**settings):
        alone.restore_checkpoint(tmp_path)
        return flat(train(alone, **settings))

    plain = on_one()
    orders = [np.random.default_rng(seed).permutation(ROWS) for seed in range(4)]
    floor = max(np.abs(on_one(order=order) - plain).max() for order in orders)
    moved, off = np.abs(plain - start).max(), np.abs(flat(train(fresh)) - plain).max()
    print(f"moved {moved:.3g}, floor {floor:.3g}, mesh {off:.3g}")
    assert 0 < floor < 1e-4 * moved
    assert off <= 2 * floor
    less = np.abs(on_one(unmasked=(1, 1)) - plain).max()
    assert less > 100 * floor


def test_parameters_moments_and_accumulator_are_sharded_and_stay_so(fresh):
    made = fresh
    train(made, steps=1)
    made.fwd_bwd(micro_batch(1, 0))
    for tree in (made._params, made._acc.grads, made._state):
        assert all("fsdp" in spec for spec in specs(tree) if spec)
    assert specs(made._params) == specs(made._acc.grads) == specs(made._state)
    assert dict(made.info()["compiles"]) == {**made.info()["compiles"], "fwd_bwd": 1, "update": 1}


def test_micro_batches_are_sharded_by_what_divides_them(fresh):
    placed = fresh._place.batch(dict(micro_batch(0, 0).arrays) | {"by_row": np.ones(ROWS), "other": np.ones(3)})
    assert placed["tokens"].sharding.spec == PartitionSpec(("data", "fsdp"), "context")
    assert placed["by_row"].sharding.spec == PartitionSpec(("data", "fsdp"))
    assert placed["other"].sharding.spec == PartitionSpec()
    two_rows = fresh._place.batch(micro_batch(0, 0, rows=2).arrays)
    assert two_rows["tokens"].sharding.spec == PartitionSpec(("data",), "context")
    odd = fresh._place.batch({"tokens": np.ones((3, 5), np.int32)})
    assert odd["tokens"].sharding.spec == PartitionSpec(None, None)


def test_buffers_are_donated(fresh):
    old = jax.tree.leaves(fresh._params)
    train(fresh, steps=1)
    assert all(leaf.is_deleted() for leaf in old)


def test_a_gradient_that_is_no_number_changes_nothing(fresh):
    train(fresh, steps=1)
    fresh.get_metrics()
    before = fresh.params_digest()
    bad = micro_batch(1, 0)
    bad.arrays["advantages"][0, 3] = np.nan
    fresh.fwd_bwd(bad)
    fresh.update()
    assert fresh.get_metrics()["skipped"] == 1
    assert fresh.params_digest() == before
    fresh.fwd_bwd(micro_batch(2, 0))
    fresh.update()
    assert fresh.get_metrics()["skipped"] == 0
    assert fresh.params_digest() != before


def test_a_staged_micro_batch_trains_the_same(fresh, tmp_path):
    fresh.save_checkpoint(tmp_path)
    whole = train(fresh, steps=1).params_digest()
    fresh.restore_checkpoint(tmp_path)
    staged = fresh.stage_fwd_bwd(micro_batch(0, 0))
    fresh.fwd_bwd_staged(staged)
    for index in (1, 2):
        fresh.fwd_bwd(micro_batch(0, index), apply_optimizer=index == 2, defer_update=index == 2)
    fresh.apply_deferred_update()
    assert fresh.params_digest() == whole


def test_control_two_micro_batches_swapped_are_seen(fresh, tmp_path):
    fresh.save_checkpoint(tmp_path)
    in_order = train(fresh, steps=1).params_digest()
    fresh.restore_checkpoint(tmp_path)
    assert train(fresh, steps=1).params_digest() == in_order
    fresh.restore_checkpoint(tmp_path)
    for index in (0, 2, 1):  # the first two would add up to the same bits
        fresh.fwd_bwd(micro_batch(0, index))
    fresh.update()
    assert fresh.params_digest() != in_order


def test_a_checkpoint_knows_nothing_of_the_mesh(fresh, tmp_path):
    train(fresh, steps=1)
    fresh.save_checkpoint(tmp_path / "sharded")
    alone = trainer()
    alone.restore_checkpoint(tmp_path / "sharded")
    assert alone.params_digest() == fresh.params_digest()
    assert alone.updates_applied == 1
    alone.save_checkpoint(tmp_path / "alone")
    fresh.write_checkpoint(fresh.snapshot_checkpoint(), tmp_path / "copied")
    alone.restore_checkpoint(tmp_path / "copied")
    assert alone.params_digest() == fresh.params_digest()
    digest = train(fresh, steps=1, seed=1).params_digest()
    fresh.restore_checkpoint(tmp_path / "alone")
    assert all(specs(fresh._params))
    assert train(fresh, steps=1, seed=1).params_digest() == digest


def test_weights_come_whole_and_bound_to_no_device(fresh):
    weights, version = train(fresh, steps=1).weights()
    assert version == 1
    for leaf, own in zip(jax.tree.leaves(weights), jax.tree.leaves(fresh._params), strict=True):
        assert len(leaf.devices()) == 1
        assert not leaf.committed
        assert np.array_equal(leaf, own)


def test_experts_are_sharded_over_their_axis():
    model = MoeDecoder(MoeConfig(VOCAB, dim=16, layers=1, heads=2, max_length=LENGTH, experts=4, top_k=1))
    axes = ("data", "fsdp", "expert", "context")
    made = JaxTrainer(model, optax.adam(0.1), GrpoLoss(kl_coef=0.1), mesh=mesh_of(1, 2, 4, 1, axes=axes))
    assert {spec for spec in specs(made._params) if "expert" in spec} == {("expert", None, "fsdp")}
    train(made, steps=1)
    assert made.get_metrics()["skipped"] == 0


def test_the_head_over_the_mesh_is_in_the_trainers_own_program(fresh):
    """Hidden states and their gradients go to where the table is, and the table stays where it lies."""
    made = trainer(fresh._place.mesh, head="shard_map")
    compiled = [one.lower(micro_batch(0, 0)).compile() for one in (fresh, made)]
    assert ["shard_map" in one.as_text() for one in compiled] == [False, True]
    dense, kernel = (hlo_report(one, table=(VOCAB, DIM)) for one in compiled)
    assert (dense.count("reduce-scatter"), kernel.count("reduce-scatter")) == (0, 1)
    assert kernel.bytes_of("all-gather", table=True) < dense.bytes_of("all-gather", table=True)
    assert kernel.bytes < dense.bytes
    off = np.abs(flat(train(fresh)) - flat(train(made))).max()
    assert 0 < off < 1e-6  # rounding, as above; not the same program


@pytest.mark.parametrize("head", ["dense", "shard_map"])
def test_a_reference_on_the_mesh_gives_the_log_probs_of_one_device(head):
    model = Decoder(DecoderConfig(vocab_size=VOCAB, dim=DIM, layers=1, heads=2, max_length=LENGTH))
    one, made = FrozenReference(model), FrozenReference(model, mesh=mesh_of(2, 2, 2), head=head)
    logps = made.logps(micro_batch(0, 0))
    assert len(logps.devices()) == 8
    assert np.abs(np.asarray(logps) - one.logps(micro_batch(0, 0))).max() < 4e-6  # log-probs of about 4
    assert not np.asarray(logps)[:, [0, 5, 10, 11]].any()


def test_rules_come_first_and_explicit_axes_are_taken_as_automatic():
    rules = [("embedding", PartitionSpec("data", "fsdp"))]
    made = trainer(mesh_of(4, 2, 1, kind=AxisType.Explicit), rules=rules)
    assert made._params["embedding"].sharding.spec == PartitionSpec("data", "fsdp")
    assert made._params["head_kernel"].sharding.spec != PartitionSpec("data", "fsdp")
    with pytest.raises(MeshError, match="tensor"):
        trainer(mesh_of(4, 2, 1), rules=[("embedding", PartitionSpec("tensor"))])
    with pytest.raises(MeshError, match="does not divide"):
        trainer(mesh_of(4, 2, 1), rules=[("gate_up", PartitionSpec(None, ("data", "fsdp")))])
    with pytest.raises(MeshError, match="without a mesh"):
        trainer(rules=rules)
