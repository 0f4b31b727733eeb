"""A catalog in this process's memory: tests, simulation, trying things out."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from frazil.catalog._memory_queue import MemoryQueue
from frazil.catalog._refusals import (
    namespace_exists,
    namespace_not_empty,
    no_such_namespace,
    no_such_table,
    opened_read_only,
    table_exists,
)
from frazil.catalog._sql import CHANGES_KEPT, DEFAULT_NAME, is_time_to_prune
from frazil.catalog.base import (
    ChangeRecord,
    CommitRecord,
    Committed,
    DroppedManifestLists,
    Outcome,
    Pointer,
    QueueUpdate,
    Stale,
)
from frazil.errors import Unsupported
from frazil.model import Ident
from frazil.runtime import SYSTEM, Runtime

Namespace = tuple[str, ...]


class MemoryStore:
    """A PointerStore whose one lock makes every call atomic."""

    def __init__(self, *, name: str = DEFAULT_NAME, runtime: Runtime = SYSTEM) -> None:
        self.name = name
        self._read_only = False
        self._runtime = runtime
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._locations: dict[Ident, str] = {}
        self._turns: dict[Ident, threading.Lock] = {}
        self._commits: dict[tuple[str, str], CommitRecord] = {}
        self._changes: dict[str, dict[tuple[int, int], ChangeRecord]] = {}
        self._dropped: dict[str, list[str]] = {}
        self._pins: dict[str, tuple[str, frozenset[int], int]] = {}
        self._namespaces: dict[Namespace, dict[str, str]] = {}
        self.queue: MemoryQueue | None = MemoryQueue(runtime)

    def read_only_view(self) -> MemoryStore:
        """The same tables behind a handle that refuses to change them."""
        view = copy.copy(self)
        view._read_only = True
        view.queue = None
        return view

    def try_commit_lock(self, ident: Ident) -> Callable[[], None] | None:
        turn = self._turns.setdefault(ident, threading.Lock())
        return turn.release if turn.acquire(blocking=False) else None

    def read(self, ident: Ident) -> Pointer:
        with self._reading():
            crowded = self.queue is not None and self.queue.queue_not_empty
            return Pointer(self._location(ident), self._runtime.now_ms(), crowded)

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
        records = [*([] if record is None else [record]), *(queue_update.records if queue_update else ())]
        with self._writing():
            actual = self._locations.get(ident)
            if actual == new and actual != expected:
                # Names are fresh, so this very swap was sent before (rule P9).
                self._put(records)
                return Committed(new)
            if actual != expected or any(_key(each) in self._commits for each in records):
                return Stale(actual)
            self._locations[ident] = new
            self._put(records)
            if dropped is not None:
                self._dropped.setdefault(dropped.table_uuid, []).extend(dropped.manifest_lists)
            self._keep(changes)
            return Committed(new)

    def find_commit(self, table_uuid: str, commit_id: str) -> CommitRecord | None:
        with self._reading():
            return self._commits.get((table_uuid, commit_id))

    def put_commit(self, record: CommitRecord) -> bool:
        with self._writing():
            return self._commits.setdefault(_key(record), record) is record

    def find_changes(self, table_uuid: str, after: int, up_to: int) -> list[ChangeRecord]:
        with self._reading():
            kept = sorted(self._changes.get(table_uuid, {}).items())
        return [change for (number, _), change in kept if after < number <= up_to]

    def dropped_lists(self, table_uuid: str) -> list[str]:
        with self._reading():
            return list(self._dropped.get(table_uuid, ()))

    def pin(self, pin: str, table_uuid: str, snapshot_ids: Sequence[int], lives_ms: int) -> None:
        with self._writing():
            self._pins[pin] = (table_uuid, frozenset(snapshot_ids), self._runtime.now_ms() + lives_ms)

    def unpin(self, pin: str) -> None:
        with self._writing():
            self._pins.pop(pin, None)

    def pinned(self, table_uuid: str) -> frozenset[int]:
        now = self._runtime.now_ms()
        with self._reading():
            mine = (ids for uuid, ids, until in self._pins.values() if uuid == table_uuid and until > now)
            return frozenset(each for ids in mine for each in ids)

    def forget_changes(self, table_uuid: str) -> None:
        with self._writing():
            self._changes.pop(table_uuid, None)

    def insert(self, ident: Ident, location: str) -> None:
        with self._writing():
            self._check_namespace(ident.namespace)
            if ident in self._locations:
                raise table_exists(ident)
            self._locations[ident] = location

    def delete(self, ident: Ident) -> str:
        with self._writing():
            self._location(ident)
            return self._locations.pop(ident)

    def rename(self, old: Ident, new: Ident) -> None:
        with self._writing():
            location = self._location(old)
            self._check_namespace(new.namespace)
            if new in self._locations and new != old:
                raise table_exists(new)
            del self._locations[old]
            self._locations[new] = location

    def pointers(self, namespace: Namespace | None = None) -> dict[Ident, str]:
        with self._reading():
            found = sorted(self._locations.items())
        return {ident: location for ident, location in found if namespace in (None, ident.namespace)}

    def namespaces(self) -> dict[Namespace, dict[str, str]]:
        with self._reading():
            return {namespace: dict(self._namespaces.get(namespace, {})) for namespace in sorted(self._known())}

    def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None:
        with self._writing():
            if namespace in self._known():
                raise namespace_exists(namespace)
            self._namespaces[namespace] = dict(properties)

    def drop_namespace(self, namespace: Namespace) -> None:
        with self._writing():
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

    def _put(self, records: Sequence[CommitRecord]) -> None:
        for record in records:
            self._commits.setdefault(_key(record), record)

    def _keep(self, changes: Sequence[ChangeRecord]) -> None:
        for change in changes:
            kept = self._changes.setdefault(change.table_uuid, {})
            kept.setdefault((change.sequence_number, change.snapshot_id), change)
        if is_time_to_prune(changes):
            oldest = changes[-1].sequence_number - CHANGES_KEPT
            kept = self._changes[changes[-1].table_uuid]
            for key in [each for each in kept if each[0] < oldest]:
                del kept[key]

    def _check_namespace(self, namespace: Namespace) -> None:
        if namespace not in self._known():
            raise no_such_namespace(namespace)

    def _known(self) -> set[Namespace]:
        """Namespaces made, those of tables, and all above them."""
        found = {*self._namespaces, *(ident.namespace for ident in self._locations)}
        return {namespace[:depth] for namespace in found for depth in range(1, len(namespace) + 1)}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if os.getpid() != self._pid:
            # A forked child has a copy of its own: what it wrote there would be lost without a word.
            raise Unsupported(
                "A memory:// catalog lives in the process that made it, and this is another one",
                advice="Use a folder or a Postgres catalog between processes",
            )
        with self._lock:
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self._read_only:
            raise opened_read_only("memory://")
        with self._reading():
            yield


def _key(record: CommitRecord) -> tuple[str, str]:
    return record.table_uuid, record.commit_id
