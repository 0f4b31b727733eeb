"""Explains edges in words, and classifies cycles."""

from __future__ import annotations

from frazil.verify.checker.cycles import Cycle, Link
from frazil.verify.checker.edges import NO_KEY, PROCESS, REAL_TIME, RW, WR, WW, Graph
from frazil.verify.checker.effects import effects_of
from frazil.verify.checker.findings import Names
from frazil.verify.checker.landing import Landing
from frazil.verify.checker.model import Edge, Key, Kind, Level, Read, Step

_EDGES = {WW: Edge.WW, WR: Edge.WR, RW: Edge.RW, PROCESS: Edge.PROCESS, REAL_TIME: Edge.REAL_TIME}

_WORDS = {
    Kind.G0: "The writes of these transactions interleave",
    Kind.G1C: "Each of these transactions read or overwrote what the one before it wrote, in a circle",
    Kind.LOST_UPDATE: "A value was read and then replaced, over a concurrent write that was not read",
    Kind.G_SINGLE: "A transaction saw one part of another one's effects and missed an earlier part",
    Kind.LONG_FORK: "Writes were seen in opposite orders",
    Kind.WRITE_SKEW: "Two transactions each overwrote what the other one had read",
    Kind.G2: "Each of these transactions missed a write of the next one or depends on it, in a circle",
    Kind.PHANTOM: "A read of many keys missed an inserted key, and no order of the two explains it",
    Kind.STALE_READ: "A read missed a write that was acknowledged before the read began",
    Kind.REAL_TIME: "The order in the table contradicts the order of calls and answers",
}


class Explainer:
    """Explains the edges of one graph."""

    def __init__(self, landing: Landing, graph: Graph, keys: list[tuple[int, Key]]) -> None:
        self._landing = landing
        self._graph = graph
        self._keys = keys
        self._tables = [history.table for history in landing.histories.values()]
        self._names = Names(landing)

    def edge(self, edge: int) -> str:
        """An edge between two transactions."""
        graph = self._graph
        return self.link(Link(graph.sources[edge], graph.targets[edge], graph.kinds[edge], edge))

    def link(self, link: Link) -> str:
        before, after = self._names.tx(link.before), self._names.tx(link.after)
        if link.kind == PROCESS:
            return f"{before} ended before {after} began, in the same process"
        if link.kind == REAL_TIME:
            return f"{before} was answered before {after} was called"
        table = self._tables[self._graph.tables[link.edge]]
        number = self._graph.keys[link.edge]
        if number == NO_KEY:
            return self._whole(link, table)
        key = self._keys[number][1]
        where = f"{self._names.key(key)} of {table}"
        wrote = self._wrote(link.before if link.kind != RW else link.after, table, key)
        if link.kind == WW:
            over = self._wrote(link.after, table, key)
            return f"{before} wrote {wrote} to {where}, and {after} wrote {over} after it"
        if link.kind == WR:
            return f"{before} wrote {wrote} to {where}, and {after} read it"
        seen = self._seen(link.before, table, key)
        return f"{before} read {seen} in {where} and did not see that {after} wrote {wrote} there"

    def _whole(self, link: Link, table: str) -> str:
        before, after = self._names.tx(link.before), self._names.tx(link.after)
        writer = link.before if link.kind == WR else link.after
        key = self._example(link, table)
        wrote = self._wrote(writer, table, key)
        at = self._names.version(writer, table)
        if link.kind == WR:
            return f"{before} wrote {wrote} to {self._names.key(key)} of {table} in {at}, which {after} read as a whole"
        return (
            f"{before} read all of {table} and did not see that {after} wrote {wrote} to {self._names.key(key)} in {at}"
        )

    def _example(self, link: Link, table: str) -> Key:
        writer = link.before if link.kind == WR else link.after
        keys = list(effects_of(self._landing.transactions[writer].ops, table).keys)
        if link.kind == RW:
            new = [key for key in keys if self._is_missing(link.before, table, key)]
            keys = new or keys
        return keys[0] if keys else None

    def _wrote(self, writer: int, table: str, key: Key) -> str:
        effect = effects_of(self._landing.transactions[writer].ops, table).of(key)
        if effect is None:
            return "something"
        if effect.values:
            return self._names.values(effect.values)
        return f"nothing (it deleted {self._names.values(effect.takes) if effect.takes else 'the row'})"

    def _seen(self, reader: int, table: str, key: Key) -> str:
        for op in self._landing.transactions[reader].ops:
            if isinstance(op, Read) and op.table == table and (op.whole or key in op.keys or key in (op.seen or ())):
                if op.seen is not None:
                    return self._names.values(tuple(op.seen.get(key, ())))
                if op.version is not None:
                    return f"what version {op.version} has"
        return "something older"

    def _is_missing(self, reader: int, table: str, key: Key) -> bool:
        reads = (op for op in self._landing.transactions[reader].ops if isinstance(op, Read) and op.table == table)
        return any(op.whole and op.seen is not None and not op.seen.get(key) for op in reads)

    # Cycles

    def steps(self, cycle: Cycle) -> tuple[Step, ...]:
        return tuple(
            Step(
                self._names.tx(link.before),
                self._names.tx(link.after),
                _EDGES[link.kind],
                self.link(link),
                None if link.kind & (PROCESS | REAL_TIME) else self._tables[self._graph.tables[link.edge]],
            )
            for link in cycle
        )

    def classify(self, cycle: Cycle) -> tuple[Kind, Level]:
        """The kind of a cycle, and the weakest level that forbids it."""
        kinds = [link.kind for link in cycle]
        misses = kinds.count(RW)
        if any(kind & (PROCESS | REAL_TIME) for kind in kinds):
            return (Kind.STALE_READ if misses == 1 else Kind.REAL_TIME), Level.STRICT_SERIALIZABLE
        if not misses:
            return (Kind.G1C, Level.READ_COMMITTED) if WR in kinds else (Kind.G0, Level.READ_UNCOMMITTED)
        if misses == 1:
            if self._is_lost_update(cycle):
                return Kind.LOST_UPDATE, Level.SNAPSHOT_ISOLATION
            return (Kind.PHANTOM if self._is_phantom(cycle) else Kind.G_SINGLE), Level.SNAPSHOT_ISOLATION
        follows = any(kinds[number - 1] == RW and kind == RW for number, kind in enumerate(kinds))
        if not follows:
            return Kind.LONG_FORK, Level.SNAPSHOT_ISOLATION
        if self._is_phantom(cycle):
            return Kind.PHANTOM, Level.SERIALIZABLE
        return (Kind.WRITE_SKEW if len(cycle) == 2 else Kind.G2), Level.SERIALIZABLE

    def _is_lost_update(self, cycle: Cycle) -> bool:
        """All edges are of one key: read, overwritten by other transactions, and overwritten by the reader."""
        if any(link.kind == WR for link in cycle):
            return False
        edges = [link.edge for link in cycle]
        keys = {self._graph.keys[edge] for edge in edges} - {NO_KEY}
        return len(keys) == 1 and len({self._graph.tables[edge] for edge in edges}) == 1

    def _is_phantom(self, cycle: Cycle) -> bool:
        for link in cycle:
            if link.kind != RW:
                continue
            table, number = self._tables[self._graph.tables[link.edge]], self._graph.keys[link.edge]
            key = self._example(link, table) if number == NO_KEY else self._keys[number][1]
            if self._is_missing(link.before, table, key):
                return True
        return False

    @staticmethod
    def sentence(kind: Kind) -> str:
        return _WORDS[kind]
