"""Names of programs as they are typed on a command line."""

from __future__ import annotations

import io
import sys

import pytest

import steptrace
from steptrace import SteptraceError
from steptrace.diag.loc import Loc
from steptrace.ir.printer import print_program
from steptrace.lang.reference import resolve, split
from steptrace.programs.grpo import grpo

MODULE = """
import steptrace

@steptrace.program
def mine(step, prompts=4):
    step.dispatch(prompts=prompts, samples=2)
    for mb in step.micro_batches(step.stream()):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()

def plain(step): ...
"""


@pytest.mark.parametrize(
    ("text", "name", "params"),
    [
        ("grpo", "grpo", {}),
        (" grpo {} ", "grpo", {}),
        ("grpo{staleness=1}", "grpo", {"staleness": 1}),
        ("grpo{ a=-1, b = 0.5 ,c=1e-3}", "grpo", {"a": -1, "b": 0.5, "c": 1e-3}),
        ("grpo{a=true, b=False}", "grpo", {"a": True, "b": False}),
        ("grpo{a=rloo, b='x, {y}', c=\"3\",}", "grpo", {"a": "rloo", "b": "x, {y}", "c": "3"}),
        ("pkg.mod:name{a=1}", "pkg.mod:name", {"a": 1}),
        ("pkg/mod.py:name{a=1}", "pkg.mod:name", {"a": 1}),
        ("./mod.py:name", "mod:name", {}),
    ],
)
def test_names_and_parameters(text, name, params):
    found = split(text)
    assert found == (name, params)
    assert [type(value) for value in found[1].values()] == [type(value) for value in params.values()]


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("grpo{staleness}", 6),
        ("grpo{staleness=1", 17),
        ("grpo{a=1 b=2}", 6),
        ("grpo{a=1,,b=2}", 10),
        ("grpo{a=1, a=2}", 11),
        ("grpo{a=}", 6),
        ("grpo{a=1} x", 12),
        ("", 1),
        ("{a=1}", 1),
        ("my program", 1),
    ],
)
def test_what_is_not_written_as_it_must_be(text, column):
    with pytest.raises(SteptraceError) as caught:
        split(text)
    assert (caught.value.code, caught.value.loc.column) == ("ST122", column)


def test_a_built_in_name_with_parameters_is_that_trace():
    assert resolve("grpo{staleness=1, prompts=16}") == steptrace.trace(grpo, staleness=1, prompts=16)


def test_control_without_the_parameters_it_is_another_program():
    assert resolve("grpo") != resolve("grpo{staleness=1}")


def test_an_unknown_parameter_is_refused_with_the_known_ones():
    with pytest.raises(SteptraceError) as caught:
        resolve("grpo{foo=1}")
    assert caught.value.code == "ST115"
    assert caught.value.message == "`grpo` has no parameter `foo`; it has: prompts=32, samples=8, save_every=10"


def test_an_option_of_the_contract_that_was_meant_is_among_those_that_there_are():
    with pytest.raises(SteptraceError) as caught:
        resolve("grpo{stalenes=1}")
    assert caught.value.message.endswith(
        "; it has: prompts=32, samples=8, save_every=10; and, of the contract, staleness"
    )
    assert caught.value.help == "did you mean `staleness`?"


@pytest.mark.parametrize(
    ("text", "code", "column"),
    [
        ("grpo{foo=1}", "ST115", 6),
        ("grpo{prompts=1, samples=x}", "ST115", 17),
        ("grpo{staleness=-1}", "ST116", 6),
        ("grpo{prompts=1, weights=newest}", "ST116", 17),
    ],
)
def test_a_wrong_parameter_is_shown_where_the_user_wrote_it(text, code, column):
    with pytest.raises(SteptraceError) as caught:
        resolve(text)
    error = caught.value
    assert (error.code, error.loc, error.source) == (code, Loc("<program>", 1, column), text)


def test_control_what_the_step_refuses_has_its_own_line():
    with pytest.raises(SteptraceError) as caught:
        resolve("grpo{save_every=0}")
    assert caught.value.loc.file.endswith("programs/grpo.py")


def test_bytes_on_standard_input_that_are_no_text():
    stream = io.TextIOWrapper(io.BytesIO(b"steptrace \xff"), encoding="utf-8")
    lenient = io.TextIOWrapper(io.BytesIO(b"steptrace \xff"), encoding="utf-8", errors="surrogateescape")
    for stdin in (stream, lenient):
        with pytest.raises(SteptraceError, match="not UTF-8") as caught:
            resolve("-", stdin=stdin)
        assert caught.value.code == "ST123"


@pytest.mark.parametrize("name", ["/tmp/job.py:step", "../job.py:step", "my-job/job.py:step", "job/job.py"])
def test_a_python_file_that_is_no_module_below_the_folder(name):
    with pytest.raises(SteptraceError) as caught:
        split(name)
    assert caught.value.code == "ST122"
    assert caught.value.help.startswith("programs in Python are named module:function")


def test_a_file_whose_name_does_not_say_that_it_is_a_program(folder):
    (folder / "job.txt").write_text(print_program(resolve("grpo")))
    with pytest.raises(SteptraceError) as caught:
        resolve("./job.txt")
    assert caught.value.code == "ST122"
    assert "ends in .st" in caught.value.help
    with pytest.raises(SteptraceError) as caught:
        resolve("./none.txt")
    assert caught.value.help == ""


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(SteptraceError) as caught:
        resolve("gpro")
    assert (caught.value.code, caught.value.help) == ("ST121", "did you mean `grpo`?")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_job.py").write_text(MODULE)
    (tmp_path / "broken_job.py").write_text("import a_module_that_is_missing\n")
    yield tmp_path
    sys.modules.pop("own_job", None)
    sys.modules.pop("broken_job", None)


def test_a_function_of_a_module_in_the_working_folder(folder):
    traced = resolve("own_job:mine{prompts=3, staleness=2}")
    assert (traced.name, traced.params, traced.contract.staleness) == ("mine", (("prompts", 3),), 2)
    assert traced.loc.file == str(folder / "own_job.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_job:mine", "there is no module `no_such_job`"),
        ("own_job:missing", "module `own_job` has no `missing`; its programs are: mine"),
        ("own_job:plain", "`own_job:plain` is no program; its programs are: mine"),
        ("missing.st", "`missing.st` cannot be read: No such file or directory"),
    ],
)
def test_modules_functions_and_files_that_are_not_there(folder, text, message):
    with pytest.raises(SteptraceError) as caught:
        resolve(text)
    assert (caught.value.code, caught.value.message) == ("ST123", message)


def test_what_a_module_fails_to_import_is_its_own_error(folder):
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        resolve("broken_job:mine")


def test_a_text_on_standard_input_or_in_a_file_is_the_program_it_prints(folder):
    traced = resolve("grpo_epochs{staleness=1}")
    text = print_program(traced)
    (folder / "job.st").write_text(text)
    assert print_program(resolve("-", stdin=io.StringIO(text))) == text
    assert print_program(resolve("job.st")) == text


def test_a_text_that_lies_is_refused_where_it_lies():
    text = print_program(resolve("grpo")).replace("rollout.weights[k-1]", "rollout.weights[k-2]")
    with pytest.raises(SteptraceError) as caught:
        resolve("-", stdin=io.StringIO(text))
    assert caught.value.loc.file == "<stdin>"
    assert "rollout.weights[k-2]" in caught.value.source
