"""One table with every Iceberg v2 type, and rows with the values that are easy to get wrong."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
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

EVERY_TYPE = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "flag", BooleanType()),
    NestedField(3, "small", IntegerType()),
    NestedField(4, "big", LongType()),
    NestedField(5, "single", FloatType()),
    NestedField(6, "double", DoubleType()),
    NestedField(7, "dec_int", DecimalType(7, 2)),
    NestedField(8, "dec_long", DecimalType(17, 5)),
    NestedField(9, "dec_wide", DecimalType(38, 10)),
    NestedField(10, "day", DateType()),
    NestedField(11, "clock", TimeType()),
    NestedField(12, "local", TimestampType()),
    NestedField(13, "instant", TimestamptzType()),
    NestedField(14, "text", StringType()),
    NestedField(15, "token", UUIDType()),
    NestedField(16, "hash", FixedType(4)),
    NestedField(17, "blob", BinaryType()),
    NestedField(18, "tags", ListType(28, StringType(), element_required=False)),
    NestedField(19, "counts", MapType(29, StringType(), 30, LongType(), value_required=False)),
    NestedField(
        20,
        "place",
        StructType(
            NestedField(31, "name", StringType(), required=False),
            NestedField(32, "spot", StructType(NestedField(33, "x", DoubleType()), NestedField(34, "y", DoubleType()))),
        ),
    ),
    NestedField(
        21,
        "orders",
        ListType(
            35,
            StructType(
                NestedField(36, "sku", UUIDType()),
                NestedField(37, "prices", MapType(38, IntegerType(), 39, DecimalType(9, 2), value_required=False)),
            ),
            element_required=False,
        ),
    ),
)


def _utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type,misc]


EVERY_ROW: list[dict[str, Any]] = [
    {
        "id": 1,
        "flag": True,
        "small": -(2**31),
        "big": 2**63 - 1,
        "single": 1.1,
        "double": -0.0,
        "dec_int": Decimal("-99999.99"),
        "dec_long": Decimal("123456789012.34567"),
        "dec_wide": Decimal("-1234567890123456789012345678.0123456789"),
        "day": dt.date(1969, 12, 31),
        "clock": dt.time(23, 59, 59, 999999),
        "local": _utc(1969, 12, 31, 23, 59, 59, 999999).replace(tzinfo=None),
        "instant": _utc(2038, 1, 19, 3, 14, 8, 1),
        "text": "zażółć \U0001f9ca\U0010ffff",
        "token": uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        "hash": b"\x00\xff\x7f\x80",
        "blob": b"\xff\x00",
        "tags": ["a", None, ""],
        "counts": {"one": 1, "none": None},
        "place": {"name": "here", "spot": {"x": 1.5, "y": None}},
        "orders": [
            {"sku": uuid.UUID(int=1), "prices": {1: Decimal("1.10"), 2: None}},
            None,
            {"sku": None, "prices": None},
        ],
    },
    {
        "id": 2,
        "flag": False,
        "small": 2**31 - 1,
        "big": -(2**63),
        "single": float("nan"),
        "double": float("inf"),
        "dec_int": Decimal("0.00"),
        "dec_long": Decimal("-0.00001"),
        "dec_wide": Decimal("9999999999999999999999999999.9999999999"),
        "day": dt.date(9999, 12, 31),
        "clock": dt.time(0, 0),
        "local": _utc(9999, 12, 31, 23, 59, 59, 999999).replace(tzinfo=None),
        "instant": _utc(1, 1, 1),
        "text": "",
        "token": uuid.UUID(int=2**128 - 1),
        "hash": b"\xff\xff\xff\xff",
        "blob": b"",
        "tags": [],
        "counts": {},
        "place": {"name": None, "spot": None},
        "orders": [],
    },
    {"id": 3, **{field.name: None for field in EVERY_TYPE.fields if field.name != "id"}},
    {
        "id": 4,
        "flag": True,
        "small": 34,
        "big": 34,
        "single": float("-inf"),
        "double": float("nan"),
        "dec_int": Decimal("14.20"),
        "dec_long": Decimal("14.20000"),
        "dec_wide": Decimal("14.2000000000"),
        "day": dt.date(2017, 11, 16),
        "clock": dt.time(22, 31, 8),
        "local": _utc(2017, 11, 16, 22, 31, 8).replace(tzinfo=None),
        "instant": _utc(2017, 11, 16, 22, 31, 8),
        "text": "iceberg, and a text well beyond the sixteen characters that bounds keep",
        "token": uuid.UUID(int=0),
        "hash": b"\x00\x01\x02\x03",
        "blob": b"\x00\x01\x02\x03",
        "tags": ["x"] * 20,
        "counts": {"": 0},
        "place": None,
        "orders": None,
    },
]


def arrow(rows: list[dict[str, Any]], schema: Schema) -> pa.Table:
    """Python rows as the Arrow table of an Iceberg schema, without field ids: as a user would bring them."""
    plain = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.Table.from_pylist([_plain(row) for row in rows], schema=_without_uuids(plain))


def _plain(value: Any) -> Any:
    match value:
        case uuid.UUID():
            return value.bytes
        case list():
            return [_plain(v) for v in value]
        case dict() if all(isinstance(k, str) for k in value):
            return {k: _plain(v) for k, v in value.items()}
        case dict():
            return [(k, _plain(v)) for k, v in value.items()]
        case _:
            return value


def _without_uuids(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(_storage(field.type)) for field in schema])


def _storage(kind: Any) -> Any:
    # from_pylist cannot build nested extension arrays.
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_storage(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_storage(key.type)), item.with_type(_storage(item.type)))
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_storage(kind.value_type)))
    return kind
