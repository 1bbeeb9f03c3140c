"""Capacities of cells and queues in the text form."""

from dataclasses import replace

import pytest

from steptrace import SteptraceError
from steptrace.ir import Program, parse_program, print_program, problems
from steptrace.lang.reference import resolve


def sized(program: Program, **capacities: int) -> Program:
    resources = tuple(replace(one, capacity=capacities.get(one.name, one.capacity)) for one in program.resources)
    return replace(program, resources=resources)


def test_a_ring_of_cells_and_a_bounded_queue_round_trip():
    program = sized(resolve("grpo"), host=2, **{"queue.groups": 64})
    text = print_program(program)
    assert "resource host : cell(2)\n" in text
    assert "resource queue.groups : fifo(64)\n" in text
    assert {one.name: one.capacity for one in parse_program(text).resources if one.capacity} == {
        "host": 2,
        "queue.groups": 64,
    }


@pytest.mark.parametrize("wrong", ["cell(0)", "cell()", "cell(2", "cell(-1)"])
def test_a_capacity_is_at_least_one(wrong: str):
    text = print_program(resolve("grpo")).replace("resource host : cell", f"resource host : {wrong}")
    with pytest.raises(SteptraceError) as caught:
        parse_program(text)
    assert caught.value.code.startswith("ST0")


def test_state_has_no_entries_to_count():
    found = problems(sized(resolve("grpo"), params=2))
    assert [problem.message for problem in found] == ["`params` is one state and holds no 2 entries"]
