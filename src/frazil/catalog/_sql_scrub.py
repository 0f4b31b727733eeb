"""Takes values of rows out of the tables that the SQL catalogs keep beside the pointer, and out of their files."""

from __future__ import annotations

from collections.abc import Mapping

from frazil.catalog._db import Database, Db


class SqlScrubber:
    """``tables``: name → the condition of the rows that nothing needs."""

    def __init__(self, database: Database, tables: Mapping[str, str]) -> None:
        self._database = database
        self._tables = tables

    def scrub(self, table_uuid: str) -> tuple[str, ...]:
        self._database.check_writable()

        def work(db: Db) -> None:
            for table, which in self._tables.items():
                db.execute(f"DELETE FROM {table} WHERE table_uuid = ? AND {which}", (table_uuid,))  # noqa: S608

        self._database.change(work)
        return self._database.engine.wipe(tuple(self._tables))
