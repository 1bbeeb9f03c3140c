"""Checkpoints of a whole run: trainer, published weights, cursors, versions and digests, written as one."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from steptrace.diag.checkpoint import (
    BrokenCheckpointError,
    NoCheckpointError,
    OtherModelError,
    OtherProgramError,
    OtherSeedError,
)
from steptrace.ir import Loop, Node, Program, print_program
from steptrace.lang.records import GroupId
from steptrace.run.digest import CallLog, chain
from steptrace.run.session import Session
from steptrace.run.trees import restore_tree, save_tree

FORMAT = 1
"""Version of the manifest; a checkpoint of another is refused."""

KEPT = 2
"""How many checkpoints are kept."""


def checkpoints(out: Path) -> list[Path]:
    """The complete checkpoints below ``out``, oldest first."""
    return sorted(path.parent for path in (out / "checkpoints").glob("[0-9]*/manifest.json"))


def save_run(run: Session, step: int) -> None:
    """Write the checkpoint of a run whose step ``step`` was updated; nothing when the run keeps nothing.

    It is written beside its place and moved there when complete: a run killed at any moment leaves the one before.
    """
    if run.out is None:
        return
    place = run.out / "checkpoints" / f"{step:08d}"
    building = place.with_name(f".saving-{step:08d}")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    run.parts.trainer.save_checkpoint(building / "trainer")
    versions = _needed_versions(run, step)
    for version in sorted(set(versions.values())):
        save_tree(building / "weights" / str(version), run.board.weights(version))
    manifest = {**_facts(run, step), "versions": versions, "files": _files(building)}
    _write_synced(building / "manifest.json", json.dumps(manifest, indent=1))
    shutil.rmtree(place, ignore_errors=True)
    os.replace(building, place)
    _sync_folder(place.parent)
    for old in checkpoints(run.out)[:-KEPT]:
        shutil.rmtree(old)


def restore_run(run: Session) -> int:
    """Bring a fresh session to where its newest checkpoint left it; returns the step to go on with.

    Raises:
      NoCheckpointError, BrokenCheckpointError, OtherProgramError, OtherModelError, OtherSeedError.
    """
    if run.out is None or not checkpoints(run.out):
        raise NoCheckpointError(f"there is no checkpoint below {run.out}")
    place = checkpoints(run.out)[-1]
    manifest = _read_manifest(place)
    _check_same(run, manifest, place)
    run.parts.trainer.restore_checkpoint(place / "trainer")
    like, _ = run.parts.trainer.weights()
    for step, version in sorted((int(step), version) for step, version in manifest["versions"].items()):
        run.board.publish(step, restore_tree(place / "weights" / str(version), like), version)
    step = int(manifest["step"])
    if run.draws is not None:
        run.cursor = run.draws.restore(manifest["data"])
    run.queue.restore(manifest["queue"])
    run.calls = CallLog(manifest["calls_digest"])
    run.groups_digest = manifest["groups_digest"]
    run.carries = dict(manifest["carries"])
    rewind_trained(run.out, step, manifest["trained"])
    _rewind_trackers(run, step, manifest["metrics"])
    return step + 1


def rewind_trained(out: Path, step: int, trained: list[list[Any]]) -> None:
    """Bring the list of trained groups back to the end of ``step``, whose groups are ``trained``."""
    path = out / "trained_groups.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] < step]
    _write_synced(path, "".join(f"{line}\n" for line in [*kept, json.dumps({"step": step, "groups": trained})]))


def forget_trained(out: Path) -> None:
    """Remove the list of trained groups that a run left which stopped before its first checkpoint."""
    (out / "trained_groups.jsonl").unlink(missing_ok=True)


def append_trained(out: Path, step: int, ids: tuple[GroupId, ...]) -> None:
    """Add the groups of a committed step to the list of trained groups."""
    with (out / "trained_groups.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "groups": [[name.prompt, name.draw] for name in ids]}) + "\n")


def program_fingerprint(program: Program) -> str:
    """Hash of what the program does; source lines do not count."""
    bare = replace(
        program,
        loc=None,
        kinds=tuple(replace(kind, loc=None) for kind in program.kinds),
        carries=tuple(replace(carry, loc=None) for carry in program.carries),
        prologue=_without_locs(program.prologue),
        body=_without_locs(program.body),
        epilogue=_without_locs(program.epilogue),
    )
    return chain("", print_program(bare))


def _without_locs(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(
        replace(node, loc=None, body=_without_locs(node.body)) if isinstance(node, Loop) else replace(node, loc=None)
        for node in nodes
    )


def model_fingerprint(weights: Any) -> str:
    """Hash of the paths, shapes and dtypes of a tree of parameters."""
    leaves = jax.tree_util.tree_flatten_with_path(weights)[0]
    return chain("", *sorted(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}" for path, leaf in leaves))


def _needed_versions(run: Session, step: int) -> dict[int, int]:
    """Versions that later steps generate with, by publishing step; that of ``step`` itself is the trainer's own."""
    oldest = step - run.plan.program.contract.staleness
    return {index: version for index, version in run.board.held().items() if oldest <= index < step}


