"""What SQLite and Postgres share: Iceberg's JDBC-catalog tables, Frazil's own tables beside them, and the swap.

Every statement is written once, with ``?`` as placeholder. An ``Engine`` brings the database: how to run a read, how to
run a change in one transaction, and what the driver's errors mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson

from frazil.catalog._db import Db, DuplicateRow, Engine, LostRace, OutcomeUnknown, Rows
from frazil.catalog._queue import CREATE as CREATE_QUEUE
from frazil.catalog._queue import INDEXES as QUEUE_INDEXES
from frazil.catalog._queue import QUEUE, QueueConflict, SqlQueue, record_of
from frazil.catalog._refusals import (
    namespace_exists,
    namespace_not_empty,
    no_such_namespace,
    no_such_table,
    opened_read_only,
    table_exists,
)
from frazil.catalog.base import (
    ChangeRecord,
    CommitQueue,
    CommitRecord,
    Committed,
    DroppedManifestLists,
    Outcome,
    Pointer,
    QueueUpdate,
    Stale,
    Unknown,
)
from frazil.errors import (
    CatalogUnavailable,
    CommitUnknown,
    FrazilError,
    InvalidInput,
    NoSuchNamespace,
    NoSuchTable,
    PermissionDenied,
    StorageError,
)
from frazil.model import Ident

DEFAULT_NAME = "frazil"
TABLES, PROPERTIES = "iceberg_tables", "iceberg_namespace_properties"
COMMITS, CHANGES, DROPPED, PINS = "frazil_commits", "frazil_changes", "frazil_dropped", "frazil_pins"
CHANGES_KEPT = 10_000
"""Changes whose sequence numbers lie further back than this are let go."""
_PRUNE_EVERY = 500

T = TypeVar("T")


class _ChangesRefused(Exception):
    """The database does not take what snapshots did. The transaction was rolled back."""


# The columns' sizes are those of Iceberg Java's JdbcUtil. No index on the location: each swap would have to move it.
_CREATE = {
    TABLES: f"""CREATE TABLE IF NOT EXISTS {TABLES} (
        catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
        metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
        PRIMARY KEY (catalog_name, table_namespace, table_name))""",
    PROPERTIES: f"""CREATE TABLE IF NOT EXISTS {PROPERTIES} (
        catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, property_key VARCHAR(255) NOT NULL,
        property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key))""",
    COMMITS: f"""CREATE TABLE IF NOT EXISTS {COMMITS} (
        table_uuid VARCHAR(64) NOT NULL, commit_id VARCHAR(1000) NOT NULL, digest VARCHAR(255) NOT NULL,
        snapshot_id BIGINT, sequence_number BIGINT NOT NULL, summary TEXT NOT NULL, recorded_at BIGINT NOT NULL,
        PRIMARY KEY (table_uuid, commit_id))""",
    CHANGES: f"""CREATE TABLE IF NOT EXISTS {CHANGES} (
        table_uuid VARCHAR(64) NOT NULL, sequence_number BIGINT NOT NULL, snapshot_id BIGINT NOT NULL,
        body {{bytes_type}} NOT NULL, PRIMARY KEY (table_uuid, sequence_number, snapshot_id))""",
    QUEUE: CREATE_QUEUE,
    DROPPED: f"""CREATE TABLE IF NOT EXISTS {DROPPED} (
        table_uuid VARCHAR(64) NOT NULL, manifest_list VARCHAR(1000) NOT NULL, dropped_at BIGINT NOT NULL,
        PRIMARY KEY (table_uuid, manifest_list))""",
    PINS: f"""CREATE TABLE IF NOT EXISTS {PINS} (
        pin VARCHAR(64) NOT NULL, table_uuid VARCHAR(64) NOT NULL, snapshot_id BIGINT NOT NULL,
        deadline BIGINT NOT NULL, PRIMARY KEY (pin, snapshot_id))""",
}
_OPTIONAL = {CHANGES, QUEUE, DROPPED, PINS}
"""Tables that a catalog works without."""
_INDEXES = {QUEUE: QUEUE_INDEXES}
_ROW = "catalog_name = ? AND table_namespace = ? AND table_name = ?"
_RESENDS = 3


@dataclass(frozen=True, slots=True)
class _Swap:
    ident: Ident
    expected: str
    new: str
    row: tuple[Any, ...] | None
    """The commit's own record."""
    changes: Sequence[ChangeRecord]
    queue_update: QueueUpdate | None
    dropped: DroppedManifestLists | None


