"""The log-prob head as the main job selects it: in the trainer's own program, at the bytes predicted, and exact."""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import optax
import pytest
import test_sharded_trainer as sharded
from sharded_runs import Made
from test_sharded_schedules import program

from steptrace.check.head_law import head_of
from steptrace.lang.records import MicroBatch
from steptrace.lang.reference import resolve
from steptrace.run.api import plan_for
from steptrace.run.data.packing import Packer
from steptrace.run.job.head import with_planned_head
from steptrace.run.job.job import built_parts
from steptrace.run.job.setup import load_setup
from steptrace.run.models.decoder import Decoder, DecoderConfig
from steptrace.run.models.split import split_model
from steptrace.run.rollout import FrozenReference
from steptrace.run.trainer import GrpoLoss, JaxTrainer
from steptrace.run.trainer.head_plan import HeadSizes, planned_head
from steptrace_kernels.hlo_report import HloReport, hlo_report

sys.path.insert(0, str(Path(__file__).parents[2] / "run" / "job"))
from job_cases import RECIPE, job

pytestmark = pytest.mark.slow
pytest.importorskip("reasoning_gym")

DEVICES = {"data": 2, "fsdp": 2, "context": 2}
MESH = "data=2,fsdp=2,context=2"
SELECT = "select-logps-head"


def sent_by_head(report: HloReport, vocab: int, dim: int = 16) -> float:
    """Bytes of the collectives that the kernel wrote: they have the names of JAX's functions, the compiler's have not.

    The sum of the table's gradient over the other axes the compiler joins with others: of those, the half of a table in
    blocks.
    """
    written = (one for one in report.collectives if re.match("ppermute|all_gather|reduce_scatter|all_to_all", one.name))
    sums = (one for one in report.collectives if one.kind == "all-reduce")
    of_table = (
        2 * shape.bytes * (one.group - 1) / one.group * (one.times or 1)
        for one in sums
        for shape in one.shapes
        if len(shape.dims) == 3 and shape.elements * DEVICES["fsdp"] == vocab * dim
    )
    return sum(one.bytes * (one.times or 1) for one in written) + sum(of_table)


def report_of(head: str, rows: int, length: int, vocab: int, dim: int = 16) -> HloReport:
    """What the trainer's own `fwd_bwd` compiles to."""
    model = Decoder(DecoderConfig(vocab_size=vocab, dim=dim, layers=1, heads=2, max_length=length))
    mesh = sharded.mesh_of(2, 2, 2)
    made = JaxTrainer(model, optax.sgd(0.1), GrpoLoss(kl_coef=0.1, head=head), mesh=mesh)
    return hlo_report(made.lower(blank(rows, length)).compile(), table=(vocab, dim))


def blank(rows: int, length: int) -> MicroBatch:
    """A micro-batch of one sequence a row."""
    ints = {name: np.ones((rows, length), np.int32) for name in ("tokens", "segment_ids")}
    ints["positions"] = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    names = ("loss_mask", "rollout_logps", "ref_logps", "advantages")
    return MicroBatch(0, 0, {**ints, **{name: np.ones((rows, length), np.float32) for name in names}}, (), last=True)


def test_all_logits_are_never_made_and_the_bytes_are_those_predicted():
    """2304 tokens a device: a tile of 1024 of them is the largest array, as against all their logits."""
    rows, length, vocab = 256, 72, 401
    dense, kernel = (report_of(head, rows, length, vocab) for head in ("dense", "shard_map"))
    here = rows * length // 8
    assert dense.largest.elements == here * vocab
    assert kernel.largest.dims == (1024, vocab)
    assert not any(shape.elements >= here * vocab for shape in kernel.buffers)
    assert kernel.temp_bytes < 0.7 * dense.temp_bytes
    plan = planned_head(HeadSizes(rows, length, 16, vocab, DEVICES))
    assert plan.head == "shard_map"
    segment_ids_shifted = 4 * rows // 4  # to the next shard of the sequence; the plan leaves out all but the tokens
    assert sent_by_head(kernel, vocab) == plan.bytes + segment_ids_shifted
    assert sent_by_head(dense, vocab) == 0
    assert (dense.count("reduce-scatter"), kernel.count("reduce-scatter")) == (0, 1)


def test_a_vocabulary_split_over_the_mesh_sends_what_was_predicted():
    rows, length, vocab = 8, 12, 4 * 1009
    kernel, plan = (
        report_of("shard_map", rows, length, vocab),
        planned_head(HeadSizes(rows, length, 16, vocab, DEVICES)),
    )
    assert "vocabulary over data, fsdp, context" in plan.reason
    assert sent_by_head(kernel, vocab) == pytest.approx(plan.bytes, rel=0.05)
    assert kernel.count("all-to-all") > 0


@functools.cache
def compiled():
    """The parts that compile, trainer and reference by the sharded head on eight devices; as they were made."""
    model = Decoder(DecoderConfig(vocab_size=16, dim=8, layers=1, heads=2, max_length=16))
    mesh = sharded.mesh_of(2, 2, 2)
    trainer = JaxTrainer(model, optax.adam(1e-2), GrpoLoss(kl_coef=0.1, head="shard_map"), mesh=mesh)
    return Made(model, trainer, FrozenReference(model, head="shard_map", mesh=mesh), batch_size=9)


