"""What driving a plan costs: a real trainer's loop by plan and by hand, and ops that do nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import steptrace
from steptrace.ir import Program
from steptrace.lang.records import MicroBatch, Prompt
from steptrace.lang.reference import resolve
from steptrace.lower import Plan, lower
from steptrace.motion import Schedule, move_to_lane
from steptrace.run.binding import bind_parts
from steptrace.run.data.packing import Packer
from steptrace.run.data.prompts import ListPrompts
from steptrace.run.digest import EMPTY, chain
from steptrace.run.executor import Executor, Rule
from steptrace.run.instance import At
from steptrace.run.job.config import JobConfig
from steptrace.run.job.job import built_parts
from steptrace.run.job.recipe import recipe_for
from steptrace.run.job.setup import load_setup
from steptrace.run.models.decoder import Decoder, DecoderConfig
from steptrace.run.models.split import split_model
from steptrace.run.session import Session
from steptrace.run.trainer import GrpoLoss, JaxTrainer
from steptrace.run.verbs import VERBS
from steptrace.testing.builder import Builder
from steptrace.testing.hash_parts import hash_parts

from .boundary_parts import LENGTH, SAMPLES, VOCABULARY, ByteTokenizer, FlatReference, HashRollout
from .overhead_loops import SEED, by_ops, by_parts, by_plan

SKIPPED = 2
"""Steps at the beginning of each run that are not counted."""

JOB_TASK = "spell_backward"
"""The task of the main job."""

_NEVER = 1_000_000

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
      job_steps: of a run of the main job's step.
      job_rounds: how often each way of that is run, in turn; 0 leaves it out.
    """

    steps: int = 30
    rounds: int = 10
    rows: int = 16
    micro_batches: int = 2
    dim: int = 64
    empty_steps: int = 300
    job_steps: int = 8
    job_rounds: int = 3


@dataclass
class Way:
    """One way to drive the loop.

    Attributes:
      step_s: seconds of each step that counts.
      cpu_s: processor time of the driving thread, in seconds, of each of them: other processes are not in it, nor is
        what the device computes meanwhile.
      made: digests of parameters, calls, trained groups and logged records, of each run.
    """

    step_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    made: set[tuple[str, ...]] = field(default_factory=set)


class _Moments:
    """A tracker that keeps when each step was logged, and a digest of what was."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.cpu: list[float] = []
        self._logged: list[Any] = []

    def log(self, step: int, metrics: Any) -> None:
        self.at.append(time.perf_counter())
        self.cpu.append(time.thread_time())
        self._logged.append(metrics)

    def close(self) -> None:
        pass

    def digest(self) -> str:
        """Of all records: which figures of which step."""
        return chain(EMPTY, *(repr(sorted(record.items())) for record in self._logged))


Drive = Callable[[dict[str, Any], int], tuple[str, str]]
"""Drives parts for so many steps; gives the digests of calls and of trained groups."""


def driven(parts_of: Callable[[], dict[str, Any]], drives: Sequence[Drive], steps: int, rounds: int) -> list[Way]:
    """The same steps driven in several ways, in turn, with one trainer that is set back in between.

    Args:
      parts_of: the parts of a run but its tracker; the trainer is the same one each time.
      drives: the ways; the last one goes first, for three steps that do not count, so that all is compiled.
      steps: of a run.
      rounds: how often each way is run.
    """
    ways = [Way() for _ in drives]
    trainer = parts_of()["trainer"]
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start"
        trainer.save_checkpoint(start)
        drives[-1]({**parts_of(), "tracker": _Moments()}, SKIPPED + 1)
        for _ in range(rounds):
            for way, drive in zip(ways, drives, strict=True):
                trainer.restore_checkpoint(start)
                moments = _Moments()
                digests = drive({**parts_of(), "tracker": moments}, steps)
                way.made.add((*digests, trainer.params_digest(), moments.digest()))
                way.step_s += _between(moments.at)
                way.cpu_s += _between(moments.cpu)
    return ways


def ops_per_step(micro_batches: int) -> int:
    """Calls that a plan of `grpo` makes in a step without a checkpoint."""
    # Begin, dispatch, take, reward, advantages, pack, update, metrics, sync, commit, log, end, free; and the loop's.
    return 13 + 3 * micro_batches


def _between(moments: Sequence[float]) -> list[float]:
    """The times of the steps that count."""
    return [later - earlier for earlier, later in pairwise(moments[SKIPPED:])]


def beyond(way: Way, other: Way, rounds: int) -> float:
    """Processor time of a step of one way beyond the other's, in seconds: the median over the rounds of medians."""
    mine, others = _by_round(way.cpu_s, rounds), _by_round(other.cpu_s, rounds)
    return median(median(one) - median(two) for one, two in zip(mine, others, strict=True))


