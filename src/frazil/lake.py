"""A lake: a catalog with its tables. ``connect()`` opens one."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from frazil.catalog.base import Head, LakeCatalog, OpenedCatalog
from frazil.catalog.open import absolute_location, absolute_uri, absolute_warehouse, open_catalog
from frazil.catalog.peers import pyiceberg_catalog, spark_conf
from frazil.commit.context import CommitContext, OnPhase
from frazil.commit.origins import checked_app, host, program
from frazil.commit.retry import Retry
from frazil.errors import (
    CommitUnknown,
    FrazilError,
    InvalidInput,
    NamespaceExists,
    NoSuchTable,
    StorageError,
    TableExists,
    Unsupported,
)
from frazil.format.metadata import TableMetadata
from frazil.format.partitions import parse_partitioning, parse_sort
from frazil.format.properties import checked_properties
from frazil.format.schemas import to_schema
from frazil.format.storage import Storage
from frazil.model import Ident, Isolation, LakeCommit, Origin, parse_namespace
from frazil.on_spark.queries import nullable_schema
from frazil.on_spark.session import app_name, is_frame
from frazil.on_spark.session import checked as checked_session
from frazil.past import lake_history
from frazil.repeat import Transactional, decorated
from frazil.repeat import run as run_function
from frazil.runtime import SYSTEM, Runtime
from frazil.services.after_commit import close as stop_services
from frazil.services.context import ServiceContext
from frazil.services.purge import purge as purge_table
from frazil.services.runner import Services
from frazil.services.staging import StagingWatch
from frazil.sql.begun import Begun
from frazil.stage.rows import incoming_schema, opened
from frazil.table.destination import CommitNow
from frazil.table.table import Table
from frazil.transaction import LakeSnapshot, Transaction
from frazil.wording import counted

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("frazil")

_WRITTEN_VERSION = "2"


def connect(
    uri: str,
    *,
    warehouse: str | None = None,
    name: str | None = None,
    properties: Mapping[str, str] | None = None,
    read_only: bool = False,
    create: bool = True,
    token: str | None = None,
    spark: object | None = None,
    app: str | None = None,
) -> Lake:
    """Open a lake.

    ``uri``: a folder (embedded: SQLite and the warehouse inside it), ``sqlite:///file``, ``postgresql://…``,
    ``http://…`` (any Iceberg REST catalog), ``pyiceberg:NAME`` (what PyIceberg's configuration names), ``glue://``,
    ``thrift://…`` (Hive), ``memory://``. ``properties`` are PyIceberg's (``s3.endpoint``, ``s3.access-key-id`` …) and
    apply to the catalog and to the files. ``create=False`` refuses to create a lake, so that a typo is an error.
    ``app`` names the application in everything it commits, so that a conflict says whose commit caused it. Without it:
    the session's application name, or the name of the program.
    """
    named = checked_app(app)
    session = None if spark is None else checked_session(spark)
    given = _checked_connection(properties, warehouse, name)
    if token is not None:
        given["token"] = token
    # Absolute now: the lake stays the same if the process changes its folder, or for a pickle in another process.
    place = None if warehouse is None else absolute_warehouse(warehouse, uri)
    named = named or (None if session is None else app_name(session)) or program()
    return Lake(_Connection(absolute_uri(uri), place, name, given, read_only, create, named), spark=session)


def register(spark: object) -> None:
    """Register the format "frazil" with a Spark session, for ``spark.read.format("frazil")`` and ``df.write``.

    Workers read and write with this package, which must be installed on them; scan().to_spark() and the verbs do not
    need it there.
    """
    from frazil.on_spark.source import register as register_source

    register_source(spark, open_by_options)


def open_by_options(options: Mapping[str, str]) -> Table:
    """The table that options of the Spark format "frazil" name. Raises InvalidInput if one is missing."""
    uri, name = options.get("lake"), options.get("path")
    if not uri or not name:
        raise InvalidInput(
            f"The format frazil needs {'the lake' if not uri else 'a table'}",
            advice='Write .option("lake", "postgresql://…") and .load("shop.events") or .save("shop.events")',
        )
    if uri.startswith("memory:"):
        raise Unsupported(
            "A memory:// lake exists in one process only, not in Spark's workers",
            advice="Use a folder",
        )
    lake = connect(
        uri,
        warehouse=options.get("warehouse"),
        name=options.get("name"),
        token=options.get("token"),
        properties={key[9:]: value for key, value in options.items() if key.startswith("property.")},
        create=False,
        app=options.get("app"),
    )
    try:
        return lake.table(name)
    except BaseException:
        lake.close()
        raise


def _checked_connection(properties: Mapping[str, str] | None, warehouse: object, name: object) -> dict[str, str]:
    if not isinstance(properties, Mapping | None):
        raise InvalidInput(f"properties must be a dict of strings, not {type(properties).__name__}")
    if not all(isinstance(each, str) for pair in (properties or {}).items() for each in pair):
        # The message does not show them: one may be a secret.
        raise InvalidInput("The keys and values of properties must be strings", advice="Write numbers as '16'")
    if not isinstance(warehouse, str | os.PathLike | None):
        raise InvalidInput(f"warehouse must be a folder or a location, not {warehouse!r}")
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidInput(f"name must be the name of a catalog, not {name!r}")
    return dict(properties or {})


@dataclass(frozen=True, repr=False)
class _Connection:
    """What is needed to open a lake again, also in another process. Never shown: it may contain secrets."""

    uri: str
    warehouse: str | None
    name: str | None
    properties: Mapping[str, str]
    read_only: bool
    create: bool
    app: str
    """The application, also in another process that opens the lake for it."""

    def open(self, runtime: Runtime) -> OpenedCatalog:
        return open_catalog(
            self.uri,
            warehouse=self.warehouse,
            name=self.name,
            properties=self.properties,
            read_only=self.read_only,
            create=self.create,
            runtime=runtime,
        )


class Lake:
    """A catalog and its tables. Safe to share between threads, survives fork, and pickles by connecting again."""

    def __init__(self, connection: _Connection, runtime: Runtime = SYSTEM, spark: Any = None) -> None:
        self._connection = connection
        self.spark = spark
        """The session that runs scans and verbs without rows; None: Arrow runs them."""
        self._opened = connection.open(runtime)
        self.runtime = runtime
        self.staging = StagingWatch(self.catalog.staged, runtime)
        self._peers: dict[int, Any] = {}
        self._begun = Begun()
        if self._opened.created and self._opened.kind != "memory":
            _log.warning("Created a new lake at %s", self.uri)

    @property
    def uri(self) -> str:
        """Where the lake is, without secrets."""
        return self._opened.uri_shown

    @property
    def catalog(self) -> LakeCatalog:
        return self._opened.catalog

    @property
    def storage(self) -> Storage:
        return self._opened.storage

    @property
    def warehouse(self) -> str | None:
        """Where new tables are created; None: the catalog's server decides."""
        return self._opened.warehouse

    # Namespaces

    def create_namespace(
        self, name: str | tuple[str, ...], properties: Mapping[str, str] | None = None, *, exists_ok: bool = False
    ) -> None:
        """Create a namespace. Raises NamespaceExists unless ``exists_ok``."""
        self.check_writable()
        given = checked_properties({} if properties is None else properties)
        try:
            self.catalog.create_namespace(parse_namespace(name), given)
        except NamespaceExists:
            if not exists_ok:
                raise

    def namespaces(self) -> list[str]:
        return sorted(".".join(each) for each in self.catalog.namespaces())

    def drop_namespace(self, name: str | tuple[str, ...]) -> None:
        """Drop an empty namespace. Raises NamespaceNotEmpty."""
        self.check_writable()
        self.catalog.drop_namespace(parse_namespace(name))

    # Tables

    def tables(self, namespace: str | tuple[str, ...] | None = None) -> list[str]:
        """The names of all tables, or of those in one namespace."""
        wanted = None if namespace is None else parse_namespace(namespace)
        return sorted(str(each) for each in self.catalog.tables(wanted))

    def exists(self, name: str | tuple[str, ...]) -> bool:
        try:
            self.catalog.load(Ident.parse(name))
        except NoSuchTable:
            return False
        return True

    def table(self, name: str | tuple[str, ...]) -> Table:
        """A table by name. Raises NoSuchTable."""
        ident = Ident.parse(name)
        self.catalog.load(ident)
        return Table(CommitNow(self, ident))

    def create_table(
        self,
        name: str | tuple[str, ...],
        schema: object = None,
        *,
        partition_by: Sequence[str] | None = (),
        sort_by: Sequence[str] | None = (),
        keys: Sequence[str] | None = (),
        properties: Mapping[str, str] | None = None,
        location: str | None = None,
        comment: str | None = None,
        exists_ok: bool = False,
        as_: object = None,
    ) -> Table:
        """Create an Iceberg table of format version 2.

        ``schema``: pyarrow, PyIceberg or Spark schema, or Spark DDL such as ``"id bigint not null, ts timestamp"``
        (timestamp is with zone, timestamp_ntz without). ``keys`` implies not null. ``as_`` creates from rows, also of a
        Spark DataFrame, whose columns become optional, and with the named index of a pandas frame.
        """
        self.check_writable()
        ident = Ident.parse(name)
        if exists_ok and self.exists(name):
            return Table(CommitNow(self, ident))
        schema, as_ = self.schema_of(schema, as_)
        metadata = self.new_metadata(ident, schema, partition_by, sort_by, keys, properties, location, comment)
        table = Table(CommitNow(self, ident))
        try:
            created = self.catalog.create(ident, metadata)
        except TableExists:
            if not exists_ok:
                raise
            return table
        if as_ is not None:
            self._fill(table, as_, created.metadata.uuid)
        return table

    def drop_table(self, name: str | tuple[str, ...], *, purge: bool = False) -> None:
        """Drop a table. Its files stay on disk unless ``purge``, which deletes every file of it.

        These are the files that its metadata names, and everything else below its location: earlier metadata, leftovers
        of killed jobs, empty folders. What another table of the lake needs stays.
        """
        self.check_writable()
        ident = Ident.parse(name)
        if purge:
            self._check_purge(ident)
        location = self.catalog.drop(ident)
        if purge:
            # Of the version that was dropped, which may be newer than the one that was checked.
            metadata = TableMetadata.parse(self.storage.read(location), location)
            context = ServiceContext(self.catalog, self.storage, ident, self.runtime)
            failed = purge_table(context, Head(location, metadata, self.runtime.now_ms()))
            if self.catalog.scrubber is not None:
                # Conditions of deletes are values of rows. Nothing depends on it.
                with contextlib.suppress(FrazilError):
                    self.catalog.scrubber.scrub(metadata.uuid)
            if failed:
                raise StorageError(
                    f"The table {ident} was dropped, and {counted(len(failed), 'file')} of it could not be deleted",
                    evidence=f"One of them is {failed[0]}",
                    advice="Delete the folder of the table by other means",
                )

    def rename_table(self, old: str | tuple[str, ...], new: str | tuple[str, ...]) -> Table:
        """Rename a table. Its files stay where they are."""
        self.check_writable()
        self.catalog.rename(Ident.parse(old), Ident.parse(new))
        return self.table(new)

    def register_table(self, name: str | tuple[str, ...], metadata_location: str) -> Table:
        """Add a table that already has a metadata file."""
        self.check_writable()
        if not isinstance(metadata_location, str) or not metadata_location:
            raise InvalidInput(f"metadata_location must be the location of a metadata file, not {metadata_location!r}")
        ident = Ident.parse(name)
        self.catalog.register(ident, metadata_location)
        return Table(CommitNow(self, ident))

    # Other engines

    def pyiceberg(self) -> Any:
        """The same catalog as a PyIceberg Catalog, for what Frazil does not do. It is closed with the lake."""
        pid = os.getpid()
        if pid not in self._peers:
            # One for each process: its connections must not cross a fork.
            self._peers[pid] = pyiceberg_catalog(self._opened, self._connection.uri, dict(self._connection.properties))
        return self._peers[pid]

    def spark_conf(self) -> dict[str, str]:
        """Settings with which Iceberg's own jar opens this catalog in a Spark session. They contain its password."""
        return spark_conf(self._opened, self._connection.uri)

    def spark_options(self) -> dict[str, str]:
        """Options with which the Spark format "frazil" opens this lake. They contain its password, if it has one."""
        known = self._connection
        if self._opened.kind == "memory":
            raise Unsupported("A memory:// lake exists in one process only, not in Spark's workers")
        given = {"lake": known.uri, "warehouse": known.warehouse, "name": known.name, "app": known.app}
        properties = {f"property.{key}": value for key, value in known.properties.items()}
        return {**{key: value for key, value in given.items() if value is not None}, **properties}

    def register(self, spark: object) -> None:
        """Register the format "frazil" with a Spark session."""
        register(spark)

    # Transactions

    def transaction(
        self, *, isolation: str = Isolation.SERIALIZABLE, retry: Retry | None = None, commit_id: str | None = None
    ) -> Transaction:
        """Several reads and writes of a table that take effect together, or not at all.

        The first touch pins all tables at one instant; what is read through the transaction is checked at its end.
        """
        return Transaction(self, isolation=isolation, retry=retry, commit_id=commit_id)

    def run(
        self,
        function: Callable[[Transaction], T],
        *,
        isolation: str = Isolation.SERIALIZABLE,
        retry: Retry | None = None,
        commit_id: str | None = None,
    ) -> T:
        """Call ``function`` with a transaction, commit it, and return the function's value.

        After a conflict the function is called again from the start, with a new transaction: it must not have effects
        besides those of its transaction. ``retry`` (by default ``frazil.Retry()``) limits the calls and the time; then
        the last ConflictError is raised. An exception of the function rolls back. docs/transactions.md has it all.
        """
        return run_function(self, function, isolation=isolation, retry=retry, commit_id=commit_id)

    @overload
    def transactional(self, function: Callable[Concatenate[Transaction, P], T], /) -> Transactional[P, T]: ...

    @overload
    def transactional(
        self, function: None = None, /, *, isolation: str = Isolation.SERIALIZABLE, retry: Retry | None = None
    ) -> Callable[[Callable[Concatenate[Transaction, P], T]], Transactional[P, T]]: ...

    def transactional(
        self,
        function: Any = None,
        /,
        *,
        isolation: str = Isolation.SERIALIZABLE,
        retry: Retry | None = None,
    ) -> Any:
        """Decorate a function whose first argument is a transaction: each call is one of ``run``.

        The caller leaves the first argument out. With a transaction as first argument, the function joins it.
        """
        decorate = partial(decorated, self, isolation=isolation, retry=retry)
        return decorate if function is None else decorate(function)

    def snapshot(self, as_of: dt.datetime | str | int | None = None) -> LakeSnapshot:
        """One instant of all tables, to read them as they were together: now, or at a time.

        ``as_of``: a datetime or ISO text with a time zone, or milliseconds. Exact for Frazil's commits on SQLite,
        Postgres and memory://, back to the oldest commit in ``history()``; docs/transactions.md has the rest.
        """
        return LakeSnapshot(self, as_of)

    def history(self, *, limit: int | None = None) -> list[LakeCommit]:
        """The commits of all tables in one order, the oldest first; one of several tables is one entry.

        ``limit``: only so many of the newest. Raises Unsupported where the catalog does not record the order.
        """
        return lake_history(self.catalog, limit)

    # SQL

    def sql(self, text: str, spark: object | None = None, *, as_of: dt.datetime | str | int | None = None) -> Any:
        """Run one statement of Spark's SQL: SELECT, INSERT, UPDATE, DELETE, MERGE, CREATE, DROP, ALTER TABLE, SHOW,
        DESCRIBE, CALL; and BEGIN, COMMIT, ROLLBACK.

        A query gives a DataFrame, pinned at one instant of all tables; a write gives its Commit, everything else None.
        Between BEGIN and COMMIT, the statements that this thread runs on this lake are one transaction, and COMMIT
        gives what ``Transaction.commit`` gives.
        Queries need a session: the one given, else the lake's, else the active one. docs/sql.md has it all.
        ``as_of``: a query over the whole lake as it was at that time, as ``snapshot`` takes it.
        """
        from frazil.sql.statements import run

        return run(self, self._begun, text, spark, as_of)

    def _sql_in(self, transaction: Transaction, text: str, spark: object | None) -> Any:
        from frazil.sql.statements import execute

        return execute(self, text, spark, transaction)

    def attach(self, spark: object | None = None) -> dict[str, str]:
        """Make every table a temporary view of a Spark session; returns table → view.

        The view of ``shop.events`` is ``shop_events``: the parts with underscores between them, and for every character
        that is not a letter, digit or underscore. An existing view of that name is replaced. All views are pinned at
        one instant; attach() again refreshes them.
        """
        from frazil.sql.statements import attach

        return attach(self, spark)

    # Services

    def services(self, tables: Sequence[str] | None = None, interval_s: float = 60) -> Services:
        """The table services of this lake: ``.run()`` runs what is due on each table, every ``interval_s`` seconds.

        ``tables``: their names; None: all whose property ``frazil.services.mode`` is ``service``. Any number of
        processes may run them: each table has one leader at a time. docs/services.md has it all.
        """
        return Services(self, tables, interval_s)

    def commit_context(self, ident: Ident, on_phase: OnPhase | None = None) -> CommitContext:
        """The context of commits to a table."""
        ignore: OnPhase = lambda _phase, _attempt: None  # noqa: E731
        return CommitContext(self.catalog, self.storage, ident, self.runtime, on_phase or ignore)

    def origin(self, verb: str) -> Origin:
        """What is recorded with a commit that begins now."""
        return Origin(self._connection.app, host(), verb.replace("_", " "), self.runtime.now_ms())

    # Closing

    def check_writable(self) -> None:
        if self._connection.read_only:
            raise InvalidInput(
                f"The lake at {self.uri} is opened with read_only=True", advice="Connect without it to write"
            )

    def close(self) -> None:
        """Close the lake's connections. A closed lake cannot be used again. What SQL has begun is rolled back."""
        self._begun.close()
        stop_services(self)
        peer = self._peers.pop(os.getpid(), None)
        if peer is not None and not hasattr(self.catalog, "pyiceberg"):
            peer.close()
        self.staging.close()
        self.catalog.close()

    def __enter__(self) -> Lake:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Lake({self.uri!r}, catalog={self.catalog.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._opened.kind == "memory":
            raise Unsupported(
                "A memory:// lake exists in one process only and cannot be pickled", advice="Use a folder"
            )
        # The lake exists: opening it again never creates one.
        return Lake, (replace(self._connection, create=False),)

    # Inner workings

    def schema_of(self, schema: object, rows: object) -> tuple[object, object]:
        """The schema of a new table, given or that of its rows; and the rows, which may have been opened for that."""
        if schema is not None:
            return schema, rows
        if rows is None:
            raise InvalidInput("create_table needs a schema", advice="Give a schema, or rows with as_=…")
        rows = opened(rows)
        return (nullable_schema(rows) if is_frame(rows) else incoming_schema(rows)), rows

    def new_metadata(
        self,
        ident: Ident,
        schema: object,
        partition_by: Sequence[str] | None,
        sort_by: Sequence[str] | None,
        keys: Sequence[str] | None,
        properties: Mapping[str, str] | None,
        location: str | None,
        comment: str | None,
    ) -> TableMetadata:
        """The first version of a table. Nothing is created."""
        from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
        from pyiceberg.table.metadata import new_table_metadata
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

        given = _checked_properties(properties, comment)
        columns = to_schema(schema, keys=_strings("keys", keys))
        spec = parse_partitioning(_strings("partition_by", partition_by), columns) if partition_by else None
        order = parse_sort(_strings("sort_by", sort_by), columns) if sort_by else None
        model = new_table_metadata(
            schema=columns,
            partition_spec=spec or UNPARTITIONED_PARTITION_SPEC,
            sort_order=order or UNSORTED_SORT_ORDER,
            location=self._new_location(ident) if location is None else absolute_location(location),
            properties=given,
            table_uuid=self.runtime.new_uuid(),
        )
        now = self.runtime.now_ms()
        raw = {**model.model_dump(mode="json", by_alias=True, exclude_none=True), "last-updated-ms": now}
        return TableMetadata(raw)

    def _new_location(self, ident: Ident) -> str:
        if self.warehouse is None:
            if self._opened.kind in ("postgres", "sqlite"):
                raise InvalidInput(
                    "The lake has no warehouse, so a new table has no location for its files",
                    advice="Connect with warehouse='s3://bucket/path' or a folder, or give location=",
                )
            return ""
        # With a suffix: a table must not share the folder of an earlier table of the same name.
        # Other engines parse a location as a URI, so it has only plain characters.
        folder = "/".join(re.sub(r"[^\w.\- ]", "_", each) for each in (*ident.namespace, ident.name))
        return f"{self.warehouse.rstrip('/')}/{folder}-{self.runtime.new_hex()[:8]}"

    def _fill(self, table: Table, rows: object, uuid: str) -> None:
        try:
            table.append(rows)
        except CommitUnknown:
            raise
        except BaseException:
            # Only if it is still the same table, and no other writer has written to it.
            ident = Ident.parse(table.name)
            metadata = self.catalog.load(ident).metadata
            if metadata.uuid == uuid and not any(metadata.snapshots()):
                self.catalog.drop(ident)
            raise

    def _check_purge(self, ident: Ident) -> None:
        metadata = self.catalog.load(ident).metadata
        if metadata.properties.get("gc.enabled", "true").lower() == "false":
            raise InvalidInput(
                f"The table {ident} has gc.enabled=false: other tables may use its files as well",
                advice="Drop it without purge",
            )


def _strings(what: str, values: Sequence[str] | None) -> Sequence[str]:
    if values is None:
        return ()
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidInput(f"{what} must be a list of strings", advice=f"Write {what}=[{values!r}]")
    return values


def _checked_properties(properties: Mapping[str, str] | None, comment: str | None) -> dict[str, str]:
    given = checked_properties({} if properties is None else properties)
    version = given.pop("format-version", _WRITTEN_VERSION)
    if version != _WRITTEN_VERSION:
        raise Unsupported(f"New tables have format version {_WRITTEN_VERSION}, not {version}")
    if comment is not None:
        given["comment"] = str(comment)
    return {**given, "format-version": _WRITTEN_VERSION}
