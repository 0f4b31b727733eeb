"""Spark's types for Iceberg's, and the page that lists them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
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
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import Unsupported
from frazil.format.schemas import arrow_schema, to_schema
from frazil.on_spark import types

PAGE = Path(__file__).resolve().parents[2] / "docs" / "types.md"
MARK, END = "<!-- generated: make docs -->\n", "\n<!-- end -->"
KINDS: list[tuple[IcebergType, str, str]] = [
    (BooleanType(), "boolean", ""),
    (IntegerType(), "int", "`tinyint` and `smallint` become `int`"),
    (LongType(), "bigint", ""),
    (FloatType(), "float", ""),
    (DoubleType(), "double", ""),
    (DecimalType(10, 2), "decimal(10, 2)", ""),
    (StringType(), "string", "`varchar(n)` and `char(n)` lose their length"),
    (BinaryType(), "binary", ""),
    (FixedType(3), "fixed(3)", "Spark does not know the length; rows of another length are refused"),
    (UUIDType(), "uuid", "text, lower-case with dashes"),
    (DateType(), "date", ""),
    (TimeType(), "time", "microseconds since midnight: Spark's own `time` came with 4.1"),
    (TimestamptzType(), "timestamp", "shown in the session's zone, stored in UTC"),
    (TimestampType(), "timestamp_ntz", ""),
    (StructType(NestedField(3, "a", IntegerType())), "struct<a: int>", ""),
    (ListType(4, StringType(), element_required=False), "array<string>", "written by pyarrow in the executors"),
    (MapType(5, StringType(), 6, LongType(), value_required=False), "map<string, bigint>", "the same"),
]
"""Type, how to write it, note."""
ICEBERG_JAVA: dict[str, str] = {"fixed[3]": "binary", "uuid": "string", "time": "refused"}
"""What Iceberg Java's runtime has for these; for the others, what we have. tests/interop/test_spark_types.py asks."""


def schema_of(kind: IcebergType) -> Schema:
    return Schema(NestedField(1, "c", kind, required=False))


@pytest.mark.parametrize(("kind", "ddl", "note"), KINDS, ids=str)
def test_ddl_words_mean_the_type_they_stand_beside(kind: IcebergType, ddl: str, note: str) -> None:
    assert arrow_schema(to_schema(f"c {ddl}")).types == arrow_schema(to_schema(schema_of(kind))).types


def test_spark_takes_every_type_and_gives_it_back(spark: Any) -> None:
    wanted = types.spark_schema(Schema(*(NestedField(n, f"c{n}", kind) for n, (kind, _, _) in enumerate(KINDS, 1))))
    assert spark.createDataFrame([], wanted).schema == wanted


def test_ids_ride_in_the_metadata_of_columns_and_of_the_fields_of_structs() -> None:
    schema = to_schema("id bigint not null, place struct<city: string, at: struct<x: int>>")
    found = types.spark_schema(schema, ids=True)
    place = found["place"].dataType
    assert [found["id"].nullable, found["place"].nullable] == [False, True]
    assert [each.metadata for each in (found["id"], found["place"], place["city"], place["at"])] == [
        {types.FIELD_ID: schema.find_field(name).field_id} for name in ("id", "place", "place.city", "place.at")
    ]
    assert place["at"].dataType["x"].metadata == {types.FIELD_ID: schema.find_field("place.at.x").field_id}
    assert types.spark_schema(schema)["id"].metadata == {}


@pytest.mark.parametrize(
    ("ddl", "wanted"),
    [
        ("id bigint, at timestamp, price decimal(38, 10), place struct<x: int>", False),
        ("tags array<string>", True),
        ("tags map<string, int>", True),
        ("place struct<tags: array<int>>", True),
        ("id uuid", True),
        ("hash fixed(3)", True),
        ("place struct<at: time>", True),
    ],
)
def test_schemas_that_sparks_own_writer_cannot_write(ddl: str, wanted: bool) -> None:
    assert types.needs_arrow_writer(to_schema(ddl)) is wanted


def test_a_type_of_a_later_format_is_refused() -> None:
    with pytest.raises(Unsupported, match="Spark has no type for Iceberg's timestamp_ns"):
        types.spark_type(TimestampNanoType())


def table() -> str:
    lines = ["| Iceberg | DDL | Arrow | Spark | Iceberg Java in Spark | Note |", "|---|---|---|---|---|---|"]
    for kind, ddl, note in KINDS:
        arrow = arrow_schema(to_schema(schema_of(kind))).field("c").type
        # The fields of Arrow's nested types are named by the reader, and their nullability is Iceberg's.
        shown = str(arrow).partition("<")[0].removeprefix("extension")
        name = "uuid" if isinstance(kind, UUIDType) else shown
        spark = types.spark_type(kind).simpleString()
        java = ICEBERG_JAVA.get(str(kind), spark)
        lines.append(f"| `{_brief(kind)}` | `{ddl}` | `{name}` | `{spark}` | {_code(java)} | {note} |")
    return "\n".join(lines)


def _brief(kind: IcebergType) -> str:
    return str(kind).partition("<")[0]


def _code(word: str) -> str:
    return word if word == "refused" else f"`{word}`"


def test_the_generated_part_of_the_page_is_current() -> None:
    before, mark, rest = PAGE.read_text().partition(MARK)
    _, end, after = rest.partition(END)
    assert mark
    assert end
    whole = f"{before}{mark}{table()}{end}{after}"
    if os.environ.get("FRAZIL_WRITE_DOCS"):
        PAGE.write_text(whole)
    assert PAGE.read_text() == whole, "run `make docs`"