def _facts(run: Session, step: int) -> dict[str, Any]:
    memory = run.step_memory(step)
    groups = run.groups_digest
    for name in memory.taken:
        groups = chain(groups, name.prompt, str(name.draw))
    queue = run.queue.state()
    return {
        "format": FORMAT,
        "step": step,
        "program": run.plan.program.name,
        "program_fingerprint": program_fingerprint(run.plan.program),
        "model_fingerprint": model_fingerprint(run.board.weights(run.board.version(run.board.newest()))),
        "seed": run.seed,
        "data": None if run.draws is None else run.draws.state(memory.cursor),
        "queue": {**queue, "training_cursor": step + 1, "groups": queue["groups"] + len(memory.taken)},
        "calls_digest": run.calls.settle(),
        "groups_digest": groups,
        "trained": [[name.prompt, name.draw] for name in memory.taken],
        "carries": {name: float(value) for name, value in run.carried().items()},
        "metrics": memory.metrics or None,
    }


def _check_same(run: Session, manifest: Mapping[str, Any], place: Path) -> None:
    program = run.plan.program
    if manifest["program_fingerprint"] != program_fingerprint(program):
        raise OtherProgramError(
            f"{place} was written by another program, `{manifest['program']}`, or with other parameters",
            loc=program.loc,
        )
    if manifest["seed"] != run.seed:
        raise OtherSeedError(f"{place} was written with seed {manifest['seed']}, not {run.seed}")
    weights, _ = run.parts.trainer.weights()
    if manifest["model_fingerprint"] != model_fingerprint(weights):
        raise OtherModelError(f"{place} holds the parameters of another model")


def _rewind_trackers(run: Session, step: int, last_record: dict[str, float] | None) -> None:
    for tracker in run.parts.trackers:
        rewind = getattr(tracker, "rewind", None)
        if rewind is not None:
            rewind(step, last_record)


def _read_manifest(place: Path) -> dict[str, Any]:
    """The manifest, when every file it lists is there with its size and bytes; raises `BrokenCheckpointError`."""
    try:
        manifest = json.loads((place / "manifest.json").read_text())
        assert isinstance(manifest, dict)
        listed = manifest["files"]
    except (OSError, ValueError, KeyError, AssertionError) as error:
        raise BrokenCheckpointError(f"the manifest of {place} cannot be read: {error}") from error
    if manifest.get("format") != FORMAT:
        raise BrokenCheckpointError(f"{place} has format {manifest.get('format')}, and this version reads {FORMAT}")
    for name, (size, crc) in listed.items():
        file = place / name
        if not file.is_file():
            raise BrokenCheckpointError(f"{file} is missing")
        if file.stat().st_size != size:
            raise BrokenCheckpointError(f"{file} has {file.stat().st_size} bytes, and {size} were written")
        if _crc(file) != crc:
            raise BrokenCheckpointError(f"{file} has other bytes than were written")
    return manifest


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size in bytes and CRC-32 of every file below the folder."""
    return {str(file.relative_to(folder)): (file.stat().st_size, _crc(file)) for file in _walk(folder)}


def _walk(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _crc(file: Path) -> int:
    crc = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def _write_synced(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
