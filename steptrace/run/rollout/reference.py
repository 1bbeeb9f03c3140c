"""The frozen reference policy: log-probs of micro-batches under parameters that never change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import chex
import jax
import numpy as np
from jax.sharding import Mesh

from steptrace.diag.rollout import SamplingOptionError
from steptrace.lang.records import MicroBatch
from steptrace.run.models.call import packed_logits
from steptrace.run.models.split import SplitModel, split_model
from steptrace.run.rollout.weights import owned_copy
from steptrace.run.trainer.heads import HeadName, model_logps
from steptrace.run.trainer.mesh import Rules, placement
from steptrace_kernels.logps.dense import dense_logps

_READ = ("tokens", "positions", "segment_ids")


class _HasLogp(Protocol):
    """A result that carries log-probs."""

    @property
    def logp(self) -> jax.Array: ...


class FrozenReference:
    """Log-probs of packed sequences under a copy of a model's parameters.

    Satisfies ``steptrace.lang.parts.Reference``. The copy is taken when it is constructed: a trainer that
    donates or updates the original does not touch it.

    Args:
      model: a flax model ``model(tokens, positions, segment_ids) -> logits``, or a :class:`SplitModel`.
      temperature: the one the completions are sampled with; all log-probs of a step use the same.
      logps_fn: ``logps_fn(logits, tokens, segment_ids, temperature=...)`` with a result that has ``logp``.
      head: what makes log-probs, see `trainer.heads.HeadName`; another than ``"dense"`` makes no use of ``logps_fn``.
      mesh, rules: where parameters and micro-batches lie, as for the trainer; None for one device.

    Raises:
      SamplingOptionError: ST477, the temperature is not finite and above 0.
      MeshError: ST362, the parameters cannot be sharded by the rules.
    """

    def __init__(
        self,
        model: Any,
        *,
        temperature: float = 1.0,
        logps_fn: Callable[..., _HasLogp] = dense_logps,
        head: HeadName = "dense",
        mesh: Mesh | None = None,
        rules: Rules = (),
    ) -> None:
        if not (math.isfinite(temperature) and temperature > 0):
            raise SamplingOptionError(f"temperature is {temperature}, for log-probs it must be finite and above 0")
        split = model if isinstance(model, SplitModel) else split_model(model)
        self._place = place = placement(mesh, rules, split.params)
        params, rest = owned_copy((split.params, split.rest))
        self._params, self._rest = place.put(params, place.params), place.put(rest, place.whole)
        self._traces, self._sharded = 0, head != "dense"

        def traced(
            params: Any, rest: Any, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array
        ) -> jax.Array:
            self._traces += 1
            model = split.build(params, rest)
            if head != "dense":
                batch = {"tokens": tokens, "positions": positions, "segment_ids": segment_ids}
                return model_logps(model, batch, temperature, head).logp
            logits = packed_logits(model, tokens, positions, segment_ids)
            return logps_fn(logits, tokens, segment_ids, temperature=temperature).logp

        self._jitted = place.entered(jax.jit(traced))

    def logps(self, micro_batch: MicroBatch) -> jax.Array:
        """float32 [rows, length]: log-prob of each token given those before it in its segment.

        0 on the first token of a sequence and on padding. Returns at dispatch.
        """
        arrays = [np.asarray(micro_batch.arrays[name]) for name in _READ]
        chex.assert_rank(arrays, 2)
        chex.assert_equal_shape(arrays)
        if self._place.whole is not None:
            placed = self._place.batch(dict(zip(_READ, arrays, strict=True)))
            arrays = [placed[name] for name in _READ]
        logps: jax.Array = self._jitted(self._params, self._rest, *arrays)
        return logps

    def info(self) -> Mapping[str, Any]:
        """``compiles``: how often the log-probs were compiled so far; ``capabilities``: whether a head was chosen."""
        return {"compiles": {"logps": self._traces}, "capabilities": {"logps_head": self._sharded}}
