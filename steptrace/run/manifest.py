"""Checkpoints of a whole run: trainer, published weights, cursors, versions and digests, written as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax

from steptrace.check.difference import differences
from steptrace.diag.base import Note
from steptrace.diag.checkpoint import (
    NoCheckpointError,
    OtherModelError,
    OtherProgramError,
    OtherSeedError,
    OtherStampError,
)
from steptrace.diag.data import DataStateError
from steptrace.ir import Loop, Node, Program, parse, print_program
from steptrace.lang.parts import Checkpointable
from steptrace.lang.records import GroupId
from steptrace.lower.saves import SAVED_BASES
from steptrace.run.borders import checked_weights
from steptrace.run.data.cursor import DataCursor
from steptrace.run.digest import CallLog, chain
from steptrace.run.remote.part import fetched
from steptrace.run.session import Session, StepMemory
from steptrace.run.start import arrays_of, other_arrays
from steptrace.run.states import has_state
from steptrace.run.store import checkpoints as checkpoints
from steptrace.run.store import new_checkpoint, read_manifest, rewind_trained, write_manifest, writing
from steptrace.run.training_calls import fetch_early
from steptrace.run.trees import restore_tree, save_tree

_SHOWN = 5
"""How many differences of a program are told."""


def save_run(run: Session, step: int, behind: str = "") -> None:
    """Write the checkpoint of a run; nothing when the run keeps nothing.

    What it holds does not depend on the schedule: the data behind the step's prompts, not behind those drawn ahead;
    the step's metrics, where they would be fetched later.

    Args:
      run: the run.
      step: the step that was updated last.
      behind: id of the op of ``step`` that a resumed run goes on behind; "" when the step is at its end.

    Raises:
      UnwritableOutError: the file system refused. What a part raises comes through as it is.
    """
    for _ in saving(run, step, behind, copied=False):
        pass


def saving(run: Session, step: int, behind: str, *, copied: bool) -> Iterator[None]:
    """Write a checkpoint in two goes: up to the ``yield`` everything is read, behind it nothing of the run is.

    With ``copied`` the trainer's state is copied in the first and written in the second.
    """
    if run.out is None:
        return
    if behind:
        fetch_early(run, step)
    trainer = run.parts.trainer
    versions = _needed_versions(run, step)
    weights, own = checked_weights(trainer.weights())
    others = {version: _weights_of(run, version) for version in sorted({*versions.values()} - {own})}
    with new_checkpoint(run.out, step, ended=not behind) as folder:
        copy = trainer.snapshot_checkpoint() if copied else trainer.save_checkpoint(folder / "trainer")
        for name, part in _stateful_parts(run):
            part.save_checkpoint(folder / "parts" / name)
        of_weights = {
            "model_fingerprint": model_fingerprint(weights),
            "model_arrays": arrays_of(weights),
            "version": own,
            "versions": versions,
        }
        facts = {**_facts(run, step, behind), **of_weights}
        run.saved = (step, behind)
        yield
        if copied:
            trainer.write_checkpoint(copy, folder / "trainer")
        for version, held in others.items():
            with writing(f"checkpoint {folder}"):
                save_tree(folder / "weights" / str(version), held)
        write_manifest(folder, facts)


def restore_run(run: Session) -> tuple[int, str]:
    """Bring a fresh session to where its newest checkpoint left it.

    Returns:
      The step that was saved, and the op of it to go on behind; "" when that step is at its end.

    Raises:
      NoCheckpointError, BrokenCheckpointError, OtherProgramError, OtherModelError, OtherSeedError, DataStateError:
        before any part was changed.
      OtherStampError: the trainer is not at the version that it was saved at.
    """
    if run.out is None or not checkpoints(run.out):
        raise NoCheckpointError(f"there is no checkpoint below {run.out}")
    place = checkpoints(run.out)[-1]
    facts = read_manifest(place)
    _check_same(run, facts, place)
    if run.draws is not None:
        run.cursor = run.draws.restore(facts["data"])
        _check_prompts(run, facts, place)
    run.queue.restore(facts["queue"])
    run.parts.trainer.restore_checkpoint(place / "trainer")
    for name, part in _stateful_parts(run):
        if name in facts["parts"]:
            part.restore_checkpoint(place / "parts" / name)
    _restore_board(run, facts, place)
    run.calls = CallLog(facts["calls_digest"])
    run.groups_digest = facts["groups_digest"]
    run.frames.restore_carries(facts["step"] + (not facts["behind"]), facts["carries"])
    run.committed = facts["committed"]
    _restore_step(run, facts)
    rewind_trained(run.out, facts["committed"])
    _rewind_trackers(run, facts["logged"])
    run.saved = (facts["step"], facts["behind"])
    return run.saved


def program_fingerprint(program: Program) -> str:
    """Hash of what the program does; source lines do not count."""
    return chain("", _bare_text(program))


def _bare_text(program: Program) -> str:
    """The program as text, without source lines."""
    bare = replace(
        program,
        loc=None,
        kinds=tuple(replace(kind, loc=None) for kind in program.kinds),
        carries=tuple(replace(carry, loc=None) for carry in program.carries),
        prologue=_without_locs(program.prologue),
        body=_without_locs(program.body),
        epilogue=_without_locs(program.epilogue),
    )
    return print_program(bare)


def _settings(program: Program) -> dict[str, str]:
    """Name, parameters and contract of a program in words, to say what differs."""
    settings = {"program": program.name, **dict(program.params), **asdict(program.contract)}
    return {name: str(value) for name, value in settings.items()}


def _without_locs(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(
        replace(node, loc=None, body=_without_locs(node.body)) if isinstance(node, Loop) else replace(node, loc=None)
        for node in nodes
    )


def model_fingerprint(weights: Any) -> str:
    """Hash of the paths, shapes and dtypes of a tree of parameters."""
    leaves = jax.tree_util.tree_flatten_with_path(weights)[0]
    return chain(
        "",
        *sorted(
            f"{jax.tree_util.keystr(path)} {jax.numpy.shape(leaf)} {getattr(leaf, 'dtype', type(leaf).__name__)}"
            for path, leaf in leaves
        ),
    )


def _needed_versions(run: Session, step: int) -> dict[int, int]:
    """Versions that later steps generate with, by publishing step, as far as they are published by now.

    Those whose round was given up are among them: a resumed run publishes them.
    """
    held = run.board.held()
    contract = run.plan.program.contract
    if contract.weights == "pinned":
        held |= {lost: run.copied[lost][1] for lost in run.lost_rounds}
    oldest = step - contract.staleness if contract.weights == "pinned" else max(held, default=0)
    return {index: version for index, version in held.items() if index >= oldest}


def _weights_of(run: Session, version: int) -> Any:
    """The weights of a version that is published, or whose round was given up."""
    if run.board.holds(version):
        return run.board.weights(version)
    return next(fetched(weights) for weights, copied in run.copied.values() if copied == version)


def _stateful_parts(run: Session) -> Iterator[tuple[str, Checkpointable]]:
    """The parts beside the trainer that have a state of their own, by name; a part of several roles once."""
    parts = run.parts
    named = {
        "rollout": parts.rollout,
        "reference": parts.reference,
        "reward": parts.reward,
        "prompts": parts.prompts,
        "advantages": parts.advantages,
        **{f"callbacks.{index}": part for index, part in enumerate(parts.callbacks)},
        **{f"tracker.{index}": part for index, part in enumerate(parts.trackers)},
    }
    seen = {id(parts.trainer)}
    for name, part in named.items():
        if has_state(part) and id(part) not in seen:
            seen.add(id(part))
            yield name, part


def _facts(run: Session, step: int, behind: str) -> dict[str, Any]:
    """What a manifest says of a run, beside what is known of its weights."""
    memory = run.memory.get(step)
    cursor = run.cursor if memory is None else memory.cursor
    return {
        "step": step,
        "behind": behind,
        "settings": _settings(run.plan.base.program),
        "program_fingerprint": program_fingerprint(run.plan.base.program),
        "program": _bare_text(run.plan.base.program),
        "seed": run.seed,
        "data": None if run.draws is None else run.draws.state(cursor),
        "last_prompt": "" if run.draws is None else run.draws.last(cursor),
        "queue": _queue_behind(run, step, memory),
        "calls_digest": run.calls.settle(),
        "groups_digest": run.groups_digest,
        "committed": run.committed,
        "carries": run.frames.carries(step + (not behind)),
        "values": _saved_values(run, step),
        "memory": None if memory is None else _saved_memory(memory),
        "logged": _last_logged(run, step, behind),
        "parts": [name for name, _ in _stateful_parts(run)],
    }


def _queue_behind(run: Session, step: int, memory: StepMemory | None) -> dict[str, int]:
    """The queue's state once ``step`` is committed: a resumed run commits it by its ids, for its groups are gone."""
    state = run.queue.state()
    if memory is None or run.queue.training_cursor > step:
        return state
    return {
        **state,
        "training_cursor": step + 1,
        "groups": state["groups"] + len(memory.taken),
        "dropped": state["dropped"] + len(run.queue.dropped(step)),
        "holes": state["holes"] + (not memory.taken),
    }


