"""What SQLite and Postgres share: Iceberg's JDBC-catalog tables, Frazil's own tables beside them, and the swap.

Every statement is written once, with ``?`` as placeholder. A ``SqlEngine`` brings the database: how to run a read, how
to run a change in one transaction, and what the driver's errors mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from frazil.catalog._db import Database, Db, DuplicateRow, LostRace, OutcomeUnknown, SqlEngine, resend
from frazil.catalog._queue import CREATE as CREATE_QUEUE
from frazil.catalog._queue import INDEXES as QUEUE_INDEXES
from frazil.catalog._queue import QUEUE, QueueConflict, SqlQueue
from frazil.catalog._refusals import (
    namespace_exists,
    namespace_not_empty,
    no_such_namespace,
    no_such_table,
    table_exists,
)
from frazil.catalog._sql_attempts import ATTEMPTS, SqlAttempts
from frazil.catalog._sql_attempts import CREATE as CREATE_ATTEMPTS
from frazil.catalog._sql_deletions import CREATE as CREATE_DELETIONS
from frazil.catalog._sql_deletions import DELETIONS, STAGED, SqlDeletions, SqlStagedPrefixes
from frazil.catalog._sql_leases import CREATE as CREATE_LEASES
from frazil.catalog._sql_leases import LEASES, SqlLeases
from frazil.catalog._sql_order import CREATE as CREATE_ORDER
from frazil.catalog._sql_order import INDEXES as ORDER_INDEXES
from frazil.catalog._sql_order import ORDER, OrderRefused, SqlOrder
from frazil.catalog._sql_records import (
    CHANGES,
    COMMITS,
    DROPPED,
    PINS,
    ChangesRefused,
    SqlChangeLog,
    SqlCommitIds,
    SqlPins,
)
from frazil.catalog._sql_records import CREATE as CREATE_RECORDS
from frazil.catalog._sql_scrub import SqlScrubber
from frazil.catalog._sql_timeline import CREATE as CREATE_TIMELINE
from frazil.catalog._sql_timeline import TIMELINE, SqlTimeline
from frazil.catalog.base import (
    CommitOrder,
    CommitQueue,
    Committed,
    Guard,
    Outcome,
    PointerMove,
    Release,
    Stale,
    Unknown,
)
from frazil.catalog.commit_lock import no_lock
from frazil.catalog.order import moves_of, renamed
from frazil.catalog.store import Pointer, PointerSwap, Swap, expected_of, stale, was_sent_before
from frazil.errors import (
    CatalogUnavailable,
    FrazilError,
    InvalidInput,
    NoSuchNamespace,
    NoSuchTable,
    PermissionDenied,
)
from frazil.model import Ident

T = TypeVar("T")
DEFAULT_NAME = "frazil"
TABLES, PROPERTIES = "iceberg_tables", "iceberg_namespace_properties"

# The columns' sizes are those of Iceberg Java's JdbcUtil. No index on the location: each swap would have to move it.
_CREATE = {
    TABLES: f"""CREATE TABLE IF NOT EXISTS {TABLES} (
        catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
        metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
        PRIMARY KEY (catalog_name, table_namespace, table_name))""",
    PROPERTIES: f"""CREATE TABLE IF NOT EXISTS {PROPERTIES} (
        catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, property_key VARCHAR(255) NOT NULL,
        property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key))""",
    COMMITS: CREATE_RECORDS[COMMITS],
    CHANGES: CREATE_RECORDS[CHANGES],
    QUEUE: CREATE_QUEUE,
    DROPPED: CREATE_RECORDS[DROPPED],
    PINS: CREATE_RECORDS[PINS],
    ATTEMPTS: CREATE_ATTEMPTS,
    ORDER: CREATE_ORDER,
    **CREATE_DELETIONS,
    TIMELINE: CREATE_TIMELINE,
    LEASES: CREATE_LEASES,
}
_OPTIONAL = {CHANGES, QUEUE, DROPPED, PINS, ATTEMPTS, ORDER, DELETIONS, STAGED, TIMELINE, LEASES}
"""Tables that a catalog works without."""
_SCRUBBED = {CHANGES: "1 = 1", ATTEMPTS: "1 = 1", QUEUE: "state <> 0"}
"""Tables that may hold values of rows, and which rows of them nothing needs (rule P10)."""
_INDEXES = {QUEUE: QUEUE_INDEXES, ORDER: ORDER_INDEXES}
_ROW = "catalog_name = ? AND table_namespace = ? AND table_name = ?"


class SqlStore:
    """A PointerStore over Iceberg's JDBC-catalog tables (rules P5, P12, P13)."""

    def __init__(self, engine: SqlEngine, *, name: str | None, read_only: bool, create: bool, shown: str) -> None:
        self._engine = engine
        self._database = database = Database(engine, shown, read_only)
        found, self.created = _set_up(engine, read_only=read_only, create=create, shown=shown)
        # Before version 1 of Iceberg's schema there were no views, and every row is a table.
        self._typed = "iceberg_type" in found[TABLES]
        self._is_table = " AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)" if self._typed else ""

        def may_use(table: str) -> bool:
            return bool(found[table]) and not read_only and engine.may_change(table)

        self.changes = SqlChangeLog(database, takes_changes=bool(found[CHANGES]), takes_dropped=may_use(DROPPED))
        self.pins = SqlPins(database) if may_use(PINS) else None
        self.deletions = SqlDeletions(database) if may_use(DELETIONS) and may_use(DROPPED) else None
        self.staged = SqlStagedPrefixes(database) if may_use(STAGED) else None
        self._queue = SqlQueue(engine) if may_use(QUEUE) else None
        self.queue: CommitQueue | None = self._queue
        self.commits = SqlCommitIds(database, self._queue, exists=bool(found[COMMITS]))
        self.attempts = SqlAttempts(database, takes_records=not read_only) if found[ATTEMPTS] else None
        self.scrubber = (
            None
            if read_only
            else SqlScrubber(database, {each: which for each, which in _SCRUBBED.items() if found[each]})
        )
        has_timeline = bool(found[TIMELINE]) and (read_only or engine.may_change(TIMELINE))
        self.timeline = SqlTimeline(database) if has_timeline else None
        self.leases = SqlLeases(database) if may_use(LEASES) else None
        self.name = name if name is not None else _adopted_name(engine, shown)
        self.locks = _SqlLocks(engine, self.name)
        orders = bool(found[ORDER]) and not read_only and engine.may_change(ORDER)
        self._order = SqlOrder(database, self.name, self.pointers, takes_rows=orders)
        self.order: CommitOrder | None = self._order if found[ORDER] else None

    # The pointer

    def read(self, ident: Ident) -> Pointer:
        sql = (
            f"SELECT t.metadata_location, {self._engine.clock()}, {self._engine.on_standby}, {self._queue_not_empty()} "  # noqa: S608
            f"FROM (SELECT 1 AS one) AS o LEFT JOIN {TABLES} AS t ON {_ROW}{self._is_table}"
        )
        location, now_ms, standby, queue_not_empty = self._engine.read(
            lambda db: db.execute(sql, self._key(ident)).fetchone()
        )
        self._database.check_primary(standby)
        if location is None:
            raise no_such_table(ident)
        return Pointer(location, int(now_ms), bool(queue_not_empty))

    def _queue_not_empty(self) -> str:
        return "0" if self._queue is None else self._queue.queue_not_empty

    def swap(self, swap: Swap) -> Outcome:
        self._database.check_writable()
        kept = replace(
            swap,
            changes=swap.changes if self.changes.takes_changes else (),
            dropped=swap.dropped if self.changes.takes_dropped else (),
        )
        try:
            return self._with_order(lambda: self._send(kept))
        except ChangesRefused:
            # They are for speed alone (rule P10), so the swap goes without them. The first one was rolled back.
            self.changes.refused()
            return self._with_order(lambda: self._send(replace(kept, changes=())))

    def _with_order(self, change: Callable[[], T]) -> T:
        """Make a change that also records its place in the order; without that, where the database refuses it."""
        try:
            return change()
        except OrderRefused:
            self._order.refused()
        try:
            return change()
        except OrderRefused as error:
            raise CatalogUnavailable(
                f"{self._database.shown} did not take the commit's place in the order of commits",
                evidence=f"The database answered {type(error.__cause__).__name__}",
                advice="Call again",
            ) from error

    def _send(self, swap: Swap) -> Outcome:
        try:
            outcome = self._engine.write(
                lambda db: self._swap(db, swap), keep=lambda outcome: isinstance(outcome, Committed)
            )
        except (DuplicateRow, LostRace, QueueConflict):
            return self._engine.read(lambda db: self._actual(db, swap))
        except OutcomeUnknown as unknown:
            return Unknown(str(unknown))
        if swap.queue_update is not None and self._queue is not None:
            self._queue.settled(swap.queue_update)
        return outcome

    def _swap(self, db: Db, swap: Swap) -> Committed | Stale:
        for each in swap.in_order:
            is_there = self._guarded(db, each) if isinstance(each, Guard) else self._set_pointer(db, each)
            if not is_there:
                return self._not_as_expected(db, swap, each)
        for record in swap.records:
            self.commits.insert(db, record)
        if swap.queue_update is not None and self._queue is not None:
            for record in swap.queue_update.records:
                self.commits.insert(db, record)
            self._queue.settle(db, swap.queue_update)
        for dropped in swap.dropped:
            self.changes.insert_dropped(db, dropped)
            if self.deletions is not None:
                self.deletions.insert(db, dropped.table_uuid, dropped.files)
        self._record(db, swap)
        return swap.committed

    def _record(self, db: Db, swap: Swap) -> None:
        """What the swap did, and its place in the order: last, as by now all that it depends on is locked (P41)."""
        moves = moves_of(swap)
        beside = self._order.clause(moves) if swap.changes else None
        if swap.changes:
            self.changes.insert(db, swap.changes, beside)
        if beside is None:
            self._order.insert(db, moves)
        else:
            self._order.inserted(db)

    def _set_pointer(self, db: Db, pointer: PointerSwap) -> bool:
        """Whether it was as expected, and is set now."""
        key = self._key(pointer.ident)
        if pointer.expected is None:
            assert pointer.new is not None, "a table is made with a location"
            self._insert(db, pointer.ident, pointer.new)
            return True
        if pointer.new is None:
            sql = f"DELETE FROM {TABLES} WHERE {_ROW}{self._is_table} AND metadata_location = ?"  # noqa: S608
            return db.execute(sql, (*key, pointer.expected)).rowcount == 1
        sql = (
            f"UPDATE {TABLES} SET metadata_location = ?, previous_metadata_location = ? "  # noqa: S608
            f"WHERE {_ROW}{self._is_table} AND metadata_location = ?"
        )
        return db.execute(sql, (pointer.new, pointer.expected, *key, pointer.expected)).rowcount == 1

    def _guarded(self, db: Db, guard: Guard) -> bool:
        """Whether the pointer is as expected. It cannot move before this transaction ends (rule P40)."""
        return self._location(db, guard.ident, self._engine.share) == guard.location

    def _not_as_expected(self, db: Db, swap: Swap, moved: PointerSwap | Guard) -> Committed | Stale:
        # A second statement: the one that lost would still show the value from before the winner (rule P5).
        actual = self._location(db, moved.ident)
        if not was_sent_before(swap, moved, actual):
            return stale(swap, moved, actual)
        for record in swap.records:
            if not self.commits.has(db, record):
                self.commits.insert(db, record)
        return swap.committed

    def _actual(self, db: Db, swap: Swap) -> Stale:
        """Of a swap that was rolled back: the first pointer that has moved, if one has."""
        found = [(each, self._location(db, each.ident)) for each in swap.in_order]
        moved = [pair for pair in found if pair[1] != expected_of(pair[0])]
        return stale(swap, *(moved or found)[0])

    def _location(self, db: Db, ident: Ident, share: str = "") -> str | None:
        sql = f"SELECT metadata_location FROM {TABLES} WHERE {_ROW}{self._is_table}{share}"  # noqa: S608
        row = db.execute(sql, self._key(ident)).fetchone()
        return None if row is None else row[0]

    # Tables

    def insert(self, ident: Ident, location: str) -> None:
        self._database.check_writable()

        def work(db: Db) -> None:
            self._insert(db, ident, location)
            self._order.insert(db, (PointerMove(ident, None, location),))

        def send(again: bool) -> None:
            try:
                self._with_order(lambda: self._database.change(work))
            except DuplicateRow:
                if not again or self._engine.read(lambda db: self._location(db, ident)) != location:
                    raise table_exists(ident) from None

        resend(send, f"the table {ident} was created")

    def _insert(self, db: Db, ident: Ident, location: str) -> None:
        """Raises DuplicateRow, NoSuchNamespace."""
        columns = "catalog_name, table_namespace, table_name, metadata_location" + ", iceberg_type" * self._typed
        sql = f"INSERT INTO {TABLES} ({columns}) VALUES (?, ?, ?, ?{', ?' * self._typed})"  # noqa: S608
        self._hold_namespace(db, ident.namespace)
        db.execute(sql, (*self._key(ident), location, *(("TABLE",) * self._typed)))

    def delete(self, ident: Ident) -> str:
        self._database.check_writable()
        seen: list[str] = []

        def work(db: Db) -> str:
            location = self._location(db, ident)
            if location is None:
                raise no_such_table(ident)
            seen.append(location)
            sql = f"DELETE FROM {TABLES} WHERE {_ROW} AND metadata_location = ?"  # noqa: S608
            if db.execute(sql, (*self._key(ident), location)).rowcount != 1:
                raise LostRace
            self._order.insert(db, (PointerMove(ident, location, None),))
            return location

        def send(again: bool) -> str:
            try:
                return self._with_order(lambda: self._database.change(work))
            except NoSuchTable:
                if again and seen:
                    return seen[-1]
                raise

        return resend(send, f"the table {ident} was dropped")

    def rename(self, old: Ident, new: Ident) -> None:
        self._database.check_writable()
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
            self._order.insert(db, renamed(old, new, location))

        def send(again: bool) -> None:
            try:
                self._with_order(lambda: self._database.change(work))
            except DuplicateRow:
                raise table_exists(new) from None
            except NoSuchTable:
                if not (again and self._engine.read(lambda db: self._location(db, new)) in seen):
                    raise

        resend(send, f"the table {old} was renamed to {new}")

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
        self._database.check_writable()
        # By this row Iceberg Java and PyIceberg recognise an empty namespace.
        pairs = {"exists": "true", **properties}
        sql = f"INSERT INTO {PROPERTIES} (catalog_name, namespace, property_key, property_value) VALUES (?, ?, ?, ?)"  # noqa: S608

        def work(db: Db) -> None:
            if self._exists(db, namespace):
                raise DuplicateRow
            for key, value in pairs.items():
                db.execute(sql, (self.name, _joined(namespace), key, value))

        def send(again: bool) -> None:
            try:
                self._database.change(work)
            except DuplicateRow:
                if not again:
                    raise namespace_exists(namespace) from None

        resend(send, f"the namespace {_joined(namespace)} was created")

    def drop_namespace(self, namespace: tuple[str, ...]) -> None:
        self._database.check_writable()
        sql = f"DELETE FROM {PROPERTIES} WHERE catalog_name = ? AND namespace = ?"  # noqa: S608

        def work(db: Db) -> None:
            # First the rows that a writer locks to add a table, then the search for tables: none is added in between.
            known = db.execute(sql, (self.name, _joined(namespace))).rowcount > 0
            if self._exists(db, namespace):
                raise namespace_not_empty(namespace)
            if not known:
                raise no_such_namespace(namespace)

        def send(again: bool) -> None:
            try:
                self._database.change(work)
            except NoSuchNamespace:
                if not again:
                    raise

        resend(send, f"the namespace {_joined(namespace)} was dropped")

    def _exists(self, db: Db, namespace: tuple[str, ...]) -> bool:
        """Whether a table or a namespace is in this namespace, or in one below it."""
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
        return f"{type(self).__name__}({self._database.shown!r}, name={self.name!r})"

    def _key(self, ident: Ident) -> tuple[str, str, str]:
        return _key(self.name, ident)


