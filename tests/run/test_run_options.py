"""`steptrace.run`: what it takes as a program and as options, and what it says of the run."""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import replace

import numpy as np
import pytest
from fakes import HashTrainer, parts

import steptrace
from steptrace.diag.binding import BadRunOptionError, NotLowerableError, UnknownPassError, UnknownTargetError
from steptrace.diag.tracing import NotAProgramError
from steptrace.ir import print_program
from steptrace.lower import TARGETS, targets
from steptrace.programs.grpo import grpo
from steptrace.run import api
from steptrace.run.api import plan_for

PROGRAM = grpo.trace(prompts=3, samples=2)


def test_a_program_may_be_given_in_each_of_its_forms(tmp_path):
    (tmp_path / "mine.st").write_text(print_program(PROGRAM))
    forms = (PROGRAM, "grpo{prompts=3, samples=2}", str(tmp_path / "mine.st"))
    results = [steptrace.run(form, parts(), steps=2) for form in forms]
    assert len({result.calls_digest for result in results}) == 1
    assert {result.program for result in results} == {"grpo"}


def test_a_definition_is_traced_with_its_defaults():
    assert steptrace.run(grpo, parts(), steps=1).records[0]["groups"] == 32.0


@pytest.mark.parametrize("program", [None, 3, lambda step: None])
def test_something_that_is_no_program(program):
    with pytest.raises(NotAProgramError):
        steptrace.run(program, parts(), steps=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "neither steps nor epochs"),
        ({"steps": -1}, "steps=-1, and at least 0"),
        ({"steps": 1.5}, "steps=1.5 is not a whole number"),
        ({"steps": "3"}, "steps='3' is not a whole number"),
        ({"epochs": 0}, "epochs=0, and at least 1"),
        ({"epochs": 1.0}, "epochs=1.0 is not a whole number"),
        ({"steps": 1, "seed": None}, "seed=None is not a whole number"),
        ({"steps": 1, "seed": 0.5}, "seed=0.5 is not a whole number"),
        ({"steps": 1, "resume": True}, "resume=True needs out"),
        ({"steps": 1, "out": 3}, "out=3 is not the path of a folder"),
        ({"steps": 1, "out": "a\0b"}, "out='a.x00b' is not the path of a folder"),
        ({"steps": 1, "pipeline": None}, "pipeline=None is a NoneType, not a text"),
        ({"steps": 1, "target": None}, "target=None is a NoneType, not a text"),
    ],
)
def test_options_that_make_no_sense(options, words):
    trainer = HashTrainer()
    with pytest.raises(BadRunOptionError, match=words):
        steptrace.run(PROGRAM, parts(trainer=trainer), **options)
    assert trainer.calls == []


@pytest.mark.parametrize(
    ("option", "way_out"), [("pipeline", '"" runs the program as written'), ("target", 'it is "inline" or "process"')]
)
def test_a_text_that_is_none_is_told_what_is_meant(option, way_out):
    with pytest.raises(BadRunOptionError) as caught:
        steptrace.run(PROGRAM, parts(trainer=HashTrainer()), steps=1, **{option: None})
    assert caught.value.help == way_out


def test_parts_that_are_not_by_role():
    with pytest.raises(BadRunOptionError, match="bind is a list"):
        steptrace.run(PROGRAM, [HashTrainer()], steps=1)


def test_a_program_that_draws_nothing_needs_steps():
    @steptrace.op(gives="groups", reads=["prompts.cursor"], writes=["host[k]"])
    def own_groups():
        return []

    @steptrace.program
    def undrawn(step):
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(own_groups())))):
            step.fwd_bwd(mb)
        step.update()
        step.sync_weights()

    with pytest.raises(BadRunOptionError, match="`undrawn` draws no prompts"):
        steptrace.run(undrawn, parts(), epochs=1)
    assert steptrace.run(undrawn, parts(), steps=2).steps == 2


def test_numbers_of_numpy():
    result = steptrace.run(PROGRAM, parts(), steps=np.int64(2), epochs=np.int32(5), seed=np.uint8(7))
    assert (result.steps, result.seed, type(result.seed)) == (2, 7, int)


def test_a_pipeline_or_target_that_does_not_exist():
    with pytest.raises(UnknownPassError, match="take-ahaed"):
        steptrace.run(PROGRAM, parts(), steps=1, pipeline="take-ahaed")
    with pytest.raises(UnknownTargetError, match="`inlin`") as info:
        steptrace.run(PROGRAM, parts(), steps=1, target="inlin")
    assert info.value.help == "did you mean `inline`?"
    with pytest.raises(UnknownTargetError) as info:
        steptrace.run(PROGRAM, parts(), steps=1, target="zzz")
    assert "`inline`" in info.value.help


