"""Case files: what they say is done and compared; with an update what came out is written into them."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptrace.diag import SteptraceError
from steptrace.testing.cases import CaseError, read_case, run_case
from steptrace.testing.edits import EditError
from steptrace.testing.expected import UPDATE, UpdateInCiError

REFUSED = """\
# In words.
--- in
grpo
--- edit
move commit before sync_weights
--- error ST204
"""

PYTHON = """\
--- in
@steptrace.program
def mine(step):
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.sync_weights()
    step.commit()
--- error ST139
error[ST139]: no op of the step applies the gradients: `fwd_bwd` adds gradients to the accumulator
  a.case:6  step.fwd_bwd(mb)
  help: call step.update() after the loop over micro-batches
"""


@pytest.fixture
def case(tmp_path: Path, monkeypatch):
    """Runs the text of a case, and returns what its file holds afterwards."""
    monkeypatch.delenv(UPDATE, raising=False)
    monkeypatch.delenv("CI", raising=False)

    def run(text: str) -> str:
        file = tmp_path / "a.case"
        file.write_text(text)
        run_case(read_case(file))
        return file.read_text()

    return run


def test_a_code_alone_is_compared_with_the_code_alone(case):
    assert case(REFUSED) == REFUSED


def test_another_code_fails_and_shows_what_was_refused(case):
    with pytest.raises(AssertionError, match=r"refused with ST204, not ST205:\nerror\[ST204\]: `commit` of step k"):
        case(REFUSED.replace("ST204", "ST205"))


def test_another_text_fails_with_the_lines_that_differ(case):
    with pytest.raises(
        AssertionError, match=r"(?s)another `error ST204`.*-error\[ST204\]: something.*\+error\[ST204\]: `commit`"
    ):
        case(REFUSED + "error[ST204]: something else\n")


def test_what_is_not_refused_fails(case):
    with pytest.raises(AssertionError, match="nothing was refused, where ST204 was expected"):
        case(REFUSED.replace("move commit before sync_weights", "move dispatch before on_step_begin"))


def test_what_is_refused_where_a_schedule_was_expected_fails(case):
    with pytest.raises(AssertionError, match=r"no `equal`, since it was refused:\nerror\[ST204\]"):
        case(REFUSED.replace("error ST204", "equal"))


def test_python_is_traced_with_the_lines_of_the_case(case):
    assert case(PYTHON) == PYTHON


def test_a_pass_that_declines_counts_as_refused_by_its_code(case):
    text = "--- in\ngrpo\n--- pipeline\ntake-ahead\n--- error ST283\n"
    assert case(text) == text
    with pytest.raises(AssertionError, match="nothing was refused, where ST284 was expected"):
        case(text.replace("ST283", "ST284"))


def test_views_and_remarks_are_compared(case):
    text = "--- in\ngrpo\n--- pipeline\ntake-ahead\n--- out nest\nprogram grpo\n--- remarks\nnone\n"
    with pytest.raises(AssertionError, match=r"(?s)another `out nest`.*\+  initial_sync: sync_weights"):
        case(text)


def test_an_update_writes_what_came_out_and_then_the_case_passes(case, monkeypatch):
    text = "# Kept.\n--- in\ngrpo\n--- pipeline\ndefer-metrics\n--- out nest\nold\n--- remarks\n--- equal\n"
    monkeypatch.setenv(UPDATE, "1")
    updated = case(text)
    assert updated.startswith("# Kept.\n--- in\ngrpo\n--- pipeline\ndefer-metrics\n--- out nest\nprogram grpo\n")
    assert "\n--- remarks\napplied defer-metrics: split `get_metrics`" in updated
    assert updated.endswith("\n--- equal\n")
    monkeypatch.delenv(UPDATE)
    assert case(updated) == updated


def test_an_update_does_not_change_what_is_expected_only_its_text(case, monkeypatch):
    monkeypatch.setenv(UPDATE, "1")
    with pytest.raises(AssertionError, match="refused with ST204, not ST205"):
        case(REFUSED.replace("ST204", "ST205"))


def test_an_update_is_refused_in_ci(case, monkeypatch):
    monkeypatch.setenv(UPDATE, "1")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(UpdateInCiError):
        case(REFUSED)


def test_against_names_another_source(case):
    text = "--- in\ngrpo{staleness=1}\n--- against\ngrpo\n--- error ST209\n"
    assert case(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--- in\ngrpo\n", "nothing is expected"),
        ("--- equal\n", "no section `in`"),
        ("--- in\ngrpo\n--- result\n", "a.case:3: there is no section `result`"),
        ("--- in\ngrpo\n--- equal\n--- equal\n", "section `equal` stands there twice"),
        ("--- in\ngrpo\n--- out picture\n", "there is no view `picture`"),
        ("--- in\ngrpo\n--- error\n", "an error is expected by its code"),
        ("--- in\ngrpo\n--- equal quick\n", "`equal` stands by itself"),
    ],
)
def test_a_case_that_cannot_be_read_is_told(case, text: str, message: str):
    with pytest.raises(CaseError, match=message):
        case(text)


def test_an_edit_of_an_op_that_is_not_there_is_an_error_of_the_case(case):
    with pytest.raises(EditError):
        case(REFUSED.replace("commit", "comit"))


def test_a_program_that_is_not_there_is_refused_as_anywhere(case):
    assert case("--- in\nno_such\n--- error ST121\n")


def test_control_errors_of_ours_are_not_taken_for_refusals(case, monkeypatch):
    def broken(*arguments, **options):
        raise KeyError("ours")

    monkeypatch.setattr("steptrace.testing.cases.prove_equal", broken)
    with pytest.raises(KeyError):
        case("--- in\ngrpo\n--- equal\n")
    assert not issubclass(KeyError, SteptraceError)


def test_resources_that_a_case_declares_are_its_own(case):
    text = PYTHON.replace(
        "--- in\n", '--- in\nmine_of_the_case = steptrace.resource("mine_of_the_case", kind="KIND")\n'
    )
    expected = text.replace("a.case:6", "a.case:7")
    for kind in ("state", "fifo"):
        assert case(expected.replace("KIND", kind))
