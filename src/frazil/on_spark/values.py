"""New values for columns, as Spark columns: SQL texts, Python values, and Spark's own Columns.

Texts are read as everywhere else and mean the same as on Arrow. What is stored must survive: an overflow, a lost
fraction, a lost time of day fail the write, whatever the session's ANSI mode says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from frazil.dml.assignments import check_apart, constant_value, find_column, is_column
from frazil.errors import InvalidInput
from frazil.expr import (
    DATE,
    DOUBLE,
    INT,
    TEXT,
    TIMESTAMP,
    Column,
    DataType,
    Expression,
    Lit,
    Literal,
    assigned,
    internal,
    is_decimal,
    like,
    normalize,
    parse_expression,
    sql_type,
)
from frazil.on_spark.columns import At, SparkColumn, literal, value, without_zone
from frazil.on_spark.session import Frame, marked_error
from frazil.on_spark.types import spark_type

NewValue = Callable[[At], SparkColumn]


@dataclass(frozen=True, slots=True)
class _Assignment:
    path: tuple[NestedField, ...]
    column: NewValue


class Assigned:
    """``set`` of an update, bound to a schema. Raises InvalidInput, SchemaMismatch and Unsupported when it is made."""

    def __init__(self, values: Mapping[str, object], schema: Schema, *, case_sensitive: bool = False) -> None:
        if not isinstance(values, Mapping) or not values:
            raise InvalidInput("set names no column", advice="Write set={'status': \"'gone'\", 'n': 'n + 1'}")
        self._schema = schema
        self._assignments = [self._bind(name, each, case_sensitive) for name, each in values.items()]
        check_apart([each.path for each in self._assignments])
        self.repeatable = not any(is_column(each) for each in values.values())
        """Running it twice gives the same values. False for a Column, whose values are unknown."""

    def apply(self, frame: Frame) -> Frame:
        """The rows with their new values; every expression sees the old ones."""
        from pyspark.sql import functions as F

        at = columns_at(self._schema)
        found: dict[str, SparkColumn] = {}
        for each in self._assignments:
            top = each.path[0].name
            found[top] = replaced(found.get(top, F.col(f"`{top}`")), each.path, each.column(at))
        return frame.withColumns(found)

    def _bind(self, name: str, given: object, case_sensitive: bool) -> _Assignment:
        path = find_column(name, self._schema, case_sensitive)
        return _Assignment(path, new_value(given, path, self._schema, case_sensitive))


def new_value(
    given: object, path: Sequence[NestedField], schema: Schema, case_sensitive: bool, scopes: Sequence[str] = ()
) -> NewValue:
    """What a column is set to. ``scopes``: structs of the schema whose fields may be named without them."""
    field, shown = path[-1], ".".join(each.name for each in path)
    if is_column(given):
        return lambda _: given.cast(spark_type(field.field_type))  # type: ignore[attr-defined]
    if isinstance(given, str):
        return _expression(parse_expression(given, schema, case_sensitive=case_sensitive, scopes=scopes), field, shown)
    one = constant_value(given.value if isinstance(given, Lit) else given, field, shown)
    return _constant(one, field)


def _expression(expression: Expression, field: NestedField, shown: str) -> NewValue:
    node = expression.node
    if isinstance(node, Column) and _same_shape(node.source, field.field_type):
        return lambda at: _required(at(node), field, shown)
    # Says at once when the types never fit.
    arrow_values = assigned(expression, field, shown)
    if isinstance(expression.node, Literal):
        import pyarrow as pa

        one = arrow_values(pa.table({"": pa.nulls(1)}))
        return _constant(one, field)
    if isinstance(field.field_type, StringType) and expression.node.type != TEXT:
        as_text = parse_expression(
            like(f"CAST(({expression.text}) AS STRING)", expression.text),
            expression.schema,
            case_sensitive=expression.case_sensitive,
        )
        return lambda at: value(as_text, at)
    return lambda at: _required(_stored(expression, field, shown, at), field, shown)


def _same_shape(one: IcebergType, other: IcebergType) -> bool:
    """Whether values are taken over as they are; for structs, lists and maps there is no other way."""
    if one.is_primitive or other.is_primitive:
        return one == other
    return bool(spark_type(one).simpleString() == spark_type(other).simpleString())


def _constant(one: Any, field: NestedField) -> NewValue:
    kind = sql_type(field.field_type)
    if field.field_type.is_primitive:
        found = internal(normalize(one, kind))[0]
        zoned = isinstance(field.field_type, TimestamptzType)
        return lambda _: literal(found, kind, zoned=zoned).cast(spark_type(field.field_type))
    return lambda _: _nested(one, field)


def _nested(one: Any, field: NestedField) -> SparkColumn:
    """A struct, list or map through JSON, which Spark reads into the column's own type."""
    import json

    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    if one.null_count:
        return F.lit(None).cast(spark_type(field.field_type))
    text = json.dumps({"value": one.to_pylist()[0]}, default=str)
    # A type and no text: a "timestamp" in a text is whichever of the two kinds the session prefers.
    return F.from_json(F.lit(text), StructType([StructField("value", spark_type(field.field_type))]))["value"]


