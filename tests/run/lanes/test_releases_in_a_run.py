"""Releases in a run: a ring of few buffers, used again, trains what copies train; given back early, it does not."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from lane_parts import PIPES, Delays, HashTrainer, StagingTrainer, lane_bind, made_by, no_lane_is_left
from lending_parts import LentReference, LentTrainer, Ring

import steptrace
from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.lower.choices import choices
from steptrace.passes import run_pipeline

GRPO = "grpo{prompts=4, samples=3, staleness=1, save_every=2}"
STREAM = "grpo_stream{prompts=4, samples=3, staleness=1, save_every=2}"
STEPS = 5
SLOW = pytest.mark.slow


@functools.cache
def base(program: str):
    return made_by(program, lane_bind(), steps=STEPS)


@contextlib.contextmanager
def lent(size: int, **how: Any) -> Iterator[tuple[Ring, dict[str, Any]]]:
    """A ring of that size, and parts that read in it."""
    ring = Ring(size)
    trainer = LentTrainer(ring, **how)
    try:
        yield ring, lane_bind(trainer, reference=LentReference(ring))
    finally:
        trainer.close()


@pytest.mark.parametrize("trainer", [HashTrainer, StagingTrainer])
@pytest.mark.parametrize("program", [GRPO, pytest.param(STREAM, marks=SLOW)])
@pytest.mark.parametrize(
    "pipeline", ["release-buffers", *(f"release-buffers,{text}" for text in PIPES), f"{PIPES[0]},release-buffers"]
)
def test_where_memory_is_the_hosts_own_a_release_changes_nothing(program, pipeline, trainer):
    for steps in (0, STEPS):
        assert made_by(program, lane_bind(trainer()), steps=steps, pipeline=pipeline) == made_by(
            program, lane_bind(), steps=steps
        )
    assert no_lane_is_left()


@pytest.mark.parametrize("program", [GRPO, STREAM])
@pytest.mark.parametrize(
    ("ring", "pipeline"),
    [
        (3, "release-buffers{ring=3}"),
        (3, f"release-buffers{{ring=3}},{PIPES[0]}"),
        (4, f"{PIPES[0]},release-buffers"),
        pytest.param(4, "release-buffers,async-everything", marks=SLOW),
        pytest.param(4, "replay,release-buffers,pipelined-boundary", marks=SLOW),
    ],
)
def test_a_ring_that_is_used_again_trains_what_copies_train(program: str, ring: int, pipeline: str):
    for seed in range(2):
        with lent(ring, delay=Delays(seed)) as (buffers, bound):
            assert made_by(program, bound, steps=STEPS, pipeline=pipeline) == base(program)
        assert len(buffers.given_back) > 3 * ring
        assert buffers.used == {}
        assert buffers.most <= ring
    assert no_lane_is_left()


def test_control_buffers_that_are_given_back_at_issue_train_other_parameters():
    """A lowering that does not wait for the work: the calls are the same, and what they read is not."""
    pipeline = "release-buffers{ring=3}"
    with lent(3, early=True) as (_, bound):
        early = made_by(GRPO, bound, steps=1, pipeline=pipeline)
    with lent(3) as (_, bound):
        late = made_by(GRPO, bound, steps=1, pipeline=pipeline)
    assert (early.calls, early.groups) == (late.calls, late.groups)
    assert early.params != late.params
    assert late == made_by(GRPO, lane_bind(), steps=1)


def test_control_without_releases_the_ring_runs_dry():
    with lent(3) as (_, bound), pytest.raises(AssertionError, match="no buffer is free"):
        steptrace.run(GRPO, bound, steps=STEPS)


def test_control_a_ring_smaller_than_the_schedule_says_runs_dry():
    with lent(2) as (_, bound), pytest.raises(AssertionError, match="no buffer is free"):
        steptrace.run(GRPO, bound, steps=STEPS, pipeline="pipelined-boundary,release-buffers{ring=6}")


@pytest.mark.parametrize(("words", "way"), [((), "nothing"), (("lends_buffers",), "return")])
def test_the_way_is_chosen_by_what_parts_say_of_themselves(words: tuple[str, ...], way: str):
    source = resolve(GRPO)
    program = run_pipeline(source, "release-buffers").schedule.program
    verbs = ("trainer.fwd_bwd", "trainer.update", "trainer.weights", "trainer.get_metrics", "trainer.save_checkpoint")
    chosen = {choice.op: choice.way for choice in choices(lower(program, source=source), (*verbs, *words))}
    assert chosen["release"] == way
