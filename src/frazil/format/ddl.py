"""Columns written as Spark SQL DDL: ``id bigint not null, tags array<string>``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil._sqlglot import MissingArgument, SqlSyntaxError, TokenType, exp, parse, tokenize
from frazil.errors import InvalidInput
from frazil.format.schemas import DDL_EXAMPLE, TYPE_NAMES, checked_decimal, checked_fixed, join_path

# sqlglot reads FIXED as another word for DECIMAL; binary(n) is how it names bytes of one length.
_FIXED = re.compile(
    r"(?P<quoted>`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|\bfixed\s*[\[(]\s*(?P<length>\d+)\s*[\])]",
    re.IGNORECASE,
)
_AFTER_TYPE = frozenset(
    {
        TokenType.COMMA,
        TokenType.GT,
        TokenType.R_PAREN,
        TokenType.NOT,
        TokenType.NULL,
        TokenType.COMMENT,
    }
)
_DDL_PRIMITIVES: dict[Any, Callable[[], PrimitiveType]] = {
    exp.DataType.Type.BOOLEAN: BooleanType,
    exp.DataType.Type.TINYINT: IntegerType,
    exp.DataType.Type.SMALLINT: IntegerType,
    exp.DataType.Type.INT: IntegerType,
    exp.DataType.Type.BIGINT: LongType,
    exp.DataType.Type.FLOAT: FloatType,
    exp.DataType.Type.DOUBLE: DoubleType,
    exp.DataType.Type.TEXT: StringType,
    exp.DataType.Type.VARCHAR: StringType,
    exp.DataType.Type.CHAR: StringType,
    exp.DataType.Type.DATE: DateType,
    exp.DataType.Type.TIME: TimeType,
    exp.DataType.Type.TIMESTAMPTZ: TimestamptzType,
    exp.DataType.Type.TIMESTAMPLTZ: TimestamptzType,
    exp.DataType.Type.TIMESTAMPNTZ: TimestampType,
    exp.DataType.Type.UUID: UUIDType,
}


def ddl_fields(text: str, ids: Iterator[int]) -> tuple[NestedField, ...]:
    normal = _FIXED.sub(lambda m: m["quoted"] or f"binary({m['length']})", text)
    try:
        _check_fixed(normal)
        # The line break ends a trailing comment, which would otherwise swallow the bracket.
        tree = parse(f"CREATE TABLE t ({normal}\n)")[0]
    except SqlSyntaxError as error:
        # The column that sqlglot reports counts from the start of CREATE TABLE.
        raise InvalidInput(
            f"Cannot read the schema {text!r}" + (f": stuck at {error.near!r}" if error.near else ""),
            evidence=None if error.near else str(error),
            advice=f"{DDL_EXAMPLE}. {TYPE_NAMES}",
        ) from error
    except MissingArgument as error:
        raise InvalidInput(f"Cannot read the schema {text!r}", evidence=str(error), advice=DDL_EXAMPLE) from error
    table = tree.this if isinstance(tree, exp.Create) else None
    plain = isinstance(tree, exp.Create) and not any(tree.args.get(part) for part in ("expression", "properties"))
    if not isinstance(table, exp.Schema) or not plain:
        raise InvalidInput(f"{text!r} is not a list of columns", advice=DDL_EXAMPLE)
    return _ddl_columns(table.expressions, ids, "", text)


def _check_fixed(normal: str) -> None:
    """A type ``fixed`` without a length, which sqlglot would read as a decimal. A column may have that name."""
    tokens = tokenize(normal)
    for token, following in itertools.zip_longest(tokens, tokens[1:]):
        is_last = following is None or following.token_type in _AFTER_TYPE
        if token.text.lower() == "fixed" and token.token_type != TokenType.STRING and is_last:
            raise InvalidInput("The type fixed has no length", advice="Write how many bytes: fixed(16)")


def _ddl_columns(
    columns: Iterable[exp.Expression], ids: Iterator[int], path: str, text: str
) -> tuple[NestedField, ...]:
    return tuple(_ddl_column(column, ids, path, text) for column in columns)


def _ddl_column(column: exp.Expression, ids: Iterator[int], path: str, text: str) -> NestedField:
    kind = column.args.get("kind")
    if isinstance(column, exp.PrimaryKey | exp.Constraint):
        raise InvalidInput(f"The schema {text!r} has a constraint", advice="Name key columns with keys=['id']")
    if not isinstance(column, exp.ColumnDef) or not isinstance(kind, exp.DataType):
        raise InvalidInput(f"{column.sql(dialect='spark')!r} in the schema {text!r} has no type", advice=DDL_EXAMPLE)
    if isinstance(column.this, exp.Dot):
        dotted = column.this.sql(dialect="spark").replace("`", "")
        raise InvalidInput(
            f"The column name {dotted} has a dot",
            advice=f"Write `{dotted}` with back-ticks, or, for a field in a struct, name struct<field:type>",
        )
    name = join_path(path, column.name)
    required, doc = False, None
    for constraint in column.args.get("constraints") or ():
        match constraint.kind:
            case exp.NotNullColumnConstraint():
                required = not constraint.kind.args.get("allow_null")
            case exp.CommentColumnConstraint():
                doc = constraint.kind.name
            case exp.PrimaryKeyColumnConstraint():
                raise InvalidInput(f"The column {name!r} is a primary key", advice=f"Write keys=[{column.name!r}]")
            case _:
                raise InvalidInput(
                    f"The column {name!r} has {constraint.sql(dialect='spark')}, which Iceberg tables do not keep",
                    advice="A column may have NOT NULL and COMMENT 'text'",
                )
    return NestedField(next(ids), column.name, _ddl_type(kind, ids, name, text), required=required, doc=doc)


def _ddl_type(kind: exp.DataType, ids: Iterator[int], path: str, text: str) -> IcebergType:
    inner = kind.expressions
    match kind.this:
        case exp.DataType.Type.STRUCT if inner:
            return StructType(*_ddl_columns(inner, ids, path, text))
        case exp.DataType.Type.ARRAY if len(inner) == 1 and isinstance(inner[0], exp.DataType):
            return ListType(
                next(ids), _ddl_type(inner[0], ids, join_path(path, "element"), text), element_required=False
            )
        case exp.DataType.Type.MAP if len(inner) == 2:
            key = _ddl_type(inner[0], ids, join_path(path, "key"), text)
            value = _ddl_type(inner[1], ids, join_path(path, "value"), text)
            return MapType(next(ids), key, next(ids), value, value_required=False)
        case exp.DataType.Type.DECIMAL:
            # Spark's own default is decimal(10, 0).
            numbers = [int(each.name) for each in inner] or [10]
            return checked_decimal(numbers[0], numbers[1] if len(numbers) > 1 else 0, path)
        case exp.DataType.Type.BINARY | exp.DataType.Type.VARBINARY:
            return checked_fixed(int(inner[0].name), path) if inner else BinaryType()
        case plain if plain in _DDL_PRIMITIVES:
            return _DDL_PRIMITIVES[plain]()
    raise InvalidInput(f"The column {path!r} has the type {kind.sql()}, which Iceberg does not have", advice=TYPE_NAMES)
