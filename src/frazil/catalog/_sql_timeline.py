"""The actions of table services, as the SQL catalogs keep them (rule P44)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from frazil.catalog._db import Database, Db, DuplicateRow, resend
from frazil.catalog.base import ActionChange
from frazil.model import ActionState, TimelineEntry

TIMELINE = "frazil_timeline"
ACTIONS_KEPT = 10_000
"""Actions of a catalog; older ones are deleted."""
ACTIONS_KEPT_MS = 30 * 24 * 60 * 60 * 1000
_TRIMMED_AT_ONCE = 100
# The numbers grow with the actions, so that the oldest ones are found by the primary key.
CREATE = f"""CREATE TABLE IF NOT EXISTS {TIMELINE} (
    number {{row_number_type}}, action_id VARCHAR(64) NOT NULL UNIQUE, table_uuid VARCHAR(64) NOT NULL,
    service VARCHAR(64) NOT NULL, state VARCHAR(16) NOT NULL, owner VARCHAR(64) NOT NULL, app VARCHAR(255) NOT NULL,
    host VARCHAR(255) NOT NULL, pid BIGINT NOT NULL, plan TEXT NOT NULL, done BIGINT NOT NULL, total BIGINT NOT NULL,
    detail TEXT NOT NULL, outcome TEXT NOT NULL, requested_at BIGINT NOT NULL, started_at BIGINT,
    heartbeat_at BIGINT NOT NULL, completed_at BIGINT)"""
_COLUMNS = (
    "action_id, table_uuid, service, state, owner, app, host, pid, plan, done, total, detail, outcome, "
    "requested_at, started_at, heartbeat_at, completed_at"
)
_BEYOND = f"DELETE FROM {TIMELINE} WHERE number <= (SELECT MAX(number) FROM {TIMELINE}) - ?"  # noqa: S608
_NOT_OVER = f"state IN ('{ActionState.REQUESTED}', '{ActionState.INFLIGHT}')"


class SqlTimeline:
    """Every change of a state is one guarded statement, by the database's clock."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine = database.engine

    def request(self, action: TimelineEntry) -> None:
        self._database.check_writable()

        def send(again: bool) -> None:
            try:
                self._engine.write(lambda db: self._insert(db, action), durable=False)
            except DuplicateRow:
                if not again:
                    raise

        resend(send, f"the action {action.action_id} was requested")

    def _insert(self, db: Db, action: TimelineEntry) -> None:
        clock = self._engine.clock()
        about = (action.action_id, action.table_uuid, action.service, str(ActionState.REQUESTED))
        owner = (action.owner, action.app, action.host, action.pid)
        db.execute(
            f"INSERT INTO {TIMELINE} ({_COLUMNS}) VALUES ({', '.join('?' * 13)}, {clock}, NULL, {clock}, NULL)",  # noqa: S608
            (*about, *owner, _text(action.plan), action.done, action.total, _text(action.detail), "{}"),
        )
        db.execute(_BEYOND, (ACTIONS_KEPT,))
        oldest = f"SELECT number FROM {TIMELINE} ORDER BY number LIMIT {_TRIMMED_AT_ONCE}"  # noqa: S608
        db.execute(
            f"DELETE FROM {TIMELINE} WHERE number IN ({oldest}) AND heartbeat_at < {clock} - ?",  # noqa: S608
            (ACTIONS_KEPT_MS,),
        )

    def advance(self, action_id: str, owner: str, change: ActionChange) -> bool:
        self._database.check_writable()
        clock = self._engine.clock()
        sets, values = [f"state = ?, heartbeat_at = {clock}"], [str(change.state)]
        known: dict[str, Any] = {"done": change.done, "total": change.total}
        texts = {"plan": change.plan, "detail": change.detail, "outcome": change.outcome}
        known |= {name: None if value is None else _text(value) for name, value in texts.items()}
        for name, value in known.items():
            if value is not None:
                sets.append(f"{name} = ?")
                values.append(value)
        if change.state is ActionState.INFLIGHT:
            sets.append(f"started_at = COALESCE(started_at, {clock})")
        elif change.state is not ActionState.REQUESTED:
            sets.append(f"completed_at = {clock}")
        sql = f"UPDATE {TIMELINE} SET {', '.join(sets)} WHERE action_id = ? AND owner = ? AND {_NOT_OVER}"  # noqa: S608
        values += [action_id, owner]
        if change.heartbeat_ms is not None:
            sql += " AND heartbeat_at = ?"
            values.append(change.heartbeat_ms)  # type: ignore[arg-type]

        def send(again: bool) -> bool:
            if self._engine.write_one(sql, values) == 1:
                return True
            return again and self._state(action_id, owner) == change.state

        return resend(send, f"the action {action_id} became {change.state}")

    def _state(self, action_id: str, owner: str) -> str | None:
        sql = f"SELECT state FROM {TIMELINE} WHERE action_id = ? AND owner = ?"  # noqa: S608
        row = self._engine.read(lambda db: db.execute(sql, (action_id, owner)).fetchone())
        return None if row is None else str(row[0])

    def silent(self, table_uuid: str, silent_ms: int) -> list[TimelineEntry]:
        where = f"table_uuid = ? AND {_NOT_OVER} AND heartbeat_at < {self._engine.clock()} - ?"
        return self._entries(where, "number", (table_uuid, silent_ms))

    def find(self, table_uuid: str, most: int) -> list[TimelineEntry]:
        return self._entries("table_uuid = ?", "number DESC", (table_uuid,), most)

    def _entries(self, where: str, order: str, values: tuple[object, ...], most: int = -1) -> list[TimelineEntry]:
        sql = f"SELECT {_COLUMNS} FROM {TIMELINE} WHERE {where} ORDER BY {order}"  # noqa: S608
        if most >= 0:
            sql, values = f"{sql} LIMIT ?", (*values, most)
        return [_entry(row) for row in self._engine.read(lambda db: db.execute(sql, values).fetchall())]


def _text(value: Mapping[str, Any]) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _entry(row: tuple[Any, ...]) -> TimelineEntry:
    action_id, table_uuid, service, state, owner, app, host, pid, plan, done, total, detail, outcome, *times = row
    texts = (orjson.loads(plan), done, total, orjson.loads(detail), orjson.loads(outcome))
    return TimelineEntry(action_id, table_uuid, service, ActionState(state), owner, app, host, pid, *texts, *times)
