"""Parts against the program, before step 0: each missing, short of a method, or of another shape."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import CharTokenizer, HalfReference, HashRollout, HashTrainer, length_reward, parts

import steptrace
from steptrace.diag import SteptraceError
from steptrace.diag.binding import StreamedStepAdvantagesError, UnboundPartError, UnknownRoleError, WrongPartError
from steptrace.lang.records import Prompt
from steptrace.lower import lower
from steptrace.programs.grpo import grpo
from steptrace.programs.grpo_stream import grpo_stream
from steptrace.run.api import plan_for
from steptrace.run.binding import ROLES, bind_parts
from steptrace.run.data.advantages import GlobalNormalized, GroupAdvantages
from steptrace.run.data.packing import Packer

PROGRAM = grpo.trace(prompts=3, samples=2, save_every=1)
STREAM = grpo_stream.trace(prompts=3, samples=2)


class Strict:
    """Parts that must not be called: nothing is run before all are found to fit."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def note(self, name: str) -> None:
        self.called.append(name)


class WatchedTrainer(HashTrainer):
    def __init__(self, strict: Strict) -> None:
        super().__init__()
        self.strict = strict

    def weights(self):
        self.strict.note("weights")
        return super().weights()


class WatchedRollout(HashRollout):
    def __init__(self, strict: Strict) -> None:
        super().__init__()
        self.strict = strict

    def apply_weights(self, weights, version):
        self.strict.note("apply_weights")
        super().apply_weights(weights, version)


def refused(error: type[SteptraceError], program=PROGRAM, without: str = "", **bound) -> SteptraceError:
    """The error of a run that has called nothing; `control` shows that the same parts would have been called."""
    strict = Strict()
    made = parts(trainer=WatchedTrainer(strict), rollout=WatchedRollout(strict))
    given = {role: part for role, part in (made | bound).items() if role != without}
    with pytest.raises(error) as info:
        steptrace.run(program, given, steps=1)
    assert strict.called == []
    return info.value


def test_control_parts_that_fit_are_called():
    strict = Strict()
    steptrace.run(PROGRAM, parts(trainer=WatchedTrainer(strict), rollout=WatchedRollout(strict)), steps=1)
    assert strict.called[:2] == ["weights", "apply_weights"]


@pytest.mark.parametrize(
    ("role", "line", "protocol"),
    [
        ("trainer", "def grpo", "Trainer"),
        ("rollout", "def grpo", "Rollout"),
        ("prompts", "step.dispatch", "PromptSource"),
        ("tokenizer", "step.dispatch", "Tokenizer"),
        ("reward", "step.reward", "Reward"),
        ("reference", "step.ref_logps", "Reference"),
    ],
)
def test_each_part_that_is_missing(role, line, protocol):
    for without in ({"without": role}, {role: None}):
        error = refused(UnboundPartError, **without)
        assert f"`{role}`" in error.message
        assert f"steptrace.{protocol}" in error.help
        assert line in error.loc.source()


def test_a_stream_needs_the_reward_too():
    error = refused(UnboundPartError, grpo_stream.trace(prompts=3, samples=2), without="reward")
    assert "`stream_mb` needs a `reward`" in error.message


def test_control_parts_that_the_program_does_not_use_may_be_missing():
    @steptrace.program
    def plain(step):
        step.dispatch(prompts=3, samples=2)
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
            step.fwd_bwd(mb)
        step.update()
        step.sync_weights()
        step.commit()

    class Bare(HashTrainer):
        save_checkpoint = restore_checkpoint = get_metrics = None

    bound = parts(trainer=Bare(), reference=None, packer=None)
    assert steptrace.run(plain, bound, steps=1).steps == 1


METHODS = [
    ("trainer", "fwd_bwd"),
    ("trainer", "update"),
    ("trainer", "get_metrics"),
    ("trainer", "weights"),
    ("trainer", "save_checkpoint"),
    ("trainer", "restore_checkpoint"),
    ("rollout", "apply_weights"),
    ("rollout", "drop_weights"),
    ("rollout", "generate"),
    ("tokenizer", "encode"),
    ("reference", "logps"),
]


