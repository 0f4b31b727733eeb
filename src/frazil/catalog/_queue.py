"""The queue of tickets in a SQL catalog: one row each, in the same database as the pointer (rules P1 to P3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import orjson

from frazil.catalog._db import Db, DuplicateRow, Engine, LostRace, OutcomeUnknown
from frazil.catalog.base import (
    RESERVATION,
    CommitRecord,
    Outcome,
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
    # Of those that do not wait any more: a group of them gets there at once, and who comes into the queue pays nothing.
    f"CREATE INDEX IF NOT EXISTS {QUEUE}_settled ON {QUEUE} (deadline) WHERE state <> 0",
)
KEPT_MS = 3_600_000
"""How long the fate of a ticket is kept for a writer who was stopped or cut off meanwhile."""
T = TypeVar("T")
_CLEAN_EVERY = 200
_TRIES = 20


class QueueConflict(Exception):
    """Somebody else decided about a ticket of the group. The transaction is to be rolled back."""


class SqlQueue:
    """A CommitQueue over one table. Truth is what a row says, or what was sent when the row was changed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._bell = engine.bell()
        self._settled = 0

    @property
    def queue_not_empty(self) -> str:
        """An SQL expression, true where tickets wait."""
        return f"EXISTS (SELECT 1 FROM {QUEUE} WHERE state = 0 AND deadline > {self._engine.clock()})"  # noqa: S608

    @property
    def join_committed(self) -> str:
        """Joins, as q, the ticket of a committed operation by its table and its commit id."""
        return f" LEFT JOIN {QUEUE} AS q ON q.table_uuid = ? AND q.ticket = ? AND q.state = {int(QueueState.COMMITTED)}"

    # Writers

    def put(self, ticket: QueuedCommit, lives_ms: int) -> bool:
        try:
            return self._insert(ticket, QueueState.WAITING, lives_ms)
        except OutcomeUnknown as unknown:
            # It may be there, or still arrive: what is put under the same key first keeps it out for good. Where it is
            # there, somebody may have committed it already, which its writer is to find out from the ticket (rule P9).
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
                "Nobody can say whether the operation reached the queue of the catalog",
                commit_id=ticket.commit_id,
                evidence=str(error),
            ) from error

    def _insert(self, ticket: QueuedCommit, state: QueueState, lives_ms: int) -> bool:
        clock = self._engine.clock()
        sql = (
            f"INSERT INTO {QUEUE} (ticket, place, table_uuid, commit_id, version, state, enqueued_at, deadline, tries, "  # noqa: S608
            f"wake, body, outcome) VALUES (?, ?, ?, ?, ?, ?, {clock}, {clock} + ?, 0, ?, ?, ?) ON CONFLICT DO NOTHING "
            # A statement sees what was there before it. In parts of it SQLite sees the new row, too.
            f"RETURNING EXISTS (SELECT 1 FROM {QUEUE} AS o WHERE o.place = ? AND o.state = 0 AND o.deadline > {clock} "
            "AND o.ticket <> ?)"
        )
        whose = (ticket.key, ticket.place, ticket.table_uuid, ticket.commit_id, ticket.version)
        values = (*whose, int(state), lives_ms, ticket.wake, ticket.body, b"", ticket.place, ticket.key)
        return bool(self._repeated(lambda: self._engine.write_value(sql, values)))

    def status(self, key: str) -> QueueStatus | None:
        if (news := self._bell.news(key)) is not None:
            return QueueStatus(QueueState.COMMITTED, news)
        sql = f"SELECT state, outcome FROM {QUEUE} WHERE ticket = ?"  # noqa: S608
        row = self._engine.read(lambda db: db.execute(sql, (key,)).fetchone())
        return None if row is None else QueueStatus(QueueState(row[0]), bytes(row[1]))

    def withdraw(self, key: str) -> QueueStatus | None:
        sql = f"UPDATE {QUEUE} SET state = ? WHERE ticket = ? AND state = ?"  # noqa: S608
        return self._taken_back(key, sql, (int(QueueState.WITHDRAWN), key, int(QueueState.WAITING)))

    def fence(self, key: str) -> QueueStatus | None:
        clock, empty = self._engine.clock(), self._engine.no_bytes
        # One that is still on its way finds its place taken when it comes.
        sql = (
            f"INSERT INTO {QUEUE} (ticket, place, table_uuid, commit_id, version, state, enqueued_at, deadline, tries, "  # noqa: S608
            f"wake, body, outcome) VALUES (?, '', '', '', 0, ?, {clock}, {clock}, 0, '', {empty}, {empty}) "
            f"ON CONFLICT (ticket) DO UPDATE SET state = excluded.state WHERE {QUEUE}.state = ?"
        )
        return self._taken_back(key, sql, (key, int(QueueState.WITHDRAWN), int(QueueState.WAITING)))

    def _taken_back(self, key: str, sql: str, values: Sequence[Any]) -> QueueStatus | None:
        for _ in range(_TRIES):
            try:
                # Durable, unlike the rest: its files are deleted next, so no crash of the database may undo it.
                self._engine.write(lambda db: db.execute(sql, values).rowcount)
                return self.status(key)
            except (LostRace, OutcomeUnknown):
                # Asked again, it is the same; what the row says afterwards is the truth either way.
                continue
        raise CatalogUnavailable("The queue of the catalog did not answer", advice="Call again")

    def extend(self, key: str, lives_ms: int) -> None:
        sql = f"UPDATE {QUEUE} SET deadline = {self._engine.clock()} + ? WHERE ticket = ? AND state = ?"  # noqa: S608
        self._change_or_unavailable(sql, (lives_ms, key, int(QueueState.WAITING)))

    def address(self) -> str:
        return self._bell.address()

    def sleep(self, key: str, seconds: float) -> None:
        self._bell.sleep(key, seconds)

    def wake(self, sleepers: Sequence[tuple[str, str]]) -> None:
        self._bell.ring(sleepers)

    # Combiners

    def waiting(self, place: str, most: int) -> list[QueueEntry]:
        clock = self._engine.clock()
        sql = (
            f"SELECT ticket, table_uuid, commit_id, version, body, wake, {clock} - enqueued_at, tries FROM {QUEUE} "  # noqa: S608
            f"WHERE place = ? AND state = 0 AND version <> {RESERVATION} AND deadline > {clock} "
            f"ORDER BY enqueued_at, ticket LIMIT ?"
        )
        rows = self._engine.read(lambda db: db.execute(sql, (place, most)).fetchall())
        return [
            QueueEntry(QueuedCommit(key, table_uuid, commit_id, version, bytes(body), wake, place), int(age), tries)
            for key, table_uuid, commit_id, version, body, wake, age, tries in rows
        ]

    def count(self, place: str) -> int:
        sql = f"SELECT count(*) FROM {QUEUE} WHERE place = ? AND state = 0 AND version <> {RESERVATION}"  # noqa: S608
        return int(self._engine.read(lambda db: db.execute(sql, (place,)).fetchone())[0])

    def first(self, place: str) -> QueueEntry | None:
        clock = self._engine.clock()
        sql = (
            f"SELECT ticket, table_uuid, commit_id, version, wake, {clock} - enqueued_at, tries FROM {QUEUE} "  # noqa: S608
            f"WHERE place = ? AND state = 0 AND deadline > {clock} "
            f"ORDER BY version <> {RESERVATION}, enqueued_at, ticket LIMIT 1"
        )
        row = self._engine.read(lambda db: db.execute(sql, (place,)).fetchone())
        if row is None:
            return None
        key, table_uuid, commit_id, version, wake, age, tries = row
        return QueueEntry(QueuedCommit(key, table_uuid, commit_id, version, b"", wake, place), int(age), tries)

    def tried(self, keys: Sequence[str]) -> None:
        sql = f"UPDATE {QUEUE} SET tries = tries + 1 WHERE ticket IN ({_marks(keys)})"  # noqa: S608
        self._change_or_unavailable(sql, tuple(keys))

    def claim(self, queue_update: QueueUpdate) -> bool:  # noqa: ARG002 - the swap's transaction decides
        return True

    def conclude(self, queue_update: QueueUpdate, outcome: Outcome) -> None:
        """The swap's transaction has done it all."""

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
        self._bell.ring_at_commit(db, queue_update.wake, queue_update.committed)

    def settled(self, queue_update: QueueUpdate) -> None:
        """After its commit."""
        self._bell.committed(queue_update.wake)

    def _committed(self, db: Db, outcomes: Mapping[str, bytes]) -> int:
        values = ", ".join([f"(?, {self._engine.bytes_value})"] * len(outcomes))
        # Both databases name the columns so. (A common table expression could name them, but hides SQLite's row count.)
        sql = (
            f"UPDATE {QUEUE} SET state = {int(QueueState.COMMITTED)}, outcome = column2, "  # noqa: S608
            f"body = {self._engine.no_bytes} "
            f"FROM (VALUES {values}) AS told "
            f"WHERE ticket = column1 AND state = 0 AND deadline > {self._engine.clock()}"
        )
        return db.execute(sql, [value for pair in outcomes.items() for value in pair]).rowcount

    def _forget_old(self, db: Db) -> None:
        # Waiting ones as well: no leader commits a ticket after its deadline, and its writer gave up long ago.
        for waiting in ("state <> 0", "state = 0"):
            sql = f"DELETE FROM {QUEUE} WHERE {waiting} AND deadline < {self._engine.clock()} - ?"  # noqa: S608
            db.execute(sql, (KEPT_MS,))

    # Transactions that need not outlive a crash of the machine: nobody is left to wait then

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
        raise CatalogUnavailable("Other writers got in between again and again", advice="Call again")

    def _change_or_unavailable(self, sql: str, values: Sequence[Any]) -> int:
        try:
            return self._change(sql, values)
        except OutcomeUnknown as unknown:
            raise CatalogUnavailable("The queue of the catalog did not answer", evidence=str(unknown)) from unknown


def record_of(table_uuid: str, commit_id: str, outcome: bytes) -> CommitRecord:
    """What a ticket's fate tells of a commit; which operation it was, nobody has kept."""
    snapshot_id, sequence_number, *_ = orjson.loads(outcome)
    return CommitRecord(table_uuid, commit_id, "", snapshot_id, sequence_number, {"changed": 1})


def _marks(keys: Sequence[Any]) -> str:
    return ", ".join("?" * len(keys))
