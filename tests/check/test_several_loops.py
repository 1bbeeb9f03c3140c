"""Several loops over micro-batches in one step: edges for the lanes of a schedule judge as all pairs of edges do."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from steptrace.check import edges_of, find_cycle
from steptrace.check.edge import Edge
from steptrace.check.places import broken
from steptrace.ir import Given, Loop, Node, Op, OpKind, Program, Resource, ResourceKind, Result, Type, Use
from steptrace.ir.resource import ANY

RESOURCES = (
    Resource("a", ResourceKind.STATE),
    Resource("b", ResourceKind.STATE),
    Resource("q", ResourceKind.FIFO),
    Resource("c", ResourceKind.CHANNEL),
    Resource("r", ResourceKind.CELL),
)
PATTERNS = ("a", "a", "b", "q", "c", "r", "r[k]", "r[k-1]")
LANES = ("host", "packer", "trainer")


def looped(loops: int, width: int = 1, *, between: bool = False) -> Program:
    """A step of loops that each train on a stream of their own, and of ops between them."""
    kinds = [
        OpKind("head", results=(Given("mb", "value"),), reads=("a",), writes=("a",), user=True),
        OpKind("train", reads=("b",), writes=("b", "c"), user=True),
        OpKind("plain", reads=("r[k-1]",), writes=("r[k]",), user=True),
    ]
    body: list[Node] = []
    for at in range(loops):
        head = Op(f"head{at}", "head", results=(Result(f"mb{at}", Type("value")),))
        rest = tuple(Op(f"train{at}.{n}", "train", (Use(f"mb{at}"),)) for n in range(width))
        body.append(Loop(f"loop{at}", "micro_batches", "m", None, None, (head, *rest)))
        if between:
            body.append(Op(f"plain{at}", "plain"))
    return Program("looped", resources=RESOURCES, kinds=tuple(kinds), body=tuple(body))


def on_lanes(program: Program, lanes: dict[str, str]) -> Program:
    """The program with ops of some kinds on other lanes."""

    def placed(node: Node) -> Node:
        if isinstance(node, Op):
            return replace(node, lane=lanes.get(node.kind, node.lane))
        return replace(node, body=tuple(map(placed, node.body)))

    return replace(program, body=tuple(map(placed, program.body)))


@pytest.mark.parametrize("lanes", [{}, {"head": "packer"}])
@pytest.mark.parametrize("between", [False, True])
def test_edges_grow_with_the_loops_not_with_their_pairs(lanes: dict[str, str], between: bool) -> None:
    counts = []
    for loops in (10, 20, 40):
        program = looped(loops, between=between)
        counts.append(len(edges_of(program, on_lanes(program, lanes))))
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])


def test_control_on_a_lane_each_every_pair_needs_its_edge() -> None:
    program = looped(12)
    apart = replace(
        program,
        body=tuple(
            replace(node, body=tuple(replace(op, lane=f"lane{at}") for op in node.body if isinstance(op, Op)))
            for at, node in enumerate(program.body)
            if isinstance(node, Loop)
        ),
    )
    ends = {(edge.before, edge.after) for edge in edges_of(program, apart) if edge.distance == 0}
    assert {(f"train{a}.0", f"train{b}.0") for a in range(12) for b in range(a + 1, 12)} <= ends
    assert ("train0.0", "train2.0") not in {(edge.before, edge.after) for edge in edges_of(program)}


def random_program(rng: random.Random) -> Program:
    """Two to four loops with ops between them, with random effects."""
    kinds: list[OpKind] = []
    body: list[Node] = []

    def op() -> Op:
        name = f"op{len(kinds)}"
        reads, writes = (tuple(rng.sample(PATTERNS, rng.randint(0, 2))) for _ in range(2))
        awaits = (rng.choice("abc"),) if rng.random() < 0.15 else ()
        if rng.random() < 0.04:
            reads, writes, awaits = (ANY,), (ANY,), ()
        busy = rng.random() < 0.3
        device = rng.choice(("trainer", "reference")) if busy else ""
        kinds.append(
            OpKind(name, reads=reads, writes=writes, awaits=awaits, device=device, blocking=not busy, user=True)
        )
        return Op(name, name)

    def taking() -> Op:
        name = f"take{len(body)}"
        flags = tuple(Result(f"{flag}{len(body)}", Type("flag")) for flag in ("last", "exists"))
        return Op(name, "stream_mb", results=(Result(f"mb{len(body)}", Type("micro_batch")), *flags))

    for at in range(rng.randint(2, 4)):
        head = (taking(),) if rng.random() < 0.4 else ()
        inner = (*head, *(op() for _ in range(rng.randint(1, 2))))
        body.append(Loop(f"loop{at}", "micro_batches", "m", None, None, inner))
        if rng.random() < 0.4:
            body.append(op())
    return Program("several", resources=RESOURCES, kinds=tuple(kinds), body=tuple(body))


def random_schedule(rng: random.Random, program: Program) -> Program:
    """The program after some moves of its nodes, to other places, lanes and steps."""
    body = list(program.body)
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(body))
        node, what = body[at], rng.random()
        if what < 0.3 and at + 1 < len(body):
            body[at], body[at + 1] = body[at + 1], node
        elif isinstance(node, Op):
            body[at] = replace(node, lane=rng.choice(LANES), shift=rng.choice((0, 0, 1)))
        else:
            inner = list(node.body)
            which = rng.randrange(len(inner))
            lane, shift = rng.choice(LANES), rng.choice((0, 0, 0, 1))
            inner[which] = replace(inner[which], lane=lane, shift=shift)  # type: ignore[call-arg]
            body[at] = replace(node, body=tuple(inner))
    return replace(program, body=tuple(body))


def accepted(schedule: Program, edges: tuple[Edge, ...]) -> bool:
    return next(broken(schedule, edges), None) is None and not find_cycle(schedule, edges)


def all_pairs(program: Program) -> tuple[Edge, ...]:
    """The edges for a schedule with each loop's ops on lanes of their own, where no lane stands for any."""
    lanes = (f"lane{at}" for at in range(1000))

    def apart(node: Node) -> Node:
        if isinstance(node, Op):
            return replace(node, lane=next(lanes))
        return replace(node, body=tuple(map(apart, node.body)))

    return edges_of(program, replace(program, body=tuple(map(apart, program.body))))


def verdicts(count: int) -> list[tuple[bool, bool, int, int]]:
    """For random schedules: the verdict by all pairs of edges, that by the edges for its lanes, and their numbers."""
    found = []
    for seed in range(count):
        rng = random.Random(seed)
        program = random_program(rng)
        pairs = all_pairs(program)
        for _ in range(6):
            schedule = random_schedule(rng, program)
            edges = edges_of(program, schedule)
            found.append((accepted(schedule, pairs), accepted(schedule, edges), len(pairs), len(edges)))
    return found


def test_the_verdict_is_that_of_all_pairs() -> None:
    found = verdicts(250)
    assert [(whole, fewer) for whole, fewer, _, _ in found if whole != fewer] == []
    assert sum(whole for whole, _, _, _ in found) > len(found) / 5
    assert sum(not whole for whole, _, _, _ in found) > len(found) / 5
    assert sum(few < many for _, _, many, few in found) > len(found) / 4


def test_waits_between_lanes_are_all_kept() -> None:
    rng = random.Random(7)
    for _ in range(100):
        program = random_program(rng)
        schedule = random_schedule(rng, program)
        lane = {op.id: op.lane for op in schedule.ops()}
        crossing = {edge for edge in all_pairs(program) if lane[edge.before] != lane[edge.after]}
        assert crossing <= set(edges_of(program, schedule))