def _last_logged(run: Session, step: int, behind: str) -> tuple[int, dict[str, float]] | None:
    """The last record that the program as written has logged by then."""
    before = [node.id for node in run.plan.base.program.body]
    before = before[: before.index(behind)] if behind else before
    logs = {call.op.id for call in run.plan.base.calls() if call.kind.name == "log"}
    last = step if not behind or logs & {*before} else step - 1
    return next((record for record in reversed(run.logged) if record[0] <= last), None)


def _saved_values(run: Session, step: int) -> dict[str, Any]:
    """Values of the step that ops behind its checkpoint may read, as JSON holds them.

    The rest of the step reads what a resumed run would: each is put back as it is saved.
    """
    saved: dict[str, Any] = {}
    for result in (result for op in run.plan.base.program.ops() for result in op.results):
        value = run.frames.value(result.name, step)
        if value is not None and result.type.base in SAVED_BASES:
            saved[result.name] = _AS_JSON[result.type.base](value)
            run.frames.put(result.name, step, saved[result.name])
    return saved


_AS_JSON: Mapping[str, Any] = {"metrics": dict, "version": int, "flag": bool, "scalar": float}


def _saved_memory(memory: StepMemory) -> dict[str, Any]:
    return {
        "taken": [[name.prompt, name.draw] for name in memory.taken],
        "stats": memory.stats,
        "metrics": memory.metrics,
    }


