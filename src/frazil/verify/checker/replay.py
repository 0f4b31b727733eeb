"""Replays the history of one table: adds the edges between its writes and reads, and reports contradictions.

Reads that show what their version holds are ordered by their version. All others are left to ``tracing``, which orders
them by the values they saw.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from frazil.verify.checker.cells import Cell, Cells
from frazil.verify.checker.edges import RW, WR, Graph
from frazil.verify.checker.effects import Effect, Effects, effects_of, same, without
from frazil.verify.checker.findings import Findings, Names
from frazil.verify.checker.judging import Judge
from frazil.verify.checker.landing import Landing, TableHistory, is_opaque
from frazil.verify.checker.model import Key, Kind, Read, Value, Version


@dataclass(frozen=True, slots=True)
class Loose:
    """A read of one key that is ordered by the values it saw."""

    reader: int
    key: Key
    observed: tuple[Value, ...]


@dataclass(slots=True)
class WholeRead:
    """A read of all keys that showed exactly the content of a version."""

    reader: int
    index: int
    last: int
    """The last version with the same content; equal to ``index`` where the read names its version."""


@dataclass(slots=True)
class Replayed:
    """The work left after the replay of a table's history."""

    cells: Cells
    loose: list[Loose] = field(default_factory=list)
    whole: list[WholeRead] = field(default_factory=list)
    pinned: list[tuple[int, int]] = field(default_factory=list)
    """(reader, version's index) of reads without named keys: of all rows, or of unrecorded rows."""


