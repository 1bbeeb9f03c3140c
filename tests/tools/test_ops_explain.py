"""`steptrace ops` and `steptrace explain`: exact pages."""

from __future__ import annotations

import re

import pytest

from steptrace.diag.registry import all_codes
from steptrace.ir.builtin import BUILTIN
from steptrace_tools.cli import main

FWD_BWD = """\
op fwd_bwd

Forward and backward of one micro-batch; adds its gradient sums to the accumulator.

  takes     micro-batch : micro_batch<advantages>
  reads     params, grads
  writes    grads, trainer.metrics, trainer.calls
  lane      host
  work on   trainer
  returns   at dispatch, before its work is finished
  may fail  yes
  laws      fused-update, stage
  bound to  trainer.fwd_bwd
  cost      device
  example   step.fwd_bwd(mb)
"""


def test_ops_lists_every_row_once(capsys):
    assert main(["ops"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["op", *BUILTIN]


def test_the_page_of_an_op(capsys):
    assert main(["ops", "fwd_bwd"]) == 0
    assert capsys.readouterr().out == FWD_BWD


def test_explain_takes_an_op_too(capsys):
    assert main(["explain", "fwd_bwd"]) == 0
    assert capsys.readouterr().out == FWD_BWD


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


def test_explain_alone_lists_the_codes(capsys):
    assert main(["explain"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*all_codes()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "ST6001"], "steptrace: `ST6001` is neither a code nor an op; near ones: ST601, ST600"),
        (["explain", "updat"], "steptrace: `updat` is neither a code nor an op; near ones: update"),
        (["explain", "zzz"], "steptrace: `zzz` is neither a code nor an op; `steptrace explain` lists them"),
        (["ops", "fwd_bkw"], "steptrace: `fwd_bkw` is not in the op table: did you mean fwd_bwd?"),
    ],
)
def test_an_unknown_name_exits_2_and_lists_near_ones(arguments: list[str], message: str, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
