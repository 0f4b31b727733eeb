"""What the SQL catalogs keep beside the pointer: commit ids, what snapshots did, and pins (rules P10, P12, P18)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from frazil.catalog._db import Database, Db, DuplicateRow, Rows, may_insert, resend
from frazil.catalog._queue import SqlQueue, record_of
from frazil.catalog._sql_order import Clause
from frazil.catalog.base import ChangeRecord, CommitRecord, DroppedManifestLists
from frazil.errors import CatalogUnavailable, PermissionDenied, StorageError

COMMITS, CHANGES, DROPPED, PINS = "frazil_commits", "frazil_changes", "frazil_dropped", "frazil_pins"
CREATE = {
    COMMITS: f"""CREATE TABLE IF NOT EXISTS {COMMITS} (
        table_uuid VARCHAR(64) NOT NULL, commit_id VARCHAR(1000) NOT NULL, digest VARCHAR(255) NOT NULL,
        snapshot_id BIGINT, sequence_number BIGINT NOT NULL, summary TEXT NOT NULL, recorded_at BIGINT NOT NULL,
        PRIMARY KEY (table_uuid, commit_id))""",
    CHANGES: f"""CREATE TABLE IF NOT EXISTS {CHANGES} (
        table_uuid VARCHAR(64) NOT NULL, sequence_number BIGINT NOT NULL, snapshot_id BIGINT NOT NULL,
        body {{bytes_type}} NOT NULL, PRIMARY KEY (table_uuid, sequence_number, snapshot_id))""",
    DROPPED: f"""CREATE TABLE IF NOT EXISTS {DROPPED} (
        table_uuid VARCHAR(64) NOT NULL, manifest_list VARCHAR(1000) NOT NULL, dropped_at BIGINT NOT NULL,
        PRIMARY KEY (table_uuid, manifest_list))""",
    PINS: f"""CREATE TABLE IF NOT EXISTS {PINS} (
        pin VARCHAR(64) NOT NULL, table_uuid VARCHAR(64) NOT NULL, snapshot_id BIGINT NOT NULL,
        deadline BIGINT NOT NULL, PRIMARY KEY (pin, snapshot_id))""",
}
CHANGES_KEPT = 10_000
"""Changes whose sequence numbers are further back than this are deleted."""
_PRUNE_EVERY = 500


class ChangesRefused(Exception):
    """The database does not take change records. The transaction was rolled back."""


class SqlCommitIds:
    def __init__(self, database: Database, queue: SqlQueue | None, *, exists: bool) -> None:
        self._database = database
        self._engine = database.engine
        self._queue = queue
        self._exists = exists

    def find(self, table_uuid: str, commit_id: str) -> CommitRecord | None:
        if not self._exists:
            return None
        # The commit of a group member whose caller chose no id is found in the queue, for as long as it is kept there.
        outcome, join = ("NULL", "") if self._queue is None else ("q.outcome", self._queue.join_committed)
        sql = (
            f"SELECT c.digest, c.snapshot_id, c.sequence_number, c.summary, {self._engine.on_standby}, {outcome} "  # noqa: S608
            f"FROM (SELECT 1 AS one) AS o LEFT JOIN {COMMITS} AS c ON c.table_uuid = ? AND c.commit_id = ?{join}"
        )
        values = (table_uuid, commit_id) * (2 if join else 1)
        digest, snapshot_id, sequence_number, summary, standby, told = self._engine.read(
            lambda db: db.execute(sql, values).fetchone()
        )
        self._database.check_primary(standby)
        if digest is not None:
            return CommitRecord(table_uuid, commit_id, digest, snapshot_id, sequence_number, orjson.loads(summary))
        return None if told is None else record_of(table_uuid, commit_id, bytes(told))

    def put(self, record: CommitRecord) -> bool:
        self._database.check_writable()

        def send(again: bool) -> bool:
            try:
                self._database.change(lambda db: self.insert(db, record))
            except DuplicateRow:
                return again and self.find(record.table_uuid, record.commit_id) == record
            return True

        return resend(send, f"commit id {record.commit_id!r} was recorded")

    def insert(self, db: Db, record: CommitRecord) -> None:
        """Part of a swap's transaction. Raises DuplicateRow."""
        summary = orjson.dumps(dict(record.summary)).decode()
        whose = (record.table_uuid, record.commit_id, record.digest)
        db.execute(
            f"INSERT INTO {COMMITS} (table_uuid, commit_id, digest, snapshot_id, sequence_number, summary, recorded_at)"  # noqa: S608
            f" VALUES (?, ?, ?, ?, ?, ?, {self._engine.clock()})",
            (*whose, record.snapshot_id, record.sequence_number, summary),
        )

    def has(self, db: Db, record: CommitRecord) -> bool:
        sql = f"SELECT 1 FROM {COMMITS} WHERE table_uuid = ? AND commit_id = ?"  # noqa: S608
        return db.execute(sql, (record.table_uuid, record.commit_id)).fetchone() is not None


