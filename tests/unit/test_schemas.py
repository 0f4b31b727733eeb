"""Schemas and partitioning: what people may give, what becomes of it, and the sentence for everything else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection
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

from frazil.errors import InvalidInput, SchemaMismatch, Unsupported
from frazil.format.partitions import parse_partitioning, parse_sort
from frazil.format.schemas import MAX_DEPTH, evolve, to_schema

DDL_TYPES: list[tuple[str, IcebergType]] = [
    ("boolean", BooleanType()),
    ("tinyint", IntegerType()),
    ("smallint", IntegerType()),
    ("int", IntegerType()),
    ("integer", IntegerType()),
    ("bigint", LongType()),
    ("long", LongType()),
    ("float", FloatType()),
    ("double", DoubleType()),
    ("decimal(9,2)", DecimalType(9, 2)),
    ("decimal(38, 0)", DecimalType(38, 0)),
    ("decimal", DecimalType(10, 0)),
    ("string", StringType()),
    ("varchar(10)", StringType()),
    ("binary", BinaryType()),
    ("fixed(16)", FixedType(16)),
    ("FIXED[4]", FixedType(4)),
    ("date", DateType()),
    ("time", TimeType()),
    ("timestamp", TimestamptzType()),
    ("timestamptz", TimestamptzType()),
    ("timestamp_ltz", TimestamptzType()),
    ("timestamp_ntz", TimestampType()),
    ("uuid", UUIDType()),
]


@pytest.mark.parametrize(("text", "expected"), DDL_TYPES, ids=[text for text, _ in DDL_TYPES])
def test_ddl_types_are_sparks_with_iceberg_names_beside_them(text: str, expected: IcebergType) -> None:
    assert to_schema(f"a {text}").find_type("a") == expected


def test_ddl_text_gives_nested_types_comments_and_not_null() -> None:
    schema = to_schema(
        "id bigint not null, tags array<string>, s struct<a:int not null comment 'inner', b:fixed[3]>,"
        " m map<string,array<int>> comment 'it is a fixed(9) map', `we ird, fixed(3)` string"
    )
    assert [field.field_id for field in schema.fields] == [1, 2, 3, 4, 5]
    assert schema.find_field("id").required
    assert schema.find_field("s.a").required
    assert schema.find_field("s.a").doc == "inner"
    assert schema.find_field("s.b").field_type == FixedType(3)
    assert schema.find_field("m").doc == "it is a fixed(9) map"
    assert schema.find_type("m.value.element") == IntegerType()
    assert schema.fields[4].name == "we ird, fixed(3)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no columns"),
        ("a", "has no type"),
        ("a foo", "'foo'"),
        ("a int b int", "'b'"),
        ("a int, a string", "twice"),
        ("a int, A string", "by case only"),
        ("s struct<x:int, X:int>", "'s.X' differs from 's.x' by case only"),
        ("a int default 3", "DEFAULT 3"),
        ("a int, primary key (a)", "keys="),
        ("a int primary key", "keys=['a']"),
        ("a decimal(39,2)", "decimal(39, 2)"),
        ("a decimal(3,5)", "decimal(3, 5)"),
        ("a datetime", "DATETIME"),
        ("a map<int>", "MAP<INT>"),
        ("a fixed(0)", "at least 1"),
        ("a int); drop table t; --", "Cannot read"),
        ("a 'unclosed", "Cannot read"),
        ("a int unsigned", "UINT"),
    ],
)
def test_bad_ddl_is_refused_with_a_sentence(text: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        to_schema(text)
    assert words in str(caught.value)


@pytest.mark.parametrize("thing", [5, None, ["id"], {"id": "int"}, pa.int32()])
def test_what_is_not_a_schema_is_refused(thing: object) -> None:
    with pytest.raises(InvalidInput, match="is not a schema"):
        to_schema(thing)


ARROW_TYPES: list[tuple[pa.DataType, IcebergType]] = [
    (pa.bool_(), BooleanType()),
    (pa.int8(), IntegerType()),
    (pa.uint16(), IntegerType()),
    (pa.int32(), IntegerType()),
    (pa.uint32(), LongType()),
    (pa.int64(), LongType()),
    (pa.uint64(), LongType()),
    (pa.float16(), FloatType()),
    (pa.float32(), FloatType()),
    (pa.float64(), DoubleType()),
    (pa.decimal64(9, 2), DecimalType(9, 2)),
    (pa.decimal256(20, 2), DecimalType(20, 2)),
    (pa.string(), StringType()),
    (pa.string_view(), StringType()),
    (pa.dictionary(pa.int8(), pa.large_string()), StringType()),
    (pa.date32(), DateType()),
    (pa.date64(), DateType()),
    (pa.time32("s"), TimeType()),
    (pa.time64("ns"), TimeType()),
    (pa.timestamp("ns"), TimestampType()),
    (pa.timestamp("ms", "Europe/Berlin"), TimestamptzType()),
    (pa.binary_view(), BinaryType()),
    (pa.binary(7), FixedType(7)),
    (pa.uuid(), UUIDType()),
]


@pytest.mark.parametrize(("given", "expected"), ARROW_TYPES, ids=[str(given) for given, _ in ARROW_TYPES])
def test_arrow_types_find_the_iceberg_type_that_holds_them(given: pa.DataType, expected: IcebergType) -> None:
    assert to_schema(pa.schema([pa.field("a", given)])).find_type("a") == expected


def test_arrow_nesting_keeps_nullability_and_gets_fresh_ids() -> None:
    element = pa.field("item", pa.struct([pa.field("x", pa.int32(), nullable=False)]), nullable=False)
    schema = to_schema(
        pa.schema(
            [
                pa.field("l", pa.list_(element), metadata={b"PARQUET:field_id": b"77"}),
                pa.field("m", pa.map_(pa.string(), pa.list_view(pa.int64()))),
            ]
        )
    )
    kinds = [field.field_type for field in schema.fields]
    assert kinds[0] == ListType(3, StructType(NestedField(4, "x", IntegerType(), required=True)), element_required=True)
    assert kinds[1] == MapType(5, StringType(), 6, ListType(7, LongType(), False), value_required=False)


@pytest.mark.parametrize("given", [pa.null(), pa.duration("s"), pa.month_day_nano_interval(), pa.decimal256(50, 1)])
def test_arrow_types_that_iceberg_lacks_are_refused_by_column(given: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match=r"'x\.deep'"):
        to_schema(pa.schema([pa.field("x", pa.struct([("deep", given)]))]))


class _SparkStruct:
    """The two methods of pyspark.sql.types.StructType that are used, with the values it gives."""

    def __init__(self, fields: list[dict[str, Any]]) -> None:
        self._fields = fields

    def jsonValue(self) -> dict[str, Any]:  # noqa: N802
        return {"type": "struct", "fields": self._fields}

    def simpleString(self) -> str:  # noqa: N802
        return "struct<…>"


def _spark(name: str, kind: Any, nullable: bool = True, **metadata: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def test_a_spark_struct_type_is_read_by_its_json_form() -> None:
    inner = {"type": "struct", "fields": [_spark("x", "short", nullable=False)]}
    schema = to_schema(
        _SparkStruct(
            [
                _spark("id", "long", nullable=False, comment="the key"),
                _spark("t", "timestamp"),
                _spark("n", "timestamp_ntz"),
                _spark("d", "decimal(10,2)"),
                _spark("v", "varchar(9)"),
                _spark("a", {"type": "array", "elementType": inner, "containsNull": False}),
                _spark("m", {"type": "map", "keyType": "string", "valueType": "byte", "valueContainsNull": True}),
            ]
        )
    )
    assert schema.find_field("id").required
    assert schema.find_field("id").doc == "the key"
    assert schema.find_type("t") == TimestamptzType()
    assert schema.find_type("n") == TimestampType()
    assert schema.find_type("d") == DecimalType(10, 2)
    assert schema.find_type("v") == StringType()
    assert schema.find_field("a.element").required
    assert schema.find_field("a.element.x").required
    assert schema.find_type("m.value") == IntegerType()
    with pytest.raises(InvalidInput, match="interval"):
        to_schema(_SparkStruct([_spark("i", "interval day to second")]))


def test_a_pyiceberg_schema_gets_fresh_ids_and_keeps_its_keys() -> None:
    given = Schema(
        NestedField(40, "a", StringType()), NestedField(30, "id", LongType(), required=True), identifier_field_ids=[30]
    )
    schema = to_schema(given)
    assert [field.field_id for field in schema.fields] == [1, 2]
    assert schema.identifier_field_ids == [2]


def test_types_of_later_format_versions_are_refused() -> None:
    with pytest.raises(InvalidInput, match="timestamp_ns"):
        to_schema(Schema(NestedField(1, "a", ListType(2, TimestampNanoType(), True))))


def _deep(levels: int) -> str:
    return "a " + "struct<a:" * (levels - 1) + "int" + ">" * (levels - 1)


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 500])
def test_schemas_nested_without_end_are_refused(levels: int) -> None:
    kind: pa.DataType = pa.int32()
    for _ in range(levels - 1):
        kind = pa.struct([("a", kind)])
    for given in (_deep(levels), pa.schema([("a", kind)])):
        with pytest.raises(InvalidInput, match="levels deep"):
            to_schema(given)
    with pytest.raises(SchemaMismatch, match="levels deep"):
        evolve(to_schema("id int"), 1, pa.schema([("a", kind)]))
    assert to_schema(_deep(MAX_DEPTH)).highest_field_id == MAX_DEPTH


@pytest.mark.parametrize("default", ["initial_default", "write_default"])
def test_columns_with_defaults_are_refused(default: str) -> None:
    inner = NestedField(2, "x", IntegerType(), required=False, **{default: 7})  # type: ignore[arg-type]
    for fields in ([inner], [NestedField(1, "s", StructType(inner), required=False)]):
        with pytest.raises(Unsupported, match="x' has a default"):
            to_schema(Schema(*fields))


@pytest.mark.parametrize("kind", [pa.struct([]), pa.struct([("y", pa.struct([]))]), pa.list_(pa.struct([]))])
def test_a_struct_without_fields_does_not_grow_a_schema(kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="struct without fields"):
        evolve(to_schema("id int"), 1, pa.schema([("x", kind)]))
    with pytest.raises(SchemaMismatch, match="struct without fields"):
        evolve(to_schema("s struct<a:int>"), 2, pa.schema([("s", pa.struct([("x", kind)]))]))


@pytest.mark.parametrize(
    "text", ["a fixed", "a FIXED not null", "a array<fixed>, b int", "s struct<f: fixed>", "a `fixed` comment 'x'"]
)
def test_fixed_without_a_length_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"fixed has no length.*fixed\(16\)"):
        to_schema(text)


def test_a_column_may_be_named_fixed() -> None:
    found = to_schema("fixed int, s struct<fixed: fixed(2)>, t string comment 'fixed'")
    assert [each.name for each in found.fields] == ["fixed", "s", "t"]
    assert found.find_type("s.fixed") == FixedType(2)


def test_a_name_with_a_dot_needs_back_ticks() -> None:
    with pytest.raises(InvalidInput, match=r"a\.b has a dot.*`a\.b`"):
        to_schema("a.b int")
    assert to_schema("`a.b` int").fields[0].name == "a.b"


def test_keys_imply_not_null_and_identifier_fields() -> None:
    schema = to_schema("a string, id bigint, f double", keys=["ID", "a"])
    assert schema.identifier_field_ids == [2, 1]
    assert schema.find_field("id").required
    assert schema.find_field("a").required
    assert not schema.find_field("f").required


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["idd"], "Did you mean 'id'?"),
        (["f"], "cannot be a key"),
        (["l"], "cannot be a key"),
        (["id", "id"], "twice"),
        (["s.x"], "not a column"),
        ([3], "not a column"),
    ],
)
def test_bad_keys_are_refused(keys: list[str], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        to_schema("id bigint, f double, l array<int>, s struct<x:int>", keys=keys)
    assert words in str(caught.value)


# Growth

BASE = to_schema(
    "id int not null, f float, d decimal(9,2), s struct<a:int>, l array<struct<x:int>>, m map<string,int>,"
    " ts timestamp",
    keys=["id"],
)


def grow(*fields: tuple[str, pa.DataType]) -> tuple[Schema, int] | None:
    return evolve(BASE, BASE.highest_field_id, pa.schema([pa.field(name, kind) for name, kind in fields]))


def test_nothing_changes_when_the_incoming_types_fit() -> None:
    assert (
        grow(("ID", pa.int8()), ("d", pa.decimal128(5, 1)), ("f", pa.float16()), ("ts", pa.timestamp("ns", "UTC")))
        is None
    )
    assert grow(("d", pa.int64()), ("s", pa.null())) is None


def test_new_columns_are_appended_as_optional_with_fresh_ids() -> None:
    last = BASE.highest_field_id
    grown = grow(
        ("id", pa.int32()),
        ("new", pa.list_(pa.struct([("q", pa.int8())]))),
        ("s", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("l", pa.list_(pa.struct([("y", pa.date32())]))),
    )
    assert grown is not None
    schema, new_last = grown
    assert new_last == last + 5
    assert [field.name for field in schema.fields][-1] == "new"
    assert not schema.find_field("new").required
    ids = {schema.find_field(name).field_id for name in ("new", "new.element", "new.element.q", "s.b", "l.element.y")}
    assert ids == set(range(last + 1, last + 6))
    assert schema.find_field("s.a").field_id == BASE.find_field("s.a").field_id
    assert schema.identifier_field_ids == [1]
    assert schema.find_field("id").required


def test_types_are_widened_as_iceberg_allows() -> None:
    grown = grow(
        ("id", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(12, 1)), ("s", pa.struct([("a", pa.uint32())]))
    )
    assert grown is not None
    schema, last = grown
    assert last == BASE.highest_field_id
    assert schema.find_type("id") == LongType()
    assert schema.find_type("f") == DoubleType()
    assert schema.find_type("d") == DecimalType(13, 2)
    assert schema.find_type("s.a") == LongType()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("id", pa.string()),
        ("id", pa.float64()),
        ("ts", pa.timestamp("us")),
        ("ts", pa.date32()),
        ("s", pa.int32()),
        ("l", pa.list_(pa.int32())),
        ("m", pa.map_(pa.int32(), pa.int32())),
        ("new", pa.null()),
        ("new", pa.duration("s")),
        ("new", pa.struct([("x", pa.int8()), ("X", pa.int8())])),
    ],
)
def test_incompatible_types_do_not_grow(name: str, kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=name):
        grow((name, kind))


# Partitioning and sort orders

EVENTS = to_schema(
    "id bigint, ts timestamp, d date, name string, s struct<a:int,t:timestamp_ntz>, l array<struct<x:int>>, b_day int,"
    " b timestamp, f double, `we ird` string"
)


def test_partitioning_text_gives_the_names_of_iceberg_java() -> None:
    spec = parse_partitioning(
        ["days(ts)", "Bucket(16, ID)", "truncate(4,name)", "s.a", "hours(s.t)", "void(f)", "`we ird`", "month(d)"],
        EVENTS,
    )
    assert [(f.field_id, f.name, str(f.transform)) for f in spec.fields] == [
        (1000, "ts_day", "day"),
        (1001, "id_bucket", "bucket[16]"),
        (1002, "name_trunc", "truncate[4]"),
        (1003, "s.a", "identity"),
        (1004, "s.t_hour", "hour"),
        (1005, "f_null", "void"),
        (1006, "we ird", "identity"),
        (1007, "d_month", "month"),
    ]
    assert spec.fields[3].source_id == EVENTS.find_field("s.a").field_id
    assert parse_partitioning([], EVENTS).is_unpartitioned()


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["day(id)"], "type long"),
        (["hour(d)"], "type date"),
        (["bucket(4, f)"], "type double"),
        (["bucket(0, id)"], "above 0"),
        (["bucket(-1, id)"], "above 0"),
        (["truncate(x, name)"], "above 0"),
        (["bucket(id)"], "wrong arguments"),
        (["day(1, ts)"], "wrong arguments"),
        (["dya(ts)"], "Did you mean 'day'?"),
        (["frobnicate(ts)"], "unknown transform"),
        (["day(tss)"], "Did you mean 'ts'?"),
        (["day(ts"], "does not name a column"),
        (["l.element.x"], "does not name a column"),
        (["l"], "is a list"),
        (["s"], "is a struct"),
        (["id", "identity(id)"], "twice"),
        (["day(ts)", "hour(ts)"], "twice"),
        (["bucket(4, id)", "bucket(8, id)"], "twice, as bucket[4](id) and as bucket[8](id)"),
        (["day(b)"], "a column has that name"),
        ([""], "is not a transform"),
        ([7], "is not a transform"),
    ],
)
def test_bad_partitioning_is_refused_with_its_text_and_an_example(texts: list[str], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_partitioning(texts, EVENTS)
    message = str(caught.value)
    assert words in message
    assert "Keep one" in message or "Rename" in message or "partition_by=['day(ts)', 'bucket(16, user_id)']" in message


def test_sort_text_gives_directions_and_icebergs_default_null_order() -> None:
    order = parse_sort(["ts desc", "id", "bucket(16,id) asc nulls last", "NAME DESC NULLS FIRST"], EVENTS)
    assert order.order_id == 1
    assert [(str(f.transform), f.direction, f.null_order) for f in order.fields] == [
        ("identity", SortDirection.DESC, NullOrder.NULLS_LAST),
        ("identity", SortDirection.ASC, NullOrder.NULLS_FIRST),
        ("bucket[16]", SortDirection.ASC, NullOrder.NULLS_LAST),
        ("identity", SortDirection.DESC, NullOrder.NULLS_FIRST),
    ]
    assert parse_sort([], EVENTS).order_id == 0


@pytest.mark.parametrize("text", ["ts up", "nope", "day(id) desc", "ts desc nulls", "l"])
def test_bad_sort_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match="sort_by="):
        parse_sort([text], EVENTS)
