"""The main job, from its configuration to its figures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from steptrace.run.job.optimizer import rl_optimizer
from steptrace.run.job.orders import show_orders
from steptrace.run.job.progress import Show
from steptrace.run.job.recipe import recipe_for
from steptrace.run.job.report import summarise
from steptrace.run.job.reward import ScoreAndExact
from steptrace.run.job.setup import Setup, load_setup
from steptrace.run.job.trackers import JsonLines, TensorBoard, check_tensorboard, read_records
from steptrace.run.job.warmup import WarmedUp, warmed_up
from steptrace.run.models.split import SplitModel
from steptrace.run.result import RunResult
from steptrace.run.rollout import FrozenReference, JaxRollout
from steptrace.run.trainer import GrpoLoss, JaxTrainer
from steptrace.run.verbs import ADVANTAGES

_ENDS = 10
"""Steps over which the first and the last reward are means."""


@dataclass(frozen=True)
class _Built:
    """The parts that hold arrays."""

    trainer: JaxTrainer
    rollout: JaxRollout
    reference: FrozenReference


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
    mesh_of(mesh_sizes(config.mesh))
    if config.tensorboard:
        check_tensorboard()
    recipe = config.recipe or recipe_for(config.task)
    with Show(quiet=config.json) as show:
        setup = load_setup(config.task, recipe, config.eval_size)
        config = with_planned_head(config, setup)
        with held_folder(config, recipe) as (out, found):
            _introduce(show, config, setup, out, found)
            summary, built = _trained(show, config, program, setup, out)
            summary["seconds"] = round(time.perf_counter() - start, 2)
            show.stop()
            summary = summarise(summary, read_records(out / "metrics.jsonl"), out, show)
            if config.orders:
                show_orders(show, program, _bind(config, program, setup, built), built.trainer, seed=config.seed)
            return summary


def _trained(show: Show, config: JobConfig, program: Program, setup: Setup, out: Path) -> tuple[dict[str, Any], _Built]:
    """Warm up, train and evaluate in the job's folder; gives the figures, and the parts as they are then."""
    setup.tokenizer.save(out / "tokenizer.json")
    evaluator = Evaluator(setup, setup.model(config.seed))
    warm = _warm_up(show, setup, evaluator, out, config.seed)
    built = _build(setup, warm.split, program, config)
    show.begin(f"{program.name} on {config.task}", config.steps or setup.recipe.steps)
    watch = CompileWatch({"trainer": built.trainer, "rollout": built.rollout, "reference": built.reference})
    result = _run_program(config, program, setup, built, [*_trackers(config, out), watch, show], out)
    if config.sanitize:
        show.say("\n".join(["sanitized: users' ops do what they declare", *result.remarks]))
    compiles = watch.counts()
    weights, _ = built.trainer.weights()
    figures = _summary(config, result, warm, evaluator.accuracy(weights), out)
    return {**figures, "compiles": compiles}, built


def _run_program(
    config: JobConfig, program: Program, setup: Setup, built: _Built, trackers: Sequence[Tracker], out: Path
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
    )


def _bind(config: JobConfig, program: Program, setup: Setup, built: _Built) -> dict[str, Any]:
    """The parts by role, all but what is told of the steps."""
    return {
        "trainer": built.trainer,
        "rollout": built.rollout,
        "reference": built.reference,
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


def _build(setup: Setup, split: SplitModel, program: Program, config: JobConfig) -> _Built:
    """Trainer, rollout and reference, all from the warmed-up parameters.

    The KL penalty is that of the recipe where the program makes the reference's log-probs; else there is none. The
    reference is on the mesh where a head was selected that works there.
    """
    recipe, mesh = setup.recipe, mesh_of(mesh_sizes(config.mesh))
    head = built_head(config, program, setup)
    anchored = any(op.kind == "ref_logps" for op in program.ops())
    loss = GrpoLoss(
        clip_low=recipe.clip_low,
        clip_high=recipe.clip_high,
        kl_coef=recipe.kl_coef if anchored else 0.0,
        aggregation=recipe.aggregation,
        temperature=recipe.temperature,
        entropy_coef=recipe.entropy_coef,
        head=head,
    )
    rollout = JaxRollout(
        setup.model(config.seed),
        setup.tokenizer,
        buckets=(setup.bucket,),
        max_new_tokens=setup.max_new_tokens,
        temperature=recipe.temperature,
    )
    return _Built(
        trainer=JaxTrainer(split, rl_optimizer(recipe), loss, mesh=mesh),
        rollout=rollout,
        reference=FrozenReference(
            split, temperature=recipe.temperature, head=head, mesh=None if head == "dense" else mesh
        ),
    )


def built_parts(setup: Setup, split: SplitModel, program: Program, config: JobConfig) -> dict[str, Any]:
    """The parts of a job by role, all but its trackers, from these parameters."""
    return _bind(config, program, setup, _build(setup, split, program, config))


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