def lacking(part, method: str, value=None):
    """An object like ``part`` with ``value`` in the place of a method."""
    return type("Lacking", (type(part),), {method: value})()


@pytest.mark.parametrize(("role", "method"), METHODS)
def test_each_method_that_is_missing(role, method):
    error = refused(WrongPartError, **{role: lacking(parts()[role], method)})
    assert f"`{role}` is bound to Lacking, which has no method `{method}`" in error.message
    assert error.loc is not None
    assert error.notes[0].text.startswith("s")


@pytest.mark.parametrize(("role", "method"), METHODS)
@pytest.mark.parametrize("wrong", [lambda self, a, b, c, d, *, e: None, lambda: None], ids=["too many", "no self"])
def test_each_method_that_takes_other_arguments(role, method, wrong):
    error = refused(WrongPartError, **{role: lacking(parts()[role], method, wrong)})
    assert f"Lacking.{method}" in error.message
    assert "cannot be called as the step calls it" in error.message or "no parameter for its object" in error.message


def test_methods_that_take_more_than_they_are_given_by_default_fit():
    class Wide(HashRollout):
        def generate(self, prompts, samples, *args, version, key, temperature=1.0, **other):
            return super().generate(prompts, samples, version=version, key=key)

    assert steptrace.run(PROGRAM, parts(rollout=Wide()), steps=1).steps == 1


def test_a_keyword_of_another_name():
    class Other(HashRollout):
        def generate(self, prompts, samples, *, policy_version, key):
            """Never called."""

    error = refused(WrongPartError, rollout=Other())
    assert "version" in error.message


def test_a_coroutine_function():
    class Later(HashRollout):
        async def generate(self, prompts, samples, *, version, key):
            """Never called."""

    assert "coroutine" in refused(WrongPartError, rollout=Later()).message


def test_a_class_in_the_place_of_an_object():
    error = refused(WrongPartError, reference=HalfReference)
    assert error.help == "bind an object of the class: HalfReference(...)"


def test_a_class_of_static_methods_is_an_object_that_fits():
    class Letters:
        vocab_size, pad_id, stop_id = 128, 0, 1
        encode = staticmethod(CharTokenizer().encode)
        decode = staticmethod(CharTokenizer().decode)

    assert steptrace.run(PROGRAM, parts(tokenizer=Letters), steps=1).steps == 1


@pytest.mark.parametrize("reward", [3, "reward", lambda prompt: [], lambda prompt, completions, answer: []])
def test_a_reward_that_cannot_be_called_as_one(reward):
    assert "`reward`" in refused(WrongPartError, reward=reward).message


@pytest.mark.parametrize("reward", [length_reward, max, lambda *args: length_reward(*args)])
def test_rewards_that_might(reward):
    bind_parts(lower(PROGRAM), parts(reward=reward))


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([], "an empty source"),
        (["prompt"], "prompt 0 of the source is a str"),
        ({"a": Prompt("a", "a")}, "it has no prompt 0"),
        ([Prompt(3, "text")], "has the id 3"),  # type: ignore[arg-type]
        ([Prompt("3", None)], "a NoneType as its text"),  # type: ignore[arg-type]
        (iter([Prompt("a", "a")]), "has no method `__getitem__`"),
        (3, "has no method `__getitem__`"),
    ],
)
def test_prompts_that_are_none(prompts, words):
    error = refused(WrongPartError, prompts=prompts)
    assert words in error.message
    assert "step.dispatch" in error.loc.source()


def test_a_list_of_prompts_is_a_source():
    bound = parts(prompts=[Prompt(str(index), "x") for index in range(4)])
    assert steptrace.run(PROGRAM, bound, epochs=1).steps == 2


@pytest.mark.parametrize("name", ["vocab_size", "pad_id", "stop_id"])
@pytest.mark.parametrize("value", [None, 1.0, "1", True])
def test_a_tokenizer_with_another_type(name, value):
    error = refused(WrongPartError, tokenizer=lacking(CharTokenizer(), name, value))
    assert f"whose `{name}` is {value!r}, not an int" in error.message


