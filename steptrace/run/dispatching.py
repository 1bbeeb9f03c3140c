"""From a step's prompts to its groups: what is drawn, when it is sampled, which groups are trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from steptrace.diag.binding import UnboundPartError
from steptrace.diag.data import SamplingCapError
from steptrace.diag.rollout import WeightsMismatchError
from steptrace.diag.running import LostRoundError, PartialStepError, StaggerError, WindowClosedError
from steptrace.ir import Op
from steptrace.lang.records import Group, GroupId, Prompt
from steptrace.lower import Plan
from steptrace.run.borders import checked_completions, checked_prompt_tokens
from steptrace.run.data.rewards import score
from steptrace.run.instance import At
from steptrace.run.remote.part import fetched
from steptrace.run.rng import key_for

if TYPE_CHECKING:
    from steptrace.run.session import Session

_TAKES = ("take", "stream_mb")
_WAVES = 10

Drawn = Sequence[tuple[GroupId, Prompt]]
"""Prompts with the ids of their groups, in the order in which they were drawn."""


def dispatch(run: Session, at: At) -> tuple[()]:
    """Draw the step's prompts and have them sampled, or set them aside until the step may sample."""
    assert run.draws is not None, "a program that dispatches has prompts bound"
    op, contract = at.op, run.plan.program.contract
    if op.attr("window") and at.step - run.queue.training_cursor > contract.staleness:
        raise WindowClosedError(
            f"the batch of step {at.step} is dispatched while step {run.queue.training_cursor} is not committed, and "
            f"the staleness is {contract.staleness}",
            loc=op.loc,
        )
    source = max(at.step - 1 - contract.staleness, -1) if contract.weights == "pinned" else run.board.newest()
    _recover_lost(run, op, at.step, source)
    version = run.board.version(source)
    needless = _needless(run, source, at.step)
    run.board.forget_before(needless if run.held_source is None else min(needless, run.held_source))
    run.step_memory(at.step).stats["rollout_version"] = float(version)
    if op.attr("keep"):
        _sample_until(run, at, version)
        return ()
    drawn = _draw(run, at, drawn_by(op))
    run.queue.expect(at.step, [name for name, _ in drawn])
    sample = partial(_sample, run, at, drawn, version)
    if op.attr("stagger") and at.step == run.first + 1 and run.queue.training_cursor <= run.first:
        run.held_batch, run.held_source = sample, source
    else:
        sample()
    return ()


def _recover_lost(run: Session, op: Op, step: int, source: int) -> None:
    """Where a round of weights was given up that a dispatch needs, publish them now, or refuse the dispatch.

    Args:
      run: the run.
      op: the dispatch.
      step: its step.
      source: the step whose weights it reads: the pinned one, or the one that published last.

    Raises:
      LostRoundError: the pinned step's round was given up, or that of the oldest step that the staleness allows, and
        none behind it has published.
    """
    oldest = step - 1 - run.plan.program.contract.staleness
    lost = [at for at in run.lost_rounds if source <= at <= oldest]
    if lost:
        weights, version = run.copied[max(lost)]
        try:
            run.board.publish(max(lost), fetched(weights), version)
        except (ConnectionError, TimeoutError) as error:
            with suppress(Exception):  # what may have come of it is not left with the rollout
                run.parts.rollout.drop_weights(version)
            raise LostRoundError(
                f"the rollouts of step {step} are to be made with the weights of step {max(lost)}, which are not "
                "published: the round got lost each time it was tried",
                loc=op.loc,
            ) from error
        del run.lost_rounds[max(lost)], run.copied[max(lost)]


def take_groups(run: Session, at: At) -> list[Group]:
    """The groups of a step; a batch that was held is sampled first."""
    held = run.held_batch
    if held is not None and at.step == run.first + 1:
        run.held_batch = None
        run.queue.await_commit(run.first, lambda: run.stopped(at.step))
        held()
        run.held_source = None
    groups = run.queue.take(at.step, timeout_s=0.0)
    assert groups is not None, "a step that is run has been dispatched"
    run.step_memory(at.step).taken += [group.id for group in groups]
    return list(groups)


def drawn_by(op: Op) -> int:
    """How many prompts a dispatch draws, at least: those trained and those beyond them."""
    return _count(op, "prompts", 0) + _count(op, "extra", 0)


def _count(op: Op, name: str, default: int) -> int:
    """An attribute that is a number, or its default."""
    value = op.attr(name)
    return value if isinstance(value, int) else default


def check_stagger(plan: Plan) -> None:
    """Refuse to hold a batch where the take that waits for it would hold up the step that it waits for.

    Raises:
      StaggerError: points at the take.
    """
    if not any(call.op.attr("stagger") for call in plan.calls() if call.kind.name == "dispatch"):
        return
    order = [op for op in plan.program.ops() if op not in (*plan.program.prologue, *plan.program.epilogue)]
    for place, take in enumerate(order):
        if take.kind not in _TAKES:
            continue
        for other, op in enumerate(order):
            behind = op.shift < take.shift - 1 or (op.shift == take.shift - 1 and other > place)
            if op.lane == take.lane and behind:
                raise StaggerError(
                    f"`{take.id}` of the second step would wait for the commit of the first on lane {take.lane}, where "
                    f"`{op.id}` of the first step comes behind it",
                    loc=take.loc,
                )


