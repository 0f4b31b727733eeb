"""Commits that met other writers or faults, as the SQL catalogs keep them for people (``frazil conflicts``)."""

from __future__ import annotations

from frazil.catalog._db import Database, Db
from frazil.catalog.base import AttemptsRecord
from frazil.errors import PermissionDenied

ATTEMPTS = "frazil_attempts"
ATTEMPTS_KEPT = 10_000
"""Records of a catalog; older ones are deleted."""
ATTEMPTS_KEPT_MS = 30 * 24 * 60 * 60 * 1000
_TRIMMED_AT_ONCE = 100
# The numbers grow with the records, so that the oldest ones are found by the primary key.
CREATE = f"""CREATE TABLE IF NOT EXISTS {ATTEMPTS} (
    number {{row_number_type}}, table_uuid VARCHAR(64) NOT NULL, recorded_at BIGINT NOT NULL,
    commit_id VARCHAR(1000) NOT NULL, app VARCHAR(255) NOT NULL, host VARCHAR(255) NOT NULL, verb VARCHAR(255) NOT NULL,
    outcome VARCHAR(32) NOT NULL, attempts INTEGER NOT NULL, lost INTEGER NOT NULL, faults INTEGER NOT NULL,
    redone INTEGER NOT NULL, elapsed_ms BIGINT NOT NULL, check_name VARCHAR(255), winner_app VARCHAR(255),
    winner_verb VARCHAR(255), winner_commit_id VARCHAR(1000), detail TEXT NOT NULL)"""
_COLUMNS = (
    "table_uuid, commit_id, app, host, verb, outcome, attempts, lost, faults, redone, elapsed_ms, check_name, "
    "winner_app, winner_verb, winner_commit_id, detail, recorded_at"
)
_VALUES = ", ".join("?" * _COLUMNS.count(","))
_FIND = f"SELECT {_COLUMNS} FROM {ATTEMPTS} WHERE table_uuid = ? ORDER BY number DESC LIMIT ?"  # noqa: S608
_BEYOND = f"DELETE FROM {ATTEMPTS} WHERE number <= (SELECT MAX(number) FROM {ATTEMPTS}) - ?"  # noqa: S608


class SqlAttempts:
    """Adds nothing any more once the database has refused it: no commit depends on the log."""

    def __init__(self, database: Database, *, takes_records: bool) -> None:
        self._database = database
        self._engine = database.engine
        self._takes_records = takes_records

    def add(self, record: AttemptsRecord) -> None:
        if not self._takes_records:
            return
        try:
            self._engine.write(lambda db: self._insert(db, record), durable=False)
        except PermissionDenied:
            self._takes_records = False
            raise

    def find(self, table_uuid: str, most: int) -> list[AttemptsRecord]:
        rows = self._engine.read(lambda db: db.execute(_FIND, (table_uuid, most)).fetchall())
        return [AttemptsRecord(*row) for row in rows]

    def _insert(self, db: Db, record: AttemptsRecord) -> None:
        clock = self._engine.clock()
        about = (record.table_uuid, record.commit_id, record.app, record.host, record.verb, record.outcome)
        counts = (record.attempts, record.lost, record.faults, record.redone, record.elapsed_ms)
        cause = (record.check, record.winner_app, record.winner_verb, record.winner_commit_id, record.detail)
        db.execute(
            f"INSERT INTO {ATTEMPTS} ({_COLUMNS}) VALUES ({_VALUES}, {clock})",  # noqa: S608
            (*about, *counts, *cause),
        )
        db.execute(_BEYOND, (ATTEMPTS_KEPT,))
        oldest = f"SELECT number FROM {ATTEMPTS} ORDER BY number LIMIT {_TRIMMED_AT_ONCE}"  # noqa: S608
        db.execute(
            f"DELETE FROM {ATTEMPTS} WHERE number IN ({oldest}) AND recorded_at < {clock} - ?",  # noqa: S608
            (ATTEMPTS_KEPT_MS,),
        )
