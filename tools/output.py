"""Where a command writes: standard output, or a file that was asked for; and what it says while it works."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


def check_writable(path: str) -> None:
    """Refuse a file that cannot be written, before anything is made that is to stand there; an empty path is no file.

    Raises:
      OutputNotWritableError: there is no such folder, or no right to write.
    """
    if not path:
        return
    folder = os.path.dirname(path) or "."
    why = "Is a directory" if os.path.isdir(path) else "" if os.path.isdir(folder) else "No such file or directory"
    if not why and not os.access(path if os.path.exists(path) else folder, os.W_OK):
        why = "Permission denied"
    if why:
        raise OutputNotWritableError(f"cannot write `{path}`: {why}", help="name another file")


@contextmanager
def told_if_slow(what: str, *, after_s: float = 2.0) -> Iterator[None]:
    """Say on standard error what is being done, once it has taken a while."""

    def tell() -> None:
        print(f"{what} ...", file=sys.stderr, flush=True)

    timer = threading.Timer(after_s, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
