"""The seam between a commit and whoever referees it.

Two small protocols. ``PointerStore`` is a database that keeps one text per table and swaps it atomically (memory,
SQLite, Postgres); ``Catalog`` is what the commit loop sees. ``pointer.py`` turns any PointerStore into a Catalog,
``foreign.py`` does it for any PyIceberg catalog.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Ident


@dataclass(frozen=True, slots=True)
class Committed:
    """The swap landed: the table now points to ``location``."""

    location: str


@dataclass(frozen=True, slots=True)
class Stale:
    """The swap did not land, for certain. ``actual`` is the value found instead; None: the table is gone."""

    actual: str | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """The swap was sent and no answer can be trusted. It may land now, later or never."""

    cause: str


Outcome = Committed | Stale | Unknown


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A commit id with what it did, kept beside the pointer and written in the swap's own transaction."""

    table_uuid: str
    commit_id: str
    digest: str
    """Names the operation: the same id with another digest is a mistake of the caller."""
    snapshot_id: int | None
    sequence_number: int
    summary: Mapping[str, int] = field(default_factory=dict)
    """Row, file and byte counts, so that a repeated call returns what the first one did."""


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """What a snapshot did, as ``commit/summaries.py`` writes it, kept beside the pointer to save reading manifests.

    A snapshot need not have one, and losing one costs time only (rule P10).
    """

    table_uuid: str
    snapshot_id: int
    sequence_number: int
    body: bytes


class QueueState(enum.IntEnum):
    """What became of a ticket. It leaves WAITING exactly once (rule P1)."""

    WAITING = 0
    COMMITTED = 1
    RETURNED = 2
    """Back to its writer, who commits it: it needs a look at files, or the combiner does not understand it (P4)."""
    WITHDRAWN = 3
    UNKNOWN = 4
    """Whoever committed it cannot say whether it landed (rule P9)."""


RESERVATION = 0
"""The version of a ticket without a body: its writer commits the operation itself, and wants the turn for it."""


@dataclass(frozen=True, slots=True)
class QueuedCommit:
    """An operation in a table's queue: the permit for whoever combines to commit it.

    Put there only when every file that it names is closed and durable.
    """

    key: str
    """Fresh for each: sent twice, it is in the queue once."""
    table_uuid: str
    commit_id: str
    version: int
    """Of the form of ``body``; a combiner leaves a version it does not know to the ticket's writer."""
    body: bytes
    wake: str = ""
    """Where its writer wants to be woken."""
    place: str = ""
    """The queue that it stands in: a table may be registered under two names, and each has a pointer of its own."""

    @property
    def is_reservation(self) -> bool:
        return self.version == RESERVATION


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A ticket as a combiner finds it."""

    ticket: QueuedCommit
    age_ms: int
    tries: int
    """How often somebody has begun to commit it when it was old already; how often the turn was left to it."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A ticket's fate, with what its writer is told."""

    state: QueueState
    outcome: bytes = b""


@dataclass(frozen=True, slots=True)
class QueueUpdate:
    """What a swap decides about tickets, in its own transaction: all of it, or nothing (rule P1)."""

    committed: Mapping[str, bytes]
    """QueuedCommit → what its writer is told."""
    returned: tuple[str, ...] = ()
    records: tuple[CommitRecord, ...] = ()
    """The commit ids of those who chose theirs."""
    wake: tuple[tuple[str, str], ...] = ()
    """(where, ticket) of everybody concerned."""


@dataclass(frozen=True, slots=True)
class DroppedManifestLists:
    """Manifest lists whose snapshots went with a commit: kept for those who remove files (rule P18)."""

    table_uuid: str
    manifest_lists: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pointer:
    location: str
    now_ms: int
    """The referee's own clock (the host's where it has none)."""
    queue_not_empty: bool = False
    """Tickets wait in the catalog's queue, be it for this table or another."""


