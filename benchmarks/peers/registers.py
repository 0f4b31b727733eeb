"""A table of registers in each system: read a key and put a new value there, as the system's users do it by default.

Where the read and the write are one statement (MERGE), the statement keeps the old value in the column ``prev``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from frazil.verify.checker import Level
from frazil.verify.checker.model import WriteKind
from peers.contend import CATALOG, ducklake

TABLE = "bench.registers"
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64()), pa.field("prev", pa.int64())]
)

Values = tuple[int, ...]
Row = tuple[int, int, int | None]
"""A key, its value, and the value that was there before."""
Steps = Iterator[Values | None]
"""First what is read (None: the statement that writes reads, and tells in ``prev``), then the write and its commit."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a side's table is."""

    system: str
    uri: str
    """The catalog's database as Frazil names it; empty: the system has none."""
    folder: str

    @property
    def warehouse(self) -> str:
        return f"{self.folder}/warehouse"


class Registers(Protocol):
    """One client of one system."""

    claims: ClassVar[Level]
    """The isolation level that the system promises by default."""
    told_by: ClassVar[str]
    """Where it promises that."""
    insert: ClassVar[WriteKind] = "add"
    """What a write is taken for that found no row of its key: ``put`` promises that it stays the only one, ``add`` does
    not. For a peer it is the weaker one, whatever its verb is called.
    """
    is_keyed: ClassVar[bool] = True
    """Its verb writes by key; otherwise two inserts of a key write two things, and snapshot isolation lets them."""
    clients_are_threads: ClassVar[bool] = False

    def create(self) -> None: ...

    def open(self) -> None:
        """Called by each client once."""
        ...

    def steps(self, key: int, value: int) -> Steps: ...

    def rows(self) -> list[tuple[int, int]]:
        """Every key with its value, as of now."""
        ...

    def refused(self, error: Exception) -> bool:
        """The error says that nothing was committed."""
        ...

    def versions(self) -> Iterator[tuple[int, list[Row]]]:
        """The table at each point of its own history, oldest first."""
        ...

    def close(self) -> None: ...


def one_row(key: int, value: int, seen: Values = ()) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "v": value, "prev": seen[0] if seen else None}], schema=SCHEMA)


def values_of(table: Any) -> Values:
    return tuple(sorted(table.column("v").to_pylist()))


def pairs_of(table: Any) -> list[tuple[int, int]]:
    return list(zip(table.column("id").to_pylist(), table.column("v").to_pylist(), strict=True))


def rows_of(table: Any) -> list[Row]:
    return list(zip(*(table.column(name).to_pylist() for name in SCHEMA.names), strict=True))


class Frazil(Registers):
    claims: ClassVar = Level.SERIALIZABLE
    told_by: ClassVar = "the default of lake.transaction()"
    insert: ClassVar[WriteKind] = "put"

    def __init__(self, place: Place) -> None:
        self.place = place
        self._lake: Any = None

    def _connect(self) -> Any:
        import frazil

        return frazil.connect(self.place.uri, warehouse=f"file://{self.place.warehouse}", name=CATALOG)

    def create(self) -> None:
        with self._connect() as lake:
            lake.create_namespace("bench")
            lake.create_table(TABLE, SCHEMA, keys=["id"])

    def open(self) -> None:
        self._lake = self._connect()

    def steps(self, key: int, value: int) -> Steps:
        with self._lake.transaction() as transaction:
            table = transaction.table(TABLE)
            seen = values_of(table.scan(f"id = {key}").to_arrow())
            yield seen
            table.upsert(one_row(key, value, seen))

    def rows(self) -> list[tuple[int, int]]:
        return pairs_of(self._lake.table(TABLE).scan().to_arrow())

    def refused(self, error: Exception) -> bool:
        from frazil.errors import CommitFailed

        return isinstance(error, CommitFailed)

    def versions(self) -> Iterator[tuple[int, list[Row]]]:
        table = self._lake.table(TABLE)
        for entry in table.history():
            yield entry.snapshot_id, rows_of(table.scan(snapshot=entry.snapshot_id).to_arrow())

    def close(self) -> None:
        self._lake.close()


