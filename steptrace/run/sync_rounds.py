"""Rounds of weights whose transfer or apply got lost: tried again, then given up, with what was served going on.

A round under `async-weight-sync` is a copy of the trainer's weights, its transfer and its apply. A round is lost when
the transfer or the apply raises what says that a call got lost on the way; what the rollout has raised itself ends
the run, as any error does. A lost part is done again from the same copy, after the rollout was told to drop what it
may hold of that version, so that a half-open transfer is in nobody's way. A version becomes the published one when its
apply has come back, and not before.

A round that is lost each time is given up: nothing of it stays with the rollout, what was published last goes on
serving, the run says so in its remarks, and the next round publishes. The steps whose rollouts were to be made with its
weights do not get older ones in silence: the dispatch of such a step publishes the copy, which was kept, or is refused,
unless its contract takes the freshest weights and allows for the lag. A checkpoint holds a copy that was kept, so that
a resumed run publishes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from steptrace.run.instance import At
from steptrace.run.session import Session
from steptrace.run.training_calls import LOST, know_copy

TRIES = 3
"""How often a part of a round is tried."""

_LAST = "apply_weights"
_PARTS = ("transfer_weights", _LAST)
_LOG = logging.getLogger("steptrace")

Rule = Callable[..., Any]


def with_rounds(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """The rules of ops, those of a round's parts with what is done when they get lost."""
    tried = {kind: _tried(rules[kind], kind) for kind in _PARTS if kind in rules}
    return {**rules, **tried}


def _tried(rule: Rule, kind: str) -> Rule:
    def run_part(session: Session, at: At, *operands: Any) -> Any:
        if at.step in session.lost_rounds:  # its transfer was given up
            return ()
        know_copy(session, at.step)  # a copy that has failed is no round that got lost
        for attempt in range(1, TRIES + 1):
            try:
                made = rule(session, at, *operands)
            except LOST as error:
                _cleared(session, at.step)
                if attempt == TRIES:
                    _give_up(session, at, error)
                    return ()
                _LOG.warning("%s of step %d got lost, and is done again: %s", kind, at.step, error)
            else:
                if kind == _LAST:
                    _complete(session, at.step)
                return made
        raise AssertionError("the last try returns or raises")

    return run_part


def _complete(session: Session, step: int) -> None:
    """The round has published; where the freshest weights count, those lost before it do not any more."""
    del session.copied[step]
    if session.plan.program.contract.weights != "pinned":
        for lost in [lost for lost in session.lost_rounds if lost < step]:
            del session.lost_rounds[lost], session.copied[lost]


def _cleared(session: Session, step: int) -> None:
    """Have the rollout drop what it may hold of a version that is not published."""
    version = session.copied[step][1]
    if session.parts.rollout is not None and not session.board.holds(version):
        with suppress(Exception):  # it may hold nothing, or be out of reach
            session.parts.rollout.drop_weights(version)


def _give_up(session: Session, at: At, error: Exception) -> None:
    _, version = session.copied[at.step]
    session.lost_rounds[at.step] = error
    why = f"{type(error).__name__}: {error}"
    session.remarks.append(
        f"the weights of step {at.step}, version {version}, were not published: `{at.op.id}` got lost {TRIES} times "
        f"({why}); the versions published before go on serving"
    )
    _LOG.warning("%s", session.remarks[-1])
