"""The parts of a graph whose events all lead to one another."""

from __future__ import annotations

from collections.abc import Iterable

from steptrace.cost.folded import Arc


def components(arcs: Iterable[Arc], size: int) -> list[list[int]]:
    """The strongly connected parts of a graph, each behind those that lead to it (Tarjan 1972, without recursion)."""
    after: list[list[int]] = [[] for _ in range(size)]
    for arc in arcs:
        after[arc.source].append(arc.target)
    found: list[list[int]] = []
    number, low, open_ = [-1] * size, [0] * size, [False] * size
    stack: list[int] = []
    count = 0
    for start in range(size):
        if number[start] >= 0:
            continue
        path = [(start, iter(after[start]))]
        number[start] = low[start] = count
        count += 1
        stack.append(start)
        open_[start] = True
        while path:
            event, targets = path[-1]
            for target in targets:
                if number[target] < 0:
                    number[target] = low[target] = count
                    count += 1
                    stack.append(target)
                    open_[target] = True
                    path.append((target, iter(after[target])))
                    break
                if open_[target]:
                    low[event] = min(low[event], number[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[event])
                if low[event] == number[event]:
                    part: list[int] = []
                    while not part or part[-1] != event:
                        part.append(stack.pop())
                        open_[part[-1]] = False
                    found.append(part)
    return found[::-1]