class _SqlLocks:
    def __init__(self, engine: SqlEngine, name: str) -> None:
        self._engine = engine
        self._name = name

    def try_lock(self, ident: Ident) -> Release | None:
        try:
            return self._engine.try_commit_lock("\x1f".join(_key(self._name, ident)))
        except (FrazilError, OSError):
            # Where locks cannot be had, writers go ahead without: they are only a hint.
            return no_lock


def _set_up(engine: SqlEngine, *, read_only: bool, create: bool, shown: str) -> tuple[dict[str, frozenset[str]], bool]:
    """The columns of each table, created where missing and allowed; and whether the catalog is new."""
    created = False
    for _ in range(20):
        found = engine.read(lambda db: {table: engine.columns(db, table) for table in _CREATE})
        missing = [table for table in _CREATE if not found[table]]
        is_new = TABLES in missing or PROPERTIES in missing
        if is_new and (read_only or not create):
            raise InvalidInput(
                f"{shown} does not contain an Iceberg catalog",
                evidence=f"It has no table {' and no table '.join(missing)}",
                advice="Connect with create=True and without read_only to make one",
            )
        if not missing or read_only:
            return found, created
        try:
            engine.write(lambda db: _create(db, engine, missing))  # noqa: B023 - called before the loop goes on
        except PermissionDenied:
            if not _OPTIONAL.issuperset(missing):
                raise
            # An older catalog without these tables, and a user who may not create them: it works without.
            return found, created
        except (DuplicateRow, LostRace, OutcomeUnknown):
            # Another process is creating the same tables concurrently.
            continue
        created = created or is_new
    raise CatalogUnavailable(f"The catalog's tables in {shown} could not be created")


def _create(db: Db, engine: SqlEngine, tables: Sequence[str]) -> None:
    for table in tables:
        db.execute(_CREATE[table].format(bytes_type=engine.bytes_type, row_number_type=engine.row_number_type))
        for index in _INDEXES.get(table, ()):
            db.execute(index)


def _adopted_name(engine: SqlEngine, shown: str) -> str:
    """Rows are keyed by the catalog's name: opening an existing catalog under another one would show it empty."""
    sql = f"SELECT catalog_name FROM {TABLES} UNION SELECT catalog_name FROM {PROPERTIES}"  # noqa: S608
    names = sorted(row[0] for row in engine.read(lambda db: db.execute(sql).fetchall()))
    if not names or DEFAULT_NAME in names:
        return DEFAULT_NAME
    if len(names) == 1:
        return str(names[0])
    raise InvalidInput(
        f"{shown} contains several catalogs: {', '.join(map(repr, names))}", advice=f"Choose one: name={names[0]!r}"
    )


def _joined(namespace: tuple[str, ...]) -> str:
    return ".".join(namespace)


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split("."))


def _key(name: str, ident: Ident) -> tuple[str, str, str]:
    return name, _joined(ident.namespace), ident.name
