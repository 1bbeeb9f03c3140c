"""Mutants of a schedule: every single edit of it, and what checker and judge say of each.

A mutant is killed when the checker refuses it and the judge finds it different, equal when the judge finds it equal
(whether it is accepted, or refused by a rule that is stricter than needed there), and escaped when the checker accepts
it and it is different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from steptrace.check import check_schedule, reference_of
from steptrace.diag.base import SteptraceError
from steptrace.ir.program import Loop, Node, Op, Program, ops_of
from steptrace.ir.verify import verify
from steptrace.lang.reference import resolve
from steptrace.passes import PIPELINES, run_pipeline
from steptrace.programs import NAMES
from steptrace.testing.judge import Verdict, judge
from steptrace.testing.overlap import Wait
from steptrace.testing.runs import Source, source_of
from steptrace.testing.soundness import every_wait, waits_between

KINDS = (
    "drop a wait",
    "swap two ops",
    "move an op by one place",
    "move an op by one step",
    "wrong index",
    "wrong lane",
    "known to slip through",
)
"""The kinds of mutants. Those of the last kind are four that a well-known suite of tests lets through."""

SYNCS, UPDATES = ("sync_weights", "copy_weights"), ("update", "apply_deferred_update")
"""The ops that publish the weights (or copy them to be published), and those that apply the gradient."""

CALLS = ("fwd_bwd", "fwd_bwd_staged", "attempt_fwd_bwd", "attempt_staged")
"""The training calls."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A schedule to be mutated.

    Attributes:
      name: for the reader.
      schedule: the schedule.
      source: what it came from.
    """

    name: str
    schedule: Program
    source: Program


@dataclass(frozen=True, slots=True)
class Mutant:
    """A schedule after one edit.

    Attributes:
      kind: one of ``KINDS``.
      edit: the edit in words.
      schedule: the schedule after it.
      waits: its waits, where the edit is one of them; else None.
    """

    kind: str
    edit: str
    schedule: Program
    waits: tuple[Wait, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant.

    Attributes:
      mutant: the mutant.
      refusal: the code of the checker's refusal; "" when it accepted.
      verdict: what the judge says.
    """

    mutant: Mutant
    refusal: str
    verdict: Verdict

    @property
    def fate(self) -> str:
        """Killed, equal or escaped."""
        if self.verdict.equal:
            return "equal"
        return "killed" if self.refusal else "escaped"


FURTHER = (
    ("grpo{staleness=0}", "stream-micro-batches"),
    ("grpo{staleness=1}", "stream-micro-batches,take-ahead"),
    ("grpo{staleness=1}", "stream-micro-batches,pipelined-boundary-replayed"),
    ("grpo{staleness=2}", "stream-micro-batches,pipeline-micro-batches,replay{late=2},defer-update"),
    ("grpo{staleness=0}", "replay{late=0}"),
    ("grpo{staleness=2}", "take-ahead{depth=2},replay,async-weight-sync"),
    ("grpo{staleness=1, saves=may_fail_late}", "async-weight-sync,async-checkpoint,memory-budget"),
    (
        "grpo{staleness=1, saves=may_fail_late}",
        "stream-micro-batches,take-ahead,async-weight-sync,async-checkpoint,memory-budget{copies=2}",
    ),
    ("grpo_stream{staleness=1}", "take-ahead,release-buffers{ring=3}"),
    ("grpo{staleness=1}", "release-buffers{ring=3},take-ahead,stage-after-update"),
)
"""Programs with pipelines without a name: streamed steps, calls settled late, copies in a pool, buffers in a ring."""


def subjects() -> Iterator[Subject]:
    """Each built-in program at staleness 0 and 1, as it is and under each named pipeline, then ``FURTHER``; each
    schedule once."""
    for name in NAMES:
        seen: set[Program] = set()
        for staleness in (0, 1):
            source = resolve(f"{name}{{staleness={staleness}}}")
            for pipeline in ("", *PIPELINES):
                made = run_pipeline(source, pipeline).schedule if pipeline else None
                schedule, origin = (made.program, made.source) if made else (source, source)
                if schedule not in seen:
                    seen.add(schedule)
                    yield Subject(f"{name}{{staleness={staleness}}} {pipeline}".strip(), schedule, origin)
    for name, pipeline in FURTHER:
        derived = run_pipeline(resolve(name), pipeline).schedule
        yield Subject(f"{name} {pipeline}", derived.program, derived.source)


def outcomes(subject: Subject) -> Iterator[Outcome]:
    """Judges every mutant of a schedule."""
    reference = reference_of(subject.schedule, subject.source)
    source = source_of(reference)
    needed = waits_between(subject.schedule, reference)
    for mutant in mutants(subject.schedule, needed):
        yield outcome(subject, source, needed, mutant)


def outcome(subject: Subject, source: Source, needed: Sequence[Wait], mutant: Mutant) -> Outcome:
    """Judges one mutant.

    Args:
      subject: the schedule that it was made of.
      source: the reference of that schedule, made ready.
      needed: the waits of that schedule.
      mutant: the mutant.
    """
    refusal = _refusal(subject, needed, mutant)
    if mutant.waits is not None:
        waits: Sequence[Wait] = mutant.waits
    elif refusal:
        waits = every_wait(mutant.schedule, source.program)
    else:
        waits = waits_between(mutant.schedule, reference_of(mutant.schedule, subject.source))
    return Outcome(mutant, refusal, judge(source, mutant.schedule, waits))


