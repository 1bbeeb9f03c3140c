"""The contract's clauses on checkpoints and logs: written only where they are not as usual, and read back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptrace.diag.base import SteptraceError
from steptrace.diag.text import BadContractError
from steptrace.ir import parse_program, print_program
from steptrace.programs.grpo import grpo


def test_the_clause_is_printed_only_when_it_says_something() -> None:
    assert "saves" not in print_program(grpo.trace())
    text = print_program(grpo.trace(saves="may_fail_late"))
    assert "\ncontract weights=pinned staleness=0 partial=train empty=skip saves=may_fail_late\n" in text


def test_the_clause_is_read_back() -> None:
    program = grpo.trace(saves="may_fail_late")
    assert parse_program(print_program(program)).contract == program.contract
    plain = replace(program.contract, saves="before_sync")
    assert parse_program(print_program(program).replace(" saves=may_fail_late", " saves=before_sync")).contract == plain


def test_control_another_word_is_refused() -> None:
    text = print_program(grpo.trace(saves="may_fail_late")).replace("may_fail_late", "sometimes")
    with pytest.raises(BadContractError, match="one of before_sync, may_fail_late"):
        parse_program(text)
    with pytest.raises(SteptraceError):
        grpo.trace(saves="sometimes")


def test_both_clauses_are_printed_and_read_back() -> None:
    program = grpo.trace(saves="may_fail_late", logs="may_fail_late")
    text = print_program(program)
    assert "empty=skip saves=may_fail_late logs=may_fail_late\n" in text
    assert parse_program(text).contract == program.contract
    logs = grpo.trace(logs="may_fail_late")
    assert "empty=skip logs=may_fail_late\n" in print_program(logs)
    assert parse_program(print_program(logs)).contract == replace(program.contract, saves="before_sync")


def test_control_another_word_for_logs_is_refused() -> None:
    text = print_program(grpo.trace(logs="may_fail_late")).replace("may_fail_late", "sometimes")
    with pytest.raises(BadContractError, match="one of before_callbacks, may_fail_late"):
        parse_program(text)
    with pytest.raises(SteptraceError):
        grpo.trace(logs="before_sync")
