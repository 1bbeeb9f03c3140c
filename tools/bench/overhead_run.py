"""What driving a plan costs: a real trainer's loop by plan and by hand, and ops that do nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import steptrace
from steptrace.ir import Program
from steptrace.lang.records import Group, Prompt
from steptrace.lower import Plan, lower
from steptrace.motion import Schedule, move_to_lane
from steptrace.run.api import run
from steptrace.run.binding import bind_parts
from steptrace.run.data.advantages import GroupAdvantages
from steptrace.run.data.cursor import DataCursor, Draws
from steptrace.run.data.packing import Packer
from steptrace.run.data.prompts import ListPrompts
from steptrace.run.data.rewards import score
from steptrace.run.digest import CallLog
from steptrace.run.executor import Executor
from steptrace.run.models.decoder import Decoder, DecoderConfig
from steptrace.run.rng import key_for
from steptrace.run.session import Session
from steptrace.run.trainer import GrpoLoss, JaxTrainer
from steptrace.testing.builder import Builder

from .boundary_run import LENGTH, SAMPLES, VOCABULARY, ByteTokenizer, FlatReference, HashRollout

SKIPPED = 2
"""Steps at the beginning of each run that are not counted."""

SEED = 0

OPS = 20
"""Ops of a step of the program that does nothing."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is run.

    Attributes:
      steps: of a run.
      rounds: how often each way is run, in turn.
      rows: of a micro-batch.
      micro_batches: of a step.
      dim: features of the model.
      empty_steps: steps of a run of ops that do nothing.
    """

    steps: int = 10
    rounds: int = 15
    rows: int = 16
    micro_batches: int = 2
    dim: int = 64
    empty_steps: int = 300


@dataclass
class Way:
    """One way to drive the loop.

    Attributes:
      step_s: seconds of each step that counts.
      digests: of parameters and of calls, of each run.
    """

    step_s: list[float] = field(default_factory=list)
    digests: set[tuple[str, str]] = field(default_factory=set)


class _Moments:
    """A tracker that keeps when each step was logged."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def log(self, step: int, metrics: Any) -> None:
        self.at.append(time.perf_counter())

    def close(self) -> None:
        pass


def driven(work: Workload) -> tuple[Way, Way, int]:
    """The loop by plan and by hand, in turn, with one trainer that is set back in between; and its calls a step."""
    model = Decoder(DecoderConfig(VOCABULARY, dim=work.dim, layers=1, max_length=LENGTH), seed=0)
    import optax

    trainer = JaxTrainer(model, optax.adam(1e-3), GrpoLoss())
    plan, loop = Way(), Way()
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start"
        trainer.save_checkpoint(start)
        _by_hand(_parts(trainer, work), work, SKIPPED + 1)  # compiles
        for _ in range(work.rounds):
            for way, drive in ((plan, _by_plan), (loop, _by_hand)):
                trainer.restore_checkpoint(start)
                parts = _parts(trainer, work)
                way.digests.add((drive(parts, work, work.steps), trainer.params_digest()))
                at = parts["tracker"].at[SKIPPED:]
                way.step_s += [later - earlier for earlier, later in pairwise(at)]
    # Begin, dispatch, take, reward, advantages, pack, update, metrics, sync, commit, log, end, free; and the loop's.
    return plan, loop, 13 + 3 * work.micro_batches


