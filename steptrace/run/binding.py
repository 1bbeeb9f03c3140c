"""Binding: the user's parts against the verbs that a plan calls, checked before step 0."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from steptrace.diag.base import Note
from steptrace.diag.binding import (
    PartResultError,
    StreamedStepAdvantagesError,
    UnboundPartError,
    UnknownRoleError,
    WrongPartError,
)
from steptrace.lang.parts import (
    Advantages,
    Callback,
    PromptSource,
    Reference,
    Reward,
    Rollout,
    Tokenizer,
    Tracker,
    Trainer,
)
from steptrace.lower import Call, Plan
from steptrace.run.borders import CheckedPrompts
from steptrace.run.data.packing import Packer
from steptrace.run.own_ops import OwnOp, own_op

ROLES = (
    "trainer",
    "rollout",
    "reference",
    "reward",
    "prompts",
    "tokenizer",
    "packer",
    "advantages",
    "callbacks",
    "tracker",
)
"""The roles a part can be bound to. `callbacks` and `tracker` take one part or several."""

# What each verb makes the runtime call: (role, method, positional arguments, keyword arguments).
_Need = tuple[str, str, int, tuple[str, ...]]
_NEEDS: Mapping[str, tuple[_Need, ...]] = {
    "trainer.fwd_bwd": (("trainer", "fwd_bwd", 1, ()),),
    "trainer.old_logps": (("trainer", "old_logps", 1, ()),),
    "trainer.update": (("trainer", "update", 0, ()), ("trainer", "weights", 0, ())),
    "trainer.get_metrics": (("trainer", "get_metrics", 0, ()),),
    "trainer.save_checkpoint": (("trainer", "save_checkpoint", 1, ()), ("trainer", "restore_checkpoint", 1, ())),
    "rollout.apply_weights": (
        ("trainer", "weights", 0, ()),
        ("rollout", "apply_weights", 2, ()),
        ("rollout", "drop_weights", 1, ()),
    ),
    "rollout.generate": (
        ("rollout", "generate", 2, ("version", "key")),
        ("prompts", "__getitem__", 1, ()),
        ("prompts", "__len__", 0, ()),
        ("tokenizer", "encode", 1, ()),
    ),
    "reference.logps": (("reference", "logps", 1, ()),),
    "reward": (("reward", "__call__", 2, ()),),
}

_PROTOCOLS: Mapping[str, type] = {
    "trainer": Trainer,
    "rollout": Rollout,
    "reference": Reference,
    "reward": Reward,
    "prompts": PromptSource,
    "tokenizer": Tokenizer,
    "advantages": Advantages,
    "callbacks": Callback,
    "tracker": Tracker,
}


@dataclass(frozen=True)
class Parts:
    """The bound parts of a run. Roles that the program has no use for are None.

    Attributes:
      trainer, rollout, reference, reward, prompts, tokenizer: as their protocols say.
      packer: how sequences are laid into micro-batches; 16 rows of 128 tokens unless one is bound.
      advantages: what stands in for the estimator that the program names, if anything.
      callbacks: called in order at the borders of each step.
      trackers: where metrics go.
      ops: implementations of users' ops by name.
    """

    trainer: Any = None
    rollout: Any = None
    reference: Any = None
    reward: Any = None
    prompts: Any = None
    tokenizer: Any = None
    packer: Packer = field(default_factory=lambda: _default_packer({}))
    advantages: Any = None
    callbacks: tuple[Any, ...] = ()
    trackers: tuple[Any, ...] = ()
    ops: Mapping[str, OwnOp] = field(default_factory=dict)


def bind_parts(plan: Plan, bind: Mapping[str, Any]) -> Parts:
    """The parts a plan needs, each checked against every verb that the plan calls on it.

    Args:
      plan: the lowered program.
      bind: parts by role, and implementations of users' ops by name.

    Raises:
      UnknownRoleError, UnboundPartError, WrongPartError, UnboundOpError, StreamedStepAdvantagesError: see their pages.
    """
    check_bound(plan, bind)
    verbs = plan.verbs()
    for verb, call in verbs.items():
        for need in _NEEDS.get(verb, ()):
            _check_need(need, call, bind)
    _check_optional(bind)
    _check_scope(bind.get("advantages"), plan)
    if "rollout.generate" in verbs:
        _check_prompts(bind["prompts"], verbs["rollout.generate"])
        _check_tokenizer(bind["tokenizer"])
    single = {role: bind[role] for role in ROLES[:8] if bind.get(role) is not None}
    return Parts(
        **{"packer": _default_packer(bind), **single},
        callbacks=_several(bind.get("callbacks")),
        trackers=_several(bind.get("tracker")),
        ops={call.kind.name: own_op(call, bind, ROLES) for call in plan.calls() if call.kind.user},
    )


def check_bound(plan: Plan, bind: Mapping[str, Any]) -> None:
    """Check that what is bound has a use, and that nothing is lacking, whatever the parts are.

    Raises:
      UnknownRoleError, UnboundPartError: see their pages.
    """
    own_ops = {kind.name for kind in plan.program.kinds}
    for name in bind:
        _check_role(name, own_ops)
    for verb, call in plan.verbs().items():
        for role, *_ in _NEEDS.get(verb, ()):
            if bind.get(role) is None:
                raise UnboundPartError(
                    f"`{call.op.kind}` needs a `{role}`, and nothing is bound to it",
                    loc=call.op.loc,
                    help=f'bind={{"{role}": ...}}, a part with the methods of steptrace.{_PROTOCOLS[role].__name__}',
                )


def _default_packer(bind: Mapping[str, Any]) -> Packer:
    """The packer of a run that binds none."""
    return Packer(rows=16, length=128, pad_id=int(getattr(bind.get("tokenizer"), "pad_id", 0)))


def _several(part: Any) -> tuple[Any, ...]:
    if part is None:
        return ()
    return tuple(part) if isinstance(part, Sequence) else (part,)


def _check_role(name: str, own_ops: set[str]) -> None:
    if name in ROLES or name in own_ops:
        return
    near = get_close_matches(name, [*ROLES, *own_ops])
    known = ", ".join(f"`{role}`" for role in (*ROLES, *sorted(own_ops)))
    raise UnknownRoleError(
        f"nothing can be bound to `{name}`", help=f"did you mean `{near[0]}`?" if near else f"the roles are {known}"
    )


def _check_need(need: _Need, call: Call, bind: Mapping[str, Any]) -> None:
    role, method, count, keywords = need
    _check_method(bind[role], role, method, count, keywords, call)


def _check_method(part: Any, role: str, method: str, count: int, keywords: tuple[str, ...], call: Call | None) -> None:
    loc = None if call is None else call.op.loc
    function = part if method == "__call__" else getattr(part, method, None)
    shown = getattr(part, "__name__", type(part).__name__)
    if not callable(function):
        wanted = "cannot be called" if method == "__call__" else f"has no method `{method}`"
        raise WrongPartError(
            f"`{role}` is bound to {shown}, which {wanted}", loc=loc, notes=_protocol_note(role, method)
        )
    name = shown if method == "__call__" else f"{shown}.{method}"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins do not tell their signature; the call itself will
        if inspect.ismethod(function):
            raise WrongPartError(f"`{name}`, bound to `{role}`, has no parameter for its object", loc=loc) from None
        return
    try:
        signature.bind(*[None] * count, **dict.fromkeys(keywords))
    except TypeError as error:
        raise WrongPartError(
            f"`{name}{signature}`, bound to `{role}`, cannot be called as the step calls it: {error}",
            loc=loc,
            notes=_protocol_note(role, method),
            help=f"bind an object of the class: {shown}(...)" if isinstance(part, type) else "",
        ) from None
    if inspect.iscoroutinefunction(function):
        raise WrongPartError(
            f"`{name}`, bound to `{role}`, is a coroutine function, and the step calls it as a plain one", loc=loc
        )


def _protocol_note(role: str, method: str) -> tuple[Note, ...]:
    protocol = _PROTOCOLS[role]
    function = getattr(protocol, method, None)
    if function is None:
        return (Note(f"see steptrace.{protocol.__name__}"),)
    return (Note(f"steptrace.{protocol.__name__}.{method}{inspect.signature(function)}"),)


def _check_optional(bind: Mapping[str, Any]) -> None:
    """Check the parts that a program may do without, as far as they are bound."""
    if bind.get("advantages") is not None:
        _check_method(bind["advantages"], "advantages", "__call__", 1, (), None)
    for callback in _several(bind.get("callbacks")):
        called = {"on_step_begin": 1, "on_step_end": 2}
        there = [name for name in called if getattr(callback, name, None) is not None]
        for name in there or called:
            _check_method(callback, "callbacks", name, called[name], (), None)
    for tracker in _several(bind.get("tracker")):
        _check_method(tracker, "tracker", "log", 2, (), None)
        _check_method(tracker, "tracker", "close", 0, (), None)
        for name in ("rewind", "phases"):
            if getattr(tracker, name, None) is not None:
                _check_method(tracker, "tracker", name, 2, (), None)
    if bind.get("packer") is not None and not isinstance(bind["packer"], Packer):
        raise WrongPartError(f"`packer` is bound to {type(bind['packer']).__name__}, not a steptrace.run.data.Packer")


def _check_scope(advantages: Any, plan: Plan) -> None:
    """Refuse advantages that need all groups of a step where groups come one by one."""
    streams = [op for op in plan.base.program.ops() if op.kind == "stream_mb"]
    if streams and getattr(advantages, "scope", "group") == "step":
        raise StreamedStepAdvantagesError(
            f"`advantages` is bound to {type(advantages).__name__}, which needs all groups of a step at once, and "
            f"`{plan.base.program.name}` streams them",
            loc=streams[0].loc,
            help="run a program that takes the whole step first, or bind advantages that look at one group",
        )


def _check_prompts(prompts: PromptSource, call: Call) -> None:
    if len(prompts) < 1:
        raise WrongPartError("`prompts` is bound to an empty source: there is nothing to train on", loc=call.op.loc)
    try:
        CheckedPrompts(prompts)[0]
    except (PartResultError, LookupError, TypeError) as error:
        reason = error.message if isinstance(error, PartResultError) else f"it has no prompt 0: {error!r}"
        raise WrongPartError(
            f"`prompts` is bound to a {type(prompts).__name__} that is no source of prompts: {reason}",
            loc=call.op.loc,
            help="steptrace.JsonlPrompts reads them from a file; ListPrompts makes them of texts",
        ) from error


def _check_tokenizer(tokenizer: Tokenizer) -> None:
    for name in ("vocab_size", "pad_id", "stop_id"):
        value = getattr(tokenizer, name, None)
        if not hasattr(value, "__index__") or isinstance(value, bool):
            raise WrongPartError(
                f"`tokenizer` is bound to {type(tokenizer).__name__}, whose `{name}` is {value!r}, not an int"
            )
