"""Expected texts: how a difference is shown, and whether the new text is to be written instead."""

from __future__ import annotations

import difflib
import os

UPDATE = "STEPTRACE_UPDATE"
"""Set to 1, expected texts in files are rewritten with what comes out."""


class UpdateInCiError(RuntimeError):
    """Expected texts were to be rewritten on a machine that is there to compare them."""


def updating() -> bool:
    """Whether expected texts are to be rewritten: ``STEPTRACE_UPDATE=1``.

    Raises:
      UpdateInCiError: ``CI`` is set too.
    """
    if os.environ.get(UPDATE, "") in ("", "0"):
        return False
    if os.environ.get("CI", "") not in ("", "0", "false"):
        raise UpdateInCiError(f"{UPDATE} is set, but so is CI: expected texts are rewritten by hand, and looked at")
    return True


def difference(wanted: str, found: str) -> str:
    """The lines in which two texts differ, each with what stands around it: ``-`` expected, ``+`` found."""
    lines = difflib.unified_diff(wanted.splitlines(), found.splitlines(), "expected", "found", lineterm="", n=1)
    return "\n".join([*lines, f"(rewrite the expected text with {UPDATE}=1)"])
