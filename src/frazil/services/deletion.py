"""Deletes what expired snapshots leave, in two stages (rule P42).

    swap records the dropped lists ─▶ their files are noted ─▶ checked on the newest head ─▶ deleted ─▶ notes removed

A crash between any two of these loses nothing: the next run goes on from the records and notes. What the check finds
needed again is no longer noted, and stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from frazil.catalog.base import DeletionLog, FileKind, Head, NotedFile
from frazil.errors import CorruptMetadata, FrazilError
from frazil.format.manifests import snapshot_of_list
from frazil.format.metadata import TableMetadata
from frazil.format.properties import RETENTION_MIN_AGE
from frazil.format.storage import is_local
from frazil.services.context import DeletionPhase, ServiceContext
from frazil.services.reachable import (
    MOST_HASHES,
    Belongs,
    Beside,
    Dropped,
    Needed,
    belongs_to,
    beside,
    chunked,
    hash_of,
    needed,
)

_BATCH = 1000
_THREADS = 16
_HOUR_MS = 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a run has deleted."""

    counts: Mapping[FileKind, int] = field(default_factory=dict)
    kept: int = 0
    """Files that were noted and are needed again, or belong to another table."""
    failed: tuple[str, ...] = ()
    """Files that could not be deleted; they stay noted."""
    deferred: int = 0
    """Expired snapshots whose files an open transaction needs: the next run takes them."""

    def count(self, kind: FileKind) -> int:
        return self.counts.get(kind, 0)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def plus(self, other: Deleted) -> Deleted:
        counts = {kind: self.count(kind) + other.count(kind) for kind in FileKind}
        return Deleted(
            {kind: number for kind, number in counts.items() if number},
            self.kept + other.kept,
            self.failed + other.failed,
            self.deferred + other.deferred,
        )


@dataclass(frozen=True, slots=True)
class _Versions:
    """The newest versions of the table and of those beside it."""

    head: Head
    others: Beside
    pinned: tuple[str, ...]
    """Manifest lists that are dropped and still needed by open transactions."""

    @property
    def key(self) -> tuple[object, ...]:
        return (self.head.location, tuple(each.location for each in self.others.heads), self.pinned)