def _restore_step(run: Session, facts: Mapping[str, Any]) -> None:
    """Values and host memory of the step that was saved."""
    for name, value in facts["values"].items():
        run.frames.put(name, facts["step"], value)
    if facts["memory"] is not None:
        memory = run.step_memory(facts["step"])
        memory.taken = [GroupId(prompt, draw) for prompt, draw in facts["memory"]["taken"]]
        memory.stats, memory.metrics = facts["memory"]["stats"], facts["memory"]["metrics"]
        memory.fetched = True
    if facts["logged"] is not None:
        run.logged.append((facts["logged"][0], facts["logged"][1]))


def _restore_board(run: Session, facts: Mapping[str, Any], place: Path) -> None:
    """Publish the saved versions again. The trainer's own version is not saved twice."""
    weights, own = checked_weights(run.parts.trainer.weights())
    saved = facts.get("version", own)
    if own != saved:
        message = f"the trainer is at version {own} as restored from {place}, and was at version {saved} when it saved"
        raise OtherStampError(message, help="stamp a checkpoint with the updates that its parameters have seen")
    for step, version in sorted((int(step), version) for step, version in facts["versions"].items()):
        held = weights if version == own else restore_tree(place / "weights" / str(version), weights)
        run.board.publish(step, held, version)


def _check_same(run: Session, facts: Mapping[str, Any], place: Path) -> None:
    program = run.plan.base.program
    if facts["program_fingerprint"] != program_fingerprint(program):
        raise OtherProgramError(
            f"{place} was written by another program than `{program.name}`, or with other parameters",
            loc=program.loc,
            notes=tuple(map(Note, _other_settings(facts, program) or _other_ops(facts, program))),
            help="resume with the program of the first run, or start another run in another folder",
        )
    if facts["seed"] != run.seed:
        raise OtherSeedError(
            f"{place} was written with seed {facts['seed']}, not {run.seed}",
            help=f"resume with seed={facts['seed']}, or start another run in another folder",
        )
    weights, _ = checked_weights(run.parts.trainer.weights())
    if facts["model_fingerprint"] != model_fingerprint(weights):
        raise OtherModelError(
            f"{place} holds the parameters of another model",
            notes=other_arrays(facts.get("model_arrays", {}), arrays_of(weights)),
            help="resume with the model of the first run, or start another run in another folder",
        )


def _other_settings(facts: Mapping[str, Any], program: Program) -> list[str]:
    """The name, the parameters and the contract, where they are not as saved."""
    there, here = facts["settings"], _settings(program)
    return [
        f"{name}: {there.get(name, 'none')} there, {here.get(name, 'none')} here"
        for name in {**there, **here}
        if there.get(name) != here.get(name)
    ]


def _other_ops(facts: Mapping[str, Any], program: Program) -> list[str]:
    """What of the step is not as saved, op by op; the first few."""
    if "program" not in facts:
        return []
    changes = differences(parse(facts["program"], "<checkpoint>").program, program)
    more = [f"and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    return [*(f"here {change.subject}: {change.words}" for change in changes[:_SHOWN]), *more]


def _check_prompts(run: Session, facts: Mapping[str, Any], place: Path) -> None:
    """Refuse other prompts of the same number: the one drawn last is compared, unless a state of theirs made it."""
    assert run.draws is not None, "a program that dispatches has prompts bound"
    if has_state(run.parts.prompts) or "last_prompt" not in facts:
        return
    position = facts["data"]["position"]
    if facts["last_prompt"] != run.draws.last(DataCursor(position)):
        raise DataStateError(
            f"{place} was written with other prompts: the one drawn last, number {position}, had another id or text",
            help="resume with the prompts of the first run, or start a new run",
        )


def _rewind_trackers(run: Session, logged: tuple[int, dict[str, float]] | None) -> None:
    """Bring each tracker back to the last record that was logged when the checkpoint was saved."""
    step, record = logged or (-1, None)
    for tracker in run.parts.trackers:
        rewind = getattr(tracker, "rewind", None)
        if rewind is not None:
            rewind(step, record)