class SqlChangeLog:
    """``takes_changes`` becomes False when the database refuses them: swaps then go without (rule P10)."""

    def __init__(self, database: Database, *, takes_changes: bool, takes_dropped: bool) -> None:
        self._database = database
        self._engine = database.engine
        self.takes_changes = takes_changes
        self.takes_dropped = takes_dropped

    def find(self, table_uuid: str, after: int, up_to: int) -> list[ChangeRecord]:
        sql = (
            f"SELECT snapshot_id, sequence_number, body FROM {CHANGES} "  # noqa: S608
            "WHERE table_uuid = ? AND sequence_number > ? AND sequence_number <= ? ORDER BY sequence_number"
        )
        try:
            rows = self._engine.read(lambda db: db.execute(sql, (table_uuid, after, up_to)).fetchall())
        except PermissionDenied:
            return []
        except (CatalogUnavailable, StorageError):
            if self._table_exists():
                raise
            return []
        return [ChangeRecord(table_uuid, snapshot_id, number, bytes(body)) for snapshot_id, number, body in rows]

    def forget(self, table_uuid: str) -> None:
        self._database.check_writable()
        sql = f"DELETE FROM {CHANGES} WHERE table_uuid = ?"  # noqa: S608
        if self.takes_changes:
            delete: Callable[[Db], Rows] = lambda db: db.execute(sql, (table_uuid,))  # noqa: E731
            resend(lambda _again: self._database.change(delete), f"the changes of the table {table_uuid} were removed")

    def dropped_lists(self, table_uuid: str) -> list[str]:
        if not self.takes_dropped:
            return []
        sql = f"SELECT manifest_list FROM {DROPPED} WHERE table_uuid = ? ORDER BY dropped_at, manifest_list"  # noqa: S608
        return [row[0] for row in self._engine.read(lambda db: db.execute(sql, (table_uuid,)).fetchall())]

    def insert(self, db: Db, changes: Sequence[ChangeRecord], beside: Clause | None = None) -> None:
        """Part of a swap's transaction, with what ``beside`` inserts in the same statement. Raises ChangesRefused."""
        clause, own = ("", []) if beside is None else (f"WITH {beside[0]} ", beside[1])
        rows = ", ".join(["(?, ?, ?, ?)"] * len(changes))
        values = [(each.table_uuid, each.sequence_number, each.snapshot_id, each.body) for each in changes]
        try:
            db.execute(
                f"{clause}INSERT INTO {CHANGES} (table_uuid, sequence_number, snapshot_id, body) VALUES {rows} "  # noqa: S608
                "ON CONFLICT DO NOTHING",
                [*own, *(value for row in values for value in row)],
            )
            for table_uuid, oldest in oldest_kept(changes).items():
                db.execute(
                    f"DELETE FROM {CHANGES} WHERE table_uuid = ? AND sequence_number < ?",  # noqa: S608
                    (table_uuid, oldest),
                )
        except Exception as error:
            raise ChangesRefused from error

    def insert_dropped(self, db: Db, dropped: DroppedManifestLists) -> None:
        """Part of a swap's transaction."""
        rows = ", ".join([f"(?, ?, {self._engine.clock()})"] * len(dropped.manifest_lists))
        db.execute(
            f"INSERT INTO {DROPPED} (table_uuid, manifest_list, dropped_at) VALUES {rows} ON CONFLICT DO NOTHING",  # noqa: S608
            [value for path in dropped.manifest_lists for value in (dropped.table_uuid, path)],
        )

    def refused(self) -> None:
        """After ChangesRefused: is it worth trying again, or is the table gone, or closed to this user?"""
        self.takes_changes = may_insert(self._engine, CHANGES, "table_uuid, sequence_number, snapshot_id, body")

    def _table_exists(self) -> bool:
        return bool(self._engine.read(lambda db: self._engine.columns(db, CHANGES)))


class SqlPins:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine = database.engine

    def pin(self, pin: str, table_uuid: str, snapshot_ids: Sequence[int], lives_ms: int) -> None:
        if not snapshot_ids:
            return
        clock = self._engine.clock()
        rows = ", ".join([f"(?, ?, ?, {clock} + ?)"] * len(snapshot_ids))
        insert = f"INSERT INTO {PINS} (pin, table_uuid, snapshot_id, deadline) VALUES {rows} ON CONFLICT DO NOTHING"  # noqa: S608

        def work(db: Db) -> None:
            db.execute(f"DELETE FROM {PINS} WHERE deadline < {clock}")  # noqa: S608
            db.execute(insert, [value for each in snapshot_ids for value in (pin, table_uuid, each, lives_ms)])

        resend(lambda _again: self._database.change(work), f"the snapshots of the table {table_uuid} were pinned")

    def unpin(self, pin: str) -> None:
        delete: Callable[[Db], Any] = lambda db: db.execute(f"DELETE FROM {PINS} WHERE pin = ?", (pin,))  # noqa: E731, S608
        resend(lambda _again: self._database.change(delete), f"the pin {pin} was removed")

    def pinned(self, table_uuid: str) -> frozenset[int]:
        sql = f"SELECT snapshot_id FROM {PINS} WHERE table_uuid = ? AND deadline > {self._engine.clock()}"  # noqa: S608
        return frozenset(row[0] for row in self._engine.read(lambda db: db.execute(sql, (table_uuid,)).fetchall()))


def oldest_kept(changes: Sequence[ChangeRecord]) -> dict[str, int]:
    """Table → the sequence number below which its old changes are to be deleted now.

    At every 500th sequence number of a table or so: in batches, not with each commit.
    """
    numbers: dict[str, list[int]] = {}
    for each in changes:
        numbers.setdefault(each.table_uuid, []).append(each.sequence_number)
    return {
        table_uuid: max(found) - CHANGES_KEPT
        for table_uuid, found in numbers.items()
        if max(found) // _PRUNE_EVERY > (min(found) - 1) // _PRUNE_EVERY
    }
