"""GRPO with the pipelined step boundary, put together by hand: what the checks are tried on."""

from __future__ import annotations

from dataclasses import replace

from steptrace.check import apply_law, peel_first
from steptrace.ir import Loop, Op, Program
from steptrace.lang.reference import resolve

AHEAD = ("dispatch", "take", "reward", "advantages", "pack", "next_mb.first", "ref_logps.first")
HOST = (
    *("fwd_bwd.first", "micro_batches", "stage_fwd_bwd", "apply_deferred_update", "start_metrics"),
    *("save_checkpoint", "sync_weights", "commit", "fwd_bwd_staged.first", "fetch_metrics", "log"),
    *("on_step_end", "free"),
)


def source(staleness: int = 1) -> Program:
    """The plain step."""
    return resolve(f"grpo{{staleness={staleness}}}")


def reference(plain: Program, capacity: int = 2) -> Program:
    """The plain step with the laws of the boundary in place."""
    program = peel_first(plain, "micro_batches")
    for op, law in (("update", "deferred-update"), ("get_metrics", "start-fetch"), ("fwd_bwd.first", "stage")):
        program = apply_law(program, op, law)
    resources = tuple(replace(r, capacity=capacity) if r.name == "host" else r for r in program.resources)
    return replace(program, resources=resources)


def pipelined(plain: Program, capacity: int = 2) -> Program:
    """The boundary: the next step is taken, packed and sent ahead while this one ends."""
    nodes = {node.id: node for node in reference(plain, capacity).body}
    body = [nodes["on_step_begin"]]
    body += [replace(nodes[id], lane="packer", shift=1) for id in AHEAD]
    body += [
        replace(nodes[id], shift=1) if id in ("stage_fwd_bwd", "fwd_bwd_staged.first") else nodes[id] for id in HOST
    ]
    return replace(reference(plain, capacity), body=tuple(body))


def moved(program: Program, op_id: str, *, after: str = "", before: str = "", **changes: object) -> Program:
    """The program with an op of its step moved and changed."""
    node = next(node for node in program.body if node.id == op_id)
    rest = [other for other in program.body if other.id != op_id]
    at = program.body.index(node)
    if after or before:
        at = [other.id for other in rest].index(after or before) + bool(after)
    return replace(program, body=(*rest[:at], replace(node, **changes), *rest[at:]))


def without(program: Program, op_id: str) -> Program:
    """The program without an op, wherever it stands."""

    def visit(nodes: tuple[Op | Loop, ...]) -> tuple[Op | Loop, ...]:
        kept = (node for node in nodes if node.id != op_id)
        return tuple(replace(node, body=visit(node.body)) if isinstance(node, Loop) else node for node in kept)

    return replace(program, body=visit(program.body))
