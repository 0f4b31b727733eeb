"""Finds the shortest cycles of the dependency graph, kind by kind."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from frazil.verify.checker.edges import DATA, EVERYTHING, PROCESS, REAL_TIME, RW, WR, WW, Component, Graph

STEPS = 3_000_000
"""How many edges are followed in one component before the search is cut short."""
STARTS = 2_000
"""From how many edges of one component a cycle is searched."""


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a cycle from transaction to transaction, helper nodes left out."""

    before: int
    after: int
    kind: int
    edge: int
    """The edge that leaves ``before``."""


Cycle = tuple[Link, ...]


@dataclass(slots=True)
class Budget:
    """The remaining work that may be spent on a component."""

    steps: int = STEPS

    @property
    def is_spent(self) -> bool:
        return self.steps <= 0


@dataclass(slots=True)
class Found:
    """The cycles of one search, the shortest of each component first."""

    cycles: list[Cycle]
    cut_short: int = 0
    """The number of components in which the search ended early."""


def search(graph: Graph, table: int | None, witnesses: int, *, in_time: bool) -> Found:
    """Cycles of every class. ``in_time``: also search for those that need process order or real time."""
    found = Found([])
    for component in graph.components(WW, table):
        _close(component, WW, WW, False, witnesses, found)
    for component in graph.components(WW | WR, table):
        _close(component, WR, WW | WR, False, witnesses, found)
    tangled: set[int] = set()
    for component in graph.components(DATA, table):
        tangled.update(component.edges)
        # Exactly one anti-dependency, then several apart from each other, then any.
        _close(component, RW, WW | WR, False, witnesses, found)
        _close(component, RW, DATA, True, witnesses, found)
        _close(component, RW, DATA, False, witnesses, found)
    if in_time:
        for component in graph.components(EVERYTHING, table):
            # Next to a cycle without real time, cycles with it add nothing.
            if tangled.isdisjoint(component.edges):
                _close(component, DATA, WW | WR | PROCESS | REAL_TIME, False, 1, found)
                _close(component, PROCESS | REAL_TIME, EVERYTHING, False, 1, found)
    return found


def _close(component: Component, start: int, kinds: int, apart: bool, witnesses: int, found: Found) -> None:
    """Cycles that begin with an edge of the kinds ``start`` and continue with ``kinds`` only."""
    graph = component.graph
    budget = Budget()
    starts = component.starting(start)
    starts.sort(key=lambda edge: abs(graph.targets[edge] - graph.sources[edge]))
    mine: dict[frozenset[int], Cycle] = {}
    for edge in starts[:STARTS]:
        cycle = _shortest(component, edge, kinds, apart, budget)
        if cycle is not None:
            mine.setdefault(frozenset(link.before for link in cycle), cycle)
            if sum(len(each) == 2 for each in mine.values()) >= witnesses:
                break
        if budget.is_spent:
            break
    found.cut_short += budget.is_spent and not mine
    found.cycles.extend(sorted(mine.values(), key=len)[:witnesses])


def _shortest(component: Component, first: int, kinds: int, apart: bool, budget: Budget) -> Cycle | None:
    """The shortest way from the end of an edge back to its beginning. Helper nodes cost nothing.

    ``apart``: no two anti-dependencies may follow each other, the first edge with the last one included.
    """
    graph = component.graph
    goal, begin = graph.sources[first], graph.targets[first]
    kind_of, target_of, size = graph.kinds, graph.targets, graph.size
    start = (begin, apart and kind_of[first] == RW)
    came: _Came = {start: (0, None, first)}
    queue = deque([start])
    while queue and not budget.is_spent:
        state = queue.popleft()
        node, after_rw = state
        if node == goal and not (apart and after_rw):
            return _cycle(graph, came, state)
        cost = came[state][0] + (node < size)
        for edge in component.edges.get(node, ()):
            budget.steps -= 1
            kind = kind_of[edge]
            # A helper node is entered only by edges of its own kind, which needs no check.
            if node < size and (not kind & kinds or (after_rw and kind == RW)):
                continue
            following = (target_of[edge], apart and kind == RW)
            if following not in came or cost < came[following][0]:
                came[following] = (cost, state, edge)
                # Free edges are followed first, so that the first path to the goal is a shortest one.
                (queue.append if node < size else queue.appendleft)(following)
    return None


_State = tuple[int, bool]
_Came = dict[_State, tuple[int, _State | None, int]]
"""State → its cost, the state before it, and the edge between the two."""


def _cycle(graph: Graph, came: _Came, state: _State) -> Cycle:
    edges: list[int] = []
    before: _State | None = state
    while before is not None:
        _, before, edge = came[before]
        edges.append(edge)
    edges.reverse()
    return _links(graph, edges)


def _links(graph: Graph, edges: list[int]) -> Cycle:
    leaving = [edge for edge in edges if graph.sources[edge] < graph.size]
    nodes = [graph.sources[edge] for edge in leaving]
    after = [*nodes[1:], nodes[0]]
    return tuple(
        Link(before, following, graph.kinds[edge], edge)
        for before, following, edge in zip(nodes, after, leaving, strict=True)
    )
