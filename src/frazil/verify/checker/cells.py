"""The keys of one table while its history is replayed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from frazil.verify.checker.edges import RW, WW, Graph
from frazil.verify.checker.effects import Effect
from frazil.verify.checker.model import Key, Value


class Entry(NamedTuple):
    """One transaction's change of a key."""

    writer: int
    start: int
    """The newest entry, up to this one, that replaced all values: the first whose values may still exist."""
    live: int
    """The number of values after this change."""
    values: tuple[Value, ...]
    takes: tuple[Value, ...] = ()
    """Single values that the change deleted."""


@dataclass(slots=True)
class Cell:
    """One key."""

    key: Key
    id: int
    values: list[Value] = field(default_factory=list)
    log: list[Entry] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    """The transactions that read the key since the last entry."""
    fixed_at: int = -1
    """The index of the last version after which all its values were known."""
    is_changed_unrecorded: bool = False
    """An unrecorded writer changed the key after the last entry."""
    entry_of: dict[Value, int] = field(default_factory=dict)
    """Value → its entry; filled on demand."""
    indexed: int = 0

    def entry(self, value: Value) -> int | None:
        for number in range(self.indexed, len(self.log)):
            for each in self.log[number].values:
                self.entry_of[each] = number
        self.indexed = len(self.log)
        return self.entry_of.get(value)


class Cells:
    """All keys of a table that were written or read by name."""

    def __init__(self, graph: Graph, table: int, names: list[tuple[int, Key]], is_truncated: bool) -> None:
        self._graph = graph
        self._table = table
        self._names = names
        self.by_key: dict[Key, Cell] = {}
        self.unknown_at = -1 if is_truncated else -2
        """The index of the last version whose changes are unknown."""
        self.filled = 0
        """The number of keys with values."""
        self.fingerprint = 0
        """A hash of the table's content."""

    def __getitem__(self, key: Key) -> Cell:
        cell = self.by_key.get(key)
        if cell is None:
            cell = self.by_key[key] = Cell(key, len(self._names))
            self._names.append((self._table, key))
        return cell

    def is_known(self, cell: Cell) -> bool:
        return cell.fixed_at > self.unknown_at

    def write(self, cell: Cell, writer: int, effect: Effect, index: int) -> None:
        """Apply a transaction's change, with the edges from earlier writers and readers of the key."""
        if not effect.values and self.is_known(cell) and len(effect.after(cell.values)) == len(cell.values):
            # It deleted nothing.
            return
        graph, table = self._graph, self._table
        if cell.log:
            graph.add(cell.log[-1].writer, writer, WW, table, cell.id)
        for reader in cell.readers:
            graph.add(reader, writer, RW, table, cell.id)
        cell.readers = []
        cell.is_changed_unrecorded = False
        number = len(cell.log)
        start = number if effect.replaces or not number else cell.log[-1].start
        if effect.replaces:
            cell.fixed_at = index
        if effect.replaces or effect.takes:
            self.set(cell, effect.after(cell.values))
        else:
            self._filled(cell, bool(cell.values) or bool(effect.values))
            cell.values.extend(effect.values)
            self.fingerprint += sum(hash((cell.key, each)) for each in effect.values)
        cell.log.append(Entry(writer, start, len(cell.values), tuple(effect.values), tuple(effect.takes)))

    def set(self, cell: Cell, values: list[Value]) -> None:
        """Set a key's values."""
        self._filled(cell, bool(values))
        self.fingerprint += sum(hash((cell.key, each)) for each in values)
        self.fingerprint -= sum(hash((cell.key, each)) for each in cell.values)
        cell.values = values

    def _filled(self, cell: Cell, is_filled: bool) -> None:
        self.filled += int(is_filled) - int(bool(cell.values))
