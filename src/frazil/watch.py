"""Watching a lake from outside: what its shared state tells about the commits of all writers, whoever they are.

    look ──(an interval)──▶ look
      └──────── activity ────┘      commits by table, and who waits

Two sources, both of them for every process to see: a table's metadata (its snapshots, and its log of metadata files),
and the queue of a SQL catalog. What writers keep to themselves is not here: lost races, retries, and conflicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from frazil.catalog._queue_stats import QueueStats, queue_stats
from frazil.catalog._sql import SqlStore
from frazil.catalog.base import Catalog
from frazil.catalog.pointer import PointerCatalog
from frazil.commit.group import GROUP_SIZE
from frazil.errors import NoSuchTable, PermissionDenied, StorageError
from frazil.format.metadata import TableMetadata
from frazil.model import Ident, Snapshot
from frazil.runtime import SYSTEM, Runtime

_OURS = "frazil."


@dataclass(frozen=True, slots=True)
class Landed:
    """What a snapshot stands for."""

    commits: int
    foreign: bool
    """Written by something other than Frazil."""

    @property
    def is_shared(self) -> bool:
        return self.commits > 1


@dataclass(frozen=True, slots=True)
class TableLook:
    """One table at one moment."""

    at: float
    """Seconds, by the runtime's monotonic clock."""
    location: str
    uuid: str
    snapshots: Mapping[int, Landed]
    """By id, all that the table keeps, of every branch."""
    log: tuple[str, ...]
    """The metadata files before ``location`` that the table still names, oldest first."""
    problem: str | None = None
    """Why it could not be read; everything else is empty then."""


@dataclass(frozen=True, slots=True)
class Look:
    """A lake at one moment; one table a little later than the other."""

    tables: Mapping[Ident, TableLook]
    queue: Mapping[str, QueueStats] | None
    """By table uuid. None: the catalog has no queue that other processes could see."""


@dataclass(frozen=True, slots=True)
class TableActivity:
    """What happened to one table between two looks, and who waits now."""

    table: str
    seconds: float
    """Between the looks. 0: seen for the first time; what came before is not known, and rates are None."""
    commits: int = 0
    """That brought a snapshot, everybody's; ``foreign`` ones among them."""
    foreign: int = 0
    """Of writers other than Frazil."""
    swaps: int | None = 0
    """Moves of the table, those without a snapshot included. None: its log of metadata files does not reach back."""
    groups: int = 0
    """Snapshots that several commits share."""
    grouped: int = 0
    """The commits in those."""
    largest_group: int = 0
    queue: QueueStats | None = field(default_factory=QueueStats)
    """None: the catalog has no queue that other processes could see, or the table cannot be read."""
    problem: str | None = None
    """Why it cannot be read; nothing else is known then."""

    @property
    def commits_per_s(self) -> float | None:
        return self._rate(self.commits)

    @property
    def foreign_per_s(self) -> float | None:
        return self._rate(self.foreign)

    @property
    def groups_per_s(self) -> float | None:
        return self._rate(self.groups)

    @property
    def swaps_per_s(self) -> float | None:
        return None if self.swaps is None else self._rate(self.swaps)

    def _rate(self, count: int) -> float | None:
        return count / self.seconds if self.seconds > 0 else None


# Looking


def look(catalog: Catalog, before: Look | None = None, runtime: Runtime = SYSTEM) -> Look:
    """Every table, and the queue. Tables that have not moved since ``before`` are not read again.

    A table that cannot be read has its problem told; raises CatalogUnavailable when the catalog itself is away.
    """
    known = {} if before is None else before.tables
    at = runtime.monotonic()
    places = catalog.instant()
    idents = catalog.tables() if places is None else places
    tables = {}
    for ident in idents:
        seen = known.get(ident)
        if places is not None and seen is not None and seen.problem is None and seen.location == places[ident]:
            tables[ident] = replace(seen, at=at)
        elif (found := _table(catalog, ident, runtime)) is not None:
            tables[ident] = found
    return Look(tables, _queue(catalog))


def _table(catalog: Catalog, ident: Ident, runtime: Runtime) -> TableLook | None:
    """None: it was dropped a moment ago."""
    at = runtime.monotonic()
    try:
        head = catalog.load(ident)
    except NoSuchTable:
        return None
    except (StorageError, PermissionDenied) as error:
        return TableLook(at, "", "", {}, (), problem=error.problem)
    metadata = head.metadata
    snapshots = {each.snapshot_id: landed(each) for each in metadata.snapshots()}
    return TableLook(at, head.location, metadata.uuid, snapshots, _log(metadata))


def _log(metadata: TableMetadata) -> tuple[str, ...]:
    return tuple(entry["metadata-file"] for entry in metadata.raw.get("metadata-log") or ())


def _queue(catalog: Catalog) -> Mapping[str, QueueStats] | None:
    if isinstance(catalog, PointerCatalog) and isinstance(catalog.store, SqlStore):
        return queue_stats(catalog.store)
    return None


def landed(snapshot: Snapshot) -> Landed:
    """How many commits a snapshot stands for, and whose they are, by its summary."""
    size = snapshot.summary.get(GROUP_SIZE, "")
    # Anybody may write a summary: what is no number is one commit.
    commits = max(1, int(size)) if size.isascii() and size.isdigit() else 1
    return Landed(commits, foreign=not any(key.startswith(_OURS) for key in snapshot.summary))


# Comparing


def activity(before: Look, after: Look) -> tuple[TableActivity, ...]:
    """What happened between two looks, the busiest table first."""
    found = [_activity(ident, before.tables.get(ident), now, after.queue) for ident, now in after.tables.items()]
    return tuple(sorted(found, key=lambda each: (-each.commits, -_waiting(each), each.table)))


def _activity(
    ident: Ident, before: TableLook | None, after: TableLook, queue: Mapping[str, QueueStats] | None
) -> TableActivity:
    if after.problem is not None:
        # Without its uuid nobody can say which tickets are its own.
        return TableActivity(str(ident), 0.0, queue=None, problem=after.problem)
    tickets = None if queue is None else queue.get(after.uuid, QueueStats())
    if before is None or before.uuid != after.uuid:
        return TableActivity(str(ident), 0.0, queue=tickets)
    new = [each for key, each in after.snapshots.items() if key not in before.snapshots]
    shared = [each.commits for each in new if each.is_shared]
    return TableActivity(
        table=str(ident),
        seconds=after.at - before.at,
        commits=sum(each.commits for each in new),
        foreign=sum(each.commits for each in new if each.foreign),
        swaps=_swaps(before, after),
        groups=len(shared),
        grouped=sum(shared),
        largest_group=max(shared, default=0),
        queue=tickets,
    )


def _swaps(before: TableLook, after: TableLook) -> int | None:
    if before.location == after.location:
        return 0
    return len(after.log) - after.log.index(before.location) if before.location in after.log else None


def _waiting(each: TableActivity) -> int:
    return 0 if each.queue is None else each.queue.waiting
