"""Packing of sequences into micro-batches of fixed shape, and values joined to them by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steptrace.diag.data import (
    AdvantagesMissingError,
    BadCompletionError,
    GroupCollisionError,
    PackerShapeError,
    SequenceTooLongError,
    UnjoinedKeyError,
)
from steptrace.lang.records import Group, GroupId, MicroBatch

Key = tuple[GroupId, int]
"""Which sequence: the group and the index of the sample in it."""


@dataclass(frozen=True, slots=True)
class Packer:
    """How sequences (a prompt and one completion each) are laid into [rows, length] micro-batches.

    Sequences are placed in the order of the groups and, within a group, of its samples. Each goes into the
    first row of the open micro-batch with room for it; when no row has room, that micro-batch is complete and
    the next one is opened. The layout therefore depends on the order and the lengths alone. A group may be split
    over rows and micro-batches, for sequences are independent of one another once their advantages are
    known; a sequence never is.

    Attributes:
      rows: rows of a micro-batch.
      length: tokens in a row.
      pad_id: token id at padding, where every other array is 0.

    Raises:
      PackerShapeError: rows or length below 1.
    """

    rows: int
    length: int
    pad_id: int = 0

    def __post_init__(self) -> None:
        if self.rows < 1 or self.length < 1:
            raise PackerShapeError(f"a packer of {self.rows} rows of {self.length} tokens holds nothing")

    def pack(self, groups: Sequence[Group], *, step: int) -> list[MicroBatch]:
        """All groups of a step as micro-batches, indexed from 0, ``last`` set on the last one.

        No groups give no micro-batches; what a step without one does is for the program to say.

        Raises:
          SequenceTooLongError, AdvantagesMissingError, BadCompletionError, GroupCollisionError: see their pages.
        """
        stream = self.stream(step)
        done = [micro_batch for group in groups for micro_batch in stream.add(group)]
        return done + stream.close()

    def stream(self, step: int) -> PackStream:
        """An empty step to which groups are added as they arrive; yields the micro-batches of ``pack``."""
        return PackStream(self, step)


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One sequence, checked: int32 tokens, float32 logps of its last ``len(logps)`` tokens."""

    key: Key
    tokens: np.ndarray
    logps: np.ndarray
    advantage: np.float32


class PackStream:
    """A step being packed: ``add`` groups, then ``close``."""

    def __init__(self, packer: Packer, step: int) -> None:
        self._packer = packer
        self._step = step
        self._index = 0
        self._seen: set[GroupId] = set()
        self._open: list[list[_Sequence]] = []
        self._room: list[int] = []
        self._closed = False

    def add(self, group: Group) -> list[MicroBatch]:
        """Place a group's sequences; returns the micro-batches that this completed, in order.

        None of them is the step's last, for each was completed by a sequence that did not fit. The group is
        checked whole before any of its sequences is placed.
        """
        assert not self._closed, "groups are added before the step is closed"
        if group.id in self._seen:
            raise GroupCollisionError(f"group {group.id} is packed twice in step {self._step}")
        sequences = _sequences(group, self._packer.length)
        self._seen.add(group.id)
        done = []
        for sequence in sequences:
            if not self._place(sequence):
                done.append(self._emit(last=False))
                placed = self._place(sequence)
                assert placed, "a sequence no longer than a row fits an empty micro-batch"
        return done

    def close(self) -> list[MicroBatch]:
        """The step's last micro-batch, marked; nothing when no sequence was added."""
        assert not self._closed, "a step is closed once"
        self._closed = True
        return [self._emit(last=True)] if self._open else []

    def _place(self, sequence: _Sequence) -> bool:
        """Put the sequence into the first row with room for it; False when there is none."""
        size = len(sequence.tokens)
        for row, room in enumerate(self._room):
            if size <= room:
                self._open[row].append(sequence)
                self._room[row] -= size
                return True
        if len(self._open) == self._packer.rows:
            return False
        self._open.append([sequence])
        self._room.append(self._packer.length - size)
        return True

    def _emit(self, *, last: bool) -> MicroBatch:
        """The open micro-batch as arrays; opens an empty one."""
        rows = self._open + [[] for _ in range(self._packer.rows - len(self._open))]
        micro_batch = MicroBatch(
            step=self._step,
            index=self._index,
            arrays=_arrays(rows, self._packer),
            keys=tuple(tuple(sequence.key for sequence in row) for row in rows),
            last=last,
        )
        self._index += 1
        self._open, self._room = [], []
        return micro_batch


