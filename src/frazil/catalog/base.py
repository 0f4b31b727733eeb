"""The seam between a commit and its catalog, by role: every protocol as small as its users need.

``Catalog`` is what one commit needs, ``TableDirectory`` what a lake needs besides. What a catalog may or may not have
is an optional object of its own: a queue, a change log, pins, an attempts log, commit locks. ``store.py`` has the seam
below: ``pointer.py`` makes a Catalog of any PointerStore, ``foreign.py`` one of any PyIceberg catalog.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Ident

# What a swap answers


@dataclass(frozen=True, slots=True)
class Committed:
    """The swap was committed: the table (of several, the first) now points to ``location``."""

    location: str


@dataclass(frozen=True, slots=True)
class Stale:
    """The swap was not committed, for certain. ``actual`` is the value found instead; None: the table is gone."""

    actual: str | None
    ident: Ident | None = None
    """The table whose pointer has moved, where the swap had several."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The swap was sent and no answer can be trusted. It may be committed now, later or never."""

    cause: str
    landed: tuple[Ident, ...] = ()
    """The tables that have it while others have not: the catalog applied half of it."""
    missing: tuple[Ident, ...] = ()
    """These others."""


Outcome = Committed | Stale | Unknown


# What is kept beside the pointer


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

    A snapshot may be without one, and losing one costs time only (rule P10).
    """

    table_uuid: str
    snapshot_id: int
    sequence_number: int
    body: bytes


@dataclass(frozen=True, slots=True)
class DroppedManifestLists:
    """Manifest lists whose snapshots a commit expired: kept for the services that delete files (rule P18)."""

    table_uuid: str
    manifest_lists: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AttemptsRecord:
    """A commit that other writers or faults stood in the way of, whatever became of it.

    Without data of the table: no conditions, no values, no paths.
    """

    table_uuid: str
    commit_id: str
    app: str
    host: str
    verb: str
    outcome: str
    """committed, conflict, exhausted, unknown or error."""
    attempts: int
    lost: int
    """Lost races."""
    faults: int
    redone: int
    """How often the statement was evaluated again."""
    elapsed_ms: int
    check: str | None = None
    """The first check that failed."""
    winner_app: str | None = None
    winner_verb: str | None = None
    winner_commit_id: str | None = None
    detail: str = ""
    at_ms: int = 0
    """When it was recorded, by the catalog's clock; the log sets it."""


# The order of commits


@dataclass(frozen=True, slots=True)
class PointerMove:
    """What a commit did to one name."""

    ident: Ident
    previous: str | None
    """None: there was no such table."""
    location: str | None
    """None: the table was dropped."""
    about: str = ""
    """What else is known of it, as ``order.about`` wrote it."""


@dataclass(frozen=True, slots=True)
class OrderedCommit:
    """One commit, with all the tables that it moved."""

    stamp_ms: int
    moves: tuple[PointerMove, ...]


@dataclass(frozen=True, slots=True)
class OrderCut:
    """The recorded order around one time."""

    current: Mapping[Ident, str]
    """The pointers as they are now."""
    later: tuple[PointerMove, ...]
    """What was recorded after the time, the newest first."""
    earlier: Mapping[Ident, str | None]
    """By name, the location of the newest move at or before the time."""

    def undone(self) -> dict[Ident, str]:
        """The pointers right before the first commit after the time."""
        found = dict(self.current)
        for move in self.later:
            if move.previous is None:
                found.pop(move.ident, None)
            else:
                found[move.ident] = move.previous
        return found


# The queue's values


class QueueState(enum.IntEnum):
    """The state of a queued commit. It leaves WAITING exactly once (rule P1)."""

    WAITING = 0
    COMMITTED = 1
    RETURNED = 2
    """Back to its writer, which commits it: its files must be read, or the leader cannot decode it (P4)."""
    WITHDRAWN = 3
    UNKNOWN = 4
    """The leader that sent it got no answer that can be trusted (rule P9)."""


RESERVATION = 0
"""The version of a queued commit without a body: its writer commits the operation itself, and wants the commit lock."""