def _no_lock() -> None:
    """Given back when turns cannot be had: nobody waits for what is only a hint."""


class SqlStore:
    """A PointerStore over Iceberg's JDBC-catalog tables (rules P5, P12, P13)."""

    def __init__(self, engine: Engine, *, name: str | None, read_only: bool, create: bool, shown: str) -> None:
        self._engine = engine
        self._read_only = read_only
        self._shown = shown
        found, self.created = _set_up(engine, read_only=read_only, create=create, shown=shown)
        # Before version 1 of Iceberg's schema there were no views, and every row is a table.
        self._typed = "iceberg_type" in found[TABLES]
        self._is_table = " AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)" if self._typed else ""
        self._keeps_commits = bool(found[COMMITS])
        self._keeps_changes = bool(found[CHANGES])
        self._keeps_dropped = bool(found[DROPPED]) and not read_only and engine.may_change(DROPPED)
        self._keeps_pins = bool(found[PINS]) and not read_only and engine.may_change(PINS)
        has_queue = bool(found[QUEUE]) and not read_only and engine.may_change(QUEUE)
        self._tickets = SqlQueue(engine) if has_queue else None
        self.queue: CommitQueue | None = self._tickets
        self.name = name if name is not None else _adopted_name(engine, shown)

    def try_commit_lock(self, ident: Ident) -> Callable[[], None] | None:
        try:
            return self._engine.try_commit_lock("\x1f".join(self._key(ident)))
        except (FrazilError, OSError):
            return _no_lock

    # The pointer

    def read(self, ident: Ident) -> Pointer:
        sql = (
            f"SELECT t.metadata_location, {self._engine.clock()}, {self._engine.on_standby}, {self._crowded()} "  # noqa: S608
            f"FROM (SELECT 1 AS one) AS o LEFT JOIN {TABLES} AS t ON {_ROW}{self._is_table}"
        )
        location, now_ms, standby, queue_not_empty = self._engine.read(
            lambda db: db.execute(sql, self._key(ident)).fetchone()
        )
        self._check_primary(standby)
        if location is None:
            raise no_such_table(ident)
        return Pointer(location, int(now_ms), bool(queue_not_empty))

    def _crowded(self) -> str:
        return "0" if self._tickets is None else self._tickets.queue_not_empty

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
        self._check_writable()
        kept = changes if self._keeps_changes else ()
        row = None if record is None else _record_row(record)
        swap = _Swap(ident, expected, new, row, kept, queue_update, dropped if self._keeps_dropped else None)
        try:
            return self._send(swap)
        except _ChangesRefused:
            # They are there for speed alone (rule P10), so the swap goes without them. Nothing of the first one landed.
            self._keeps_changes = self._may_keep_changes()
            return self._send(replace(swap, changes=()))

    def _send(self, swap: _Swap) -> Outcome:
        try:
            outcome = self._engine.write(
                lambda db: self._swap(db, swap), keep=lambda outcome: isinstance(outcome, Committed)
            )
        except (DuplicateRow, LostRace, QueueConflict):
            return Stale(self._engine.read(lambda db: self._location(db, swap.ident)))
        except OutcomeUnknown as unknown:
            return Unknown(str(unknown))
        if swap.queue_update is not None and self._tickets is not None:
            self._tickets.settled(swap.queue_update)
        return outcome

    def _swap(self, db: Db, swap: _Swap) -> Committed | Stale:
        ident, expected, new, row = swap.ident, swap.expected, swap.new, swap.row
        sql = (
            f"UPDATE {TABLES} SET metadata_location = ?, previous_metadata_location = ? "  # noqa: S608
            f"WHERE {_ROW}{self._is_table} AND metadata_location = ?"
        )
        if db.execute(sql, (new, expected, *self._key(ident), expected)).rowcount == 1:
            if row is not None:
                self._insert_record(db, row)
            if swap.queue_update is not None and self._tickets is not None:
                for each in swap.queue_update.records:
                    self._insert_record(db, _record_row(each))
                self._tickets.settle(db, swap.queue_update)
            if swap.dropped is not None:
                self._insert_dropped(db, swap.dropped)
            if swap.changes:
                self._insert_changes(db, swap.changes)
            return Committed(new)
        # A second statement: the one that lost would still show the value from before the winner (rule P5).
        actual = self._location(db, ident)
        if actual != new:
            return Stale(actual)
        # Names are fresh, so a pointer to ``new`` is this very swap, sent before (rule P9).
        if row is not None and not self._has_record(db, row):
            self._insert_record(db, row)
        return Committed(new)

    def _location(self, db: Db, ident: Ident) -> str | None:
        sql = f"SELECT metadata_location FROM {TABLES} WHERE {_ROW}{self._is_table}"  # noqa: S608
        row = db.execute(sql, self._key(ident)).fetchone()
        return None if row is None else row[0]

    # Commit ids

    def find_commit(self, table_uuid: str, commit_id: str) -> CommitRecord | None:
        if not self._keeps_commits:
            return None
        # Of a commit whose id nobody chose, which came with others, the queue knows for a while.
        ticket, join = ("NULL", "") if self._tickets is None else ("q.outcome", self._tickets.join_committed)
        sql = (
            f"SELECT c.digest, c.snapshot_id, c.sequence_number, c.summary, {self._engine.on_standby}, {ticket} "  # noqa: S608
            f"FROM (SELECT 1 AS one) AS o LEFT JOIN {COMMITS} AS c ON c.table_uuid = ? AND c.commit_id = ?{join}"
        )
        values = (table_uuid, commit_id) * (2 if join else 1)
        digest, snapshot_id, sequence_number, summary, standby, outcome = self._engine.read(
            lambda db: db.execute(sql, values).fetchone()
        )
        self._check_primary(standby)
        if digest is not None:
            return CommitRecord(table_uuid, commit_id, digest, snapshot_id, sequence_number, orjson.loads(summary))
        return None if outcome is None else record_of(table_uuid, commit_id, bytes(outcome))

    def put_commit(self, record: CommitRecord) -> bool:
        self._check_writable()
        row = _record_row(record)

        def put(again: bool) -> bool:
            try:
                self._change(lambda db: self._insert_record(db, row))
            except DuplicateRow:
                return again and self.find_commit(record.table_uuid, record.commit_id) == record
            return True

        return _resend(put, f"commit id {record.commit_id!r} was recorded")

    def _insert_record(self, db: Db, row: tuple[Any, ...]) -> None:
        db.execute(
            f"INSERT INTO {COMMITS} (table_uuid, commit_id, digest, snapshot_id, sequence_number, summary, recorded_at)"  # noqa: S608
            f" VALUES (?, ?, ?, ?, ?, ?, {self._engine.clock()})",
            row,
        )

    def _has_record(self, db: Db, row: tuple[Any, ...]) -> bool:
        sql = f"SELECT 1 FROM {COMMITS} WHERE table_uuid = ? AND commit_id = ?"  # noqa: S608
        return db.execute(sql, row[:2]).fetchone() is not None

    # What snapshots did

    def find_changes(self, table_uuid: str, after: int, up_to: int) -> list[ChangeRecord]:
        sql = (
            f"SELECT snapshot_id, sequence_number, body FROM {CHANGES} "  # noqa: S608
            "WHERE table_uuid = ? AND sequence_number > ? AND sequence_number <= ? ORDER BY sequence_number"
        )
        try:
            rows = self._engine.read(lambda db: db.execute(sql, (table_uuid, after, up_to)).fetchall())
        except PermissionDenied:
            return []
        except (CatalogUnavailable, StorageError):
            if self._has_changes():
                raise
            return []
        return [ChangeRecord(table_uuid, snapshot_id, number, bytes(body)) for snapshot_id, number, body in rows]

    def dropped_lists(self, table_uuid: str) -> list[str]:
        if not self._keeps_dropped:
            return []
        sql = f"SELECT manifest_list FROM {DROPPED} WHERE table_uuid = ? ORDER BY dropped_at, manifest_list"  # noqa: S608
        return [row[0] for row in self._engine.read(lambda db: db.execute(sql, (table_uuid,)).fetchall())]

    # Snapshots that transactions need (rule P18)

    def pin(self, pin: str, table_uuid: str, snapshot_ids: Sequence[int], lives_ms: int) -> None:
        if not self._keeps_pins or not snapshot_ids:
            return
        clock = self._engine.clock()
        rows = ", ".join([f"(?, ?, ?, {clock} + ?)"] * len(snapshot_ids))
        insert = f"INSERT INTO {PINS} (pin, table_uuid, snapshot_id, deadline) VALUES {rows} ON CONFLICT DO NOTHING"  # noqa: S608

        def work(db: Db) -> None:
            db.execute(f"DELETE FROM {PINS} WHERE deadline < {clock}")  # noqa: S608
            db.execute(insert, [value for each in snapshot_ids for value in (pin, table_uuid, each, lives_ms)])

        _resend(lambda _again: self._change(work), f"the snapshots of the table {table_uuid} were pinned")

    def unpin(self, pin: str) -> None:
        if self._keeps_pins:
            delete: Callable[[Db], Rows] = lambda db: db.execute(f"DELETE FROM {PINS} WHERE pin = ?", (pin,))  # noqa: E731, S608
            _resend(lambda _again: self._change(delete), f"the pin {pin} was removed")

    def pinned(self, table_uuid: str) -> frozenset[int]:
        if not self._keeps_pins:
            return frozenset()
        sql = f"SELECT snapshot_id FROM {PINS} WHERE table_uuid = ? AND deadline > {self._engine.clock()}"  # noqa: S608
        return frozenset(row[0] for row in self._engine.read(lambda db: db.execute(sql, (table_uuid,)).fetchall()))

    def _insert_dropped(self, db: Db, dropped: DroppedManifestLists) -> None:
        rows = ", ".join([f"(?, ?, {self._engine.clock()})"] * len(dropped.manifest_lists))
        db.execute(
            f"INSERT INTO {DROPPED} (table_uuid, manifest_list, dropped_at) VALUES {rows} ON CONFLICT DO NOTHING",  # noqa: S608
            [value for path in dropped.manifest_lists for value in (dropped.table_uuid, path)],
        )

    def forget_changes(self, table_uuid: str) -> None:
        self._check_writable()
        sql = f"DELETE FROM {CHANGES} WHERE table_uuid = ?"  # noqa: S608
        if self._keeps_changes:
            delete: Callable[[Db], Rows] = lambda db: db.execute(sql, (table_uuid,))  # noqa: E731
            _resend(lambda _again: self._change(delete), f"the changes of the table {table_uuid} were removed")

    def _insert_changes(self, db: Db, changes: Sequence[ChangeRecord]) -> None:
        rows = ", ".join(["(?, ?, ?, ?)"] * len(changes))
        values = [(each.table_uuid, each.sequence_number, each.snapshot_id, each.body) for each in changes]
        newest = changes[-1]
        try:
            db.execute(
                f"INSERT INTO {CHANGES} (table_uuid, sequence_number, snapshot_id, body) VALUES {rows} "  # noqa: S608
                "ON CONFLICT DO NOTHING",
                [value for row in values for value in row],
            )
            if is_time_to_prune(changes):
                db.execute(
                    f"DELETE FROM {CHANGES} WHERE table_uuid = ? AND sequence_number < ?",  # noqa: S608
                    (newest.table_uuid, newest.sequence_number - CHANGES_KEPT),
                )
        except Exception as error:
            raise _ChangesRefused from error

    def _has_changes(self) -> bool:
        return bool(self._engine.read(lambda db: self._engine.columns(db, CHANGES)))

    def _may_keep_changes(self) -> bool:
        """Is it worth trying again, or is the table gone, or closed to this user?"""
        # Adds no row, and is refused all the same where adding one would be.
        sql = f"INSERT INTO {CHANGES} SELECT * FROM {CHANGES} WHERE 1 = 0"  # noqa: S608
        try:
            if not self._has_changes():
                return False
            self._engine.write(lambda db: db.execute(sql), keep=lambda _: False)
        except PermissionDenied:
            return False
        except (FrazilError, LostRace):
            # The database is away for the moment, which says nothing about its tables.
            return True
        return True

    # Tables

    def insert(self, ident: Ident, location: str) -> None:
        self._check_writable()
        columns = "catalog_name, table_namespace, table_name, metadata_location" + ", iceberg_type" * self._typed
        sql = f"INSERT INTO {TABLES} ({columns}) VALUES (?, ?, ?, ?{', ?' * self._typed})"  # noqa: S608

        def work(db: Db) -> None:
            self._hold_namespace(db, ident.namespace)
            db.execute(sql, (*self._key(ident), location, *(("TABLE",) * self._typed)))

        def send(again: bool) -> None:
            try:
                self._change(work)
            except DuplicateRow:
                if not again or self._engine.read(lambda db: self._location(db, ident)) != location:
                    raise table_exists(ident) from None

        _resend(send, f"the table {ident} was created")

    def delete(self, ident: Ident) -> str:
        self._check_writable()
        seen: list[str] = []

        def work(db: Db) -> str:
            location = self._location(db, ident)
            if location is None:
                raise no_such_table(ident)
            seen.append(location)
            sql = f"DELETE FROM {TABLES} WHERE {_ROW} AND metadata_location = ?"  # noqa: S608
            if db.execute(sql, (*self._key(ident), location)).rowcount != 1:
                raise LostRace
            return location

        def send(again: bool) -> str:
            try:
                return self._change(work)
            except NoSuchTable:
                if again and seen:
                    return seen[-1]
                raise

        return _resend(send, f"the table {ident} was dropped")

    def rename(self, old: Ident, new: Ident) -> None:
        self._check_writable()
        if old == new:
            self.read(old)
            return
        sql = f"UPDATE {TABLES} SET table_namespace = ?, table_name = ? WHERE {_ROW}{self._is_table}"  # noqa: S608
        seen: list[str] = []

        def work(db: Db) -> None:
            location = self._location(db, old)
            if location is None:
                raise no_such_table(old)
            seen.append(location)
            self._hold_namespace(db, new.namespace)
            if db.execute(sql, (*self._key(new)[1:], *self._key(old))).rowcount != 1:
                raise no_such_table(old)

        def send(again: bool) -> None:
            try:
                self._change(work)
            except DuplicateRow:
                raise table_exists(new) from None
            except NoSuchTable:
                if not (again and self._engine.read(lambda db: self._location(db, new)) in seen):
                    raise

        _resend(send, f"the table {old} was renamed to {new}")

    def pointers(self, namespace: tuple[str, ...] | None = None) -> dict[Ident, str]:
        sql = (
            f"SELECT table_namespace, table_name, metadata_location FROM {TABLES} "  # noqa: S608
            f"WHERE catalog_name = ?{self._is_table} AND metadata_location IS NOT NULL"
        )
        parameters: tuple[str, ...] = (self.name,)
        if namespace is not None:
            sql, parameters = sql + " AND table_namespace = ?", (self.name, _joined(namespace))
        rows = self._engine.read(lambda db: db.execute(sql, parameters).fetchall())
        return {Ident(_split(levels), name): location for levels, name, location in sorted(rows)}

    # Namespaces

    def namespaces(self) -> dict[tuple[str, ...], dict[str, str]]:
        sql = (
            f"SELECT table_namespace, NULL, NULL FROM {TABLES} WHERE catalog_name = ? "  # noqa: S608
            f"UNION SELECT namespace, property_key, property_value FROM {PROPERTIES} WHERE catalog_name = ?"
        )
        rows = self._engine.read(lambda db: db.execute(sql, (self.name, self.name)).fetchall())
        found: dict[tuple[str, ...], dict[str, str]] = {}
        for text, key, value in rows:
            levels = _split(text)
            for depth in range(1, len(levels) + 1):
                found.setdefault(levels[:depth], {})
            if key is not None and key != "exists":
                found[levels][key] = value or ""
        return dict(sorted(found.items()))

    def create_namespace(self, namespace: tuple[str, ...], properties: Mapping[str, str]) -> None:
        self._check_writable()
        # Iceberg Java and PyIceberg know an empty namespace by this row.
        pairs = {"exists": "true", **properties}
        sql = f"INSERT INTO {PROPERTIES} (catalog_name, namespace, property_key, property_value) VALUES (?, ?, ?, ?)"  # noqa: S608

        def work(db: Db) -> None:
            if self._exists(db, namespace):
                raise DuplicateRow
            for key, value in pairs.items():
                db.execute(sql, (self.name, _joined(namespace), key, value))

        def send(again: bool) -> None:
            try:
                self._change(work)
            except DuplicateRow:
                if not again:
                    raise namespace_exists(namespace) from None

        _resend(send, f"the namespace {_joined(namespace)} was created")

    def drop_namespace(self, namespace: tuple[str, ...]) -> None:
        self._check_writable()
        sql = f"DELETE FROM {PROPERTIES} WHERE catalog_name = ? AND namespace = ?"  # noqa: S608

        def work(db: Db) -> None:
            # First the rows that whoever adds a table holds on to, then the look for tables: nobody slips in between.
            known = db.execute(sql, (self.name, _joined(namespace))).rowcount > 0
            if self._exists(db, namespace):
                raise namespace_not_empty(namespace)
            if not known:
                raise no_such_namespace(namespace)

        def send(again: bool) -> None:
            try:
                self._change(work)
            except NoSuchNamespace:
                if not again:
                    raise

        _resend(send, f"the namespace {_joined(namespace)} was dropped")

    def _exists(self, db: Db, namespace: tuple[str, ...]) -> bool:
        """Does anything have this namespace, or one below it?"""
        # substr, because SQLite's LIKE ignores case and both would need escapes.
        text = _joined(namespace)
        below = (self.name, text, len(text) + 1, text + ".")
        sql = (
            f"SELECT 1 FROM {TABLES} WHERE catalog_name = ? "  # noqa: S608
            "AND (table_namespace = ? OR substr(table_namespace, 1, ?) = ?) "
            f"UNION ALL SELECT 1 FROM {PROPERTIES} WHERE catalog_name = ? "
            "AND (namespace = ? OR substr(namespace, 1, ?) = ?) LIMIT 1"
        )
        return db.execute(sql, below + below).fetchone() is not None

    def _hold_namespace(self, db: Db, namespace: tuple[str, ...]) -> None:
        """Raises NoSuchNamespace; otherwise a concurrent drop waits for this transaction, and then finds its table."""
        sql = f"SELECT 1 FROM {PROPERTIES} WHERE catalog_name = ? AND namespace = ?{self._engine.key_share}"  # noqa: S608
        if db.execute(sql, (self.name, _joined(namespace))).fetchone() is None and not self._exists(db, namespace):
            raise no_such_namespace(namespace)

    # Helpers

    def close(self) -> None:
        self._engine.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown!r}, name={self.name!r})"

    def _key(self, ident: Ident) -> tuple[str, str, str]:
        return self.name, _joined(ident.namespace), ident.name

    def _change(self, work: Callable[[Db], T]) -> T:
        """Changes without an expected value start again when another one came between their statements."""
        for _ in range(100):
            try:
                return self._engine.write(work)
            except LostRace:
                continue
        raise CatalogUnavailable(f"Other writers of {self._shown} got in between 100 times in a row")

    def _check_writable(self) -> None:
        if self._read_only:
            raise opened_read_only(self._shown)

    def _check_primary(self, standby: object) -> None:
        if standby:
            raise CatalogUnavailable(
                f"{self._shown} is a standby, which may lag behind", advice="Connect to the primary server"
            )


