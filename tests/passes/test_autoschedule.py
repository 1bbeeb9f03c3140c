"""`autoschedule` and `place`: what is found, that its text gives it again, and that memory and seed are kept to."""

from __future__ import annotations

import pytest

from steptrace.check.schedule import keeps_order, problems
from steptrace.check.validation import Budget, validate
from steptrace.cost import bytes_of, judged, parse_costs
from steptrace.diag import SteptraceError
from steptrace.ir import Contract, Op, OpKind, Program, Resource, ResourceKind, print_program
from steptrace.lang.reference import resolve
from steptrace.motion import Schedule
from steptrace.passes import parse_pipeline, run_pipeline
from steptrace.passes.moves import moves_of
from steptrace.passes.place import Place
from steptrace.passes.search import (
    WHOLE,
    Limits,
    candidates,
    search,
    text_in_short,
    turn_of,
    verified,
    without_cadences,
)

NAME = "grpo{staleness=1,save_every=1000000}"
SAVING = 'grpo{staleness=1, save_every=2, saves="may_fail_late"}'

COSTS = """\
[ops.fwd_bwd]
issue = "1 s"
work = "10 s"
[ops.update]
work = "4 s"
[ops.log]
issue = "3 s"
[ops.sync_weights]
work = "6 s"
[ops.copy_weights]
work = "1 s"
[ops.save_checkpoint]
work = "5 s"
[ops.snapshot_checkpoint]
work = "1 s"
[ops.other]
issue = "0 s"
[sizes]
params = "2 GB"
optimizer = "4 GB"
batch = "1 GB"
micro_batch = "100 MB"
[cell]
micro_batches = 3
"""


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "costs.toml"
    path.write_text(COSTS)
    return str(path)


def seconds(name: str, pipeline: str) -> float:
    costs = parse_costs(COSTS)
    return judged(run_pipeline(resolve(name), pipeline).schedule, costs.durations(), micro_batches=3).period.seconds


def test_the_pass_finds_the_bound_and_says_the_pipeline(file: str):
    result = run_pipeline(resolve(NAME), f'autoschedule{{costs="{file}"}}')
    (found,) = [remark for remark in result.remarks if remark.kind == "found"]
    pipeline, rest = found.message.split("\n")
    assert "stopped: bound reached" in rest
    assert seconds(NAME, pipeline) == 30 + 4 + 1  # three micro-batches, the update, the copy for the sync
    again = run_pipeline(resolve(NAME), pipeline)
    assert print_program(again.schedule.program) == print_program(result.schedule.program)
    assert not [remark for remark in again.remarks if remark.kind == "missed"]
    assert seconds(NAME, pipeline) < seconds(NAME, "pipelined-boundary")


def test_what_is_found_is_equal_to_its_source_in_every_layer(file: str):
    schedule = run_pipeline(resolve(NAME), f'autoschedule{{costs="{file}"}}').schedule
    assert validate(schedule.program, schedule.source, budget=Budget(runs=60)).ok


def test_it_goes_on_from_what_stands_before_it_in_the_pipeline(file: str):
    result = run_pipeline(resolve(NAME), f'take-ahead,autoschedule{{costs="{file}"}}')
    (found,) = [remark for remark in result.remarks if remark.kind == "found"]
    pipeline = found.message.split("\n")[0]
    assert "take-ahead" not in pipeline
    again = run_pipeline(resolve(NAME), f"take-ahead,{pipeline}").schedule.program
    assert again == result.schedule.program


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_schedule(seed: int):
    costs = parse_costs(COSTS)
    start = Schedule.of(resolve("grpo{staleness=0,save_every=1000000}"))
    limits = Limits(tries=30, seed=seed)
    one, other = (search(start, costs.durations(), micro_batches=2, limits=limits) for _ in range(2))
    assert one is not None
    assert other is not None
    assert (one.pipeline, one.tried, one.why) == (other.pipeline, other.tried, other.why)
    assert one.schedule.program == other.schedule.program


def test_why_it_stopped():
    costs, start = parse_costs(COSTS), Schedule.of(resolve(NAME))
    found = search(start, costs.durations(), micro_batches=3, limits=Limits(tries=2))
    assert found is not None
    assert (found.stop, found.tried) == ("budget", 2)
    nothing = search(start, costs.durations(), micro_batches=3, limits=Limits(passes=(), lanes=(), ahead=0, tries=1))
    assert nothing is not None
    assert nothing.pipeline == ""
    free = parse_costs('[ops.fwd_bwd]\nwork = "1 s"\n[ops.other]\nissue = "0 s"\n')
    at_once = search(start, free.durations(), micro_batches=3)
    assert at_once is not None
    assert (at_once.stop, at_once.tried) == ("bound", 1)


