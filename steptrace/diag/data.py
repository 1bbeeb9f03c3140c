"""Coded errors of the data path: prompts, rewards, advantages, packing, the queue of groups."""

from __future__ import annotations

from typing import ClassVar

from steptrace.diag.base import SteptraceError


class EmptyPromptsError(SteptraceError):
    """A prompt source has no prompts.

    A run draws prompts from its source; with none there is nothing to generate from.

    Example that causes it::

        ListPrompts([])
        JsonlPrompts("empty.jsonl")    # a file with no line, or blank lines only

    Ways out: name the right file; check that the filter which wrote it kept something.
    """

    code: ClassVar[str] = "ST400"


class UnreadablePromptsError(SteptraceError):
    """A prompt file cannot be opened or is not UTF-8 text.

    Example that causes it::

        JsonlPrompts("promts.jsonl")    # no such file

    Ways out: correct the path or its permissions; convert the file to UTF-8.
    """

    code: ClassVar[str] = "ST401"


class BadPromptLineError(SteptraceError):
    """A line of a prompt file is not a JSON object with a text under the prompt key.

    Example that causes it, with ``text_key="prompt"``::

        {"question": "2 + 2 ="}
        {"prompt": "2 + 2 ="

    Ways out: repair the line the message points at, or name the key that the file uses:
    ``JsonlPrompts(path, text_key="question")``. Blank lines are skipped.
    """

    code: ClassVar[str] = "ST402"


class DuplicatePromptError(SteptraceError):
    """Two prompts of one source have the same id.

    A group is known by its prompt's id and the number of the draw. With one id on two prompts their
    groups could not be told apart, and values would be joined to the wrong samples.

    Example that causes it::

        ListPrompts([Prompt("a", "2 + 2 ="), Prompt("a", "3 + 3 =")])

    Ways out: make the ids unique, or leave ``id_key`` out, which numbers the lines.
    """

    code: ClassVar[str] = "ST403"


class DataStateError(SteptraceError):
    """A saved state of the data path does not belong to this run.

    The state of the draws names the number of prompts and the seed it counted with; the state of the
    queue names its cursor and counts. Going on with another prompt set or seed would train some
    prompts twice and others never.

    Example that causes it::

        draws = Draws(JsonlPrompts("a.jsonl"), seed=0)
        Draws(JsonlPrompts("longer.jsonl"), seed=0).restore(draws.state(cursor))

    Ways out: resume with the prompts and the seed of the first run, or start a new run.
    """

    code: ClassVar[str] = "ST404"


class RewardLengthError(SteptraceError):
    """A reward function returned the wrong number of rewards.

    Rewards are joined to completions in order, one each. A shorter or longer answer cannot be joined,
    and is never cut or padded.

    Example that causes it::

        def reward(prompt, completions):
            return [1.0]                    # for 8 completions

    Ways out: return one number per completion, in order: ``[judge(c) for c in completions]``.
    """

    code: ClassVar[str] = "ST410"


class RewardTypeError(SteptraceError):
    """A reward function returned something that is not a number, ``None`` for one.

    Example that causes it::

        def reward(prompt, completions):
            return [re.match("-?[0-9]+", c) for c in completions]

    Ways out: return a float, an int or a bool for every completion; decide what a completion that cannot
    be judged is worth, and return that number (0.0, say).
    """

    code: ClassVar[str] = "ST411"


class RewardNotFiniteError(SteptraceError):
    """A reward is NaN or infinite, or too large for float32.

    One such reward makes the advantages of its whole group NaN, and then the parameters.

    Example that causes it::

        def reward(prompt, completions):
            return [math.log(overlap(prompt, c)) if c else math.nan for c in completions]

    Ways out: return a finite number for every completion; clip logs and ratios.
    """

    code: ClassVar[str] = "ST412"


class RewardRaisedError(SteptraceError):
    """A reward function raised. Its own exception is attached as the cause.

    Example that causes it::

        def reward(prompt, completions):
            return [float(c) for c in completions]      # ValueError on "I do not know"

    Ways out: catch what a completion can cause and return the reward it is worth.
    """

    code: ClassVar[str] = "ST413"


