"""From a model's hidden states to log-probs: which head of ``steptrace_kernels.logps`` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import jax

from steptrace.diag.training import NoHeadError
from steptrace.run.models.call import packed_logits
from steptrace.run.trainer.mesh import POSITION_AXES, ROW_AXES, default_spec, dividing
from steptrace_kernels.logps import Head, Layout, Logps, dense_logps, logps
from steptrace_kernels.logps.mesh import current_mesh, sizes

HeadName = Literal["dense", "shard_map"]
"""``"dense"`` makes all logits, as the model's own head does; ``"shard_map"`` a chunk of them at a time, and on a
mesh sends the fewest bytes."""

HEADS = ("dense", "shard_map")


def model_logps(model: Any, batch: Mapping[str, jax.Array], temperature: float, head: HeadName = "dense") -> Logps:
    """Log-probs and entropies [rows, length] of a causal model called as ``model(tokens, positions, segment_ids)``.

    Raises:
      NoHeadError: ``head`` needs the model's hidden states, and it does not give them.
    """
    tokens, positions, segment_ids = batch["tokens"], batch["positions"], batch["segment_ids"]
    if head == "dense":
        logits = packed_logits(model, tokens, positions, segment_ids)
        return dense_logps(logits, tokens, segment_ids, temperature=temperature)
    if not (callable(getattr(model, "hidden", None)) and hasattr(model, "head_kernel")):
        raise NoHeadError(
            f"a {type(model).__name__} has no `hidden` and `head_kernel`, which the head `shard_map` takes",
            help='choose head="dense", which takes logits',
        )
    hidden = model.hidden(tokens, positions, segment_ids)
    table = model.head_kernel[...].astype(hidden.dtype)
    return logps(
        hidden,
        tokens,
        Head(table, orientation="dv"),
        layout=layout_of(hidden.shape, table.shape),
        temperature=temperature,
        segment_ids=segment_ids,
        mode="fallback",
    )


def layout_of(hidden: tuple[int, ...], table: tuple[int, ...]) -> Layout | None:
    """What is sharded over which axes of the present mesh: micro-batches and a parameter as a trainer places them.

    Rules of the trainer are not known here: a table that a rule shards otherwise is moved to this layout first.

    Args:
      hidden: [rows, length, features].
      table: [features, vocab].

    Returns:
      The layout; None without a mesh.
    """
    mesh = current_mesh()
    return None if mesh is None else layout_on(sizes(mesh), hidden, table)


def layout_on(devices: Mapping[str, int], hidden: tuple[int, ...], table: tuple[int, ...]) -> Layout:
    """As `layout_of`, of a mesh with so many devices along each axis."""
    embed, vocab = (() if axis is None else (str(axis),) for axis in default_spec("head_kernel", table, devices))
    return Layout(
        batch=dividing(ROW_AXES, hidden[0], devices),
        sequence=dividing(POSITION_AXES, hidden[1], devices),
        table_vocab=vocab,
        table_embed=embed,
    )
