"""One of several processes that share eight devices: runs cases of the head and writes what all of them made.

``python head_in_processes.py RANK PROCESSES PORT FILE [no-shift]``; with one process there is nothing to connect to.
With ``no-shift`` none gets its neighbour's edge. The devices of a process are set from outside, in ``XLA_FLAGS``.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
from head_cases import STRATEGIES, case
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from logps_oracle import head_of, mesh_222

from steptrace_kernels.logps import logps, shifts


def spread(mesh, array: np.ndarray, *spec) -> jax.Array:
    """An array of which each process holds its own part."""
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def values_and_gradients(mesh, layout, strategy) -> dict[str, jax.Array]:
    """Log-probs, entropies, lse and gradients of the case, on arrays that no process holds whole."""
    given = case()
    head = head_of(given)
    hidden = spread(mesh, given.hidden, layout.batch, layout.sequence)
    tokens = spread(mesh, given.tokens, layout.batch, layout.sequence)
    segments = spread(mesh, given.segment_ids, layout.batch, layout.sequence)
    weight = spread(mesh, given.weight, None, layout.table_embed)

    @jax.jit
    def both(hidden, weight, bias, tokens, segments, by):
        def loss(hidden, weight, bias):
            out = logps(
                hidden,
                tokens,
                type(head)(weight, bias),
                mesh=mesh,
                layout=layout,
                strategy=strategy,
                segment_ids=segments,
                return_lse=True,
            )
            return sum(jnp.sum(w * x) for w, x in zip(by, out, strict=True)), out

        gradients, out = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(hidden, weight, bias)
        return dict(zip(("logp", "entropy", "lse", "d_hidden", "d_weight", "d_bias"), (*out, *gradients), strict=True))

    return both(hidden, weight, jnp.asarray(given.bias), tokens, segments, given.by)


def main(rank: int, processes: int, port: str, file: str, *more: str) -> None:
    """Run every strategy, and let the first process write."""
    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    assert (len(jax.devices()), len(jax.local_devices())) == (8, 8 // processes)
    if "no-shift" in more:
        shifts._from_neighbour = lambda edge, axes, step: jnp.zeros_like(edge)
    mesh = mesh_222()
    made = {}
    for name, (layout, strategy) in STRATEGIES.items():
        out = values_and_gradients(mesh, layout, strategy)
        whole = multihost_utils.process_allgather(out, tiled=True)
        made |= {f"{name}/{key}": np.asarray(array) for key, array in whole.items()}
    if rank == 0:
        np.savez(file, **made)
    if processes > 1:
        multihost_utils.sync_global_devices("done")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
