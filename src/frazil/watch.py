"""Watching a lake from outside: what its shared state says about the commits of all writers.

    sample ──(an interval)──▶ sample
       └──────── activity ─────┘      commits by table, and the writers that wait

There are two sources, both shared: a table's metadata (its snapshots, and its log of metadata files), and the queue of
a SQL catalog. Lost races, retries and conflicts are known only to the writer, and are not included.
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
    """The commits that a snapshot holds."""

    commits: int
    foreign: bool
    """Written by something other than Frazil."""

    @property
    def is_shared(self) -> bool:
        return self.commits > 1


@dataclass(frozen=True, slots=True)
class TableSample:
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
class Sample:
    """A lake at one moment. Tables are read one after the other."""

    tables: Mapping[Ident, TableSample]
    queue: Mapping[str, QueueStats] | None
    """By table uuid. None: the catalog has no queue that other processes share."""


@dataclass(frozen=True, slots=True)
class TableActivity:
    """What happened to one table between two samples, and how many writers wait now."""

    table: str
    seconds: float
    """Between the samples. 0: this is the table's first sample, and rates are None."""
    commits: int = 0
    """Commits with a snapshot, of all writers, including the ``foreign`` ones."""
    foreign: int = 0
    """Commits of writers other than Frazil."""
    swaps: int | None = 0
    """Swaps of the table's pointer, also without a snapshot. None: its log of metadata files does not reach back."""
    groups: int = 0
    """Snapshots that several commits share."""
    grouped: int = 0
    """The commits in those snapshots."""
    largest_group: int = 0
    queue: QueueStats | None = field(default_factory=QueueStats)
    """None: the catalog has no queue that other processes share, or the table cannot be read."""
    problem: str | None = None
    """Why the table cannot be read; the other fields have their defaults then."""

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


# Sampling


def sample(catalog: Catalog, before: Sample | None = None, runtime: Runtime = SYSTEM) -> Sample:
    """Every table, and the queue. Tables whose pointer has not moved since ``before`` are not read again.

    A table that cannot be read is included with its problem. Raises CatalogUnavailable.
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
    return Sample(tables, _queue(catalog))


def _table(catalog: Catalog, ident: Ident, runtime: Runtime) -> TableSample | None:
    """None: the table has been dropped."""
    at = runtime.monotonic()
    try:
        head = catalog.load(ident)
    except NoSuchTable:
        return None
    except (StorageError, PermissionDenied) as error:
        return TableSample(at, "", "", {}, (), problem=error.problem)
    metadata = head.metadata
    snapshots = {each.snapshot_id: landed(each) for each in metadata.snapshots()}
    return TableSample(at, head.location, metadata.uuid, snapshots, _log(metadata))


def _log(metadata: TableMetadata) -> tuple[str, ...]:
    return tuple(entry["metadata-file"] for entry in metadata.raw.get("metadata-log") or ())


def _queue(catalog: Catalog) -> Mapping[str, QueueStats] | None:
    if isinstance(catalog, PointerCatalog) and isinstance(catalog.store, SqlStore):
        return queue_stats(catalog.store)
    return None


def landed(snapshot: Snapshot) -> Landed:
    """How many commits a snapshot holds, and whether Frazil wrote them, by its summary."""
    size = snapshot.summary.get(GROUP_SIZE, "")
    # Any engine may write any summary: a value that is not a number counts as one commit.
    commits = max(1, int(size)) if size.isascii() and size.isdigit() else 1
    return Landed(commits, foreign=not any(key.startswith(_OURS) for key in snapshot.summary))


# Comparing


def activity(before: Sample, after: Sample) -> tuple[TableActivity, ...]:
    """What happened between two samples, the busiest table first."""
    found = [_activity(ident, before.tables.get(ident), now, after.queue) for ident, now in after.tables.items()]
    return tuple(sorted(found, key=lambda each: (-each.commits, -_waiting(each), each.table)))


def _activity(
    ident: Ident, before: TableSample | None, after: TableSample, queue: Mapping[str, QueueStats] | None
) -> TableActivity:
    if after.problem is not None:
        # Entries of the queue are found by the table's uuid, which is not known.
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


def _swaps(before: TableSample, after: TableSample) -> int | None:
    if before.location == after.location:
        return 0
    return len(after.log) - after.log.index(before.location) if before.location in after.log else None


def _waiting(each: TableActivity) -> int:
    return 0 if each.queue is None else each.queue.waiting
