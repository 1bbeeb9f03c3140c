"""Verdicts about random schedules against brute force: every instance in its lane, run one by one."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from steptrace.check import check_order, peel_first, problems, waits_of
from steptrace.diag import SteptraceError
from steptrace.diag.schedule import DeadlockError, OrderError
from steptrace.ir import Loop, Op, Program
from tests.check.small import (
    Event,
    Facts,
    Inst,
    Order,
    can_peel,
    instances,
    lane_orders,
    random_program,
    random_schedule,
)

LANES = ("host", "packer", "io")


def given_pair(seed: int, lanes: tuple[str, ...], most: int = 6) -> tuple[Program, Program]:
    """A random reference and a random schedule of it."""
    rng = random.Random(seed)
    reference = random_program(rng, most=most, barriers=rng.random() < 0.3)
    if can_peel(reference) and rng.random() < 0.4:
        reference = peel_first(reference, "micro")
    return reference, random_schedule(rng, reference, lanes=lanes, edits=rng.randint(1, 5))


def runs_to_the_end(program: Program, reference: Program, counts: tuple[int, ...]) -> bool:
    """Whether the lanes come to their ends when each op waits for all that must come before it."""
    lanes = lane_orders(program, counts)
    needs: dict[Inst, set[Inst]] = {}
    for a, b, _ in Facts(reference, counts).pairs():
        needs.setdefault(b, set()).add(a)
    done: set[Inst] = set()
    heads = dict.fromkeys(lanes, 0)
    while True:
        ready = [
            lane for lane, run in lanes.items() if heads[lane] < len(run) and needs.get(run[heads[lane]], set()) <= done
        ]
        if not ready:
            return all(heads[lane] == len(run) for lane, run in lanes.items())
        for lane in ready:
            done.add(lanes[lane][heads[lane]])
            heads[lane] += 1


def accepted(program: Program, reference: Program) -> bool:
    """The verdict of the checker."""
    return next(iter(problems(program, reference)), None) is None


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(((3,) * 6, (0, 3, 1, 0, 2, 3), (2, 0, 0, 0, 0, 1), (1,) * 6)))
def test_one_lane(seed: int, counts: tuple[int, ...]) -> None:
    reference, program = given_pair(seed, ("host",))
    kept = runs_to_the_end(program, reference, counts)
    if accepted(program, reference):
        assert kept
    elif min(counts) == 3:
        assert not kept


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_several_lanes_lock_up_exactly_when_the_graph_says_so(seed: int) -> None:
    reference, program = given_pair(seed, LANES)
    assert accepted(program, reference) == runs_to_the_end(program, reference, (4,) * 8)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 3))
def test_capacities(seed: int, capacity: int) -> None:
    reference, program = given_pair(seed, LANES)
    resources = tuple(replace(r, capacity=capacity) if r.name == "r" else r for r in reference.resources)
    reference, program = replace(reference, resources=resources), replace(program, resources=resources)
    assert accepted(program, reference) == runs_to_the_end(program, reference, (3,) * 8)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(((0, 3, 1, 0, 2, 3), (2, 0, 0, 0, 0, 1), (5, 0, 5))))
def test_what_is_accepted_runs_for_unequal_counts(seed: int, counts: tuple[int, ...]) -> None:
    reference, program = given_pair(seed, LANES)
    if accepted(program, reference):
        assert runs_to_the_end(program, reference, counts)


def waited(program: Program, reference: Program, facts: Facts) -> list[tuple[Event, Event]]:
    """What lanes and waits order: each lane its own ops, and each wait what its lane has gone past."""
    lanes, counts = lane_orders(program, facts.counts), facts.counts
    blocking = {inst: not facts.asynchronous(op) for inst, op in facts.run}
    arcs: list[tuple[Event, Event]] = []
    for run in lanes.values():
        for one, other in pairwise(run):
            arcs.append(((one, "done" if blocking[one] else "issue"), (other, "issue")))
    shifts = {op.id: op.shift for op in program.ops()}
    spots = {}
    for position, node in enumerate(program.body):
        for inner, op in enumerate(node.body if isinstance(node, Loop) else (node,)):
            spots[op.id] = (position, inner, isinstance(node, Loop))

    def key(op: str, k: int, m: int | None) -> tuple[int, ...]:
        position, inner, looped = spots[op]
        return (k, position, (m or 0) - shifts[op], inner) if looped else (k - shifts[op], position, 0, 0)

    for wait in waits_of(program, reference):
        edge = wait.edge
        for b, _ in facts.run:
            if b.op != edge.after or b.k < edge.distance:
                continue
            k = b.k - edge.distance
            m = (b.m or 0) - edge.micro if edge.micro is not None else counts[k] - 1
            limit = key(edge.before, k, m)
            for a in lanes.get(wait.from_lane, ()):
                if wait.device and (a.op != edge.before or key(a.op, a.k, a.m) > limit):
                    continue
                if key(a.op, a.k, a.m) <= limit and a != b and (wait.from_lane != wait.to_lane or wait.device):
                    arcs.append(((a, "done" if wait.device or blocking[a] else "issue"), (b, "issue")))
    return arcs


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(((3, 3, 3, 3), (0, 2, 0, 3), (2, 1, 0, 0))))
def test_lanes_and_waits_give_every_order(seed: int, counts: tuple[int, ...]) -> None:
    reference, program = given_pair(seed, LANES, most=5)
    if not accepted(program, reference):
        return
    facts = Facts(reference, counts)
    order = Order(facts, waited(program, reference, facts))
    assert not order.cyclic()
    for a, b, event in facts.pairs():
        assert order.before((a, event), (b, "issue")), (a, b, event)


def test_control_without_a_wait_an_order_is_missing() -> None:
    missing = 0
    for seed in range(60):
        reference, program = given_pair(seed, LANES, most=4)
        if not accepted(program, reference):
            continue
        facts = Facts(reference, (2, 2, 2, 2))
        bare = Order(facts, [arc for arc in waited(program, reference, facts) if arc[0][0].op == arc[1][0].op])
        missing += any(not bare.before((a, event), (b, "issue")) for a, b, event in facts.pairs())
    assert missing > 5


def test_both_verdicts_are_common() -> None:
    verdicts = [accepted(*reversed(given_pair(seed, LANES))) for seed in range(200)]
    assert 40 < sum(verdicts) < 160


def test_refusals_name_their_kind() -> None:
    kinds = set()
    for seed in range(300):
        reference, program = given_pair(seed, LANES)
        kinds |= {type(problem) for problem in problems(program, reference)}
    assert {OrderError, DeadlockError} <= kinds


def test_the_reference_is_a_schedule_of_itself() -> None:
    for seed in range(100):
        reference, _ = given_pair(seed, LANES)
        check_order(reference, reference)


def test_control_the_runner_finds_a_known_lock_up() -> None:
    for seed in range(200):
        reference, program = given_pair(seed, LANES)
        error: SteptraceError | None = next(iter(problems(program, reference)), None)
        if isinstance(error, DeadlockError):
            assert not runs_to_the_end(program, reference, (4,) * 8)
            one_lane = replace(reference, body=tuple(_on_host(node) for node in reference.body))
            assert runs_to_the_end(one_lane, reference, (4,) * 8)
            return
    raise AssertionError("no lock-up among the schedules")


def _on_host(node: Op | Loop) -> Op | Loop:
    if isinstance(node, Op):
        return replace(node, lane="host")
    return replace(node, body=tuple(_on_host(inner) for inner in node.body))


def test_instances_are_counted_as_the_lanes_run_them() -> None:
    for seed in range(100):
        reference, program = given_pair(seed, LANES)
        counts = (0, 3, 1, 2)
        run = [inst for lane in lane_orders(program, counts).values() for inst in lane]
        assert sorted(map(str, run)) == sorted(str(inst) for inst, _ in instances(reference, counts))
