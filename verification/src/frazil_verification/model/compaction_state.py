"""A table as data files, position deletes and equality deletes, and the changes that a writer may plan on it.

A row is tracked by its location, (file, position), and identified by its key and the number of the commit that wrote
it, so that a deleted row that reappears differs from a new row.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

Row = tuple[int, int]
"""(key, number of the commit that wrote it)."""
Position = tuple[int, int]
"""(file, position)."""
HERE, GONE, CHANGED, UNTRACKED = "here", "gone", "changed", "at an unknown position"
DELETE, UPDATE, UPSERT = "delete", "update", "upsert"
COPY_DELETE, COPY_UPDATE = "copy-on-write delete", "copy-on-write update"
COMPACT, FOREIGN = "compact", "compact without lineage"
KINDS = (DELETE, UPDATE, UPSERT, COPY_DELETE, COPY_UPDATE, COMPACT, FOREIGN)


class Rule(enum.StrEnum):
    """The rules that keep rows from being lost or restored. Each can be switched off."""

    COPIES_ARE_NOT_YOUNGER = "copies do not take the sequence number of the commit that adds them"
    COPIES_ARE_NOT_OLDER = "copies do not take the sequence number of the oldest file they come from"
    COPIES_FOLLOW_DELETES = "rows that were deleted concurrently are also deleted from the copies"
    DELETES_ARE_REBASED = "a delete by position follows its row into the file it was copied to"
    LEFT_OUT_IS_A_CONFLICT = "an update of a row that was deleted concurrently is refused"
    HIT_BY_KEY_IS_A_CONFLICT = "an update of a row that was replaced by key concurrently is refused"
    NO_LINEAGE_IS_A_CONFLICT = "a delete of rows of a file that was replaced without lineage is refused"
    LINEAGE_IS_REBASED = "the lineage of copies names the positions that the rows have at the head"
    NEEDED_DELETES_STAY = "an equality delete that applies to a concurrently added file is kept"


class File(NamedTuple):
    number: int
    """Its data sequence number."""
    rows: tuple[Row, ...]
    sources: tuple[Position | None, ...]
    """The position that each row was copied from; None: the row is not a copy."""


class Table(NamedTuple):
    number: int
    """The last sequence number."""
    files: tuple[File, ...]
    """Every file of the table's history."""
    live: frozenset[int]
    positions: frozenset[tuple[int, int, int]]
    """(file, position, sequence number)."""
    keys: frozenset[tuple[int, int]]
    """(key, sequence number)."""
    changed: frozenset[Position] = frozenset()
    """Rows that were updated."""
    untracked: frozenset[int] = frozenset()
    """Files that were replaced without lineage."""
    rewritten: frozenset[int] = frozenset()
    """Files that a compaction replaced."""

    def is_deleted(self, position: Position) -> bool:
        return any((file, at) == position for file, at, _ in self.positions)

    def is_hit(self, position: Position) -> bool:
        file, at = self.files[position[0]], position[1]
        return any(key == file.rows[at][0] and number > file.number for key, number in self.keys)

    def visible(self) -> Iterator[Position]:
        """The positions of the rows that a reader returns."""
        for name in sorted(self.live):
            for at in range(len(self.files[name].rows)):
                if not self.is_deleted((name, at)) and not self.is_hit((name, at)):
                    yield name, at

    def row(self, position: Position) -> Row:
        return self.files[position[0]].rows[position[1]]

    def follow(self, position: Position) -> tuple[str, Position]:
        """The row's status, and its position at the head or its last known one."""
        while position[0] not in self.live:
            if position[0] in self.untracked:
                return UNTRACKED, position
            if position in self.changed:
                return CHANGED, position
            child = self._copy_of(position)
            if child is None:
                return GONE, position
            position = child
        if self.is_deleted(position):
            return (CHANGED if position in self.changed else GONE), position
        return HERE, position

    def _copy_of(self, position: Position) -> Position | None:
        for name, file in enumerate(self.files):
            if position in file.sources:
                return name, file.sources.index(position)
        return None


class Plan(NamedTuple):
    """A change that a writer planned on the table that it read."""

    kind: str
    number: int
    """The sequence number of the table that it read."""
    known: int
    """How many files that table had."""
    key: int = 0
    moved: Position | None = None
    """The row that it updates."""
    deleted: Position | None = None
    copies: tuple[Position, ...] = ()
    removed: frozenset[int] = frozenset()
    unneeded: frozenset[tuple[int, int]] = frozenset()
    """Equality deletes that apply to no remaining file."""

    @property
    def words(self) -> str:
        if self.kind in (COMPACT, FOREIGN):
            return f"{self.kind} the files {', '.join(map(str, sorted(self.removed)))}"
        return f"{self.kind} row {self.key}"


class Actor(NamedTuple):
    at: str
    plan: Plan | None = None


class State(NamedTuple):
    table: Table
    logical: frozenset[Row]
    """The expected rows: the commits applied in order to a plain set of rows."""
    actors: tuple[Actor, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    actors: int = 2
    kinds: tuple[str, ...] = KINDS
    rewrites_meet: bool = False
    """Two compactions of one file may both land. The code refuses the second one to save work, not for safety."""


@lru_cache(maxsize=200_000)
def plans(table: Table, kinds: tuple[str, ...]) -> tuple[Plan, ...]:
    """Every change that a writer may plan on this table."""
    return (*_row_plans(table, kinds), *_file_plans(table, kinds))


def _row_plans(table: Table, kinds: tuple[str, ...]) -> Iterator[Plan]:
    positions = seen(table)
    number, known = table.number, len(table.files)
    for position in positions:
        key = table.row(position)[0]
        if DELETE in kinds:
            yield Plan(DELETE, number, known, key, deleted=position)
        if UPDATE in kinds:
            yield Plan(UPDATE, number, known, key, moved=position)
        if UPSERT in kinds:
            yield Plan(UPSERT, number, known, key)
        # The row's own file, or all files: a writer may copy rows of several files into one.
        for removed in dict.fromkeys((frozenset({position[0]}), table.live)):
            copies = tuple(each for each in positions if each[0] in removed and each != position)
            if COPY_DELETE in kinds:
                yield Plan(COPY_DELETE, number, known, key, deleted=position, copies=copies, removed=removed)
            if COPY_UPDATE in kinds:
                yield Plan(COPY_UPDATE, number, known, key, moved=position, copies=copies, removed=removed)


def _file_plans(table: Table, kinds: tuple[str, ...]) -> Iterator[Plan]:
    for size in range(1, len(table.live) + 1):
        for chosen in combinations(sorted(table.live), size):
            copies = tuple(position for position in seen(table) if position[0] in chosen)
            plan = Plan(FOREIGN, table.number, len(table.files), copies=copies, removed=frozenset(chosen))
            if FOREIGN in kinds:
                yield plan
            if COMPACT in kinds:
                stay = [table.files[name] for name in table.live if name not in chosen]
                unneeded = frozenset(each for each in table.keys if not any(applies(each, file) for file in stay))
                yield plan._replace(kind=COMPACT, unneeded=unneeded)


@lru_cache(maxsize=200_000)
def seen(table: Table) -> tuple[Position, ...]:
    """The positions of the rows that a reader returns."""
    return tuple(table.visible())


def applies(delete: tuple[int, int], file: File) -> bool:
    key, number = delete
    return number > file.number and any(row[0] == key for row in file.rows)
