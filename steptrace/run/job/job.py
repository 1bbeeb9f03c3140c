"""The main job, from its configuration to its figures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from steptrace.ir import Program
from steptrace.lang.parts import Tracker
from steptrace.lang.reference import resolve
from steptrace.run.api import plan_for, run
from steptrace.run.job.compiles import CompileWatch
from steptrace.run.job.config import JobConfig
from steptrace.run.job.control import ShuffledRewards
from steptrace.run.job.devices import mesh_of, mesh_sizes
from steptrace.run.job.evaluate import Evaluator
from steptrace.run.job.folder import can_resume, held_folder
from steptrace.run.job.head import built_head, in_words, with_planned_head
from steptrace.run.job.orders import show_orders
from steptrace.run.job.parts import Built, built_here, parts_of_job
from steptrace.run.job.progress import Show
from steptrace.run.job.recipe import recipe_for
from steptrace.run.job.report import summarise
from steptrace.run.job.reward import ScoreAndExact
from steptrace.run.job.setup import Setup, load_setup
from steptrace.run.job.trackers import JsonLines, TensorBoard, check_tensorboard, read_records
from steptrace.run.job.warmup import WarmedUp, warmed_up
from steptrace.run.keep import keeping
from steptrace.run.models.split import SplitModel
from steptrace.run.result import RunResult
from steptrace.run.verbs import ADVANTAGES

_ENDS = 10
"""Steps over which the first and the last reward are means."""


def run_job(config: JobConfig) -> dict[str, Any]:
    """Warm a small model up, train it by the program, and evaluate it before and after.

    Everything a caller can get wrong is checked before anything is trained. Written below the output folder:
    ``job.json`` (settings), ``warmup``, ``checkpoints``, ``metrics.jsonl``, ``trained_groups.jsonl``,
    ``tokenizer.json``, ``summary.json``, and the curves.

    Returns:
      The summary, which JSON can hold: ``program``, ``pipeline``, ``target``, ``task``, ``control``, ``steps``,
      ``seed``, ``accuracy_before`` and ``accuracy_after`` (greedy, held out, in 0..1), ``reward_first`` and
      ``reward_last`` (means over the first and the last 10 steps), ``params_digest``, ``calls_digest``,
      ``trained_groups_digest``, ``phase_seconds`` (total of each kind of op), ``phase_ms`` (median a step),
      ``compiles`` (how often each leaf was traced, up to the end of the first step and of the run),
      ``seconds``, ``warmup``, ``out``, ``curves``.

    Raises:
      SteptraceError: with a code, for whatever the caller can mend.
    """
    start = time.perf_counter()
    program = resolve(config.program)
    plan_for(program, config.pipeline, config.target, config.against or None)
    keeping(config.events, config.profile, config.pipeline, config.steps, resume=config.resume)
    mesh_of(mesh_sizes(config.mesh))
    if config.tensorboard:
        check_tensorboard()
    recipe = config.recipe or recipe_for(config.task)
    with Show(quiet=config.json) as show:
        setup = load_setup(config.task, recipe, config.eval_size)
        config = with_planned_head(config, setup)
        with held_folder(config, recipe) as (out, found), ExitStack() as workers:
            _introduce(show, config, setup, out, found)
            summary, built = _trained(show, config, program, setup, out, workers)
            summary["seconds"] = round(time.perf_counter() - start, 2)
            show.stop()
            summary = summarise(summary, read_records(out / "metrics.jsonl"), out, show)
            if config.orders:
                show_orders(show, program, _bind(config, program, setup, built), seed=config.seed, target=config.target)
            return summary


def _trained(
    show: Show, config: JobConfig, program: Program, setup: Setup, out: Path, workers: ExitStack
) -> tuple[dict[str, Any], Built]:
    """Warm up, train and evaluate in the job's folder; gives the figures, and the parts as they are then."""
    setup.tokenizer.save(out / "tokenizer.json")
    evaluator = Evaluator(setup, setup.model(config.seed))
    warm = _warm_up(show, setup, evaluator, out, config.seed)
    head = built_head(config, program, setup)
    built = workers.enter_context(parts_of_job(setup, warm.split, program, config, head, out))
    show.begin(f"{program.name} on {config.task}", config.steps or setup.recipe.steps)
    watch = CompileWatch(built.by_role())
    result = _run_program(config, program, setup, built, [*_trackers(config, out), watch, show], out)
    if config.sanitize:
        show.say("\n".join(["sanitized: users' ops do what they declare", *result.remarks]))
    compiles = watch.counts()
    weights, _ = built.trainer.weights()
    figures = _summary(config, result, warm, evaluator.accuracy(weights), out)
    return {**figures, "compiles": compiles}, built


