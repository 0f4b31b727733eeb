"""INSERT, UPDATE, DELETE and MERGE as the verbs of a table.

Conditions and values are Frazil's expressions, so that they mean the same on every engine. Rows of a query are written
through a transaction: the scans of its tables are the read set of the write (rule P22).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from frazil.errors import InvalidInput, Unsupported
from frazil.expr import TEXT, assigned, compared, parse_expression
from frazil.format.schemas import arrow_schema, match_name, suggestion
from frazil.model import Commit, Isolation
from frazil.on_spark.queries import named_columns, with_constant
from frazil.on_spark.session import Frame
from frazil.sql.queries import QUERY_WORDS, query
from frazil.sql.scope import Reader
from frazil.sql.session import Context
from frazil.sql.tokens import Cursor, Statement, Token, has_query, quoted, renamed, split
from frazil.table.handle import TableHandle
from frazil.table.merge import MergeBuilder
from frazil.transaction import TransactionTable
from frazil.wording import counted

Tokens = Sequence[Token]
Name = tuple[str, ...]
arrow: Any = pa
_ONE_ROW = arrow.RecordBatch.from_arrays([arrow.array([True])], names=["_"])


# DELETE and UPDATE


def delete(context: Context, cursor: Cursor) -> Commit:
    """``DELETE FROM t [AS a] [WHERE …]``"""
    cursor.expect("DELETE", "FROM")
    name = cursor.name("a table")
    alias = _alias(cursor, "WHERE")
    where = _where(cursor, name, alias)
    return context.table(name).delete(where)


def update(context: Context, cursor: Cursor) -> Commit:
    """``UPDATE t [AS a] SET c = …, … [WHERE …]``"""
    cursor.expect("UPDATE")
    name = cursor.name("a table")
    alias = _alias(cursor, "SET")
    cursor.expect("SET")
    values = _assignments(cursor, _own(name, alias), "WHERE")
    where = _where(cursor, name, alias)
    return context.table(name).update(values, where)


def _where(cursor: Cursor, name: Name, alias: str | None) -> str:
    if not cursor.accept("WHERE"):
        cursor.end()
        return "true"
    found = _expression(cursor, "a condition", _own(name, alias))
    cursor.end()
    return found


def _own(name: Name, alias: str | None) -> dict[Name, str]:
    """The qualifiers a statement about one table may use; Frazil's expressions have none."""
    return {(alias,): ""} if alias is not None else {name: "", name[-1:]: ""}


def _expression(cursor: Cursor, what: str, names: dict[Name, str], *ends: str) -> str:
    found = cursor.expression(what, *ends)
    _refuse_query(found)
    return renamed(cursor.statement, found, names)


def _refuse_query(tokens: Tokens) -> None:
    if has_query(tokens):
        raise Unsupported(
            f"A query inside a condition or a value is not supported (position {tokens[0].start + 1})",
            advice="Use MERGE INTO … USING (SELECT …) …, whose source may be any query",
        )


def _assignments(cursor: Cursor, names: dict[Name, str], *ends: str) -> dict[str, object]:
    found: dict[str, object] = {}
    while True:
        place = cursor.next
        column = _unqualified(cursor.name("a column"), names)
        if column in found:
            raise InvalidInput(f"The column {column} is set twice, at position {place.start + 1 if place else 0}")
        cursor.expect("=")
        found[column] = _expression(cursor, "a value", names, ",", *ends)
        if not cursor.accept(","):
            return found


def _unqualified(name: Name, names: dict[Name, str]) -> str:
    for qualifier in sorted(names, key=len, reverse=True):
        start = [each.lower() for each in name[: len(qualifier)]]
        if len(name) > len(qualifier) and start == [each.lower() for each in qualifier]:
            return quoted(name[len(qualifier) :])
    return quoted(name)


def _alias(cursor: Cursor, *ends: str) -> str | None:
    if cursor.accept("AS"):
        return cursor.part("an alias")
    if cursor.next is not None and cursor.next.names and not cursor.sees_one(*ends):
        return cursor.part("an alias")
    return None


