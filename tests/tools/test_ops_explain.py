"""`steptrace ops` and `steptrace explain`: exact pages."""

from __future__ import annotations

import inspect
import re

import pytest

from steptrace.diag.registry import all_codes
from steptrace.ir import print_program
from steptrace.ir.builtin import BUILTIN
from steptrace.ir.kind import REQUIRED, Attr, Given, Operand, OpKind
from steptrace.lang.reference import resolve
from steptrace.passes import PASSES, PIPELINES, parse_pipeline, run_pipeline, text_of
from steptrace.passes.base import options_of
from steptrace_tools.cli import main
from steptrace_tools.op_pages import op_page, op_table

RESCORE = OpKind(
    "rescore",
    operands=(Operand("groups", "groups", ("rewards",)),),
    results=(Given("rescored", "groups", like="groups", adds=("rescored",)), Given("changed", "flag")),
    attrs=(
        Attr("scale", float, REQUIRED, doc="a factor"),
        Attr("kind", str, "linear", ("linear", "log"), doc="of the scale"),
        Attr("note", str, doc="for the log"),
    ),
    reads=("host[k]", "params"),
    awaits=("params",),
    device="reference",
    blocking=False,
    cost="device",
    doc="Scores again.",
    example="groups, changed = step.rescore(groups, scale=2.0)",
)

RESCORE_PAGE = """\
op rescore

Scores again.

  takes      groups : groups<rewards>
  gives      %rescored : groups<groups.*, rescored>
  gives      %changed : flag
  attribute  scale: float, required; a factor
  attribute  kind: str = 'linear', one of linear, log; of the scale
  attribute  note: str; for the log
  reads      host[k], params
  awaits     params
  lane       host
  work on    reference
  returns    at dispatch, before its work is finished
  may fail   yes
  bound to   the runtime
  cost       device
  example    groups, changed = step.rescore(groups, scale=2.0)"""


def test_the_page_of_a_row_says_all_that_the_row_says():
    assert op_page(RESCORE) == RESCORE_PAGE


def test_the_line_of_a_row():
    assert op_table([RESCORE]).splitlines() == [
        "op       takes            gives                             work on    what it does",
        "rescore  groups<rewards>  groups<groups.*, rescored>, flag  reference  Scores again.",
    ]


def test_ops_lists_every_row_once(capsys):
    assert main(["ops"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["op", *BUILTIN]


def test_explain_takes_an_op_too(capsys):
    assert main(["ops", "fwd_bwd"]) == 0
    page = capsys.readouterr().out
    assert page == op_page(BUILTIN["fwd_bwd"]) + "\n"
    assert main(["explain", "fwd_bwd"]) == 0
    assert capsys.readouterr().out == page


@pytest.mark.parametrize("name", list(BUILTIN))
def test_every_row_has_a_page(name: str, capsys):
    assert main(["ops", name]) == 0
    assert BUILTIN[name].doc in capsys.readouterr().out


@pytest.mark.parametrize("spelled", ["ST601", "st601", "error[ST601]:"])
def test_a_code_as_it_is_printed_or_typed(spelled: str, capsys):
    assert main(["explain", spelled]) == 0
    assert capsys.readouterr().out.startswith("ST601 WouldOverwriteError\n\nA command that only makes new files")


@pytest.mark.parametrize("code", [code for code in all_codes() if code != "ST000"])
def test_every_code_has_a_manual_page_with_an_example_and_ways_out(code: str, capsys):
    assert main(["explain", code]) == 0
    page = capsys.readouterr().out
    assert re.search(r"^    \S|example", page, re.MULTILINE | re.IGNORECASE)
    assert re.search(r"^Ways? out", page, re.MULTILINE)


@pytest.mark.parametrize("name", list(PASSES))
def test_every_pass_has_a_page_with_its_text_form(name: str, capsys):
    assert main(["explain", name]) == 0
    page = capsys.readouterr().out
    (written,) = re.findall(r"^  written +(\S.*)$", page, re.MULTILINE)
    (pass_,) = parse_pipeline(written)
    assert pass_ == PASSES[name]()
    assert inspect.cleandoc(PASSES[name].__doc__ or "") in page
    assert all(f"  option   {option}: " in page for option in options_of(PASSES[name]))


@pytest.mark.parametrize("name", list(PIPELINES))
def test_the_page_of_a_pipeline_lists_its_passes_in_order(name: str, capsys):
    assert main(["explain", name]) == 0
    shown = [line.split("  ")[1] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert shown[:-1] == [text_of(pass_) for pass_ in parse_pipeline(name)]


def test_passes_lists_every_pass_and_pipeline_once(capsys):
    assert main(["passes"]) == 0
    names = [line.partition("{")[0].split()[0] for line in capsys.readouterr().out.splitlines() if line]
    assert names == ["pass", *PASSES, "pipeline", *PIPELINES]


def test_every_word_of_a_line_of_a_dump_is_explained(capsys):
    schedule = run_pipeline(resolve('grpo{staleness=1, saves="may_fail_late"}'), "async-everything").schedule
    text = print_program(schedule.program)
    lines = [line for line in text.splitlines() if line.startswith(("  ", "step", "before", "contract", "resource"))]
    plain = [re.sub(r"{.*?}", "", line) for line in lines]  # without attributes, which the page of the op has
    words = {word for line in plain for word in re.findall(r" (reads|writes|awaits|[a-z]+(?=[=(]))", line)}
    words -= {op.kind for op in schedule.program.ops()} | {"weights", "staleness", "partial", "empty", "saves"}
    assert words == {"at", "awaits", "cell", "from", "lane", "reads", "shift", "slot", "when", "writes"}
    for word in (*words, "contract", "%", "[k]", "dump"):
        assert main(["explain", word]) == 0
        assert word in capsys.readouterr().out


def test_explain_alone_lists_the_codes(capsys):
    assert main(["explain"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*all_codes()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["explain", "ST6001"],
            "steptrace: `ST6001` is no code, op, pass, pipeline or word of a dump; near ones: ST601, ST600",
        ),
        (
            ["explain", "updat"],
            "steptrace: `updat` is no code, op, pass, pipeline or word of a dump; near ones: update",
        ),
        (
            ["explain", "zzz"],
            "steptrace: `zzz` is no code, op, pass, pipeline or word of a dump; `steptrace explain` lists the codes",
        ),
        (["ops", "fwd_bkw"], "steptrace: `fwd_bkw` is not in the op table: did you mean fwd_bwd"),
    ],
)
def test_an_unknown_name_exits_2_and_lists_near_ones(arguments: list[str], message: str, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