def _run_program(
    config: JobConfig, program: Program, setup: Setup, built: Built, trackers: Sequence[Tracker], out: Path
) -> RunResult:
    """The program on the task, from the warmed-up model or from where it was left."""
    steps = config.steps or setup.recipe.steps
    return run(
        program,
        bind={**_bind(config, program, setup, built), "tracker": trackers},
        steps=steps,
        seed=config.seed,
        pipeline=config.pipeline,
        against=config.against or None,
        target=config.target,
        out=out,
        resume=config.resume and can_resume(out),
        timed=config.timed,
        sanitize=config.sanitize,
        events=config.events,
        profile=config.profile,
    )


def _bind(config: JobConfig, program: Program, setup: Setup, built: Built) -> dict[str, Any]:
    """The parts by role, all but what is told of the steps."""
    return {
        **built.by_role(),
        "reward": ScoreAndExact(setup.task, setup.recipe.exact_share),
        "prompts": setup.train,
        "tokenizer": setup.tokenizer,
        "packer": setup.packer_on(mesh_sizes(config.mesh)),
        "advantages": _control(config, program),
    }


def _trackers(config: JobConfig, out: Path) -> list[Tracker]:
    events = [TensorBoard(out / "tensorboard")] if config.tensorboard else []
    return [JsonLines(out / "metrics.jsonl"), *events]


def _introduce(show: Show, config: JobConfig, setup: Setup, out: Path, found: str) -> None:
    show.say(
        f"{config.program} on {config.task}: {len(setup.train)} questions to train on, {len(setup.held_out)} held out, "
        f"seed {config.seed}, into {out}"
    )
    show.say(found)
    if in_words(config):
        show.say(in_words(config))
    if setup.left_out:
        show.say(f"{setup.left_out} questions are too long for the model and left out")
    if config.control:
        show.say(f"control {config.control}: nothing is to be learned")


def _warm_up(show: Show, setup: Setup, evaluator: Evaluator, out: Path, seed: int) -> WarmedUp:
    show.begin("warm-up", setup.recipe.warmup_steps)
    warm = warmed_up(setup, evaluator, out, seed=seed, progress=show.warmup)
    origin = "kept from before" if warm.restored else f"{warm.facts.seconds:.1f} s"
    show.say(f"warm-up: {warm.facts.steps} updates ({origin}), held-out accuracy {warm.facts.accuracy:.3f}")
    return warm


def built_parts(setup: Setup, split: SplitModel, program: Program, config: JobConfig) -> dict[str, Any]:
    """The parts of a job by role, all but its trackers, from these parameters."""
    return _bind(config, program, setup, built_here(setup, split, program, config, built_head(config, program, setup)))


def _control(config: JobConfig, program: Program) -> ShuffledRewards | None:
    """The control's advantages; None leaves the program's own."""
    if not config.control:
        return None
    named = [op.attr("estimator") for op in program.ops() if op.kind in ("advantages", "stream_mb")]
    estimator = str(named[0]) if named and named[0] else "grpo"
    return ShuffledRewards(ADVANTAGES[estimator], config.seed)


def _summary(config: JobConfig, result: RunResult, warm: WarmedUp, after: float, out: Path) -> dict[str, Any]:
    rewards = [record["reward"] for record in read_records(out / "metrics.jsonl") if record.get("reward") is not None]
    return {
        "program": config.program,
        "pipeline": result.pipeline,
        "target": result.target,
        "task": config.task,
        "control": config.control,
        "steps": result.steps,
        "seed": result.seed,
        "accuracy_before": warm.facts.accuracy,
        "accuracy_after": after,
        "reward_first": _mean(rewards[:_ENDS]),
        "reward_last": _mean(rewards[-_ENDS:]),
        "params_digest": result.params_digest,
        "calls_digest": result.calls_digest,
        "trained_groups_digest": result.trained_groups_digest,
        "phase_seconds": _rounded(result.phase_seconds),
        "phase_ms": _rounded(result.phase_ms),
        "timed": config.timed,
        "first_step": result.first_step,
        "warmup": {"steps": warm.facts.steps, "seconds": round(warm.facts.seconds, 2), "restored": warm.restored},
        "out": str(out),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}