@dataclass(frozen=True, slots=True)
class QueuedCommit:
    """An operation in a table's queue: the leader's permit to commit it.

    Put there only when every file that it names is closed and durable.
    """

    key: str
    """Fresh for each: sent twice, it is queued once."""
    table_uuid: str
    commit_id: str
    version: int
    """Of the form of ``body``; a leader returns a version that it does not understand to the writer."""
    body: bytes
    notify_address: str = ""
    """Where its writer listens. Empty: it polls."""
    queue_key: str = ""
    """The queue that it is in: a table may be registered under two names, and each has a pointer of its own."""

    @property
    def is_reservation(self) -> bool:
        return self.version == RESERVATION


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A queued commit as a leader reads it."""

    ticket: QueuedCommit
    age_ms: int
    tries: int
    """How many leaders began to commit it when it was already old; how many left the commit lock to it."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The state of a queued commit, with the outcome that its leader wrote for its writer."""

    state: QueueState
    outcome: bytes = b""


@dataclass(frozen=True, slots=True)
class QueueUpdate:
    """What a swap decides about queued commits, in its own transaction: all of it, or nothing (rule P1)."""

    committed: Mapping[str, bytes]
    """Key → the outcome for its writer."""
    returned: tuple[str, ...] = ()
    records: tuple[CommitRecord, ...] = ()
    """For members whose caller chose the commit id."""
    to_notify: tuple[tuple[str, str], ...] = ()
    """(address, key) of every writer concerned."""

    @staticmethod
    def of_all(updates: Iterable[QueueUpdate | None]) -> QueueUpdate | None:
        """Those of the tables of one swap, as one."""
        found = [each for each in updates if each is not None]
        if len(found) <= 1:
            return found[0] if found else None
        return QueueUpdate(
            {key: outcome for each in found for key, outcome in each.committed.items()},
            tuple(key for each in found for key in each.returned),
            tuple(record for each in found for record in each.records),
            tuple(pair for each in found for pair in each.to_notify),
        )


# One attempt to commit