class PyIceberg(Registers):
    claims: ClassVar = Level.SERIALIZABLE
    told_by: ClassVar = "the default of write.update.isolation-level"

    def __init__(self, place: Place) -> None:
        self.place = place
        self._catalog: Any = None

    def _connect(self, **more: str) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        uri = self.place.uri.replace("postgresql://", "postgresql+psycopg2://")
        if uri.startswith("sqlite"):
            # SQLite's usual five seconds would be failures of another kind.
            uri += "?timeout=60"
        return SqlCatalog(CATALOG, uri=uri, warehouse=f"file://{self.place.warehouse}", **more)

    def create(self) -> None:
        catalog = self._connect()
        catalog.create_namespace("bench")
        # All metadata files stay listed, because they say which snapshots were ever the newest one.
        catalog.create_table(TABLE, SCHEMA, properties={"write.metadata.previous-versions-max": "1000000"})
        catalog.close()

    def open(self) -> None:
        # The catalog's tables are there: creating them from many processes at once would be another race.
        self._catalog = self._connect(init_catalog_tables="false")

    def load(self) -> Any:
        return self._catalog.load_table(TABLE)

    def steps(self, key: int, value: int) -> Steps:
        table = self.load()
        seen = values_of(table.scan(f"id = {key}").to_arrow())
        yield seen
        table.upsert(one_row(key, value, seen), join_cols=["id"])

    def rows(self) -> list[tuple[int, int]]:
        return pairs_of(self.load().scan().to_arrow())

    def refused(self, error: Exception) -> bool:
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        if isinstance(error, CommitFailedException | ValidationException):
            return True
        # Found before anything is written: an upsert does not work on a key that has two rows.
        return isinstance(error, ValueError) and "duplicate rows" in str(error)

    def versions(self) -> Iterator[tuple[int, list[Row]]]:
        table = self.load()
        for snapshot in self._heads(table):
            yield snapshot, rows_of(table.scan(snapshot_id=snapshot).to_arrow())

    def _heads(self, table: Any) -> list[int]:
        """The snapshots that anybody could see: an upsert makes two, of which the first is never the newest."""
        files = [entry.metadata_file for entry in table.metadata.metadata_log] + [table.metadata_location]
        found: dict[int, None] = {}
        for file in files:
            with open(file.removeprefix("file://")) as body:
                head = json.load(body).get("current-snapshot-id")
            if head not in (None, -1):
                found[head] = None
        return list(found)

    def close(self) -> None:
        self._catalog.close()


class DeltaRs(Registers):
    claims: ClassVar = Level.SERIALIZABLE
    told_by: ClassVar = "delta.isolationLevel, Serializable unless set"

    def __init__(self, place: Place) -> None:
        self.place = place

    def _table(self, version: int | None = None) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.place.warehouse, version=version)

    def create(self) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(self.place.warehouse, SCHEMA)

    def open(self) -> None: ...

    def steps(self, key: int, value: int) -> Steps:
        yield None
        merge = self._table().merge(one_row(key, value), "t.id = s.id", source_alias="s", target_alias="t")
        update = merge.when_matched_update({"v": "s.v", "prev": "t.v"})
        update.when_not_matched_insert({"id": "s.id", "v": "s.v", "prev": "s.prev"}).execute()

    def rows(self) -> list[tuple[int, int]]:
        return pairs_of(self._table().to_pyarrow_table())

    def refused(self, error: Exception) -> bool:
        from deltalake.exceptions import CommitFailedError

        return isinstance(error, CommitFailedError)

    def versions(self) -> Iterator[tuple[int, list[Row]]]:
        for version in range(self._table().version() + 1):
            yield version, rows_of(self._table(version).to_pyarrow_table())

    def close(self) -> None: ...


class DuckLake(Registers):
    claims: ClassVar = Level.SNAPSHOT_ISOLATION
    told_by: ClassVar = "its manual's page on transactions"
    is_keyed: ClassVar = False

    def __init__(self, place: Place) -> None:
        self.place = place
        self._connection: Any = None

    def _connect(self, *, install: bool = False) -> Any:
        return ducklake(self.place.folder, self.place.uri, f"data_path '{self.place.warehouse}'", install=install)

    def create(self) -> None:
        connection = self._connect(install=True)
        connection.execute("create table lake.registers (id bigint, v bigint, prev bigint)")
        connection.close()

    def open(self) -> None:
        self._connection = self._connect()

    def steps(self, key: int, value: int) -> Steps:
        run = self._connection.execute
        run("begin")
        try:
            seen = tuple(sorted(v for (v,) in run("select v from lake.registers where id = ?", [key]).fetchall()))
            yield seen
            if seen:
                run("update lake.registers set v = ?, prev = v where id = ?", [value, key])
            else:
                run("insert into lake.registers values (?, ?, null)", [key, value])
            run("commit")
        except BaseException:
            with contextlib.suppress(Exception):
                # A commit that failed has ended its transaction already.
                run("rollback")
            raise

    def rows(self) -> list[tuple[int, int]]:
        return list(self._connection.execute("select id, v from lake.registers").fetchall())

    def refused(self, error: Exception) -> bool:
        import duckdb

        return isinstance(error, duckdb.TransactionException)

    def versions(self) -> Iterator[tuple[int, list[Row]]]:
        run = self._connection.execute
        changed = run(
            "select snapshot_id from ducklake_snapshots('lake') where schema_version = "
            "(select max(schema_version) from ducklake_snapshots('lake')) order by snapshot_id"
        ).fetchall()
        for (version,) in changed:
            yield version, run(f"select id, v, prev from lake.registers at (version => {version})").fetchall()

    def close(self) -> None:
        self._connection.close()


def system_of(place: Place) -> Registers:
    from peers.registers_spark import IcebergJava

    systems: dict[str, type[Frazil | PyIceberg | DeltaRs | DuckLake | IcebergJava]] = {
        "frazil": Frazil,
        "pyiceberg": PyIceberg,
        "delta-rs": DeltaRs,
        "ducklake": DuckLake,
        "iceberg-java": IcebergJava,
    }
    return systems[place.system](place)