# INSERT


@dataclass(frozen=True, slots=True)
class _Insert:
    """An INSERT without its rows."""

    name: Name
    replaces: bool
    where: str | None
    constants: dict[str, str]
    by_name: bool
    columns: tuple[str, ...] | None


def insert(context: Context, cursor: Cursor) -> Commit:
    """``INSERT INTO|OVERWRITE t [PARTITION (…)] [BY NAME] [(columns)] [REPLACE WHERE …] query``"""
    before = cursor.until("INSERT")
    wanted = _insert(cursor)
    if cursor.sees("VALUES") and not before:
        return _insert_values(context, cursor, wanted)
    if not cursor.sees_one(*QUERY_WORDS):
        raise cursor.wrong("a query")
    if before and cursor.sees("WITH"):
        raise cursor.wrong("the query of the WITH in front of INSERT")
    text = cursor.statement.text[cursor.take().start : cursor.statement.tokens[-1].end]
    return _insert_query(context, f"{cursor.statement.slice(before)} {text}", wanted)


def _insert(cursor: Cursor) -> _Insert:
    cursor.expect("INSERT")
    replaces = cursor.one_of("INTO", "OVERWRITE") == "OVERWRITE"
    cursor.accept("TABLE")
    name = cursor.name("a table")
    constants = _constants(cursor) if cursor.accept("PARTITION") else {}
    if cursor.sees("IF"):
        raise Unsupported("INSERT … IF NOT EXISTS is not supported", advice="Leave it out")
    by_name = cursor.accept("BY", "NAME")
    inside = cursor.peek(1)
    columns = None
    if cursor.sees("(") and not (inside is not None and inside.says(*QUERY_WORDS)):
        columns = tuple(str(each) for each in cursor.listed(lambda inner: inner.part("a column"), "columns"))
    where = None
    if cursor.accept("REPLACE", "WHERE"):
        if replaces:
            raise InvalidInput("OVERWRITE and REPLACE WHERE exclude each other", advice="Write INSERT INTO … REPLACE")
        where = _expression(cursor, "a condition", _own(name, None), *QUERY_WORDS[:-1])
    return _Insert(name, replaces, where, constants, by_name, columns)


def _constants(cursor: Cursor) -> dict[str, str]:
    """``PARTITION (country = 'de', day)``: the constant columns. Columns without a value are filled by the rows."""
    found: dict[str, str] = {}
    for tokens in split(cursor.statement, cursor.group("partition columns")):
        inner = Cursor(replace(cursor.statement, tokens=tokens))
        name = inner.part("a column")
        if inner.accept("="):
            found[name] = _expression(inner, "a value", {})
        else:
            inner.end()
    return found


def _named(names: Sequence[str], schema: Schema) -> list[str]:
    """The columns as the table spells them. Raises InvalidInput."""
    known = [each.name for each in schema.fields]
    found: list[str] = []
    for name in names:
        match = match_name(name, known)
        if match is None:
            raise InvalidInput(f"INSERT names the unknown column {name!r}", advice=suggestion(name, known))
        if match in found:
            raise InvalidInput(f"INSERT names the column {match!r} twice")
        found.append(match)
    return found


def _targets(wanted: _Insert, schema: Schema) -> list[str]:
    """The columns that the rows fill, in the order of the rows."""
    constant = _named(list(wanted.constants), schema)
    if wanted.columns is not None:
        return _named([*wanted.columns, *constant], schema)[: len(wanted.columns)]
    return [each.name for each in schema.fields if each.name not in constant]


def _constant_value(text: str, field: NestedField) -> Any:
    """An expression without columns as one value of a column."""
    if text.upper() in ("NULL", "DEFAULT"):
        # NULL and DEFAULT fit every type, also types without expressions. Format v2 has no other default.
        return arrow.nulls(1, arrow_schema(Schema(field)).field(0).type)
    try:
        expression = parse_expression(text, Schema())
    except InvalidInput as error:
        raise InvalidInput(
            error.problem,
            evidence=error.evidence,
            advice="Use an expression that Frazil supports, or a query: INSERT INTO t SELECT * FROM VALUES (…)",
        ) from error
    return assigned(expression, field, field.name)(_ONE_ROW)


