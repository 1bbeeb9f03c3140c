"""Sizes and layouts on which the log-prob head is measured, and the arms that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from jax.sharding import Mesh

    from steptrace_kernels.hlo_report import HloReport

AXES = ("fsdp", "context", "expert")
"""Axes of the mesh; on a processor two devices each."""

SMALL, SMALL_SHARE = "auto-small", 0.2
"""The kernel as it plans itself within that share of the memory that the seed's setting takes."""

ARMS = ("gspmd", "gspmd-fixed", "seed", "auto", "one-pass")
"""What is compared: see the details of the command."""


@dataclass(frozen=True)
class Cell:
    """One measurement: sizes and layout.

    Attributes:
      rows: of the micro-batch.
      length: tokens of a row.
      features: of a hidden state.
      vocab: entries of the table.
      batch: axes that shard rows; `context` shards the length.
      table: axes that shard features of the table.
      chunks: chunks of the length in which the compiler's own head takes it.
      steps: chunks in which a device takes its own tokens, in the other arms.
      needed: share of the tokens whose log-probs are needed.
      dtype: of hidden states and table.
      sizes: devices along each axis.
    """

    rows: int
    length: int
    features: int
    vocab: int
    batch: tuple[str, ...] = ("fsdp", "expert")
    table: tuple[str, ...] = AXES
    chunks: int = 64
    steps: int = 16
    needed: float = 1.0
    dtype: str = "float32"
    sizes: tuple[int, ...] = (2, 2, 2)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Devices along each axis."""
        return dict(zip(AXES, self.sizes, strict=True))

    @property
    def devices(self) -> int:
        """All of them."""
        return _product(self.axis_sizes.values())

    @property
    def local_tokens(self) -> int:
        """Tokens that a device holds."""
        return self.rows * self.length // _product(self.axis_sizes[axis] for axis in (*self.batch, "context"))

    @property
    def chunk_tokens(self) -> int:
        """Tokens of its own that a device takes at a time."""
        return self.local_tokens // self.steps

    @property
    def ideal_flops(self) -> float:
        """Matmul FLOPs of four matmuls of the needed tokens, divided over all devices."""
        return 8.0 * self.rows * self.length * self.needed * self.vocab * self.features / self.devices


CELLS = {
    "L1k": Cell(4, 1024, 320, 7168),
    "few-tokens": Cell(4, 64, 320, 14336, chunks=16, steps=4),
    "idle-axis": Cell(4, 1024, 320, 7168, batch=("fsdp",), table=("fsdp", "expert")),
    "needed-50": Cell(4, 1024, 320, 7168, needed=0.5),
}
"""By name: many tokens, few, an axis that shards no tokens, and half of the tokens not needed."""

FULL_CELL = Cell(64, 65536, 4096, 248320, dtype="bfloat16", steps=16, sizes=(32, 4, 2))
"""A micro-batch of a large run on 256 devices: compiled ahead of time, never run."""


@dataclass
class Arm:
    """One arm, compiled.

    Attributes:
      run: the compiled program; takes what :func:`arguments` gives.
      report: what it executes.
      strategy: how it splits the work, in words.
      predicted: bytes by the closed form, or None for the compiler's own.
    """

    run: Any
    report: HloReport
    strategy: str
    predicted: float | None


def mesh_of(cell: Cell, devices: Any) -> Mesh:
    """The cell's mesh on ``devices``."""
    import numpy as np
    from jax.sharding import Mesh

    return Mesh(np.array(devices)[: cell.devices].reshape(cell.sizes), AXES)


