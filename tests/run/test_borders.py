"""What parts return, checked where it enters the run; nothing wrong of it is trained on."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from fakes import CharTokenizer, HalfReference, HashRollout, HashTrainer, parts

import steptrace
from steptrace.diag.binding import PartResultError
from steptrace.diag.running import MixedGroupsError
from steptrace.lang.records import GroupId, Prompt
from steptrace.programs.grpo import grpo
from steptrace.programs.grpo_stream import grpo_stream
from steptrace.run.data.advantages import GroupAdvantages

PROGRAM = grpo.trace(prompts=3, samples=2)


@steptrace.program
def with_old_logps(step):
    step.dispatch(prompts=3, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(step.old_logps(mb))
    step.update()
    step.sync_weights()
    step.commit()


def refused(words: str, line: str, *, program=PROGRAM, error=PartResultError, **bound):
    trainer = bound.pop("trainer", HashTrainer())
    with pytest.raises(error, match=words) as info:
        steptrace.run(program, parts(trainer=trainer, **bound), steps=2)
    assert line in info.value.loc.source()
    assert "fwd_bwd" not in " ".join(trainer.calls)
    return info.value


class Bent(HashRollout):
    """A rollout whose results are bent before they are returned."""

    def __init__(self, bend) -> None:
        super().__init__()
        self.bend = bend

    def generate(self, prompts, samples, *, version, key):
        return self.bend(super().generate(prompts, samples, version=version, key=key))


def first(made, **changes):
    """The result with the first completion changed."""
    return [[replace(made[0][0], **changes), *made[0][1:]], *made[1:]]


@pytest.mark.parametrize(
    ("bend", "words"),
    [
        (lambda made: made[:-1], "returned 2 lists for 3 prompts"),
        (lambda made: [*made, made[0]], "returned 4 lists for 3 prompts"),
        (lambda made: [], "returned 0 lists for 3 prompts"),
        (lambda made: None, "returned nothing for 3 prompts"),
        (lambda made: iter(made), "returned a list_iterator for 3 prompts"),
        (lambda made: {0: made}, "returned a dict for 3 prompts"),
        (lambda made: "abc", "returned a str for 3 prompts"),
        (lambda made: [made[0][:1], *made[1:]], "returned 1 completions for prompt 'p:.', not 2"),
        (lambda made: [[*made[0], made[0][0]], *made[1:]], "returned 3 completions for prompt 'p:.', not 2"),
        (lambda made: [None, *made[1:]], "returned nothing for prompt 'p:.', not 2"),
        (lambda made: [made[0][0], *made[1:]], "returned a Completion for prompt 'p:.', not 2"),
        (lambda made: [["ab", "c"], *made[1:]], "returned a str as sample 0 of prompt 'p:.'"),
        (lambda made: first(made, tokens=[1.0, 2.0]), r"tokens of sample 0 of prompt 'p:.' are float64\[2\]"),
        (lambda made: first(made, tokens=[[1, 2]]), r"are int64\[1, 2\], not int \[length\]"),
        (lambda made: first(made, tokens=["a"]), "are <U1"),
        (lambda made: first(made, tokens=None), "are object"),
        (lambda made: first(made, tokens=[3, -100]), "a token of sample 0 of prompt 'p:.' is -100, and token ids are"),
        (lambda made: first(made, tokens=[2**40, 3]), "is 1099511627776, and token ids are from 0 on, in 32 bits"),
        (lambda made: first(made, tokens=[[1], [2, 3]]), "are object"),
        (lambda made: first(made, logps=np.zeros(9, np.float32)), r"log-probs float32\[9\], not one float for each"),
        (lambda made: first(made, tokens=[3, 4], logps=[0, 0]), r"log-probs int64\[2\]"),
        (lambda made: first(made, logps=None), "log-probs object"),
        (lambda made: first(made, text=None), "has nothing as its text"),
        (lambda made: first(made, text=b"x"), "has a bytes as its text"),
    ],
)
def test_what_a_rollout_must_not_return(bend, words):
    refused(words, "step.dispatch", rollout=Bent(bend))


@pytest.mark.parametrize(
    "bend",
    [
        lambda made: tuple(map(tuple, made)),
        lambda made: first(made, tokens=[3, 4], logps=[-1.0, -2.0]),
        lambda made: first(made, tokens=jnp.array([3, 4]), logps=jnp.array([-1.0, -2.0], jnp.bfloat16)),
        lambda made: first(made, tokens=np.array([3, 4], np.uint16), logps=np.array([-1.0, -2.0])),
        lambda made: first(made, tokens=[], logps=[]),
    ],
)
def test_control_what_it_may(bend):
    assert steptrace.run(PROGRAM, parts(rollout=Bent(bend)), steps=2).steps == 2


class Returns:
    """A reference that returns what it is told to."""

    def __init__(self, make) -> None:
        self.make = make

    def logps(self, micro_batch):
        return self.make(micro_batch.arrays["tokens"].shape)


WRONG_LOGPS = [
    (lambda shape: np.zeros(shape[1], np.float32), r"float32\[32\], not float \[2, 32\]"),
    (lambda shape: np.zeros((shape[0], shape[1] - 1), np.float32), r"float32\[2, 31\]"),
    (lambda shape: np.zeros((*shape, 1), np.float32), r"float32\[2, 32, 1\]"),
    (lambda shape: np.zeros(shape, np.int32), r"int32\[2, 32\]"),
    (lambda shape: jnp.zeros(shape, jnp.int32), r"int32\[2, 32\]"),
    (lambda shape: np.zeros(shape, bool), r"bool\[2, 32\]"),
    (lambda shape: 0.0, r"float64\[\]"),
    (lambda shape: None, r"object\[\]"),
    (lambda shape: "logps", "U5"),
    (lambda shape: [[0.0], [0.0, 0.0]], r"object\[\]"),
]


@pytest.mark.parametrize(("make", "words"), WRONG_LOGPS)
def test_what_a_reference_must_not_return(make, words):
    refused(f"the reference returned log-probs .*{words}", "step.ref_logps", reference=Returns(make))


@pytest.mark.parametrize(("make", "words"), WRONG_LOGPS)
def test_what_old_logps_must_not_return(make, words):
    class Trainer(HashTrainer):
        def old_logps(self, micro_batch):
            return make(micro_batch.arrays["tokens"].shape)

    refused(f"the trainer returned log-probs .*{words}", "old_logps", program=with_old_logps, trainer=Trainer())


@pytest.mark.parametrize(
    ("module", "dtype"),
    [(np, np.float16), (np, np.float32), (np, np.float64), (jnp, jnp.bfloat16), (jnp, jnp.float16), (jnp, jnp.float32)],
)
def test_log_probs_of_any_width_are_handed_on_as_float32(module, dtype):
    dtypes = set()

    class Trainer(HashTrainer):
        def fwd_bwd(self, micro_batch):
            dtypes.add(np.dtype(micro_batch.arrays["ref_logps"].dtype))
            super().fwd_bwd(micro_batch)

    reference = Returns(lambda shape: module.full(shape, -0.5, dtype))
    steptrace.run(PROGRAM, parts(reference=reference, trainer=Trainer()), steps=1)
    assert dtypes == {np.dtype(np.float32)}


def test_log_probs_as_nested_lists_fit():
    reference = Returns(lambda shape: np.full(shape, -0.5).tolist())
    assert steptrace.run(PROGRAM, parts(reference=reference), steps=1).steps == 1


class Turns:
    """Prompts of which some are none."""

    def __init__(self, other) -> None:
        self.other = other

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int):
        return Prompt(f"p:{index}", "text") if index == 0 else self.other


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("text", "of the source is a str"),
        (None, "of the source is a NoneType"),
        (("id", "text"), "is a tuple"),
        (Prompt(7, "text"), "has the id 7"),  # type: ignore[arg-type]
        (Prompt("id", ["text"]), "a list as its text"),  # type: ignore[arg-type]
    ],
)
def test_a_source_that_gives_another_type_later(other, words):
    refused(words, "step.dispatch", prompts=Turns(other))


def test_what_a_source_raises_comes_through():
    class Source(Turns):
        def __getitem__(self, index):
            if index:
                raise TimeoutError("the file server is gone")
            return super().__getitem__(index)

    with pytest.raises(TimeoutError, match="file server") as info:
        steptrace.run(PROGRAM, parts(prompts=Source(None)), steps=1)
    assert "`dispatch` of step 0" in info.value.__notes__[0]


@pytest.mark.parametrize("tokens", [None, "abc", [1.5], [[1]], {"input_ids": [1, 2]}])
def test_what_a_tokenizer_must_not_return(tokens):
    tokenizer = CharTokenizer()
    tokenizer.encode = lambda text: tokens
    refused("the tokenizer encoded prompt 'p:.' as", "step.dispatch", tokenizer=tokenizer)


@pytest.mark.parametrize("tokens", [[5, 6], (5, 6), np.array([5, 6], np.uint8), jnp.array([5, 6])])
def test_control_what_it_may_return(tokens):
    tokenizer = CharTokenizer()
    tokenizer.encode = lambda text: tokens
    assert steptrace.run(PROGRAM, parts(tokenizer=tokenizer), steps=1).steps == 1


@pytest.mark.parametrize("tokens", [[5, -1], [2**31]])
def test_token_ids_of_a_tokenizer_that_are_none(tokens):
    tokenizer = CharTokenizer()
    tokenizer.encode = lambda text: tokens
    error = refused("a token that the tokenizer made of prompt 'p:.' is", "step.dispatch", tokenizer=tokenizer)
    assert error.notes[0].text.startswith("the prompt: 'prompt ")
    assert "leave prompts out" in error.help


@pytest.mark.parametrize("tokens", [[0, 2**31 - 1], np.array([], np.int64)])
def test_control_the_least_and_the_largest_token_id(tokens):
    tokenizer = CharTokenizer()
    tokenizer.encode = lambda text: tokens
    assert steptrace.run(PROGRAM, parts(tokenizer=tokenizer), steps=1).steps == 1


@pytest.mark.parametrize("metrics", [None, [], {"loss": "low"}, {"loss": np.zeros(2)}, {1: 0.0}, {"loss": None}])
def test_what_get_metrics_must_not_return(metrics):
    class Trainer(HashTrainer):
        def get_metrics(self):
            return metrics

    with pytest.raises(PartResultError, match=r"get_metrics\(\) returned") as info:
        steptrace.run(PROGRAM, parts(trainer=Trainer()), steps=1)
    assert "step.get_metrics" in info.value.loc.source()


def test_metrics_of_any_number_are_floats():
    class Trainer(HashTrainer):
        def get_metrics(self):
            return {"a": 1, "b": np.float32(2), "c": jnp.array(3.0), "d": np.array(4), "e": True, "f": float("nan")}

    (record,) = steptrace.run(PROGRAM, parts(trainer=Trainer()), steps=1).records
    assert {name: record[name] for name in "abcde"} == {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 1.0}
    assert {type(value) for value in record.values()} == {float}


@pytest.mark.parametrize("program", [grpo, grpo_stream], ids=lambda program: program.name)
@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (lambda groups: None, PartResultError, "the advantages returned nothing"),
        (lambda groups: np.zeros((3, 2)), PartResultError, "the advantages returned a ndarray"),
        (lambda groups: [group.id for group in groups], PartResultError, "the advantages returned a list"),
        (lambda groups: [*groups, *groups], MixedGroupsError, "twice"),
        (
            lambda groups: [replace(group, id=GroupId(group.id.prompt, 9)) for group in groups],
            MixedGroupsError,
            "which it was not given",
        ),
    ],
)
def test_what_advantages_must_not_return(program, made, error, words):
    line = "step.advantages" if program is grpo else "step.stream"
    refused(words, line, program=program.trace(prompts=3, samples=2), error=error, advantages=made)


def test_own_advantages_stand_in_for_those_that_the_program_names():
    program = grpo.trace(prompts=3, samples=2)
    plain = steptrace.run(program, parts(), steps=2)
    same = steptrace.run(program, parts(advantages=GroupAdvantages()), steps=2)
    other = steptrace.run(program, parts(advantages=GroupAdvantages(std=False)), steps=2)
    assert same.calls_digest == plain.calls_digest
    assert other.calls_digest != plain.calls_digest


def test_control_a_reference_that_fits_is_trained_with():
    trainer = HashTrainer()
    steptrace.run(PROGRAM, parts(trainer=trainer, reference=HalfReference()), steps=1)
    assert "fwd_bwd 0.0" in trainer.calls
