"""The rules of a train step: for each a schedule that keeps it, edits that break it, and what the refusal must say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import unseen_programs

from steptrace.ir import Program, parse_program, print_program
from steptrace.lang.reference import resolve
from steptrace.motion import Schedule
from steptrace.passes import run_pipeline
from steptrace.testing.edits import edited


@dataclass(frozen=True)
class Derived:
    """A schedule that keeps the rules: a program, and the pipeline that derives it."""

    program: str
    pipeline: str


BOUNDARY = Derived("grpo{staleness=1}", "pipelined-boundary")
ASYNC = Derived("grpo{staleness=1,saves=may_fail_late}", "pipelined-boundary,async-weight-sync,async-checkpoint")
AFTER = Derived("grpo{staleness=1}", "fuse-update,take-ahead,defer-metrics,stage-after-update")
EARLY = Derived("grpo{staleness=1}", "pipelined-boundary-unstaged")
STREAM = Derived("grpo_stream{staleness=1}", "pipelined-boundary")
OLD_POLICY = Derived("old_policy", "take-ahead,defer-metrics,defer-update")
LENT = Derived("grpo{staleness=1}", "pipelined-boundary,release-buffers")
LENT_AHEAD = Derived("grpo{staleness=1}", "pipeline-micro-batches,release-buffers")
KEPT = (BOUNDARY, ASYNC, AFTER, EARLY, STREAM, OLD_POLICY, LENT, LENT_AHEAD)
FEED = ("dispatch", "take", "reward", "advantages", "pack", "next_mb.first", "ref_logps.first")
UPDATE = (
    "update() lane=host reads[grads, optimizer, params, trainer.step] "
    "writes[grads, optimizer, params, trainer.calls, trainer.metrics, trainer.step]"
)
STAGE = (
    "stage_fwd_bwd.2: %request.2 : token, %staged.2 : flag = stage_fwd_bwd(%mb.2.first) lane=host at(m=0) shift=+1 "
    "from=fwd_bwd.stage reads[trainer.staged] writes[trainer.staged]"
)


@dataclass(frozen=True)
class Rule:
    """A rule, and how a schedule that breaks it is refused.

    Attributes:
      words: the rule.
      keeps: a schedule that keeps it.
      breaks: edits that make it break the rule and, as far as that goes, no other.
      code: of the refusal.
      message: the headline.
      edge: one of the notes below it: what makes it a rule.
    """

    words: str
    keeps: Derived
    breaks: tuple[str, ...]
    code: str
    message: str
    edge: str


@lru_cache
def derived(base: Derived) -> Schedule:
    """The schedule, by passes that all did something."""
    known = getattr(unseen_programs, base.program, None)
    result = run_pipeline(known.trace() if known else resolve(base.program), base.pipeline)
    assert [remark for remark in result.remarks if remark.kind == "missed"] == []
    return result.schedule


def broken(base: Derived, edits: tuple[str, ...]) -> Program:
    """The schedule with edits made in its text."""
    return parse_program(edited(print_program(derived(base).program), "\n".join(edits)))