def compiled(cell: Cell, name: str, mesh: Mesh) -> Arm:
    """The arm ``name``: value and gradient of ``sum(w * logp + v * entropy)`` by hidden states and table."""
    import jax

    from steptrace_kernels.hlo_report import hlo_report

    specs = _arguments_specs(cell, mesh)
    loss, strategy, predicted = _loss(cell, name, mesh)
    shardings = (specs[0].sharding, specs[1].sharding)
    program = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), out_shardings=(None, shardings))
    done = program.lower(*specs).compile()
    turns = -(-round(cell.local_tokens * cell.needed) // cell.chunk_tokens)
    report = hlo_report(done, table=(cell.vocab, cell.features), unknown_trips=turns)
    return Arm(done, report, strategy, predicted)


def figures(cell: Cell, arm: Arm) -> dict[str, Any]:
    """What the compiled program tells of itself."""
    found = arm.report
    return {
        "bytes": found.bytes,
        "predicted_bytes": arm.predicted,
        "table_allgathers": found.count("all-gather", table=True),
        "table_allreduces": found.count("all-reduce", table=True),
        "table_reduce_scatters": found.count("reduce-scatter", table=True),
        "table_exchanges": found.count("all-to-all", table=True),
        "other_collectives": found.count(table=False) - found.count("collective-permute", table=False),
        "permutes": found.count("collective-permute"),
        "temp_bytes": found.temp_bytes,
        "matmul_over_ideal": found.matmul_flops / cell.ideal_flops,
        "covered": found.covered(table=True),
        "trip_counts_told": found.exact,
        "strategy": arm.strategy,
    }


def arguments(cell: Cell, mesh: Mesh) -> tuple[Any, ...]:
    """Hidden states, table, tokens, weights of log-prob and entropy, and which tokens are needed; random."""
    import jax
    import numpy as np

    rng = np.random.default_rng(0)
    shape = (cell.rows, cell.length)
    shard = cell.length // cell.axis_sizes["context"]
    needed = np.broadcast_to(np.arange(cell.length) % shard >= round(shard * (1 - cell.needed)), shape)
    arrays = (
        rng.normal(size=(*shape, cell.features)).astype(np.float32),
        (rng.normal(size=(cell.vocab, cell.features)) / np.sqrt(cell.features)).astype(np.float32),
        rng.integers(0, cell.vocab, shape).astype(np.int32),
        *rng.normal(size=(2, *shape)).astype(np.float32),
        needed,
    )
    specs = _arguments_specs(cell, mesh)
    return tuple(jax.device_put(x.astype(s.dtype), s.sharding) for x, s in zip(arrays, specs, strict=True))


def _arguments_specs(cell: Cell, mesh: Mesh) -> tuple[Any, ...]:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    shaped: Any = jax.ShapeDtypeStruct
    spec: Any = PartitionSpec
    by_token = spec(cell.batch, "context")
    shape = (cell.rows, cell.length)
    kinds = (
        ((*shape, cell.features), cell.dtype, by_token),
        ((cell.vocab, cell.features), cell.dtype, spec(None, cell.table)),
        (shape, "int32", by_token),
        (shape, "float32", by_token),
        (shape, "float32", by_token),
        (shape, "bool", by_token),
    )
    return tuple(shaped(s, d, sharding=NamedSharding(mesh, p)) for s, d, p in kinds)


def _loss(cell: Cell, name: str, mesh: Mesh) -> tuple[Callable[..., Any], str, float | None]:
    """The loss of an arm, how it splits the work, and the bytes predicted."""
    import jax.numpy as jnp

    from steptrace_kernels.logps import Head, Layout, Strategy, fused_token_loss, logps
    from steptrace_kernels.logps.baselines import chunked, fixed
    from steptrace_kernels.logps.choose import described
    from steptrace_kernels.logps.prepare import formula_of, inputs_of

    layout = Layout(batch=cell.batch, sequence=("context",), table_embed=cell.table)
    some = cell.needed < 1

    def baseline(hidden: Any, table: Any, tokens: Any, needed: Any) -> Any:
        head = Head(table)
        formula = formula_of(hidden, head, None, None, None)
        inputs = inputs_of(tokens, None, needed if some else None, 1.0, formula)
        if name == "gspmd":
            return chunked(hidden, head, inputs, formula, cell.length // cell.chunks)
        chunk = cell.length // cell.axis_sizes["context"] // cell.steps
        return fixed(hidden, head, inputs, formula, chunk, mesh=mesh, layout=layout)

    def total(out: Any, w: Any, v: Any) -> Any:
        return jnp.sum(w * out.logp + v * out.entropy), out

    if name.startswith("gspmd"):
        return lambda h, t, ids, w, v, need: total(baseline(h, t, ids, need), w, v), "the compiler's own", None
    made = _planned(cell, name, layout)
    assert isinstance(made.strategy, Strategy)
    words, predicted = described(made.strategy), None if made.cost is None else made.cost.bytes
    strategy: Any = made.strategy if name in ("seed", SMALL) else "auto"
    given = {"mesh": mesh, "layout": layout, "strategy": strategy, "chunk_tokens": cell.chunk_tokens}

    def kernel(h: Any, t: Any, ids: Any, w: Any, v: Any, need: Any) -> Any:
        needed = {"needed": need} if some else {}
        if name != "one-pass":
            return total(logps(h, ids, Head(t), **given, **needed), w, v)
        fused = fused_token_loss(lambda logp, entropy, w, v: w * logp + v * entropy)
        return fused(h, ids, Head(t), w, v, **given, **needed)

    return kernel, words, predicted


def _planned(cell: Cell, name: str, layout: Any) -> Any:
    """The plan of an arm of the kernel."""
    import jax

    from steptrace_kernels.logps import Head, plan
    from steptrace_kernels.logps.baselines import SEED

    shaped: Any = jax.ShapeDtypeStruct

    def of(strategy: Any, memory_limit: int | None = None) -> Any:
        return plan(
            shaped((cell.rows, cell.length, cell.features), cell.dtype),
            Head(shaped((cell.vocab, cell.features), cell.dtype)),
            mesh=cell.axis_sizes,
            layout=layout,
            strategy=strategy,
            one_pass=name == "one-pass",
            needed=cell.needed if cell.needed < 1 else False,
            chunk_tokens=cell.chunk_tokens,
            memory_limit=memory_limit,
        )

    if name != SMALL:
        return of(SEED if name == "seed" else "auto")
    return of("auto", int(SMALL_SHARE * of(SEED).cost.memory))


def _product(numbers: Any) -> int:
    import math

    return math.prod(numbers)


def reference(cell: Cell, arrays: tuple[Any, ...]) -> dict[str, np.ndarray]:
    """Log-probs, entropies and gradients in float64 from whole logits, a row of tokens at a time, in NumPy."""
    import numpy as np

    hidden, table, tokens, w, v, needed = (np.asarray(x) for x in arrays)
    hidden, table, w, v = (x.astype(np.float64) for x in (hidden, table, w, v))
    logp, entropy = np.zeros((2, *tokens.shape))
    d_hidden, d_table = np.zeros_like(hidden), np.zeros_like(table)
    for row in range(cell.rows):
        for start in range(1, cell.length, 256):
            at = np.arange(start, min(start + 256, cell.length))
            at = at[needed[row, at]]
            x, every = hidden[row, at - 1], np.arange(len(at))
            z = x @ table.T
            z -= z.max(axis=1, keepdims=True)
            z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
            p = np.exp(z)
            logp[row, at] = z[every, tokens[row, at]]
            entropy[row, at] = -np.sum(p * z, axis=1)
            dz = -p * (w[row, at] + v[row, at] * entropy[row, at])[:, None] - v[row, at][:, None] * p * z
            dz[every, tokens[row, at]] += w[row, at]
            d_table += dz.T @ x
            d_hidden[row, at - 1] += dz @ table
    return {"logp": logp, "entropy": entropy, "hidden": d_hidden, "table": d_table}


def error(result: Any, expected: dict[str, np.ndarray]) -> float:
    """The largest error of a value or gradient, as a part of the largest number of its array."""
    import numpy as np

    (_, out), gradients = result
    found = {"logp": out.logp, "entropy": out.entropy, "hidden": gradients[0], "table": gradients[1]}
    worst = [
        np.max(np.abs(np.asarray(found[name], np.float64) - want)) / np.max(np.abs(want))
        for name, want in expected.items()
    ]
    return float(max(worst))
