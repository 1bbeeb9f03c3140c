"""The rules of a train step, one by one: the schedule that keeps a rule is accepted, the one that breaks it is refused.

Each row breaks a derived schedule by hand and names the edge that stands behind the rule. Rules about what happens
only while a program runs have no schedule that breaks them:

==================================================================  =================================================
rule                                                                where it is kept
==================================================================  =================================================
a checkpoint's stamp is the step that the update returned           the trainer, when it saves
a stage while an update is held back waits for nothing              the row of ``stage_fwd_bwd``: it polls
the flag of a held update is cleared only after the device wait     the trainer's ``apply_deferred_update``
a worker that did the update anyway is asked for none               the runtime, by the call's result
an older trainer gets the stage after the update                    the choice of ``pipelined-boundary-staged-after``
a failure met in a stage's device wait is the update's              the trainer's attribution
==================================================================  =================================================
"""

from __future__ import annotations

from functools import lru_cache

import pytest
import unseen_programs

from steptrace.check.schedule import check_schedule
from steptrace.check.validation import Budget, validate
from steptrace.diag import SteptraceError
from steptrace.ir import Program, parse_program, print_program, verify
from steptrace.lang.reference import resolve
from steptrace.motion import Schedule
from steptrace.passes import run_pipeline
from steptrace.testing.edits import edited

BOUNDARY = ("grpo{staleness=1}", "pipelined-boundary")
ASYNC = ("grpo{staleness=1,saves=may_fail_late}", "pipelined-boundary,async-weight-sync,async-checkpoint")
AFTER = ("grpo{staleness=1}", "fuse-update,take-ahead,defer-metrics,stage-after-update")
EARLY = ("grpo{staleness=1}", "pipelined-boundary-unstaged")
OLD_POLICY = ("old_policy", "take-ahead,defer-metrics")


@lru_cache
def derived(name: str, pipeline: str) -> Schedule:
    known = getattr(unseen_programs, name, None)
    result = run_pipeline(known.trace() if known else resolve(name), pipeline)
    assert [remark for remark in result.remarks if remark.kind == "missed"] == []
    return result.schedule


def broken(base: tuple[str, str], *edits: str) -> Program:
    return parse_program(edited(print_program(derived(*base).program), "\n".join(edits)))


@pytest.mark.parametrize("base", [BOUNDARY, ASYNC, AFTER, EARLY, OLD_POLICY], ids=lambda base: base[1])
def test_the_schedules_that_keep_the_rules_are_accepted(base: tuple[str, str]):
    schedule = derived(*base)
    verify(schedule.program)
    assert check_schedule(schedule.program, schedule.source) == schedule.reference
    assert validate(schedule.program, schedule.source, budget=Budget(runs=150)).ok


RULES = [
    ("training calls run in order", BOUNDARY, ["move fwd_bwd.first after micro_batches"], "fwd_bwd", "fwd_bwd.first"),
    ("no update on a partly accumulated step", BOUNDARY, ["move apply_deferred_update before micro_batches"],
     "apply_deferred_update", "fwd_bwd"),
    ("the update comes before the next step's first call", BOUNDARY,
     ["move fwd_bwd_staged.first before apply_deferred_update"], "fwd_bwd_staged.first", "apply_deferred_update"),
    ("log-probs under the actor stay behind the update", OLD_POLICY,
     ['in old_logps.first replace "at(m=0)" with "at(m=0) shift=+1"', "move old_logps.first before update"],
     "old_logps.first", "update"),
    ("packing comes before the reference's log-probs", BOUNDARY, ["move pack after ref_logps.first"],
     "next_mb.first", "pack"),
    ("metrics are fetched once the update is sent", BOUNDARY, ["move start_metrics before apply_deferred_update"],
     "start_metrics", "apply_deferred_update"),
    ("metrics are set aside before the next step adds its own", BOUNDARY,
     ["move start_metrics after fwd_bwd_staged.first"], "fwd_bwd_staged.first", "start_metrics"),
    ("a checkpoint holds the update of its step", BOUNDARY, ["move save_checkpoint before apply_deferred_update"],
     "save_checkpoint", "apply_deferred_update"),
    ("a checkpoint holds no gradients of the next step", BOUNDARY, ["move save_checkpoint after fwd_bwd_staged.first"],
     "fwd_bwd_staged.first", "save_checkpoint"),
    ("weights are published after the update", BOUNDARY, ["move sync_weights before apply_deferred_update"],
     "sync_weights", "apply_deferred_update"),
    ("a failed save suppresses the sync", BOUNDARY, ["move sync_weights before save_checkpoint"],
     "sync_weights", "save_checkpoint"),
    ("the copy of the weights is made before the next step's first call", ASYNC,
     ["move copy_weights after fwd_bwd_staged.first", "move commit after copy_weights"],
     "fwd_bwd_staged.first", "copy_weights"),
    ("sync rounds are in flight one at a time", ASYNC,
     ['in transfer_weights replace "lane=rollout" with "lane=rollout shift=+1"'], "transfer_weights", "apply_weights"),
    ("a commit follows the weight sync", BOUNDARY, ["move commit before sync_weights"], "commit", "sync_weights"),
    ("a commit follows the copy of an asynchronous sync", ASYNC, ["move commit before copy_weights"],
     "commit", "copy_weights"),
    ("a log follows the metrics", BOUNDARY, ["move log before fetch_metrics"], "log", "fetch_metrics"),
    ("a log follows the commit", BOUNDARY, ["move log before commit", "move fetch_metrics before log"],
     "log", "commit"),
    ("callbacks keep the order of the steps", BOUNDARY,
     ['in on_step_begin replace "lane=host" with "lane=host shift=+1"', "move on_step_begin before on_step_end"],
     "on_step_begin", "on_step_end"),
    ("host memory is released after its last reader", BOUNDARY, ["move free before log"], "free", "log"),
    ("the version of a step is recorded at its place", BOUNDARY,
     ["move log before sync_weights", "move fetch_metrics before log", "move commit before log"],
     "commit", "sync_weights"),
    ("groups taken ahead stay uncommitted", BOUNDARY, ['in commit replace "lane=host" with "lane=host shift=+1"'],
     "commit", "sync_weights"),
    ("with the update in the last call, metrics wait for it", AFTER, ["move start_metrics before micro_batches"],
     "start_metrics", "fwd_bwd"),
    ("what was not shipped is sent first in the next step", EARLY, ["move fwd_bwd.first after micro_batches"],
     "fwd_bwd", "fwd_bwd.first"),
    ("a held update comes before the metrics", BOUNDARY, ["move apply_deferred_update after start_metrics"],
     "start_metrics", "apply_deferred_update"),
    ("a held update comes before the save", BOUNDARY, ["move apply_deferred_update after save_checkpoint"],
     "start_metrics", "apply_deferred_update"),
    ("a held update comes before the sync", BOUNDARY,
     ["move apply_deferred_update after sync_weights"], "start_metrics", "apply_deferred_update"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "base", "edits", "early", "first"), RULES, ids=[row[0] for row in RULES])
