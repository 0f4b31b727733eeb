"""The commits of all writers, observed from a lake's shared state.

    sample ──(an interval)──▶ sample
       └──────── activity ───────┘      commits by table, and the queue

There are two sources, which every process can read: a table's metadata (its snapshots, and its log of metadata files),
and the queue of a SQL catalog. Lost races, retries and conflicts are in a log of their own (``frazil conflicts``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from frazil.catalog._queue_stats import QueueStats, queue_stats
from frazil.catalog._sql import SqlStore
from frazil.catalog.base import LakeCatalog
from frazil.catalog.pointer import PointerCatalog
from frazil.commit.group import GROUP_SIZE
from frazil.commit.origins import author_of, is_ours
from frazil.errors import NoSuchTable, PermissionDenied, StorageError
from frazil.format.metadata import TableMetadata
from frazil.model import Ident, Snapshot
from frazil.runtime import SYSTEM, Runtime


@dataclass(frozen=True, slots=True)
class SnapshotCommits:
    """The commits that a snapshot holds."""

    commits: int
    foreign: bool
    """Written by another engine than Frazil."""
    app: str | None = None
    """None: not known, or the commits that share it are of several applications."""
    verb: str | None = None

    @property
    def is_shared(self) -> bool:
        return self.commits > 1


@dataclass(frozen=True, slots=True)
class TableSample:
    """A table at one moment."""

    at: float
    """Seconds, by the runtime's monotonic clock."""
    location: str
    uuid: str
    snapshots: Mapping[int, SnapshotCommits]
    """By id; all snapshots that the table keeps, of every branch."""
    log: tuple[str, ...]
    """The metadata files before ``location`` that the table still names, oldest first."""
    problem: str | None = None
    """Why the table could not be read; everything else is empty then."""


@dataclass(frozen=True, slots=True)
class LakeSample:
    """A lake at about one moment; the tables are read one after another."""

    tables: Mapping[Ident, TableSample]
    queue: Mapping[str, QueueStats] | None
    """By table uuid. None: the catalog has no queue that other processes can see."""


@dataclass(frozen=True, slots=True)
class AppCommits:
    """The commits of one application by one kind of statement."""

    app: str | None
    verb: str | None
    commits: int


@dataclass(frozen=True, slots=True)
class TableActivity:
    """The commits to one table between two samples, and its queue at the second."""

    table: str
    seconds: float
    """Between the samples. 0: the table is in the second one only; rates are None."""
    commits: int = 0
    """Commits with a snapshot, of all writers, ``foreign`` ones included."""
    foreign: int = 0
    """Commits by other engines than Frazil."""
    swaps: int | None = 0
    """Swaps, with or without a snapshot. None: the log of metadata files does not reach back to the first sample."""
    groups: int = 0
    """Snapshots that several commits share."""
    grouped: int = 0
    """The commits in these snapshots."""
    apps: tuple[AppCommits, ...] = ()
    """``commits`` by application, the busiest first."""
    largest_group: int = 0
    queue: QueueStats | None = field(default_factory=QueueStats)
    """None: the catalog has no queue that other processes can see, or the table cannot be read."""
    problem: str | None = None
    """Why the table cannot be read; everything else is unknown then."""

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


def sample(catalog: LakeCatalog, before: LakeSample | None = None, runtime: Runtime = SYSTEM) -> LakeSample:
    """Samples every table and the queue. Tables that have not moved since ``before`` are not read again.

    A table that cannot be read has a ``problem``; raises CatalogUnavailable when the catalog cannot be reached.
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
    return LakeSample(tables, _queue(catalog))


def _table(catalog: LakeCatalog, ident: Ident, runtime: Runtime) -> TableSample | None:
    """None: it was dropped concurrently."""
    at = runtime.monotonic()
    try:
        head = catalog.load(ident)
    except NoSuchTable:
        return None
    except (StorageError, PermissionDenied) as error:
        return TableSample(at, "", "", {}, (), problem=error.problem)
    metadata = head.metadata
    snapshots = {each.snapshot_id: commits_of(each) for each in metadata.snapshots()}
    return TableSample(at, head.location, metadata.uuid, snapshots, _log(metadata))


def _log(metadata: TableMetadata) -> tuple[str, ...]:
    return tuple(entry["metadata-file"] for entry in metadata.raw.get("metadata-log") or ())


def _queue(catalog: LakeCatalog) -> Mapping[str, QueueStats] | None:
    if isinstance(catalog, PointerCatalog) and isinstance(catalog.store, SqlStore):
        return queue_stats(catalog.store)
    return None


def commits_of(snapshot: Snapshot) -> SnapshotCommits:
    """How many commits a snapshot holds, and whether another engine wrote it, by its summary."""
    size = snapshot.summary.get(GROUP_SIZE, "")
    # Any engine may write any summary: a value that is not a number counts as one commit.
    commits = max(1, int(size)) if size.isascii() and size.isdigit() else 1
    author = author_of(snapshot)
    return SnapshotCommits(commits, not is_ours(snapshot.summary), author.app, author.verb)


# Comparing


def activity(before: LakeSample, after: LakeSample) -> tuple[TableActivity, ...]:
    """The activity between two samples, the busiest table first."""
    found = [_activity(ident, before.tables.get(ident), now, after.queue) for ident, now in after.tables.items()]
    return tuple(sorted(found, key=lambda each: (-each.commits, -_waiting(each), each.table)))


def _activity(
    ident: Ident, before: TableSample | None, after: TableSample, queue: Mapping[str, QueueStats] | None
) -> TableActivity:
    if after.problem is not None:
        # The queue is keyed by the table's uuid, which is not known.
        return TableActivity(str(ident), 0.0, queue=None, problem=after.problem)
    own_queue = None if queue is None else queue.get(after.uuid, QueueStats())
    if before is None or before.uuid != after.uuid:
        return TableActivity(str(ident), 0.0, queue=own_queue)
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
        apps=_by_app(new),
        largest_group=max(shared, default=0),
        queue=own_queue,
    )


def _by_app(new: Sequence[SnapshotCommits]) -> tuple[AppCommits, ...]:
    found: Counter[tuple[str | None, str | None]] = Counter()
    for each in new:
        found[each.app, each.verb] += each.commits
    return tuple(AppCommits(app, verb, count) for (app, verb), count in found.most_common())


def _swaps(before: TableSample, after: TableSample) -> int | None:
    if before.location == after.location:
        return 0
    return len(after.log) - after.log.index(before.location) if before.location in after.log else None


def _waiting(each: TableActivity) -> int:
    return 0 if each.queue is None else each.queue.waiting