class RewardsMissingError(SteptraceError):
    """A group reached ``advantages`` without its rewards.

    Example that causes it::

        step.pack(step.advantages(step.take()))         # no step.reward

    Ways out: run ``step.reward`` first. An own reward op returns its groups with ``rewards`` set, one
    finite float32 per completion.
    """

    code: ClassVar[str] = "ST414"


class SingleSampleError(SteptraceError):
    """Leave-one-out advantages need two samples of a prompt, and a group has fewer.

    The baseline of a sample is the mean reward of the group's other samples; with one sample there is no
    other.

    Example that causes it::

        step.dispatch(prompts=32, samples=1)            # with LeaveOneOut bound as advantages

    Ways out: ``samples=2`` or more; or ``GlobalNormalized``, whose baseline is the whole step's.
    """

    code: ClassVar[str] = "ST415"


class SequenceTooLongError(SteptraceError):
    """A group is too large to pack: a prompt with its completion is longer than a row.

    A sequence is never split over rows, for its tokens attend to one another. It is not cut either.

    Example that causes it::

        Packer(rows=8, length=64).pack(groups, step=0)  # a prompt of 60 tokens and a completion of 16

    Ways out: a larger ``length`` (longest prompt + longest completion is always enough), or a lower limit
    on completion tokens.
    """

    code: ClassVar[str] = "ST420"


class AdvantagesMissingError(SteptraceError):
    """A group reached ``pack`` without its advantages, or with a wrong number of them, or a non-finite one.

    Example that causes it::

        step.pack(step.reward(step.take()))             # no step.advantages

    Ways out: run ``step.advantages`` before ``step.pack``. An own advantages part returns its groups with
    ``advantages`` set, one finite float32 per completion.
    """

    code: ClassVar[str] = "ST421"


class BadCompletionError(SteptraceError):
    """A completion cannot be packed: its arrays do not fit one another.

    A completion has as many log-probs as tokens, both one-dimensional, tokens as integers and log-probs
    finite; ``logps[i]`` belongs to ``tokens[i]``. Prompt and completion together have at least one token.

    Example that causes it::

        Completion(tokens=np.array([5, 6, 1]), logps=np.array([-0.1, -0.2]), text="ab", finished=True)

    Ways out: return one log-prob per sampled token, the stop token included when it was sampled.
    """

    code: ClassVar[str] = "ST422"


class UnjoinedKeyError(SteptraceError):
    """Values joined to a micro-batch have none for one of its sequences.

    Values go to sequences by key, (group id, sample index), never by position.

    Example that causes it::

        join(micro_batch, {(group.id, 0): 0.5})         # the group has two samples

    Ways out: give a value for every key in ``micro_batch.keys``; keys that are not in it are ignored.
    """

    code: ClassVar[str] = "ST423"


class PackerShapeError(SteptraceError):
    """A packer has no room: ``rows`` and ``length`` must each be at least 1.

    Example that causes it::

        Packer(rows=0, length=64)

    Ways out: a number of sequences per micro-batch that fits the memory, and a length that holds the
    longest prompt with its completion.
    """

    code: ClassVar[str] = "ST424"


class GroupCollisionError(SteptraceError):
    """One group id stands for two groups.

    A group is a prompt and the number of its draw; the pair is unique in a run. Two groups under one id
    would be trained as one, or one of them would be lost.

    Example that causes it::

        queue.expect(0, [GroupId("a", 0), GroupId("a", 0)])
        queue.put(0, group); queue.put(0, group)

    Ways out: count the draws of each prompt (``Draws`` does); deliver each group once.
    """

    code: ClassVar[str] = "ST430"


class UnexpectedGroupError(SteptraceError):
    """A group was delivered, or reported as dropped, that its step does not wait for.

    Example that causes it::

        queue.expect(0, [GroupId("a", 0)])
        queue.put(0, group_b)                           # or a group of step 1, or one already dropped

    Ways out: call ``expect`` with all ids of a step when it is dispatched, before any of its groups can
    arrive, and deliver each under its own step.
    """

    code: ClassVar[str] = "ST431"


