"""Ratios, room and paces of random graphs, each beside what looking at every pair of events gives."""

from __future__ import annotations

import sys
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import pytest

import steptrace
from steptrace.cost import bound_of, period_of
from steptrace.cost.components import components
from steptrace.cost.folded import Arc, Folded, forwards
from steptrace.cost.moments import Name
from steptrace.cost.ratio import largest_ratio, ratio_of
from steptrace.cost.shared import Paces
from steptrace.lower import lower
from steptrace.passes import run_pipeline
from steptrace.simulate import Cost, Durations

slacks = sys.modules["steptrace.cost.slack"]
"""The module: the package has a function of that name."""

SEEDS = range(80)
NEVER = float("inf")


def drawn(seed: int) -> Folded:
    """A graph of a few parts; ties are frequent, and within a turn nothing leads around in a circle."""
    rng = Random(seed)
    size = rng.randint(2, 12)
    level = [rng.random() for _ in range(size)]
    arcs: dict[tuple[int, int, int], Arc] = {}
    for _ in range(rng.randint(size, 3 * size)):
        source, target = rng.randrange(size), rng.randrange(size)
        turns = rng.choice((0, 1, 1, 2)) if level[source] < level[target] else rng.choice((1, 1, 2))
        arcs[source, target, turns] = Arc(source, target, float(rng.choice((0, 1, 1, 2, 3, 7))), turns)
    names = tuple((Name(f"op{event % 5}", (), 1, "host"), 0) for event in range(size))
    return Folded(names, forwards(arcs.values(), size), 1)


def rooms_between(graph: Folded, ratio: float) -> list[list[float]]:
    """The least room on the way from each event to each other one, or around to itself (Floyd and Warshall)."""
    size = len(graph.names)
    best = [[NEVER] * size for _ in range(size)]
    for arc in graph.arcs:
        best[arc.source][arc.target] = min(best[arc.source][arc.target], ratio * arc.turns - arc.seconds)
    for over in range(size):
        for source in range(size):
            for target in range(size):
                best[source][target] = min(best[source][target], best[source][over] + best[over][target])
    return best


def ratio_by_bisection(graph: Folded) -> float:
    """The least ratio at which no circle has less than no room."""
    low, high = 0.0, 100.0
    for _ in range(45):
        middle = (low + high) / 2
        best = rooms_between(graph, middle)
        low, high = (middle, high) if any(best[at][at] < -1e-12 for at in range(len(best))) else (low, middle)
    return high