def _set_up(engine: Engine, *, read_only: bool, create: bool, shown: str) -> tuple[dict[str, frozenset[str]], bool]:
    """The columns of each table, created where missing and allowed; and whether the catalog is new."""
    created = False
    for _ in range(20):
        found = engine.read(lambda db: {table: engine.columns(db, table) for table in _CREATE})
        missing = [table for table in _CREATE if not found[table]]
        unborn = TABLES in missing or PROPERTIES in missing
        if unborn and (read_only or not create):
            raise InvalidInput(
                f"{shown} holds no Iceberg catalog",
                evidence=f"There is no table {' and no table '.join(missing)} in it",
                advice="Connect with create=True and without read_only to make one",
            )
        if not missing or read_only:
            return found, created
        try:
            engine.write(lambda db: _create(db, engine, missing))  # noqa: B023 - called before the loop goes on
        except PermissionDenied:
            if not _OPTIONAL.issuperset(missing):
                raise
            # A catalog from before these tables were thought of, and a user who may not add one: it works without.
            return found, created
        except (DuplicateRow, LostRace, OutcomeUnknown):
            # Another process is creating the same tables at this moment: look again.
            continue
        created = created or unborn
    raise CatalogUnavailable(f"The catalog's tables in {shown} could not be created")


def _create(db: Db, engine: Engine, tables: Sequence[str]) -> None:
    for table in tables:
        db.execute(_CREATE[table].format(bytes_type=engine.bytes_type))
        for index in _INDEXES.get(table, ()):
            db.execute(index)