def _insert_values(context: Context, cursor: Cursor, wanted: _Insert) -> Commit:
    cursor.expect("VALUES")
    if wanted.by_name:
        raise InvalidInput(
            "BY NAME needs a query: VALUES have no column names", advice="Name the columns: INSERT INTO t (a)"
        )
    table = context.table(wanted.name)
    schema = table.schema
    names = _targets(wanted, schema)
    rows = [_value_texts(cursor.statement, each) for each in split(cursor.statement, cursor.until())]
    cursor.end()
    for number, each in enumerate(rows, start=1):
        if len(each) != len(names):
            raise InvalidInput(
                f"Row {number} has {counted(len(each), 'value')} for {counted(len(names), 'column')}",
                evidence=f"The columns are {', '.join(names)}",
            )
    columns = [
        arrow.concat_arrays([_constant_value(row[position], schema.find_field(name)) for row in rows])
        for position, name in enumerate(names)
    ]
    for name, text in zip(_named(list(wanted.constants), schema), wanted.constants.values(), strict=True):
        columns.append(arrow.concat_arrays([_constant_value(text, schema.find_field(name))] * len(rows)))
        names.append(name)
    return _write(table, arrow.table(columns, names=names), wanted)


def _value_texts(statement: Statement, row: Tokens) -> list[str]:
    if row[0].says("("):
        cursor = Cursor(replace(statement, tokens=tuple(row)))
        inner = cursor.group("values")
        if cursor.done:
            row = inner
    _refuse_query(row)
    return [statement.slice(each) for each in split(statement, row)]


def _insert_query(context: Context, text: str, wanted: _Insert) -> Commit:
    session = context.session("INSERT of a query")

    def run(table: TransactionTable, reader: Reader) -> Commit:
        schema = table.schema
        frame = query(context, text, reader)
        if not wanted.by_name:
            frame = named_columns(frame, _targets(wanted, schema), schema)
        else:
            frame = named_columns(frame, _named(frame.columns, schema), schema)
        return _write(table, _with_constants(frame, wanted, schema), wanted)

    return context.write(wanted.name, session, Isolation.SERIALIZABLE, run)


def _with_constants(frame: Frame, wanted: _Insert, schema: Schema) -> Frame:
    for name, text in wanted.constants.items():
        column = _named([name], schema)[0]
        frame = with_constant(frame, column, _constant_value(text, schema.find_field(column)), schema)
    return frame


def _write(table: TableHandle, rows: object, wanted: _Insert) -> Commit:
    if wanted.where is not None:
        return table.overwrite(rows, wanted.where)
    if not wanted.replaces:
        return table.append(rows)
    # An unpartitioned table has one partition, which all rows are in.
    if table.spec.is_unpartitioned():
        return table.overwrite(rows, "true")
    return table.replace_partitions(rows)


# MERGE


@dataclass(frozen=True, slots=True)
class _MergeStatement:
    """The names of the target and the source."""

    target: Name
    target_alias: str
    source: str
    """The source as a query."""
    source_alias: str
    names: dict[Name, str]
    """Full table name → alias in the merge's expressions."""
    table: Name | None = None
    """The source, where it is a table as it is now."""
    inner: Tokens = ()
    """The source's query, where it is one in parentheses."""
    columns: tuple[str, ...] = ()
    """The names that the source's alias gives its columns."""