def test_numbers_of_numpy_are_ints():
    tokenizer = CharTokenizer()
    tokenizer.pad_id, tokenizer.stop_id = np.int64(0), np.int32(1)
    assert steptrace.run(PROGRAM, parts(tokenizer=tokenizer), steps=1).steps == 1


def test_the_packer_of_a_run_that_binds_none_pads_as_the_tokenizer_does():
    tokenizer = CharTokenizer()
    tokenizer.pad_id = 7
    bound = bind_parts(lower(PROGRAM), parts(tokenizer=tokenizer, packer=None))
    assert bound.packer == Packer(rows=16, length=128, pad_id=7)


@pytest.mark.parametrize(
    ("role", "near"),
    [("trianer", "trainer"), ("callback", "callbacks"), ("rollouts", "rollout"), ("trackers", "tracker")],
)
def test_a_role_that_is_none(role, near):
    error = refused(UnknownRoleError, **{role: object()})
    assert error.help == f"did you mean `{near}`?"


def test_a_role_that_is_like_none():
    error = refused(UnknownRoleError, zzz=object())
    assert all(f"`{role}`" in error.help for role in ROLES)


class Quiet:
    def log(self, step, metrics):
        """Nothing."""

    def close(self):
        """Nothing."""


@pytest.mark.parametrize(
    ("role", "part", "words"),
    [
        ("tracker", object(), "no method `log`"),
        ("tracker", [Quiet(), object()], "no method `log`"),
        ("tracker", lacking(Quiet(), "close"), "no method `close`"),
        ("tracker", lacking(Quiet(), "log", lambda self, metrics: None), "Lacking.log"),
        ("tracker", lacking(Quiet(), "rewind", lambda self: None), "Lacking.rewind"),
        ("tracker", lacking(Quiet(), "phases", lambda self, step: None), "Lacking.phases"),
        ("callbacks", object(), "no method `on_step_begin`"),
        ("callbacks", lacking(Quiet(), "on_step_begin", lambda self: None), "Lacking.on_step_begin"),
        ("callbacks", lacking(Quiet(), "on_step_end", lambda self, step: None), "Lacking.on_step_end"),
        ("advantages", 3, "cannot be called"),
        ("advantages", lambda groups, rewards: groups, "cannot be called as the step calls it"),
        ("packer", object(), "not a steptrace.run.data.Packer"),
    ],
)
def test_parts_that_a_program_may_do_without_are_checked_when_bound(role, part, words):
    assert words in refused(WrongPartError, **{role: part}).message


def test_control_callbacks_with_one_method_and_trackers_of_two_fit():
    begin = lacking(Quiet(), "on_step_begin", lambda self, step: None)
    end = lacking(Quiet(), "on_step_end", lambda self, step, metrics: None)
    bound = parts(callbacks=[begin, end], tracker=(Quiet(), Quiet()))
    assert steptrace.run(PROGRAM, bound, steps=1).steps == 1


class OfAStep:
    """A user's advantages that say how much they must see."""

    def __init__(self, scope):
        self.scope = scope

    def __call__(self, groups):
        return GroupAdvantages()(groups)


@pytest.mark.parametrize("advantages", [GlobalNormalized(), OfAStep("step")])
def test_advantages_of_a_step_cannot_be_streamed(advantages):
    trainer = HashTrainer()
    with pytest.raises(StreamedStepAdvantagesError, match="needs all groups of a step at once") as caught:
        steptrace.run(STREAM, parts(advantages=advantages, trainer=trainer), steps=1)
    assert "step.stream" in caught.value.loc.source()
    assert trainer.calls == []


@pytest.mark.parametrize(
    ("program", "advantages"),
    [
        (PROGRAM, GlobalNormalized()),
        (PROGRAM, OfAStep("step")),
        (STREAM, OfAStep("group")),
        (STREAM, GroupAdvantages()),
        (STREAM, lambda groups: groups),
    ],
)
def test_control_advantages_that_fit_the_program(program, advantages):
    bind_parts(plan_for(program), parts(advantages=advantages))