def _adopted_name(engine: Engine, shown: str) -> str:
    """Rows are keyed by the catalog's name: opening an existing catalog under another one would show it empty."""
    sql = f"SELECT catalog_name FROM {TABLES} UNION SELECT catalog_name FROM {PROPERTIES}"  # noqa: S608
    names = sorted(row[0] for row in engine.read(lambda db: db.execute(sql).fetchall()))
    if not names or DEFAULT_NAME in names:
        return DEFAULT_NAME
    if len(names) == 1:
        return str(names[0])
    raise InvalidInput(
        f"{shown} holds several catalogs: {', '.join(map(repr, names))}", advice=f"Choose one: name={names[0]!r}"
    )


def _resend(send: Callable[[bool], T], what: str) -> T:
    """Make a change whose answer may get lost; its argument says that an earlier sending may have landed."""
    cause = ""
    for again in _again():
        try:
            return send(again)
        except OutcomeUnknown as unknown:
            cause = str(unknown)
    raise CommitUnknown(f"It is not known whether {what}", evidence=cause, advice="Look, then call again if need be")


def _again() -> Iterator[bool]:
    for n in range(_RESENDS):
        yield n > 0


def _record_row(record: CommitRecord) -> tuple[Any, ...]:
    summary = orjson.dumps(dict(record.summary)).decode()
    return (
        record.table_uuid,
        record.commit_id,
        record.digest,
        record.snapshot_id,
        record.sequence_number,
        summary,
    )


def is_time_to_prune(changes: Sequence[ChangeRecord]) -> bool:
    """True for every 500th sequence number or so: old changes go in batches, not with each commit."""
    numbers = [each.sequence_number for each in changes]
    return bool(numbers) and max(numbers) // _PRUNE_EVERY > (min(numbers) - 1) // _PRUNE_EVERY


def _joined(namespace: tuple[str, ...]) -> str:
    return ".".join(namespace)


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split("."))