def merge(context: Context, cursor: Cursor) -> Commit:
    """``MERGE INTO t [AS a] USING (query | table) [AS b] ON … WHEN …``"""
    cursor.expect("MERGE")
    evolves = cursor.accept("WITH", "SCHEMA", "EVOLUTION")
    cursor.expect("INTO")
    sides = _sides(cursor)
    cursor.expect("ON")
    on = _expression(cursor, "a condition", sides.names, "WHEN")
    first = cursor.at
    session = context.session_or_none()
    if session is None and not _runs_without_spark(sides):
        session = context.session("MERGE of a query")
    isolation = context.table(sides.target).properties.get("write.merge.isolation-level", Isolation.SERIALIZABLE)

    def run(table: TransactionTable, reader: Reader) -> Commit:
        fields = [each.name for each in table.schema.fields]
        cursor.at = first
        source: Any = query(context, sides.source, reader) if session is not None else _rows(cursor, sides, reader)
        builder = table.merge(source, on, source_alias=sides.source_alias, target_alias=sides.target_alias)
        while not cursor.done:
            builder = _clause(cursor, builder, sides, fields)
        return (builder.with_schema_evolution() if evolves else builder).execute()

    return context.write(sides.target, session, isolation, run)


def _sides(cursor: Cursor) -> _MergeStatement:
    target = cursor.name("a table")
    target_alias = _alias(cursor, "USING")
    cursor.expect("USING")
    names = {} if target_alias is not None else {target: quoted(target[-1:])}
    if cursor.sees("("):
        inner = cursor.group("a query")
        source = f"SELECT * FROM ({cursor.statement.slice(inner)})"  # noqa: S608 - the user's own text
        source_alias = _alias(cursor, "ON") or "source"
        columns = _column_names(cursor)
        if columns:
            source += f" AS source ({', '.join(quoted([each]) for each in columns)})"
        return _MergeStatement(
            target, target_alias or target[-1], source, source_alias, names, inner=inner, columns=columns
        )
    start = cursor.at
    name = cursor.name("a table or a query in parentheses")
    after = cursor.at
    _skip_version(cursor)
    current = name if cursor.at == after else None
    source = f"SELECT * FROM {cursor.statement.slice(cursor.statement.tokens[start : cursor.at])}"  # noqa: S608 - likewise
    alias = _alias(cursor, "ON")
    if alias is None and len(name) > 1:
        names[name] = quoted(name[-1:])
    return _MergeStatement(target, target_alias or target[-1], source, alias or name[-1], names, current)


def _column_names(cursor: Cursor) -> tuple[str, ...]:
    if not cursor.sees("("):
        return ()
    return tuple(str(each) for each in cursor.listed(lambda inner: inner.part("a column"), "columns"))


def _runs_without_spark(sides: _MergeStatement) -> bool:
    return sides.table is not None or (bool(sides.inner) and sides.inner[0].says("VALUES"))


def _rows(cursor: Cursor, sides: _MergeStatement, reader: Reader) -> object:
    """The rows of a table, which are then in the read set of the transaction, or those of VALUES."""
    if sides.table is not None:
        scan = reader.table(sides.table).scan()
        return pa.RecordBatchReader.from_batches(scan.schema, scan.to_batches())
    inner = Cursor(replace(cursor.statement, tokens=tuple(sides.inner)))
    inner.expect("VALUES")
    rows = [_row_texts(inner)]
    while inner.accept(","):
        rows.append(_row_texts(inner))
    _alias(inner)
    names = _column_names(inner)
    inner.end()
    names = sides.columns or names or tuple(f"col{number + 1}" for number in range(len(rows[0])))
    for number, each in enumerate(rows, start=1):
        if len(each) != len(names):
            raise InvalidInput(
                f"Row {number} has {counted(len(each), 'value')} for {counted(len(names), 'column')}",
                evidence=f"The columns are {', '.join(names)}",
            )
    return arrow.table([_values_column(each) for each in zip(*rows, strict=True)], names=list(names))


def _row_texts(cursor: Cursor) -> list[str]:
    values = split(cursor.statement, cursor.group("a row of values in parentheses"))
    for each in values:
        _refuse_query(each)
    return [cursor.statement.slice(each) for each in values]


