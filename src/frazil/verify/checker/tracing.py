"""Orders reads by the values they saw, where their version is not known."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from frazil.verify.checker.cells import Cell, Cells
from frazil.verify.checker.edges import RW, WR, Graph
from frazil.verify.checker.effects import effects_of, without
from frazil.verify.checker.findings import Findings, Names
from frazil.verify.checker.judging import Judge
from frazil.verify.checker.landing import Landing, TableHistory
from frazil.verify.checker.model import Kind, Read, Value
from frazil.verify.checker.replay import Loose

Unpinned = tuple[dict[int, list[tuple[int, int]]], list[Loose]]


def unpinned_reads(landing: Landing, findings: Findings) -> dict[str, Unpinned]:
    """By table: reads of all keys under the version they are attributed to, and reads of single keys."""
    found: dict[str, Unpinned] = defaultdict(lambda: (defaultdict(list), []))
    for number, transaction in enumerate(landing.transactions):
        if not landing.landed[number]:
            continue
        for place, op in enumerate(transaction.ops):
            if isinstance(op, Read) and _is_unpinned(landing, findings, number, op):
                _sort_in(landing, number, place, op, found[op.table])
    return found


def _is_unpinned(landing: Landing, findings: Findings, reader: int, read: Read) -> bool:
    history = landing.histories[read.table]
    if read.empty or (read.version is not None and read.version in history.index):
        return False
    if read.version is not None:
        _judge_version(landing, history, findings, reader, read)
    return read.seen is not None and not read.historic


def _sort_in(landing: Landing, reader: int, place: int, read: Read, found: Unpinned) -> None:
    own = effects_of(landing.transactions[reader].ops[:place], read.table)
    guessed, loose = found
    if read.whole and own.is_nothing:
        guessed[_newest(landing.histories[read.table], read)].append((reader, place))
        return
    seen = read.seen or {}
    for key in {**dict.fromkeys(read.keys), **seen}:
        mine = own.of(key)
        if mine is None or not mine.replaces:
            values = tuple(seen.get(key, ()))
            before = values if mine is None else (*without(values, mine.values), *mine.takes)
            loose.append(Loose(reader, key, before))


def _judge_version(landing: Landing, history: TableHistory, findings: Findings, reader: int, read: Read) -> None:
    if not history.is_given or history.is_truncated or read.version in history.withdrawn:
        return
    who = Names(landing).tx(reader)
    words = f"{who} read version {read.version} of {history.table}, which is not in the table's history"
    findings.add(Kind.G1A, history.table, [reader], lambda: words, (reader, read.version))


def _newest(history: TableHistory, read: Read) -> int:
    """The index of the newest version that wrote a value of the read."""
    newest = -1
    for key, values in (read.seen or {}).items():
        for value in values:
            place = history.place.get(writer) if (writer := history.writer_of.get((key, value))) is not None else None
            newest = max(newest, -1 if place is None else place[0])
    return newest


class Tracer:
    """Orders the loose reads of one table."""

    def __init__(self, landing: Landing, history: TableHistory, graph: Graph, findings: Findings, cells: Cells) -> None:
        self._history = history
        self._graph = graph
        self._findings = findings
        self._names = Names(landing)
        self._judge = Judge(landing, history, findings)
        self._cells = cells

    def place(self, read: Loose) -> None:
        """After the newest value it saw; before the first write that it did not see."""
        cell = self._cells[read.key]
        if not read.observed:
            # The key was empty: not written yet, or emptied. The last such moment claims least.
            empty = max((number for number, entry in enumerate(cell.log) if not entry.live), default=-1)
            if self._history.is_closed:
                self._before(read.reader, cell, empty + 1)
            return
        traced = {value: writer for value in read.observed if (writer := self._writer(read, value)) is not None}
        entries = {value: number for value in traced if (number := cell.entry(value)) is not None}
        if not entries:
            # The versions were not given.
            for writer in traced.values():
                self._graph.add(writer, read.reader, WR, self._history.number, cell.id)
            return
        last = max(entries.values())
        self._graph.add(cell.log[last].writer, read.reader, WR, self._history.number, cell.id)
        if self._history.is_closed:
            self._judge_values(read, cell, entries, last)
            self._place_before(read, cell, last)
        elif last + 1 < len(cell.log) and cell.log[last + 1].start == last + 1:
            # An unrecorded writer may have deleted what is missing; values that were replaced later still existed.
            self._before(read.reader, cell, last + 1)

    def _place_before(self, read: Loose, cell: Cell, last: int) -> None:
        fitting = self._fitting(cell, last, set(read.observed))
        if fitting:
            # It was at one of these moments: after the first one, and not later than the last one.
            if fitting[0] != last:
                self._graph.add(cell.log[fitting[0]].writer, read.reader, WR, self._history.number, cell.id)
            self._before(read.reader, cell, fitting[-1] + 1)
            return
        missing = self._first_missing(cell, last, set(read.observed))
        if missing is None:
            self._before(read.reader, cell, last + 1)
        elif set(cell.log[missing].values) & set(read.observed):
            self._partly(read, cell, missing)
        else:
            self._before(read.reader, cell, missing)

    @staticmethod
    def _fitting(cell: Cell, last: int, observed: set[Value]) -> list[int]:
        """The entries after which the key held exactly these values, from the last one that added one of them on."""
        held: set[Value] = set()
        found: list[int] = []
        for number in _generation(cell, last):
            held = (held - set(cell.log[number].takes)) | set(cell.log[number].values)
            if number >= last and held == observed:
                found.append(number)
        return found

    def _writer(self, read: Loose, value: Value) -> int | None:
        return self._judge.traced(read.reader, read.key, value)

    def _before(self, reader: int, cell: Cell, entry: int) -> None:
        if entry < len(cell.log):
            self._graph.add(reader, cell.log[entry].writer, RW, self._history.number, cell.id)

    @staticmethod
    def _first_missing(cell: Cell, last: int, observed: set[Value]) -> int | None:
        taken = (cell.log[each].takes for each in _generation(cell, last))
        seen = observed.union(*taken)
        entries = range(cell.log[last].start, last + 1)
        return next((each for each in entries if not seen.issuperset(cell.log[each].values)), None)

    def _judge_values(self, read: Loose, cell: Cell, entries: dict[Value, int], last: int) -> None:
        names, table = self._names, self._history.table
        who, key = names.tx(read.reader), names.key(read.key)
        for value, times in Counter(read.observed).items():
            if value not in entries:
                continue
            writer = cell.log[entries[value]].writer
            if times > 1:
                words = f"{names.tx(writer)} wrote {value!r} to {key} of {table} once, and {who} read it {times} times"
                self._findings.add(Kind.DUPLICATE, table, [writer, read.reader], lambda w=words: w, (read.key, value))  # type: ignore[misc]
            if entries[value] < cell.log[last].start:
                later = cell.log[cell.log[last].start].writer
                words = (
                    f"{names.tx(writer)} wrote {value!r} to {key} of {table}, {names.tx(later)} "
                    f"deleted it, and {who} read it together with later values"
                )
                blame = [writer, later, read.reader]
                self._findings.add(Kind.RESURRECTED, table, blame, lambda w=words: w, (read.key, value))  # type: ignore[misc]

    def _partly(self, read: Loose, cell: Cell, entry: int) -> None:
        names, table, writer = self._names, self._history.table, cell.log[entry].writer
        words = (
            f"{names.tx(writer)} added {names.values(cell.log[entry].values)} to {names.key(read.key)} of {table}, "
            f"and {names.tx(read.reader)} read only a part of it: {names.values(read.observed)}"
        )
        self._findings.add(Kind.G1B, table, [writer, read.reader], lambda: words, (read.reader, read.key))


def _generation(cell: Cell, entry: int) -> Iterator[int]:
    """The entries from the last one that replaced all values to the next one that does."""
    yield (start := cell.log[entry].start)
    for number in range(start + 1, len(cell.log)):
        if cell.log[number].start == number:
            return
        yield number
