"""A catalog in this process's memory: tests, simulation, trying things out."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from frazil.catalog._memory_access import Access
from frazil.catalog._memory_order import MemoryOrder
from frazil.catalog._memory_queue import MemoryQueue
from frazil.catalog._memory_services import MemoryDeletions, MemoryScrubber, MemoryStagedPrefixes
from frazil.catalog._memory_timeline import MemoryLeases, MemoryTimeline
from frazil.catalog._refusals import (
    namespace_exists,
    namespace_not_empty,
    no_such_namespace,
    no_such_table,
    table_exists,
)
from frazil.catalog._sql import DEFAULT_NAME
from frazil.catalog._sql_attempts import ATTEMPTS_KEPT, ATTEMPTS_KEPT_MS
from frazil.catalog._sql_records import oldest_kept
from frazil.catalog._thread_locks import ThreadLocks
from frazil.catalog.base import (
    AttemptsRecord,
    ChangeRecord,
    CommitRecord,
    DroppedManifestLists,
    Outcome,
    PointerMove,
)
from frazil.catalog.order import moves_of, renamed
from frazil.catalog.store import Pointer, PointerSwap, Swap, expected_of, stale, was_sent_before
from frazil.model import Ident
from frazil.runtime import SYSTEM, Runtime

Namespace = tuple[str, ...]


class _MemoryCommitIds:
    def __init__(self, access: Access) -> None:
        self.access = access
        self._records: dict[tuple[str, str], CommitRecord] = {}

    def find(self, table_uuid: str, commit_id: str) -> CommitRecord | None:
        with self.access.reading():
            return self._records.get((table_uuid, commit_id))

    def put(self, record: CommitRecord) -> bool:
        with self.access.writing():
            return self._records.setdefault(_key(record), record) is record

    def has(self, record: CommitRecord) -> bool:
        return _key(record) in self._records

    def insert(self, records: Sequence[CommitRecord]) -> None:
        for record in records:
            self._records.setdefault(_key(record), record)


class _MemoryChangeLog:
    def __init__(self, access: Access) -> None:
        self.access = access
        self._changes: dict[str, dict[tuple[int, int], ChangeRecord]] = {}
        self._dropped: dict[str, list[str]] = {}

    def find(self, table_uuid: str, after: int, up_to: int) -> list[ChangeRecord]:
        with self.access.writing():
            kept = sorted(self._changes.get(table_uuid, {}).items())
        return [change for (number, _), change in kept if after < number <= up_to]

    def forget(self, table_uuid: str) -> None:
        with self.access.writing():
            self._changes.pop(table_uuid, None)

    def dropped_lists(self, table_uuid: str) -> list[str]:
        with self.access.reading():
            return list(self._dropped.get(table_uuid, ()))

    def forget_lists(self, table_uuid: str, manifest_lists: Sequence[str]) -> None:
        gone = set(manifest_lists)
        self._dropped[table_uuid] = [each for each in self._dropped.get(table_uuid, ()) if each not in gone]

    def insert(self, changes: Sequence[ChangeRecord], dropped: Sequence[DroppedManifestLists]) -> None:
        for lists in dropped:
            self._dropped.setdefault(lists.table_uuid, []).extend(lists.manifest_lists)
        for change in changes:
            kept = self._changes.setdefault(change.table_uuid, {})
            kept.setdefault((change.sequence_number, change.snapshot_id), change)
        for table_uuid, oldest in oldest_kept(changes).items():
            kept = self._changes[table_uuid]
            for key in [each for each in kept if each[0] < oldest]:
                del kept[key]


class _MemoryPins:
    def __init__(self, access: Access, runtime: Runtime) -> None:
        self.access = access
        self._runtime = runtime
        self._pins: dict[tuple[str, str], tuple[frozenset[int], int]] = {}
        """(Pin, table) → its snapshots, and until when."""

    def pin(self, pin: str, table_uuid: str, snapshot_ids: Sequence[int], lives_ms: int) -> None:
        with self.access.writing():
            self._pins[pin, table_uuid] = (frozenset(snapshot_ids), self._runtime.now_ms() + lives_ms)

    def unpin(self, pin: str) -> None:
        with self.access.writing():
            for key in [each for each in self._pins if each[0] == pin]:
                del self._pins[key]

    def pinned(self, table_uuid: str) -> frozenset[int]:
        now = self._runtime.now_ms()
        with self.access.reading():
            found = (ids for (_, uuid), (ids, until) in self._pins.items() if uuid == table_uuid and until > now)
            return frozenset(each for ids in found for each in ids)


class _MemoryAttempts:
    def __init__(self, access: Access, runtime: Runtime) -> None:
        self.access = access
        self._runtime = runtime
        self._records: deque[AttemptsRecord] = deque(maxlen=ATTEMPTS_KEPT)

    def add(self, record: AttemptsRecord) -> None:
        with self.access.writing():
            now = self._runtime.now_ms()
            while self._records and self._records[0].at_ms < now - ATTEMPTS_KEPT_MS:
                self._records.popleft()
            self._records.append(replace(record, at_ms=now))

    def forget(self, table_uuid: str) -> None:
        with self.access.writing():
            kept = [each for each in self._records if each.table_uuid != table_uuid]
            self._records.clear()
            self._records.extend(kept)

    def find(self, table_uuid: str, most: int) -> list[AttemptsRecord]:
        with self.access.reading():
            found = [each for each in reversed(self._records) if each.table_uuid == table_uuid]
        return found[:most]


class MemoryStore:
    """A PointerStore whose one lock makes every call atomic."""

    def __init__(self, *, name: str = DEFAULT_NAME, runtime: Runtime = SYSTEM) -> None:
        self.name = name
        self._runtime = runtime
        self._access = Access()
        self._locations: dict[Ident, str] = {}
        self.commits = _MemoryCommitIds(self._access)
        self.changes = _MemoryChangeLog(self._access)
        self.pins = _MemoryPins(self._access, runtime)
        self.attempts = _MemoryAttempts(self._access, runtime)
        self.deletions = MemoryDeletions(self._access, runtime, self.changes.forget_lists)
        self.staged: MemoryStagedPrefixes | None = MemoryStagedPrefixes(self._access, runtime)
        self.scrubber = MemoryScrubber(self._access, (self.changes.forget, self.attempts.forget))
        self.timeline = MemoryTimeline(self._access, runtime)
        self.leases: MemoryLeases | None = MemoryLeases(self._access, runtime)
        self.locks = ThreadLocks()
        self.order = MemoryOrder(self._access.reading, lambda: self._locations, runtime)
        self._namespaces: dict[Namespace, dict[str, str]] = {}
        self.queue: MemoryQueue | None = MemoryQueue(runtime)

    def read_only_view(self) -> MemoryStore:
        """The same tables behind a handle that refuses to change them."""
        view, access = copy.copy(self), self._access.read_only()
        view._access, view.queue, view.leases = access, None, None
        view.commits, view.changes, view.pins = copy.copy(self.commits), copy.copy(self.changes), copy.copy(self.pins)
        view.attempts, view.timeline = copy.copy(self.attempts), copy.copy(self.timeline)
        view.deletions, view.staged = copy.copy(self.deletions), None
        view.deletions.access = access
        view.commits.access = view.changes.access = view.pins.access = view.attempts.access = access
        view.timeline.access = access
        return view

    def read(self, ident: Ident) -> Pointer:
        with self._access.reading():
            queue_not_empty = self.queue is not None and self.queue.queue_not_empty
            return Pointer(self._location(ident), self._runtime.now_ms(), queue_not_empty)

    def swap(self, swap: Swap) -> Outcome:
        records = [*swap.records, *(swap.queue_update.records if swap.queue_update else ())]
        with self._access.writing():
            for each in swap.in_order:
                actual = self._locations.get(each.ident)
                if actual == expected_of(each):
                    continue
                if was_sent_before(swap, each, actual):
                    self.commits.insert(records)
                    return swap.committed
                return stale(swap, each, actual)
            if any(self.commits.has(each) for each in records):
                return stale(swap, swap.in_order[0], expected_of(swap.in_order[0]))
            for pointer in swap.pointers:
                if pointer.expected is None:
                    self._check_namespace(pointer.ident.namespace)
            for pointer in swap.pointers:
                self._set(pointer)
            self.commits.insert(records)
            self.changes.insert(swap.changes, swap.dropped)
            for dropped in swap.dropped:
                self.deletions.insert(dropped.table_uuid, dropped.files)
            self.order.add(moves_of(swap))
            return swap.committed

    def _set(self, pointer: PointerSwap) -> None:
        if pointer.new is None:
            del self._locations[pointer.ident]
        else:
            self._locations[pointer.ident] = pointer.new

    def insert(self, ident: Ident, location: str) -> None:
        with self._access.writing():
            self._check_namespace(ident.namespace)
            if ident in self._locations:
                raise table_exists(ident)
            self._locations[ident] = location
            self.order.add((PointerMove(ident, None, location),))

    def delete(self, ident: Ident) -> str:
        with self._access.writing():
            self._location(ident)
            location = self._locations.pop(ident)
            self.order.add((PointerMove(ident, location, None),))
            return location

    def rename(self, old: Ident, new: Ident) -> None:
        with self._access.writing():
            location = self._location(old)
            self._check_namespace(new.namespace)
            if new in self._locations and new != old:
                raise table_exists(new)
            del self._locations[old]
            self._locations[new] = location
            if new != old:
                self.order.add(renamed(old, new, location))

    def pointers(self, namespace: Namespace | None = None) -> dict[Ident, str]:
        with self._access.reading():
            found = sorted(self._locations.items())
        return {ident: location for ident, location in found if namespace in (None, ident.namespace)}

    def namespaces(self) -> dict[Namespace, dict[str, str]]:
        with self._access.reading():
            return {namespace: dict(self._namespaces.get(namespace, {})) for namespace in sorted(self._known())}

    def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None:
        with self._access.writing():
            if namespace in self._known():
                raise namespace_exists(namespace)
            self._namespaces[namespace] = dict(properties)

    def drop_namespace(self, namespace: Namespace) -> None:
        with self._access.writing():
            self._check_namespace(namespace)
            within = [*self._namespaces, *((*ident.namespace, ident.name) for ident in self._locations)]
            if any(len(each) > len(namespace) and each[: len(namespace)] == namespace for each in within):
                raise namespace_not_empty(namespace)
            del self._namespaces[namespace]

    def close(self) -> None:
        """Nothing to release: a named memory catalog outlives its handles."""

    def _location(self, ident: Ident) -> str:
        if ident not in self._locations:
            raise no_such_table(ident)
        return self._locations[ident]

    def _check_namespace(self, namespace: Namespace) -> None:
        if namespace not in self._known():
            raise no_such_namespace(namespace)

    def _known(self) -> set[Namespace]:
        """Namespaces made, those of tables, and all above them."""
        found = {*self._namespaces, *(ident.namespace for ident in self._locations)}
        return {namespace[:depth] for namespace in found for depth in range(1, len(namespace) + 1)}


def _key(record: CommitRecord) -> tuple[str, str]:
    return record.table_uuid, record.commit_id
