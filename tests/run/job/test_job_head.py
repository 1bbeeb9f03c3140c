"""The log-prob head of a job: filled in by the kernel's plan where it is left open, and as before where nobody asks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from job_cases import RECIPE, job

from steptrace.lang.reference import resolve
from steptrace.run.data.packing import Packer
from steptrace.run.job.head import built_head, in_words, selected_head, with_planned_head
from steptrace.run.job.setup import Setup
from steptrace.run.trainer.head_plan import HeadSizes, kernel_plan, planned_head
from steptrace_tools.cli import main

MESH = "data=2,fsdp=2,context=2"
GRPO = resolve("grpo{prompts=4, samples=4, save_every=2}")


def setup(length: int = 27) -> Setup:
    return Setup(RECIPE, None, SimpleNamespace(vocab_size=68), None, None, 0, 4, 4, Packer(5, length, pad_id=3))


def filled(pipeline: str, mesh: str = MESH, **sizes):
    return with_planned_head(job("unused", mesh=mesh, pipeline=pipeline), setup(**sizes))


def sizes(mesh, rows=8, length=28):
    return HeadSizes(rows, length, RECIPE.dim, 68, mesh)


def test_on_a_mesh_it_is_the_kernel_with_the_bytes_of_its_plan_for_the_jobs_own_sizes():
    config = filled("select-logps-head,defer-metrics")
    selected = selected_head(config, GRPO)
    devices = {"data": 2, "fsdp": 2, "context": 2}
    training = kernel_plan(sizes(devices))
    assert (selected.head, selected.bytes) == ("shard_map", round(training.cost.bytes))
    assert selected.logps_bytes == round(kernel_plan(sizes(devices), training).cost.bytes)
    assert 0 < selected.logps_bytes < selected.bytes
    assert selected.reason.startswith("vocabulary whole; sends least of the 8 sets of axes")
    assert built_head(config, GRPO, setup()) == "shard_map"
    assert f"{selected.bytes:,} bytes" in in_words(config)


def test_on_one_device_it_is_all_logits_while_they_are_one_chunk():
    config = filled("select-logps-head", mesh="")
    selected = selected_head(config, GRPO)
    assert (selected.head, selected.bytes, selected.logps_bytes) == ("dense", 0, 0)
    assert selected.reason == "one device: nothing is sent, and the 135 tokens of a micro-batch are one chunk of 1024"
    assert built_head(config, GRPO, setup()) == "dense"
    many = selected_head(filled("select-logps-head", mesh="", length=270), GRPO)
    assert many.head == "shard_map"
    assert many.reason == "one device: nothing is sent, and logits are made of 1024 of 1350 tokens at a time"


def test_what_is_said_by_hand_stays():
    given = 'select-logps-head{head=shard_map, bytes=5, logps_bytes=4, reason="by hand"}'
    assert filled(given).pipeline == given
    assert selected_head(filled("select-logps-head{head=dense}"), GRPO).reason == "asked for"
    asked = selected_head(filled("select-logps-head{head=shard_map}", mesh=""), GRPO)
    assert asked.reason.startswith("asked for; chunked, without shard_map: there is no mesh")


@pytest.mark.parametrize("pipeline", ["", "defer-metrics", "pipelined-boundary"])
def test_without_the_pass_nothing_changes(pipeline: str):
    config = job("unused", mesh=MESH, pipeline=pipeline)
    assert with_planned_head(config, setup()) is config
    assert selected_head(config, GRPO) is None
    assert built_head(config, GRPO, setup()) == "dense"
    assert in_words(config) == ""


def test_a_head_that_a_text_leaves_open_is_planned_when_the_parts_are_built(tmp_path):
    file = tmp_path / "open.st"
    assert main(["opt", "grpo", "-p", "select-logps-head", "-o", str(file)]) == 0
    for mesh, head in ((MESH, "shard_map"), ("", "dense")):
        config = job("unused", program=str(file), mesh=mesh)
        assert built_head(config, resolve(str(file)), setup()) == head


def test_control_more_devices_send_more_and_an_idle_axis_splits_the_vocabulary():
    two, eight = (planned_head(sizes({"fsdp": n})) for n in (2, 8))
    assert two.bytes < eight.bytes
    assert "expert: shards no tokens" in planned_head(sizes({"data": 2, "expert": 2})).reason
    assert planned_head(sizes({"data": 1})).head == "dense"


@pytest.mark.slow
def test_opt_fills_it_in_for_a_mesh_that_need_not_be_there(capsys):
    pytest.importorskip("reasoning_gym")
    assert main(["opt", "grpo", "-p", "select-logps-head", f"--mesh={MESH}"]) == 0
    text = capsys.readouterr().out
    assert 'fwd_bwd(%mb.2) {head="shard_map", head_bytes=' in text
    assert "sends least of the 8 sets of axes" in text