@dataclass(frozen=True, slots=True)
class DeletionRun:
    """One run over what is recorded and noted for a table."""

    context: ServiceContext
    most_hashes: int = MOST_HASHES
    metadata_age_ms: int | None = None
    """Metadata files that the table no longer names are kept for so long; None: frazil.retention.min-age-ms."""

    def run(self, dropped: Sequence[str] = ()) -> Deleted:
        """``dropped``: manifest lists that the catalog could not record, as third-party catalogs."""
        recorded = self._recorded()
        versions = self._versions((*recorded, *dropped))
        lists = [path for path in dict.fromkeys((*recorded, *dropped)) if path not in versions.pinned]
        found = self._needed(versions)
        candidates = self._candidates(lists, found, versions.head)
        log = self.context.catalog.deletions
        if log is None:
            done = self._delete_directly(candidates, versions)
        else:
            uuid = versions.head.metadata.uuid
            for chunk in chunked(candidates):
                log.note(uuid, chunk)
                self.context.on_phase(DeletionPhase.NOTING)
            log.forget_lists(uuid, [path for path in lists if path in recorded])
            self.context.on_phase(DeletionPhase.NOTED)
            done = self._delete_noted(log, lists, versions, found)
        return replace(done, deferred=len(versions.pinned))

    # What is needed, and what is not

    def _recorded(self) -> list[str]:
        log = self.context.catalog.changes
        return [] if log is None else log.dropped_lists(self.context.head().metadata.uuid)

    def _versions(self, dropped: Sequence[str]) -> _Versions:
        """The pins are read after the swap that dropped the snapshots; a transaction pins, then looks for its own."""
        head = self.context.head()
        others = beside(self.context, head.metadata)
        pins = self.context.catalog.pins
        pinned = frozenset[int]() if pins is None else pins.pinned(head.metadata.uuid)
        return _Versions(head, others, tuple(self._pinned_lists(dropped, pinned)))

    def _pinned_lists(self, dropped: Sequence[str], pinned: frozenset[int]) -> Iterator[str]:
        if not pinned:
            return
        for path in dropped:
            try:
                snapshot_id = snapshot_of_list(self.context.storage, path)
            except CorruptMetadata:
                # Deleted by an earlier run.
                continue
            # An unknown snapshot may be the pinned one.
            if snapshot_id is None or snapshot_id in pinned:
                yield path

    def _needed(self, versions: _Versions) -> Needed:
        heads = (versions.head, *versions.others.heads)
        return needed(self.context, heads, extra_lists=versions.pinned, most_hashes=self.most_hashes)

    def _belongs(self, versions: _Versions) -> Belongs:
        knows_tables = self.context.catalog.instant() is not None
        return belongs_to(versions.head.metadata, versions.others, knows_tables=knows_tables)

    def _candidates(self, lists: Sequence[str], found: Needed, head: Head) -> Iterator[NotedFile]:
        yield from Dropped(self.context, lists, found).files()
        for path in old_metadata(self.context, head, head.now_ms - self._age(head)):
            if not found.names(path):
                yield NotedFile(path, FileKind.METADATA)

    def _age(self, head: Head) -> int:
        return _minimum_age(head.metadata) if self.metadata_age_ms is None else self.metadata_age_ms

    # Deleting

    def _delete_noted(self, log: DeletionLog, lists: Sequence[str], versions: _Versions, found: Needed) -> Deleted:
        # Once more on the newest head: a run may go on with the notes of another that ended long ago.
        uuid = versions.head.metadata.uuid
        again = self._versions((*lists, *versions.pinned))
        if again.key != versions.key:
            versions, found = again, self._needed(again)
        belongs = self._belongs(versions)
        done = Deleted()
        for part in found.parts:
            kept, after = None, ""
            while batch := log.noted(uuid, after, _BATCH):
                after = batch[-1].path
                if self.context.progress.should_stop:
                    return done
                # Writers that began before a rewrite follow its rows, whatever has expired since.
                due = [
                    each
                    for each in batch
                    if each.kind is not FileKind.LINEAGE or each.age_ms >= self._age(versions.head)
                ]
                mine = [(each, hashed) for each in due if part.has(hashed := hash_of(each.path))]
                kept = found.files(part) if kept is None else kept
                unneeded = [each for each, hashed in mine if not kept.has(hashed) and belongs(each.path)]
                self.context.on_phase(DeletionPhase.CHECKED)
                deleted = self._delete(unneeded)
                self.context.on_phase(DeletionPhase.DELETED)
                failed = set(deleted.failed)
                log.remove(uuid, [each.path for each, _ in mine if each.path not in failed])
                self.context.on_phase(DeletionPhase.FORGOTTEN)
                done = done.plus(replace(deleted, kept=len(mine) - len(unneeded)))
                self.context.progress.advanced(done.total, done.total + done.kept, {"deleted": done.total})
        return done

    def _delete_directly(self, candidates: Iterable[NotedFile], versions: _Versions) -> Deleted:
        belongs, done = self._belongs(versions), Deleted()
        # Lists and manifests come last, so that a run that is repeated after a crash still finds the other files.
        for chunk in chunked(candidates):
            done = done.plus(self._delete([each for each in chunk if belongs(each.path)]))
            self.context.on_phase(DeletionPhase.DELETED)
        return done

    def _delete(self, files: Sequence[NotedFile]) -> Deleted:
        failed = delete_files(self.context, [each.path for each in files])
        counts: dict[FileKind, int] = {}
        for each in files:
            if each.path not in failed:
                counts[each.kind] = counts.get(each.kind, 0) + 1
        return Deleted(counts, failed=tuple(failed))


def _is_due(each: NotedFile, age_ms: int) -> bool:
    """Orphans are not: the run that noted them deletes them, after its fence."""
    return each.kind is not FileKind.ORPHAN and (each.kind is not FileKind.LINEAGE or each.age_ms >= age_ms)


def delete_files(context: ServiceContext, paths: Sequence[str]) -> list[str]:
    """Delete files, of object stores side by side; those that are gone are fine. Returns those that remain."""
    storage = context.storage
    if not paths or is_local(paths[0]) or len(paths) < _THREADS:
        return storage.delete(paths)
    with ThreadPoolExecutor(_THREADS) as pool:
        chunks = [paths[number::_THREADS] for number in range(_THREADS)]
        return [path for failed in pool.map(storage.delete, chunks) for path in failed]


# Metadata files


def old_metadata(context: ServiceContext, head: Head, before_ms: int) -> list[str]:
    """Metadata files that the head's log no longer names and that are older, the oldest first.

    Each file names those before it, so they are found without a listing, as far back as they exist.
    """
    log = _log(head.metadata)
    seen, found = {path for path, _ in log} | {head.location}, list[tuple[str, int]]()
    while log:
        oldest = log[0][0]
        try:
            metadata = TableMetadata.parse(context.storage.read(oldest), oldest)
        except FrazilError:
            # Deleted by an earlier run, or it cannot be read, and then orphan removal finds what came before it.
            break
        log = [each for each in _log(metadata) if each[0] not in seen]
        seen.update(path for path, _ in log)
        found = log + found
    return [path for path, at_ms in found if at_ms < before_ms]


def _log(metadata: TableMetadata) -> list[tuple[str, int]]:
    return [(each["metadata-file"], each["timestamp-ms"]) for each in metadata.raw.get("metadata-log") or ()]


def _minimum_age(metadata: TableMetadata) -> int:
    text = str(metadata.properties.get(RETENTION_MIN_AGE, _HOUR_MS))
    return int(text) if text.isdigit() else _HOUR_MS