def leads(graph: Folded) -> list[set[int]]:
    """Of each event, those that lead to it, and itself."""
    best = rooms_between(graph, 0.0)
    size = len(graph.names)
    return [{one for one in range(size) if one == event or best[one][event] < NEVER} for event in range(size)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_largest_ratio_is_that_of_looking_at_all_circles(seed: int):
    graph = drawn(seed)
    largest = largest_ratio(graph)
    assert float(largest.ratio) == pytest.approx(ratio_by_bisection(graph), abs=1e-9)
    if largest.circle:
        assert all(one.target == other.source for one, other in pairwise((*largest.circle, largest.circle[0])))
        assert ratio_of(largest.circle) == largest.ratio


def wrong_rooms(seed: int) -> list[int]:
    """The events whose room is another one than that of the tightest circle through them."""
    graph = drawn(seed)
    largest = largest_ratio(graph)
    best = rooms_between(graph, float(largest.ratio))
    found = slacks._least_rooms(SimpleNamespace(graph=graph, largest=largest))
    return [event for event, room in enumerate(found) if room != pytest.approx(best[event][event], abs=1e-9)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_room_of_an_event_is_that_of_the_tightest_circle_through_it(seed: int):
    assert wrong_rooms(seed) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_an_event_comes_as_fast_as_the_slowest_circle_that_leads_to_it(seed: int):
    graph = drawn(seed)
    paces = Paces(graph, largest_ratio(graph))._paces
    for event, before in enumerate(leads(graph)):
        arcs = tuple(arc for arc in graph.arcs if arc.source in before and arc.target in before)
        assert float(paces[event]) == pytest.approx(ratio_by_bisection(Folded(graph.names, arcs, 1)), abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_components_are_events_that_lead_to_one_another_in_order(seed: int):
    graph = drawn(seed)
    before, found = leads(graph), components(graph.arcs, len(graph.names))
    assert sorted(event for part in found for event in part) == list(range(len(graph.names)))
    part_of = {event: at for at, part in enumerate(found) for event in part}
    for one in part_of:
        for other in part_of:
            assert (part_of[one] == part_of[other]) == (one in before[other] and other in before[one])
    assert all(part_of[arc.source] <= part_of[arc.target] for arc in graph.arcs)


def test_several_parts_and_events_on_no_circle_are_among_the_graphs():
    """Or the tests above would show less than they say."""
    graphs = [drawn(seed) for seed in SEEDS]
    assert sum(len(components(graph.arcs, len(graph.names))) > 1 for graph in graphs) > 50
    assert sum(len({*largest.late}) > 1 for largest in map(largest_ratio, graphs)) > 50
    rooms = [slacks._least_rooms(SimpleNamespace(graph=graph, largest=largest_ratio(graph))) for graph in graphs]
    assert sum(float("inf") in found for found in rooms) > 30
    assert sum(any(0 < room < float("inf") for room in found) for found in rooms) > 50


def test_control_rooms_without_the_way_back_are_seen(monkeypatch: pytest.MonkeyPatch):
    plain, calls = slacks._shortest, []

    def only_away(rooms, arcs):
        calls.append(rooms)
        if len(calls) % 2:
            plain(rooms, arcs)

    monkeypatch.setattr(slacks, "_shortest", only_away)
    assert any(map(wrong_rooms, SEEDS))


def test_arcs_within_a_turn_stand_behind_all_that_leads_to_them():
    for seed in SEEDS:
        graph = drawn(seed)
        for at, arc in enumerate(graph.arcs):
            assert arc.turns > 0 or all(other.target != arc.source for other in graph.arcs[at:])


def looks(monkeypatch: pytest.MonkeyPatch, micro_batches: int) -> int:
    """How often all arcs were gone through for the period, the bound and the slack of a step with so many."""
    from steptrace.cost import ratio

    seen: list[int] = []

    class Counted(list):
        def __init__(self, arcs, width):
            super().__init__(arcs)
            self.width = width

        def __iter__(self):
            seen.extend([1] * self.width)  # of each column
            return super().__iter__()

    shortest, circles = slacks._shortest, ratio._circle_of
    monkeypatch.setattr(ratio, "_circle_of", lambda via: seen.append(1) or circles(via))
    monkeypatch.setattr(slacks, "_shortest", lambda rooms, arcs: shortest(rooms, Counted(arcs, rooms.shape[1])))
    source = steptrace.resolve("grpo{staleness=1, save_every=4}")
    schedule = run_pipeline(source, "pipelined-boundary").schedule
    durations = Durations({"fwd_bwd": Cost(0.001, 1.0), "log": Cost(0.5)}, Cost(0.01))
    plan = lower(schedule.program, source=schedule.source)
    slacks.instance_slack(period_of(plan, durations, micro_batches=micro_batches))
    bound_of(source, durations, micro_batches=micro_batches)
    monkeypatch.undo()
    return len(seen)


def test_it_takes_no_more_looks_at_larger_steps(monkeypatch: pytest.MonkeyPatch):
    """Each look goes through all arcs, so what a plan costs grows with the step, and not with its square."""
    assert looks(monkeypatch, 24) <= looks(monkeypatch, 6) + 4


def test_control_arcs_in_a_bad_order_take_more_and_more_looks(monkeypatch: pytest.MonkeyPatch):
    found = []
    for micro_batches in (6, 24):
        for module in ("bound", "folded"):
            monkeypatch.setattr(
                f"steptrace.cost.{module}.forwards", lambda arcs, size: tuple(sorted(arcs, key=lambda arc: -arc.source))
            )
        found.append(looks(monkeypatch, micro_batches))
    assert found[1] > 1.5 * found[0]
