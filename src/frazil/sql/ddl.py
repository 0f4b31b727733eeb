"""CREATE, DROP, SHOW and DESCRIBE."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from frazil.errors import InvalidInput, NoSuchNamespace, NoSuchTable, Unsupported
from frazil.format.evolution import full_name
from frazil.model import Ident
from frazil.on_spark.queries import frame_of, nullable_schema
from frazil.sql.queries import query
from frazil.sql.scope import NewTable
from frazil.sql.session import Context, Row
from frazil.sql.tokens import Cursor, quoted, split
from frazil.table.handle import TableHandle

_FORMATS = ("FRAZIL", "ICEBERG")
_NAMESPACE = ("NAMESPACE", "SCHEMA", "DATABASE")
_NAMESPACES = "namespaces are made and dropped at once"


# CREATE and DROP


def create(context: Context, cursor: Cursor) -> None:
    """``CREATE TABLE …`` and ``CREATE NAMESPACE …``"""
    cursor.expect("CREATE")
    if cursor.sees("OR", "REPLACE"):
        raise Unsupported(
            "CREATE OR REPLACE is not supported", advice="DROP TABLE first, or INSERT OVERWRITE the table's rows"
        )
    if cursor.one_of("TABLE", *_NAMESPACE) == "TABLE":
        _create_table(context, cursor)
    else:
        _create_namespace(context, cursor)


def _create_namespace(context: Context, cursor: Cursor) -> None:
    context.scope.check_outside("CREATE NAMESPACE", _NAMESPACES)
    exists_ok = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("a namespace")
    given: dict[str, str] = {}
    while not cursor.done:
        if cursor.accept("COMMENT"):
            given["comment"] = cursor.text()
        elif cursor.accept("LOCATION"):
            given["location"] = cursor.text()
        else:
            cursor.expect("WITH")
            cursor.one_of("PROPERTIES", "DBPROPERTIES")
            given.update(properties(cursor))
    context.lake.create_namespace(name, given, exists_ok=exists_ok)


@dataclass(slots=True)
class _NewTable:
    """The clauses of a CREATE TABLE that follow its columns."""

    partition_by: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    comment: str | None = None
    location: str | None = None
    query: str | None = None


def _create_table(context: Context, cursor: Cursor) -> None:
    exists_ok = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("a table")
    columns = cursor.statement.slice(cursor.group("columns")) if cursor.sees("(") else None
    wanted = _table_clauses(cursor)
    if columns is not None and wanted.query is not None:
        raise InvalidInput(
            "CREATE TABLE … AS SELECT cannot have a list of columns",
            advice="Leave the list out, and cast in the query",
        )
    if columns is None and wanted.query is None:
        raise cursor.wrong("a list of columns or AS SELECT …")
    if exists_ok and context.exists(name):
        return
    frame = None if wanted.query is None else query(context, wanted.query)
    schema = columns if frame is None else nullable_schema(frame)
    new = NewTable(name, schema, wanted.partition_by, wanted.properties, wanted.comment, wanted.location, frame)
    context.scope.create_table(context.lake, new, exists_ok=exists_ok)


def _table_clauses(cursor: Cursor) -> _NewTable:
    found = _NewTable()
    while not cursor.done:
        word = cursor.one_of("USING", "PARTITIONED", "TBLPROPERTIES", "COMMENT", "LOCATION", "AS")
        match word:
            case "USING":
                cursor.one_of(*_FORMATS)
            case "PARTITIONED":
                cursor.expect("BY")
                terms = split(cursor.statement, cursor.group("partition columns"))
                found.partition_by = [cursor.statement.slice(each) for each in terms]
            case "TBLPROPERTIES":
                found.properties = properties(cursor)
            case "COMMENT":
                found.comment = cursor.text()
            case "LOCATION":
                found.location = cursor.text()
            case _:
                rest = cursor.statement.tokens[cursor.at :]
                found.query = cursor.statement.slice(rest)
                if not rest:
                    raise cursor.wrong("a query")
                return found
    return found


def properties(cursor: Cursor) -> dict[str, str]:
    """``('a.b' = 'c', d = 1)``"""
    found: dict[str, str] = {}
    for pair in cursor.listed(_property, "properties in parentheses"):
        assert isinstance(pair, tuple)
        found[pair[0]] = pair[1]
    return found


def _property(cursor: Cursor) -> tuple[str, str]:
    key = property_key(cursor)
    cursor.accept("=")
    if cursor.next is None or cursor.next.kind == "sign":
        raise cursor.wrong("a value")
    return key, cursor.take().value


def property_key(cursor: Cursor) -> str:
    return cursor.text() if cursor.next is not None and cursor.next.kind == "text" else ".".join(cursor.name())


def drop(context: Context, cursor: Cursor) -> None:
    """``DROP TABLE [IF EXISTS] t [PURGE]`` and ``DROP NAMESPACE [IF EXISTS] n``"""
    cursor.expect("DROP")
    is_table = cursor.one_of("TABLE", *_NAMESPACE) == "TABLE"
    missing_ok = cursor.accept("IF", "EXISTS")
    name = cursor.name()
    if not is_table:
        context.scope.check_outside("DROP NAMESPACE", _NAMESPACES)
    if not is_table and cursor.sees("CASCADE"):
        raise Unsupported("DROP NAMESPACE … CASCADE is not supported", advice="Drop its tables first")
    purge = is_table and cursor.accept("PURGE")
    if not is_table:
        cursor.accept("RESTRICT")
    cursor.end()
    try:
        if is_table:
            context.scope.drop_table(context.lake, name, purge=purge)
        else:
            context.lake.drop_namespace(name)
    except (NoSuchTable, NoSuchNamespace):
        if not missing_ok:
            raise


# SHOW and DESCRIBE


def show(context: Context, cursor: Cursor) -> Any:
    """``SHOW TABLES [IN n]``, ``SHOW NAMESPACES``, ``SHOW TBLPROPERTIES t``"""
    cursor.expect("SHOW")
    what = cursor.one_of("TABLES", "NAMESPACES", "SCHEMAS", "DATABASES", "TBLPROPERTIES")
    if what == "TBLPROPERTIES":
        return _show_properties(context, cursor)
    if what != "TABLES":
        cursor.end()
        rows = [{"namespace": each} for each in context.lake.namespaces()]
        return _shown(context, rows, "namespace string")
    wanted = cursor.name("a namespace") if cursor.accept("IN") or cursor.accept("FROM") else None
    cursor.end()
    idents = [Ident.parse(each) for each in context.tables(wanted)]
    return _shown(
        context,
        [{"namespace": ".".join(each.namespace), "tableName": each.name, "isTemporary": False} for each in idents],
        "namespace string, tableName string, isTemporary boolean",
    )


def _show_properties(context: Context, cursor: Cursor) -> Any:
    table = context.table(cursor.name("a table"))
    only = None
    if cursor.accept("("):
        only = property_key(cursor)
        cursor.expect(")")
    cursor.end()
    found = table.properties
    if only is not None and only not in found:
        raise InvalidInput(f"The table {table.name} has no property {only!r}")
    keys = sorted(found) if only is None else [only]
    return _shown(context, [{"key": key, "value": found[key]} for key in keys], "key string, value string")


def describe(context: Context, cursor: Cursor) -> Any:
    """``DESCRIBE [TABLE] [EXTENDED | FORMATTED] t``"""
    cursor.one_of("DESCRIBE", "DESC")
    cursor.accept("TABLE")
    is_extended = cursor.accept("EXTENDED") or cursor.accept("FORMATTED")
    table = context.table(cursor.name("a table"))
    cursor.end()
    schema = table.schema
    rows = [_described(each.name, type_text(each.field_type), each.doc) for each in schema.fields]
    rows += [
        _described("# Partitioning" if index == 0 else "", term, None)
        for index, term in enumerate(partition_texts(table))
    ]
    if is_extended:
        rows += _details(table)
    return _shown(context, rows, "col_name string, data_type string, comment string")


def _details(table: TableHandle) -> list[Row]:
    """What EXTENDED adds, under Spark's words."""
    shown = ",".join(f"{key}={value}" for key, value in sorted(table.properties.items()))
    facts = {
        "Name": table.name,
        "Comment": table.properties.get("comment"),
        "Location": table.location,
        "Provider": "iceberg",
        "Format Version": str(table.format_version),
        "Identifier Fields": ", ".join(table.keys) or None,
        "Table Properties": f"[{shown}]",
    }
    heads = [_described("", "", None), _described("# Detailed Table Information", "", None)]
    return heads + [_described(name, value, None) for name, value in facts.items() if value is not None]


