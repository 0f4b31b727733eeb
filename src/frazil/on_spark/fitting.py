"""A DataFrame to a table's columns and Spark types, by name, with casts that lose nothing.

Names and types are checked by the code for Arrow rows, so that both report the same errors. Values are checked when
they are cast, in the job that writes them: a value that does not fit fails the job with a Frazil error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
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
    PrimitiveType,
    StructType,
    TimeType,
    UUIDType,
)

from frazil.on_spark.session import Frame, marked_error
from frazil.on_spark.types import spark_type
from frazil.stage.conform import conform

SparkColumn = Any
SparkType = Any
arrow: Any = pa

_MICROS_PER_DAY = 86_400_000_000
_ARROW: dict[str, pa.DataType] = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "char": pa.string(),
    "varchar": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_WIDTH = {"byte": 8, "short": 16, "integer": 32, "long": 64}


def conform_frame(frame: Frame, schema: Schema) -> Frame:
    """The frame in the table's columns, order and Spark types. Raises SchemaMismatch.

    Nulls in required columns are found when the rows are written.
    """
    names, columns = fitted_columns(frame, schema)
    return frame.toDF(*names).select(
        *(made.alias(each.name) for made, each in zip(columns, schema.fields, strict=True))
    )


def fitted_columns(frame: Frame, schema: Schema) -> tuple[list[str], list[SparkColumn]]:
    """One column for each of the table's, over ``frame.toDF(*names)``: they fit every frame of the same schema."""
    from pyspark.sql import functions as F

    given = frame.schema.fields
    conform(_no_rows(given, schema), schema)
    # By position from here on: names of a frame need not be unique to a session that does not tell case apart.
    places = [f"c{position}" for position in range(len(given))]
    columns = []
    for each, source in zip(schema.fields, _sources(schema.fields, [each.name for each in given]), strict=True):
        if source is None:
            column = F.lit(None).cast(spark_type(each.field_type))
        else:
            column = _fitted(F.col(places[source]), given[source].dataType, each.field_type, each.name)
        columns.append(column)
    return places, columns


def means_the_same_in_arrow(frame: Frame, schema: Schema) -> bool:
    """Whether Arrow checks and converts the frame's rows exactly as Spark does here. Raises SchemaMismatch."""
    given = frame.schema.fields
    conform(_no_rows(given, schema), schema)
    # Without a column Arrow has no rows.
    return (
        bool(given)
        and all(_is_plain(each.dataType) for each in given)
        and not any(isinstance(schema.find_type(each), UUIDType | FixedType | TimeType) for each in schema.field_ids)
    )


def _is_plain(kind: SparkType) -> bool:
    # Not structs, lists and maps: their nullability differs between Spark and Arrow.
    # And Spark has no Arrow type for texts of a fixed length.
    return kind.typeName() == "decimal" or kind.typeName() in _ARROW.keys() - {"void", "char", "varchar"}


# Names and types


def _no_rows(given: Sequence[Any], schema: Schema) -> pa.RecordBatch:
    wanted: list[IcebergType | None] = [None] * len(given)
    for each, source in zip(schema.fields, _sources(schema.fields, [field.name for field in given]), strict=True):
        if source is not None:
            wanted[source] = each.field_type
    fields = [
        arrow.field(field.name, _arrow_type(field.dataType, kind)) for field, kind in zip(given, wanted, strict=True)
    ]
    arrays = [arrow.array([], field.type) for field in fields]
    return arrow.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))  # type: ignore[no-any-return]


def _sources(fields: Sequence[NestedField], names: Sequence[str]) -> list[int | None]:
    """Which of the names feeds each of the table's: the same one, or the only one but for case."""
    wanted = {each.name for each in fields}
    found: list[int | None] = []
    for each in fields:
        close = [name for name in names if name.lower() == each.name.lower() and name not in wanted]
        name = each.name if each.name in names else close[0] if len(close) == 1 else None
        found.append(None if name is None else names.index(name))
    return found


def _arrow_type(given: SparkType, kind: IcebergType | None) -> Any:
    """The Arrow type of a Spark type, where the table wants ``kind``; None: it has no such column."""
    name = given.typeName()
    match name:
        case "struct":
            inner = kind.fields if isinstance(kind, StructType) else ()
            sources = _sources(inner, given.fieldNames())
            kinds = {source: each.field_type for each, source in zip(inner, sources, strict=True)}
            return arrow.struct(
                [arrow.field(f.name, _arrow_type(f.dataType, kinds.get(at))) for at, f in enumerate(given.fields)]
            )
        case "array":
            return arrow.list_(
                _arrow_type(given.elementType, kind.element_type if isinstance(kind, ListType) else None)
            )
        case "map":
            key, value = (kind.key_type, kind.value_type) if isinstance(kind, MapType) else (None, None)
            return arrow.map_(_arrow_type(given.keyType, key), _arrow_type(given.valueType, value))
        case "decimal":
            return arrow.decimal128(given.precision, given.scale)
        case "long" if isinstance(kind, TimeType):
            return arrow.time64("us")
    # A duration represents every type without a counterpart in Iceberg.
    return _ARROW.get(name, arrow.duration("us"))


# Values


def _fitted(column: SparkColumn, given: SparkType, kind: IcebergType, path: str) -> SparkColumn:
    from pyspark.sql import functions as F

    if _is_same(given, kind):
        return column
    if given.typeName() == "void":
        return F.lit(None).cast(spark_type(kind))
    match kind:
        case StructType():
            return _fitted_struct(column, given, kind, path)
        case ListType():
            return F.transform(
                column, lambda each: _fitted(each, given.elementType, kind.element_type, f"{path}.element")
            )
        case MapType():
            keyed = F.transform_keys(column, lambda key, _: _fitted(key, given.keyType, kind.key_type, f"{path}.key"))
            value = lambda _, each: _fitted(each, given.valueType, kind.value_type, f"{path}.value")  # noqa: E731
            return F.transform_values(keyed, value)
    assert isinstance(kind, PrimitiveType)
    return _cast(column, given, kind, path)


