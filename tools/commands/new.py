"""`steptrace new DIR`: a job of one's own, to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from absl import flags

from ..command import Command


def _contents() -> dict[str, str]:
    """Text of each file of the job, by name: the templates, without the `.txt` that hides them from tools."""
    folder = files(f"{__package__.partition('.')[0]}").joinpath("templates")
    return {path.name.removesuffix(".txt"): path.read_text() for path in folder.iterdir() if path.is_file()}


def _run(operands: list[str], _: flags.FlagValues) -> int:
    from steptrace.diag.command import OutputNotWritableError, WouldOverwriteError

    folder = Path(operands[0])
    contents = _contents()
    try:
        there = sorted(name for name in contents if (folder / name).exists())
        if there:
            raise WouldOverwriteError(
                f"`{folder}` already has {', '.join(there)}", help="name another folder, or move the files away"
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise OutputNotWritableError(f"cannot write to `{folder}`: {error.strerror}") from error
    print(f"wrote {', '.join(sorted(contents))} to {folder}; start with: python {folder / 'job.py'}")
    return 0


COMMAND = Command(
    name="new",
    operands="DIR",
    summary="Writes a job of your own to start from: model, data, reward, rollout and trainer in one file.",
    examples=(("new job", "writes job/job.py, job/prompts.jsonl, job/README.md"),),
    run=_run,
    least=1,
    most=1,
)
