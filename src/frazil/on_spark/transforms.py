"""Partition transforms as Spark Columns, and a row's partition encoded as one string (rule P32).

Everything is exact integer arithmetic that no session setting changes: neither ANSI mode nor the time zone.
"""

from __future__ import annotations

import importlib
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
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
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import SchemaMismatch, Unsupported
from frazil.format.partitions import AnyTransform, source_path
from frazil.on_spark import executor
from frazil.on_spark.session import Frame, is_connect

SparkColumn = Any
"""A pyspark.sql.Column."""
At = Callable[[int], SparkColumn]
"""The column of a table's field, by its id."""

_LONGEST = 200
"""A folder's name may have 255 bytes on most file systems."""
_LONGEST_NUMBER = 22
"""Mark, sign, 19 digits and the separator."""
_NULL, _NUMBER, _BYTES, _TEXT, _HASHED = "n", "i", "x", "t", "h"
_MICROS_PER_DAY = 86_400_000_000
_MICROS_PER_HOUR = 3_600_000_000
_AS_BYTES = (StringType, BinaryType, FixedType)
_INTEGERS = (IntegerType, LongType, DateType, TimeType, TimestampType, TimestamptzType)


def with_partition(frame: Frame, name: str, spec: PartitionSpec, schema: Schema, at: At) -> Frame:
    """The frame with each row's partition as a string in a new last column."""
    data = {
        field.source_id: at(field.source_id).cast("binary")
        for field in spec.fields
        if isinstance(field.transform, BucketTransform)
        and isinstance(_source_type(schema, field.source_id, field.transform), _AS_BYTES)
    }
    made, hashes = _with_hashes(frame, data) if data else (frame, {})
    made = made.withColumn(name, partition_column(spec, schema, at, hashes))
    return made.drop(*(set(made.columns) - {*frame.columns, name})) if data else made


def partition_column(
    spec: PartitionSpec, schema: Schema, at: At, hashes: Mapping[int, SparkColumn] | None = None
) -> SparkColumn:
    """A row's partition as a string: never null or empty, unique per partition, safe as a folder name.

    Only lower-case letters, digits, "-" and "_", as some file systems ignore case.
    ``hashes``: those of strings and bytes by field, if they are columns already.
    """
    from pyspark.sql import functions as F

    parts = []
    longest = 0
    for field in spec.fields:
        kind = _source_type(schema, field.source_id, field.transform)
        if kind is None:
            parts.append(F.lit(_NULL))
            continue
        known = (hashes or {}).get(field.source_id)
        if isinstance(field.transform, BucketTransform) and known is not None:
            value = _numbered(field.transform.num_buckets, known, at(field.source_id))
        else:
            value = transformed(field.transform, kind, at(field.source_id))
        result = _result_type(field.transform, kind)
        parts.append(_encoded(value, result))
        longest += _LONGEST_NUMBER if isinstance(result, (BooleanType, *_INTEGERS)) else _LONGEST + 1
    whole = F.concat_ws("_", *parts)
    if longest <= _LONGEST:
        # Named once, the transforms are computed once.
        return F.coalesce(whole, F.lit(_HASHED))
    hashed = F.concat(F.lit(_HASHED), F.sha2(whole.cast("binary"), 256))
    # Without the coalesce Spark treats the column as nullable and checks for empty strings, which it turns into nulls.
    return F.coalesce(F.when(F.length(whole) > _LONGEST, hashed).otherwise(whole), F.lit(_HASHED))


def decode_partition(text: str, spec: PartitionSpec, schema: Schema) -> tuple[Any, ...] | None:
    """The partition that a string encodes, in Iceberg's internal form; None: the string is a hash of a long one.

    Raises SchemaMismatch for a value out of the partition field's range.
    """
    if text.startswith(_HASHED):
        return None
    values: list[Any] = []
    for part, field in zip(text.split("_"), spec.fields, strict=True):
        if part == _NULL:
            values.append(None)
            continue
        kind = _source_type(schema, field.source_id, field.transform)
        assert kind is not None
        values.append(_decoded(part, _result_type(field.transform, kind), field.transform))
    return tuple(values)


def transformed(transform: AnyTransform, kind: PrimitiveType, column: SparkColumn) -> SparkColumn:
    """A transform of a column in the table's Spark type. Days, times and timestamps become integers.

    Integers may have more bits than the result type, where the arithmetic needs them. Raises Unsupported.
    """
    match transform:
        case IdentityTransform():
            return _internal(kind, column)
        case BucketTransform():
            return _bucket(transform.num_buckets, kind, column)
        case TruncateTransform():
            return _truncated(transform.width, kind, column)
        case YearTransform() | MonthTransform() | DayTransform() | HourTransform():
            return _since_1970(transform, kind, column)
        case VoidTransform():
            from pyspark.sql import functions as F

            return F.lit(None).cast("int")
    raise Unsupported(
        "The table is partitioned or sorted by a transform that this version does not support", evidence=repr(transform)
    )


