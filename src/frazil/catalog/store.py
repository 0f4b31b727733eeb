"""The seam below the catalog: a database that keeps one location per table and swaps it atomically.

``memory.py``, ``sqlite.py`` and ``postgres.py`` implement it; ``pointer.py`` makes a Catalog of any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from frazil.catalog.base import (
    AttemptsLog,
    ChangeLog,
    ChangeRecord,
    CommitLocks,
    CommitOrder,
    CommitQueue,
    CommitRecord,
    Committed,
    DeletionLog,
    DroppedManifestLists,
    Guard,
    Leases,
    Outcome,
    QueueUpdate,
    Scrubber,
    SnapshotPins,
    StagedPrefixes,
    Stale,
    Timeline,
)
from frazil.model import Ident


@dataclass(frozen=True, slots=True)
class Pointer:
    location: str
    now_ms: int
    """The database's own clock (the host's where it has none)."""
    queue_not_empty: bool = False
    """The queue has commits, for this table or another."""


@dataclass(frozen=True, slots=True)
class PointerSwap:
    """Set a table's pointer to ``new`` if it is ``expected``."""

    ident: Ident
    expected: str | None
    """None: there must be no such table, and it is made."""
    new: str | None
    """None: the table is removed."""
    about: str = ""
    """What the commit did, as the order of commits keeps it."""


@dataclass(frozen=True, slots=True)
class Swap:
    """What one transaction does, for one or more tables: all of it, or nothing (rules P1 and P5)."""

    pointers: tuple[PointerSwap, ...]
    records: tuple[CommitRecord, ...] = ()
    """The commit's own, one per table. Those of its group are in the queue update."""
    changes: tuple[ChangeRecord, ...] = ()
    """These never decide: a store that cannot keep them swaps without them."""
    queue_update: QueueUpdate | None = None
    dropped: tuple[DroppedManifestLists, ...] = ()
    guards: tuple[Guard, ...] = ()

    @property
    def in_order(self) -> list[PointerSwap | Guard]:
        """Everything that is compared, in the order in which rows are locked: no two swaps deadlock (rule P40)."""
        return sorted((*self.pointers, *self.guards), key=lambda each: each.ident)

    @property
    def committed(self) -> Committed:
        return Committed((self.pointers[0].new or "") if self.pointers else self.guards[0].location)

    @staticmethod
    def of_table(
        ident: Ident,
        expected: str,
        new: str,
        record: CommitRecord | None = None,
        changes: Sequence[ChangeRecord] = (),
        queue_update: QueueUpdate | None = None,
    ) -> Swap:
        """A swap of one table's pointer."""
        records = () if record is None else (record,)
        return Swap((PointerSwap(ident, expected, new),), records, tuple(changes), queue_update)


def expected_of(each: PointerSwap | Guard) -> str | None:
    return each.location if isinstance(each, Guard) else each.expected


def stale(swap: Swap, moved: PointerSwap | Guard, actual: str | None) -> Stale:
    """The answer to a swap of which this pointer has moved."""
    return Stale(actual, moved.ident if len(swap.pointers) + len(swap.guards) > 1 else None)


def was_sent_before(swap: Swap, moved: PointerSwap | Guard, actual: str | None) -> bool:
    """Names are fresh, so a pointer to ``new`` is this very swap, sent before (rule P9).

    All its pointers were set then. Where an earlier one is still as expected, this is a table that was taken back.
    """
    first = next((each for each in swap.in_order if isinstance(each, PointerSwap)), None)
    return moved is first and actual is not None and actual == first.new


class CommitIds(Protocol):
    """Commit ids with what they did."""

    def find(self, table_uuid: str, commit_id: str) -> CommitRecord | None: ...

    def put(self, record: CommitRecord) -> bool:
        """Record a commit id without a swap (a write that matched nothing). False: it was already there."""


class PointerStore(Protocol):
    """Implementations are thread-safe and survive fork by reconnecting."""

    name: str
    """The catalog's name in Iceberg's JDBC tables."""

    @property
    def commits(self) -> CommitIds: ...

    @property
    def queue(self) -> CommitQueue | None: ...

    @property
    def changes(self) -> ChangeLog | None: ...

    @property
    def pins(self) -> SnapshotPins | None: ...

    @property
    def attempts(self) -> AttemptsLog | None: ...

    @property
    def deletions(self) -> DeletionLog | None: ...

    @property
    def staged(self) -> StagedPrefixes | None: ...

    @property
    def scrubber(self) -> Scrubber | None: ...

    @property
    def timeline(self) -> Timeline | None: ...

    @property
    def leases(self) -> Leases | None: ...

    @property
    def locks(self) -> CommitLocks | None: ...

    @property
    def order(self) -> CommitOrder | None: ...

    def read(self, ident: Ident) -> Pointer:
        """The current value, from the primary. Raises NoSuchTable, CatalogUnavailable."""

    def swap(self, swap: Swap) -> Outcome:
        """A pointer that is not as expected, a record whose commit id is already there, or a queued commit that no
        longer waits rolls everything back and answers Stale with the current value. Raises CatalogUnavailable only
        when the swap was definitely not sent.
        """


class PointerDirectory(Protocol):
    """The names of tables and namespaces."""

    def insert(self, ident: Ident, location: str) -> None:
        """Add a table. Raises TableExists, NoSuchNamespace."""

    def delete(self, ident: Ident) -> str:
        """Remove a table and return the value it had. Raises NoSuchTable."""

    def rename(self, old: Ident, new: Ident) -> None:
        """Raises NoSuchTable, TableExists, NoSuchNamespace."""

    def pointers(self, namespace: tuple[str, ...] | None = None) -> dict[Ident, str]:
        """All tables (or those directly in one namespace) with their values, from one statement: one instant."""

    def namespaces(self) -> dict[tuple[str, ...], dict[str, str]]:
        """Every namespace with its properties, implied parents and namespaces of tables included."""

    def create_namespace(self, namespace: tuple[str, ...], properties: Mapping[str, str]) -> None:
        """Raises NamespaceExists."""

    def drop_namespace(self, namespace: tuple[str, ...]) -> None:
        """Raises NoSuchNamespace, NamespaceNotEmpty."""


class LakeStore(PointerStore, PointerDirectory, Protocol):
    """All that a PointerCatalog uses."""

    def close(self) -> None: ...