def _by_round(seconds: Sequence[float], rounds: int) -> list[Sequence[float]]:
    steps = len(seconds) // rounds
    return [seconds[at : at + steps] for at in range(0, rounds * steps, steps)]


def tiny(work: Workload) -> list[Way]:
    """A tiny model, by plan, by a loop on the ops, by that loop once more, and by one on the parts."""
    import optax

    model = Decoder(DecoderConfig(VOCABULARY, dim=work.dim, layers=1, max_length=LENGTH), seed=0)
    trainer = JaxTrainer(model, optax.adam(1e-3), GrpoLoss())
    prompts = work.rows * work.micro_batches // SAMPLES
    program = f"grpo{{prompts={prompts},samples={SAMPLES},save_every={_NEVER}}}"
    ways: list[Drive] = [
        lambda parts, steps: by_plan(parts, program, steps),
        lambda parts, steps: by_ops(parts, program, steps),
        lambda parts, steps: by_ops(parts, program, steps),
        lambda parts, steps: by_parts(parts, prompts, SAMPLES, steps),
    ]
    return driven(lambda: _parts(trainer, work, prompts), ways, work.steps, work.rounds)


def hollow(work: Workload) -> list[Way]:
    """Steps of `grpo` whose ops return at once what ops of their kind give, by plan and by a loop on the ops.

    What is left of a step is how it is driven, and nothing of what is driven.
    """
    parts, program = hash_parts(), f"grpo{{save_every={_NEVER}}}"
    ways = [Way(), Way()]
    for _ in range(work.rounds):
        for way, drive in zip(ways, (_hollow_plan, _hollow_loop), strict=True):
            moments = _Moments()
            way.made.add(drive({**parts, "tracker": moments}, program, work.empty_steps, _Hollow(work, moments)))
            way.step_s += _between(moments.at)
            way.cpu_s += _between(moments.cpu)
    return ways


def _hollow_plan(parts: dict[str, Any], program: str, steps: int, rule: Rule) -> tuple[str, str]:
    return by_plan(parts, program, steps, [lambda real: rule])


def _hollow_loop(parts: dict[str, Any], program: str, steps: int, rule: Rule) -> tuple[str, str]:
    return by_ops(parts, program, steps, dict.fromkeys(VERBS, rule))


class _Hollow:
    """What every op of `grpo` does where none does anything: it gives what one of its kind gives."""

    def __init__(self, work: Workload, moments: _Moments) -> None:
        last = work.micro_batches - 1
        batch = [MicroBatch(0, index, {}, (), last=index == last) for index in range(work.micro_batches)]
        self._heads = {index: (micro_batch, micro_batch.last) for index, micro_batch in enumerate(batch)}
        self._log = moments.log
        self._given: dict[str, tuple[Any, ...]] = dict.fromkeys(VERBS, ()) | {
            "take": ([], True),
            "reward": ([],),
            "advantages": ([],),
            "pack": (batch,),
            "ref_logps": (batch[0],),
            "get_metrics": ({},),
            "sync_weights": (0,),
        }

    def __call__(self, session: Session, at: At, *operands: Any) -> tuple[Any, ...] | None:
        kind = at.op.kind
        if kind == "next_mb":
            return self._heads.get(at.item)
        if kind == "log":
            self._log(at.step, {})
        return self._given[kind]


def job(work: Workload) -> list[Way]:
    """The main job's own step, by plan and by a loop on the ops: its task, model, sampler and shapes, not warmed up."""
    setup = load_setup(JOB_TASK, recipe_for(JOB_TASK), 1)
    config = JobConfig(program="grpo", task=JOB_TASK)
    program = f"grpo{{save_every={_NEVER}}}"
    split = split_model(setup.model(SEED))
    built = built_parts(setup, split, resolve(program), config)
    ways: list[Drive] = [
        lambda parts, steps: by_plan(parts, program, steps),
        lambda parts, steps: by_ops(parts, program, steps),
    ]
    return driven(lambda: built, ways, work.job_steps, work.job_rounds)


def _parts(trainer: JaxTrainer, work: Workload, prompts: int) -> dict[str, Any]:
    def reward(prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return [int(text) / VOCABULARY for text in completions]

    return {
        "trainer": trainer,
        "rollout": HashRollout(),
        "reference": FlatReference(),
        "reward": reward,
        "prompts": ListPrompts([Prompt(f"p{index}", f"{index:08d}") for index in range(4 * prompts)]),
        "tokenizer": ByteTokenizer(),
        "packer": Packer(rows=work.rows, length=LENGTH),
    }


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
