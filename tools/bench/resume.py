"""`steptrace bench resume`: kill runs at random moments, resume them, and compare with a run that was left alone."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from absl import flags

from ..command import Command
from ..table import aligned

KINDS = ("warm-up", "warm-up save", "step", "save", "step", "save", "step")
"""The kinds of moments at which runs are killed, in turn."""

COMPARED = ("params_digest", "calls_digest", "trained_groups_digest", "accuracy_before", "accuracy_after")

_START = "import sys; from steptrace_tools.cli import main; sys.exit(main())"
_POLL_S = 0.001


@dataclass(frozen=True)
class Moment:
    """When a run is killed.

    Attributes:
      kind: one of `KINDS`: what is waited for.
      step: for "step", how many steps are logged; for "save", the step whose checkpoint is begun.
      delay_s: how long after that, in seconds.
    """

    kind: str
    step: int
    delay_s: float

    def __str__(self) -> str:
        where = f" {self.step}" if self.kind in ("step", "save") else ""
        return f"{self.kind}{where} + {self.delay_s * 1e3:.0f} ms"


@dataclass(frozen=True)
class Job:
    """The run that is killed: program, task, number of steps, seed, and how often it saves."""

    program: str
    task: str
    steps: int
    seed: int
    save_every: int


def moments(kills: int, job: Job, *, seed: int, warmup_s: float, step_s: float, save_s: float) -> list[Moment]:
    """Moments spread over warm-up, steps and saves; a function of the arguments.

    Args:
      kills: how many.
      job: the run.
      seed: of the choice.
      warmup_s, step_s, save_s: how long the uninterrupted run took for each, in seconds.
    """
    draw = random.Random(seed)
    saves = range(job.save_every - 1, job.steps, job.save_every)
    spans = {"warm-up": warmup_s, "warm-up save": 2 * save_s, "step": step_s, "save": 1.2 * save_s}
    chosen = []
    for count in range(kills):
        kind = KINDS[count % len(KINDS)]
        step = draw.choice(saves) if kind == "save" else draw.randrange(1, job.steps)
        chosen.append(Moment(kind, step, draw.random() * spans[kind]))
    return chosen


def reached(moment: Moment, out: Path) -> bool:
    """Whether a run into ``out`` has come to where the moment's delay begins."""
    if moment.kind == "warm-up":
        return (out / "job.json").exists()
    if moment.kind == "warm-up save":
        return (out / ".saving-warmup").exists() or (out / "warmup").exists()
    if moment.kind == "save":
        name = f"{moment.step:08d}"
        return (out / "checkpoints" / f".saving-{name}").exists() or (out / "checkpoints" / name).exists()
    metrics = out / "metrics.jsonl"
    return metrics.exists() and metrics.read_bytes().count(b"\n") >= moment.step


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """In what two outcomes differ: the compared figures of their summaries, and the lists of trained groups."""
    return [name for name in (*COMPARED, "trained_groups") if left[name] != right[name]]


