"""Queries in Spark's SQL over frames, and conversion of their rows for INSERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, FloatType, IcebergType, IntegerType, LongType

from frazil.errors import InvalidInput, NoSuchTable
from frazil.on_spark.session import Frame, Session, is_connect, marked_error, setting, translated
from frazil.on_spark.types import spark_type

SparkColumn = Any
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00", "UCT", "Zulu"})
_NUMBERS = (IntegerType, LongType, FloatType, DoubleType, DecimalType)
_SPARK_NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double", "decimal"})


def run_query(spark: Session, text: str, frames: Mapping[str, Frame]) -> Frame:
    """The query's frame. ``text`` is a format text in which ``{name}`` stands for a frame.

    PySpark registers each frame as a temporary view during analysis, or sends it with the query (Connect), and
    leaves nothing in the session. Raises NoSuchTable, InvalidInput.
    """
    from pyspark.errors import AnalysisException

    with translated("query"):
        try:
            found = spark.sql(text, **frames) if frames else spark.sql(text.format())
            # Spark Connect analyses a query only on demand.
            _ = found.schema
        except AnalysisException as error:
            if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
                name = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
                raise NoSuchTable(f"Neither the lake nor the Spark session has a table {name}") from error
            raise
    return found


def runs_in_utc(spark: Session) -> bool:
    """Whether a query is certain to read a string without a zone as UTC. Connect decides that when the query runs."""
    return not is_connect(spark) and setting(spark, "spark.sql.session.timeZone") in _UTC


def frame_of(spark: Session, rows: Sequence[Mapping[str, Any]], ddl: str) -> Frame:
    return spark.createDataFrame([tuple(each.values()) for each in rows], ddl)


def nullable_schema(frame: Frame) -> Any:
    """The frame's schema with every column and field optional, as a table created from a query has them."""
    kind = frame.schema
    return type(kind).fromJson(_nullable(kind.jsonValue()))


def _nullable(value: Any) -> Any:
    if isinstance(value, list):
        return [_nullable(each) for each in value]
    if not isinstance(value, dict):
        return value
    optional = {"nullable", "containsNull", "valueContainsNull"}
    return {key: True if key in optional else _nullable(each) for key, each in value.items()}


def named_columns(frame: Frame, names: Sequence[str], schema: Schema) -> Frame:
    """The frame with its columns called ``names`` by position, and numbers in the types of the table's columns.

    Numbers are stored as SQL does it: another type is tried, and a value that would not survive is an error.
    """
    from pyspark.sql import functions as F

    if len(frame.columns) != len(names):
        raise InvalidInput(
            f"The query has {len(frame.columns)} columns, but {len(names)} are expected",
            evidence=f"Expected: {', '.join(names)}",
        )
    fields = frame.schema.fields
    numbered = frame.toDF(*(f"c{position}" for position in range(len(names))))
    columns = []
    for position, (name, field) in enumerate(zip(names, fields, strict=True)):
        kind = schema.find_field(name).field_type if name in schema.column_names else None
        columns.append(_stored(F.col(f"c{position}"), field.dataType, kind, name).alias(name))
    return numbered.select(*columns)


def with_constant(frame: Frame, name: str, value: Any, schema: Schema) -> Frame:
    """The frame with one more column, the same in every row. ``value``: an Arrow array of that one value."""
    from pyspark.sql import functions as F

    kind = schema.find_field(name).field_type
    return frame.withColumn(name, F.lit(value[0].as_py()).cast(spark_type(kind)))


def _stored(column: SparkColumn, given: Any, kind: IcebergType | None, name: str) -> SparkColumn:
    source = given.typeName()
    if kind is None or not isinstance(kind, _NUMBERS) or source not in _SPARK_NUMBERS:
        return column
    target = spark_type(kind)
    if given == target:
        return column
    from pyspark.sql import functions as F

    stored = column.try_cast(target)
    # Floats may be rounded; every other type must convert back to the same value.
    lost = column.isNotNull() & stored.isNull()
    if not isinstance(kind, FloatType | DoubleType):
        lost = lost | ~stored.try_cast(given).eqNullSafe(column)
    text = marked_error(f"The column {name!r} is {kind}, and a value of the query does not fit")
    return F.when(lost, F.raise_error(F.lit(text)).cast(target)).otherwise(stored)
