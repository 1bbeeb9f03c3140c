"""The folder of a run: checkpoints, each there whole or not at all, and the list of trained groups."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steptrace.diag.checkpoint import BrokenCheckpointError, OutInUseError, UnwritableOutError
from steptrace.lang.records import GroupId

FORMAT = 1
"""Version of the manifest; a checkpoint of another is refused."""

KEPT = 2
"""How many checkpoints are kept."""

_MANIFEST = "manifest.json"
_NAME = re.compile(r"([0-9]+)((?:-end)?)")
_UNFINISHED = ".saving-"
_TRAINED = "trained_groups.jsonl"


def checkpoints(out: Path) -> list[Path]:
    """The checkpoints below ``out``, oldest first; each was whole when it was put there.

    One that was saved in step 9 is named ``00000009``, one that was saved behind that step ``00000009-end``.
    """
    found = ((_NAME.fullmatch(path.name), path) for path in (out / "checkpoints").glob("*") if path.is_dir())
    return [path for _, path in sorted(((int(name[1]), name[2]), path) for name, path in found if name)]


@contextmanager
def opened(out: Path, *, resume: bool) -> Iterator[None]:
    """The folder of a run, made, tried, and held against other processes while the run lasts.

    What runs that were killed left unfinished is removed; so is the list of trained groups of a run that stopped
    before its first checkpoint, unless a checkpoint is to be resumed.

    Raises:
      UnwritableOutError: it cannot be written.
      OutInUseError: it holds another run, or another process is running in it.
    """
    with writing(f"the output folder {out}"):
        (out / "checkpoints").mkdir(parents=True, exist_ok=True)
    with locked(out / "checkpoints" / ".lock", out):
        if checkpoints(out) and not resume:
            raise OutInUseError(f"{out} holds the checkpoints of a run", help="give resume=True, or another `out`")
        with writing(f"the output folder {out}"):
            for left in (out / "checkpoints").glob(f"{_UNFINISHED}*"):
                shutil.rmtree(left)
            if not resume:
                (out / _TRAINED).unlink(missing_ok=True)
        yield


@contextmanager
def locked(lock: Path, out: Path) -> Iterator[None]:
    """Hold a folder against other processes; the system lets go of it when this one ends, however it ends.

    Args:
      lock: the file that is locked; made if need be, and left there.
      out: the folder, for the message.

    Raises:
      UnwritableOutError: the file cannot be written.
      OutInUseError: another process holds it.
    """
    with writing(f"the output folder {out}"):
        file = lock.open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutInUseError(f"another process is running in {out}", help="choose another folder") from None
        except OSError:
            pass  # a file system without locks
        yield


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Report a file system's refusal to write ``what`` as a coded error."""
    try:
        yield
    except OSError as error:
        raise UnwritableOutError(f"{what} cannot be written: {error.strerror or error}") from error


@contextmanager
def new_checkpoint(out: Path, step: int, *, ended: bool) -> Iterator[Path]:
    """A folder to write a checkpoint to; it becomes the checkpoint when the block ends without an error.

    A run that is killed at any moment leaves the checkpoints from before, and at most an unfinished folder.

    Args:
      out: the folder of the run.
      step: the step it is saved in.
      ended: whether that step is at its end.
    """
    place = out / "checkpoints" / f"{step:08d}{'-end' if ended else ''}"
    building = place.with_name(f"{_UNFINISHED}{place.name}")
    with writing(f"checkpoint {place}"):
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
    yield building
    with writing(f"checkpoint {place}"):
        _sync(out / _TRAINED)
        _sync(building)
        _discard(place)
        os.replace(building, place)
        _sync(place.parent)
        for old in checkpoints(out)[:-KEPT]:
            _discard(old)


def write_manifest(checkpoint: Path, facts: Mapping[str, Any]) -> None:
    """Write the facts of a checkpoint beside all its other files, whose sizes and checksums it keeps too."""
    whole = json.dumps({**facts, "files": _files(checkpoint)})
    with writing(f"checkpoint {checkpoint}"):
        text = json.dumps({"format": FORMAT, "crc": zlib.crc32(whole.encode()), "facts": json.loads(whole)}, indent=1)
        _write_synced(checkpoint / _MANIFEST, text)


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The facts of a checkpoint, when every file of it has the bytes that were written.

    Raises:
      BrokenCheckpointError: names the file.
    """
    path = checkpoint / _MANIFEST
    try:
        manifest = json.loads(path.read_text())
        version, crc, facts = manifest["format"], manifest["crc"], manifest["facts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenCheckpointError(f"{path} cannot be read: {error!r}") from error
    if version != FORMAT:
        raise BrokenCheckpointError(f"{checkpoint} has format {version}, and this version reads {FORMAT}")
    if crc != zlib.crc32(json.dumps(facts).encode()):
        raise BrokenCheckpointError(f"{path} has other contents than were written")
    for name, (size, checksum) in facts["files"].items():
        file = checkpoint / name
        if not file.is_file():
            raise BrokenCheckpointError(f"{file} is missing")
        if file.stat().st_size != size:
            raise BrokenCheckpointError(f"{file} has {file.stat().st_size} bytes, and {size} were written")
        if _crc(file) != checksum:
            raise BrokenCheckpointError(f"{file} has other bytes than were written")
    return dict(facts)


def append_trained(out: Path, step: int, ids: tuple[GroupId, ...]) -> None:
    """Add the groups of a committed step to the list of trained groups."""
    line = json.dumps({"step": step, "groups": [[name.prompt, name.draw] for name in ids]})
    with writing(f"the list of trained groups in {out}"), (out / _TRAINED).open("a") as file:
        file.write(line + "\n")


def rewind_trained(out: Path, steps: int) -> None:
    """Bring the list of trained groups back to the first ``steps`` steps; a line cut short was no step's."""
    path = out / _TRAINED
    lines = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in lines if 0 <= _step_of(line) < steps]
    with writing(f"the list of trained groups in {out}"):
        _write_synced(path, "".join(f"{line}\n" for line in kept))


def _step_of(line: str) -> int:
    """The step of a line of the list; -1 when it is none."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return -1


def _discard(checkpoint: Path) -> None:
    """Remove a checkpoint; what is left of it when this is cut short has no checkpoint's name."""
    if checkpoint.exists():
        gone = checkpoint.with_name(f"{_UNFINISHED}{checkpoint.name}-old")
        os.replace(checkpoint, gone)
        shutil.rmtree(gone)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size in bytes and CRC-32 of every file below the folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_size, _crc(path)) for path in files}


def _crc(file: Path) -> int:
    crc = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def _write_synced(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _sync(path: Path) -> None:
    """Bring a file or the entries of a folder to the disk."""
    if not path.exists():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
