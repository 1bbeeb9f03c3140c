"""The edges order exactly the pairs of instances that conflict or hand over a value, on random programs."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from steptrace.check import Edge, edges_of, peel_first
from steptrace.ir import Program
from tests.check.small import Event, Facts, Inst, Order, can_peel, random_program

COUNTS = ((3, 3, 3, 3), (0, 2, 0, 3), (1, 0, 0, 2), (2, 1, 3, 0), (0, 0, 0, 0), (1, 1, 1, 1))


def expanded(edges: tuple[Edge, ...], facts: Facts) -> list[tuple[Event, Event]]:
    """The edges between instances: those at their distance, and at larger ones where an edge says so."""
    found = []
    by_op: dict[str, list[Inst]] = {}
    for inst, _ in facts.run:
        by_op.setdefault(inst.op, []).append(inst)
    for edge in edges:
        for a in by_op.get(edge.before, ()):
            for b in by_op.get(edge.after, ()):
                steps, micro = b.k - a.k, (b.m or 0) - (a.m or 0)
                if edge.micro is not None:
                    holds = steps == 0 and (micro >= edge.micro if edge.persists else micro == edge.micro)
                else:
                    holds = steps >= edge.distance if edge.persists else steps == edge.distance
                if holds and a != b:
                    found.append(((a, edge.from_event), (b, "issue")))
    return found


def given_program(seed: int) -> Program:
    rng = random.Random(seed)
    program = random_program(rng)
    return peel_first(program, "micro") if can_peel(program) and rng.random() < 0.4 else program


def differences(program: Program, edges: tuple[Edge, ...], counts: tuple[int, ...]) -> tuple[set, set]:
    """Pairs that the edges miss, and pairs that they add."""
    facts = Facts(program, counts)
    wanted = Order(facts, [((a, event), (b, "issue")) for a, b, event in facts.pairs()]).pairs()
    had = Order(facts, expanded(edges, facts)).pairs()
    return wanted - had, had - wanted


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(COUNTS))
def test_edges_order_exactly_what_conflicts(seed: int, counts: tuple[int, ...]) -> None:
    program = given_program(seed)
    assert differences(program, edges_of(program), counts) == (set(), set())


def test_control_a_dropped_edge_is_missed() -> None:
    dropped = missed = 0
    for program in map(given_program, range(12)):
        edges = edges_of(program)
        for at in range(len(edges)):
            dropped += 1
            missed += bool(differences(program, edges[:at] + edges[at + 1 :], (0, 3, 1))[0])
    assert missed > dropped / 2, "most edges are needed by themselves"


def test_control_an_edge_too_many_is_seen() -> None:
    program = next(p for p in map(given_program, range(100)) if len(edges_of(p)) > 3)
    ops = [op.id for op in program.ops()]
    extra = replace(edges_of(program)[0], before=ops[-1], after=ops[0], distance=0, micro=None)
    assert differences(program, (*edges_of(program), extra), (3, 3, 3, 3))[1]
