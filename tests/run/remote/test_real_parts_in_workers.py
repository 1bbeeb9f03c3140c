"""The built-in trainer, rollout and reference in processes of their own: the same bits, and the same abilities."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from real_parts import real_bind
from remote_parts import children, digests

import steptrace
from steptrace.run.binding import Parts
from steptrace.run.capabilities import capabilities_of
from steptrace.run.remote.hosting import built, hosted

PROGRAM = 'grpo{prompts=4, samples=3, staleness=1, save_every=2, saves="may_fail_late"}'
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Parts in this process, the same in processes of their own, and what a run of four steps makes here."""
    folder = tmp_path_factory.mktemp("start")
    before = children()
    inline = built(real_bind())
    with hosted(real_bind()) as process:
        parts = {"inline": inline, "process": process}
        for name, bound in parts.items():
            bound["trainer"].save_checkpoint(folder / name)

        def run(target, steps=4, **options):
            if not options.get("resume"):
                parts[target]["trainer"].restore_checkpoint(folder / target)
            return steptrace.run(PROGRAM, parts[target], steps=steps, stall_s=200.0, target=target, **options)

        yield SimpleNamespace(parts=parts, folder=folder, run=run, whole=run("inline"))
    assert children() == before


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary", "pipelined-boundary-staged-after", "async-everything"])
def test_every_pipeline_trains_the_same_on_both_targets(places, pipeline):
    made = places.run("process", pipeline=pipeline, stage_latch_s=0.0)
    assert digests(made) == digests(places.whole)
    assert [dict(record) for record in made.records] == [dict(record) for record in places.whole.records]


@pytest.mark.parametrize("pipeline", ["release-buffers{ring=3}", "release-buffers{ring=3},pipelined-boundary"])
def test_arrays_that_lie_on_memory_of_a_ring_train_what_copies_train(places, pipeline, monkeypatch):
    monkeypatch.setattr("steptrace.workers.shared.BULK", 1)  # small arrays go through the ring too
    made = places.run("process", pipeline=pipeline, stage_latch_s=0.0)
    assert digests(made) == digests(places.whole)
    assert [dict(record) for record in made.records] == [dict(record) for record in places.whole.records]


def test_an_evaluation_between_steps_and_behind_the_run_is_that_of_this_process(places):
    """Of the micro-batches of step 1, by the parameters of every later step."""
    found = {}
    for target, bound in places.parts.items():
        kept, told = [], []

        def keeping(rule, kept=kept):
            def run(session, at, *operands):
                if at.op.kind == "fwd_bwd" and at.step == 1:
                    kept.append(operands[0])
                return rule(session, at, *operands)

            return run

        class Evaluating:
            def on_step_end(self, step, metrics, kept=kept, told=told, trainer=bound["trainer"]):
                if step > 1:
                    told.append(trainer.evaluate(kept))

        bound["trainer"].restore_checkpoint(places.folder / target)
        with_callback = {**bound, "callbacks": [Evaluating()]}
        made = steptrace.run(PROGRAM, with_callback, steps=4, target=target, around=[keeping])
        assert digests(made) == digests(places.whole)
        found[target] = [*told, bound["trainer"].evaluate(kept)]
    assert found["inline"] == found["process"]
    assert len({one["loss"] for one in found["inline"]}) == 2  # behind steps 2 and 3; behind the run is as behind 3


def test_a_part_is_what_it_is_in_this_process(places):
    able = [capabilities_of(Parts(trainer=part["trainer"], rollout=part["rollout"])) for part in places.parts.values()]
    assert able[0] == able[1]
    assert "trainer.stage_fwd_bwd" in able[1]
    trainer = places.parts["process"]["trainer"]
    made = places.run("process")
    assert trainer.params_digest() == made.params_digest
    assert trainer.updates_applied == 4
    trainer.last_update_token.block_until_ready()


@pytest.mark.parametrize(("first", "second"), [("inline", "process"), ("process", "inline")])
def test_a_run_that_is_saved_on_one_target_goes_on_on_the_other(places, tmp_path, first, second):
    places.run(first, 3, out=tmp_path)
    assert any((tmp_path / "checkpoints").glob("*/weights/*"))  # weights of more than one version
    made = places.run(second, 4, out=tmp_path, resume=True)
    assert digests(made) == digests(places.whole)


def test_control_a_micro_batch_that_is_lost_in_the_worker_is_seen(places):
    trainer = places.parts["process"]["trainer"]
    trainer.lose(1)
    made = places.run("process")
    trainer.lose(-1)
    assert made.params_digest != places.whole.params_digest
