"""The states of the model of the swap of several tables, its rules and its bounds."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

Snapshot = tuple[int, int]
"""(writer, attempt)."""
History = tuple[Snapshot, ...]
"""A version of a table is its whole history, so two versions are never taken for one."""
TABLES = (0, 1)
NAMES = "ABCDEFGH"
TABLE_NAMES = ("accounts", "ledger")


class Rule(enum.StrEnum):
    """The rules that make transactions over tables safe. Each can be switched off."""

    EVERY_POINTER_IS_COMPARED = "the swap compares every pointer with the head that was read"
    ALL_IN_ONE_TRANSACTION = "all pointers are set in one transaction of the database"
    GUARDS_ARE_COMPARED = "tables that were only read are compared by the swap"
    GUARDS_ARE_HELD = "a compared guard stays as it is until the swap is committed"
    READS_ARE_CHECKED = "what was read is checked again on the head that the swap guards"
    LOCKED_IN_ORDER = "rows are locked in the order of the tables' names"
    STALE_IS_DOUBTED = "after a lost answer, a stale one is not believed while no table has moved"
    RECORDS_ARE_SEARCHED = "after a lost answer, a stale one is not believed while the commit id is recorded"
    MOVED_FIRST = "that a table has moved is seen before the records are read"
    ONE_INSTANT = "a reader of several tables reads all pointers at one moment"
    LOOKED_UP_TOGETHER = "a commit id that is found in one table is looked up in all of them again"


class Kind(enum.StrEnum):
    BOTH = "writes to both tables"
    SECOND = "writes to the second table"
    SKEW = "reads the second table, writes to the first"
    SKEW_BACK = "reads the first table, writes to the second"
    READER = "reads both tables"

    @property
    def writes(self) -> tuple[int, ...]:
        return _WRITES[self]

    @property
    def reads(self) -> tuple[int, ...]:
        return _READS.get(self, ())


_WRITES = {Kind.BOTH: (0, 1), Kind.SECOND: (1,), Kind.SKEW: (0,), Kind.SKEW_BACK: (1,), Kind.READER: ()}
_READS = {Kind.SKEW: (1,), Kind.SKEW_BACK: (0,), Kind.READER: (0, 1)}


class Stage:
    """The stage of a writer; the last four are outcomes."""

    START = "start"
    LOOKING = "looking"
    PINNED = "pinned"
    PREPARED = "prepared"
    WAITING = "waiting"
    DOUBT = "doubt"
    SEEN = "seen"
    SEARCHING = "searching"
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"
    DEAD = "dead"


DECIDED = (Stage.OK, Stage.FAILED, Stage.UNKNOWN, Stage.DEAD)


class Row(NamedTuple):
    """A pointer as a swap expects it. ``is_guard``: it is only compared."""

    table: int
    expected: History
    is_guard: bool


class Request(NamedTuple):
    """A swap on its way to the database, or in it."""

    snapshot: Snapshot
    rows: tuple[Row, ...]
    """In the order in which the database locks them."""
    locked: int = 0


class Writer(NamedTuple):
    at: str
    attempt: int = 0
    pinned: tuple[History, ...] = ()
    """By table, the version that it reads."""
    request: Request | None = None
    sent: int = 0
    is_recorded: bool = False
    """Its commit id was recorded when it looked."""
    named: tuple[int, ...] = ()
    """The tables that its answer names."""


class State(NamedTuple):
    heads: tuple[History, ...]
    writers: tuple[Writer, ...]
    flying: tuple[Request, ...]
    ids: frozenset[int]
    """The recorded commit ids."""
    aborts: int
    crashes: int
    reruns: int


@dataclass(frozen=True, slots=True)
class Bounds:
    cast: tuple[Kind, ...] = (Kind.BOTH, Kind.BOTH)
    attempts: int = 1
    sends: int = 2
    """How often one swap is sent."""
    aborts: int = 0
    """How often the database rolls a swap back of its own accord."""
    crashes: int = 0
    reruns: int = 0
    """Calls that are repeated with the same commit id."""


def put(state: State, number: int, writer: Writer) -> State:
    return state._replace(writers=(*state.writers[:number], writer, *state.writers[number + 1 :]))


def without(flying: tuple[Request, ...], request: Request) -> tuple[Request, ...]:
    left = list(flying)
    left.remove(request)
    return tuple(left)


def with_request(flying: tuple[Request, ...], request: Request) -> tuple[Request, ...]:
    return tuple(sorted((*flying, request)))
