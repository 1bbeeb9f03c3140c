"""The rules of a train step, one by one: the schedule that keeps a rule is accepted, the one that breaks it is refused.

Each row of ``rules_of_training`` and ``rules_of_the_boundary`` breaks a derived schedule by hand, and holds the words
of the refusal: the two ops, and what joins them. BUILD.md has them as a table, which a test here compares. Rules about
what happens only while a program runs have no schedule that breaks them:

=============================================================  ===========================================
rule                                                           tested by
=============================================================  ===========================================
a checkpoint's stamp is the step that the update returned      ``run/trainer/test_held_update_rules``
the wait for the device is measured before the update          the same
an update that is held back is made, whatever is told of it    the same
the same three, in whole runs                                  ``run/lanes/test_rules_at_run_time``
a rerun of the last micro-batch does not read the shipped one  the same
the end of a run waits for the last sync round                 the same
a stage waits for an update that its call did not wait for     the same
log-probs lost on the way end the shipping, not the run        the same
a micro-batch lost on the way is sent whole                    ``run/lanes/test_schedules_train_the_same``
a worker that did the update anyway is asked for none          the same
a held update is cleared only after the device wait            ``run/trainer/test_boundary_calls``
a failure met in a stage's device wait is the update's         the same
a stage waits for nothing while an update is held back         the same
an older trainer gets the stage after the update               ``lower/test_choices``
one that cannot wait for the device stages nothing             the same
=============================================================  ===========================================
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import rules_of_the_boundary
import rules_of_training
from step_rules import ASYNC, BOUNDARY, FEED, KEPT, STREAM, Derived, Rule, broken, derived

from steptrace.check.bounds import unbounded
from steptrace.check.proof import prove_equal
from steptrace.check.schedule import check_schedule, problems
from steptrace.check.validation import Budget, validate
from steptrace.diag import SteptraceError
from steptrace.ir import Op, Program, verify
from steptrace.ir.program import ops_of
from steptrace.lang.reference import resolve
from steptrace.passes import run_pipeline
from steptrace.passes.registry import PIPELINES
from steptrace.testing.expected import updating

RULES: tuple[Rule, ...] = rules_of_training.RULES + rules_of_the_boundary.RULES
FEW = Budget(runs=100)
BUILD = Path(__file__).parents[2] / "BUILD.md"


def accepted(program: Program, base: Derived) -> None:
    """Whatever it is checked by, a schedule is one of its source."""
    source = derived(base).source
    verify(program)
    check_schedule(program, source)
    assert validate(program, source, budget=FEW).ok


@pytest.mark.parametrize("base", KEPT, ids=lambda base: f"{base.program} {base.pipeline}")
def test_the_schedules_that_keep_the_rules_are_accepted(base: Derived):
    accepted(derived(base).program, base)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.words)
def test_a_schedule_that_breaks_a_rule_is_refused_by_its_edge(rule: Rule):
    with pytest.raises(SteptraceError) as refused:
        prove_equal(broken(rule.keeps, rule.breaks), derived(rule.keeps).source, budget=FEW)
    found = refused.value
    assert (found.code, found.message) == (rule.code, rule.message)
    assert rule.edge in [note.text for note in found.notes] or not rule.edge


def test_every_rule_is_broken_by_a_schedule_that_keeps_it_otherwise():
    assert {rule.keeps for rule in RULES} <= set(KEPT)
    assert len({rule.words for rule in RULES}) == len(RULES)


def test_the_tests_of_rules_at_run_time_are_there():
    named = re.findall(r"``((?:run|lower)/\S+)``", __doc__)
    assert len(named) == 5
    assert [name for name in named if not (BUILD.parent / "tests" / f"{name}.py").is_file()] == []


def test_metrics_save_sync_and_the_next_call_each_wait_for_a_held_update():
    late = broken(BOUNDARY, ("move apply_deferred_update after fetch_metrics",))
    found = {problem.message for problem in problems(late, derived(BOUNDARY).reference)}
    waiting = ("start_metrics", "save_checkpoint", "sync_weights")
    assert found >= {f"`{op}` of step k would run before `apply_deferred_update` of step k" for op in waiting}
    assert "`fwd_bwd_staged.first` of step k+1 would run before `apply_deferred_update` of step k" in found


FREE = [
    ("callbacks may come before the release of memory or after it", BOUNDARY, ("move free before on_step_end",)),
    ("the next first call may be sent before the commit", BOUNDARY, ("move fwd_bwd_staged.first before commit",)),
    ("metrics that were set aside may be fetched at once", BOUNDARY, ("move fetch_metrics after start_metrics",)),
    ("an update may come before what is shipped: nothing is hidden then, and the same is trained", BOUNDARY,
     ("move stage_fwd_bwd after apply_deferred_update",)),
    ("groups are dispatched by a lane that no take holds up", BOUNDARY,
     ('in dispatch replace "lane=packer" with "lane=rollout"',)),
    ("a transfer of weights may overlap the next step", ASYNC,
     ("move transfer_weights after fetch_metrics", "move apply_weights after transfer_weights")),
    ("groups that stream wait for room on a lane of their own", STREAM,
     ('in resource host replace "cell(2)" with "cell(1)"',)),
]  # fmt: skip


@pytest.mark.parametrize(("base", "edits"), [row[1:] for row in FREE], ids=[row[0] for row in FREE])
def test_control_what_the_rules_leave_free_is_accepted(base: Derived, edits: tuple[str, ...]):
    accepted(broken(base, edits), base)


@pytest.mark.parametrize("ahead", ["stage_fwd_bwd", "ref_logps.first"])
def test_shipping_and_the_references_log_probs_run_ahead_of_the_update(ahead: str):
    program = derived(BOUNDARY).program
    order = [op.id for op in ops_of(program.body)]
    (op,) = (op for op in ops_of(program.body) if op.id == ahead)
    assert op.shift == 1
    assert order.index(ahead) < order.index("apply_deferred_update")


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("program", ["grpo{staleness=3}", "grpo_stream{staleness=3}", "grpo_epochs{staleness=3}"])
def test_what_is_taken_ahead_has_a_bound(program: str, pipeline: str):
    """However much staleness allows, one step's groups are held beyond the current one."""
    schedule = run_pipeline(resolve(program), pipeline).schedule
    ahead = [op for op in schedule.program.body if isinstance(op, Op) and op.shift and op.kind in ("take", "stream_mb")]
    assert ahead
    assert schedule.program.resource_table()["host"].capacity == 2
    assert unbounded(schedule.program, schedule.reference) == ()


