"""`steptrace bench soundness`, `mutants` and `compile`: what they write, for people and for scripts."""

from __future__ import annotations

import json

import pytest

from steptrace.check.schedule import problems
from steptrace.testing.soundness import Tally
from steptrace_tools.bench.compile import growth, looped_program, packed_apart, sized_program
from steptrace_tools.bench.mutants import Table, report
from steptrace_tools.bench.soundness import report as soundness_report
from steptrace_tools.cli import main


def last_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["bench", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_soundness_ends_with_its_counts(capsys: pytest.CaptureFixture[str]):
    found = last_line(capsys, "soundness", "--seed=2", "--pairs=70", "--jobs=1")
    assert {"pairs", "accepted", "unsound", "over_refused", "reasons"} <= found.keys()
    assert (found["pairs"], found["unsound"]) == (70, 0)


@pytest.mark.slow
def test_mutants_end_with_their_counts(capsys: pytest.CaptureFixture[str]):
    found = last_line(capsys, "mutants", "--only=dr_grpo{staleness=0}", "--jobs=1")
    assert {"killed", "equal", "escaped", "by_kind"} <= found.keys()
    assert found["escaped"] == 0


def test_compile_ends_with_times_by_number_of_ops(capsys: pytest.CaptureFixture[str]):
    found = last_line(capsys, "compile", "--most=150")
    assert found["ops"] == [50, 150]
    seconds = found["seconds"]
    assert isinstance(seconds, dict)
    assert {name: len(times) for name, times in seconds.items()} == dict.fromkeys(
        ("print", "parse", "verify", "edges", "check", "lanes", "loops", "waits"), 2
    )


def test_control_what_is_accepted_and_wrong_is_shown():
    tally = Tally(examples=["c@0 may run before a@0"])
    tally.strata["lanes"].pairs = tally.strata["lanes"].accepted = tally.strata["lanes"].unsound = 1
    assert "accepted, and not equal:\nc@0 may run before a@0" in soundness_report(tally, 1.0)


def test_control_what_escapes_is_named():
    table = Table(escaped=["grpo: commit before sync: commit@0 may run before sync_weights@0"])
    assert "escaped: grpo: commit before sync" in report(table, 1.0)


def test_growth_is_told_from_times():
    sizes = (50, 150, 500, 1500, 5000)
    assert growth(sizes, [size * 1e-6 for size in sizes])["exponent"] == pytest.approx(1.0)
    assert growth(sizes, [size**2 * 1e-6 for size in sizes])["over_n_log_n"] == pytest.approx(7.297, abs=1e-3)


@pytest.mark.parametrize("size", [50, 333])
def test_a_sized_program_has_so_many_ops(size: int):
    assert len(list(sized_program(size).ops())) == size


def test_a_step_of_many_loops_has_a_schedule_on_two_lanes():
    program = looped_program(60)
    assert len(list(program.ops())) == 60
    lanes = {op.kind: op.lane for op in packed_apart(program).ops()}
    assert lanes == {"stream_mb": "packer", "look": "packer", "train": "host"}
    assert next(iter(problems(packed_apart(program), program)), None) is None