@dataclass(frozen=True, slots=True)
class Head:
    """One table as it is now: read afresh in every attempt."""

    location: str
    """Empty: the table is made by the commit."""
    metadata: TableMetadata
    now_ms: int
    queue_not_empty: bool = False
    """The catalog's queue has commits, for this table or another."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a commit wants changed, as the REST specification's updates and requirements (plain JSON values)."""

    updates: tuple[dict[str, Any], ...]
    requirements: tuple[dict[str, Any], ...]
    record: CommitRecord | None = None
    changes: tuple[ChangeRecord, ...] = ()
    """What the new snapshots do, for catalogs with a change log."""
    queue_update: QueueUpdate | None = None
    """The queued commits of other writers that are committed with it."""
    dropped: DroppedManifestLists | None = None
    """Manifest lists that no snapshot names any more."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A swap ready to be sent, and sent again unchanged while its outcome is unknown."""

    ident: Ident
    head: Head
    proposal: Proposal
    location: str | None = None
    """The new metadata file; None where the catalog's server writes it, and for a table that is dropped."""
    metadata: TableMetadata | None = None
    drops: bool = False
    """The swap removes the table."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A table that a swap leaves alone, and that must not have moved either: the commit depends on what it read there.

    Compared in the swap's own transaction (rule P40).
    """

    ident: Ident
    location: str
    record: CommitRecord | None = None
    """The commit id, where the commit found nothing left to do in this table."""
    requirements: tuple[dict[str, Any], ...] = ()
    """What must hold of it, for catalogs that compare requirements and not locations."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    records_commit_ids: bool
    """Commit ids are kept in the swap's own transaction; otherwise in the table's metadata only."""
    stale_is_certain: bool
    """A Stale answer proves that the swap was not and will not be committed. False behind a network (rule P30)."""
    swaps_tables: bool = False
    """Several tables in one swap, with guards."""
    drops_in_swap: bool = False
    """A swap may also remove a table."""
    atomic: bool = True
    """False: the catalog has no compare-and-swap (Hive's lock); offered with a warning."""


# What a catalog may have


class WriterQueue(Protocol):
    """The queue as a writer uses it."""

    def put(self, ticket: QueuedCommit, lives_ms: int) -> bool:
        """Add a commit that expires after so long by the catalog's clock. True: its queue was not empty.

        Raises CommitUnknown when it is not known whether it is there; any other error says that it is not and will not.
        """

    def status(self, key: str) -> QueueStatus | None:
        """None: the queue has no such commit, or no longer."""

    def withdraw(self, key: str) -> QueueStatus | None:
        """Take a commit back. WITHDRAWN: it will never be committed; otherwise the state it had before."""

    def fence(self, key: str) -> QueueStatus | None:
        """Take back an earlier call's commit, though it may not have arrived yet: no leader commits it from now on."""

    def extend(self, key: str, lives_ms: int) -> None:
        """It expires so long after now: its writer is alive."""


class LeaderQueue(Protocol):
    """The queue as the leader of a group commit uses it."""

    def waiting(self, queue_key: str, most: int) -> list[QueueEntry]:
        """The oldest commits that wait and have not expired, the oldest first. Without reservations."""

    def count(self, queue_key: str) -> int:
        """How many wait, without reservations."""

    def first(self, queue_key: str) -> QueueEntry | None:
        """The next to hold the commit lock: the oldest reservation, else the oldest commit. Its body is left out."""

    def tried(self, keys: Sequence[str]) -> None:
        """Count one more try for each of these."""


class Notifier(Protocol):
    """How writers that wait in a queue are woken. Hints: none of these raises, and only speed may depend on them."""

    def address(self) -> str:
        """Where this process listens."""

    def sleep(self, key: str, seconds: float) -> bool:
        """Until the writer of this commit is notified, or so long. True: it was notified, and no other writer."""

    def notify(self, to_notify: Sequence[tuple[str, str]]) -> None:
        """Wake the writers at (address, key)."""


class QueueClaims(Protocol):
    """Only for queues whose updates are not made by the swap's own transaction: claimed before it, concluded after."""

    def claim(self, queue_update: QueueUpdate) -> bool:
        """Before the swap is sent. False: a commit of the group no longer waits, and none of them is claimed."""

    def conclude(self, queue_update: QueueUpdate, outcome: Outcome) -> None:
        """After the swap, whatever its outcome."""


class CommitQueue(WriterQueue, LeaderQueue, Protocol):
    """Commits that wait for a leader. For speed alone: without it writers race on the swap (rules P1 to P4)."""

    @property
    def notifier(self) -> Notifier: ...

    @property
    def claims(self) -> QueueClaims | None:
        """None: the swap's own transaction updates the queue."""


class ChangeLog(Protocol):
    """What snapshots did. A hint that saves reading manifests: any record may be missing."""

    def find(self, table_uuid: str, after: int, up_to: int) -> list[ChangeRecord]:
        """The records with sequence numbers above ``after``, up to ``up_to``, in their order.

        One request. Raises CatalogUnavailable.
        """

    def forget(self, table_uuid: str) -> None:
        """Delete all records of a table."""

    def dropped_lists(self, table_uuid: str) -> list[str]:
        """Manifest lists whose snapshots were expired by commits (rule P18), the oldest first."""


class SnapshotPins(Protocol):
    """Snapshots that open transactions need: commits do not expire them (rule P18)."""

    def pin(self, pin: str, table_uuid: str, snapshot_ids: Sequence[int], lives_ms: int) -> None:
        """Keep these snapshots until ``unpin`` or for so long.

        Without a pin the transaction is slower to check, not wrong.
        """

    def unpin(self, pin: str) -> None: ...

    def pinned(self, table_uuid: str) -> frozenset[int]: ...


class AttemptsLog(Protocol):
    """Commits that met other writers, for people: nothing is decided by it. Trimmed by age and by number."""

    def add(self, record: AttemptsRecord) -> None:
        """May raise errors of the database; the commit is decided already, and its writer goes on without."""

    def find(self, table_uuid: str, most: int) -> list[AttemptsRecord]:
        """The newest records of a table, the newest first. Raises CatalogUnavailable, PermissionDenied."""


class CommitOrder(Protocol):
    """The order of commits. Recorded by every swap; without its rows, commits are placed like other engines' (P10)."""

    def cut(self, as_of_ms: int) -> OrderCut:
        """The order around a time. What it answers stays true: no later commit gets a stamp up to that time.

        Raises InvalidInput for a time in the future and one before the order begins, CatalogUnavailable.
        """

    def newest(self, most: int | None) -> list[OrderedCommit]:
        """The newest commits, the oldest of them first. None: all that are kept."""


Release = Callable[[], None]


class CommitLocks(Protocol):
    """One lock per table, held by the leader of a group commit or by the one writer that retries (rule P2)."""

    def try_lock(self, ident: Ident) -> Release | None:
        """Take the table's commit lock without waiting, and return what releases it; None: another writer holds it.

        A hint: it never raises, and only speed may depend on it.
        """


# The catalog


class Catalog(Protocol):
    """What a commit needs of a catalog."""

    name: str
    capabilities: Capabilities

    @property
    def queue(self) -> CommitQueue | None:
        """None: each writer commits alone."""

    @property
    def changes(self) -> ChangeLog | None:
        """None: changes are not kept, so there is no use in making them."""

    @property
    def pins(self) -> SnapshotPins | None:
        """None: commits do not keep snapshots for open transactions."""

    @property
    def attempts(self) -> AttemptsLog | None:
        """None: conflicts and lost races are not kept."""

    @property
    def locks(self) -> CommitLocks | None:
        """None: the catalog's other clients are unknown, so there are no writers to exclude."""

    @property
    def order(self) -> CommitOrder | None:
        """None: the order of all commits is not recorded."""

    def load(self, ident: Ident) -> Head:
        """Raises NoSuchTable, CatalogUnavailable, CorruptMetadata."""

    def load_at(self, ident: Ident, location: str) -> Head:
        """A table as the metadata file at ``location`` has it, whatever its head is now.

        Raises StorageError when the file was deleted after the table moved on.
        """

    def instant(self) -> Mapping[Ident, str] | None:
        """Every table's location at one and the same moment (rule P28); None: this catalog cannot tell."""

    def prepare(self, ident: Ident, head: Head, proposal: Proposal) -> Prepared:
        """Write whatever the swap will point to. It is durable after ``Storage.sync_writes`` (rule P6)."""

    def swap(self, *prepared: Prepared, guards: Sequence[Guard] = ()) -> Outcome:
        """Send it, for one table or for several at once. May be called again with the same values: that is harmless.

        A guarded table that has moved makes it Stale. Raises only when it certainly was not sent (CatalogUnavailable)
        or was refused outright (Unsupported: several tables on a third-party catalog).
        """

    def discard(self, prepared: Prepared) -> None:
        """Delete what prepare wrote, after the swap definitely lost."""

    def find_commit(self, metadata: TableMetadata, commit_id: str) -> CommitRecord | None: ...

    def record_commit(self, ident: Ident, head: Head, record: CommitRecord) -> None:
        """Keep the id of a write that changed nothing (rule P12)."""


class TableDirectory(Protocol):
    """What a lake needs besides: names."""

    def stage(self, ident: Ident, metadata: TableMetadata) -> TableMetadata:
        """The first version of a table that a commit will make, with the ids and the location that it will have.

        Raises TableExists, NoSuchNamespace.
        """

    def create(self, ident: Ident, metadata: TableMetadata) -> Head:
        """Raises TableExists, NoSuchNamespace."""

    def register(self, ident: Ident, location: str) -> Head:
        """Adopt an existing metadata file. Raises TableExists, NoSuchNamespace, StorageError, CorruptMetadata."""

    def drop(self, ident: Ident) -> str:
        """Forget a table, whose files stay. Returns the location it had. Raises NoSuchTable."""

    def rename(self, old: Ident, new: Ident) -> None:
        """Raises NoSuchTable, TableExists, NoSuchNamespace."""

    def tables(self, namespace: tuple[str, ...] | None = None) -> list[Ident]:
        """The tables directly in one namespace, or all. Raises NoSuchNamespace."""

    def namespaces(self) -> dict[tuple[str, ...], dict[str, str]]:
        """Every namespace with its properties."""

    def create_namespace(self, namespace: tuple[str, ...], properties: Mapping[str, str]) -> None:
        """Raises NamespaceExists."""

    def drop_namespace(self, namespace: tuple[str, ...]) -> None:
        """Raises NoSuchNamespace, NamespaceNotEmpty."""


class LakeCatalog(Catalog, TableDirectory, Protocol):
    """All that a lake uses."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OpenedCatalog:
    """A catalog as ``open_catalog`` found or made it."""

    catalog: LakeCatalog
    storage: Storage
    warehouse: str | None
    """Where new tables go by default; None: the catalog's server decides, or the caller named none."""
    uri_shown: str
    """The URI without its secrets."""
    kind: str
    """"embedded", "sqlite", "postgres", "memory", or the third-party catalog's type."""
    created: bool
    """The catalog did not exist before."""