def _draw(run: Session, at: At, count: int) -> Drawn:
    """Draw prompts, and note the cursor behind them."""
    assert run.draws is not None
    drawn, cursor = run.draws.draw(run.cursor, count)
    if len(drawn) < count and run.plan.program.contract.partial == "error":
        raise PartialStepError(f"step {at.step} gets {len(drawn)} of {count} prompts: the data ended", loc=at.op.loc)
    run.step_memory(at.step).cursor = run.cursor = cursor
    return drawn


def _sample(run: Session, at: At, drawn: Drawn, version: int) -> None:
    """Sample a batch: of the groups that come back whole the first are trained, the others given up."""
    wanted, kept = _count(at.op, "prompts", 0), 0
    for (name, _), group in zip(drawn, _groups(run, at, drawn, version), strict=True):
        if group is None:
            run.queue.drop(at.step, name, "the rollout lost it")
        elif kept == wanted:
            run.queue.drop(at.step, name, "surplus")
        else:
            _put(run, at, group)
            kept += 1


def _sample_until(run: Session, at: At, version: int) -> None:
    """Sample in waves, each for what is missing, until enough groups can be trained."""
    if run.parts.reward is None:
        raise UnboundPartError("a dispatch that keeps groups of different rewards needs a `reward`", loc=at.op.loc)
    wanted = _count(at.op, "prompts", 0)
    most = _count(at.op, "most", _WAVES * wanted)
    tally = dict.fromkeys(("drawn", "lost", "of equal rewards", "kept"), 0)
    run.queue.expect(at.step, (), sealed=False)
    while tally["kept"] < wanted:
        wave = min(wanted - tally["kept"], most - tally["drawn"])
        if wave < 1:
            counted = ", ".join(f"{count} {what}" for what, count in tally.items())
            raise SamplingCapError(
                f"step {at.step} keeps {tally['kept']} of {wanted} groups after {most} prompts: {counted}",
                loc=at.op.loc,
            )
        drawn = _draw(run, at, wave)
        if not drawn:
            break
        run.queue.expect(at.step, [name for name, _ in drawn], sealed=False)
        for (name, _), group in zip(drawn, _groups(run, at, drawn, version, tally["drawn"]), strict=True):
            tally[_admit(run, at, name, group)] += 1
        tally["drawn"] += len(drawn)
    run.queue.seal(at.step)


def _admit(run: Session, at: At, name: GroupId, group: Group | None) -> str:
    """Put a group if its rewards differ; says what became of it."""
    if group is None:
        run.queue.drop(at.step, name, "the rollout lost it")
        return "lost"
    (scored,) = score(run.parts.reward, [group])
    assert scored.rewards is not None
    if len(set(scored.rewards.tolist())) < 2:
        run.queue.drop(at.step, name, "its rewards are all equal")
        return "of equal rewards"
    _put(run, at, group)
    return "kept"


def _groups(run: Session, at: At, drawn: Drawn, version: int, before: int = 0) -> list[Group | None]:
    """What the rollout makes of prompts; None for those it has lost.

    Args:
      run: the run.
      at: the dispatch.
      drawn: the prompts.
      version: of the weights.
      before: how many prompts of the step were sampled before: each wave has a key of its own.
    """
    if not drawn:
        return []
    prompts = [prompt for _, prompt in drawn]
    encoded = [checked_prompt_tokens(run.parts.tokenizer.encode(prompt.text), prompt, at) for prompt in prompts]
    samples = _count(at.op, "samples", 1)
    with run.board.sampling(alone=bool(at.op.attr("window"))):
        key = key_for(run.seed, at.origin, at.step, before)
        with _fitting(at):
            made = run.parts.rollout.generate(prompts, samples, version=version, key=key)
    loses = at.op.attr("extra") is not None or at.op.attr("keep") is not None
    completions = checked_completions(made, prompts, samples, at, may_lose=loses)
    return [
        None if sampled is None else Group(name, at.step, prompt, tokens, sampled, version)
        for (name, prompt), tokens, sampled in zip(drawn, encoded, completions, strict=True)
    ]


@contextmanager
def _fitting(at: At) -> Iterator[None]:
    """Tells a rollout of one's own that merges the trainer's weights with the graph of another model, as flax finds."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("Incorrect number of leaves"):
            raise
        raise WeightsMismatchError(
            f"the weights do not fit the rollout's model: {error}".rstrip("."),
            loc=at.op.loc,
            help="build the models of trainer and rollout from the same configuration",
        ) from error


def _put(run: Session, at: At, group: Group) -> None:
    """Admit a group by the weights that are published now."""
    newest = run.board.newest()
    run.queue.put(at.step, group, behind=lambda version: run.board.published_since(version, newest))


def _needless(run: Session, source: int, step: int) -> int:
    """Weights published before this step are needed no more; under a schedule, by no checkpoint of an open step."""
    if run.plan.source is None:
        return source
    return min(source, run.frames.oldest(step) - run.plan.program.contract.staleness)
