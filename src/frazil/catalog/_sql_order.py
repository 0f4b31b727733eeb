"""The order of commits in a SQL catalog: a row for each table of a swap, in the swap's own transaction (rule P41)."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from frazil.catalog._db import Database, Db, may_insert
from frazil.catalog.base import OrderCut, OrderedCommit, PointerMove
from frazil.catalog.order import (
    ORDER_KEPT,
    ORDER_KEPT_MS,
    TRIM_EVERY,
    TRIMMED_AT_ONCE,
    check_begun,
    check_not_ahead,
    entry_of,
    is_over,
)
from frazil.errors import CatalogUnavailable
from frazil.model import Ident
from frazil.runtime import SYSTEM

ORDER = "frazil_order"
# The numbers grow with the rows: of two commits with one stamp, one that depends on the other has the larger number.
CREATE = f"""CREATE TABLE IF NOT EXISTS {ORDER} (
    number {{row_number_type}}, catalog_name VARCHAR(255) NOT NULL, stamp BIGINT NOT NULL,
    entry VARCHAR(1000) NOT NULL, tables INTEGER NOT NULL,
    table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
    metadata_location VARCHAR(1000), previous_location VARCHAR(1000), about TEXT NOT NULL)"""
INDEXES = (f"CREATE INDEX IF NOT EXISTS {ORDER}_stamp ON {ORDER} (catalog_name, stamp, number)",)
_COLUMNS = (
    "catalog_name, stamp, entry, tables, table_namespace, table_name, metadata_location, previous_location, about"
)
_POLL_S = 0.002
_PATIENCE_S = 60.0
"""A stamp is followed by COMMIT alone, and the server ends a transaction whose client stalls for half of this."""

Clause = tuple[str, list[Any]]
"""Common table expressions with their values."""


class OrderRefused(Exception):
    """The database does not take the rows. The transaction was rolled back."""


class SqlOrder:
    """``takes_rows`` becomes False when the database refuses them: swaps then go without (rule P10)."""

    def __init__(
        self, database: Database, name: str, pointers: Callable[[], Mapping[Ident, str]], *, takes_rows: bool
    ) -> None:
        self._engine = database.engine
        self._pointers = pointers
        self._name = name
        self._key = zlib.crc32(name.encode()) & 0x7FFFFFFF
        self.takes_rows = takes_rows
        self._inserted = 0

    # Inside a swap's transaction

    def insert(self, db: Db, moves: Sequence[PointerMove]) -> None:
        """The last statement before COMMIT: everything that the swap depends on is locked by now.

        Raises OrderRefused.
        """
        if not self.takes_rows or not moves:
            return
        stamped, insert, values = self._statement(moves)
        try:
            db.execute(f"WITH {stamped} {insert}", values)
        except Exception as error:
            raise OrderRefused from error
        self.inserted(db)

    def clause(self, moves: Sequence[PointerMove]) -> Clause | None:
        """The same as part of another statement, where the database takes that: it saves a round trip."""
        if not self.takes_rows or not moves or not self._engine.inserts_in_with:
            return None
        stamped, insert, values = self._statement(moves)
        return f"{stamped}, ordered AS ({insert})", values

    def _statement(self, moves: Sequence[PointerMove]) -> tuple[str, str, list[Any]]:
        clock = self._engine.clock()
        # A constant is passed as a value: the text stays the same, and is prepared once.
        now = [int(clock)] if clock.isdigit() else []
        # A statement of its own after those that lock: it sees what was committed while they waited.
        stamped = (
            f"stamped AS (SELECT max(at) AS stamp FROM (SELECT {'?' if now else clock} AS at"  # noqa: S608
            f"{self._engine.stamp_lock(self._key)} "
            f"UNION ALL SELECT max(stamp) FROM {ORDER} WHERE catalog_name = ?) AS known)"
        )
        row = f"SELECT ?, stamp, ?, {len(moves)}, ?, ?, ?, ?, ? FROM stamped"  # noqa: S608
        insert = f"INSERT INTO {ORDER} ({_COLUMNS}) " + " UNION ALL ".join([row] * len(moves))
        entry = entry_of(moves)
        values: list[Any] = [*now, self._name]
        for each in moves:
            namespace = ".".join(each.ident.namespace)
            values += [self._name, entry, namespace, each.ident.name, each.location, each.previous, each.about]
        return stamped, insert, values

    def inserted(self, db: Db) -> None:
        """After rows were added: now and then the oldest ones go. Raises OrderRefused."""
        if self._inserted % TRIM_EVERY == 0:
            try:
                self._trim(db)
            except Exception as error:
                raise OrderRefused from error
        self._inserted += 1

    def _trim(self, db: Db) -> None:
        # Those with the smallest stamps, never one between two that stay: the order is whole after the oldest kept.
        oldest = (
            f"SELECT number, stamp FROM {ORDER} WHERE catalog_name = ? "  # noqa: S608
            f"ORDER BY stamp, number LIMIT {TRIMMED_AT_ONCE}"
        )
        beyond = (
            f"SELECT stamp FROM {ORDER} WHERE catalog_name = ? "  # noqa: S608
            f"AND number > (SELECT max(number) FROM {ORDER}) - ? ORDER BY number LIMIT 1"
        )
        db.execute(
            f"DELETE FROM {ORDER} WHERE number IN (SELECT number FROM ({oldest}) AS oldest "  # noqa: S608
            f"WHERE stamp < {self._engine.clock()} - ? OR stamp < ({beyond}))",
            (self._name, ORDER_KEPT_MS, self._name, ORDER_KEPT),
        )

    def refused(self) -> None:
        """After OrderRefused: is it worth trying again, or is the table gone, or closed to this user?"""
        self.takes_rows = may_insert(self._engine, ORDER, _COLUMNS)

    # Reading

    def cut(self, as_of_ms: int) -> OrderCut:
        self._wait_for(as_of_ms)
        # First the pointers: a swap that is committed meanwhile is among the later rows, and undone.
        current = self._pointers()
        sql = (
            f"SELECT table_namespace, table_name, previous_location, metadata_location, about FROM {ORDER} "  # noqa: S608
            "WHERE catalog_name = ? AND stamp > ? ORDER BY stamp DESC, number DESC"
        )
        later = self._rows(sql, (self._name, as_of_ms))
        newest = (
            f"SELECT max(number) FROM {ORDER} WHERE catalog_name = ? AND stamp <= ? "  # noqa: S608
            "GROUP BY table_namespace, table_name"
        )
        sql = f"SELECT table_namespace, table_name, metadata_location FROM {ORDER} WHERE number IN ({newest})"  # noqa: S608
        earlier = {_ident(*row[:2]): row[2] for row in self._rows(sql, (self._name, as_of_ms))}
        moves = tuple(PointerMove(_ident(*row[:2]), *row[2:]) for row in later)
        check_begun(as_of_ms, self._times()[2])
        return OrderCut(current, moves, earlier)

    def newest(self, most: int | None) -> list[OrderedCommit]:
        sql = (
            f"SELECT stamp, entry, tables, table_namespace, table_name, previous_location, metadata_location, about "  # noqa: S608
            f"FROM {ORDER} WHERE catalog_name = ? ORDER BY stamp DESC, number DESC"
        )
        if most is None:
            return list(_commits(self._rows(sql, (self._name,))))[::-1]
        found: list[OrderedCommit] = []
        limit = 2 * most + 10
        while most:
            rows = self._rows(f"{sql} LIMIT {limit}", (self._name,))
            found = list(_commits(rows))[:most]
            if len(found) == most or len(rows) < limit:
                break
            limit *= 4
        return found[::-1]

    def _wait_for(self, as_of_ms: int) -> None:
        """Until no commit can get a stamp up to this time, and those that have one are visible."""
        while True:
            clock_ms, newest_ms, oldest_ms = self._times()
            if is_over(as_of_ms, clock_ms, newest_ms):
                break
            check_not_ahead(as_of_ms, clock_ms)
            SYSTEM.sleep(_POLL_S)
        check_begun(as_of_ms, oldest_ms)
        waiting = self._engine.stamping(self._key)
        end = SYSTEM.monotonic() + _PATIENCE_S
        while waiting:
            if SYSTEM.monotonic() > end:
                what = "A commit of that time has not ended"
                raise CatalogUnavailable(what, evidence=f"Transactions: {sorted(waiting)}", advice="Call again")
            SYSTEM.sleep(_POLL_S)
            waiting &= self._engine.stamping(self._key)

    def _times(self) -> tuple[int, int | None, int | None]:
        """The clock, and the newest and the oldest stamp; None: nothing is recorded."""
        of_catalog = f"FROM {ORDER} WHERE catalog_name = ?"
        sql = f"SELECT {self._engine.clock()}, (SELECT max(stamp) {of_catalog}), (SELECT min(stamp) {of_catalog})"
        (row,) = self._rows(sql, (self._name, self._name))
        return row[0], row[1], row[2]

    def _rows(self, sql: str, values: Sequence[Any]) -> list[Any]:
        return self._engine.read(lambda db: db.execute(sql, values).fetchall())


def _commits(rows: Sequence[Any]) -> Iterable[OrderedCommit]:
    """The rows as commits, the newest first; of the oldest one some may be trimmed already, and it is left out.

    Rows of several commits with one stamp may be mixed.
    """
    for stamp, same in itertools.groupby(rows, key=lambda row: row[0]):
        entries: dict[object, list[Any]] = {}
        for number, row in enumerate(same):
            entries.setdefault(row[1] or number, []).append(row)
        for found in entries.values():
            if len(found) == found[0][2]:
                moves = sorted((PointerMove(_ident(*row[3:5]), *row[5:]) for row in found), key=lambda each: each.ident)
                yield OrderedCommit(stamp, tuple(moves))


def _ident(namespace: str, name: str) -> Ident:
    return Ident(tuple(namespace.split(".")), name)
