"""Mutants of the built-in schedules: nothing escapes, and the four known ones are killed."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from steptrace.check import reference_of
from steptrace.lang.reference import resolve
from steptrace.passes import PipelineResult, run_pipeline
from steptrace.programs import NAMES
from steptrace.testing.interpreter import Terms, interpret, source_events
from steptrace.testing.mutants import FURTHER, KINDS, Mutant, Subject, mutants, outcome, outcomes, slipping, subjects
from steptrace.testing.runs import source_of
from steptrace.testing.soundness import waits_between

KNOWN = (
    "weight sync before the update",
    "reference log-probs after the train call",
    "commit before sync",
    "log before commit",
)


BOUNDARIES = ("", "-staged-after", "-unstaged", "-replayed")


def further() -> list[str]:
    return [f"{name} {pipeline}" for name, pipeline in FURTHER]


@functools.cache
def applied(name: str, pipeline: str) -> PipelineResult:
    return run_pipeline(resolve(name), pipeline)


@functools.cache
def subject_of(name: str) -> Subject:
    """The one of that name, without the others, which take seconds to derive."""
    program, _, pipeline = name.partition("} ")
    if not pipeline:
        return Subject(name, resolve(name), resolve(name))
    made = applied(program + "}", pipeline).schedule
    return Subject(name, made.program, made.source)


@functools.cache
def all_subjects() -> tuple[Subject, ...]:
    return tuple(subjects())


def counts_of(name: str) -> Counter[str]:
    """How many of its mutants have which fate; what escaped is named."""
    found = list(outcomes(subject_of(name)))
    assert [one.mutant.edit for one in found if one.fate == "escaped"] == []
    return Counter(one.fate for one in found)


def fates(subject: Subject, chosen: list[Mutant]) -> dict[str, str]:
    """The edits with what becomes of them."""
    reference = reference_of(subject.schedule, subject.source)
    source, needed = source_of(reference), waits_between(subject.schedule, reference)
    return {mutant.edit: outcome(subject, source, needed, mutant).fate for mutant in chosen}


@pytest.mark.parametrize("name", ["grpo{staleness=0}", "grpo{staleness=1} pipelined-boundary"])
def test_the_four_that_tests_let_through_are_killed(name: str):
    chosen = list(slipping(subject_of(name).schedule))
    assert fates(subject_of(name), chosen) == dict.fromkeys(KNOWN, "killed")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "further"])
def test_those_of_the_four_that_a_schedule_has_are_killed(name: str):
    chosen = [subject for subject in all_subjects() if of_program(subject, name)]
    assert len(chosen) >= 5
    for subject in chosen:
        known = list(slipping(subject.schedule))
        assert {"commit before sync", "log before commit"} <= {mutant.edit for mutant in known}, subject.name
        assert set(fates(subject, known).values()) == {"killed"}, subject.name


def of_program(subject: Subject, name: str) -> bool:
    """Whether it is of that built-in program under pipelines with names, or of those without."""
    if subject.name in further():
        return name == "further"
    return subject.name.partition("{")[0] == name


def test_a_killed_mutant_is_different_in_the_order_that_the_judge_names():
    subject = subject_of("grpo{staleness=1}")
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
    subject = subject_of("grpo{staleness=1} pipelined-boundary")
    reference = reference_of(subject.schedule, subject.source)
    made = Counter(mutant.kind for mutant in mutants(subject.schedule, waits_between(subject.schedule, reference)))
    assert set(made) == set(KINDS)
    assert made["known to slip through"] >= 4


def test_nothing_escapes_from_a_plain_step():
    found = Counter(found.fate for found in outcomes(subject_of("grpo_stream{staleness=0}")))
    assert found["escaped"] == 0
    assert found["killed"] >= 80


def test_what_is_streamed_settled_late_or_held_in_a_pool_is_among_them():
    rows = {op.kind for name in further() for op in subject_of(name).schedule.ops()}
    assert {"stream_mb", "settle", "transfer_weights", "write_checkpoint", "release"} <= rows
    pools = [subject_of(name).schedule.resource_table().get("trainer.copies") for name in further()]
    assert {pool.capacity for pool in pools if pool is not None} == {1, 2}
    assert all(remark.kind == "applied" for way in FURTHER for remark in applied(*way).remarks)


@pytest.mark.slow
@pytest.mark.parametrize("name", further())
def test_nothing_escapes_from_them(name: str):
    assert counts_of(name)["killed"] >= 80


@pytest.mark.slow
@pytest.mark.parametrize("variant", BOUNDARIES)
def test_nothing_escapes_from_the_pipelined_boundary(variant: str):
    assert counts_of(f"grpo{{staleness=1}} pipelined-boundary{variant}")["killed"] >= 100


def test_control_a_mutant_that_a_checker_let_through_has_escaped():
    subject = subject_of("grpo{staleness=0}")
    source = source_of(subject.source)
    wrong = next(mutant for mutant in slipping(subject.schedule) if mutant.edit == "commit before sync")
    waits = waits_between(subject.schedule, subject.source)
    unchecked = Mutant(wrong.kind, wrong.edit, wrong.schedule, waits)
    assert outcome(subject, source, waits, unchecked).fate == "escaped"