class Replay:
    """One table's replay."""

    def __init__(
        self, landing: Landing, history: TableHistory, graph: Graph, findings: Findings, names: list[tuple[int, Key]]
    ) -> None:
        self._landing = landing
        self._history = history
        self._graph = graph
        self._findings = findings
        self._judge = Judge(landing, history, findings)
        self._names = Names(landing)
        self._cells = Cells(graph, history.number, names, history.is_truncated)
        self._done = Replayed(self._cells)
        self._fingerprints: dict[int, int] = {}
        """Fingerprint of the content → the last version with it."""
        self._guessed: list[tuple[WholeRead, int]] = []

    def run(self, pinned: dict[int, list[tuple[int, int]]], guessed: dict[int, list[tuple[int, int]]]) -> Replayed:
        """Replay with the reads pinned to each version, and the reads of all keys that are attributed to it."""
        self._reads(-1, pinned, guessed)
        self._fingerprints[self._cells.fingerprint] = -1
        for index, version in enumerate(self._history.versions):
            self._apply(index, version)
            self._fingerprints[self._cells.fingerprint] = index
            self._reads(index, pinned, guessed)
        for read, found in self._guessed:
            read.last = self._fingerprints.get(found, read.index)
        return self._done

    # Writes

    def _apply(self, index: int, version: Version) -> None:
        before: dict[Key, list[Value]] = {}
        is_ours = True
        for writer in self._history.slots[index]:
            if writer is None:
                is_ours = False
                continue
            transaction, rows = self._landing.transactions[writer], version.rows
            is_ours = is_ours and not is_opaque(transaction, self._history.table)
            self._write(
                writer, effects_of(transaction.ops, self._history.table), index, None if rows is None else before
            )
        if version.rows is not None:
            self._compare(index, version, before, is_ours)
        elif not is_ours:
            self._cells.unknown_at = index

    def _write(self, writer: int, effects: Effects, index: int, before: dict[Key, list[Value]] | None) -> None:
        cells = self._cells
        touched = [(cells[key], effect) for key, effect in effects.keys.items()]
        if effects.clears:
            gone = [cell for key, cell in cells.by_key.items() if key not in effects.keys]
            touched += [(cell, effect) for cell in gone if (effect := effects.of(cell.key)) is not None]
        for cell, effect in touched:
            if before is not None:
                before.setdefault(cell.key, list(cell.values))
            cells.write(cell, writer, effect, index)

    def _compare(self, index: int, version: Version, before: dict[Key, list[Value]], is_ours: bool) -> None:
        """Compare the table's content with its transactions' effects; then continue with the table's content."""
        rows = version.rows or {}
        for key in {**before, **rows}:
            cell = self._cells[key]
            actual = list(rows[key]) if key in rows else before[key]
            if same(actual, cell.values):
                continue
            if is_ours and self._cells.is_known(cell):
                self._judge.version(version, index, cell, actual)
            cell.is_changed_unrecorded = cell.is_changed_unrecorded or not is_ours
            cell.fixed_at = index
            self._cells.set(cell, actual)

    # Reads

    def _reads(
        self, index: int, pinned: dict[int, list[tuple[int, int]]], guessed: dict[int, list[tuple[int, int]]]
    ) -> None:
        for reader, place in pinned.get(index, ()):
            read = self._landing.transactions[reader].ops[place]
            assert isinstance(read, Read)
            has_age = not read.historic and not read.ageless
            if has_age and (read.whole or (read.seen is None and not read.keys)):
                self._done.pinned.append((reader, index))
            self._read(reader, place, read, index)
        for reader, place in guessed.get(index, ()):
            read = self._landing.transactions[reader].ops[place]
            assert isinstance(read, Read)
            self._guess(reader, read, index)

    def _read(self, reader: int, place: int, read: Read, index: int) -> None:
        own = effects_of(self._landing.transactions[reader].ops[:place], self._history.table) if place else Effects()
        if read.whole and own.is_nothing:
            odd = [] if read.seen is None else self._odd_keys(read.seen)
            if not odd:
                if not read.historic:
                    self._done.whole.append(WholeRead(reader, index, index))
                return
        keys: dict[Key, object] = dict.fromkeys(read.keys)
        keys.update(dict.fromkeys(self._cells.by_key) if read.whole else ())
        keys.update(read.seen or {})
        for key in keys:
            observed = None if read.seen is None else tuple(read.seen.get(key, ()))
            self._read_key(reader, read, key, observed, own, index)

    def _odd_keys(self, seen: object) -> list[Key]:
        """The keys whose values differ from what a read of all keys should have seen."""
        cells, by_key = self._cells, self._cells.by_key
        assert isinstance(seen, dict)
        odd: list[Key] = []
        found = 0
        for key, values in seen.items():
            cell = by_key.get(key)
            found += bool(values)
            if cell is None:
                if cells.unknown_at < -1 and values:
                    odd.append(key)
            elif cells.is_known(cell) and not same(values, cell.values):
                odd.append(key)
        if odd or (cells.unknown_at < -1 and found == cells.filled):
            return odd
        return [key for key, cell in by_key.items() if cell.values and cells.is_known(cell) and not seen.get(key)]

    def _read_key(
        self, reader: int, read: Read, key: Key, observed: tuple[Value, ...] | None, own: Effects, index: int
    ) -> None:
        cell = self._cells[key]
        known = self._cells.is_known(cell)
        mine = own.of(key)
        if mine is not None:
            if observed is not None and not self._sees_own(reader, key, observed, mine):
                return
            if mine.replaces:
                return
            if known and observed is not None and same(observed, mine.after(cell.values)):
                observed = None
            # Treated as if it had read before it wrote.
            observed = None if observed is None else (*without(observed, mine.values), *mine.takes)
        if observed is None or not known or same(observed, cell.values):
            if not read.historic:
                self._place(reader, cell, observed, known)
            return
        self._judge.read(reader, cell, observed, index)
        if not read.historic:
            self._done.loose.append(Loose(reader, key, observed))

    def _place(self, reader: int, cell: Cell, observed: tuple[Value, ...] | None, known: bool) -> None:
        """Order a read by its version: after the version's last write, before the next one."""
        if cell.log and not cell.is_changed_unrecorded:
            last = cell.log[-1]
            if known or (observed is not None and set(last.values) & set(observed)):
                self._graph.add(last.writer, reader, WR, self._history.number, cell.id)
        cell.readers.append(reader)

    def _sees_own(self, reader: int, key: Key, observed: tuple[Value, ...], mine: Effect) -> bool:
        values = mine.values
        is_right = not without(values, observed) and not set(mine.takes) & set(observed)
        is_right = is_right and (not mine.replaces or same(observed, values))
        if not is_right:
            who, names = self._names.tx(reader), self._names
            self._findings.add(
                Kind.INTERNAL,
                self._history.table,
                [reader],
                lambda: (
                    f"{who} left {names.values(values)} in {names.key(key)} of {self._history.table} and then read "
                    f"{names.values(observed)} there"
                ),
                (reader, key),
            )
        return is_right

    def _guess(self, reader: int, read: Read, index: int) -> None:
        """A read of all keys without a version: attributed to the version of its newest value, if all values fit."""
        assert read.seen is not None
        if not self._odd_keys(read.seen):
            whole = WholeRead(reader, index, index)
            self._done.whole.append(whole)
            self._guessed.append((whole, self._cells.fingerprint))
            return
        for key in {**self._cells.by_key, **read.seen}:
            self._done.loose.append(Loose(reader, key, tuple(read.seen.get(key, ()))))


def chain_whole_reads(graph: Graph, landing: Landing, history: TableHistory, reads: list[WholeRead]) -> None:
    """Edges of reads of all keys: from every write they include, to every later write.

    Two chains of helper nodes along the versions represent them. A transaction that read all keys and then wrote would
    reach itself through the second chain, and gets single edges up to its own version instead.
    """
    if not reads:
        return
    count = len(history.versions)
    writers = [
        [each for each in slots if each is not None and history.table in landing.written[each]]
        for slots in history.slots
    ]
    have = [graph.node() for _ in range(count)]
    later = [graph.node() for _ in range(count + 1)]
    for index in range(count):
        for writer in writers[index]:
            graph.add(writer, have[index], WR, history.number)
            graph.add(later[index], writer, RW, history.number)
        if index:
            graph.add(have[index - 1], have[index], WR, history.number)
        graph.add(later[index], later[index + 1], RW, history.number)
    for read in reads:
        if read.index >= 0:
            graph.add(have[read.index], read.reader, WR, history.number)
        own = history.place.get(read.reader, (-1, 0))[0]
        first = read.last + 1
        if own < first:
            graph.add(read.reader, later[first], RW, history.number)
            continue
        for index in range(first, own + 1):
            for writer in writers[index]:
                graph.add(read.reader, writer, RW, history.number)
        graph.add(read.reader, later[own + 1], RW, history.number)
