"""The step as its author sees it: one method for each built-in op, loops and conditions."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NoReturn

from steptrace.diag.base import SteptraceError
from steptrace.diag.tracing import AttributeValueError, NotTracedError, UnknownOpError, UnusedError
from steptrace.ir.builtin import BUILTIN
from steptrace.ir.predicate import Every, First, Has, Last, MicroIs
from steptrace.ir.program import Use, ops_of
from steptrace.ir.types import Type
from steptrace.lang.attributes import attributes, positive
from steptrace.lang.carries import CarriedValue, declare
from steptrace.lang.loops import Stream, TracedLoop
from steptrace.lang.place import user_loc
from steptrace.lang.resources import Pattern, patterns
from steptrace.lang.signatures import recorded
from steptrace.lang.tracer import OpenLoop, Tracer
from steptrace.lang.values import Condition, Traced, as_condition


class Step:
    """The step being traced: each call records one op; nothing runs.

    Values that ops return are names (``Traced``); Python may pass them on but not look into them.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __repr__(self) -> str:
        return "<step being traced>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        close = difflib.get_close_matches(name, [word for word in dir(type(self)) if not word.startswith("_")], 1)
        raise UnknownOpError(
            f"the step has no op `{name}`", loc=user_loc(), help=f"did you mean `step.{close[0]}`?" if close else ""
        )

    # From prompts to a batch

    @recorded
    def dispatch(
        self,
        *,
        prompts: int,
        samples: int,
        extra: int | None = None,
        keep: str | None = None,
        most: int | None = None,
        window: bool = False,
        stagger: bool = False,
    ) -> None:
        """Draw the step's prompts and generate completions for them with the pinned weights.

        Args:
          prompts: prompts drawn for the step, each one a group.
          samples: completions sampled for each prompt.
          extra: draw so many prompts more, and train the first ``prompts`` groups that come back whole. The others are
            given up before the step is taken. A rollout may then return None for a prompt.
          keep: ``varied`` draws on, a wave for what is missing, until ``prompts`` groups have rewards that differ
            (dynamic sampling: Yu et al. 2025, DAPO). A wave has no more prompts than groups are missing, so no valid
            group is left over at its end, and none has to be carried into the next step; hence it does not go with
            ``extra``. In program order only: how many prompts a step draws is then
            known when it has begun.
          most: with ``keep``, the most prompts drawn for a step; beyond it the run ends with an error. Ten times
            ``prompts`` unless given.
          window: sample only once step k-1-staleness is committed, and not while weights are published: for a rollout
            with one set of weights. A sync that is due comes before a dispatch that is.
          stagger: hold the second batch of a run until its first step is committed, so that the rollout does not
            begin with a burst; nothing else waits for it.
        """
        given = {"prompts": prompts, "samples": samples, "extra": extra, "keep": keep, "most": most}
        flags = {"window": window or None, "stagger": stagger or None}
        self._tracer.emit(BUILTIN["dispatch"], (), {**given, **flags})

    @recorded
    def take(self) -> Traced:
        """Wait for the step's groups and take them: groups."""
        return self._tracer.emit(BUILTIN["take"])[0]

    @recorded
    def reward(self, groups: Traced) -> Traced:
        """Score each completion with the bound reward: groups with ``rewards``."""
        return self._tracer.emit(BUILTIN["reward"], (groups,))[0]

    @recorded
    def advantages(self, groups: Traced, *, estimator: str = "grpo") -> Traced:
        """Turn rewards into advantages: groups with ``advantages``.

        Args:
          groups: groups with ``rewards``.
          estimator: ``grpo``, ``dr_grpo`` and ``rloo`` look at one group, ``reinforce_pp`` at the whole step.
        """
        return self._tracer.emit(BUILTIN["advantages"], (groups,), {"estimator": estimator})[0]

    @recorded
    def pack(self, groups: Traced) -> Traced:
        """Pack sequences into micro-batches of fixed shape: a batch. Reads ``advantages``."""
        return self._tracer.emit(BUILTIN["pack"], (groups,))[0]

    @recorded
    def stream(self, *, estimator: str = "grpo") -> Stream:
        """Groups as they arrive, taken, scored and packed one by one; for ``step.micro_batches`` only.

        Args:
          estimator: how rewards become advantages; one that looks at one group only.
        """
        loc = self._tracer.require_open("`stream`")
        try:
            attributes(BUILTIN["stream_mb"], {"estimator": estimator}, loc)
        except SteptraceError as error:
            raise self._tracer.refuse(error) from None
        stream = Stream(self._tracer, estimator)
        self._tracer.expect(stream, UnusedError("the stream is never used", loc=loc))
        return stream

    # Loops

    @recorded
    def micro_batches(self, batch: Traced | Stream) -> TracedLoop:
        """The micro-batches of a packed batch, or of a stream; traced once, their number is a run-time fact.

        A count kept in Python (``enumerate``) counts the one pass that is traced: write ``step.first``,
        ``step.last`` or ``step.micro_is(3)`` instead.

        Args:
          batch: what ``pack`` or ``stream`` returned.
        """
        if isinstance(batch, Stream):
            return self._streamed(batch)
        row = BUILTIN["next_mb"]
        over = self._tracer.operand(row, 0, batch)
        return TracedLoop(
            self._tracer, "micro_batches", lambda _: self._tracer.emit(row, (batch,))[0], over=Use(over.name)
        )

    def _streamed(self, stream: Stream) -> TracedLoop:
        self._tracer.settle(stream)
        if stream.tracer is not self._tracer:
            raise self._tracer.refuse(NotTracedError("the stream belongs to another trace", loc=user_loc()))
        attrs = {"estimator": stream.estimator}
        return TracedLoop(
            self._tracer, "micro_batches", lambda _: self._tracer.emit(BUILTIN["stream_mb"], (), attrs)[0]
        )

    @recorded
    def mini_batches(self, groups: Traced, count: int) -> TracedLoop:
        """``count`` parts of the groups, in order; each one is groups again.

        Args:
          groups: groups of the step.
          count: number of parts, at least 1.
        """
        parts = self._positive("the number of mini-batches", count)
        row = BUILTIN["next_part"]
        over = self._tracer.operand(row, 0, groups)
        return TracedLoop(
            self._tracer,
            "mini_batches",
            lambda _: self._tracer.emit(row, (groups,))[0],
            over=Use(over.name),
            count=parts,
        )

    @recorded
    def epochs(self, count: int) -> TracedLoop:
        """The body ``count`` times over the same samples, as PPO does; the counter is not a value."""
        passes = self._positive("the number of epochs", count)

        def counter(loop: OpenLoop) -> Traced:
            return Traced(self._tracer, self._tracer.define(loop.var, Type("scalar"), loop.loc, counter=True))

        return TracedLoop(self._tracer, "repeat", counter, count=passes)

    # A micro-batch

    @recorded
    def ref_logps(self, mb: Traced) -> Traced:
        """Log-probs under the frozen reference: the micro-batch with ``ref_logps``."""
        return self._tracer.emit(BUILTIN["ref_logps"], (mb,))[0]

    @recorded
    def old_logps(self, mb: Traced) -> Traced:
        """Log-probs under the actor as it is now: the micro-batch with ``old_logps``."""
        return self._tracer.emit(BUILTIN["old_logps"], (mb,))[0]

    @recorded
    def fwd_bwd(self, mb: Traced) -> None:
        """Forward and backward of one micro-batch; adds its gradient sums to the accumulator."""
        self._tracer.emit(BUILTIN["fwd_bwd"], (mb,))

    # The end of a step

    @recorded
    def update(self) -> None:
        """Apply the accumulated gradient once and clear the accumulator."""
        self._tracer.emit(BUILTIN["update"])

    @recorded
    def get_metrics(self) -> Traced:
        """Fetch the step's metrics once its update is confirmed: metrics."""
        return self._tracer.emit(BUILTIN["get_metrics"])[0]

    @recorded
    def save_checkpoint(self) -> None:
        """Save all that a resumed run needs."""
        self._tracer.emit(BUILTIN["save_checkpoint"])

    @recorded
    def sync_weights(self) -> Traced:
        """Publish a copy of the parameters to the rollout: the version they are published under."""
        return self._tracer.emit(BUILTIN["sync_weights"])[0]

    @recorded
    def commit(self) -> None:
        """Mark the step's groups as trained; opens the window of dispatches that have one."""
        windows = any(op.kind == "dispatch" and op.attr("window") for op in ops_of(tuple(self._tracer.body)))
        self._tracer.emit(BUILTIN["commit"], (), {"window": windows or None})

    @recorded
    def log(self, metrics: Traced) -> None:
        """Write the step's metrics to the trackers."""
        self._tracer.emit(BUILTIN["log"], (metrics,))

    @recorded
    def on_step_begin(self, *, reads: Sequence[Pattern] | None = None, writes: Sequence[Pattern] | None = None) -> None:
        """Call users' ``on_step_begin``.

        Args:
          reads: resources that the callback reads; with neither given it is a full barrier.
          writes: resources that it writes.
        """
        self._callback("on_step_begin", reads, writes)

    @recorded
    def on_step_end(self, *, reads: Sequence[Pattern] | None = None, writes: Sequence[Pattern] | None = None) -> None:
        """Call users' ``on_step_end``.

        Args:
          reads: resources that the callback reads; with neither given it is a full barrier.
          writes: resources that it writes.
        """
        self._callback("on_step_end", reads, writes)

    def _callback(self, kind: str, reads: Sequence[Pattern] | None, writes: Sequence[Pattern] | None) -> None:
        loc = self._tracer.require_open(f"`{kind}`")
        declared = {
            name: patterns(given, name, loc)
            for name, given in (("reads", reads), ("writes", writes))
            if given is not None
        }
        self._tracer.emit(BUILTIN[kind], (), declared)

    @recorded
    def free(self) -> None:
        """Release the host memory of the step; stands last in the step unless written."""
        self._tracer.emit(BUILTIN["free"])

    # Conditions

    @property
    def first(self) -> Condition:
        """True for the first micro-batch of the step."""
        return Condition(self._tracer, First())

    @property
    def last(self) -> Condition:
        """True for the last micro-batch of the step."""
        return Condition(self._tracer, Last())

    @recorded
    def micro_is(self, index: int) -> Condition:
        """True for micro-batch ``index`` of the step, counted from 0."""
        if index != 0:
            self._positive("the index of a micro-batch", index)
        return Condition(self._tracer, MicroIs(index))

    @recorded
    def has(self, capability: str) -> Condition:
        """True when the target that the program is lowered to reports the capability."""
        if not isinstance(capability, str) or not capability.isidentifier():
            loc = user_loc()
            raise self._tracer.refuse(AttributeValueError(f"a capability is a name, not {capability!r}", loc=loc))
        return Condition(self._tracer, Has(capability))

    @recorded
    def every(self, period: int) -> Condition:
        """``with step.every(n):`` the last of each ``n`` steps."""
        condition = Condition(self._tracer, Every(self._positive("a period", period)))
        self._tracer.expect_use(condition)
        return condition

    @recorded
    def when(self, condition: Traced | Condition) -> Condition:
        """``with step.when(flag & ~step.first):`` what is inside runs only when the condition is true."""
        self._tracer.require_open("`when`")
        given = as_condition(condition, self._tracer)
        self._tracer.settle(given)
        chosen = Condition(self._tracer, given._predicate, given._flags)
        self._tracer.expect_use(chosen)
        return chosen

    # Over steps

    @recorded
    def carry(self, name: str, *, init: float) -> CarriedValue:
        """A number carried from step to step: ``.value`` is the previous step's, ``.set(value)`` this step's.

        Args:
          name: its name in the IR.
          init: the value before step 0.
        """
        return declare(self._tracer, name, init)

    def _positive(self, what: str, value: object) -> int:
        loc = self._tracer.require_open(what)
        try:
            return positive(what, value, loc)
        except AttributeValueError as error:
            raise self._tracer.refuse(error) from None
