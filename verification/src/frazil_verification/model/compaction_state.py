"""A table as data files, position deletes and deletes by key, and what a writer plans on it.

Rows are followed by where they are: (file, position). What a row *is* are its key and the number of the commit that
wrote it, so that a row that comes back can be told from one that was written anew.
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
Place = tuple[int, int]
"""(file, position)."""
HERE, GONE, CHANGED, UNTOLD = "here", "gone", "changed", "nobody knows where"
DELETE, UPDATE, UPSERT = "delete", "update", "upsert"
COPY_DELETE, COPY_UPDATE = "copy-on-write delete", "copy-on-write update"
COMPACT, FOREIGN = "compact", "compact without a record"
KINDS = (DELETE, UPDATE, UPSERT, COPY_DELETE, COPY_UPDATE, COMPACT, FOREIGN)


class Rule(enum.StrEnum):
    """What keeps rows where they belong. Each can be switched off."""

    COPIES_ARE_NOT_YOUNGER = "copies do not take the number of the commit that brings them"
    COPIES_ARE_NOT_OLDER = "copies do not take the number of the oldest file they come from"
    COPIES_FOLLOW_DELETES = "rows that others took out are taken out of my copies, too"
    DELETES_ARE_CARRIED = "a delete by position follows its row into the file it was copied to"
    LEFT_OUT_IS_A_CONFLICT = "who changes a row that others took out is refused"
    HIT_BY_KEY_IS_A_CONFLICT = "who changes a row that others replaced by key is refused"
    NO_RECORD_IS_A_CONFLICT = "who takes rows out of a file that was replaced without a record is refused"
    RECORD_IS_CARRIED = "the record of my copies names the places that the rows have at the head"
    NEEDED_DELETES_STAY = "a delete by key that applies to a file which others brought meanwhile stays"


class File(NamedTuple):
    number: int
    """Its data sequence number."""
    rows: tuple[Row, ...]
    sources: tuple[Place | None, ...]
    """Where each row was copied from; None: it was written here first."""


class Table(NamedTuple):
    number: int
    """The last sequence number."""
    files: tuple[File, ...]
    """Every file there ever was."""
    live: frozenset[int]
    positions: frozenset[tuple[int, int, int]]
    """(file, position, sequence number)."""
    keys: frozenset[tuple[int, int]]
    """(key, sequence number)."""
    changed: frozenset[Place] = frozenset()
    """Rows that live on with other values."""
    untold: frozenset[int] = frozenset()
    """Files that were replaced without a record of where their rows went."""
    rewritten: frozenset[int] = frozenset()
    """Files whose rows a compaction put elsewhere."""

    def is_deleted(self, place: Place) -> bool:
        return any((file, at) == place for file, at, _ in self.positions)

    def is_hit(self, place: Place) -> bool:
        file, at = self.files[place[0]], place[1]
        return any(key == file.rows[at][0] and number > file.number for key, number in self.keys)

    def places(self) -> Iterator[Place]:
        """Where the rows are that a reader sees."""
        for name in sorted(self.live):
            for at in range(len(self.files[name].rows)):
                if not self.is_deleted((name, at)) and not self.is_hit((name, at)):
                    yield name, at

    def row(self, place: Place) -> Row:
        return self.files[place[0]].rows[place[1]]

    def follow(self, place: Place) -> tuple[str, Place]:
        """Where a row is by now, and what became of it."""
        while place[0] not in self.live:
            if place[0] in self.untold:
                return UNTOLD, place
            if place in self.changed:
                return CHANGED, place
            child = self._copy_of(place)
            if child is None:
                return GONE, place
            place = child
        if self.is_deleted(place):
            return (CHANGED if place in self.changed else GONE), place
        return HERE, place

    def _copy_of(self, place: Place) -> Place | None:
        for name, file in enumerate(self.files):
            if place in file.sources:
                return name, file.sources.index(place)
        return None


class Plan(NamedTuple):
    """What a writer wants, made from the table that it read."""

    kind: str
    number: int
    """The sequence number of what it read."""
    known: int
    """How many files there were."""
    key: int = 0
    moved: Place | None = None
    """The row that it changes."""
    deleted: Place | None = None
    copies: tuple[Place, ...] = ()
    removed: frozenset[int] = frozenset()
    unneeded: frozenset[tuple[int, int]] = frozenset()
    """Deletes by key that apply to no file that stays."""

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
    """The rows that there are, if commits are applied one after the other to a table without files."""
    actors: tuple[Actor, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    actors: int = 2
    kinds: tuple[str, ...] = KINDS
    rewrites_meet: bool = False
    """Two compactions of one file are both let through. They are not, to save work; nothing depends on it."""


@lru_cache(maxsize=200_000)
def plans(table: Table, kinds: tuple[str, ...]) -> tuple[Plan, ...]:
    """Every change that a reader of this table may plan."""
    return (*_row_plans(table, kinds), *_file_plans(table, kinds))


def _row_plans(table: Table, kinds: tuple[str, ...]) -> Iterator[Plan]:
    places = seen(table)
    number, known = table.number, len(table.files)
    for place in places:
        key = table.row(place)[0]
        if DELETE in kinds:
            yield Plan(DELETE, number, known, key, deleted=place)
        if UPDATE in kinds:
            yield Plan(UPDATE, number, known, key, moved=place)
        if UPSERT in kinds:
            yield Plan(UPSERT, number, known, key)
        # The row's own file alone, or together with all others: a writer may copy rows of several files into one.
        for removed in dict.fromkeys((frozenset({place[0]}), table.live)):
            copies = tuple(each for each in places if each[0] in removed and each != place)
            if COPY_DELETE in kinds:
                yield Plan(COPY_DELETE, number, known, key, deleted=place, copies=copies, removed=removed)
            if COPY_UPDATE in kinds:
                yield Plan(COPY_UPDATE, number, known, key, moved=place, copies=copies, removed=removed)


def _file_plans(table: Table, kinds: tuple[str, ...]) -> Iterator[Plan]:
    for size in range(1, len(table.live) + 1):
        for chosen in combinations(sorted(table.live), size):
            copies = tuple(place for place in seen(table) if place[0] in chosen)
            plan = Plan(FOREIGN, table.number, len(table.files), copies=copies, removed=frozenset(chosen))
            if FOREIGN in kinds:
                yield plan
            if COMPACT in kinds:
                stay = [table.files[name] for name in table.live if name not in chosen]
                unneeded = frozenset(each for each in table.keys if not any(applies(each, file) for file in stay))
                yield plan._replace(kind=COMPACT, unneeded=unneeded)


@lru_cache(maxsize=200_000)
def seen(table: Table) -> tuple[Place, ...]:
    """Where the rows are that a reader sees."""
    return tuple(table.places())


def applies(delete: tuple[int, int], file: File) -> bool:
    key, number = delete
    return number > file.number and any(row[0] == key for row in file.rows)
