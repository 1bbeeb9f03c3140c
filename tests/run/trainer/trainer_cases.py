"""Sequences, packings and tiny models for the trainer's tests."""

from contextlib import contextmanager
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

from steptrace.lang.records import MicroBatch

VOCAB, DIM, LENGTH = 11, 16, 32


@dataclass(frozen=True)
class Sequence:
    """A prompt and its completion, with one number a token."""

    tokens: np.ndarray
    prompt: int
    rollout_logps: np.ndarray
    old_logps: np.ndarray
    ref_logps: np.ndarray
    advantage: float


def sequences(count: int, seed: int = 0, shortest: int = 3, longest: int = 14) -> list[Sequence]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        size = int(rng.integers(shortest, longest + 1))
        logps = -np.abs(rng.normal(size=(3, size))).astype(np.float32) - 1.5
        tokens = rng.integers(0, VOCAB, size=size).astype(np.int32)
        made.append(Sequence(tokens, int(rng.integers(1, size)), *logps, float(rng.normal())))
    return made


def pack(rows: list[list[Sequence]], length: int = LENGTH) -> dict[str, np.ndarray]:
    """One row for each list of sequences."""
    shape = (len(rows), length)
    ints = {name: np.zeros(shape, np.int32) for name in ("tokens", "segment_ids", "positions")}
    names = ("loss_mask", "advantages", "rollout_logps", "old_logps", "ref_logps")
    floats = {name: np.zeros(shape, np.float32) for name in names}
    # Padding holds what a careless loss would trip over.
    for name in ("rollout_logps", "old_logps", "ref_logps"):
        floats[name][:] = -1e30
    for r, row in enumerate(rows):
        at = 0
        for number, seq in enumerate(row, 1):
            size = len(seq.tokens)
            span = slice(at, at + size)
            ints["tokens"][r, span] = seq.tokens
            ints["segment_ids"][r, span] = number
            ints["positions"][r, span] = np.arange(size)
            completion = np.arange(size) >= seq.prompt
            floats["loss_mask"][r, span] = completion
            floats["advantages"][r, span] = completion * np.float32(seq.advantage)
            for name in ("rollout_logps", "old_logps", "ref_logps"):
                floats[name][r, span] = np.where(completion, getattr(seq, name), -1e30)
            at += size
        assert at <= length
    return {**ints, **floats}


def greedy_rows(seqs: list[Sequence], length: int = LENGTH) -> list[list[Sequence]]:
    """As many sequences to a row as fit, in order."""
    rows: list[list[Sequence]] = [[]]
    for seq in seqs:
        if sum(len(s.tokens) for s in rows[-1]) + len(seq.tokens) > length:
            rows.append([])
        rows[-1].append(seq)
    return rows


def one_each(seqs: list[Sequence]) -> list[list[Sequence]]:
    return [[seq] for seq in seqs]


def batches(step: int, rows: list[list[Sequence]], parts: int, length: int = LENGTH, fill: int = 0) -> list[MicroBatch]:
    """The rows of a step in ``parts`` micro-batches, as even as they come, filled up with empty rows."""
    split = [list(part) for part in np.array_split(np.arange(len(rows)), parts)]
    made = []
    for index, part in enumerate(split):
        arrays = pack([rows[i] for i in part] + [[]] * (fill - len(part)), length)
        del arrays["old_logps"]
        made.append(MicroBatch(step, index, arrays, (), last=index == parts - 1))
    return made


class Decoder(nnx.Module):
    """One causal attention layer that sees its own segment only."""

    def __init__(self, rngs, vocab=VOCAB, dim=DIM, isolate=True):
        self.embed = nnx.Embed(vocab, dim, rngs=rngs)
        self.places = nnx.Embed(LENGTH, dim, rngs=rngs)
        self.qkv = nnx.Linear(dim, 3 * dim, use_bias=False, rngs=rngs)
        self.head = nnx.Linear(dim, vocab, rngs=rngs)
        self.isolate = isolate

    def __call__(self, tokens, positions, segment_ids):
        x = self.embed(tokens) + self.places(positions)
        q, k, v = jnp.split(self.qkv(x), 3, axis=-1)
        seen = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))[None]
        if self.isolate:
            seen &= segment_ids[:, :, None] == segment_ids[:, None, :]
        scores = jnp.where(seen, jnp.einsum("rqd,rkd->rqk", q, k) / DIM**0.5, -1e9)
        x = x + jnp.einsum("rqk,rkd->rqd", jax.nn.softmax(scores, axis=-1), v)
        return self.head(jnp.tanh(x))


class LinenDecoder(nn.Module):
    """Tokens and positions only, no attention."""

    @nn.compact
    def __call__(self, tokens, positions, segment_ids):
        x = nn.Embed(VOCAB, DIM)(tokens) + nn.Embed(LENGTH, DIM)(positions)
        return nn.Dense(VOCAB)(jnp.tanh(nn.Dense(DIM)(x)))


class Scale(nnx.Module):
    """One number; its gradient under `linear_loss` is the mean of what it is shown."""

    def __init__(self, value=0.0):
        self.w = nnx.Param(jnp.asarray(value, jnp.float32))

    def __call__(self, x):
        return self.w[...] * x


def linear_loss(model, batch):
    """Sum of w * x, counted by x's size; the metric ``x`` is the mean of x."""
    x = batch["x"]
    return jnp.sum(model(x)), x.size, {"x": (jnp.sum(x), x.size)}


def numbers(step: int, *values: float, index: int = 0) -> MicroBatch:
    return MicroBatch(step, index, {"x": np.array(values, np.float32)}, ())


def train(trainer, *micro_batches: MicroBatch) -> None:
    for micro_batch in micro_batches:
        trainer.fwd_bwd(micro_batch)
    trainer.update()


@contextmanager
def backend_compiles():
    """A list that grows with each program the backend compiles."""
    seen = []

    def listen(name, *_, **__):
        seen.extend([name] if "backend_compile" in name else [])

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def flat(tree) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)])


def params_of(trainer) -> np.ndarray:
    return flat(trainer.weights()[0])
