"""Mutants of the built-in schedules: nothing escapes, and the four known ones are killed."""

from __future__ import annotations

from collections import Counter

import pytest

from steptrace.check import reference_of
from steptrace.lang.reference import resolve
from steptrace.passes import PipelineResult, run_pipeline
from steptrace.testing.interpreter import Terms, interpret, source_events
from steptrace.testing.mutants import FURTHER, KINDS, Mutant, Subject, mutants, outcome, outcomes, slipping, subjects
from steptrace.testing.runs import source_of
from steptrace.testing.soundness import waits_between
from steptrace_tools.bench.mutants import figures, measure

KNOWN = (
    "weight sync before the update",
    "reference log-probs after the train call",
    "commit before sync",
    "log before commit",
)


def further() -> list[str]:
    return [f"{name} {pipeline}" for name, pipeline in FURTHER]


def applied() -> list[tuple[str, PipelineResult]]:
    return [(pipeline, run_pipeline(resolve(name), pipeline)) for name, pipeline in FURTHER]


SUBJECTS = {subject.name: subject for subject in subjects()}


def fates(subject: Subject, chosen: list[Mutant]) -> dict[str, str]:
    """The edits with what becomes of them."""
    reference = reference_of(subject.schedule, subject.source)
    source, needed = source_of(reference), waits_between(subject.schedule, reference)
    return {mutant.edit: outcome(subject, source, needed, mutant).fate for mutant in chosen}


@pytest.mark.parametrize("name", ["grpo{staleness=0}", "grpo{staleness=1} pipelined-boundary"])
def test_the_four_that_tests_let_through_are_killed(name: str):
    chosen = list(slipping(SUBJECTS[name].schedule))
    assert fates(SUBJECTS[name], chosen) == dict.fromkeys(KNOWN, "killed")


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_those_of_the_four_that_a_schedule_has_are_killed(name: str):
    chosen = list(slipping(SUBJECTS[name].schedule))
    assert {"commit before sync", "log before commit"} <= {mutant.edit for mutant in chosen}
    assert set(fates(SUBJECTS[name], chosen).values()) == {"killed"}


def test_a_killed_mutant_is_different_in_the_order_that_the_judge_names():
    subject = SUBJECTS["grpo{staleness=1}"]
    source = source_of(subject.source)
    replayed = 0
    for found in list(outcomes(subject))[::7]:
        facts = found.verdict.facts
        if found.fate != "killed" or facts is None or not found.verdict.witness:
            continue
        run, terms = source.run(found.verdict.counts), Terms()
        if facts in run.facts:
            plain = interpret(run, facts, source_events(run), terms)
            assert interpret(run, facts, found.verdict.witness, terms) != plain
            replayed += 1
    assert replayed > 5


def test_every_kind_of_edit_is_made():
    subject = SUBJECTS["grpo{staleness=1} pipelined-boundary"]
    reference = reference_of(subject.schedule, subject.source)
    made = Counter(mutant.kind for mutant in mutants(subject.schedule, waits_between(subject.schedule, reference)))
    assert set(made) == set(KINDS)
    assert made["known to slip through"] >= 4


def test_nothing_escapes_from_a_plain_step():
    found = Counter(found.fate for found in outcomes(SUBJECTS["grpo_stream{staleness=0}"]))
    assert found["escaped"] == 0
    assert found["killed"] >= 80


def test_what_is_streamed_settled_late_or_held_in_a_pool_is_among_them():
    rows = {op.kind for name in further() for op in SUBJECTS[name].schedule.ops()}
    assert {"stream_mb", "settle", "transfer_weights", "write_checkpoint", "release"} <= rows
    pools = [SUBJECTS[name].schedule.resource_table().get("trainer.copies") for name in further()]
    assert {pool.capacity for pool in pools if pool is not None} == {1, 2}
    assert all(remark.kind == "applied" for _, run in applied() for remark in run.remarks)


@pytest.mark.slow
@pytest.mark.parametrize("name", further())
def test_nothing_escapes_from_them(name: str):
    found = figures(measure(name), 0.0)
    assert (found["escaped"], found["escapes"]) == (0, [])
    assert found["killed"] >= 80


@pytest.mark.slow
def test_nothing_escapes_from_the_pipelined_boundary():
    found = figures(measure("grpo{staleness=1} pipelined-boundary"), 0.0)
    assert (found["escaped"], found["escapes"]) == (0, [])
    assert found["killed"] >= 100


def test_control_a_mutant_that_a_checker_let_through_has_escaped():
    subject = SUBJECTS["grpo{staleness=0}"]
    source = source_of(subject.source)
    wrong = next(mutant for mutant in slipping(subject.schedule) if mutant.edit == "commit before sync")
    waits = waits_between(subject.schedule, subject.source)
    unchecked = Mutant(wrong.kind, wrong.edit, wrong.schedule, waits)
    assert outcome(subject, source, waits, unchecked).fate == "escaped"