def test_places_are_tried_where_no_pass_helps():
    """Freeing a step's memory takes three seconds on the lane that trains, until it has another one."""
    costs = parse_costs('[ops.free]\nissue = "3 s"\n[ops.fwd_bwd]\nwork = "6 s"\n[ops.other]\nissue = "0 s"\n')
    start = Schedule.of(resolve(NAME))
    assert judged(start, costs.durations(), micro_batches=1).period.seconds == 9
    found = search(start, costs.durations(), micro_batches=1, limits=Limits(passes=()))
    assert found is not None
    assert (found.judged.period.seconds, found.stop) == (6, "bound")
    assert "place{op=" in found.pipeline
    assert run_pipeline(resolve(NAME), found.pipeline).schedule.program == found.schedule.program


@pytest.mark.slow
@pytest.mark.parametrize("room", ["8.2 GB", "7.2 GB"])
def test_the_memory_is_kept(file: str, room: str):
    free = run_pipeline(resolve(SAVING), f'autoschedule{{costs="{file}"}}').schedule
    kept = run_pipeline(resolve(SAVING), f'autoschedule{{costs="{file}",memory="{room}",tries=120}}').schedule
    costs = parse_costs(COSTS)
    held = [bytes_of(judged(one, costs.durations(), micro_batches=3).memory(costs)) / 1e9 for one in (free, kept)]
    assert held[0] > float(room.split()[0]) >= held[1]


def test_a_program_that_has_no_room_is_refused_with_the_numbers(file: str):
    (remark,) = run_pipeline(resolve(NAME), f'autoschedule{{costs="{file}",memory="500 MB",tries=9}}').remarks
    assert (remark.kind, remark.code) == ("missed", "ST334")
    assert "may hold 1 GB at a time, and there is room for 500 MB" in remark.message
    assert "1 x batch: 1 GB of host memory" in str(remark)


@pytest.mark.parametrize(
    ("pipeline", "code"),
    [
        ("autoschedule", "ST283"),
        ('autoschedule{costs="none.toml"}', "ST330"),
        ("autoschedule{memory=much}", "ST285"),
        ("autoschedule{tries=0}", "ST285"),
        ("place", "ST283"),
        ("place{op=log}", "ST283"),
        ("place{op=log,above=free,below=log}", "ST285"),
        ("place{op=log,above=update}", "ST204"),
        ("place{op=log,lane=moon}", "ST281"),
        ("place{op=lig,lane=io}", "ST215"),
    ],
)
def test_what_is_declined_or_refused(pipeline: str, code: str):
    try:
        (remark,) = run_pipeline(resolve(NAME), pipeline).remarks
        found = remark.code
    except SteptraceError as error:
        found = error.code
    assert found == code


def order(pipeline: str) -> list[str]:
    return [node.id for node in run_pipeline(resolve(NAME), pipeline).schedule.program.body]


def test_what_comes_rarely_is_left_out_of_most_of_the_search():
    rare = without_cadences(resolve("grpo{save_every=10}"))
    assert rare != resolve("grpo{save_every=10}")
    assert without_cadences(rare) == rare
    assert without_cadences(resolve("grpo{save_every=1}")) == resolve("grpo{save_every=1}")


@pytest.mark.slow
def test_a_program_with_cadences_is_judged_with_them():
    source = resolve("grpo{staleness=1,save_every=4}")
    found = search(Schedule.of(source), parse_costs(COSTS).durations(), micro_batches=3)
    assert found is not None
    assert found.tried < 30
    assert found.judged.period.cadence == 4
    assert run_pipeline(source, found.pipeline).schedule.program == found.schedule.program
    # a save of 5 s in four steps: 30 + 4 + 1 + 5 / 4
    assert found.judged.period.seconds <= 1.02 * (30 + 4 + 1 + 5 / 4)


