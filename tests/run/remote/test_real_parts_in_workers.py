"""The built-in trainer, rollout and reference in processes of their own: the same bits, and the same abilities."""

from __future__ import annotations

import pytest
from real_parts import real_bind
from remote_parts import children, digests

import steptrace
from steptrace.run.binding import Parts
from steptrace.run.capabilities import capabilities_of
from steptrace.run.remote.hosting import built, hosted

PROGRAM = "grpo{prompts=4, samples=3, staleness=1}"


def run(parts, **options):
    return steptrace.run(PROGRAM, parts, steps=4, stall_s=120.0, **options)


@pytest.mark.slow
def test_every_pipeline_trains_the_same_on_both_targets(tmp_path):
    before = children()
    inline = built(real_bind())
    expected = run(inline)
    with hosted(real_bind()) as parts:
        assert able(parts) == able(inline)
        assert "trainer.stage_fwd_bwd" in able(parts)
        for pipeline in ("", "pipelined-boundary", "pipelined-boundary-staged-after", "async-everything"):
            parts["trainer"].reset(tmp_path / "start")
            made = run(parts, pipeline=pipeline, target="process", stage_latch_s=0.0)
            assert digests(made) == digests(expected)
            assert [dict(record) for record in made.records] == [dict(record) for record in expected.records]
            assert parts["trainer"].params_digest() == made.params_digest
        parts["trainer"].last_update_token.block_until_ready()
        assert parts["trainer"].updates_applied == 4

        parts["trainer"].reset(tmp_path / "start")
        parts["trainer"].lose(1)
        control = run(parts, target="process")
        assert control.params_digest != expected.params_digest, "a micro-batch that is lost in the worker is seen"
    assert children() == before


def able(parts):
    return capabilities_of(Parts(trainer=parts["trainer"], rollout=parts["rollout"]))
