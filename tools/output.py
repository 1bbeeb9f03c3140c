"""Where a command writes: standard output, or a file that was asked for."""

from __future__ import annotations

import sys
from pathlib import Path

from steptrace.diag.command import OutputNotWritableError


def write_text(text: str, path: str) -> None:
    """Write ``text`` to the file, or to standard output when ``path`` is empty.

    Raises:
      OutputNotWritableError: the file cannot be written.
    """
    if not path:
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputNotWritableError(f"cannot write `{path}`: {error.strerror}", help="name another file") from error
