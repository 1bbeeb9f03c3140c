"""The steps of `grpo` driven three ways: by a plan, by a loop written by hand on the same ops, and by one on the parts.

All three train the same and log the same records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steptrace.lang.records import Group
from steptrace.lower import Plan
from steptrace.run.api import plan_for, run
from steptrace.run.binding import bind_parts
from steptrace.run.data.advantages import GroupAdvantages
from steptrace.run.data.cursor import DataCursor, Draws
from steptrace.run.data.rewards import score
from steptrace.run.digest import EMPTY, CallLog, chain
from steptrace.run.drive import closing
from steptrace.run.executor import Around, Rule
from steptrace.run.instance import At
from steptrace.run.rng import key_for
from steptrace.run.session import Session
from steptrace.run.verbs import VERBS

SEED = 0

Digests = tuple[str, str]
"""Of the trainer's calls and of the trained groups."""


def by_plan(parts: dict[str, Any], program: str, steps: int, around: Sequence[Around] = ()) -> Digests:
    """The steps as `steptrace.run` runs them."""
    result = run(program, parts, steps=steps, seed=SEED, around=around)
    return result.calls_digest, result.trained_groups_digest


def by_ops(parts: dict[str, Any], program: str, steps: int, verb: Mapping[str, Rule] = VERBS) -> Digests:
    """The loop that the plan stands for, written by hand: what each op does is called in place, and nothing else is."""
    plan: Plan = plan_for(program)
    session = Session(plan, bind_parts(plan, parts), seed=SEED, epochs=None, out=None)
    at = {op.id: op for op in plan.program.ops()}
    with closing(session):
        verb["sync_weights"](session, At(at["initial_sync"], -1))
        for step in range(steps):
            verb["on_step_begin"](session, At(at["on_step_begin"], step))
            verb["dispatch"](session, At(at["dispatch"], step))
            groups = _one(verb["take"](session, At(at["take"], step)))
            scored = _one(verb["reward"](session, At(at["reward"], step), groups))
            estimated = _one(verb["advantages"](session, At(at["advantages"], step), scored))
            batch = _one(verb["pack"](session, At(at["pack"], step), estimated))
            micro = 0
            while (given := verb["next_mb"](session, At(at["next_mb"], step, (micro,)), batch)) is not None:
                known = _one(verb["ref_logps"](session, At(at["ref_logps"], step, (micro,)), given[0]))
                verb["fwd_bwd"](session, At(at["fwd_bwd"], step, (micro,)), known)
                micro += 1
            verb["update"](session, At(at["update"], step))
            metrics = _one(verb["get_metrics"](session, At(at["get_metrics"], step)))
            verb["sync_weights"](session, At(at["sync_weights"], step))
            verb["commit"](session, At(at["commit"], step))
            verb["log"](session, At(at["log"], step), metrics)
            verb["on_step_end"](session, At(at["on_step_end"], step))
            verb["free"](session, At(at["free"], step))
            session.end_step(step)
        return session.calls.settle(), session.groups_digest


def _one(results: tuple[Any, ...] | None) -> Any:
    """The first result of an op that gives any."""
    assert results, "an op outside the loop's head gives what it declares"
    return results[0]


def by_parts(parts: dict[str, Any], prompts: int, samples: int, steps: int) -> Digests:
    """The loop as one would write it straight on these parts: the same draws, calls and logs.

    It looks at nothing that a part returns, keeps no queue, and could not be stopped and resumed.
    """
    trainer, rollout, tracker = parts["trainer"], parts["rollout"], parts["tracker"]
    draws, cursor = Draws(parts["prompts"], seed=SEED, epochs=None), DataCursor()
    calls, advantages, trained = CallLog(), GroupAdvantages(), EMPTY
    weights, version = trainer.weights()
    rollout.apply_weights(weights, version)
    for step in range(steps):
        drawn, cursor = draws.draw(cursor, prompts)
        asked = [prompt for _, prompt in drawn]
        tokens = [parts["tokenizer"].encode(prompt.text) for prompt in asked]
        sampled = rollout.generate(asked, samples, version=version, key=key_for(SEED, "dispatch", step))
        groups = [
            Group(name, step, prompt, encoded, completions, version)
            for (name, prompt), encoded, completions in zip(drawn, tokens, sampled, strict=True)
        ]
        scored = score(parts["reward"], groups)
        batch = parts["packer"].pack(advantages(scored), step=step)
        for micro_batch in batch:
            known = micro_batch.with_array("ref_logps", parts["reference"].logps(micro_batch))
            calls.record("fwd_bwd", known)
            trainer.fwd_bwd(known)
        calls.record("update")
        trainer.update()
        metrics = trainer.get_metrics()
        calls.settle()
        figures = {**_figures(scored, version), "micro_batches": float(len(batch)), **metrics, "step": float(step)}
        old, (weights, version) = version, trainer.weights()
        if version != old:
            rollout.apply_weights(weights, version)
            rollout.drop_weights(old)
        for name, _ in drawn:
            trained = chain(trained, name.prompt, str(name.draw))
        tracker.log(step, figures)
    rollout.drop_weights(version)
    return calls.settle(), trained


def _figures(groups: Sequence[Group], version: int) -> Mapping[str, float]:
    """What the log says of a step's rollouts."""
    rewards = [group.rewards.tolist() for group in groups if group.rewards is not None]
    completions = [completion for group in groups for completion in group.completions]
    return {
        "groups": float(len(groups)),
        "completion_tokens": float(sum(len(completion.tokens) for completion in completions)),
        "groups_of_equal_rewards": float(sum(len(set(group)) == 1 for group in rewards)),
        "empty_updates": 0.0,
        "rollout_version": float(version),
        "reward": sum(map(sum, rewards)) / len(completions),
        "finished": sum(completion.finished for completion in completions) / len(completions),
    }