def test_a_schedule_that_breaks_the_rule_is_refused_with_its_edge(
    rule: str, base: tuple[str, str], edits: list[str], early: str, first: str
):
    with pytest.raises(SteptraceError) as refused:
        check_schedule(broken(base, *edits), derived(*base).source)
    assert refused.value.code == "ST204", rule
    head, _, tail = refused.value.message.partition(" would run before ")
    assert (head.split()[0], tail.split()[0]) == (f"`{early}`", f"`{first}`")


COUNTS = [
    ("a step has one update", BOUNDARY,
     ["insert after apply_deferred_update: update() lane=host reads[grads, optimizer, params, trainer.step] "
      "writes[grads, optimizer, params, trainer.calls, trainer.metrics, trainer.step]"], "ST201"),
    ("an update that is held back is applied", BOUNDARY, ["drop apply_deferred_update"], "ST200"),
    ("a micro-batch that could not be shipped is sent whole", BOUNDARY, ["drop fwd_bwd.first"], "ST200"),
    ("a micro-batch is trained shipped or whole, not both", BOUNDARY,
     ['in fwd_bwd.first replace "when(not %staged)" with "when(%staged)"'], "ST203"),
    ("a micro-batch that was shipped is trained once", BOUNDARY,
     ['in fwd_bwd_staged.first replace "when(%staged) " with ""'], "ST203"),
    ("a take that waits for data holds up no boundary", BOUNDARY, ['in take replace "lane=packer" with "lane=host"'],
     "ST207"),
    ("one step's groups beyond the current one are held", BOUNDARY,
     ['in free replace "lane=host" with "lane=packer"',
      *(f'in {op} replace "shift=+1" with "shift=+2"'
        for op in ("dispatch", "take", "reward", "advantages", "pack", "next_mb.first", "ref_logps.first"))],
     "ST206"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "base", "edits", "code"), COUNTS, ids=[row[0] for row in COUNTS])
def test_a_schedule_that_breaks_the_rule_is_refused(rule: str, base: tuple[str, str], edits: list[str], code: str):
    with pytest.raises(SteptraceError) as refused:
        check_schedule(broken(base, *edits), derived(*base).source)
    assert refused.value.code == code, rule


FREE = [
    ("the transfer of the next first micro-batch need not wait for the update", BOUNDARY, []),
    ("the reference's log-probs of the next step may precede the update", BOUNDARY, []),
    ("a transfer of weights may overlap the next step", ASYNC, ["move transfer_weights after fetch_metrics",
                                                                "move apply_weights after transfer_weights"]),
    ("callbacks may come before the release of memory or after it", BOUNDARY, ["move free before on_step_end"]),
    ("the next first call may be sent before the commit", BOUNDARY, ["move fwd_bwd_staged.first before commit"]),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "base", "edits"), FREE, ids=[row[0] for row in FREE])
def test_what_the_rules_leave_free_is_accepted(rule: str, base: tuple[str, str], edits: list[str]):
    assert check_schedule(broken(base, *edits), derived(*base).source), rule