def _is_same(given: SparkType, kind: IcebergType) -> bool:
    """Nothing is to be done, at no level."""
    match kind:
        case StructType():
            same = given.typeName() == "struct" and given.fieldNames() == [each.name for each in kind.fields]
            return same and all(
                _is_same(field.dataType, each.field_type) for field, each in zip(given.fields, kind.fields, strict=True)
            )
        case ListType():
            return given.typeName() == "array" and _is_same(given.elementType, kind.element_type)
        case MapType():
            return (
                given.typeName() == "map"
                and _is_same(given.keyType, kind.key_type)
                and _is_same(given.valueType, kind.value_type)
            )
        case UUIDType() | FixedType() | TimeType():
            return False
    return bool(given == spark_type(kind))


def _fitted_struct(column: SparkColumn, given: SparkType, kind: StructType, path: str) -> SparkColumn:
    from pyspark.sql import functions as F

    children = []
    for each, source in zip(kind.fields, _sources(kind.fields, given.fieldNames()), strict=True):
        if source is None:
            child = F.lit(None).cast(spark_type(each.field_type))
        else:
            field = given.fields[source]
            child = _fitted(column.getField(field.name), field.dataType, each.field_type, f"{path}.{each.name}")
        children.append(child.alias(each.name))
    return F.when(column.isNotNull(), F.struct(*children))


def _cast(column: SparkColumn, given: SparkType, kind: PrimitiveType, path: str) -> SparkColumn:
    from pyspark.sql import functions as F

    name = given.typeName()
    match kind:
        case UUIDType():
            return _uuid(column, name, kind, path)
        case FixedType():
            fits = F.octet_length(column) == len(kind)
            return _checked(fits, column, F.hex(column), kind, path, f"Every value must have {len(kind)} bytes")
        case TimeType():
            fits = (column >= 0) & (column < F.lit(_MICROS_PER_DAY))
            return _checked(fits, column, column, kind, path, "A time is microseconds since midnight")
        case IntegerType() if _WIDTH.get(name, 0) > 32:
            fits = (column >= -(1 << 31)) & (column < (1 << 31))
            made = F.when(fits, column).cast("int")
            return _checked(fits, made, column, kind, path, "The column holds 32-bit integers")
        case FloatType() | DoubleType() if name in _WIDTH:
            return _as_float(column, name, kind, path)
        case DecimalType():
            return _decimal(column, given, kind, path)
        case LongType() | _:
            return column.cast(spark_type(kind))


def _as_float(column: SparkColumn, name: str, kind: PrimitiveType, path: str) -> SparkColumn:
    from pyspark.sql import functions as F

    digits = 24 if isinstance(kind, FloatType) else 53
    made = column.cast(spark_type(kind))
    if _WIDTH[name] <= digits:
        return made
    fits = (column >= F.lit(-(1 << digits)).cast("long")) & (column <= F.lit(1 << digits).cast("long"))
    return _checked(fits, made, column, kind, path, "Cast the column yourself where the loss is meant")


def _decimal(column: SparkColumn, given: SparkType, kind: DecimalType, path: str) -> SparkColumn:
    wanted = spark_type(kind)
    if given.typeName() in _WIDTH:
        scale, whole = 0, {8: 3, 16: 5, 32: 10, 64: 19}[_WIDTH[given.typeName()]]
    else:
        scale, whole = given.scale, given.precision - given.scale
    if kind.scale >= scale and kind.precision - kind.scale >= whole:
        return column.cast(wanted)
    made = column.try_cast(wanted)
    # Back again, as a comparison of two decimal types may round.
    fits = made.try_cast(given).eqNullSafe(column)
    whole = kind.precision - kind.scale
    advice = f"Round to {kind.scale} decimal places and keep to {whole} digits before the point"
    return _checked(fits, made, column, kind, path, advice)


def _uuid(column: SparkColumn, name: str, kind: PrimitiveType, path: str) -> SparkColumn:
    """In the canonical form, from any that Python's uuid reads and from 16 bytes."""
    from pyspark.sql import functions as F

    if name == "binary":
        digits = F.lower(F.hex(column))
    else:
        bare = F.regexp_replace(F.regexp_replace(column, "urn:|uuid:", ""), "^[{}]+|[{}]+$", "")
        digits = F.lower(F.regexp_replace(bare, "-", ""))
    parts = [F.substring(digits, start, length) for start, length in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))]
    fits = digits.rlike("\\A[0-9a-f]{32}\\z")
    shown = F.hex(column) if name == "binary" else column
    return _checked(fits, F.concat_ws("-", *parts), shown, kind, path, "A uuid is 16 bytes, or text of 32 hex digits")


def _checked(
    fits: SparkColumn, made: SparkColumn, shown: SparkColumn, kind: PrimitiveType, path: str, advice: str
) -> SparkColumn:
    """The converted value, null for null; the job fails with a message for a value that does not fit."""
    from pyspark.sql import functions as F

    text = marked_error(f"The rows do not fit the table:\n  - {path!r} is {kind}: the value \0 does not fit ({advice})")
    before, _, after = text.partition("\0")
    sentence = F.concat(F.lit(before), F.substring(shown.cast("string"), 1, 80), F.lit(after))
    refused = F.raise_error(sentence).cast(spark_type(kind))
    return F.when(shown.isNull(), F.lit(None)).when(fits, made).otherwise(refused)
