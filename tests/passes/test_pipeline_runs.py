"""Running pipelines: remarks, all or nothing, and passes that break or crash."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from steptrace.check.proof import prove_equal
from steptrace.check.validation import Budget
from steptrace.diag import SteptraceError
from steptrace.ir import parse_program, print_program
from steptrace.lang.reference import resolve
from steptrace.motion import Schedule, hoist, relax, sink, split
from steptrace.passes import PASSES, Pass, reproducer_of, run_pipeline


def run(cls: type[Pass], program: str = "grpo{staleness=1}"):
    return run_pipeline(resolve(program), cls.name, passes={**PASSES, cls.name: cls})


@dataclass(frozen=True)
class HalfWay:
    """Splits the metrics and then asks for what is refused."""

    name: ClassVar[str] = "half-way"

    def run(self, schedule: Schedule) -> Schedule:
        schedule = split(schedule, "get_metrics", law="start-fetch").schedule
        return hoist(schedule, "log", above="fetch_metrics").schedule


@dataclass(frozen=True)
class ByHand:
    """Puts the sync before the update without a motion."""

    name: ClassVar[str] = "by-hand"

    def run(self, schedule: Schedule) -> Schedule:
        body = list(schedule.program.body)
        at = {node.id: place for place, node in enumerate(body)}
        body.insert(at["update"], body.pop(at["sync_weights"]))
        return replace(schedule, program=replace(schedule.program, body=tuple(body)))


@dataclass(frozen=True)
class OwnSource:
    """Claims that the source is what it made."""

    name: ClassVar[str] = "own-source"

    def run(self, schedule: Schedule) -> Schedule:
        body = tuple(node for node in schedule.program.body if node.id != "log")
        program = replace(schedule.program, body=body)
        return replace(schedule, source=program, reference=program, program=program)


@dataclass(frozen=True)
class OwnReference:
    """Claims that the reference is what it made."""

    name: ClassVar[str] = "own-reference"

    def run(self, schedule: Schedule) -> Schedule:
        program = ByHand().run(schedule).program
        return replace(schedule, reference=program, program=program)


@dataclass(frozen=True)
class Crashing:
    """Fails by itself."""

    name: ClassVar[str] = "crashing"
    depth: int = 7

    def run(self, schedule: Schedule) -> Schedule:
        return {}["missing"]


def test_a_pass_that_is_refused_half_way_leaves_nothing():
    result = run(HalfWay)
    assert result.schedule == Schedule.of(resolve("grpo{staleness=1}"))
    (remark,) = result.remarks
    assert (remark.kind, remark.code, remark.pass_name, remark.op) == ("missed", "ST204", "half-way", "log")
    assert str(remark.edge) == "fetch_metrics -> log (0) value %metrics"


def test_each_motion_is_a_remark():
    result = run_pipeline(resolve("grpo{staleness=1}"), "defer-metrics")
    assert [(remark.kind, remark.pass_name, remark.op) for remark in result.remarks] == [
        ("applied", "defer-metrics", "get_metrics"),
        ("applied", "defer-metrics", "fetch_metrics"),
    ]
    assert all(remark.loc.file.endswith("grpo.py") for remark in result.remarks)


def test_the_program_after_each_pass_and_its_time():
    result = run_pipeline(resolve("grpo{staleness=1}"), "take-ahead,defer-metrics")
    assert [name for name, _ in result.dumps] == ["take-ahead{depth=1}", "defer-metrics"]
    assert [name for name, _ in result.seconds] == ["take-ahead{depth=1}", "defer-metrics"]
    assert "start_metrics" not in result.dumps[0][1]
    assert result.dumps[1][1] == print_program(result.schedule.program)
    assert print_program(parse_program(result.dumps[0][1])) == print_program(result.runs[0].program)


def test_a_pipeline_goes_on_from_a_schedule_with_its_source():
    source = resolve("grpo{staleness=1}")
    first = run_pipeline(source, "take-ahead,defer-metrics").schedule
    rest = run_pipeline(first.program, "stage-before-update,send-ahead", source=source).schedule
    assert rest.program == run_pipeline(source, "pipelined-boundary").schedule.program


@pytest.mark.parametrize("then", ["replay", "send-ahead", "stage-after-update"])
@pytest.mark.parametrize("known", [True, False])
def test_a_schedule_that_holds_its_update_back_is_worked_on_with_its_source_and_without(then: str, known: bool):
    source = resolve("grpo{staleness=1}")
    begun = parse_program(print_program(run_pipeline(source, "take-ahead,defer-update").schedule.program))
    result = run_pipeline(begun, then, source=source if known else None)
    assert {remark.kind for remark in result.remarks} == {"applied"}
    assert prove_equal(result.schedule.program, source, budget=Budget(runs=10)).ok


@pytest.mark.parametrize("cls", [ByHand, OwnSource, OwnReference])
def test_control_a_pass_without_motions_is_caught(cls: type[Pass]):
    with pytest.raises(SteptraceError) as caught:
        run(cls)
    assert caught.value.code == "ST286"
    assert caught.value.message == f"`{cls.name}` left a schedule that is not equal to its source"


def test_a_broken_pass_is_told_by_what_it_broke():
    with pytest.raises(SteptraceError) as caught:
        run(ByHand)
    assert caught.value.notes[0].text == (
        "ST143: `sync_weights` hands out the weights while gradients are accumulated and not applied"
    )


def test_a_crash_carries_a_file_that_shows_it_again():
    with pytest.raises(SteptraceError) as caught:
        run(Crashing)
    assert (caught.value.code, caught.value.message) == ("ST287", "`crashing` failed: KeyError: 'missing'")
    text = reproducer_of(caught.value)
    first, _, program = text.partition("\n")
    assert first.endswith("-p crashing{depth=7}")
    assert program == print_program(resolve("grpo{staleness=1}"))
    assert parse_program(text) == parse_program(program), "the first line is a comment"


def test_other_errors_carry_none():
    assert reproducer_of(ValueError("no")) == ""


def test_a_relaxed_contract_is_the_source_of_what_follows():
    @dataclass(frozen=True)
    class Relaxing:
        name: ClassVar[str] = "relaxing"

        def run(self, schedule: Schedule) -> Schedule:
            return relax(schedule, staleness=1).schedule

    result = run_pipeline(resolve("grpo"), "relaxing,take-ahead", passes={**PASSES, "relaxing": Relaxing})
    assert result.schedule.source == resolve("grpo{staleness=1}")
    assert [remark.kind for remark in result.remarks].count("missed") == 0


def test_motions_that_are_refused_leave_the_schedule_usable():
    begun = Schedule.of(resolve("grpo"))
    with pytest.raises(SteptraceError):
        sink(begun, "update", below="log")
    assert begun == Schedule.of(resolve("grpo"))
