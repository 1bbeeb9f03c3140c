"""Losses on packed micro-batches: the GRPO clipped objective, and cross entropy for a supervised warm-up.

Both give un-normalised sums and their count, so that the one division in ``update`` makes the result independent
of how the sequences of a step are split into micro-batches and packed into rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from steptrace.diag.training import LossSettingError
from steptrace.run.trainer.heads import HEADS, HeadName, model_logps
from steptrace_kernels.logps.dense import has_predecessor

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut off here on both sides before `exp`: e**20 is far outside any clip range, and still finite."""

AGGREGATIONS = ("token_mean", "sequence_mean")

Sums = tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]
Arrays = Mapping[str, jax.Array]


@dataclass(frozen=True)
class GrpoLoss:
    """The clipped policy objective of GRPO, with a KL penalty to the reference, over completion tokens.

    For a token with log-prob ``p`` now and ``q`` when it was sampled, advantage ``A`` and ratio
    ``r = exp(p - q)``, the term is ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)``, plus ``kl_coef`` times
    ``exp(f - p) - (f - p) - 1`` with ``f`` the reference's log-prob, minus ``entropy_coef`` times the entropy.
    ``q`` is ``old_logps`` where the micro-batch has it, else ``rollout_logps``.

    Sources: the objective, Shao et al. 2024, "DeepSeekMath", equation 3 (its sequence mean is
    ``"sequence_mean"``); the wider upper clip and the mean over tokens, Yu et al. 2025, "DAPO"; what the mean over a
    sequence's own length does to long answers, Liu et al. 2025, "Understanding R1-Zero-Like Training" (Dr. GRPO);
    the KL estimator (k3), Schulman 2020, "Approximating KL Divergence".

    Attributes:
      clip_low: how far below 1 the ratio is clipped, in [0, 1).
      clip_high: how far above 1, at least 0.
      kl_coef: weight of the KL penalty; above 0 the micro-batch needs ``ref_logps``.
      aggregation: ``"token_mean"``, each token counts the same, or ``"sequence_mean"``, each sequence does, by
        segment and not by row.
      temperature: the one that rollouts were sampled with; logits are divided by it.
      entropy_coef: weight of an entropy bonus.
      head: what makes log-probs, see `heads.HeadName`.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_coef: float = 0.0
    aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    temperature: float = 1.0
    entropy_coef: float = 0.0
    head: HeadName = "dense"

    def __post_init__(self) -> None:
        _within("clip_low", self.clip_low, 0 <= self.clip_low < 1, "in [0, 1)")
        _within("clip_high", self.clip_high, 0 <= self.clip_high < float("inf"), "at least 0")
        _within("kl_coef", self.kl_coef, 0 <= self.kl_coef < float("inf"), "at least 0")
        _within("temperature", self.temperature, 0 < self.temperature < float("inf"), "above 0")
        _within("entropy_coef", self.entropy_coef, abs(self.entropy_coef) < float("inf"), "finite")
        _within("head", self.head, self.head in HEADS, " or ".join(HEADS))
        _within("aggregation", self.aggregation, self.aggregation in AGGREGATIONS, " or ".join(AGGREGATIONS))

    @property
    def reads(self) -> tuple[str, ...]:
        """The arrays that ops of a step must have made, beside what packing gives."""
        return ("advantages", "ref_logps") if self.kl_coef else ("advantages",)

    def __call__(self, model: Any, batch: Arrays) -> Sums:
        """Loss sum, count (tokens or sequences), and metrics.

        The metrics, as means over trained tokens: ``entropy`` in nats, ``ratio``, ``clip_fraction`` (where the
        clipped term is the smaller one), ``logp_gap`` (absolute difference between the trainer's and the
        sampler's log-prob, when there are ``rollout_logps``), and ``kl`` (k3) when there are ``ref_logps``.
        """
        logp, entropy, _ = model_logps(model, batch, self.temperature, self.head)
        mask = trained(batch)
        old = batch["old_logps"] if "old_logps" in batch else batch["rollout_logps"]
        advantages = jnp.where(mask > 0, batch["advantages"], 0)
        ratio = jnp.exp(_log_ratio(logp, old, mask))
        clipped = jnp.clip(ratio, 1 - self.clip_low, 1 + self.clip_high)
        terms = -jnp.minimum(ratio * advantages, clipped * advantages)
        values = {
            "entropy": entropy,
            "ratio": ratio,
            "clip_fraction": clipped * advantages < ratio * advantages,
        }
        if "rollout_logps" in batch:
            values["logp_gap"] = jnp.abs(_log_ratio(logp, batch["rollout_logps"], mask))
        if self.kl_coef or "ref_logps" in batch:
            log_ratio = _log_ratio(batch["ref_logps"], logp, mask)
            values["kl"] = jnp.exp(log_ratio) - log_ratio - 1
            terms += self.kl_coef * values["kl"]
        if self.entropy_coef:
            terms -= self.entropy_coef * entropy
        weights, count = token_weights(mask, batch["segment_ids"], self.aggregation)
        return jnp.sum(weights * terms), count, _means(values, mask)

    def logps(self, model: Any, batch: Arrays) -> jax.Array:
        """Log-probs of the tokens [rows, length] at this loss's temperature, as ``old_logps`` wants them."""
        return model_logps(model, batch, self.temperature, self.head).logp


@dataclass(frozen=True)
class SftLoss:
    """Cross entropy on the tokens of ``loss_mask``, as a mean over tokens: for a supervised warm-up.

    Attributes:
      temperature: logits are divided by it.
      head: what makes log-probs, see `heads.HeadName`.
    """

    temperature: float = 1.0
    head: HeadName = "dense"

    def __post_init__(self) -> None:
        _within("head", self.head, self.head in HEADS, " or ".join(HEADS))
        _within("temperature", self.temperature, 0 < self.temperature < float("inf"), "above 0")

    def __call__(self, model: Any, batch: Arrays) -> Sums:
        """Loss sum, token count, and ``entropy`` in nats as a mean over trained tokens."""
        logp, entropy, _ = model_logps(model, batch, self.temperature, self.head)
        mask = trained(batch)
        return -jnp.sum(mask * jnp.where(mask > 0, logp, 0)), jnp.sum(mask), _means({"entropy": entropy}, mask)

    def logps(self, model: Any, batch: Arrays) -> jax.Array:
        """Log-probs of the tokens [rows, length]."""
        return model_logps(model, batch, self.temperature, self.head).logp


def trained(batch: Arrays) -> jax.Array:
    """float32 [rows, length]: the loss mask, but 0 where a token has nothing before it and so no log-prob."""
    return jnp.where(has_predecessor(batch["segment_ids"]), batch["loss_mask"], 0)


def token_weights(mask: jax.Array, segment_ids: jax.Array, aggregation: str) -> tuple[jax.Array, jax.Array]:
    """How much each token's term counts, [rows, length], and what all of them are divided by in the end.

    For ``"sequence_mean"`` a token weighs one over the tokens of its own sequence, and the count is the number of
    sequences with a trained token: a packed row of 8 sequences counts 8, padding and bare prompts nothing.
    """
    if aggregation == "token_mean":
        return mask, jnp.sum(mask)
    starts = jnp.pad(segment_ids[:, 1:] != segment_ids[:, :-1], ((0, 0), (1, 0)))
    place = jnp.cumsum(starts, axis=1)
    totals = jax.vmap(lambda values, ids: jax.ops.segment_sum(values, ids, mask.shape[1]))(mask, place)
    own = jnp.take_along_axis(totals, place, axis=1)
    return jnp.where(own > 0, mask / jnp.where(own > 0, own, 1), 0), jnp.sum(totals > 0)


def _log_ratio(new: jax.Array, old: jax.Array, mask: jax.Array) -> jax.Array:
    """``new - old`` on trained tokens, cut off at `MAX_LOG_RATIO`; 0 elsewhere, before anything meets `exp`."""
    return jnp.clip(jnp.where(mask > 0, new - old, 0), -MAX_LOG_RATIO, MAX_LOG_RATIO)


def _means(values: dict[str, jax.Array], mask: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Each value's sum over trained tokens, with the tokens' number; no gradient goes through a metric."""
    weight = jnp.sum(mask)
    return {
        name: (lax.stop_gradient(jnp.sum(mask * jnp.where(mask > 0, value, 0))), weight)
        for name, value in values.items()
    }


def _within(name: str, value: object, ok: bool, allowed: str) -> None:
    """Refuse a setting out of its range."""
    if not ok:
        raise LossSettingError(f"{name} must be {allowed}, not {value!r}")