def _refusal(subject: Subject, needed: Sequence[Wait], mutant: Mutant) -> str:
    """The code under which a mutant is refused, "" if it is accepted."""
    if mutant.waits is not None:
        return "" if set(needed) <= set(mutant.waits) else "missing wait"
    try:
        verify(mutant.schedule)
        check_schedule(mutant.schedule, subject.source)
    except SteptraceError as error:
        return error.code
    return ""


def mutants(schedule: Program, waits: Sequence[Wait]) -> Iterator[Mutant]:
    """Every mutant of a schedule, always in the same order."""
    yield from _of_waits(schedule, waits)
    yield from _of_order(schedule)
    for op in ops_of(schedule.body):
        yield from _of_shift(schedule, op)
        yield from _of_index(schedule, op)
        yield from _of_lane(schedule, op)
    yield from _of_loops(schedule)
    yield from slipping(schedule)


def _of_waits(schedule: Program, waits: Sequence[Wait]) -> Iterator[Mutant]:
    for at, wait in enumerate(waits):
        others = (*waits[:at], *waits[at + 1 :])
        yield Mutant("drop a wait", f"without: {wait}", schedule, others)
        later = wait._replace(distance=wait.distance + 1)
        yield Mutant("wrong index", f"waits one step back: {wait}", schedule, (*others, later))


def _bodies(nodes: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
    """The step, and the body of each loop in it."""
    yield nodes
    for node in nodes:
        if isinstance(node, Loop):
            yield from _bodies(node.body)


def _with_body(program: Program, old: tuple[Node, ...], new: tuple[Node, ...]) -> Program:
    """The program with one body in the place of another."""

    def visit(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        if nodes is old:
            return new
        return tuple(replace(node, body=visit(node.body)) if isinstance(node, Loop) else node for node in nodes)

    return replace(program, body=visit(program.body))


def _of_order(schedule: Program) -> Iterator[Mutant]:
    for body in _bodies(schedule.body):
        for at, other in combinations(range(len(body)), 2):
            swapped = list(body)
            swapped[at], swapped[other] = body[other], body[at]
            kind = "move an op by one place" if other == at + 1 else "swap two ops"
            edit = f"{body[at].id} and {body[other].id} in each other's place"
            yield Mutant(kind, edit, _with_body(schedule, body, tuple(swapped)))


def _of_shift(schedule: Program, op: Op) -> Iterator[Mutant]:
    for more in (1, -1):
        edit = f"{op.id} {'ahead' if more > 0 else 'behind'} by one"
        yield Mutant("move an op by one step", edit, _changed(schedule, op, shift=op.shift + more))


def _of_index(schedule: Program, op: Op) -> Iterator[Mutant]:
    for at, use in enumerate(op.args):
        for wrong in (replace(use, step=use.step - 1), replace(use, micro=use.micro - 1)):
            args = (*op.args[:at], wrong, *op.args[at + 1 :])
            yield Mutant("wrong index", f"{op.id} takes {wrong}", _changed(schedule, op, args=args))
    if op.micro is not None:
        edit = f"{op.id} stands for micro-batch {op.micro + 1}"
        yield Mutant("wrong index", edit, _changed(schedule, op, micro=op.micro + 1))


def _of_lane(schedule: Program, op: Op) -> Iterator[Mutant]:
    lanes = dict.fromkeys([*(other.lane for other in ops_of(schedule.body)), "packer", "io"])
    for lane in lanes:
        if lane != op.lane:
            yield Mutant("wrong lane", f"{op.id} on {lane}", _changed(schedule, op, lane=lane))


def _of_loops(schedule: Program) -> Iterator[Mutant]:
    for body in _bodies(schedule.body):
        for at, node in enumerate(body):
            if not isinstance(node, Loop):
                continue
            for start in {node.start + 1, max(node.start - 1, 0)} - {node.start}:
                changed = (*body[:at], replace(node, start=start), *body[at + 1 :])
                yield Mutant("wrong index", f"{node.id} from {start}", _with_body(schedule, body, changed))


def _changed(schedule: Program, op: Op, **fields: object) -> Program:
    """The schedule with an op changed."""
    body = next(body for body in _bodies(schedule.body) if any(node is op for node in body))
    change: Callable[..., Op] = replace
    new = change(op, **fields)
    return _with_body(schedule, body, tuple(new if node is op else node for node in body))


def slipping(schedule: Program) -> Iterator[Mutant]:
    """Weight sync before the update, reference log-probs after the train call, commit before sync, log before it."""
    cases = (
        ("weight sync before the update", SYNCS, UPDATES, False),
        ("reference log-probs after the train call", ("ref_logps",), CALLS, True),
        ("commit before sync", ("commit",), SYNCS, False),
        ("log before commit", ("log",), ("commit",), False),
    )
    for edit, movers, anchors, behind in cases:
        for body in _bodies(schedule.body):
            moved = _beside(body, movers, anchors, behind)
            if moved is not None:
                yield Mutant("known to slip through", edit, _with_body(schedule, body, moved))


def _beside(
    body: tuple[Node, ...], movers: Iterable[str], anchors: Iterable[str], behind: bool
) -> tuple[Node, ...] | None:
    """The body with an op moved right before (or behind) another, on its lane; None where it does not hold both."""
    mover = next((node for node in body if isinstance(node, Op) and node.kind in movers), None)
    rest = [node for node in body if node is not mover]
    at = next((at for at, node in enumerate(rest) if isinstance(node, Op) and node.kind in anchors), None)
    if mover is None or at is None:
        return None
    anchor = rest[at]
    assert isinstance(anchor, Op), "anchors are ops"
    mover = replace(mover, lane=anchor.lane, shift=anchor.shift)
    rest.insert(at + behind, mover)
    return tuple(rest)
