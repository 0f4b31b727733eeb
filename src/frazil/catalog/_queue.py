"""The commit queue of a SQL catalog: one row per commit, in the same database as the pointer (rules P1 to P3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import orjson

from frazil.catalog._db import Db, DuplicateRow, LostRace, OutcomeUnknown, SqlEngine
from frazil.catalog.base import (
    RESERVATION,
    CommitRecord,
    QueueClaims,
    QueuedCommit,
    QueueEntry,
    QueueState,
    QueueStatus,
    QueueUpdate,
)
from frazil.errors import CatalogUnavailable, CommitUnknown

QUEUE = "frazil_queue"
CREATE = f"""CREATE TABLE IF NOT EXISTS {QUEUE} (
    ticket VARCHAR(64) NOT NULL PRIMARY KEY, place VARCHAR(64) NOT NULL, table_uuid VARCHAR(64) NOT NULL,
    commit_id VARCHAR(1000) NOT NULL,
    version INTEGER NOT NULL, state INTEGER NOT NULL, enqueued_at BIGINT NOT NULL, deadline BIGINT NOT NULL,
    tries INTEGER NOT NULL, wake VARCHAR(255) NOT NULL,
    body {{bytes_type}} NOT NULL, outcome {{bytes_type}} NOT NULL)"""
INDEXES = (
    f"CREATE INDEX IF NOT EXISTS {QUEUE}_waiting ON {QUEUE} (place, enqueued_at, ticket) WHERE state = 0",
    # Only of settled rows: a whole group is added to it at once, and a new commit in the queue pays nothing.
    f"CREATE INDEX IF NOT EXISTS {QUEUE}_settled ON {QUEUE} (deadline) WHERE state <> 0",
)
KEPT_MS = 3_600_000
"""How long the state of a settled commit is kept for a writer that was stopped or cut off."""
T = TypeVar("T")
_CLEAN_EVERY = 200
_TRIES = 20


class QueueConflict(Exception):
    """A queued commit of the group no longer waits. The transaction must be rolled back."""


class SqlQueue:
    """A CommitQueue over one table. The row is the truth, or an outcome pushed by its transaction."""

    claims: QueueClaims | None = None

    def __init__(self, engine: SqlEngine) -> None:
        self._engine = engine
        self.notifier = engine.notifier()
        self._settled = 0

    @property
    def queue_not_empty(self) -> str:
        """An SQL expression, true where commits wait."""
        return f"EXISTS (SELECT 1 FROM {QUEUE} WHERE state = 0 AND deadline > {self._engine.clock()})"  # noqa: S608

    @property
    def join_committed(self) -> str:
        """Joins, as q, the row of a committed operation by its table and its commit id."""
        return f" LEFT JOIN {QUEUE} AS q ON q.table_uuid = ? AND q.ticket = ? AND q.state = {int(QueueState.COMMITTED)}"

    # The writer's part

    def put(self, ticket: QueuedCommit, lives_ms: int) -> bool:
        try:
            return self._insert(ticket, QueueState.WAITING, lives_ms)
        except OutcomeUnknown as unknown:
            # It may be there, or still arrive: a withdrawn row put under its key first fences it off for good. Where it
            # is there, a leader may have committed it already, which its writer reads from the row (rule P9).
            status = self._fenced(ticket)
            if status is None or status.state is QueueState.WITHDRAWN:
                raise CatalogUnavailable(
                    "The queue of the catalog did not answer", evidence=str(unknown), advice="Call again"
                ) from unknown
            return False

    def _fenced(self, ticket: QueuedCommit) -> QueueStatus | None:
        try:
            self._insert(ticket, QueueState.WITHDRAWN, 0)
            return self.status(ticket.key)
        except (OutcomeUnknown, CatalogUnavailable) as error:
            raise CommitUnknown(
                "It is not known whether the operation reached the queue of the catalog",
                commit_id=ticket.commit_id,
                evidence=str(error),
            ) from error

    def _insert(self, ticket: QueuedCommit, state: QueueState, lives_ms: int) -> bool:
        clock = self._engine.clock()
        sql = (
            f"INSERT INTO {QUEUE} (ticket, place, table_uuid, commit_id, version, state, enqueued_at, deadline, tries, "  # noqa: S608
            f"wake, body, outcome) VALUES (?, ?, ?, ?, ?, ?, {clock}, {clock} + ?, 0, ?, ?, ?) ON CONFLICT DO NOTHING "
            # A statement reads what was there before it. In subqueries SQLite also reads the new row.
            f"RETURNING EXISTS (SELECT 1 FROM {QUEUE} AS o WHERE o.place = ? AND o.state = 0 AND o.deadline > {clock} "
            "AND o.ticket <> ?)"
        )
        whose = (ticket.key, ticket.queue_key, ticket.table_uuid, ticket.commit_id, ticket.version)
        where = ticket.notify_address
        values = (*whose, int(state), lives_ms, where, ticket.body, b"", ticket.queue_key, ticket.key)
        return bool(self._repeated(lambda: self._engine.write_value(sql, values)))

    def status(self, key: str) -> QueueStatus | None:
        if (pushed := self.notifier.pushed_outcome(key)) is not None:
            return QueueStatus(QueueState.COMMITTED, pushed)
        sql = f"SELECT state, outcome FROM {QUEUE} WHERE ticket = ?"  # noqa: S608
        row = self._engine.read(lambda db: db.execute(sql, (key,)).fetchone())
        return None if row is None else QueueStatus(QueueState(row[0]), bytes(row[1]))

    def withdraw(self, key: str) -> QueueStatus | None:
        sql = f"UPDATE {QUEUE} SET state = ? WHERE ticket = ? AND state = ?"  # noqa: S608
        return self._taken_back(key, sql, (int(QueueState.WITHDRAWN), key, int(QueueState.WAITING)))

    def fence(self, key: str) -> QueueStatus | None:
        clock, empty = self._engine.clock(), self._engine.no_bytes
        # A commit that arrives later finds its key taken.
        sql = (
            f"INSERT INTO {QUEUE} (ticket, place, table_uuid, commit_id, version, state, enqueued_at, deadline, tries, "  # noqa: S608
            f"wake, body, outcome) VALUES (?, '', '', '', 0, ?, {clock}, {clock}, 0, '', {empty}, {empty}) "
            f"ON CONFLICT (ticket) DO UPDATE SET state = excluded.state WHERE {QUEUE}.state = ?"
        )
        return self._taken_back(key, sql, (key, int(QueueState.WITHDRAWN), int(QueueState.WAITING)))

    def _taken_back(self, key: str, sql: str, values: Sequence[Any]) -> QueueStatus | None:
        for _ in range(_TRIES):
            try:
                # Durable, unlike the rest: the operation's files are deleted next, so no crash may undo it.
                self._engine.write(lambda db: db.execute(sql, values).rowcount)
                return self.status(key)
            except (LostRace, OutcomeUnknown):
                # Repeating it changes nothing more; the row is the truth either way.
                continue
        raise CatalogUnavailable("The queue of the catalog did not answer", advice="Call again")

    def extend(self, key: str, lives_ms: int) -> None:
        sql = f"UPDATE {QUEUE} SET deadline = {self._engine.clock()} + ? WHERE ticket = ? AND state = ?"  # noqa: S608
        self._change_or_unavailable(sql, (lives_ms, key, int(QueueState.WAITING)))

    # The leader's part

    def waiting(self, queue_key: str, most: int) -> list[QueueEntry]:
        clock = self._engine.clock()
        sql = (
            f"SELECT ticket, table_uuid, commit_id, version, body, wake, {clock} - enqueued_at, tries FROM {QUEUE} "  # noqa: S608
            f"WHERE place = ? AND state = 0 AND version <> {RESERVATION} AND deadline > {clock} "
            f"ORDER BY enqueued_at, ticket LIMIT ?"
        )
        rows = self._engine.read(lambda db: db.execute(sql, (queue_key, most)).fetchall())
        return [
            QueueEntry(QueuedCommit(key, uuid, commit_id, version, bytes(body), where, queue_key), int(age), tries)
            for key, uuid, commit_id, version, body, where, age, tries in rows
        ]

    def count(self, queue_key: str) -> int:
        sql = f"SELECT count(*) FROM {QUEUE} WHERE place = ? AND state = 0 AND version <> {RESERVATION}"  # noqa: S608
        return int(self._engine.read(lambda db: db.execute(sql, (queue_key,)).fetchone())[0])

    def first(self, queue_key: str) -> QueueEntry | None:
        clock = self._engine.clock()
        sql = (
            f"SELECT ticket, table_uuid, commit_id, version, wake, {clock} - enqueued_at, tries FROM {QUEUE} "  # noqa: S608
            f"WHERE place = ? AND state = 0 AND deadline > {clock} "
            f"ORDER BY version <> {RESERVATION}, enqueued_at, ticket LIMIT 1"
        )
        row = self._engine.read(lambda db: db.execute(sql, (queue_key,)).fetchone())
        if row is None:
            return None
        key, table_uuid, commit_id, version, where, age, tries = row
        return QueueEntry(QueuedCommit(key, table_uuid, commit_id, version, b"", where, queue_key), int(age), tries)

    def tried(self, keys: Sequence[str]) -> None:
        sql = f"UPDATE {QUEUE} SET tries = tries + 1 WHERE ticket IN ({_marks(keys)})"  # noqa: S608
        self._change_or_unavailable(sql, tuple(keys))

    def undecided(self, table_uuid: str) -> list[QueuedCommit]:
        # A reservation has no body: what its writer has staged is protected by its heartbeat or its age.
        sql = (
            f"SELECT ticket, commit_id, version, body, wake, place FROM {QUEUE} "  # noqa: S608
            f"WHERE table_uuid = ? AND version <> {RESERVATION} AND (state = 0 AND deadline > {self._engine.clock()} "
            f"OR state IN ({int(QueueState.RETURNED)}, {int(QueueState.UNKNOWN)}))"
        )
        rows = self._engine.read(lambda db: db.execute(sql, (table_uuid,)).fetchall())
        return [
            QueuedCommit(key, table_uuid, commit_id, version, bytes(body), where, place)
            for key, commit_id, version, body, where, place in rows
        ]

    def settle(self, db: Db, queue_update: QueueUpdate) -> None:
        """Part of a swap's transaction. Raises QueueConflict if a commit of the group no longer waits (rule P1)."""
        if queue_update.committed and self._committed(db, queue_update.committed) != len(queue_update.committed):
            raise QueueConflict
        if queue_update.returned:
            sql = f"UPDATE {QUEUE} SET state = ? WHERE ticket IN ({_marks(queue_update.returned)}) AND state = 0"  # noqa: S608
            db.execute(sql, (int(QueueState.RETURNED), *queue_update.returned))
        self._settled += 1
        if self._settled % _CLEAN_EVERY == 0:
            self._forget_old(db)
        self.notifier.notify_at_commit(db, queue_update.to_notify, queue_update.committed)

    def settled(self, queue_update: QueueUpdate) -> None:
        """After that transaction has committed."""
        self.notifier.notify_after_commit(queue_update.to_notify)

    def _committed(self, db: Db, outcomes: Mapping[str, bytes]) -> int:
        values = ", ".join([f"(?, {self._engine.bytes_value})"] * len(outcomes))
        # Both databases name the columns so. (A common table expression could name them, but hides SQLite's row count.)
        sql = (
            f"UPDATE {QUEUE} SET state = {int(QueueState.COMMITTED)}, outcome = column2, "  # noqa: S608
            f"body = {self._engine.no_bytes} "
            f"FROM (VALUES {values}) AS outcomes "
            f"WHERE ticket = column1 AND state = 0 AND deadline > {self._engine.clock()}"
        )
        return db.execute(sql, [value for pair in outcomes.items() for value in pair]).rowcount

    def _forget_old(self, db: Db) -> None:
        # Waiting rows as well: no leader commits one after its deadline, and its writer gave up long ago.
        for waiting in ("state <> 0", "state = 0"):
            sql = f"DELETE FROM {QUEUE} WHERE {waiting} AND deadline < {self._engine.clock()} - ?"  # noqa: S608
            db.execute(sql, (KEPT_MS,))

    # Transactions that need not survive a crash of the machine: no writer waits after one

    def _change(self, sql: str, values: Sequence[Any]) -> int:
        return self._repeated(lambda: self._engine.write_one(sql, values)) or 0

    def _repeated(self, write: Callable[[], T]) -> T | None:
        for _ in range(_TRIES):
            try:
                return write()
            except LostRace:
                continue
            except DuplicateRow:
                return None
        raise CatalogUnavailable(f"Gave up after {_TRIES} serialization conflicts in the queue", advice="Call again")

    def _change_or_unavailable(self, sql: str, values: Sequence[Any]) -> int:
        try:
            return self._change(sql, values)
        except OutcomeUnknown as unknown:
            raise CatalogUnavailable("The queue of the catalog did not answer", evidence=str(unknown)) from unknown


def record_of(table_uuid: str, commit_id: str, outcome: bytes) -> CommitRecord:
    """The record of a commit from its row in the queue, which does not say which operation it was."""
    snapshot_id, sequence_number, *_ = orjson.loads(outcome)
    return CommitRecord(table_uuid, commit_id, "", snapshot_id, sequence_number, {"changed": 1})


def _marks(keys: Sequence[Any]) -> str:
    return ", ".join("?" * len(keys))