def _source_type(schema: Schema, source_id: int, transform: AnyTransform) -> PrimitiveType | None:
    """None: the partition is always null."""
    if isinstance(transform, VoidTransform):
        return None
    kind = schema.find_type(source_id) if source_path(schema, source_id) is not None else None
    if not isinstance(kind, PrimitiveType):
        raise Unsupported(f"The table's partitioning or sort order names the column id {source_id}, which is not there")
    return kind


def _result_type(transform: AnyTransform, kind: PrimitiveType) -> IcebergType:
    return transform.result_type(kind)


# Values


def _internal(kind: PrimitiveType, column: SparkColumn) -> SparkColumn:
    from pyspark.sql import functions as F

    match kind:
        case DateType():
            return F.unix_date(column)
        case TimestamptzType():
            return F.unix_micros(column)
        case TimestampType():
            return _local_micros(column)
        case UUIDType():
            return F.unhex(F.regexp_replace(column, F.lit("-"), F.lit("")))
    return column


def _local_micros(column: SparkColumn) -> SparkColumn:
    """Microseconds of a timestamp without a zone. A cast to one with a zone would use the session's zone."""
    from pyspark.sql import functions as F

    days = F.unix_date(column.cast("date")).cast("long")
    seconds = F.hour(column) * 3600 + F.minute(column) * 60
    fraction = (F.date_part(F.lit("SECOND"), column) * F.lit(1_000_000).cast("decimal(10,0)")).cast("long")
    return days * F.lit(_MICROS_PER_DAY) + seconds.cast("long") * F.lit(1_000_000).cast("long") + fraction


def _floor_div(column: SparkColumn, divisor: int) -> SparkColumn:
    """Division rounded down, without the overflow of ``(x - pmod(x, d)) / d`` near the minimum."""
    from pyspark.sql import functions as F

    by = F.lit(divisor).cast("long")
    return F.call_function("div", column, by) - F.when(column % by < 0, F.lit(1).cast("long")).otherwise(
        F.lit(0).cast("long")
    )


def _since_1970(transform: AnyTransform, kind: PrimitiveType, column: SparkColumn) -> SparkColumn:
    from pyspark.sql import functions as F

    if isinstance(kind, DateType):
        day = column
    else:
        micros = _internal(kind, column)
        if isinstance(transform, HourTransform):
            return _floor_div(micros, _MICROS_PER_HOUR)
        day = F.date_from_unix_date(_floor_div(micros, _MICROS_PER_DAY).cast("int"))
    match transform:
        case DayTransform():
            return F.unix_date(day)
        case MonthTransform():
            return (F.year(day) - 1970) * 12 + F.month(day) - 1
    return F.year(day) - 1970


def _truncated(width: int, kind: PrimitiveType, column: SparkColumn) -> SparkColumn:
    from pyspark.sql import functions as F

    match kind:
        case IntegerType():
            wide = column.cast("long")
            return wide - F.pmod(wide, F.lit(width).cast("long"))
        case LongType():
            # May leave the range of 64 bits, which is refused when the partition is decoded.
            wide = column.cast("decimal(20,0)")
            return wide - F.pmod(column, F.lit(width).cast("long")).cast("decimal(20,0)")
        case DecimalType():
            return _in_python(executor.truncated_decimal, width, kind.scale, "string")(column)
        case StringType() | BinaryType():
            return F.substring(column, 1, width)
    raise Unsupported(f"{kind} cannot be truncated")


# Buckets

_MASK = 0xFFFFFFFF
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_MIX1, _MIX2 = 0x85EBCA6B, 0xC2B2AE35
_STEP = 0xE6546B64


def _inverse(factor: int) -> int:
    return pow(factor, -1, 1 << 32)