def _described(name: str, kind: str, comment: str | None) -> Row:
    return {"col_name": name, "data_type": kind, "comment": comment}


def _shown(context: Context, rows: list[Row], ddl: str) -> Any:
    session = context.session_or_none()
    return rows if session is None else frame_of(session, rows, ddl)


def partition_texts(table: TableHandle) -> list[str]:
    """How the table is partitioned, as create_table() takes it."""
    schema = table.schema
    return [
        transform_text(str(each.transform), schema, each.source_id)
        for each in table.spec.fields
        if str(each.transform) != "void"
    ]


def transform_text(transform: str, schema: Schema, field_id: int) -> str:
    """``bucket[16]`` of a column as ``bucket(16, `id`)``."""
    column = quoted(full_name(schema, field_id).split("."))
    word, bracket, rest = transform.partition("[")
    return f"{word}({rest.rstrip(']')}, {column})" if bracket else f"{word}({column})"


_WORDS: dict[type[IcebergType], str] = {
    LongType: "bigint",
    IntegerType: "int",
    StringType: "string",
    BinaryType: "binary",
    TimestamptzType: "timestamp",
    TimestampType: "timestamp_ntz",
}


def type_text(kind: IcebergType) -> str:
    """A type in Spark's DDL."""
    match kind:
        case StructType():
            return f"struct<{','.join(f'{each.name}:{type_text(each.field_type)}' for each in kind.fields)}>"
        case ListType():
            return f"array<{type_text(kind.element_type)}>"
        case MapType():
            return f"map<{type_text(kind.key_type)},{type_text(kind.value_type)}>"
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case FixedType():
            return f"fixed({kind.root})"
    return _WORDS.get(type(kind), str(kind))