def test_control_two_steps_ahead_are_held_where_two_are_asked_for():
    deeper = run_pipeline(resolve("grpo{staleness=3}"), "take-ahead{depth=2}").schedule.program
    assert {op.shift for op in ops_of(deeper.body) if op.id in FEED} == {2}
    assert deeper.resource_table()["host"].capacity == 3


@pytest.mark.parametrize("base", [BOUNDARY, STREAM], ids=lambda base: base.program)
def test_control_a_bound_that_was_taken_off_is_missed_in_the_report(base: Derived):
    """No order is wrong without it, so the schedule is equal to its source: the report says what it may hold."""
    free = broken(base, ('in resource host replace ": cell(2)" with ": cell"',))
    report = prove_equal(free, derived(base).source, budget=FEW)
    assert "no bound is declared on how many steps of `host` and `queue.taken` it holds" in report.proved
    assert "bound" not in prove_equal(derived(base).program, derived(base).source, budget=FEW).proved


TABLE = ("| rule | what a schedule that breaks it is refused with |\n|---|---|\n", "\n\n")


def table() -> str:
    """The rules as lines of a table."""
    return "\n".join(f"| {rule.words} | {_told(rule)} |" for rule in RULES)


def _told(rule: Rule) -> str:
    """The edge; where it is one of counts or of failures, the headline says more."""
    return rule.message if rule.code in ("ST201", "ST254") or not rule.edge else rule.edge


def test_the_table_of_rules_is_that_of_the_tests():
    text = BUILD.read_text(encoding="utf-8")
    before, _, rest = text.partition(TABLE[0])
    assert rest, "BUILD.md has the table of rules"
    found, _, after = rest.partition(TABLE[1])
    if updating() and found != table():
        BUILD.write_text(before + TABLE[0] + table() + TABLE[1] + after, encoding="utf-8")
    else:
        assert found == table()