def _rotate_left(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _hashes_to_zero() -> int:
    """The int whose hash in Spark is 0. Spark seeds the hash of each value with the previous one's, so after this int
    it computes Iceberg's murmur3 with seed 0.
    """
    # Zero stays zero when the final mix is undone; then the length, the round and the seed 42.
    mixed = ((4 - _STEP) * _inverse(5)) & _MASK
    block = _rotate_left(mixed, 32 - 13) ^ 42
    block = (block * _inverse(_C2)) & _MASK
    value = (_rotate_left(block, 32 - 15) * _inverse(_C1)) & _MASK
    return value - (1 << 32) if value >> 31 else value


_SEED = _hashes_to_zero()


def _bucket(buckets: int, kind: PrimitiveType, column: SparkColumn) -> SparkColumn:
    from pyspark.sql import functions as F

    if isinstance(kind, DecimalType):
        return _in_python(executor.decimal_bucket, buckets, kind.scale, "int")(column)
    value = _internal(kind, column)
    if isinstance(kind, _INTEGERS):
        hashed = F.hash(F.lit(_SEED), value.cast("long"))
    elif isinstance(kind, UUIDType):
        hashed = F.hash(F.lit(_SEED), value)
    elif isinstance(kind, _AS_BYTES):
        hashed = _hash_of_bytes(value.cast("binary"))
    else:
        raise Unsupported(f"{kind} cannot be put into buckets")
    return _numbered(buckets, hashed, value)


def _numbered(buckets: int, hashed: SparkColumn, value: SparkColumn) -> SparkColumn:
    from pyspark.sql import functions as F

    positive = hashed.bitwiseAND(F.lit(0x7FFFFFFF))
    # Spark's hash of null is its seed.
    return F.when(value.isNotNull(), (positive % F.lit(buckets)).cast("int"))


def _filled(data: SparkColumn) -> tuple[SparkColumn, SparkColumn]:
    """The hash of bytes padded with zeros to blocks of four, and the padded length.

    Spark's murmur3 is standard for blocks of four bytes and differs for a remainder. With padding only the last steps
    differ, and ``_repairs`` undoes and repeats them.
    """
    from pyspark.sql import functions as F

    rounded = F.call_function("div", F.octet_length(data) + 3, F.lit(4)).cast("int") * 4
    return F.hash(F.lit(_SEED), F.rpad(data, rounded, F.lit(b"\x00"))), rounded


def _repairs(data: SparkColumn) -> tuple[Callable[[SparkColumn], SparkColumn], ...]:
    """The steps from the hash of padded bytes to murmur3's, in unsigned 32-bit arithmetic."""
    from pyspark.sql import functions as F

    rounded, length = _filled(data)[1].cast("long"), F.octet_length(data).cast("long")

    def mixed_down(bits: int) -> Callable[[SparkColumn], SparkColumn]:
        return lambda each: each.bitwiseXOR(F.shiftright(each, bits))

    return (
        # The final mix undone.
        mixed_down(16),
        lambda each: _times(each, _inverse(_MIX2)),
        lambda each: each.bitwiseXOR(F.shiftright(each, 13)).bitwiseXOR(F.shiftright(each, 26)),
        lambda each: _times(each, _inverse(_MIX1)),
        mixed_down(16),
        # The end of the round undone: a remainder skips it.
        lambda each: (each.bitwiseXOR(rounded) + _long((1 << 32) - _STEP)).bitwiseAND(_long(_MASK)),
        lambda each: _times(each, _inverse(5)),
        lambda each: F.shiftright(each, 13).bitwiseOR(F.shiftleft(each.bitwiseAND(_long(0x1FFF)), 19)),
        # The final mix.
        lambda each: each.bitwiseXOR(length),
        mixed_down(16),
        lambda each: _times(each, _MIX1),
        mixed_down(13),
        lambda each: _times(each, _MIX2),
        mixed_down(16),
        # Back from 32 bits without sign.
        lambda each: each - F.when(each > 0x7FFFFFFF, _long(1 << 32)).otherwise(_long(0)),
    )


def _with_hashes(frame: Frame, data: Mapping[int, SparkColumn]) -> tuple[Frame, dict[int, SparkColumn]]:
    """The frame with helper columns, and the hash of each field's bytes.

    Each step uses its input several times. As a column of a separate projection the input is computed once, in compiled
    code; within one expression it would need an array function, which Spark interprets row by row.
    """
    from pyspark.sql import functions as F

    # Longer than every column name.
    free = "__frazil_" + "_" * max(map(len, frame.columns))
    names = {field_id: (f"{free}filled{field_id}", f"{free}hash{field_id}") for field_id in data}
    frame = frame.withColumns({names[field_id][0]: _filled(each)[0] for field_id, each in data.items()})
    unsigned = {made: F.col(filled).cast("long").bitwiseAND(_long(_MASK)) for filled, made in names.values()}
    frame = frame.withColumns(unsigned)
    repairs = {names[field_id][1]: _repairs(each) for field_id, each in data.items()}
    for first in range(0, len(next(iter(repairs.values()))), 2):
        frame = frame.withColumns(
            {
                name: reduce(lambda at, step: step(at), steps[first : first + 2], F.col(name))
                for name, steps in repairs.items()
            }
        )
    return frame, {
        field_id: F.when(F.octet_length(each) % 4 == 0, F.col(names[field_id][0])).otherwise(
            F.col(names[field_id][1]).cast("int")
        )
        for field_id, each in data.items()
    }


def _hash_of_bytes(data: SparkColumn) -> SparkColumn:
    """The same as one expression."""
    from pyspark.sql import functions as F

    filled, steps = _filled(data)[0], _repairs(data)
    value = filled.cast("long").bitwiseAND(_long(_MASK))
    if is_connect(value):
        # Connect limits nesting to 100 levels: one function selects the step by its number.
        numbers = F.array(*(F.lit(number) for number in range(len(steps))))
        value = F.aggregate(numbers, value, lambda each, number: _step(steps, each, number))
    else:
        for step in steps:
            # A lambda variable makes the expression grow linearly, not exponentially.
            value = F.transform(F.array(value), step).getItem(0)
    return F.when(F.octet_length(data) % 4 == 0, filled).otherwise(value.cast("int"))


def _step(steps: Sequence[Callable[[SparkColumn], SparkColumn]], each: SparkColumn, number: SparkColumn) -> SparkColumn:
    from pyspark.sql import functions as F

    chosen = F.when(number == 0, steps[0](each))
    for at, step in enumerate(steps[1:], start=1):
        chosen = chosen.when(number == at, step(each))
    return chosen


def _long(value: int) -> SparkColumn:
    from pyspark.sql import functions as F

    return F.lit(value).cast("long")


def _times(column: SparkColumn, factor: int) -> SparkColumn:
    """A 32-bit product in two halves, as the full product overflows 64 bits, an error in ANSI mode."""
    from pyspark.sql import functions as F

    low = column * _long(factor & 0xFFFF)
    high = F.shiftleft((column * _long(factor >> 16)).bitwiseAND(_long(0xFFFF)), 16)
    return (low + high).bitwiseAND(_long(_MASK))


def _in_python(function: Callable[..., Any], number: int, scale: int, returns: str) -> Any:
    """Decimals of up to 38 digits have no exact arithmetic in Spark's own functions."""
    from pyspark.sql import functions as F

    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
    cloudpickle.register_pickle_by_value(executor)
    return F.udf(lambda value: None if value is None else function(value, number, scale), returns, useArrow=False)


# Text


def _encoded(value: SparkColumn, kind: IcebergType) -> SparkColumn:
    from pyspark.sql import functions as F

    match kind:
        case BooleanType():
            text = F.concat(F.lit(_NUMBER), value.cast("int").cast("string"))
        case StringType() | BinaryType() | FixedType() | UUIDType():
            text = F.concat(F.lit(_BYTES), F.lower(F.hex(value.cast("binary"))))
        case FloatType() | DoubleType() | DecimalType():
            # Spark's string of a number parses back to the same number.
            text = F.concat(F.lit(_TEXT), F.lower(F.hex(value.cast("string").cast("binary"))))
        case _:
            text = F.concat(F.lit(_NUMBER), value.cast("string"))
    return F.coalesce(text, F.lit(_NULL))


def _decoded(part: str, kind: IcebergType, transform: AnyTransform) -> Any:
    mark, rest = part[0], part[1:]
    if mark == _NUMBER:
        return bool(int(rest)) if isinstance(kind, BooleanType) else _fitting(int(rest), kind, transform)
    data = bytes.fromhex(rest)
    match kind:
        case StringType():
            return data.decode()
        case UUIDType():
            return uuid.UUID(bytes=data)
        case FloatType():
            return struct.unpack("<f", struct.pack("<f", float(data.decode())))[0]
        case DoubleType():
            return float(data.decode())
        case DecimalType():
            return _decimal(data.decode(), kind, transform)
    return data


def _fitting(value: int, kind: IcebergType, transform: AnyTransform) -> int:
    bits = 63 if isinstance(kind, LongType | TimeType | TimestampType | TimestamptzType) else 31
    if not -(1 << bits) <= value < 1 << bits:
        raise _no_room(transform)
    return value


def _decimal(text: str, kind: DecimalType, transform: AnyTransform) -> Decimal:
    unscaled = executor.unscaled(Decimal(text), kind.scale)
    if abs(unscaled) >= 10**kind.precision:
        raise _no_room(transform)
    return executor.scaled(unscaled, kind.scale)


def _no_room(transform: AnyTransform) -> SchemaMismatch:
    return SchemaMismatch(
        f"Some values are too large or too small for a partition value of {transform}",
        advice="Leave out those rows, or partition the table by something else",
    )
