"""The dependency graph: transactions as numbers, edges in flat arrays, and its strongly connected components.

Nodes from ``size`` on are helpers and not transactions. Chains of them represent relations of many transactions with
many (all that ended before, all in a version), so that the graph grows with the history and not with its square.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from frazil.errors import Unsupported

WW, WR, RW, PROCESS, REAL_TIME = 1, 2, 4, 8, 16
DATA = WW | WR | RW
EVERYTHING = DATA | PROCESS | REAL_TIME

NO_KEY = -1


class Graph:
    """Edges between transactions. Each has a kind, a table and, where one key is the reason, the key."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.nodes = size
        self.sources = array("q")
        self.targets = array("q")
        self.kinds = array("b")
        self.tables = array("l")
        self.keys = array("q")

    def __len__(self) -> int:
        return len(self.sources)

    def add(self, source: int, target: int, kind: int, table: int = -1, key: int = NO_KEY) -> None:
        if source == target:
            return
        self.sources.append(source)
        self.targets.append(target)
        self.kinds.append(kind)
        self.tables.append(table)
        self.keys.append(key)

    def node(self) -> int:
        """A new helper node."""
        self.nodes += 1
        return self.nodes - 1

    def wanted(self, kinds: int, table: int | None) -> Iterator[int]:
        """The edges of these kinds; with a table, only its own and those that belong to no table."""
        for number, kind in enumerate(self.kinds):
            if kind & kinds and (table is None or self.tables[number] in (table, -1)):
                yield number

    def components(self, kinds: int = EVERYTHING, table: int | None = None) -> list[Component]:
        """The parts of the graph in which every node reaches every other one, small ones first."""
        chosen = array("q", self.wanted(kinds, table))
        rustworkx = _library()
        graph = rustworkx.PyDiGraph()
        graph.add_nodes_from(range(self.nodes))
        sources, targets = self.sources, self.targets
        graph.add_edges_from_no_data([(sources[each], targets[each]) for each in chosen])
        found = [each for each in rustworkx.strongly_connected_components(graph) if len(each) > 1]
        if not found:
            return []
        found.sort(key=len)
        part = {node: number for number, nodes in enumerate(found) for node in nodes}
        inside: list[dict[int, list[int]]] = [{} for _ in found]
        for edge in chosen:
            number = part.get(sources[edge])
            if number is not None and part.get(targets[edge]) == number:
                inside[number].setdefault(sources[edge], []).append(edge)
        return [Component(self, nodes, edges) for nodes, edges in zip(found, inside, strict=True)]


def _library() -> Any:
    try:
        import rustworkx
    except ImportError as error:
        raise Unsupported("The checker needs rustworkx", advice="Install frazil[check]") from error
    return rustworkx


class Component:
    """One strongly connected component, with its inner edges by their source."""

    def __init__(self, graph: Graph, nodes: list[int], edges: dict[int, list[int]]) -> None:
        self.graph = graph
        self.transactions = sum(1 for node in nodes if node < graph.size)
        self.edges = edges

    def starting(self, kinds: int) -> list[int]:
        """Its edges of these kinds that leave a transaction."""
        graph = self.graph
        return [
            edge
            for node, edges in self.edges.items()
            if node < graph.size
            for edge in edges
            if graph.kinds[edge] & kinds
        ]
