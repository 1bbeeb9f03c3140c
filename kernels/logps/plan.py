"""Plans, before there are arrays or devices: from shapes and the sizes of mesh axes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from jax.sharding import AbstractMesh, Mesh

from steptrace_kernels.logps import validate
from steptrace_kernels.logps.choose import Plan, choose, compared
from steptrace_kernels.logps.fallback import Fallback, Reason
from steptrace_kernels.logps.forward import Inputs
from steptrace_kernels.logps.head import Head, Layout, Strategy
from steptrace_kernels.logps.mesh import manual_axes
from steptrace_kernels.logps.prepare import DEFAULT_CHUNK, Call, formula_of, parts_of, setting_of


def plan(
    hidden: Any,
    head: Head,
    *,
    mesh: Mesh | AbstractMesh | Mapping[str, int] | None,
    layout: Layout | None,
    memory_limit: int | None = None,
    one_pass: bool = False,
    gradient: bool = True,
    needed: bool | float = False,
    chunk_tokens: int | None = None,
    strategy: Literal["auto"] | Strategy = "auto",
    compute_dtype: Any = None,
    hidden_sums: Any = None,
) -> Plan:
    """What :func:`steptrace_kernels.logps.logps` would do, what it would cost, and why; nothing is computed.

    ``strategy="auto"`` there takes the same, without a limit of memory; to have one, pass this plan's ``strategy``.
    Bytes are predicted as if every pass made its own gathers; the call, which does not know how many tokens are needed,
    predicts and chooses as if all were.

    Args:
      hidden: an array, or a ``jax.ShapeDtypeStruct``, [rows, length, features].
      head: of arrays or such structs.
      mesh: a mesh, or devices along each axis by its name; None is planned as the call without a mesh would be.
      layout: what is sharded over which axes.
      memory_limit: bytes that a device has beside arguments and results; None for no limit.
      one_pass: plan for a loss in one pass.
      gradient: plan for value and gradient, else for the values alone. A training step should take one and the same
        strategy for both, so that its log-probs are equal bit by bit.
      needed: the largest share of a device's tokens that is needed, above 0 and at most 1, where not all are; True
        for a share that is not known, and predicted as if all were.
      chunk_tokens: as in the call.
      strategy: "auto", or one to be compared with what would have been chosen.
      compute_dtype: as in the call.
      hidden_sums: as in the call.

    Raises:
      LogpsError: arguments do not fit together, or nothing fits into ``memory_limit``.
    """
    validate.check_head(hidden, head)
    validate.check_choices(strategy, "error", chunk_tokens, one_pass=one_pass)
    validate.check_layout(layout)
    validate.check_positive("memory_limit", memory_limit)
    validate.check_share("needed", needed)
    if 0 in hidden.shape:
        raise validate.LogpsError(f"there is no token to plan for: hidden is {list(hidden.shape)}")
    if isinstance(mesh, Mapping):
        validate.check_devices(mesh)
        mesh = AbstractMesh(tuple(mesh.values()), tuple(mesh))
    manual = () if mesh is None else manual_axes(mesh)
    if mesh is None or layout is None or manual:
        reason = Reason.NO_MESH if mesh is None else Reason.INSIDE_SHARD_MAP if manual else Reason.NO_LAYOUT
        return Plan(None, None, (), fallback_reason=Fallback(reason, ", ".join(manual)))
    formula = formula_of(hidden, head, None, None, compute_dtype)
    inputs = Inputs(hidden, None, hidden if needed else None, None)
    call = Call(hidden, head, inputs, formula, None, hidden.shape[:2], chunk_tokens or DEFAULT_CHUNK)
    by_hand = Strategy() if strategy == "auto" else strategy
    setting = setting_of(call, mesh, layout, by_hand, chunk_tokens, hidden_sums)
    parts = parts_of(call, one_pass=one_pass, gradient=gradient, needed=float(needed or 1))
    if strategy == "auto":
        return choose(setting, parts, memory_limit)
    return compared(setting, parts, setting.strategy, memory_limit)