@dataclass(frozen=True, slots=True)
class Head:
    """One table as it is now: read afresh in every attempt."""

    location: str
    metadata: TableMetadata
    now_ms: int
    queue_not_empty: bool = False
    """As the pointer's."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a commit wants changed, as the REST specification's updates and requirements (plain JSON values)."""

    updates: tuple[dict[str, Any], ...]
    requirements: tuple[dict[str, Any], ...]
    record: CommitRecord | None = None
    changes: tuple[ChangeRecord, ...] = ()
    """What the new snapshots do, for catalogs that keep it."""
    queue_update: QueueUpdate | None = None
    """Tickets of others that are committed with it."""
    dropped: DroppedManifestLists | None = None
    """What no snapshot names any more."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A swap ready to be sent, and sent again unchanged while its outcome is unknown."""

    ident: Ident
    head: Head
    proposal: Proposal
    location: str | None = None
    """The new metadata file; None where the catalog's server writes it."""
    metadata: TableMetadata | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    records_commit_ids: bool
    """Commit ids are kept in the swap's own transaction; otherwise they live in the table's metadata only."""
    stale_is_certain: bool
    """A Stale answer proves that the swap did not and will not land. False for catalogs behind a network (rule P30)."""
    atomic: bool = True
    """False: the catalog has no compare-and-swap (Hive's lock); offered with a warning."""
    keeps_changes: bool = False
    """The changes of a proposal are kept; otherwise there is no use in making them."""


class CommitQueue(Protocol):
    """Tickets of one catalog's tables. For speed alone: without it writers race on the swap (rules P1 to P4)."""

    def put(self, ticket: QueuedCommit, lives_ms: int) -> bool:
        """Add a ticket that expires after so long by the catalog's clock. True: others of its place wait already.

        Raises CommitUnknown when nobody can say whether it is there; any other error says that it is not and will not.
        """

    def waiting(self, place: str, most: int) -> list[QueueEntry]:
        """The oldest tickets that wait and have not expired, the oldest first. Without reservations."""

    def count(self, place: str) -> int:
        """How many wait, without reservations."""

    def first(self, place: str) -> QueueEntry | None:
        """Who is to have the turn next: the oldest reservation, or else the oldest ticket. Its body is left out."""

    def tried(self, keys: Sequence[str]) -> None:
        """Count one more try for each of these."""

    def claim(self, queue_update: QueueUpdate) -> bool:
        """Before the swap is sent. False: one of the group does not wait any more, where the swap would not see it."""

    def conclude(self, queue_update: QueueUpdate, outcome: Outcome) -> None:
        """After the swap, whatever came of it, where its own transaction has not settled everything."""

    def status(self, key: str) -> QueueStatus | None:
        """What became of a ticket; None: there is no such ticket, and nobody can say."""

    def withdraw(self, key: str) -> QueueStatus | None:
        """Take a ticket back. WITHDRAWN: it will never be committed; otherwise what became of it before."""

    def fence(self, key: str) -> QueueStatus | None:
        """Take somebody's ticket back, though it may not have arrived yet: nobody commits it from now on."""

    def extend(self, key: str, lives_ms: int) -> None:
        """It expires so long after now: its writer is alive."""

    def address(self) -> str:
        """Where this process can be woken."""

    def sleep(self, key: str, seconds: float) -> None:
        """Until somebody wakes the ticket's writer, or so long."""

    def wake(self, sleepers: Sequence[tuple[str, str]]) -> None:
        """Wake writers: (where, ticket). A hint: it never raises, and nothing but speed may depend on it."""


class PointerStore(Protocol):
    """One text per table, swapped atomically. Implementations are thread-safe and survive fork by reconnecting."""

    name: str
    """The catalog's name in Iceberg's JDBC tables."""

    @property
    def queue(self) -> CommitQueue | None:
        """None: it has no room for one."""

    def read(self, ident: Ident) -> Pointer:
        """The current value, from the primary. Raises NoSuchTable, CatalogUnavailable."""

    def swap(
        self,
        ident: Ident,
        expected: str,
        new: str,
        record: CommitRecord | None,
        changes: Sequence[ChangeRecord] = (),
        queue_update: QueueUpdate | None = None,
        dropped: DroppedManifestLists | None = None,
    ) -> Outcome:
        """Set ``new`` where ``expected`` stands, with all the rest in the same transaction (rules P1 and P5).

        A record whose commit id is already there, or a ticket that does not wait any more, rolls everything back and
        answers Stale with the current value. Raises CatalogUnavailable only when the swap was definitely not sent.
        Changes never decide: a store that cannot keep them swaps without them.
        """

    def find_commit(self, table_uuid: str, commit_id: str) -> CommitRecord | None: ...

    def put_commit(self, record: CommitRecord) -> bool:
        """Record a commit id without a swap (a write that matched nothing). False: it was already there."""

    def find_changes(self, table_uuid: str, after: int, up_to: int) -> list[ChangeRecord]:
        """What is kept of snapshots with sequence numbers above ``after``, up to ``up_to``, in their order."""

    def forget_changes(self, table_uuid: str) -> None:
        """Let go of all of a table's changes."""

    def dropped_lists(self, table_uuid: str) -> list[str]:
        """Manifest lists whose snapshots went with commits (rule P18), the oldest first."""

    def pin(self, pin: str, table_uuid: str, snapshot_ids: Sequence[int], lives_ms: int) -> None:
        """Say that a transaction needs these snapshots, until ``unpin`` or for so long (rule P18).

        Without it the transaction is slower to check, not wrong: a store that has no room for pins does nothing.
        """

    def unpin(self, pin: str) -> None: ...

    def pinned(self, table_uuid: str) -> frozenset[int]: ...

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

    def try_commit_lock(self, ident: Ident) -> Callable[[], None] | None:
        """Take the table's turn without waiting, and return what gives it back; None: another writer has it.

        A hint (rule P2): it never raises, and nothing but speed may depend on it.
        """

    def close(self) -> None: ...


