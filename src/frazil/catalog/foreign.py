"""Any PyIceberg catalog (REST, Glue, Hive, SQL …) behind the Catalog protocol, through ``commit_table``.

The metadata file is written by the catalog's server or by PyIceberg, so there is nothing to prepare and nothing to
discard; "expected" is a set of requirements (rule P29, requirements.py); and no answer but success is believed before a
fresh head was searched for the commit (rule P30).

Third-party catalogs are only as atomic as their own commit.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pydantic
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.table import Table

from frazil import _fork
from frazil.catalog import _refusals, foreign_open, records
from frazil.catalog._memory_queue import MemoryQueue
from frazil.catalog._thread_locks import ThreadLocks
from frazil.catalog.base import (
    Capabilities,
    CommitLocks,
    CommitOrder,
    CommitQueue,
    CommitRecord,
    Committed,
    Guard,
    Head,
    OpenedCatalog,
    Outcome,
    Prepared,
    Proposal,
    Stale,
    Unknown,
)
from frazil.catalog.foreign_errors import Failure, Subject, Wording, failure, translated
from frazil.catalog.foreign_outcomes import added_snapshots, cannot_land, has_landed
from frazil.catalog.foreign_transactions import REQUIREMENTS, UPDATES, TableTransaction
from frazil.catalog.requirements import creation, merged, must_not_exist, ref_requirements, table_uuid
from frazil.errors import (
    CatalogUnavailable,
    CommitUnknown,
    FrazilError,
    NoSuchNamespace,
    NoSuchTable,
    TableExists,
    Unsupported,
)
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Ident
from frazil.runtime import Runtime
from frazil.wording import counted

_LOG = logging.getLogger(__name__)

_STORAGE_KEYS = ("s3.", "client.", "gcs.", "adls.", "hdfs.", "oss.")
_LOADED_KEPT = 64
_RECORD_TRIES = 8
HIVE_WARNING = (
    "Hive's metastore swaps under a lock and compares nothing: a writer that stalls for longer than the lock's timeout "
    "overwrites concurrent commits"
)


def open_foreign(
    uri: str,
    *,
    warehouse: str | None,
    name: str | None,
    properties: Mapping[str, str],
    runtime: Runtime,
    read_only: bool = False,
) -> OpenedCatalog:
    """Open ``http(s)://host[:port][/prefix]`` (REST), ``glue://``, ``thrift://host:port`` or ``pyiceberg:name``.

    Raises InvalidInput, Unsupported (with the pip command), PermissionDenied, CatalogUnavailable.
    """
    target = foreign_open.target(uri, warehouse=warehouse, name=name, properties=properties)
    opened = target.open()
    if target.kind == "hive":
        _LOG.warning("%s: %s", target.shown, HIVE_WARNING)
    storage = Storage(storage_properties(opened.properties))
    catalog = ForeignCatalog(
        opened,
        storage,
        runtime,
        atomic=target.kind != "hive",
        has_server=target.kind == "rest",
        read_only=read_only,
        shown=target.shown,
        reopen=target.open,
    )
    return OpenedCatalog(
        catalog=catalog,
        storage=storage,
        # A REST server places tables itself, and "warehouse" may be no more than a name there.
        warehouse=None if target.kind == "rest" else opened.properties.get("warehouse"),
        uri_shown=target.shown,
        kind=target.kind,
        created=False,
    )


class ForeignCatalog:
    """A PyIceberg catalog behind the protocol. Thread-safe; after a fork it opens connections of its own."""

    changes = pins = attempts = deletions = staged = scrubber = timeline = leases = None

    def __init__(
        self,
        catalog: PyIcebergCatalog,
        storage: Storage,
        runtime: Runtime,
        *,
        atomic: bool = True,
        has_server: bool = False,
        read_only: bool = False,
        shown: str | None = None,
        reopen: Callable[[], PyIcebergCatalog] | None = None,
    ) -> None:
        self.name = catalog.name
        self.capabilities = Capabilities(
            records_commit_ids=False,
            stale_is_certain=False,
            swaps_tables=getattr(catalog, "takes_transactions", False),
            atomic=atomic,
        )
        self._catalog = catalog
        self._storage = storage
        self._runtime = runtime
        self._wording = Wording.of(f"The catalog {shown or catalog.name}", catalog.properties)
        self._shown = shown or catalog.name
        self._reopen = reopen
        self._has_server = has_server
        self._read_only = read_only
        self._inherited = False
        self._lock = threading.RLock()
        self._loaded: OrderedDict[Ident, Table] = OrderedDict()
        # Threads of this process only: the catalog's other clients are unknown. Hive is never grouped (rule P30).
        self.queue: CommitQueue | None = MemoryQueue(runtime) if atomic and not read_only else None
        self.locks: CommitLocks | None = None if self.queue is None else ThreadLocks()
        self.order: CommitOrder | None = None
        _fork.watch(self)

    def pyiceberg(self) -> PyIcebergCatalog:
        """The catalog behind this one."""
        return self._current()

    # Tables: load and commit

    def load(self, ident: Ident) -> Head:
        """The table as its catalog has it now. Raises NoSuchTable, PermissionDenied, CatalogUnavailable."""
        with self._asking(ident) as catalog:
            table = catalog.load_table(_identifier(ident))
        return self._head(ident, table)

    def prepare(self, ident: Ident, head: Head, proposal: Proposal) -> Prepared:
        """Nothing is written. The requirements no commit may lack (rule P29) and the commit id's property are added."""
        updates = proposal.updates if head.location else (*creation(head.metadata), *proposal.updates)
        if proposal.record is not None and not added_snapshots(updates):
            updates += records.property_updates(head.metadata, proposal.record, self._runtime.now_ms())
        if head.location:
            needed = [table_uuid(head.metadata), *ref_requirements(head.metadata, updates)]
            requirements = merged(needed, proposal.requirements)
        else:
            requirements = (must_not_exist(),)
        return Prepared(ident, head, replace(proposal, updates=updates, requirements=requirements))

    def swap(self, *prepared: Prepared, guards: Sequence[Guard] = ()) -> Outcome:
        """Send it. Committed may name a later location than this commit's own, when it was found afterwards."""
        if len(prepared) == 1 and not guards and prepared[0].head.location:
            return self._swap(prepared[0])
        if not self.capabilities.swaps_tables or any(each.drops for each in prepared):
            raise Unsupported(
                f"{self._wording.catalog} cannot commit to {counted(len(prepared) + len(guards), 'table')} at once",
                advice="Commit to one table at a time, or use a catalog of Frazil on SQLite or Postgres",
            )
        if self._read_only:
            raise _refusals.opened_read_only(self._shown)
        client: Any = self._current()
        return TableTransaction(client, self.load, self._runtime, self._wording, prepared, tuple(guards)).run()

    def _swap(self, prepared: Prepared) -> Outcome:
        if self._read_only:
            raise _refusals.opened_read_only(self._shown)
        requirements = REQUIREMENTS.validate_python(prepared.proposal.requirements)
        updates = UPDATES.validate_python(prepared.proposal.updates)
        table = self._table(prepared.ident)
        if table is None:
            return Stale(None)
        try:
            with self._serial():
                response = self._current().commit_table(table, requirements, updates)
        except Exception as error:  # noqa: BLE001 - whatever it is, the commit may have succeeded before (rule P30)
            return self._found_out(prepared, failure(error, self._wording, prepared.ident), error)
        return Committed(response.metadata_location)

    def discard(self, prepared: Prepared) -> None:
        """Frazil wrote nothing; what PyIceberg or the server left is theirs, and unreferenced."""

    def find_commit(self, metadata: TableMetadata, commit_id: str) -> CommitRecord | None:
        return records.find_record(metadata, commit_id)

    def record_commit(self, ident: Ident, head: Head, record: CommitRecord) -> None:
        """Keep the id in a property of its own. Raises CommitUnknown when it is not known whether it is kept."""
        outcome: Outcome = Unknown("it was never sent")
        for attempt in range(_RECORD_TRIES):
            if records.find_record(head.metadata, record.commit_id) is not None:
                return
            outcome = self.swap(self.prepare(ident, head, Proposal((), (), record)))
            if isinstance(outcome, Committed):
                return
            self._runtime.sleep(0.02 * (attempt + 1) * (0.5 + self._runtime.random()))
            head = self.load(ident)
        if isinstance(outcome, Unknown):
            raise CommitUnknown(
                f"Whether {self._wording.catalog} keeps the commit id of a write to {ident} is not known",
                commit_id=record.commit_id,
                evidence=outcome.cause,
            )
        raise CatalogUnavailable(
            f"The commit id could not be recorded: {ident} changed {_RECORD_TRIES} times concurrently"
        )

    def instant(self) -> Mapping[Ident, str] | None:
        """Tables are loaded one by one, each at its own moment."""
        return None

    def load_at(self, ident: Ident, location: str) -> Head:
        # The load comes first because a server may vend the credentials for the table's files with it.
        head = self.load(ident)
        if head.location == location:
            return head
        return Head(location, TableMetadata.parse(self._storage.read(location), location), head.now_ms)

    # Tables: create, register, drop, rename, list

    def stage(self, ident: Ident, metadata: TableMetadata) -> TableMetadata:
        """What the server would make of it. Nothing is created."""
        client: Any
        with self._changing(ident) as client:
            _check_free(client, ident)
            table = client.stage_table(_identifier(ident), **_parts(metadata))
        self._grant(table)
        return self._parsed(ident, table)

    def create(self, ident: Ident, metadata: TableMetadata) -> Head:
        """Create an empty table. A server hands out field ids itself, and the location where ``metadata`` has none."""
        with self._changing(ident) as catalog:
            _check_free(catalog, ident)
        if self._has_server or not metadata.location:
            return self._create_by_server(ident, metadata)
        # Not through create_table: it would renumber the fields, and leave its file behind when the race is lost.
        location = f"{metadata.metadata_folder}/00000-{self._runtime.new_uuid()}.metadata.json"
        self._storage.write(location, metadata.to_json())
        try:
            return self.register(ident, location)
        except CatalogUnavailable:
            return self._unless_found(ident, lambda head: head.location == location)
        except FrazilError:
            self._storage.delete([location])
            raise

    def _create_by_server(self, ident: Ident, metadata: TableMetadata) -> Head:
        try:
            with self._changing(ident) as catalog:
                table = catalog.create_table(_identifier(ident), **_parts(metadata))
        except (TableExists, CatalogUnavailable):
            # A client may send twice, and an answer may be lost: a table at the very location asked for is this one.
            asked = metadata.location
            return self._unless_found(ident, lambda head: bool(asked) and head.metadata.location == asked)
        return self._head(ident, table)

    def register(self, ident: Ident, location: str) -> Head:
        """Adopt an existing metadata file. Raises StorageError and CorruptMetadata where it cannot be read."""
        if not self._has_server:
            # PyIceberg's SqlCatalog puts the row in first and reads the file afterwards.
            TableMetadata.parse(self._storage.read(location), location)
        with self._changing(ident) as catalog:
            return self._head(ident, catalog.register_table(_identifier(ident), location))

    def drop(self, ident: Ident) -> str:
        """Forget a table; its files stay. Returns the metadata location it had."""
        location = self.load(ident).location
        with self._changing(ident) as catalog:
            catalog.drop_table(_identifier(ident))
        self._loaded.pop(ident, None)
        return location

    def rename(self, old: Ident, new: Ident) -> None:
        with self._changing(old, target=new) as catalog:
            catalog.rename_table(_identifier(old), _identifier(new))
        self._loaded.pop(old, None)

    def tables(self, namespace: tuple[str, ...] | None = None) -> list[Ident]:
        """The tables directly in one namespace, or all. Raises NoSuchNamespace."""
        if namespace is None:
            return [ident for each in self._namespaces() for ident in self._tables_if_there(each)]
        with self._asking(namespace) as catalog:
            return sorted(Ident(tuple(found[:-1]), found[-1]) for found in catalog.list_tables(namespace))

    # Namespaces

    def namespaces(self) -> dict[tuple[str, ...], dict[str, str]]:
        found: dict[tuple[str, ...], dict[str, str]] = {}
        for namespace in self._namespaces():
            found[namespace] = {}
            # A parent that only its children imply has no properties.
            with contextlib.suppress(NoSuchNamespace), self._asking(namespace) as catalog:
                properties = catalog.load_namespace_properties(namespace)
                found[namespace] = {str(key): str(value) for key, value in properties.items()}
        return found

    def create_namespace(self, namespace: tuple[str, ...], properties: Mapping[str, str]) -> None:
        with self._changing(namespace) as catalog:
            catalog.create_namespace(namespace, dict(properties))

    def drop_namespace(self, namespace: tuple[str, ...]) -> None:
        with self._changing(namespace) as catalog:
            catalog.drop_namespace(namespace)

    def close(self) -> None:
        if not self._inherited:
            self._catalog.close()

    # What an unclear answer meant (rule P30)

    def _found_out(self, prepared: Prepared, failed: Failure, error: Exception) -> Outcome:
        try:
            head = self.load(prepared.ident)
        except NoSuchTable:
            return Stale(None) if failed.answered else Unknown(f"{failed.cause}; now there is no such table")
        except FrazilError as unreadable:
            if failed.answered and failed.error is not None:
                raise failed.error from error
            return Unknown(f"{failed.cause}; then the table could not be read: {unreadable.problem}")
        if has_landed(prepared.proposal, head.metadata):
            return Committed(head.location)
        if failed.answered and head.location != prepared.head.location:
            return Stale(head.location)
        if cannot_land(prepared, head.metadata):
            return Stale(head.location)
        if failed.error is not None:
            raise failed.error from error
        return Unknown(failed.cause)

    # The PyIceberg side

    @contextlib.contextmanager
    def _asking(self, subject: Subject, target: Ident | None = None) -> Iterator[PyIcebergCatalog]:
        with translated(self._wording, subject, target), self._serial():
            yield self._current()

    @contextlib.contextmanager
    def _changing(self, subject: Subject, target: Ident | None = None) -> Iterator[PyIcebergCatalog]:
        if self._read_only:
            raise _refusals.opened_read_only(self._shown)
        with self._asking(subject, target) as catalog:
            yield catalog

    def _serial(self) -> contextlib.AbstractContextManager[object]:
        # PyIceberg's Hive client is one connection that every call opens and closes.
        return contextlib.nullcontext() if self.capabilities.atomic else self._lock

    def _current(self) -> PyIcebergCatalog:
        if self._inherited:
            with self._lock:
                if self._inherited and self._reopen is not None:
                    self._catalog = self._reopen()
                self._inherited = False
        return self._catalog

    def before_fork(self) -> None:
        """Nothing to stop: the child opens connections of its own."""

    def after_fork_in_parent(self) -> None:
        """Nothing to resume."""

    def after_fork_in_child(self) -> None:
        # Another thread of the parent may have held the lock, and does not exist here to release it.
        self._lock = threading.RLock()
        self._inherited = True

    def _table(self, ident: Ident) -> Table | None:
        """PyIceberg's handle, which names the table in a commit and carries its token. None: no such table."""
        if (table := self._loaded.get(ident)) is None:
            try:
                self.load(ident)
            except NoSuchTable:
                return None
            table = self._loaded[ident]
        return table

    def _head(self, ident: Ident, table: Table) -> Head:
        self._remember(ident, table)
        self._grant(table)
        return Head(table.metadata_location or "", self._parsed(ident, table), self._runtime.now_ms())

    def _parsed(self, ident: Ident, table: Table) -> TableMetadata:
        # BaseModel's own method: PyIceberg's refuses format version 3, and parse() has the error for that.
        data = pydantic.BaseModel.model_dump_json(table.metadata, by_alias=True, exclude_none=True).encode()
        return TableMetadata.parse(data, table.metadata_location or str(ident))

    def _remember(self, ident: Ident, table: Table) -> None:
        with self._lock:
            self._loaded[ident] = table
            self._loaded.move_to_end(ident)
            while len(self._loaded) > _LOADED_KEPT:
                self._loaded.popitem(last=False)

    def _grant(self, table: Table) -> None:
        """Give the credentials a server vended for this table to the storage, without the table's own properties."""
        own = table.metadata.properties
        vended = {key: value for key, value in storage_properties(table.io.properties).items() if own.get(key) != value}
        if any(self._storage.properties.get(key) != value for key, value in vended.items()):
            self._storage.grant(table.metadata.location, vended)

    def _unless_found(self, ident: Ident, is_this: Callable[[Head], bool]) -> Head:
        """Inside an except block: the table, if this call made it after all; otherwise the error is raised again."""
        with contextlib.suppress(FrazilError):
            if is_this(head := self.load(ident)):
                return head
        raise  # noqa: PLE0704 - called while an error is being handled

    def _namespaces(self, parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        try:
            with self._asking(parent) as catalog:
                children = sorted(tuple(child) for child in catalog.list_namespaces(parent))
        except NoSuchNamespace:
            return
        for child in children:
            # Some servers answer with the parent itself, or ignore the parent asked for.
            if len(child) == len(parent) + 1 and child[: len(parent)] == parent:
                yield child
                yield from self._namespaces(child)

    def _tables_if_there(self, namespace: tuple[str, ...]) -> list[Ident]:
        try:
            return self.tables(namespace)
        except NoSuchNamespace:
            return []


def storage_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    """PyIceberg's file properties among a catalog's."""
    return {key: str(value) for key, value in properties.items() if key.startswith(_STORAGE_KEYS)}


def _parts(metadata: TableMetadata) -> dict[str, Any]:
    """A table to be made, in the arguments of PyIceberg's clients."""
    properties = dict(metadata.properties)
    if metadata.format_version != 2:
        properties["format-version"] = str(metadata.format_version)
    return {
        "schema": metadata.schema(),
        "location": metadata.location or None,
        "partition_spec": metadata.spec(),
        "sort_order": metadata.sort_order(),
        "properties": properties,
    }


def _check_free(catalog: PyIcebergCatalog, ident: Ident) -> None:
    # PyIceberg's file-based catalogs write the metadata file first and leave it behind when the name cannot be had.
    if not catalog.namespace_exists(ident.namespace):
        raise _refusals.no_such_namespace(ident.namespace)
    if catalog.table_exists(_identifier(ident)):
        raise _refusals.table_exists(ident)


def _identifier(ident: Ident) -> tuple[str, ...]:
    return (*ident.namespace, ident.name)
