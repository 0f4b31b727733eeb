"""What the SQL catalogs keep for services that delete files: the files noted, and where writers stage (rule P42)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from frazil.catalog._db import Database, Db, OutcomeUnknown
from frazil.catalog._sql_records import DROPPED
from frazil.catalog.base import FileKind, NotedFile, StagedPrefix
from frazil.errors import CatalogUnavailable

DELETIONS, STAGED = "frazil_deletions", "frazil_staged"
CREATE = {
    DELETIONS: f"""CREATE TABLE IF NOT EXISTS {DELETIONS} (
        table_uuid VARCHAR(64) NOT NULL, path VARCHAR(1000) NOT NULL, kind VARCHAR(32) NOT NULL,
        noted_at BIGINT NOT NULL, PRIMARY KEY (table_uuid, path))""",
    STAGED: f"""CREATE TABLE IF NOT EXISTS {STAGED} (
        writer VARCHAR(64) NOT NULL PRIMARY KEY, table_uuid VARCHAR(64) NOT NULL, prefix VARCHAR(1000) NOT NULL,
        since BIGINT NOT NULL, deadline BIGINT NOT NULL)""",
}
_LONGEST = 1000
"""Longer paths are left to orphan removal."""
_AT_ONCE = 1000


class SqlDeletions:
    """A DeletionLog. Notes are durable before anything is deleted; their removal may be undone by a crash."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine = database.engine

    def note(self, table_uuid: str, files: Sequence[NotedFile]) -> None:
        for chunk in _chunks(files):
            self._change(lambda db: self.insert(db, table_uuid, chunk))  # noqa: B023 - called at once

    def insert(self, db: Db, table_uuid: str, files: Sequence[NotedFile]) -> None:
        """Also part of a swap's transaction."""
        clock = self._engine.clock()
        for chunk in _chunks([each for each in files if len(each.path) <= _LONGEST]):
            rows = ", ".join([f"(?, ?, ?, {clock})"] * len(chunk))
            db.execute(
                f"INSERT INTO {DELETIONS} (table_uuid, path, kind, noted_at) VALUES {rows} ON CONFLICT DO NOTHING",  # noqa: S608
                [value for each in chunk for value in (table_uuid, each.path, str(each.kind))],
            )

    def noted(self, table_uuid: str, after: str, most: int) -> list[NotedFile]:
        sql = (
            f"SELECT path, kind, {self._engine.clock()} - noted_at FROM {DELETIONS} "  # noqa: S608
            "WHERE table_uuid = ? AND path > ? ORDER BY path LIMIT ?"
        )
        rows = self._engine.read(lambda db: db.execute(sql, (table_uuid, after, most)).fetchall())
        return [NotedFile(path, FileKind(kind), int(age)) for path, kind, age in rows]

    def among(self, table_uuid: str, paths: Sequence[str]) -> list[str]:
        found: list[str] = []
        for chunk in _chunks(paths):
            marks = ", ".join("?" * len(chunk))
            sql = f"SELECT path FROM {DELETIONS} WHERE table_uuid = ? AND path IN ({marks})"  # noqa: S608
            rows = self._engine.read(lambda db: db.execute(sql, (table_uuid, *chunk)).fetchall())  # noqa: B023
            found += [path for (path,) in rows]
        return found

    def remove(self, table_uuid: str, paths: Sequence[str]) -> None:
        self._delete(DELETIONS, "path", table_uuid, paths)

    def forget_lists(self, table_uuid: str, manifest_lists: Sequence[str]) -> None:
        self._delete(DROPPED, "manifest_list", table_uuid, manifest_lists)

    def _delete(self, table: str, column: str, table_uuid: str, values: Sequence[str]) -> None:
        for chunk in _chunks(values):
            sql = f"DELETE FROM {table} WHERE table_uuid = ? AND {column} IN ({', '.join('?' * len(chunk))})"  # noqa: S608
            self._change(lambda db: db.execute(sql, (table_uuid, *chunk)))  # noqa: B023 - called at once

    def _change(self, work: Callable[[Db], Any]) -> None:
        _repeatable(self._database, work)


class SqlStagedPrefixes:
    """StagedPrefixes. Not durable beyond a crash of the machine, which no writer outlives."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine = database.engine

    def register(self, key: str, table_uuid: str, prefix: str, running_ms: int, lives_ms: int) -> None:
        clock = self._engine.clock()
        sql = (
            f"INSERT INTO {STAGED} (writer, table_uuid, prefix, since, deadline) "  # noqa: S608
            f"VALUES (?, ?, ?, {clock} - ?, {clock} + ?) ON CONFLICT DO NOTHING"
        )

        def work(db: Db) -> None:
            db.execute(f"DELETE FROM {STAGED} WHERE deadline < {clock}")  # noqa: S608
            db.execute(sql, (key, table_uuid, prefix[:_LONGEST], running_ms, lives_ms))

        self._change(work)

    def extend(self, key: str, lives_ms: int) -> None:
        sql = f"UPDATE {STAGED} SET deadline = {self._engine.clock()} + ? WHERE writer = ?"  # noqa: S608
        self._change(lambda db: db.execute(sql, (lives_ms, key)))

    def release(self, key: str) -> None:
        self._change(lambda db: db.execute(f"DELETE FROM {STAGED} WHERE writer = ?", (key,)))  # noqa: S608

    def live(self, table_uuid: str) -> list[StagedPrefix]:
        sql = f"SELECT prefix, since FROM {STAGED} WHERE table_uuid = ? AND deadline > {self._engine.clock()}"  # noqa: S608
        return [
            StagedPrefix(prefix, int(since))
            for prefix, since in self._engine.read(lambda db: db.execute(sql, (table_uuid,)).fetchall())
        ]

    def _change(self, work: Callable[[Db], Any]) -> None:
        _repeatable(self._database, work)


def _repeatable(database: Database, work: Callable[[Db], Any]) -> None:
    """A change that may be made twice."""
    database.check_writable()
    cause = ""
    for _ in range(3):
        try:
            database.change(work)
        except OutcomeUnknown as unknown:
            cause = str(unknown)
        else:
            return
    raise CatalogUnavailable(f"{database.shown} did not answer", evidence=cause, advice="Call again")


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]
