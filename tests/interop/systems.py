"""Frazil, PyIceberg and Iceberg Java, each made to run the same statements by its own means.

Frazil runs them in ``lake.transaction()``, PyIceberg in its ``Transaction``, and Iceberg Java through its core API with
the validations that Spark 4.1 asks for (``java/catalog/Statements.java``), each at its default isolation level,
serializable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Transaction
from pyiceberg.types import IcebergType, IntegerType, LongType, StringType

from frazil.errors import ConflictError
from frazil.lake import Lake
from interop.iceberg_java import JavaCatalog, JavaError
from interop.statements import MOR, Statement


class Cannot(Exception):
    """The system has no such statement."""


class System(Protocol):
    @property
    def name(self) -> str: ...

    def prepare(self, table: str, statement: Statement) -> Callable[[], object]:
        """Read what the statement reads and write what it writes; the answer commits. Raises Cannot."""

    def is_refusal(self, error: Exception) -> bool:
        """Whether the system said that the statement cannot be committed beside another one."""


@dataclass(frozen=True)
class FrazilSystem:
    lake: Lake
    name: str = "Frazil"

    def prepare(self, table: str, statement: Statement) -> Callable[[], object]:
        transaction = self.lake.transaction()
        run_in_frazil(transaction.table(table), statement)
        return transaction.commit

    def is_refusal(self, error: Exception) -> bool:
        return isinstance(error, ConflictError)


_RUN_IN_FRAZIL: dict[str, Callable[[Any, Statement], object]] = {
    "append": lambda table, s: table.append(list(s.rows), branch=s.branch),
    "delete": lambda table, s: table.delete(str(s.where), mode=s.mode, branch=s.branch),
    "delete files": lambda table, s: table.delete(str(s.where), branch=s.branch),
    "update": lambda table, s: table.update(_literals(s), str(s.where), mode=s.mode, branch=s.branch),
    "overwrite": lambda table, s: table.overwrite(list(s.rows), where=str(s.where), branch=s.branch),
    "replace partitions": lambda table, s: table.replace_partitions(list(s.rows), branch=s.branch),
    "upsert": lambda table, s: table.upsert(list(s.rows), mode=s.mode, branch=s.branch),
    "compact": lambda table, s: table.compact(branch=s.branch),
    "add column": lambda table, s: table.add_column(*s.column),
    "drop column": lambda table, s: table.drop_column(s.column[0]),
    "rename column": lambda table, s: table.rename_column(*s.column),
    "widen column": lambda table, s: table.widen_column(*s.column),
    "set partitioning": lambda table, s: table.set_partitioning(list(s.partitioning)),
    "set properties": lambda table, s: table.set_properties(s.properties),
    "create tag": lambda table, s: table.create_tag(s.tag),
}


def run_in_frazil(table: Any, statement: Statement) -> None:
    """On a table, or on a table of a transaction."""
    _RUN_IN_FRAZIL[statement.verb](table, statement)


def _literals(statement: Statement) -> dict[str, str]:
    return {column: f"'{value}'" for column, value in statement.set.items()}


@dataclass(frozen=True)
class PyIcebergSystem:
    catalog: SqlCatalog
    name: str = "PyIceberg"

    def prepare(self, table: str, statement: Statement) -> Callable[[], object]:
        if statement.mode == MOR or statement.verb in ("update", "compact"):
            raise Cannot(statement.verb)
        loaded = self.catalog.load_table(table)
        if statement.verb == "create tag":
            snapshot = loaded.current_snapshot()
            assert snapshot is not None
            return loaded.manage_snapshots().create_tag(snapshot.snapshot_id, statement.tag).commit
        transaction = loaded.transaction()
        if statement.verb.endswith("column"):
            _change_columns(transaction, statement)
        elif statement.verb == "set partitioning":
            with transaction.update_spec() as spec:
                for column in statement.partitioning:
                    spec.add_identity(column)
        elif statement.verb == "set properties":
            transaction.set_properties(dict(statement.properties))
        else:
            _change_rows(transaction, statement, loaded.schema().as_arrow())
        return transaction.commit_transaction

    def is_refusal(self, error: Exception) -> bool:
        # Besides its own two errors it raises ValueError for a sequence number that has been passed meanwhile.
        return type(error).__name__ in ("CommitFailedException", "ValidationException", "ValueError")


def _change_columns(transaction: Transaction, statement: Statement) -> None:
    name, word = statement.column
    types: dict[str, IcebergType] = {"int": IntegerType(), "long": LongType(), "string": StringType()}
    with transaction.update_schema(allow_incompatible_changes=True) as schema:
        match statement.verb:
            case "add column":
                schema.add_column(name, types[word])
            case "drop column":
                schema.delete_column(name)
            case "rename column":
                schema.rename_column(name, word)
            case _:
                schema.update_column(name, types[word])


def _change_rows(transaction: Transaction, statement: Statement, schema: pa.Schema) -> None:
    rows = pa.Table.from_pylist([dict(each) for each in statement.rows], schema=schema)
    match statement.verb:
        case "append":
            transaction.append(rows, branch=statement.branch)
        case "delete" | "delete files":
            transaction.delete(str(statement.where))
        case "overwrite":
            transaction.overwrite(rows, overwrite_filter=str(statement.where))
        case "replace partitions":
            transaction.dynamic_partition_overwrite(rows)
        case "upsert":
            transaction.upsert(rows, join_cols=["id"])


@dataclass(frozen=True)
class JavaSystem:
    catalog: JavaCatalog
    name: str = "Iceberg Java"

    def prepare(self, table: str, statement: Statement) -> Callable[[], object]:
        found = self.catalog.table(table)
        request: dict[str, Any] = {"rows": list(statement.rows), "mode": statement.mode or MOR}
        if statement.where is not None:
            request["filter"] = statement.where.json()
        match statement.verb:
            case "upsert":
                return found.prepare("merge", key="id", **request)
            case "append":
                branch = statement.branch if statement.branch != "main" else None
                return found.prepare("append", branch=branch, **request)
            case "add column" | "drop column" | "rename column" | "widen column":
                name, word = statement.column
                return found.prepare(statement.verb.replace(" ", "_"), column=name, to=word)
            case "set partitioning":
                return found.prepare("set_partitioning", columns=list(statement.partitioning))
            case "create tag":
                return found.prepare("create_tag", tag=statement.tag, snapshot=found.head())
            case _:
                more = {"set": dict(statement.set), "properties": dict(statement.properties)}
                return found.prepare(statement.verb.replace(" ", "_"), **request, **more)

    def is_refusal(self, error: Exception) -> bool:
        return isinstance(error, JavaError) and error.kind in ("ValidationException", "CommitFailedException")
