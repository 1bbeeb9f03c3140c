"""Codes of the text form: what does not parse, and what its lines claim against the op table."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class UnknownVersionError(SteptraceError):
    """The text was written by a version of the text form that this steptrace does not read.

    The first line says which version of the text form the rest follows. This steptrace reads version 1.

    Example::

        steptrace 2
        program grpo

    Ways out: dump the program again with the steptrace that is installed; or install the steptrace that
    wrote the text.
    """

    code = "ST001"


class UnexpectedTokenError(SteptraceError):
    """A line of the text does not follow the grammar.

    The message says what was expected at the place of the caret, and what stands there. Each op has one
    line, and its parts stand in one order: label, results, kind with operands, attributes, lane, shift,
    condition, origin, effects, place in the source.

    Example::

        step k {
          fwd_bwd(%mb lane=trainer
        }

    Ways out: write what was expected. The grammar is in the docstring of ``steptrace.ir.parser``;
    ``steptrace dump grpo`` shows a whole program.
    """

    code = "ST002"


class UnreadableTextError(SteptraceError):
    """A character or a string of the text cannot be read.

    A string starts and ends with ``"`` on one line, and uses the escapes of JSON. A value is written
    ``%name``. A comment starts with ``#``.

    Example::

        program grpo {estimator="grpo}

    Ways out: close the string, or remove the character.
    """

    code = "ST003"


class UnknownKindError(SteptraceError):
    """An op of this kind is in no table.

    Each op is of a kind: a row of the built-in table (``steptrace ops`` lists it), or a row that a user
    added, which stands as an ``op`` line near the top of the text.

    Example::

        step k {
          fwd_bwdd(%mb) lane=trainer
        }

    Ways out: correct the name; or declare the op with ``@steptrace.op`` and dump the program again, which
    writes its row.
    """

    code = "ST004"


class EffectsDisagreeError(SteptraceError):
    """The effects printed on an op's line are not the effects that the op has.

    What an op reads, writes and waits for follows from its row of the op table, its attributes and the
    contract. It is printed so that people can read it, and derived again on parsing: a hand edit cannot
    make an op look more harmless than it is.

    Example::

        contract weights=pinned staleness=0 partial=train empty=skip
        dispatch() {prompts=32, samples=8} lane=rollout reads[prompts.cursor, rng, rollout.weights[k-2]] ...
        # with staleness 0 the rollouts of step k read rollout.weights[k-1]

    Ways out: restore the effects; to change what a callback touches, change its ``reads`` and ``writes``
    attributes; to change which weights generate, change ``staleness`` in the contract and the effects with it.
    """

    code = "ST005"


class TypesDisagreeError(SteptraceError):
    """The type printed for a result is not the type that the op gives for its operands.

    A type is a base and the fields that ops have added so far: ``micro_batch<advantages, ref_logps>`` is a
    micro-batch to which someone added advantages and reference log-probs. Types are derived again on
    parsing, so that a hand edit cannot claim a field that no op has made.

    Example::

        %scored : groups<advantages> = reward(%groups) lane=host reads[host[k]]
        # `reward` adds rewards, not advantages

    Ways out: restore the type; to have the field, put the op that makes it before the one that needs it.
    """

    code = "ST006"


class DuplicateNameError(SteptraceError):
    """A name is given twice where it must be unique.

    Ops and loops share one set of ids; values, carries, resources, users' rows, files and the attributes of
    an op have a set each. Two ops may define one value only when they are the arms of a choice: the same
    origin, the same type, and conditions that are never true together.

    Example::

        %groups : groups, %exists : flag = take() ...
        second: %groups : groups, %exists.2 : flag = take() ...      # a second %groups

    Ways out: rename one of them (``%groups.2``), or write a label (``second:``) before an op that repeats.
    """

    code = "ST007"


class BadAttributeError(SteptraceError):
    """An attribute of an op is unknown, missing, of another type, or not one of the choices.

    Example::

        dispatch() {prompts="many", samples=8} ...     # prompts is an int
        dispatch() {prompts=32} ...                    # samples must be given
        advantages(%scored) {estimator="gae"} ...      # not an estimator of the table

    Ways out: ``steptrace ops`` lists the attributes of each op with their types, defaults and choices.
    """

    code = "ST008"


class SignatureError(SteptraceError):
    """An op has more or fewer operands or results than its row.

    Example::

        %mb : micro_batch<advantages, rewards> = next_mb(%batch) ...     # `next_mb` also gives a flag

    Ways out: give every operand and name every result of the row, also those that are not used.
    """

    code = "ST009"


class UnknownLaneError(SteptraceError):
    """The lane of an op is none that a program has.

    A lane is something that runs ops one after the other: host, packer, trainer, reference, rollout, io,
    and those that the rows of users' ops name.

    Example::

        update() lane=trainr ...

    Ways out: correct the name; a lane of one's own is declared with ``@steptrace.op(lane=...)``.
    """

    code = "ST010"


class UnknownFileError(SteptraceError):
    """A place ``@2:12`` names a file that no ``file`` line declares.

    Example::

        steptrace 1
        file 1 "train.py"
        program grpo @2:12

    Ways out: add ``file 2 "..."`` after the first line, or correct the number.
    """

    code = "ST011"


class BadContractError(SteptraceError):
    """The contract has a value that it cannot have.

    ``weights`` is pinned or freshest; ``staleness`` is how many updates the weights that sampled a group may
    lag, 0 or more; ``partial`` is train, drop or error; ``empty`` is skip or error.

    Example::

        contract weights=pinned staleness=-1 partial=train empty=skip

    Ways out: ``staleness=0`` is on-policy: step k samples with what step k-1 published.
    """

    code = "ST012"


class BadResourceError(SteptraceError):
    """A resource is declared as something it is not.

    A built-in resource has the kind that the built-in table gives it. A slot holds at least one entry. Only a
    cell (one per step) can be indexed, as in ``host[k]``.

    Example::

        resource queue.groups : state      # it is a fifo
        resource staged : slot(0)          # holds nothing

    Ways out: restore the line; name a resource of one's own differently.
    """

    code = "ST013"


class BadRowError(SteptraceError):
    """The row of a user's op contradicts the table or itself.

    A user's op cannot take the name of a built-in op, since the rules about that op would then speak of
    another one. Each effect is a resource with an optional index: ``params``, ``host[k]``,
    ``rollout.weights[k-1-w]`` with ``w`` the staleness. A result keeps the fields of an operand that exists.

    Example::

        op update() lane=trainer                             # built in
        op penalty(groups: groups) lane=host reads[host(k)]  # not an effect

    Ways out: rename the op; write the effect as above.
    """

    code = "ST014"


class UnwritableNameError(SteptraceError):
    """A name cannot be written in the text form.

    Ids, values, kinds, resources and loop counters are identifiers, with dots between their parts:
    ``fwd_bwd.2``, ``queue.groups``. An op cannot be called ``loop``, which starts the line of a loop.

    Example::

        Op("my op", "fwd_bwd", ...)      # a space

    Ways out: use letters, digits, ``_`` and ``.``, starting with a letter.
    """

    code = "ST015"