def _values_column(texts: Sequence[str]) -> Any:
    """Expressions without columns as a column of the type that holds them all."""
    found = [parse_expression(each, Schema()) for each in texts]
    kind = parse_expression(f"CASE {' '.join(f'WHEN false THEN ({each})' for each in texts)} END", Schema()).type
    if kind != TEXT and any(each.type == TEXT for each in found):
        raise InvalidInput("Strings and other values are in one column of VALUES", advice="Write CAST(… AS …)")
    return arrow.concat_arrays(
        [arrow.nulls(1, kind) if pa.types.is_null(each.type) else compared(each, kind, _ONE_ROW) for each in found]
    )


def _skip_version(cursor: Cursor) -> None:
    ahead = 1 if cursor.sees("FOR") else 0
    of = cursor.peek(ahead + 2)
    if of is not None and of.says("OF"):
        cursor.at += ahead + 3
        cursor.accept("TIMESTAMP")
        cursor.take()


def _clause(cursor: Cursor, builder: MergeBuilder, sides: _MergeStatement, fields: Sequence[str]) -> MergeBuilder:
    cursor.expect("WHEN")
    matched = not cursor.accept("NOT")
    cursor.expect("MATCHED")
    by_source = False
    if not matched and cursor.accept("BY"):
        by_source = cursor.one_of("SOURCE", "TARGET") == "SOURCE"
    condition = _expression(cursor, "a condition", sides.names, "THEN") if cursor.accept("AND") else None
    cursor.expect("THEN")
    if not matched and not by_source:
        return _insert_clause(cursor, builder, sides, fields, condition)
    if cursor.one_of("UPDATE", "DELETE") == "DELETE":
        _end_of_clause(cursor)
        if matched:
            return builder.when_matched_delete(condition)
        return builder.when_not_matched_by_source_delete(condition)
    cursor.expect("SET")
    if cursor.accept("*"):
        if not matched:
            raise InvalidInput("UPDATE SET * is not possible under WHEN NOT MATCHED BY SOURCE: there is no source row")
        _end_of_clause(cursor)
        return builder.when_matched_update_all(condition)
    own = {(sides.target_alias,): "", sides.target: ""}
    values: dict[str, object] = {}
    for column, tokens in _merge_assignments(cursor, own):
        values[column] = renamed(cursor.statement, tokens, sides.names)
    if matched:
        return builder.when_matched_update(values, condition)
    return builder.when_not_matched_by_source_update(values, condition)


def _merge_assignments(cursor: Cursor, own: dict[Name, str]) -> list[tuple[str, Tokens]]:
    found: list[tuple[str, Tokens]] = []
    while True:
        column = _unqualified(cursor.name("a column"), own)
        if column in (each for each, _ in found):
            raise InvalidInput(f"The column {column} is set twice in one clause")
        cursor.expect("=")
        value = cursor.expression("a value", ",", "WHEN")
        _refuse_query(value)
        found.append((column, value))
        if not cursor.accept(","):
            return found


def _insert_clause(
    cursor: Cursor, builder: MergeBuilder, sides: _MergeStatement, fields: Sequence[str], condition: str | None
) -> MergeBuilder:
    cursor.expect("INSERT")
    if cursor.accept("*"):
        _end_of_clause(cursor)
        return builder.when_not_matched_insert_all(condition)
    own = {(sides.target_alias,): "", sides.target: ""}
    columns = [quoted([each]) for each in fields]
    if cursor.sees("("):
        listed = cursor.listed(lambda inner: inner.name("a column"), "columns")
        columns = [_unqualified(each, own) for each in listed if isinstance(each, tuple)]
    cursor.expect("VALUES")
    values = split(cursor.statement, cursor.group("values"))
    if len(values) != len(columns):
        raise InvalidInput(f"The clause has {counted(len(values), 'value')} for {counted(len(columns), 'column')}")
    for each in values:
        _refuse_query(each)
    _end_of_clause(cursor)
    texts = [renamed(cursor.statement, each, sides.names) for each in values]
    return builder.when_not_matched_insert(dict(zip(columns, texts, strict=True)), condition)


def _end_of_clause(cursor: Cursor) -> None:
    if not cursor.done and not cursor.sees("WHEN"):
        raise cursor.wrong("WHEN or the end of the statement")