class QueueFullError(SteptraceError):
    """More steps were dispatched ahead than the queue may hold uncommitted.

    The capacity bounds the memory that finished groups take, in steps.

    Example that causes it::

        queue = GroupQueue(capacity=1)
        queue.expect(0, ids0)
        queue.expect(1, ids1)                           # step 0 is not committed

    Ways out: commit steps as they are trained; ``expect(..., timeout_s=60)`` waits for room; a larger
    ``capacity`` (1 + the number of steps dispatched ahead).
    """

    code: ClassVar[str] = "ST432"


class TakeTimeoutError(SteptraceError):
    """Groups of a step did not arrive in time. The message names the missing ids and the step.

    Example that causes it::

        queue.expect(0, [GroupId("a", 0)])
        queue.take(0, timeout_s=1.0)                    # nobody delivers it

    Ways out: look at the worker that had these prompts. A group that will never come is reported with
    ``queue.drop(step, id, reason)``; the end of the data with ``queue.close()``; a producer that died with
    ``queue.fail(error)``. Or allow more time.
    """

    code: ClassVar[str] = "ST433"


class QueueOrderError(SteptraceError):
    """A step was expected, taken or committed out of order.

    Steps are dispatched, taken and committed each in the order 0, 1, 2, ...; a step is committed after it
    was taken. Only a step with no admitted group may be passed over.

    Example that causes it::

        queue.take(1)                                   # step 0 was not taken
        queue.commit(0)                                 # step 0 was not taken

    Ways out: keep the order; after a restore go on at ``queue.training_cursor``.
    """

    code: ClassVar[str] = "ST434"


class IncompleteGroupError(SteptraceError):
    """A group has another number of samples than the queue was told to expect.

    What happens to a group with fewer samples is declared on the queue: ``incomplete="refuse"`` is this
    error, ``"drop"`` leaves the group out of its step, ``"shrink"`` trains it with the samples it has. A group
    with no sample, or with too many, is always refused.

    Example that causes it::

        GroupQueue(samples=8).put(0, group_of_7)

    Ways out: return as many completions as asked for, or declare another policy.
    """

    code: ClassVar[str] = "ST435"


class QueueClosedError(SteptraceError):
    """A step was dispatched after the end of the data was declared.

    Example that causes it::

        queue.close()
        queue.expect(3, ids)

    Ways out: close the queue after the last ``expect``.
    """

    code: ClassVar[str] = "ST436"


class StaleGroupError(SteptraceError):
    """A group is trained that was sampled with older weights than the contract allows.

    The lag of a group is counted when it is trained, in publications of weights since the version that sampled it: it
    grows while the group is generated and while it waits in the queue.

    Example that causes it::

        queue = GroupQueue(max_staleness=1)
        ...                                             # group sampled with version 0, taken when 3 is published

    Ways out: dispatch later (`step.dispatch(window=True)`), allow more staleness, or take with
    ``queue.take(step, behind=...)``, which drops what is too old.
    """

    code: ClassVar[str] = "ST438"


class SamplingCapError(SteptraceError):
    """A step drew as many prompts as it may, and too few of their groups can be trained.

    With ``keep="varied"`` a step draws prompts until enough groups have rewards that differ; a group whose rewards are
    all equal teaches nothing. The message counts what was drawn, lost and filtered.

    Example that causes it::

        step.dispatch(prompts=32, samples=8, keep="varied", most=64)     # nine in ten prompts are always solved

    Ways out: a larger ``most``; prompts of another difficulty; more samples; a reward with more than two values.
    """

    code: ClassVar[str] = "ST439"


class ProducerFailedError(SteptraceError):
    """What fills the queue has failed; the failure is attached as the cause.

    Example that causes it::

        queue.fail(RuntimeError("rollout worker died"))
        queue.take(0)

    Ways out: mend the cause; the uncommitted groups are generated again when the run is resumed.
    """

    code: ClassVar[str] = "ST437"
