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
    """Where the values that were there after it begin: the last entry before it, or itself, that replaced all."""
    live: int
    """How many values were there after it."""
    values: tuple[Value, ...]
    takes: tuple[Value, ...] = ()
    """Single values that it took out."""


@dataclass(slots=True)
class Cell:
    """One key."""

    key: Key
    id: int
    values: list[Value] = field(default_factory=list)
    log: list[Entry] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    """Who has read it since the last entry."""
    fixed_at: int = -1
    """The index of the last version after which all its values were known."""
    is_strange: bool = False
    """Somebody who was not recorded changed it after the last entry."""
    entry_of: dict[Value, int] = field(default_factory=dict)
    """Value → its entry; filled when somebody asks."""
    indexed: int = 0

    def entry(self, value: Value) -> int | None:
        for number in range(self.indexed, len(self.log)):
            for each in self.log[number].values:
                self.entry_of[each] = number
        self.indexed = len(self.log)
        return self.entry_of.get(value)


class Cells:
    """All keys of a table that anybody wrote or asked for."""

    def __init__(self, graph: Graph, table: int, names: list[tuple[int, Key]], is_truncated: bool) -> None:
        self._graph = graph
        self._table = table
        self._names = names
        self.by_key: dict[Key, Cell] = {}
        self.fog_at = -1 if is_truncated else -2
        """The index of the last version of which nobody knows what it changed."""
        self.filled = 0
        """How many keys hold values."""
        self.print = 0
        """A number that is the same whenever the table holds the same."""

    def __getitem__(self, key: Key) -> Cell:
        cell = self.by_key.get(key)
        if cell is None:
            cell = self.by_key[key] = Cell(key, len(self._names))
            self._names.append((self._table, key))
        return cell

    def is_known(self, cell: Cell) -> bool:
        return cell.fixed_at > self.fog_at

    def write(self, cell: Cell, writer: int, effect: Effect, index: int) -> None:
        """Apply a transaction's change, with the edges from those who wrote and read the key before."""
        if not effect.values and self.is_known(cell) and len(effect.after(cell.values)) == len(cell.values):
            # It took out nothing.
            return
        graph, table = self._graph, self._table
        if cell.log:
            graph.add(cell.log[-1].writer, writer, WW, table, cell.id)
        for reader in cell.readers:
            graph.add(reader, writer, RW, table, cell.id)
        cell.readers = []
        cell.is_strange = False
        number = len(cell.log)
        start = number if effect.replaces or not number else cell.log[-1].start
        if effect.replaces:
            cell.fixed_at = index
        if effect.replaces or effect.takes:
            self.set(cell, effect.after(cell.values))
        else:
            self._filled(cell, bool(cell.values) or bool(effect.values))
            cell.values.extend(effect.values)
            self.print += sum(hash((cell.key, each)) for each in effect.values)
        cell.log.append(Entry(writer, start, len(cell.values), tuple(effect.values), tuple(effect.takes)))

    def set(self, cell: Cell, values: list[Value]) -> None:
        """Let a key hold these values and nothing else."""
        self._filled(cell, bool(values))
        self.print += sum(hash((cell.key, each)) for each in values)
        self.print -= sum(hash((cell.key, each)) for each in cell.values)
        cell.values = values

    def _filled(self, cell: Cell, is_filled: bool) -> None:
        self.filled += int(is_filled) - int(bool(cell.values))