class Catalog(Protocol):
    """What the commit loop and the lake need of a referee."""

    name: str
    capabilities: Capabilities

    @property
    def queue(self) -> CommitQueue | None:
        """Where writers of this catalog wait to be committed together; None: each commits alone."""

    def try_commit_lock(self, ident: Ident) -> Callable[[], None] | None:
        """As PointerStore.try_commit_lock."""

    def load(self, ident: Ident) -> Head:
        """Raises NoSuchTable, CatalogUnavailable, CorruptMetadata."""

    def prepare(self, ident: Ident, head: Head, proposal: Proposal) -> Prepared:
        """Write, durably, whatever the swap will point to."""

    def swap(self, prepared: Prepared) -> Outcome:
        """Send it. May be called again with the same value: the second call is harmless.

        Raises only when it certainly was not sent (CatalogUnavailable) or was refused outright.
        """

    def commit_lock(self, ident: Ident, patience_s: float) -> AbstractContextManager[None]:
        """Wait, for ``patience_s`` at most, until others who take turns are not committing to this table.

        Only a hint that saves lost races: whoever does not take turns may commit at any moment all the same.
        """

    def discard(self, prepared: Prepared) -> None:
        """Remove what prepare wrote, after the swap definitely lost."""

    def find_commit(self, metadata: TableMetadata, commit_id: str) -> CommitRecord | None: ...

    def record_commit(self, ident: Ident, head: Head, record: CommitRecord) -> None:
        """Keep the id of a write that changed nothing (rule P12)."""

    def find_changes(self, table_uuid: str, after: int, up_to: int) -> list[ChangeRecord]:
        """What is kept of snapshots with sequence numbers above ``after``, up to ``up_to``; any of them may be missing.

        One request. Raises CatalogUnavailable.
        """

    def pin(self, pin: str, table_uuid: str, snapshot_ids: Sequence[int], lives_ms: int) -> None:
        """As PointerStore.pin."""

    def unpin(self, pin: str) -> None: ...

    def pinned(self, table_uuid: str) -> frozenset[int]: ...

    def instant(self) -> Mapping[Ident, str] | None:
        """Where every table stood at one and the same moment (rule P28); None: this catalog cannot tell."""

    def load_at(self, ident: Ident, location: str) -> Head:
        """A table as the metadata file at ``location`` has it, whatever became of it since.

        Raises StorageError when the file is no longer there because the table moved on.
        """

    def create(self, ident: Ident, metadata: TableMetadata) -> Head:
        """Raises TableExists, NoSuchNamespace."""

    def register(self, ident: Ident, location: str) -> Head: ...

    def drop(self, ident: Ident) -> str: ...

    def rename(self, old: Ident, new: Ident) -> None: ...

    def tables(self, namespace: tuple[str, ...] | None = None) -> list[Ident]: ...

    def namespaces(self) -> dict[tuple[str, ...], dict[str, str]]: ...

    def create_namespace(self, namespace: tuple[str, ...], properties: Mapping[str, str]) -> None: ...

    def drop_namespace(self, namespace: tuple[str, ...]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OpenedCatalog:
    """A catalog as ``open_catalog`` found or made it."""

    catalog: Catalog
    storage: Storage
    warehouse: str | None
    """Where new tables go by default; None: the catalog's server decides, or nobody said."""
    uri_shown: str
    """The URI without its secrets."""
    kind: str
    """"embedded", "sqlite", "postgres", "memory", or the foreign catalog's type."""
    created: bool
    """The catalog did not exist before."""