def _arrays(rows: Sequence[Sequence[_Sequence]], packer: Packer) -> dict[str, np.ndarray]:
    """Rows of sequences as the arrays of a micro-batch, each [rows, length]."""
    shape = (packer.rows, packer.length)
    ints = {name: np.zeros(shape, np.int32) for name in ("tokens", "segment_ids", "positions")}
    floats = {name: np.zeros(shape, np.float32) for name in ("loss_mask", "rollout_logps", "advantages")}
    ints["tokens"][:] = packer.pad_id
    for row, sequences in enumerate(rows):
        start = 0
        for segment, sequence in enumerate(sequences, start=1):
            end = start + len(sequence.tokens)
            sampled = slice(end - len(sequence.logps), end)
            ints["tokens"][row, start:end] = sequence.tokens
            ints["segment_ids"][row, start:end] = segment
            ints["positions"][row, start:end] = np.arange(end - start)
            floats["loss_mask"][row, sampled] = 1.0
            floats["rollout_logps"][row, sampled] = sequence.logps
            floats["advantages"][row, sampled] = sequence.advantage
            start = end
    return {**ints, **floats}


def _sequences(group: Group, length: int) -> list[_Sequence]:
    """The group's sequences, each checked against the row length."""
    advantages = _advantages(group)
    prompt = _tokens(group, "the prompt", group.prompt_tokens)
    sequences = []
    for sample, completion in enumerate(group.completions):
        sampled = _tokens(group, f"sample {sample}", completion.tokens)
        logps = np.asarray(completion.logps, np.float32)
        if logps.shape != sampled.shape:
            raise BadCompletionError(
                f"sample {sample} of group {group.id} has {sampled.size} tokens and log-probs of shape {logps.shape}"
            )
        if not np.isfinite(logps).all():
            raise BadCompletionError(f"sample {sample} of group {group.id} has a log-prob that is not finite")
        tokens = np.concatenate([prompt, sampled])
        if tokens.size == 0:
            raise BadCompletionError(f"sample {sample} of group {group.id} has no token, not even of its prompt")
        if tokens.size > length:
            raise SequenceTooLongError(
                f"group {group.id} is too large to pack: sample {sample} has {tokens.size} tokens, "
                f"{prompt.size} of them the prompt, and a row holds length={length}",
                help=f"set the packer's length to {tokens.size} or more, or limit the completions",
            )
        sequences.append(_Sequence((group.id, sample), tokens, logps, advantages[sample]))
    return sequences


def _advantages(group: Group) -> np.ndarray:
    """float32 [samples], or the error that says why there are none."""
    if group.advantages is None:
        raise AdvantagesMissingError(f"group {group.id} has no advantages", help="run `advantages` before `pack`")
    try:
        advantages = np.asarray(group.advantages, np.float32)
    except (TypeError, ValueError) as error:
        raise AdvantagesMissingError(f"group {group.id} has advantages that are no numbers: {error}") from error
    if advantages.shape != (len(group.completions),):
        raise AdvantagesMissingError(
            f"group {group.id} has {len(group.completions)} samples and advantages of shape {advantages.shape}"
        )
    if not np.isfinite(advantages).all():
        raise AdvantagesMissingError(f"group {group.id} has an advantage that is not finite")
    return advantages


def _tokens(group: Group, whose: str, tokens: np.ndarray) -> np.ndarray:
    """Token ids as int32 [n]; an empty list of them is allowed whatever its dtype."""
    array = np.asarray(tokens)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise BadCompletionError(
            f"tokens of {whose} of group {group.id} are {array.dtype}{list(array.shape)}, not integers in one dimension"
        )
    return array.astype(np.int32)


def spans(micro_batch: MicroBatch) -> Iterator[tuple[Key, int, slice]]:
    """Where each sequence lies: its key, its row, its tokens in that row."""
    segment_ids = np.asarray(micro_batch.arrays["segment_ids"])
    for row, keys in enumerate(micro_batch.keys):
        ends = np.cumsum(np.bincount(segment_ids[row], minlength=len(keys) + 1)[1:])
        assert len(ends) == len(keys), f"row {row} has {len(ends)} segments and {len(keys)} keys"
        start = 0
        for key, end in zip(keys, ends, strict=True):
            yield key, row, slice(start, int(end))
            start = int(end)


def join(micro_batch: MicroBatch, values: Mapping[Key, float]) -> np.ndarray:
    """One value per sequence, spread over its completion tokens; joined by key, never by position.

    Args:
      micro_batch: where to.
      values: a value for every key of the micro-batch; others are ignored, and their order does not matter.

    Returns:
      float32 [rows, length], the sequence's value where ``loss_mask`` is 1, else 0.

    Raises:
      UnjoinedKeyError: a sequence has no value.
    """
    mask = np.asarray(micro_batch.arrays["loss_mask"])
    joined = np.zeros(mask.shape, np.float32)
    for key, row, span in spans(micro_batch):
        if key not in values:
            raise UnjoinedKeyError(
                f"no value for sample {key[1]} of group {key[0]} in micro-batch {micro_batch.index} "
                f"of step {micro_batch.step}"
            )
        joined[row, span] = values[key]
    return np.where(mask > 0, joined, np.float32(0))


def unpack(micro_batch: MicroBatch, name: str) -> dict[Key, np.ndarray]:
    """The array ``name`` cut back into sequences: key -> values of its tokens, prompt included, [tokens]."""
    array = np.asarray(micro_batch.arrays[name])
    return {key: array[row, span] for key, row, span in spans(micro_batch)}