def _parts(trainer: JaxTrainer, work: Workload) -> dict[str, Any]:
    def reward(prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return [int(text) / VOCABULARY for text in completions]

    prompts = _prompts(work)
    return {
        "trainer": trainer,
        "rollout": HashRollout(),
        "reference": FlatReference(),
        "reward": reward,
        "prompts": ListPrompts([Prompt(f"p{index}", f"{index:08d}") for index in range(4 * prompts)]),
        "tokenizer": ByteTokenizer(),
        "packer": Packer(rows=work.rows, length=LENGTH),
        "tracker": _Moments(),
    }


def _prompts(work: Workload) -> int:
    return work.rows * work.micro_batches // SAMPLES


def _by_plan(parts: dict[str, Any], work: Workload, steps: int) -> str:
    program = f"grpo{{prompts={_prompts(work)},samples={SAMPLES},save_every=1000000}}"
    return run(program, parts, steps=steps, seed=SEED).calls_digest


def _by_hand(parts: dict[str, Any], work: Workload, steps: int) -> str:
    """The steps of `grpo` as one would write them with these parts: the same draws, calls and logs."""
    trainer, rollout, tracker = parts["trainer"], parts["rollout"], parts["tracker"]
    draws, cursor = Draws(parts["prompts"], seed=SEED, epochs=None), DataCursor()
    calls, advantages = CallLog(), GroupAdvantages()
    weights, version = trainer.weights()
    rollout.apply_weights(weights, version)
    for step in range(steps):
        drawn, cursor = draws.draw(cursor, _prompts(work))
        prompts = [prompt for _, prompt in drawn]
        tokens = [parts["tokenizer"].encode(prompt.text) for prompt in prompts]
        key = key_for(SEED, "dispatch", step)
        sampled = rollout.generate(prompts, SAMPLES, version=version, key=key)
        groups = [
            Group(name, step, prompt, encoded, completions, version)
            for (name, prompt), encoded, completions in zip(drawn, tokens, sampled, strict=True)
        ]
        batch = parts["packer"].pack(advantages(score(parts["reward"], groups)), step=step)
        for micro_batch in batch:
            known = micro_batch.with_array("ref_logps", parts["reference"].logps(micro_batch))
            calls.record("fwd_bwd", known)
            trainer.fwd_bwd(known)
        calls.record("update")
        trainer.update()
        metrics = trainer.get_metrics()
        calls.settle()
        old, (weights, version) = version, trainer.weights()
        if version != old:
            rollout.apply_weights(weights, version)
            rollout.drop_weights(old)
        tracker.log(step, metrics)
    return calls.settle()


steptrace.resource("baton", kind="state")


@steptrace.op(reads=["baton"], writes=["baton"])
def nothing() -> None:
    """Does nothing, after what came before it."""


def _idle() -> Program:
    """A step of ops that do nothing, one after the other. It trains nothing, so no step in Python could be it."""
    builder = Builder(kinds=(nothing.kind,), sync=False)
    for _ in range(OPS):
        builder.op("nothing")
    return builder.program("idle")


def empty(work: Workload) -> dict[str, float]:
    """Microseconds of an op that does nothing and of a hand-over, medians over the rounds.

    Returns:
      ``us_per_op``: of an op in one lane, beyond calling its function; ``us_per_handover``: of an op that waits for
      the one before it on another lane, beyond that.
    """
    schedule = Schedule.of(_idle())
    one, two, direct = [], [], []
    alone = lower(schedule.program)
    for op in [op.id for op in schedule.program.ops()][1::2]:
        schedule = move_to_lane(schedule, op, lane="io").schedule
    turns = lower(schedule.program, source=schedule.source)
    for _ in range(work.rounds):
        direct += _called(work.empty_steps)
        one += _per_op(alone, work)
        two += _per_op(turns, work)
    per_op, handed = median(one) - median(direct), median(two) - median(one)
    return {"us_per_op": per_op * 1e6, "us_per_handover": handed * 1e6}


def _called(steps: int) -> list[float]:
    """Seconds of a call of a function that does nothing, step by step."""
    found = []
    for _ in range(steps):
        start = time.perf_counter()
        for _ in range(OPS):
            _nothing()
        found.append((time.perf_counter() - start) / OPS)
    return found


def _nothing() -> None:
    pass


def _per_op(plan: Plan, work: Workload) -> list[float]:
    """Seconds of an op, step by step."""
    parts = bind_parts(plan, {"nothing": nothing})
    executor = Executor(Session(plan, parts, seed=SEED, epochs=None, out=None))
    at: list[float] = []
    executor.steps(0, work.empty_steps, lambda step, spent: at.append(time.perf_counter()))
    return [(later - earlier) / OPS for earlier, later in pairwise(at)]
