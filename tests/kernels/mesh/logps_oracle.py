"""Log-probs of a head and their gradients in float64, in NumPy, from whole logits: what the kernel is measured by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from steptrace_kernels.logps import Head, Layout, RMSNorm, logps

EPSILON = 1e-6


@dataclass(frozen=True)
class Case:
    """Arguments of a call; the table is [vocab, features]. ``by`` are cotangents of logp, entropy and lse."""

    hidden: np.ndarray
    tokens: np.ndarray
    weight: np.ndarray
    by: np.ndarray
    bias: np.ndarray | None = None
    scale: np.ndarray | None = None
    segment_ids: np.ndarray | None = None
    needed: np.ndarray | None = None
    temperature: Any = 1.0
    soft_cap: float | None = None
    logit_scale: float | None = None

    def but(self, **changes: Any) -> Case:
        return replace(self, **changes)


def make(rows=4, length=8, features=8, vocab=24, *, seed=0, bias=False, norm=False, dtype=np.float32, **more) -> Case:
    """A case of random numbers."""
    rng = np.random.default_rng(seed)
    return Case(
        rng.normal(size=(rows, length, features)).astype(dtype),
        rng.integers(0, vocab, (rows, length)).astype(np.int32),
        (rng.normal(size=(vocab, features)) * 0.7).astype(dtype),
        rng.normal(size=(3, rows, length)).astype(np.float32),
        bias=rng.normal(size=vocab).astype(dtype) if bias else None,
        scale=(rng.normal(size=features) + 1).astype(dtype) if norm else None,
        **more,
    )


def valid(case: Case) -> np.ndarray:
    """Which tokens have a log-prob."""
    out = np.zeros(case.tokens.shape, bool)
    out[:, 1:] = True
    if case.segment_ids is not None:
        out[:, 1:] = (case.segment_ids[:, 1:] == case.segment_ids[:, :-1]) & (case.segment_ids[:, 1:] != 0)
    return out if case.needed is None else out & case.needed


def oracle(case: Case) -> dict[str, np.ndarray]:
    """Values and gradients of ``sum(by[0] * logp + by[1] * entropy + by[2] * lse)``, token by token."""
    hidden, weight = case.hidden.astype(np.float64), case.weight.astype(np.float64)
    scale = np.ones(hidden.shape[2]) if case.scale is None else case.scale.astype(np.float64)
    bias = np.zeros(len(weight)) if case.bias is None else case.bias.astype(np.float64)
    temperature = np.broadcast_to(np.asarray(case.temperature, np.float64), case.tokens.shape)
    logp, entropy, lse = np.zeros((3, *case.tokens.shape))
    d_hidden, d_weight, d_bias, d_scale = (np.zeros(x.shape) for x in (hidden, weight, bias, scale))
    for r, i in np.argwhere(valid(case)):
        h = hidden[r, i - 1]
        root = np.sqrt(np.mean(h * h) + EPSILON) if case.scale is not None else 1.0
        x = h / root * scale
        raw = (weight @ x + bias) * (case.logit_scale or 1)
        live = np.isfinite(raw)
        cap = case.soft_cap
        capped = np.where(live, raw if cap is None else cap * np.tanh(np.where(live, raw, 0) / cap), -np.inf)
        z = capped / temperature[r, i]
        top = z[live].max()
        log_p = z - top - np.log(np.exp(z[live] - top).sum())
        p = np.exp(log_p)
        known = np.where(live, log_p, 0)
        logp[r, i], entropy[r, i] = log_p[case.tokens[r, i]], -np.sum(p * known)
        lse[r, i] = z[case.tokens[r, i]] - logp[r, i]
        a, e, s = case.by[:, r, i].astype(np.float64)
        dz = a * (np.arange(len(p)) == case.tokens[r, i]) + (s - a) * p - e * p * (known + entropy[r, i])
        draw = dz / temperature[r, i] * (1 if cap is None else np.where(live, 1 - (capped / cap) ** 2, 0))
        draw *= case.logit_scale or 1
        d_weight += np.outer(draw, x)
        d_bias += draw
        dx = draw @ weight
        d_scale += dx * h / root
        dn = dx * scale
        d_hidden[r, i - 1] += dn if case.scale is None else dn / root - h * (dn @ h) / (len(h) * root**3)
    out = {"logp": logp, "entropy": entropy, "lse": lse, "d_hidden": d_hidden, "d_weight": d_weight}
    out |= {} if case.bias is None else {"d_bias": d_bias}
    return out | ({} if case.scale is None else {"d_scale": d_scale})


def mesh_222() -> Mesh:
    """Axes f (of the parameters and batch), c (of the sequence) and e, of two devices each."""
    return Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("f", "c", "e"))


def head_of(case: Case, orientation: str = "vd") -> Head:
    weight = case.weight if orientation == "vd" else case.weight.T
    return Head(weight, case.bias, orientation, None if case.scale is None else RMSNorm(case.scale, EPSILON))


def by_kernel(layout: Layout, *, orientation: str = "vd", function=logps, **settings):
    """A compiled function of a case, of one set of shapes, that gives what ``oracle`` does."""
    settings = {"mesh": mesh_222(), "layout": layout, "return_lse": True} | settings

    @partial(jax.jit, static_argnums=(5, 6))
    def values_and_gradients(hidden, head, tokens, by, arrays, soft_cap, logit_scale):
        def loss(hidden, head):
            out = function(hidden, tokens, head, soft_cap=soft_cap, logit_scale=logit_scale, **arrays, **settings)
            return sum(jnp.sum(w * x) for w, x in zip(by, out, strict=True)), out

        (_, out), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(hidden, head)
        return out, gradients

    def call(case: Case) -> dict[str, np.ndarray]:
        arrays = {"segment_ids": case.segment_ids, "needed": case.needed, "temperature": case.temperature}
        arrays = {name: x for name, x in arrays.items() if x is not None}
        out, (d_hidden, d_head) = values_and_gradients(
            case.hidden, head_of(case, orientation), case.tokens, case.by, arrays, case.soft_cap, case.logit_scale
        )
        d_weight = d_head.weight if orientation == "vd" else d_head.weight.T
        found = {**out._asdict(), "d_hidden": d_hidden, "d_weight": d_weight, "d_bias": d_head.bias}
        found["d_scale"] = None if d_head.norm is None else d_head.norm.scale
        return {name: np.asarray(x, np.float64) for name, x in found.items() if x is not None}

    return call


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 2e-6) -> None:
    """Each within ``tolerance`` of the largest number of its array; zeros of values are zeros."""
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        size = max(np.max(np.abs(want), initial=0), 1e-3)
        np.testing.assert_allclose(found[name] / size, want / size, rtol=0, atol=tolerance, err_msg=name)
