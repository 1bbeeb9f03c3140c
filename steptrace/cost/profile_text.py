"""Costs that were measured, as a cost file with the origin of each number beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from steptrace.cost.profile import Measured, Profile


def profile_text(profile: Profile, *, program: str, pipeline: str = "", note: str = "", on_cpu: bool = False) -> str:
    """A profile as a cost file, each number with its origin, for `steptrace plan --costs`.

    Args:
      profile: the costs.
      program: what was run.
      pipeline: what it was run under.
      note: what it was run on.
      on_cpu: whether the devices are CPUs, which share their cores.
    """
    first, last = profile.steps
    under = f" under `{pipeline}`" if pipeline else ""
    lines = [
        f"# Costs measured on a run of `{program}`{under}, steps {first} to {last}: those before them compile.",
        *([f"# {note}"] if note else []),
        "# issue: how long the call holds its lane, without what it waits for; work: how long its device is at it.",
        "# A time on a device counts from when the work was sent and what came before it was done.",
    ]
    if profile.shared:
        names = ", ".join(profile.shared)
        lines.append(f"# The trainer's device did the work of {names} too; `plan` takes it for that of another device.")
    if on_cpu:
        lines.append(
            "# On CPUs generation, reference and trainer share the cores: a plan that overlaps them is too fast."
        )
    if profile.unknown:
        lines += ["#", "# Of these ops nothing is known, and `plan` will ask for them by name:"]
        lines += [f"#   {op}: {why}" for op, why in profile.unknown.items()]
    median_count, fewest, most = profile.micro_batches
    if median_count:
        varied = f"  # median; the steps had {fewest} to {most}" if fewest != most else ""
        lines += ["", "[cell]", f"micro_batches = {median_count}{varied}"]
    for name, measured in profile.ops.items():
        lines += ["", f"[ops.{_key(name)}]", *_lines(measured)]
        if name in profile.firsts:
            lines += [f"[ops.{_key(name)}.first]", *_lines(profile.firsts[name])]
    return "\n".join(lines) + "\n"


def _lines(measured: Measured) -> Iterator[str]:
    for name, figure in (("issue", measured.issue), ("work", measured.work)):
        if figure is not None:
            yield f"{f'{name} = {_written(figure.seconds)}':<24}# {figure}"


def _written(seconds: float) -> str:
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)) if seconds >= s), ("ns", 1e-9))
    return f'"{seconds / scale:.6g} {unit}"' if seconds else '"0 s"'


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
