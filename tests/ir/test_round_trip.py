"""Print, parse, print: the same text and the same program, for random programs."""

from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings

from steptrace.diag.loc import Loc
from steptrace.ir import Attr, Given, Operand, OpKind, Program, nest_view, parse, parse_program, print_program, problems
from steptrace.ir.kind import Variant
from steptrace.testing.builder import Builder
from steptrace.testing.strategies import programs

_FEW = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


@_FEW
@given(programs())
def test_random_programs_are_the_same_after_a_round_trip(program: Program) -> None:
    text = print_program(program)
    again = parse_program(text)
    assert again == program
    assert print_program(again) == text


@_FEW
@given(programs())
def test_random_programs_are_well_formed_and_each_op_has_its_line(program: Program) -> None:
    text = print_program(program)
    parsed = parse(text)
    assert [str(problem) for problem in (*problems(program), *problems(parsed.program, parsed.places))] == []
    lines = text.split("\n")
    for op in program.ops():
        place = parsed.places.at(op.id)
        assert place is not None
        assert f"{op.kind}(" in lines[place.line - 1]
    shown = [line for line in nest_view(program).splitlines() if line.startswith("  ")]
    assert sum(not line.strip().startswith("loop ") for line in shown) == sum(1 for _ in program.ops())


def test_control_random_programs_use_all_that_the_text_can_say() -> None:
    texts: list[str] = []

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(programs())
    def collect(program: Program) -> None:
        texts.append(print_program(program))

    collect()
    together, missing = "\n".join(texts), []
    for phrase in (
        "loop micro_batches",
        "loop micro_batches stream: m",
        "loop repeat",
        "loop mini_batches",
        " from 1 {",
        " times ",
        "when(every",
        "when(not ",
        " or ",
        " and ",
        "m == ",
        "has(",
        "carry %kl.coef = ",
        "op user_0(",
        "shift=+",
        "shift=-",
        "from=",
        "at(m=",
        "@k-1)",
        "@m-1",
        "[4096B]",
        "staleness=2",
        " if(",
        "awaits[",
        "=true",
        "=false",
        "=(",
        " required",
        ".*",
        "reads[*",
        "fwd_bwd.arm: fwd_bwd",
        ": slot(3)",
    ):
        missing += [] if phrase in together else [phrase]
    assert missing == []


@pytest.mark.parametrize("changed", [field.name for field in fields(OpKind) if field.name != "name"])
def test_control_a_row_that_differs_in_one_field_prints_differently(changed: str) -> None:
    """The text form of a row forgets no field of it, also fields that are added later."""
    plain = OpKind("mine", (Operand("a", "metrics"),), attrs=(Attr("x", int),), user=True)
    default = getattr(plain, changed)
    other = {
        "operands": (Operand("a", "metrics", ("loss",)),),
        "results": (Given("b", "groups", "a", ("c",)),),
        "attrs": (Attr("x", int, 3, (3, 4), "a number"),),
        "reads": ("params",),
        "writes": ("log",),
        "awaits": ("grads",),
        "variants": (Variant("x", 3, ("params",), ("log",)),),
        "lane": "io",
        "laws": ("a-law",),
        "loc": Loc("train.py", 3),
    }.get(changed, "other" if isinstance(default, str) else not default)
    row = replace(plain, **{changed: other})
    texts = [print_program(Builder(kinds=(kind,), sync=False).program()) for kind in (plain, row)]
    assert texts[0] != texts[1]
    assert parse_program(texts[1]).kinds == (row,)