# Storing


def _stored(expression: Expression, field: NestedField, shown: str, at: At) -> SparkColumn:
    from pyspark.sql import functions as F

    kind, family = field.field_type, expression.node.type
    found = value(expression, at)
    target = spark_type(kind)
    if isinstance(kind, TimestamptzType):
        return _moment(without_zone(expression.node, at))
    if isinstance(kind, TimestampType):
        return without_zone(expression.node, at)
    if isinstance(kind, DateType) and family == TIMESTAMP:
        clock = without_zone(expression.node, at)
        day = clock.cast("date")
        return _kept(day, clock.isNull() | (day.cast("timestamp_ntz") == clock), expression, field, shown)
    if isinstance(kind, FloatType | DoubleType) and family != INT:
        stored = found.cast("double").cast(target)
        fits = ~(F.abs(stored) == F.lit("Infinity").cast(target)) | (F.abs(found.cast("double")) == float("inf"))
        return _kept(stored, found.isNull() | fits, expression, field, shown)
    if isinstance(kind, IntegerType | LongType | FloatType | DoubleType | DecimalType):
        stored = found.try_cast(target)
        return _kept(stored, stored.try_cast(_family_type(family)).eqNullSafe(found), expression, field, shown)
    return found.cast(target)


def _family_type(family: DataType) -> str:
    if is_decimal(family):
        return f"decimal({family.precision},{family.scale})"
    return {INT: "bigint", DOUBLE: "double", DATE: "date"}[family]


def _kept(
    stored: SparkColumn, fits: SparkColumn, expression: Expression, field: NestedField, shown: str
) -> SparkColumn:
    from pyspark.sql import functions as F

    text = f"The column {shown!r} is {field.field_type}, and a value of {expression.text!r} does not fit"
    return F.when(fits, stored).otherwise(F.raise_error(F.lit(marked_error(text))).cast(spark_type(field.field_type)))


def _required(column: SparkColumn, field: NestedField, shown: str) -> SparkColumn:
    if not field.required:
        return column
    from pyspark.sql import functions as F

    text = marked_error(f"The column {shown!r} is required, and its new value is null in some row")
    return F.coalesce(column, F.raise_error(F.lit(text)).cast(spark_type(field.field_type)))


def _moment(clock: SparkColumn) -> SparkColumn:
    """The moment at which UTC's clock shows this time; a cast would take the session's clock."""
    from pyspark.sql import functions as F

    parts = [F.year(clock), F.month(clock), F.dayofmonth(clock), F.hour(clock), F.minute(clock)]
    return F.make_timestamp_ltz(*parts, F.extract(F.lit("SECOND"), clock), F.lit("UTC"))


# Columns of a frame


def columns_at(schema: Schema) -> At:
    """Where the columns of a schema are in a frame that has them by name."""
    from pyspark.sql import functions as F

    def at(column: Any) -> SparkColumn:
        names = [schema.find_field(field_id).name for field_id in column.path]
        # Not taken from the frame itself, which reads names as patterns where the session says so.
        return F.col(".".join(f"`{name}`" for name in names))

    return at


def replaced(column: SparkColumn, path: Sequence[NestedField], new: SparkColumn) -> SparkColumn:
    """The column with a new value at the end of the path. A null struct comes into being around it."""
    if len(path) == 1:
        return new
    from pyspark.sql import functions as F

    names = [each.name for each in path[1:]]
    struct = spark_type(path[0].field_type)
    empty = F.struct(*(F.lit(None).cast(each.dataType).alias(each.name) for each in struct.fields)).cast(struct)
    return F.coalesce(column, empty).withField(".".join(f"`{name}`" for name in names), new)