def test_places_by_what_stands_there():
    plain = order("")
    assert plain[-3:] == ["log", "on_step_end", "free"]
    assert order("place{op=free,lane=io}") == plain
    moved = run_pipeline(resolve(NAME), "place{op=dispatch,ahead=1}").schedule.program
    assert [(op.id, op.shift) for op in moved.ops() if op.shift] == [("dispatch", 1)]
    assert moved.body[-1].id == "dispatch"
    both = run_pipeline(resolve(NAME), "place{op=log+on_step_end,lane=io,above=commit}").schedule.program
    assert [op.id for op in both.ops() if op.lane == "io"] == ["log", "on_step_end"]
    back = run_pipeline(resolve(NAME), "place{op=dispatch,ahead=1},place{op=dispatch,ahead=-1,below=on_step_begin}")
    assert back.schedule.program == resolve(NAME)


def test_an_edit_is_what_the_pass_gives_and_is_legal_where_it_gives_anything():
    start = run_pipeline(resolve(NAME), "take-ahead,defer-metrics").schedule
    given = 0
    for move in list(moves_of(start.program, ("host", "io"), 1))[::17]:
        edited = move.edited(start.program)
        try:
            after = move.run(start).program
        except SteptraceError:
            continue
        given += 1
        assert edited == after, text_in_short(move)
        assert keeps_order(edited, start.reference)
    assert given > 4


def test_what_keeps_the_order_is_what_has_no_problems():
    source = resolve(NAME)
    found = set()
    for move in list(moves_of(source, ("host", "io"), 1))[::23]:
        edited = move.edited(source)
        found.add(keeps_order(edited, source))
        assert keeps_order(edited, source) == (next(problems(edited, source), None) is None), text_in_short(move)
    assert found == {True, False}


def test_small_programs_are_searched_longer_and_long_cadences_less():
    limits = Limits(tries=100, patience=50)
    step, small = resolve(NAME), two_ops()
    assert turn_of(resolve("grpo{save_every=10}")) == 10 * turn_of(step)
    assert limits.scaled(small).tries == 100 * WHOLE // 2
    assert limits.scaled(resolve("grpo{save_every=10}")).tries < limits.scaled(step).tries
    assert Limits(tries=1).scaled(resolve("grpo{save_every=10}")).tries == 1


def two_ops() -> Program:
    kind = OpKind("one", (), (), reads=("x",), writes=("x",), user=True)
    states = (Resource("x", ResourceKind.STATE),)
    return Program("two", (), Contract(), states, (kind,), body=(Op("a", "one"), Op("b", "one")))


@pytest.mark.parametrize("place", [Place("log", "io"), Place("log", below="on_step_end")])
def test_no_place_lets_a_callback_run_before_what_may_fail(place: Place):
    start, late = (Schedule.of(resolve(name)) for name in (NAME, NAME.replace("{", "{logs=may_fail_late,")))
    result = run_pipeline(start.program, text_in_short(place))
    assert result.schedule.program == start.program
    assert [(remark.kind, remark.code) for remark in result.remarks] == [("missed", "ST254")]
    assert "logs=may_fail_late" in result.remarks[0].help
    assert verified(start, place).program == start.program
    declared = verified(late, place)
    assert declared.program != late.program
    assert validate(declared.program, declared.source, budget=Budget(runs=40)).ok


def test_a_callback_that_goes_along_is_behind_what_may_fail():
    start = Schedule.of(resolve(NAME))
    together = verified(start, Place("log+on_step_end", "io"))
    assert together.program != start.program
    assert validate(together.program, together.source, budget=Budget(runs=40)).ok


def test_candidates_leave_the_contract_and_the_bits_as_they_are():
    texts = [text_in_short(one) for one in candidates(resolve("grpo{staleness=2}"))]
    assert {"take-ahead", "take-ahead{depth=2}"} <= set(texts)
    assert not {"one-step-off", "fuse-update"} & set(texts)
    assert parse_pipeline(",".join(texts)) == candidates(resolve("grpo{staleness=2}"))
    assert "fuse-update" in [text_in_short(one) for one in candidates(resolve(NAME), recompiled=True)]


def test_control_a_text_that_leaves_a_pass_out_gives_another_schedule(file: str):
    result = run_pipeline(resolve(NAME), f'autoschedule{{costs="{file}"}}')
    (found,) = [remark for remark in result.remarks if remark.kind == "found"]
    pipeline = found.message.split("\n")[0]
    for one in parse_pipeline(pipeline):
        rest = ",".join(text_in_short(other) for other in parse_pipeline(pipeline) if other != one)
        assert run_pipeline(resolve(NAME), rest).schedule.program != result.schedule.program
