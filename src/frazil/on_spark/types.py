"""The Spark types of Iceberg's types, as in DataFrames of a table.

Three of Iceberg's types have no counterpart in every Spark from 4.0 on: uuid is text (canonical, as Iceberg Java has
it), fixed is binary, and time is a bigint of microseconds since midnight (Spark's own TIME came with 4.1).
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import Unsupported
from frazil.format.schemas import to_schema

SparkType = Any
"""A pyspark.sql.types.DataType."""
FIELD_ID = "parquet.field.id"
"""Where Spark's Parquet writer looks for a column's id."""

_PRIMITIVES: dict[type[IcebergType], str] = {
    BooleanType: "BooleanType",
    IntegerType: "IntegerType",
    LongType: "LongType",
    FloatType: "FloatType",
    DoubleType: "DoubleType",
    StringType: "StringType",
    BinaryType: "BinaryType",
    FixedType: "BinaryType",
    UUIDType: "StringType",
    DateType: "DateType",
    TimeType: "LongType",
    TimestamptzType: "TimestampType",
    TimestampType: "TimestampNTZType",
}
_NOT_WRITTEN_BY_SPARK = (ListType, MapType, UUIDType, FixedType, TimeType)


def spark_type(kind: IcebergType, *, ids: bool = False) -> SparkType:
    """The Spark type that holds every value of an Iceberg type. Raises Unsupported where there is none.

    ``ids``: the fields of structs carry their ids in their metadata, where Spark's Parquet writer takes them from.
    """
    from pyspark.sql import types

    inner = partial(spark_type, ids=ids)
    match kind:
        case StructType():
            return types.StructType([_field(each, ids) for each in kind.fields])
        case ListType():
            return types.ArrayType(inner(kind.element_type), not kind.element_required)
        case MapType():
            return types.MapType(inner(kind.key_type), inner(kind.value_type), not kind.value_required)
        case DecimalType():
            return types.DecimalType(kind.precision, kind.scale)
    name = _PRIMITIVES.get(type(kind))
    if name is None:
        raise Unsupported(f"Spark has no type for Iceberg's {kind}", advice="Read the other columns: columns=[…]")
    return getattr(types, name)()


def spark_schema(schema: Schema, *, ids: bool = False) -> SparkType:
    """The StructType of a table's rows."""
    from pyspark.sql import types

    return types.StructType([_field(each, ids) for each in schema.fields])


def _field(field: NestedField, ids: bool) -> Any:
    from pyspark.sql import types

    metadata = {FIELD_ID: field.field_id} if ids else None
    return types.StructField(field.name, spark_type(field.field_type, ids=ids), not field.required, metadata)


def needs_arrow_writer(schema: Schema) -> bool:
    """Spark's own Parquet writer cannot write these rows as Iceberg wants them.

    It puts no ids on the elements of lists and the keys and values of maps, and has no uuid, fixed and time.
    """
    return any(_refused(each.field_type) for each in schema.fields)


def _refused(kind: IcebergType) -> bool:
    if isinstance(kind, StructType):
        return any(_refused(each.field_type) for each in kind.fields)
    return isinstance(kind, _NOT_WRITTEN_BY_SPARK)


def frame_schema(frame: Any, first_id: int = 1) -> Schema:
    """The columns of a DataFrame as Iceberg's, with ids from ``first_id`` on. Raises InvalidInput for what it lacks."""
    ids = itertools.count(first_id)
    return assign_fresh_schema_ids(to_schema(frame.schema), lambda: next(ids))