def test_the_plan_of_a_run_is_there_before_it():
    assert plan_for("grpo{prompts=3, samples=2}").program == PROGRAM


def test_what_a_result_says():
    class Trainer(HashTrainer):
        def info(self):
            return {"compiles": {"fwd_bwd": 1}}

    result = steptrace.run(PROGRAM, parts(trainer=Trainer()), steps=3, seed=5)
    assert (result.program, result.pipeline, result.target) == ("grpo", "", "inline")
    assert (result.seed, result.steps, result.first_step) == (5, 3, 0)
    assert result.info == {"compiles": {"fwd_bwd": 1}}
    assert [record["step"] for record in result.records] == [0.0, 1.0, 2.0]
    assert "records" not in repr(result)
    assert set(result.records[0]) == {
        "step",
        "loss",
        "reward",
        "finished",
        "groups",
        "groups_of_equal_rewards",
        "completion_tokens",
        "micro_batches",
        "empty_updates",
        "rollout_version",
    }


@pytest.mark.parametrize("said", [None, 3, "nothing"])
def test_a_trainer_that_says_nothing_of_use_ends_no_run(said):
    class Trainer(HashTrainer):
        def info(self):
            return said

    assert steptrace.run(PROGRAM, parts(trainer=Trainer()), steps=1).info == {}


def test_figures_of_a_step_are_those_of_its_rollouts():
    result = steptrace.run(PROGRAM, parts(reward=lambda prompt, texts: [1.0, 0.0]), steps=1)
    (record,) = result.records
    assert (record["groups"], record["reward"], record["finished"], record["groups_of_equal_rewards"]) == (3, 0.5, 1, 0)
    flat = steptrace.run(PROGRAM, parts(reward=lambda prompt, texts: [1.0, 1.0]), steps=1)
    assert flat.records[0]["groups_of_equal_rewards"] == 3


def test_times_of_steps_are_told_to_trackers_that_ask():
    told = []

    class Tracker:
        def log(self, step, metrics):
            pass

        def phases(self, step, seconds):
            told.append((step, "dispatch" in seconds))

        def close(self):
            pass

    steptrace.run(PROGRAM, parts(tracker=Tracker()), steps=3)
    assert told == [(0, True), (1, True), (2, True)]


def test_a_schedule_that_the_target_has_no_rule_for(monkeypatch):
    bare = replace(TARGETS["inline"], scheduled=frozenset())
    monkeypatch.setattr(targets, "TARGETS", {"inline": bare})
    with pytest.raises(NotLowerableError, match="start_metrics"):
        steptrace.run(PROGRAM, parts(), steps=1, pipeline="defer-metrics")


@pytest.mark.parametrize("stall_s", [0, -1.0, "long", True])
def test_a_limit_of_waits_that_is_none(stall_s):
    with pytest.raises(BadRunOptionError, match="stall_s"):
        steptrace.run(PROGRAM, parts(), steps=1, stall_s=stall_s)


def test_what_passes_leave_undone_is_told():
    result = steptrace.run(PROGRAM, parts(), steps=1, pipeline="take-ahead")
    (remark,) = result.remarks
    assert "staleness=1" in remark


def test_the_function_shows_its_signature_and_its_page():
    signature = inspect.signature(steptrace.run)
    assert [*signature.parameters] == [*inspect.signature(api.run).parameters]
    page = pydoc.render_doc(steptrace.run, renderer=pydoc.plaintext)
    for words in (
        "Run a program with the user's parts",
        "    *,\n",
        "pipeline: str = ''",
        "resume: bool = False",
        "out: folder for",
    ):
        assert words in page
    assert inspect.getdoc(steptrace.run).count("Returns:") == 1


@pytest.mark.parametrize(
    ("options", "words", "help"),
    [
        ({"pipline": "defer-metrics"}, "run has no option `pipline`", "did you mean `pipeline`?"),
        ({"output": "x"}, "run has no option `output`", "did you mean `out`?"),
        ({"zzz": 1}, "run has no option `zzz`", "the options are `program`, `bind`, `steps`"),
        ({"bind": {}}, "run cannot be called like this: multiple values", "help(steptrace.run)"),
    ],
)
def test_a_misspelled_option_is_refused_with_the_one_that_was_meant(options, words, help):
    with pytest.raises(BadRunOptionError, match=words) as caught:
        steptrace.run(PROGRAM, parts(), steps=1, **options)
    assert help in caught.value.help


def test_parts_that_are_not_given_at_all_are_asked_for():
    with pytest.raises(BadRunOptionError, match="missing a required argument: 'bind'"):
        steptrace.run(PROGRAM)
