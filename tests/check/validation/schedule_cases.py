"""Schedules written by hand, as edits of a traced program. No pass and no motion has a part in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from steptrace.ir import BUILTIN, RESOURCES, Flag, Loop, Node, Not, Op, Origin, Program, Result, Type, Use, effects_of
from steptrace.programs.grpo import grpo

AHEAD = ("dispatch", "take", "reward", "advantages", "pack")
FIRST = ("next_mb", "ref_logps", "fwd_bwd")


def source(**params: object) -> Program:
    """`grpo{staleness=1}`, or with other parameters."""
    return grpo.trace(**{"staleness": 1, **params})


def body(program: Program) -> dict[str, Node]:
    """The nodes of a step by id."""
    return {node.id: node for node in program.body}


def arranged(program: Program, nodes: list[Node]) -> Program:
    """The program with this step, and with the resources that its ops touch."""
    changed = replace(program, body=tuple(nodes))
    touched = {e.resource for op in changed.ops() for e in effects_of(op, BUILTIN[op.kind], changed.contract)}
    known = program.resource_table()
    added = (RESOURCES[name] for name in RESOURCES if name in touched and name not in known)
    return replace(changed, resources=(*program.resources, *added))


def edited(program: Program, op_id: str, edit: Callable[[Op], Op]) -> Program:
    """The program with one op edited, wherever in the step it stands."""

    def walk(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(
            replace(node, body=walk(node.body)) if isinstance(node, Loop) else edit(node) if node.id == op_id else node
            for node in nodes
        )

    return replace(program, body=walk(program.body))


def without(program: Program, op_id: str) -> Program:
    """The program without a top-level op."""
    return replace(program, body=tuple(node for node in program.body if node.id != op_id))


def placed(program: Program, op_id: str, *, after: str | None = None, before: str | None = None) -> Program:
    """The program with a top-level op, or a loop, moved to another place of its step."""
    moved = body(program)[op_id]
    nodes = [node for node in program.body if node.id != op_id]
    at = next(n for n, node in enumerate(nodes) if node.id == (after or before))
    nodes.insert(at + 1 if after else at, moved)
    return replace(program, body=tuple(nodes))


def row(kind: str, op_id: str, like: Node, **fields: object) -> Op:
    """An op of a schedule row, on the line of the op it comes from."""
    results = tuple(Result(given.name, Type(given.base)) for given in BUILTIN[kind].results)
    assert isinstance(like, Op)
    return Op(op_id, kind, results=results, loc=like.loc, **fields)  # type: ignore[arg-type]


def peeled(op: Op, renames: dict[str, str]) -> Op:
    """The copy of a loop's op that stands for micro-batch 0."""
    return replace(
        op,
        id=f"{op.id}.first",
        micro=0,
        origin=Origin(op.id),
        args=tuple(replace(use, name=renames.get(use.name, use.name)) for use in op.args),
        results=tuple(replace(result, name=renames[result.name]) for result in op.results),
    )


def pipelined(program: Program | None = None, *, staged: str = "before") -> Program:
    """The pipelined boundary of `grpo`, with the stage before the update, after it, or without one."""
    program = program or source()
    nodes = body(program)
    loop = nodes["micro_batches"]
    assert isinstance(loop, Loop)
    inner = {node.id: node for node in loop.body if isinstance(node, Op)}
    defer = (("closes", "defer"),)
    renames = {result.name: f"{result.name}.first" for op in inner.values() for result in op.results}
    first = {name: peeled(inner[name], renames) for name in FIRST}
    packer = [
        replace(node, lane="packer", shift=1) for node in (*(nodes[name] for name in AHEAD), *map(first.get, FIRST[:2]))
    ]
    loop = replace(loop, start=1, body=(inner["next_mb"], inner["ref_logps"], replace(inner["fwd_bwd"], attrs=defer)))
    call = replace(first["fwd_bwd"], attrs=defer)
    stage = row("stage_fwd_bwd", "stage_fwd_bwd.first", call, args=call.args, origin=Origin("fwd_bwd", "stage"))
    stage = replace(stage, micro=0, shift=1)
    sent = row("fwd_bwd_staged", "fwd_bwd_staged.first", call, args=(Use("request"),), attrs=defer)
    sent = replace(sent, origin=Origin("fwd_bwd", "staged"), when=Flag("staged"), micro=0, shift=1)
    if staged == "none":
        call, held, send = replace(call, shift=1), [], [replace(call, shift=1)]
        here: list[Node] = []
    else:
        here = [replace(call, when=Not(Flag("staged")), origin=Origin("fwd_bwd", "whole"))]
        held, send = [stage], [sent]
    apply = row("apply_deferred_update", "apply_deferred_update", nodes["update"], origin=Origin("update"))
    update = [*held, apply] if staged == "before" else [apply, *held]
    start = row("start_metrics", "start_metrics", nodes["get_metrics"], origin=Origin("get_metrics", "start"))
    fetch = row("fetch_metrics", "fetch_metrics", nodes["get_metrics"], origin=Origin("get_metrics", "fetch"))
    tail = ("log", "on_step_end", "free")
    kept = ("save_checkpoint", "sync_weights", "commit")
    return arranged(
        program,
        [
            *packer,
            nodes["on_step_begin"],
            *here,
            loop,
            *update,
            start,
            *(nodes[name] for name in kept),
            *send,
            fetch,
            *(nodes[name] for name in tail),
        ],
    )


def saving_late(program: Program, lane: str = "io") -> Program:
    """Checkpoints copied at their place and written by another lane."""
    whole = body(program)["save_checkpoint"]
    assert isinstance(whole, Op)
    copied = row("snapshot_checkpoint", "snapshot_checkpoint", whole, origin=Origin(whole.id, "snapshot"))
    written = row("write_checkpoint", "write_checkpoint", whole, origin=Origin(whole.id, "write"), lane=lane)
    return _in_place_of(program, whole, [replace(op, when=whole.when) for op in (copied, written)])


def syncing_late(program: Program) -> Program:
    """Weights copied at their place, transferred and applied by another lane."""
    whole = body(program)["sync_weights"]
    assert isinstance(whole, Op)
    copied = replace(row("copy_weights", "copy_weights", whole, origin=Origin(whole.id, "copy")), results=whole.results)
    moved = row("transfer_weights", "transfer_weights", whole, origin=Origin(whole.id, "transfer"), lane="io")
    applied = row("apply_weights", "apply_weights", whole, origin=Origin(whole.id, "apply"), lane="io")
    return _in_place_of(program, whole, [copied, moved, applied])


def fused(program: Program) -> Program:
    """The update carried by the last call of the step."""
    changed = edited(program, "fwd_bwd", lambda op: replace(op, attrs=(("closes", "update"),)))
    return without(changed, "update")


def _in_place_of(program: Program, whole: Op, parts: list[Op]) -> Program:
    nodes: list[Node] = []
    for node in program.body:
        nodes += parts if node.id == whole.id else [node]
    return arranged(program, nodes)
