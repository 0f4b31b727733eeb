"""Iceberg Java from Python: one JVM for a whole session, asked in JSON lines (``java/catalog/FrazilInterop.java``)."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg.conninfo
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from interop import jars


class JavaError(Exception):
    """An exception of Iceberg Java; ``kind`` is its class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class IcebergJava:
    process: subprocess.Popen[str]

    def ask(self, verb: str, **request: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"verb": verb, **request}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"Iceberg Java's process ended with code {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"], answer["message"])
        return answer["ok"]


@dataclass(frozen=True, slots=True)
class JavaCatalog:
    """Iceberg's JdbcCatalog on one database."""

    java: IcebergJava
    options: dict[str, Any]
    """Its name and properties, as the Java program takes them."""

    def namespaces(self) -> list[str]:
        return [str(n) for n in self.java.ask("namespaces", catalog=self.options)]

    def tables(self, namespace: str) -> list[str]:
        return [str(t) for t in self.java.ask("tables", catalog=self.options, namespace=namespace)]

    def create_namespace(self, namespace: str) -> None:
        self.java.ask("create_namespace", catalog=self.options, namespace=namespace)

    def create(
        self,
        name: str,
        schema: Schema,
        spec: PartitionSpec | None = None,
        *,
        version: int = 2,
        properties: dict[str, str] | None = None,
    ) -> JavaTable:
        request: dict[str, Any] = {
            "schema": json.loads(schema.model_dump_json()),
            "properties": {"format-version": str(version), **(properties or {})},
        }
        if spec is not None:
            request["spec"] = json.loads(spec.model_dump_json())
        self.java.ask("create", catalog=self.options, table=name, **request)
        return self.table(name)

    def table(self, name: str) -> JavaTable:
        return JavaTable(self, name)


@dataclass(frozen=True, slots=True)
class JavaTable:
    """A table's name: every call loads it afresh. Rows are canonical, filters are in Iceberg's JSON for expressions."""

    catalog: JavaCatalog
    name: str

    def _ask(self, verb: str, **request: Any) -> Any:
        return self.catalog.java.ask(verb, catalog=self.catalog.options, table=self.name, **request)

    def metadata(self) -> dict[str, Any]:
        return dict(self._ask("metadata"))

    def head(self) -> int:
        return int(self.metadata()["current_snapshot_id"])

    def rows(self, filter: object = None, snapshot: int | None = None) -> list[dict[str, Any]]:  # noqa: A002
        return list(self._ask("rows", filter=filter, snapshot=snapshot))

    def plan(self, filter: object = None, tag: str | None = None) -> list[dict[str, Any]]:  # noqa: A002
        return list(self._ask("plan", filter=filter, tag=tag))

    def appends_between(self, since: int, until: int | None = None) -> list[dict[str, Any]]:
        return list(self._ask("appends_between", since=since, until=until))

    def entries(self) -> list[dict[str, Any]]:
        return list(self._ask("entries"))

    def manifests(self) -> list[dict[str, Any]]:
        return list(self._ask("manifests"))

    def totals(self, snapshot: int | None = None) -> dict[str, Any]:
        """What a snapshot's live entries add up to, and each manifest's smallest sequence number, said and real."""
        return dict(self._ask("totals", snapshot=self.head() if snapshot is None else snapshot))

    def prepare(self, statement: str, **request: Any) -> Callable[[], None]:
        """A statement of ``Statements.java``, on the table as it is now; the answer commits it."""
        prepared = self._ask("prepare", statement=statement, **request)

        def commit() -> None:
            self.catalog.java.ask("commit", prepared=prepared)

        return commit

    def append(self, rows: Sequence[dict[str, Any]], fast: bool = False, branch: str | None = None) -> None:
        self._ask("append", rows=list(rows), fast=fast, branch=branch)

    def add_files(self, *paths: str) -> None:
        self._ask("add_files", paths=list(paths))

    def delete_positions(self, positions: dict[str, list[int]]) -> None:
        self._ask("delete_positions", positions=positions)

    def delete_equal(self, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
        self._ask("delete_equal", columns=list(columns), rows=list(rows))

    def update_schema(self, *steps: Sequence[object]) -> None:
        """``("add", column, type)``, ``("rename", old, new)``, ``("drop", column)``, ``("widen", column, type)``."""
        self._ask("update_schema", steps=steps)

    def update_spec(self, *steps: Sequence[object]) -> None:
        """``("add", transform, column[, width])``, ``("remove", field)``."""
        self._ask("update_spec", steps=steps)

    def set_properties(self, **properties: str) -> None:
        self._ask("set_properties", properties=properties)

    def tag(self, tag: str, snapshot: int) -> None:
        self._ask("tag", tag=tag, snapshot=snapshot)

    def expire_all_but_head(self) -> None:
        self._ask("expire")

    def commit_unless_conflict(self, kind: str, base: int, filter: object, rows: Sequence[dict[str, Any]]) -> None:  # noqa: A002
        """An ``overwrite`` or ``row_delta`` with Iceberg's checks; raises JavaError of kind ValidationException."""
        self._ask("commit_unless_conflict", kind=kind, base=base, filter=filter, rows=list(rows))


@contextlib.contextmanager
def start_iceberg_java(folder: Path) -> Iterator[IcebergJava]:
    program = jars.ready(jars.CATALOG)
    with (
        open(folder / "java.log", "wb") as errors,
        subprocess.Popen(
            program.command("serve"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin is not None
        try:
            yield IcebergJava(process)
        finally:
            process.stdin.close()


def sqlite_options(database: Path, warehouse: str, name: str = "frazil") -> dict[str, Any]:
    # The driver's default patience is 3 s, less than a busy machine needs.
    return {
        "name": name,
        "properties": {"uri": f"jdbc:sqlite:{database}?busy_timeout=60000", "warehouse": warehouse},
    }


def postgres_options(uri: str, warehouse: str, name: str = "frazil") -> dict[str, Any]:
    """From a libpq address, which must name a TCP host: JDBC knows no socket folders."""
    parts = psycopg.conninfo.conninfo_to_dict(uri)
    properties = {
        "uri": f"jdbc:postgresql://{parts['host']}:{parts.get('port') or 5432}/{parts['dbname']}",
        "warehouse": warehouse,
        "jdbc.user": str(parts["user"]),
        "jdbc.password": str(parts.get("password") or ""),
    }
    return {"name": name, "properties": properties}