def outcome(summary: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """What is compared of a finished run."""
    lines = (out / "trained_groups.jsonl").read_text().splitlines()
    return {**summary, "trained_groups": [json.loads(line) for line in lines]}


def _command(job: Job, out: Path, *, resume: bool) -> list[str]:
    arguments = ["run", job.program, "--task", job.task, "--steps", str(job.steps), "--seed", str(job.seed)]
    return [sys.executable, "-c", _START, *arguments, "--out", str(out), "--json", *(["--resume"] if resume else [])]


def _finish(job: Job, out: Path, *, resume: bool) -> dict[str, Any]:
    """Run to the end; raises with what the run said when it fails."""
    done = subprocess.run(_command(job, out, resume=resume), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the run into {out} ended with {done.returncode}:\n{done.stderr}")
    return outcome(json.loads(done.stdout.splitlines()[-1]), out)


def _kill_at(moment: Moment, job: Job, out: Path) -> bool:
    """Start a run and kill it at the moment; False when it ended before."""
    process = subprocess.Popen(_command(job, out, resume=False), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not reached(moment, out) and process.poll() is None:
            time.sleep(_POLL_S)
        time.sleep(moment.delay_s)
        return process.poll() is None
    finally:
        process.kill()
        process.wait()


def _row(moment: Moment, job: Job, out: Path, whole: Mapping[str, Any]) -> dict[str, Any]:
    """Kill one run, resume it, compare it."""
    killed = _kill_at(moment, job, out)
    resumed = _finish(job, out, resume=True)
    different = differences(whole, resumed)
    return {
        **asdict(moment),
        "moment": str(moment),
        "killed": killed,
        "warmup_kept": resumed["warmup"]["restored"],
        "resumed_at_step": resumed["first_step"],
        "different": different,
    }


def _measure(job: Job, kills: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    whole = _finish(job, folder / "whole", resume=False)
    print(
        f"uninterrupted: {whole['steps']} steps in {whole['seconds']:.0f} s, parameters {whole['params_digest'][:12]}"
    )
    spans = {
        "warmup_s": whole["warmup"]["seconds"],
        "step_s": sum(whole["phase_ms"].values()) / 1e3,
        "save_s": whole["phase_ms"].get("save_checkpoint", 100.0) / 1e3,
    }
    rows = []
    for count, moment in enumerate(moments(kills, job, seed=seed, **spans)):
        out = folder / f"kill-{count}"
        row = _row(moment, job, out, whole)
        rows.append(row)
        print(f"{count + 1}/{kills}  {_shown(row)}", flush=True)
        shutil.rmtree(out)
    return rows


def _shown(row: Mapping[str, Any]) -> str:
    ending = "" if row["killed"] else " (ended before)"
    verdict = f"differs: {', '.join(row['different'])}" if row["different"] else "identical"
    return f"{row['moment']}{ending}: resumed at step {row['resumed_at_step']}, {verdict}"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("killed at", "warm-up", "resumed at step", "compared with the uninterrupted run")
    body = [
        (
            row["moment"] if row["killed"] else f"{row['moment']} (ended before)",
            "kept" if row["warmup_kept"] else "made again",
            str(row["resumed_at_step"]),
            f"differs: {', '.join(row['different'])}" if row["different"] else "identical",
        )
        for row in rows
    ]
    return aligned([head, *body])


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("kills", 20, "runs to kill", 1, flag_values=values)
    flags.DEFINE_integer("seed", 0, "of the moments", 0, flag_values=values)
    flags.DEFINE_integer("steps", 12, "steps of the run", 2, flag_values=values)
    flags.DEFINE_integer("save_every", 3, "steps from one checkpoint to the next", 1, flag_values=values)
    flags.DEFINE_string("task", "spell_backward", "name of a reasoning-gym dataset", flag_values=values)
    flags.DEFINE_bool("json", False, "print the outcome as a JSON object, on the last line", flag_values=values)


def _run(_: list[str], values: flags.FlagValues) -> int:
    program = f"grpo{{prompts=8, samples=4, save_every={values.save_every}}}"
    job = Job(program, values.task, values.steps, seed=0, save_every=values.save_every)
    with tempfile.TemporaryDirectory(prefix="steptrace-resume-") as folder:
        rows = _measure(job, values.kills, values.seed, Path(folder))
    different = sum(bool(row["different"]) for row in rows)
    print(f"\n{_table(rows)}\n\n{len(rows) - different} of {len(rows)} runs identical after kill -9 and --resume")
    if values.json:
        facts = {"kills": len(rows), "identical": len(rows) - different, "different": different}
        print(json.dumps({**facts, "killed": sum(row["killed"] for row in rows), "rows": rows}))
    return 1 if different else 0


COMMAND = Command(
    name="bench resume",
    operands="",
    summary="Kills runs at random moments (kill -9), resumes them, and compares with a run that was left alone.",
    details=(
        "The moments are spread over the warm-up, its saving, the steps, and the saves of checkpoints. Compared are "
        "the parameters, the trainer's calls with their inputs, and the list of trained groups, all bit for bit."
    ),
    examples=(
        ("bench resume --kills 20", "about ten minutes"),
        ("bench resume --kills 3 --seed 7 --json", "for scripts"),
    ),
    run=_run,
    define=_define,
)
