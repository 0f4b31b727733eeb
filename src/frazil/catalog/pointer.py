"""A Catalog from a store of pointers and a place for files: each version of a table is one new metadata file."""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from collections.abc import Mapping, Sequence

from frazil.catalog._refusals import no_such_namespace
from frazil.catalog.base import (
    AttemptsLog,
    Capabilities,
    CommitLocks,
    CommitOrder,
    CommitQueue,
    CommitRecord,
    Committed,
    DeletionLog,
    Guard,
    Head,
    Leases,
    Outcome,
    Prepared,
    Proposal,
    QueueUpdate,
    StagedPrefixes,
    Timeline,
)
from frazil.catalog.order import about
from frazil.catalog.store import LakeStore, PointerSwap, Swap
from frazil.errors import CommitUnknown, CorruptMetadata, FrazilError, InvalidInput, NoSuchTable, StorageError
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.format.updates import apply
from frazil.model import Ident
from frazil.runtime import SYSTEM, Runtime

COMPRESSION = "write.metadata.compression-codec"
_VERSION = re.compile(r"^(?:v(\d+)|(\d+)-[^/]+?)(?:\.gz)?\.metadata\.json(?:\.gz)?$")
_READS = 5
_TABLES_REMEMBERED = 64


class PointerCatalog:
    """Reads the pointer afresh in every load; only the files it points to, which never change, are remembered."""

    capabilities = Capabilities(records_commit_ids=True, stale_is_certain=True, swaps_tables=True, drops_in_swap=True)

    def __init__(self, store: LakeStore, storage: Storage, runtime: Runtime = SYSTEM) -> None:
        self.name = store.name
        self.store = store
        self.queue: CommitQueue | None = store.queue
        self.changes = store.changes
        self.pins = store.pins
        self.attempts: AttemptsLog | None = store.attempts
        self.deletions: DeletionLog | None = store.deletions
        self.staged: StagedPrefixes | None = store.staged
        self.scrubber = store.scrubber
        self.timeline: Timeline | None = store.timeline
        self.leases: Leases | None = store.leases
        self.locks: CommitLocks | None = store.locks
        self.order: CommitOrder | None = store.order
        self._storage = storage
        self._runtime = runtime
        self._latest: dict[Ident, TableMetadata] = {}
        """The version of each table that was read last: the next one shares most of its snapshots."""

    # The commit path

    def load(self, ident: Ident) -> Head:
        pointer = self.store.read(ident)
        for _ in range(_READS):
            try:
                metadata = self._metadata(pointer.location, ident)
                return Head(pointer.location, metadata, pointer.now_ms, pointer.queue_not_empty)
            except CorruptMetadata:
                # Was the file cleaned up because the table moved on, or was dropped, between the two reads?
                latest = self.store.read(ident)
                if latest.location == pointer.location:
                    raise
                pointer = latest
        raise StorageError(f"The table {ident} moved on {_READS} times while it was being read", advice="Call again")

    def prepare(self, ident: Ident, head: Head, proposal: Proposal) -> Prepared:
        metadata = apply(head.metadata, proposal.updates, now_ms=head.now_ms, previous_location=head.location or None)
        location = self._write(metadata, version_of(head.location) + 1, sync=False)
        return Prepared(ident, head, proposal, location, metadata)

    def swap(self, *prepared: Prepared, guards: Sequence[Guard] = ()) -> Outcome:
        outcome = self.store.swap(_swap_of(prepared, guards))
        if isinstance(outcome, Committed):
            for each in prepared:
                if each.location is not None and each.metadata is not None:
                    self._storage.parsed.put(each.location, each.metadata, each.metadata.size)
        return outcome

    def discard(self, prepared: Prepared) -> None:
        if prepared.location is not None:
            self._storage.delete([prepared.location])

    def find_commit(self, metadata: TableMetadata, commit_id: str) -> CommitRecord | None:
        return self.store.commits.find(metadata.uuid, commit_id)

    def record_commit(self, ident: Ident, head: Head, record: CommitRecord) -> None:  # noqa: ARG002 - the seam's
        self.store.commits.put(record)

    # One instant of all tables

    def instant(self) -> Mapping[Ident, str] | None:
        return self.store.pointers()

    def load_at(self, ident: Ident, location: str) -> Head:
        try:
            return Head(location, self._metadata(location, ident), self._runtime.now_ms())
        except CorruptMetadata as error:
            if self._still_points_to(ident, location):
                raise
            raise StorageError(
                f"The pinned version of the table {ident} can no longer be read",
                evidence=error.problem,
                advice="The table has moved on, and its old metadata was cleaned up: start again from the table as it "
                "is now",
            ) from error

    def _still_points_to(self, ident: Ident, location: str) -> bool:
        try:
            return self.store.read(ident).location == location
        except NoSuchTable:
            return False

    # Tables

    def stage(self, ident: Ident, metadata: TableMetadata) -> TableMetadata:  # noqa: ARG002 - the commit checks the name
        return metadata

    def create(self, ident: Ident, metadata: TableMetadata) -> Head:
        location = self._write(metadata, 0)
        try:
            self.store.insert(ident, location)
        except CommitUnknown:
            raise
        except BaseException:
            self._storage.delete([location])
            raise
        self._storage.parsed.put(location, metadata, metadata.size)
        return Head(location, metadata, self._runtime.now_ms())

    def register(self, ident: Ident, location: str) -> Head:
        metadata = self._metadata(location, ident)
        self.store.insert(ident, location)
        return Head(location, metadata, self._runtime.now_ms())

    def drop(self, ident: Ident) -> str:
        location = self.store.delete(ident)
        # The table is gone; what is left of its change log is harmless, and so is a failure to delete it.
        if self.changes is not None:
            with contextlib.suppress(FrazilError):
                self.changes.forget(self._metadata(location, ident).uuid)
        return location

    def rename(self, old: Ident, new: Ident) -> None:
        self.store.rename(old, new)

    def tables(self, namespace: tuple[str, ...] | None = None) -> list[Ident]:
        found = list(self.store.pointers(namespace))
        if not found and namespace is not None and namespace not in self.store.namespaces():
            raise no_such_namespace(namespace)
        return found

    # Namespaces

    def namespaces(self) -> dict[tuple[str, ...], dict[str, str]]:
        return self.store.namespaces()

    def create_namespace(self, namespace: tuple[str, ...], properties: Mapping[str, str]) -> None:
        self.store.create_namespace(namespace, properties)

    def drop_namespace(self, namespace: tuple[str, ...]) -> None:
        self.store.drop_namespace(namespace)

    def close(self) -> None:
        self.store.close()

    # Files

    def _metadata(self, location: str, ident: Ident) -> TableMetadata:
        cached: TableMetadata | None = self._storage.parsed.get(location)
        if cached is not None:
            return cached
        try:
            metadata = TableMetadata.parse(self._storage.read(location), location, self._latest.get(ident))
        except (OSError, EOFError, zlib.error) as error:
            raise _corrupt(ident, location, "is not a valid gzip file") from error
        except CorruptMetadata as error:
            raise CorruptMetadata(
                f"The metadata of the table {ident} cannot be read: {error.problem}",
                evidence=error.evidence,
                advice=error.advice,
            ) from error
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise _corrupt(ident, location, "does not exist") from error
            raise
        self._remember(ident, location, metadata)
        return metadata

    def _remember(self, ident: Ident, location: str, metadata: TableMetadata) -> None:
        self._storage.parsed.put(location, metadata, metadata.size)
        if len(self._latest) >= _TABLES_REMEMBERED:
            self._latest.clear()
        self._latest[ident] = metadata

    def _write(self, metadata: TableMetadata, version: int, *, sync: bool = True) -> str:
        codec = metadata.properties.get(COMPRESSION, "none").lower()
        if codec not in ("none", "gzip"):
            raise InvalidInput(f"The table property {COMPRESSION} is {codec!r}", advice="Set it to 'none' or 'gzip'")
        data, suffix = metadata.to_json(), ".metadata.json"
        if codec == "gzip":
            data, suffix = gzip.compress(data, mtime=0), ".gz.metadata.json"
        location = f"{metadata.metadata_folder}/{version:05d}-{self._runtime.new_uuid()}{suffix}"
        self._storage.write(location, data, sync=sync)
        return location


