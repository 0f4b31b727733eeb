"""Values in the JSON form that ``Values.java`` speaks, so that two engines' answers can be compared exactly."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    ListType,
    MapType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the epoch of timestamps without zone
_MICROSECOND = dt.timedelta(microseconds=1)


def canonical(rows: pa.Table | Iterable[Mapping[str, Any]], schema: Schema) -> list[dict[str, Any]]:
    """Rows (an Arrow table or Python dicts) under an Iceberg schema; columns that are missing count as null."""
    dicts = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return [_struct(row, schema.as_struct()) for row in dicts]


def in_order(rows: Iterable[Mapping[str, Any]], *keys: str) -> list[Mapping[str, Any]]:
    """Rows sorted by some columns (nulls first): engines return them in any order."""
    return sorted(rows, key=lambda row: [(row[k] is not None, row[k]) for k in keys])


def _struct(row: Mapping[str, Any], struct: StructType) -> dict[str, Any]:
    return {field.name: _value(row.get(field.name), field.field_type) for field in struct.fields}


def _value(value: Any, kind: IcebergType) -> Any:
    if value is None:
        return None
    match kind:
        case StructType():
            return _struct(value, kind)
        case ListType():
            return [_value(each, kind.element_type) for each in value]
        case MapType():
            pairs = value.items() if isinstance(value, Mapping) else value
            return [[_value(k, kind.key_type), _value(v, kind.value_type)] for k, v in pairs]
        case _:
            return _primitive(value, kind)


def _primitive(value: Any, kind: IcebergType) -> Any:
    match kind:
        case FloatType() | DoubleType():
            return _float(value, kind)
        case DecimalType(scale=scale):
            return f"{Decimal(value):.{scale}f}"
        case UUIDType():
            return str(value if isinstance(value, uuid.UUID) else uuid.UUID(bytes=value))
        case DateType():
            return (value - _EPOCH.date()).days
        case TimeType():
            return (dt.datetime.combine(_EPOCH.date(), value) - _EPOCH) // _MICROSECOND
        case TimestampType():
            return (value - _EPOCH) // _MICROSECOND
        case TimestamptzType():
            return (value - _EPOCH.replace(tzinfo=dt.UTC)) // _MICROSECOND
        case FixedType():
            return bytes(value).hex()
        case _:
            return value.hex() if isinstance(value, bytes) else value


def _float(value: float, kind: IcebergType) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    # What a four-byte column can hold of the number, whichever side it came from.
    return float(pa.scalar(value, pa.float32()).as_py()) if isinstance(kind, FloatType) else value


def literal(value: Any, kind: IcebergType) -> Any:
    """A value as Iceberg's JSON for expressions writes it (the specification's single-value serialization)."""
    match kind:
        case DateType() | TimeType() | TimestampType():
            return (
                value.isoformat()
                if isinstance(value, dt.date) and not isinstance(value, dt.datetime)
                else _precise(value)
            )
        case TimestamptzType():
            return _precise(value)
        case _:
            return _primitive(value, kind)


def _precise(value: dt.datetime | dt.time) -> str:
    return value.isoformat(timespec="microseconds")