def made_by(name: str, pipeline: str, **parts):
    return compiled().run(program(name), pipeline, steps=5, packer=Packer(rows=4, length=12), **parts)


def test_under_schedules_it_trains_the_same_bit_for_bit():
    for name in ("grpo", "thinned"):
        alone, remarks = made_by(name, f"{SELECT}{{head=shard_map}}")
        assert not remarks
        assert made_by(name, f"{SELECT}{{head=shard_map}},pipelined-boundary")[0] == alone


def test_control_another_reference_is_seen_and_one_with_all_logits_is_told():
    model = Decoder(DecoderConfig(vocab_size=16, dim=8, layers=1, heads=2, max_length=16), seed=1)
    other, remarks = made_by("grpo", f"{SELECT}{{head=shard_map}}", reference=FrozenReference(model))
    assert other[0] != made_by("grpo", "")[0][0]
    assert remarks == ("the head of `ref_logps` stays dense: there is no `reference.logps_head`",)


@functools.cache
def setup():
    return load_setup("spell_backward", replace(RECIPE, ramp=1), 20)


@functools.cache
def job_parts(mesh: str = MESH, pipeline: str = SELECT):
    """The job as it is run, and its parts by role, from a model that was not warmed up."""
    config = with_planned_head(job("unused", mesh=mesh, pipeline=pipeline), setup())
    return config, built_parts(setup(), split_model(setup().model(1)), resolve(config.program), config)


def micro_batch(step: int, index: int, order: np.ndarray | None = None) -> MicroBatch:
    """Rows as the job's packer makes them on the mesh, of two sequences each; ``order`` lays them otherwise."""
    packer = setup().packer_on(DEVICES)
    rng, shape = np.random.default_rng([step, index]), (packer.rows, packer.length)
    half = packer.length // 2
    segments = np.tile(np.repeat(np.array([1, 2], np.int32), (half, packer.length - half)), (packer.rows, 1))
    arrays = {
        "tokens": rng.integers(2, setup().tokenizer.vocab_size, shape).astype(np.int32),
        "segment_ids": segments,
        "positions": np.tile(np.r_[0:half, 0 : packer.length - half].astype(np.int32), (packer.rows, 1)),
        "loss_mask": np.ones(shape, np.float32),
        "rollout_logps": -rng.uniform(2, 4, shape).astype(np.float32),
        "ref_logps": -rng.uniform(2, 4, shape).astype(np.float32),
        "advantages": rng.normal(size=shape).astype(np.float32),
    }
    if order is not None:
        arrays = {name: array[order] for name, array in arrays.items()}
    return MicroBatch(step, index, arrays, (), last=index == 2)


def trained(trainer: JaxTrainer, order: np.ndarray | None = None) -> np.ndarray:
    """All parameters after two updates."""
    for step in range(2):
        for index in range(3):
            trainer.fwd_bwd(micro_batch(step, index, order))
        trainer.update()
    return sharded.flat(trainer)


def test_the_jobs_own_trainer_sends_what_its_schedule_says():
    config, parts = job_parts()
    selected = head_of(plan_for(config.program, config.pipeline).program)
    vocab = setup().tokenizer.vocab_size
    assert selected.head == "shard_map"
    assert parts["trainer"].info()["capabilities"]["logps_head"]
    assert parts["reference"].info()["capabilities"]["logps_head"]
    rows = setup().packer_on(DEVICES).rows
    report = hlo_report(parts["trainer"].lower(micro_batch(0, 0)).compile())
    assert sent_by_head(report, vocab) == selected.bytes + 4 * rows // 4
    assert len(parts["reference"].logps(micro_batch(0, 0)).devices()) == 8


def test_the_update_is_that_of_one_device_up_to_rounding(tmp_path):
    """The noise floor is measured: one device with all logits, the rows of each micro-batch in eight other orders.

    The mesh may be twice as far from one device as the farthest of them.
    """
    alone = job_parts(mesh="", pipeline="")[1]["trainer"]
    start = sharded.flat(alone)
    alone.save_checkpoint(tmp_path)

    def on_one(order=None):
        alone.restore_checkpoint(tmp_path)
        return trained(alone, order)

    plain, rows = on_one(), setup().packer_on(DEVICES).rows
    orders = [np.random.default_rng(seed).permutation(rows) for seed in range(8)]
    floor = max(np.abs(on_one(order) - plain).max() for order in orders)
    off = np.abs(trained(job_parts()[1]["trainer"]) - plain).max()
    moved = np.abs(plain - start).max()
    print(f"moved {moved:.3g}, floor {floor:.3g}, head on the mesh {off:.3g}")
    assert 0 < floor < 1e-2 * moved
    assert 0 < off <= 2 * floor


def test_without_the_pass_the_job_is_what_it_was():
    config, parts = job_parts(pipeline="defer-metrics")
    assert config == job("unused", mesh=MESH, pipeline="defer-metrics")
    assert not parts["trainer"].info()["capabilities"]["logps_head"]
    assert len(parts["reference"].logps(micro_batch(0, 0)).devices()) == 1
    assert "shard_map" not in parts["trainer"].lower(micro_batch(0, 0)).as_text()