def _swap_of(prepared: Sequence[Prepared], guards: Sequence[Guard]) -> Swap:
    pointers = []
    for each in prepared:
        if each.location is None and not each.drops:
            raise InvalidInput("This commit was prepared by another kind of catalog")
        pointers.append(PointerSwap(each.ident, each.head.location or None, each.location, about(each)))
    proposals = [each.proposal for each in prepared]
    return Swap(
        pointers=tuple(pointers),
        records=tuple(
            each for each in (*(p.record for p in proposals), *(g.record for g in guards)) if each is not None
        ),
        changes=tuple(change for each in proposals for change in each.changes),
        queue_update=QueueUpdate.of_all(each.queue_update for each in proposals),
        dropped=tuple(each.dropped for each in proposals if each.dropped is not None),
        guards=tuple(guards),
    )


def version_of(location: str) -> int:
    """The number in a metadata file's name; -1, as in Iceberg Java, where it has none."""
    found = _VERSION.match(location.rsplit("/", 1)[-1])
    return -1 if found is None else int(found[1] or found[2])


def _corrupt(ident: Ident, location: str, what: str) -> CorruptMetadata:
    return CorruptMetadata(
        f"The metadata of the table {ident} cannot be read: the file {location} {what}",
        advice="Restore the file, or register the table again from an older file of its metadata folder: "
        "lake.register_table(name, metadata_location)",
    )
