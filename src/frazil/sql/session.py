"""The lake with the Spark session that was given for one statement."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from frazil.catalog.base import LakeCatalog
from frazil.errors import NoSuchTable, Unsupported
from frazil.model import Commit, Ident
from frazil.on_spark.session import Session, active, checked
from frazil.sql.scope import Alone, Reader, Scope, Writing
from frazil.table.handle import TableHandle
from frazil.table.table import Table
from frazil.transaction import LakeSnapshot

Row = dict[str, Any]
_ALONE = Alone()
_INSTEAD = {
    "snapshots": ".history()",
    "history": ".history()",
    "metadata_log_entries": ".history()",
    "files": ".files()",
    "data_files": ".files()",
    "partitions": ".partitions()",
    "refs": ".refs",
    "changes": ".changes(since)",
}
"""Iceberg's metadata tables, and the call that gives the same."""
_WITHOUT_CALL = frozenset(
    {"delete_files", "entries", "manifests", "position_deletes", "all_data_files", "all_delete_files", "all_files"}
    | {"all_entries", "all_manifests"}
)


class LakeLike(Protocol):
    """What SQL needs of a lake."""

    spark: Any

    @property
    def catalog(self) -> LakeCatalog: ...

    def create_namespace(
        self, name: str | tuple[str, ...], properties: Mapping[str, str] | None = None, *, exists_ok: bool = False
    ) -> None: ...

    def namespaces(self) -> list[str]: ...

    def drop_namespace(self, name: str | tuple[str, ...]) -> None: ...

    def tables(self, namespace: str | tuple[str, ...] | None = None) -> list[str]: ...

    def exists(self, name: str | tuple[str, ...]) -> bool: ...

    def create_table(
        self,
        name: str | tuple[str, ...],
        schema: object = None,
        *,
        partition_by: Sequence[str] | None = (),
        properties: Mapping[str, str] | None = None,
        location: str | None = None,
        comment: str | None = None,
        exists_ok: bool = False,
        as_: object = None,
    ) -> Table: ...

    def drop_table(self, name: str | tuple[str, ...], *, purge: bool = False) -> None: ...

    def rename_table(self, old: str | tuple[str, ...], new: str | tuple[str, ...]) -> Table: ...


class _WithSession:
    """A lake with another session, for the tables opened through it."""

    def __init__(self, lake: LakeLike, spark: Session) -> None:
        self._lake = lake
        self.spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)


@dataclass(frozen=True, slots=True)
class Context:
    """A lake and the session given with the statement; None: the lake's own, and for queries the active one."""

    lake: LakeLike
    given: Session | None
    scope: Scope = _ALONE

    def session(self, what: str) -> Session:
        """The session that runs a query. Raises Unsupported when there is none."""
        found = self.session_or_none()
        if found is None:
            raise Unsupported(
                f"{what} needs a Spark session",
                advice="Pass one: lake.sql(…, spark=frazil.spark()), or connect(…, spark=frazil.spark())",
            )
        return found

    def session_or_none(self) -> Session | None:
        found = next((each for each in (self.given, self.lake.spark) if each is not None), None)
        return active() if found is None else checked(found)

    def table(self, parts: tuple[str, ...]) -> TableHandle:
        """Raises NoSuchTable."""
        try:
            return self.scope.table(self._bound(self.given), Ident.parse(parts))
        except NoSuchTable as error:
            refused = part_of_a_table(parts)
            if refused is None or not self.exists(parts[:-1]):
                raise
            raise refused from error

    def exists(self, name: tuple[str, ...]) -> bool:
        return self.scope.exists(self.lake, name)

    def tables(self, namespace: tuple[str, ...] | None = None) -> list[str]:
        return self.scope.tables(self.lake, namespace)

    def snapshot(self, session: Session, as_of: dt.datetime | str | int | None = None) -> LakeSnapshot:
        return LakeSnapshot(self._bound(session), as_of)

    def reader(self, session: Session) -> Reader:
        """What a query reads through: one instant of all tables."""
        return self.scope.reader(self._bound(session))

    def write(self, name: str | tuple[str, ...], session: Session | None, isolation: str, run: Writing) -> Commit:
        """Write what is read. Outside of a transaction it is one of its own, at this isolation."""
        return self.scope.write(self._bound(session), name, isolation, run)

    def _bound(self, session: Session | None) -> Any:
        return self.lake if session is None else cast(Any, _WithSession(self.lake, session))


def part_of_a_table(name: tuple[str, ...]) -> Unsupported | None:
    """The error for ``shop.orders.snapshots`` and ``shop.orders.branch_x``, if there is a table ``shop.orders``."""
    table, last = ".".join(name[:-1]), name[-1].lower()
    if len(name) < 3:
        return None
    for prefix, kind in (("branch_", "branch"), ("tag_", "tag")):
        if last.startswith(prefix):
            ref = name[-1][len(prefix) :]
            return Unsupported(
                f"lake.sql() does not name a {kind} as {'.'.join(name)}",
                advice=f"Read it with {table} VERSION AS OF '{ref}'"
                + (f', and write to it with the verbs of Python: branch="{ref}"' if kind == "branch" else ""),
            )
    if last not in _INSTEAD and last not in _WITHOUT_CALL:
        return None
    call = _INSTEAD.get(last)
    own = f"Call lake.table({table!r}){call}. " if call else ""
    return Unsupported(
        f"lake.sql() does not support Iceberg's metadata tables, such as {'.'.join(name)}",
        advice=f"{own}PyIceberg has all of them: lake.pyiceberg().load_table({table!r}).inspect",
    )
