"""Parts of tables that services have taken for a time, as the SQL catalogs keep them (rule P44)."""

from __future__ import annotations

from frazil.catalog._db import Database, resend
from frazil.model import Lease

LEASES = "frazil_leases"
CREATE = f"""CREATE TABLE IF NOT EXISTS {LEASES} (
    table_uuid VARCHAR(64) NOT NULL, scope VARCHAR(255) NOT NULL, owner VARCHAR(64) NOT NULL,
    deadline BIGINT NOT NULL, PRIMARY KEY (table_uuid, scope))"""
_KEPT_MS = 24 * 60 * 60 * 1000
"""A lease that expired so long ago is deleted, whichever table it belongs to."""


class SqlLeases:
    """Every change is one guarded statement, by the database's clock."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine = database.engine

    def acquire(self, table_uuid: str, scope: str, owner: str, lives_ms: int) -> bool:
        clock = self._engine.clock()
        sql = (
            f"INSERT INTO {LEASES} AS l (table_uuid, scope, owner, deadline) VALUES (?, ?, ?, {clock} + ?) "  # noqa: S608
            "ON CONFLICT (table_uuid, scope) DO UPDATE SET owner = excluded.owner, deadline = excluded.deadline "
            f"WHERE l.owner = excluded.owner OR l.deadline <= {clock}"
        )
        # Sent twice, it extends what the first one took.
        return self._changed(sql, (table_uuid, scope, owner, lives_ms), f"the lease on {scope} was taken") == 1

    def extend(self, table_uuid: str, owner: str, lives_ms: int) -> int:
        clock = self._engine.clock()
        sql = f"UPDATE {LEASES} SET deadline = {clock} + ? WHERE table_uuid = ? AND owner = ? AND deadline > {clock}"  # noqa: S608
        return self._changed(sql, (lives_ms, table_uuid, owner), f"the leases on {table_uuid} were extended")

    def release(self, table_uuid: str, owner: str, scope: str | None = None) -> None:
        sql = f"DELETE FROM {LEASES} WHERE (table_uuid = ? AND owner = ?"  # noqa: S608
        values: tuple[object, ...] = (table_uuid, owner)
        if scope is not None:
            sql, values = f"{sql} AND scope = ?", (*values, scope)
        sql += f") OR deadline < {self._engine.clock()} - ?"
        self._changed(sql, (*values, _KEPT_MS), f"the leases on {table_uuid} were released")

    def held(self, table_uuid: str) -> list[Lease]:
        clock = self._engine.clock()
        sql = (
            f"SELECT scope, owner, deadline - {clock} FROM {LEASES} "  # noqa: S608
            f"WHERE table_uuid = ? AND deadline > {clock} ORDER BY scope"
        )
        rows = self._engine.read(lambda db: db.execute(sql, (table_uuid,)).fetchall())
        return [Lease(scope, owner, int(left)) for scope, owner, left in rows]

    def _changed(self, sql: str, values: tuple[object, ...], what: str) -> int:
        self._database.check_writable()
        return resend(lambda _again: self._engine.write_one(sql, values), what)
