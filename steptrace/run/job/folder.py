"""The output folder of a job: which one, whose it is, and what in it is to be resumed."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steptrace.diag.base import Note
from steptrace.diag.checkpoint import NoCheckpointError, OtherSeedError, OutInUseError, UnwritableOutError
from steptrace.diag.job import BrokenJobFolderError, OtherJobError
from steptrace.run.job.config import JobConfig
from steptrace.run.job.recipe import Recipe
from steptrace.run.job.warmup import FOLDER
from steptrace.run.store import checkpoints, locked

ROOT = Path("runs")
"""Below it are the folders of jobs that name none."""

_SETTINGS = "job.json"
_FORMAT = 1
_LOCK = ".lock"
_OF_A_RUN = ("metrics.jsonl", "trained_groups.jsonl", "summary.json", "curves.png", "curves.html")
_OF_A_JOB = ("checkpoints", FOLDER, "tokenizer.json", "tensorboard")


@contextmanager
def held_folder(config: JobConfig, recipe: Recipe) -> Iterator[tuple[Path, str]]:
    """The job's folder, held against other jobs; and one line on what a resume finds there.

    Raises:
      UnwritableOutError: it cannot be written.
      OutInUseError: it holds a run, and this one does not resume it; or another process is running in it; or it holds
        files that are not a job's and that a job would overwrite.
      OtherJobError, OtherSeedError: it holds a run with other settings.
      BrokenJobFolderError: its settings cannot be read.
      NoCheckpointError: it is to be resumed, and no run has begun there.
    """
    folder = Path(config.out) if config.out is not None else _default_folder(config)
    if config.resume and not folder.exists():
        raise _no_run(folder)
    _try_to_write(folder)
    with locked(folder / _LOCK, folder):
        yield folder, _prepared(folder, config, _settings(config, recipe), config.steps or recipe.steps)


def _prepared(folder: Path, config: JobConfig, settings: Mapping[str, Any], steps: int) -> str:
    """Put the job's settings into its folder, and nothing else that is not to be resumed; says what is."""
    there = _read_settings(folder)
    if there is None:
        _refuse_foreign(folder)
        if config.resume:
            raise _no_run(folder)
    elif not config.resume:
        raise OutInUseError(f"{folder} holds a run", help="add --resume, or choose another folder")
    else:
        _check_same(settings, there, folder)
    if config.resume and checkpoints(folder):
        last = checkpoints(folder)[-1]
        if last.name == f"{steps - 1:08d}-end":
            return f"resuming from {last}: nothing is left of {steps} steps; more --steps take it further"
        return f"resuming from {last}"
    _write_whole(folder / _SETTINGS, json.dumps(settings, indent=1))
    _start_afresh(folder)
    if not config.resume:
        return ""
    kept = "the warm-up that is kept there" if (folder / FOLDER).is_dir() else "a new warm-up"
    return f"no checkpoint in {folder}: starting at step 0 with {kept}"


def _no_run(folder: Path) -> NoCheckpointError:
    return NoCheckpointError(
        f"there is no run in {folder} to resume: it has no {_SETTINGS}",
        help="run without --resume, or name the --out of the first run",
    )


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that is no job's and has what a job would overwrite or remove: it is someone else's."""
    foreign = [name for name in (*_OF_A_RUN, *_OF_A_JOB) if (folder / name).exists()]
    if foreign:
        raise OutInUseError(
            f"{folder} has {', '.join(foreign)}, and no {_SETTINGS} of a job that wrote them",
            help="choose another folder, or move the files away",
        )


def can_resume(folder: Path) -> bool:
    """Whether a run can go on from a checkpoint below the folder."""
    return bool(checkpoints(folder))


def _default_folder(config: JobConfig) -> Path:
    """``runs/PROGRAM-TASK-seedN``, numbered when taken; to resume, the last of them that is there."""
    name = re.sub(r"[^\w.]+", "-", config.program.partition("{")[0]).strip("-.") or "program"
    base = ROOT / f"{name}-{config.task}-seed{config.seed}"
    if config.control:
        base = base.with_name(f"{base.name}-{config.control}")
    count, found, folder = 1, base, base
    while folder.exists():
        count, found, folder = count + 1, folder, base.with_name(f"{base.name}-{count + 1}")
    return found if config.resume else folder


def _settings(config: JobConfig, recipe: Recipe) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "program": config.program,
        "task": config.task,
        "seed": config.seed,
        "control": config.control,
        "eval_size": config.eval_size,
        "recipe": json.loads(json.dumps(asdict(recipe))),
    }


def _check_same(settings: Mapping[str, Any], there: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume a run with other settings; whether it is another program, its checkpoint says."""
    if there.get("seed") != settings["seed"]:
        raise OtherSeedError(
            f"{folder} holds a run with seed {there.get('seed')}, not {settings['seed']}",
            help=f"resume with --seed {there.get('seed')}, or choose another folder",
        )
    other = [
        Note(f"{name}: {there.get(name)!r} there, {settings[name]!r} here")
        for name in ("format", "task", "control", "eval_size")
        if there.get(name) != settings[name]
    ]
    old, new = there.get("recipe") or {}, settings["recipe"]
    other += [
        Note(f"recipe.{name}: {old.get(name)!r} there, {new.get(name)!r} here")
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]
    if other:
        raise OtherJobError(
            f"{folder} holds a run with other settings",
            notes=tuple(other),
            help="resume with those, or use another --out",
        )


def _read_settings(folder: Path) -> dict[str, Any] | None:
    """The settings of the run in the folder; None when there is none."""
    path = folder / _SETTINGS
    try:
        settings = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BrokenJobFolderError(f"{path} cannot be read: {error}") from error
    if not isinstance(settings, dict):
        raise BrokenJobFolderError(f"{path} holds no settings of a job")
    return settings


def _try_to_write(folder: Path) -> None:
    """Make the folder and write in it, before anything is computed."""
    probe = folder / ".probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UnwritableOutError(f"the output folder {folder} cannot be written: {error.strerror or error}") from error


def _start_afresh(folder: Path) -> None:
    """Remove what a run without a checkpoint left behind: it is made again from step 0."""
    for name in _OF_A_RUN:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    building = path.with_name(f".{path.name}.new")
    building.write_text(text)
    os.replace(building, path)
