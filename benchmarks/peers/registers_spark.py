"""The registers in Iceberg's own Spark runtime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import psycopg.conninfo

from frazil.on_spark import session
from frazil.verify.checker import Level
from interop import jars
from peers.registers import TABLE, Place, Registers, Row, Steps

CATALOG = "ice"
MERGE = """
merge into {table} t using (select cast({key} as bigint) as id, cast({value} as bigint) as v) s on t.id = s.id
when matched then update set t.v = s.v, t.prev = t.v
when not matched then insert (id, v, prev) values (s.id, s.v, null)
"""
REFUSALS = frozenset(
    f"org.apache.iceberg.exceptions.{name}" for name in ("CommitFailedException", "ValidationException")
)


class IcebergJava(Registers):
    """MERGE INTO, copy-on-write as by default. The clients are threads of one driver and share its session."""

    claims: ClassVar = Level.SERIALIZABLE
    told_by: ClassVar = "the default of write.merge.isolation-level"
    clients_are_threads: ClassVar = True

    _sessions: ClassVar[dict[str, Any]] = {}
    """By the folder of the place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.table = f"{CATALOG}.{TABLE}"

    @property
    def _spark(self) -> Any:
        return self._sessions[self.place.folder]

    def create(self) -> None:
        conf = {
            # On the driver's own class path, where JDBC looks for its drivers.
            "spark.driver.extraClassPath": os.pathsep.join(map(str, _jars())),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.driver.host": "localhost",
            "spark.driver.bindAddress": "localhost",
            "spark.sql.shuffle.partitions": "2",
            f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
            f"spark.sql.catalog.{CATALOG}.type": "jdbc",
            **{f"spark.sql.catalog.{CATALOG}.{key}": value for key, value in self._catalog().items()},
        }
        spark = session.local("registers", master="local[2]", memory="1g", conf=conf)
        spark.sparkContext.setLogLevel("OFF")
        self._sessions[self.place.folder] = spark
        spark.sql(f"create namespace {CATALOG}.bench")
        spark.sql(f"create table {self.table} (id bigint not null, v bigint, prev bigint) using iceberg")

    def _catalog(self) -> dict[str, str]:
        options = {"warehouse": f"file://{self.place.warehouse}", "jdbc.schema-version": "V1"}
        if self.place.uri.startswith("sqlite:///"):
            return {**options, "uri": self.place.uri.replace("sqlite:///", "jdbc:sqlite:")}
        parts = psycopg.conninfo.conninfo_to_dict(self.place.uri)
        address = f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}"
        return {**options, "uri": address, "jdbc.user": str(parts["user"]), "jdbc.password": str(parts["password"])}

    def open(self) -> None: ...

    def steps(self, key: int, value: int) -> Steps:
        yield None
        self._spark.sql(MERGE.format(table=self.table, key=key, value=value)).collect()

    def rows(self) -> list[tuple[int, int]]:
        return [(row.id, row.v) for row in self._spark.sql(f"select id, v from {self.table}").collect()]

    def refused(self, error: Exception) -> bool:
        cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        while cause is not None:
            if cause.getClass().getName() in REFUSALS:
                return True
            cause = cause.getCause()
        return False

    def versions(self) -> Iterator[tuple[int, list[Row]]]:
        found = self._spark.sql(f"select snapshot_id, parent_id from {self.table}.snapshots").collect()
        child = {row.parent_id: row.snapshot_id for row in found}
        version = child.get(None)
        while version is not None:
            rows = self._spark.sql(f"select id, v, prev from {self.table} version as of {version}").collect()
            yield version, [(row.id, row.v, row.prev) for row in rows]
            version = child.get(version)

    def close(self) -> None:
        spark = self._sessions.pop(self.place.folder, None)
        if spark is not None:
            spark.stop()


def _jars() -> list[Path]:
    """Iceberg's runtime with SQLite's driver, and Postgres's, which Iceberg's other program has."""
    return [*jars.fetched(jars.SPARK), *(jar for jar in jars.fetched(jars.CATALOG) if "postgresql" in jar.name)]
