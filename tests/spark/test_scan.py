"""Reading into Spark: whatever the table's history, the rows are those that Arrow reads."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
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

import frazil
from frazil.errors import CorruptMetadata, InvalidInput, StorageError, Unsupported
from frazil.format.storage import Storage
from frazil.on_spark import file_columns, paths
from frazil.on_spark import scan as scanning
from frazil.on_spark.hashing import distinct_hashes, hash_int, hash_string
from frazil.on_spark.scan import FILE, POSITION, numbers_of, read_tasks, relation, scan_to_spark
from frazil.read.scan import Scan
from unit.written import Written

# PySpark leaves the sockets that rows came through to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def optional(field_id: int, name: str, kind: IcebergType) -> NestedField:
    return NestedField(field_id, name, kind, required=False)


def plain(value: Any) -> Any:
    """A value in a form that both engines give the same."""
    match value:
        case uuid.UUID():
            return str(value)
        case dt.time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        case dt.datetime():
            return value.astimezone(dt.UTC) if value.tzinfo else value
        case float():
            return repr(value)
        case bytes() | bytearray():
            return bytes(value)
        case dict():
            return tuple((key, plain(each)) for key, each in value.items())
        case list() | tuple():
            return tuple(plain(each) for each in value)
    return value


def multiset(table: pa.Table) -> Counter[Any]:
    return Counter(plain(row) for row in table.to_pylist())


def assert_same(scan: Scan, spark: Any) -> Any:
    frame = scan_to_spark(scan, spark)
    expected = scan.to_arrow()
    assert frame.columns == expected.schema.names
    assert multiset(frame.toArrow()) == multiset(expected)
    return frame


@contextlib.contextmanager
def settings(spark: Any, **given: str) -> Iterator[None]:
    names = {name.replace("__", "."): value for name, value in given.items()}
    before = {name: spark.conf.get(name, None) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


HOSTILE = {
    "spark__sql__ansi__enabled": "false",
    "spark__sql__caseSensitive": "true",
    "spark__sql__session__timeZone": "Asia/Kathmandu",
    "spark__sql__parquet__enableVectorizedReader": "false",
    "spark__sql__parquet__fieldId__read__enabled": "true",
    "spark__sql__parquet__fieldId__read__ignoreMissing": "true",
    "spark__sql__parquet__inferTimestampNTZ__enabled": "false",
    "spark__sql__parquet__binaryAsString": "true",
    "spark__sql__parquet__datetimeRebaseModeInRead": "LEGACY",
    "spark__sql__parquet__int96RebaseModeInRead": "LEGACY",
    "spark__sql__parquet__mergeSchema": "true",
    "spark__sql__parquet__recordLevelFilter__enabled": "true",
    "spark__sql__autoBroadcastJoinThreshold": "-1",
    "spark__sql__adaptive__enabled": "false",
    "spark__sql__sources__parallelPartitionDiscovery__threshold": "0",
    "spark__sql__optimizer__nestedSchemaPruning__enabled": "false",
}

EVERY_TYPE = Schema(
    optional(1, "b", BooleanType()),
    optional(2, "i", IntegerType()),
    optional(3, "l", LongType()),
    optional(4, "f", FloatType()),
    optional(5, "d", DoubleType()),
    optional(6, "n", DecimalType(20, 4)),
    optional(7, "s", StringType()),
    optional(8, "day", DateType()),
    optional(9, "t", TimeType()),
    optional(10, "ts", TimestampType()),
    optional(11, "tz", TimestamptzType()),
    optional(12, "u", UUIDType()),
    optional(13, "fx", FixedType(3)),
    optional(14, "raw", BinaryType()),
    optional(15, "st", StructType(optional(16, "x", LongType()), optional(17, "u", UUIDType()))),
    optional(18, "li", ListType(19, UUIDType(), element_required=False)),
    optional(20, "m", MapType(21, StringType(), 22, TimeType(), value_required=False)),
)
ROW = {
    "b": True,
    "i": 7,
    "l": 1 << 40,
    "f": 0.5,
    "d": float("nan"),
    "n": Decimal("12.3400"),
    "s": "é",
    "day": dt.date(1200, 2, 29),
    "t": dt.time(1, 2, 3, 4),
    "ts": dt.datetime(1500, 3, 4, 5, 6, 7, 8),  # noqa: DTZ001 - the type has no zone
    "tz": dt.datetime(1899, 12, 31, 23, 59, 59, 999_999, dt.UTC),
    "u": uuid.UUID(int=1 << 120).bytes,
    "fx": b"\x00\xff1",
    "raw": b"\xfe",
    "st": {"x": 1, "u": uuid.UUID(int=5).bytes},
    "li": [uuid.UUID(int=6).bytes, None],
    "m": [("k", dt.time(0, 0, 1)), ("z", None)],
}


def storable(kind: Any) -> Any:
    """An Arrow type that pyarrow makes of Python values also inside of others: a uuid there is its bytes."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(storable(each.type)) for each in kind])
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(storable(kind.value_type)))
    return kind


@pytest.mark.everywhere
@pytest.mark.parametrize("hostile", [False, True])
def test_every_type_comes_out_as_it_does_from_arrow(tmp_path: Path, spark: Any, hostile: bool) -> None:
    table = Written(tmp_path, [EVERY_TYPE])
    kinds = pa.schema([each.with_type(storable(each.type)) for each in schema_to_pyarrow(EVERY_TYPE)])
    table.commit(table.data([ROW, {}, {**ROW, "st": {"x": None, "u": None}}], arrow=kinds, statistics=False))
    with settings(spark, **HOSTILE) if hostile else contextlib.nullcontext():
        frame = assert_same(table.scan(), spark)
        for where in ("tz = '1899-12-31 23:59:59.999999'", "ts < '1500-03-05'", "st.x = 1", "day is null", "i in (7)"):
            assert_same(table.scan(where), spark)
            assert_same(table.scan(where, ("s",)), spark)
        assert_same(table.scan(None, ("st.u", "b")), spark)
    # Made in one session, run in another.
    expected = multiset(table.scan().to_arrow())
    with contextlib.nullcontext() if hostile else settings(spark, **HOSTILE):
        assert multiset(frame.toArrow()) == expected


def test_p37_no_setting_makes_lost_rows_of_lost_files(tmp_path: Path, spark: Any) -> None:
    lenient = {"spark__sql__files__ignoreMissingFiles": "true", "spark__sql__files__ignoreCorruptFiles": "true"}
    table = Written(tmp_path, [Schema(optional(1, "id", LongType()))])
    table.commit(*(table.data([{"id": number}]) for number in range(3)))
    victim = Path(table.scan().files()[1].path)
    kept = victim.read_bytes()
    for before, after in ((True, False), (False, True), (True, True)):
        for ruin in (victim.unlink, lambda: victim.write_bytes(b"PAR1 or so")):
            victim.write_bytes(kept)
            with settings(spark, **(lenient if before else {})):
                frame = scan_to_spark(table.scan(), spark)
            ruin()
            with settings(spark, **(lenient if after else {})), pytest.raises(Exception, match="FAILED_READ_FILE"):
                frame.collect()
    victim.unlink()
    with settings(spark, **lenient), pytest.raises(StorageError, match="cannot find"):
        scan_to_spark(table.scan(), spark)


def test_a_file_that_spark_would_leave_out_is_refused(tmp_path: Path, spark: Any) -> None:
    with pytest.raises(Unsupported, match="Spark ignores files"):
        relation(spark, [str(tmp_path / "_a.parquet")], "id bigint", Storage())


# Histories of columns

ID = optional(1, "id", LongType())


def evolved(tmp_path: Path, *schemas: Schema) -> Written:
    return Written(tmp_path, [Schema(*each.fields, schema_id=i) for i, each in enumerate(schemas)])


def test_trap_2_a_name_that_meant_another_column_once(tmp_path: Path, spark: Any) -> None:
    old = Schema(ID, optional(2, "a", LongType()))
    new = Schema(ID, optional(2, "b", LongType()), optional(3, "a", LongType()))
    table = evolved(tmp_path, old, new)
    table.commit(table.data([{"id": 1, "a": 10}, {"id": 2, "a": None}], schema=old))
    table.commit(table.data([{"id": 3, "a": 30, "b": 31}, {"id": 4}], schema=new))
    for where in (None, "a is null", "b is null", "a = 10", "b = 10", "a is not null and id > 0", "b <=> null"):
        frame = assert_same(table.scan(where), spark)
        with settings(spark, spark__sql__parquet__fieldId__read__enabled="true"):
            assert multiset(frame.toArrow()) == multiset(table.scan(where).to_arrow())
    # As it was then.
    assert_same(table.scan(snapshot=1), spark)


def test_a_name_that_came_back_in_another_case(tmp_path: Path, spark: Any) -> None:
    old, new = Schema(ID, optional(2, "Amount", LongType())), Schema(ID, optional(3, "amount", LongType()))
    table = evolved(tmp_path, old, Schema(ID), new)
    table.commit(table.data([{"id": 1, "Amount": 10}], schema=old))
    table.commit(table.data([{"id": 2, "amount": 20}], schema=new))
    assert_same(table.scan(), spark)
    with settings(spark, spark__sql__caseSensitive="true"):
        assert_same(table.scan("amount is null"), spark)


def test_columns_that_differ_in_case_only(tmp_path: Path, spark: Any) -> None:
    table = evolved(tmp_path, Schema(ID), Schema(ID, optional(2, "Id", LongType())))
    table.commit(table.data([{"id": 1}], schema=table.schemas[0]))
    table.commit(table.data([{"id": 2, "Id": 3}]))
    with pytest.raises(InvalidInput, match="'id' and 'Id' are the same to this Spark session"):
        scan_to_spark(table.scan(), spark)
    with pytest.raises(InvalidInput, match="caseSensitive"):
        scan_to_spark(table.scan(None, ("id",), case_sensitive=True), spark)
    with settings(spark, spark__sql__caseSensitive="true"):
        assert_same(table.scan(case_sensitive=True), spark)
        assert_same(table.scan("Id is null", ("id",), case_sensitive=True), spark)


def test_widened_columns(tmp_path: Path, spark: Any) -> None:
    old = Schema(
        optional(1, "i", IntegerType()),
        optional(2, "f", FloatType()),
        optional(3, "n", DecimalType(9, 2)),
        optional(4, "li", ListType(5, IntegerType(), element_required=False)),
    )
    new = Schema(
        optional(1, "i", LongType()),
        optional(2, "f", DoubleType()),
        optional(3, "n", DecimalType(30, 2)),
        optional(4, "li", ListType(5, LongType(), element_required=False)),
    )
    table = evolved(tmp_path, old, new)
    table.commit(table.data([{"i": -5, "f": 0.1, "n": Decimal("1.50"), "li": [1, None]}, {}], schema=old))
    table.commit(table.data([{"i": 1 << 40, "f": 0.1, "n": Decimal("123456789012.50"), "li": [1 << 40]}]))
    for where in (None, "i < 10000000000", "i = 4294967291", "f > 0.1", "n = 1.5", "i is null"):
        assert_same(table.scan(where), spark)


def test_a_changing_struct(tmp_path: Path, spark: Any) -> None:
    def schema(*fields: NestedField) -> Schema:
        inner = StructType(*fields)
        return Schema(
            optional(1, "s", inner),
            optional(2, "li", ListType(3, _shifted(inner, 20), element_required=False)),
            optional(4, "m", MapType(5, StringType(), 6, _shifted(inner, 40), value_required=False)),
        )

    old = schema(optional(7, "x", IntegerType()), optional(8, "y", StringType()))
    new = schema(optional(9, "x", StringType()), optional(7, "z", LongType()))
    table = evolved(tmp_path, old, new)
    one = {"x": 1, "y": "q"}
    rows: list[dict[str, Any]] = [
        {"s": one, "li": [one, None], "m": [("k", one)]},
        {"s": None, "li": None, "m": None},
        {"s": {"x": None, "y": None}, "li": [], "m": []},
    ]
    table.commit(table.data(rows, schema=old, statistics=False))
    now = {"x": "new", "z": 1 << 40}
    table.commit(table.data([{"s": now, "li": [now], "m": [("k", now), ("n", None)]}], statistics=False))
    for hostile in ({}, HOSTILE):
        with settings(spark, **hostile):
            for where in (None, "s is null", "s.z = 1", "s.x is null", "s.x is null and s is not null"):
                for columns in (None, ("s.x",), ("s.z", "m"), ("li",)):
                    assert_same(table.scan(where, columns), spark)


def _shifted(inner: StructType, by: int) -> StructType:
    return StructType(*(optional(each.field_id + by, each.name, each.field_type) for each in inner.fields))


def test_names_that_files_spell_otherwise(spark: Any, lake: frazil.Lake) -> None:
    table = lake.create_table("shop.odd", "`a.b` bigint, `c d` string, `e``f` bigint, s struct<`x.y`: bigint>")
    table.append(pa.table({"a.b": [1, 2], "c d": ["x", None], "e`f": [5, 6], "s": [{"x.y": 1}, None]}))
    for where in (None, "`a.b` = 2", "`c d` is null", "s.`x.y` = 1"):
        assert_same(table.scan(where), spark)
    assert_same(table.scan(columns=["a.b"]), spark)


@pytest.mark.everywhere
@pytest.mark.parametrize("many", [False, True])
def test_trap_3_files_without_ids_are_read_by_name_mapping(
    tmp_path: Path, spark: Any, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_columns, "_BY_DRIVER", 0 if many else 200)
    schema = Schema(ID, optional(2, "s", StructType(optional(3, "x", LongType()))))
    table = Written(tmp_path, [schema])
    row: dict[str, Any] = {"id": 1, "s": {"x": 2}}
    table.commit(table.data([row], arrow=schema_to_pyarrow(schema, include_field_ids=False)), table.data([row]))
    mapping = json.loads(create_mapping_from_schema(schema).model_dump_json())
    mapping[0]["names"] = ["was", "id"]
    table.properties["schema.name-mapping.default"] = json.dumps(mapping)
    kinds: dict[str, Any] = {"was": pa.int32(), "unknown": pa.string()}
    other = pa.schema(kinds)
    table.commit(table.data([{"was": 5, "unknown": "q"}], arrow=other, statistics=False))
    for where in (None, "id = 5", "s.x = 2", "s is null"):
        assert_same(table.scan(where), spark)
    Path(table.scan().files()[0].path).unlink()
    again = Written(tmp_path, [schema], properties=table.properties, snapshots=table.snapshots)
    with pytest.raises(StorageError, match="refers to the file"):
        scan_to_spark(again.scan(), spark)


def test_types_of_other_writers(tmp_path: Path, spark: Any) -> None:
    schema = Schema(
        optional(1, "i", IntegerType()),
        optional(2, "l", LongType()),
        optional(3, "t", TimeType()),
        optional(4, "ts", TimestampType()),
        optional(5, "tz", TimestamptzType()),
        optional(6, "s", StringType()),
        optional(7, "n", DecimalType(9, 2)),
        optional(8, "nothing", LongType()),
    )
    table = Written(tmp_path, [schema])
    table.properties["schema.name-mapping.default"] = create_mapping_from_schema(schema).model_dump_json()
    moment = dt.datetime(2020, 1, 2, 3, 4, 5, 678_000)  # noqa: DTZ001 - as the file has it
    kinds: dict[str, Any] = {
        "i": pa.int64(), "l": pa.uint32(), "t": pa.time32("ms"), "ts": pa.timestamp("ms", "UTC"),
        "tz": pa.timestamp("us"), "s": pa.dictionary(pa.int32(), pa.string()), "n": pa.decimal128(18, 2),
        "nothing": pa.null(),
    }  # fmt: skip
    row = {
        "i": 1,
        "l": 1 << 31,
        "t": dt.time(1, 2, 3, 4_000),
        "ts": moment,
        "tz": moment,
        "s": "x",
        "n": Decimal("1.50"),
    }
    table.commit(table.data([row, {}], arrow=pa.schema(list(kinds.items())), statistics=False))
    assert_same(table.scan(), spark)
    table.commit(table.data([{"i": 1 << 40}], arrow=pa.schema([("i", pa.int64())]), statistics=False))
    for ansi in ("true", "false"):
        with (
            settings(spark, spark__sql__ansi__enabled=ansi),
            pytest.raises(Exception, match="a value that is not a valid int"),
        ):
            scan_to_spark(table.scan(), spark).collect()
    table.commit(table.data([{"l": "x"}], arrow=pa.schema([("l", pa.string())]), statistics=False))
    with pytest.raises(CorruptMetadata, match="cannot be read as long"):
        scan_to_spark(table.scan(), spark)
    wrong = table.data([{"ts": moment}], arrow=pa.schema([("ts", pa.timestamp("ns"))]), statistics=False)
    table.commit(wrong, keep=False)
    with pytest.raises(Unsupported, match="Spark cannot read"):
        scan_to_spark(table.scan(), spark)


def test_old_timestamps_are_not_shifted(tmp_path: Path, spark: Any) -> None:
    schema = Schema(optional(1, "tz", TimestamptzType()), optional(2, "ts", TimestampType()))
    table = Written(tmp_path, [schema])
    table.properties["schema.name-mapping.default"] = create_mapping_from_schema(schema).model_dump_json()
    file = table.data([], arrow=pa.schema([("tz", pa.timestamp("us")), ("ts", pa.timestamp("us"))]), statistics=False)
    moment = dt.datetime(1800, 1, 2, 3, 4, 5, 678_901)  # noqa: DTZ001 - as the file has it
    old = pa.table({"tz": pa.array([moment]), "ts": pa.array([moment])})
    pq.write_table(old, file.file_path, use_deprecated_int96_timestamps=True)
    table.commit(type(file)(file.file_path, 1, Path(file.file_path).stat().st_size))
    assert_same(table.scan(), spark)
    with (
        settings(spark, spark__sql__parquet__int96TimestampConversion="true"),
        pytest.raises(Unsupported, match="INT96"),
    ):
        scan_to_spark(table.scan(), spark)


def test_a_column_that_only_the_partition_has(tmp_path: Path, spark: Any) -> None:
    kinds: list[tuple[IcebergType, Any]] = [
        (DateType(), -200_000), (UUIDType(), uuid.UUID(int=9).bytes), (TimestampType(), 5),
        (TimestamptzType(), -62_000_000_000_000_001), (DecimalType(9, 2), Decimal("1.50")), (BooleanType(), False),
        (DoubleType(), float("nan")), (StringType(), "a'b"), (BinaryType(), b"\x00\xff"), (TimeType(), 5),
        (FloatType(), 0.10000000149011612), (LongType(), None),
    ]  # fmt: skip
    fields = [optional(i + 2, f"p{i}", kind) for i, (kind, _) in enumerate(kinds)]
    spec = PartitionSpec(*(PartitionField(i + 2, 1000 + i, IdentityTransform(), f"p{i}") for i in range(len(kinds))))
    table = Written(tmp_path, [Schema(ID, *fields)], [spec])
    values = tuple(value for _, value in kinds)
    file = table.data([{"id": 1}], schema=Schema(ID), partition=values, statistics=False)
    table.commit(file)
    table.commit(table.data([{"id": 2}], schema=Schema(ID), partition=(5, *values[1:]), statistics=False))
    for hostile in ({}, HOSTILE):
        with settings(spark, **hostile):
            for where in (None, "p7 = 'a''b'", "p0 = '1970-01-06'", "p11 is null", "p0 < '1960-01-01' and id = 1"):
                assert_same(table.scan(where), spark)
                assert_same(table.scan(where, ("id",)), spark)


# Deletes


@pytest.fixture(params=["here", "there"])
def positions_read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Few position deletes are read by this process, many by Spark."""
    if request.param == "there":
        monkeypatch.setattr(scanning, "_READ_HERE_FILES", -1)
    return str(request.param)


@pytest.fixture
def deleted(tmp_path: Path) -> Written:
    table = Written(tmp_path, [Schema(ID, optional(2, "v", StringType()))])
    files = [table.data([{"id": 10 * n + i, "v": "x" * i} for i in range(10)], row_group=3) for n in range(4)]
    table.commit(*files)
    table.commit(
        table.position_deletes([(files[0].file_path, 0), (files[0].file_path, 0), (files[0].file_path, 9)], named=True)
    )
    table.commit(
        table.position_deletes([(files[n].file_path, 4) for n in (0, 1, 2)] + [(str(tmp_path / "gone.parquet"), 1)])
    )
    # Younger than the deletes, which name rows of it all the same.
    young = table.data([{"id": 100 + i} for i in range(3)])
    table.commit(young)
    return table


@pytest.mark.usefixtures("positions_read")
@pytest.mark.parametrize("listed", [400, 0])
def test_position_deletes(deleted: Written, spark: Any, listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_MOST_LISTED", listed)
    for where in (None, "id > 7", "id = 0", "v is null", "id in (4, 9, 14, 24, 25, 101)"):
        assert_same(deleted.scan(where), spark)
        assert_same(deleted.scan(where, ("v",)), spark)
    pushed = explained(scan_to_spark(deleted.scan("id >= 7"), spark))
    assert "GreaterThanOrEqual(id,7)" in pushed


@pytest.mark.usefixtures("positions_read")
def test_a_position_delete_reaches_only_the_tasks_that_list_it(tmp_path: Path, spark: Any) -> None:
    table = Written(tmp_path, [Schema(ID)])
    path = table.path("data")
    first = table.data([{"id": 1}, {"id": 2}])
    table.commit(first, table.data([{"id": 5}]))
    young = table.data([{"id": 3}, {"id": 4}])
    # It is older than a file that it names, and another delete does apply to that file.
    table.commit(table.position_deletes([(first.file_path, 0), (young.file_path, 0)]))
    table.commit(young)
    table.commit(table.position_deletes([(young.file_path, 1), (path, 1)]))
    assert_same(table.scan(), spark)
    bare = [type(task)(task.file, task.sequence_number, task.snapshot_id) for task in table.scan().tasks()]
    scan = table.scan()
    for tasks, expected in ((bare, 5), ([*scan.tasks(), *bare], 8), ([*bare, *bare], 10)):
        frame = read_tasks(spark, tasks, storage=scan._storage, metadata=scan._metadata, schema=scan._wanted)
        assert frame.count() == expected


def test_rows_with_their_file_and_number(deleted: Written, spark: Any) -> None:
    scan = deleted.scan("id > 3")
    tasks = scan.tasks()
    frame = read_tasks(
        spark, tasks, storage=scan._storage, metadata=scan._metadata, schema=scan._wanted, numbered="number"
    )
    assert frame.columns == ["id", "v", FILE, POSITION]
    assert dict(frame.dtypes)[FILE] == "int"
    rows = frame.collect()
    assert len(rows) == scan.count()
    for row in rows:
        table = pq.read_table(tasks[row[FILE]].file.file_path)
        assert table["id"][row[POSITION]].as_py() == row["id"]
    none = read_tasks(spark, [], storage=scan._storage, metadata=scan._metadata, schema=scan._wanted, numbered="number")
    assert none.columns == frame.columns


@pytest.mark.usefixtures("positions_read")
def test_positions_beyond_a_file_take_nothing_out_of_another(tmp_path: Path, spark: Any) -> None:
    table = Written(tmp_path, [Schema(ID)])
    files = [table.data([{"id": 10 * n + i} for i in range(3)]) for n in range(2)]
    table.commit(*files)
    # Rows are told apart by the file's hash with the row's number in its lowest bits: so large a one is another's.
    tasks = table.scan().tasks()
    one, other = ([each for each, at in numbers_of(tasks).items() if at == n] for n in range(2))
    strange = [mine ^ theirs ^ 1 for mine, theirs in zip(one, other, strict=True)]
    table.commit(table.position_deletes([(tasks[0].file.file_path, each) for each in (*strange, -1)]))
    assert scan_to_spark(table.scan(), spark).count() == 6


@pytest.mark.usefixtures("positions_read")
@pytest.mark.parametrize("listed", [400, 0])
@pytest.mark.parametrize(
    "wrong",
    [{"file_size_in_bytes": 5}, {"record_count": 1}, {"record_count": 0}],
    ids=lambda each: str(next(iter(each))),
)
@pytest.mark.parametrize("numbered", ["no", "number", "mark"])
def test_files_that_are_not_as_the_metadata_says_fail_the_job(
    deleted: Written,
    spark: Any,
    wrong: dict[str, Any],
    numbered: Any,
    listed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the rows are asked for: those that were deleted must not come back."""
    monkeypatch.setattr(scanning, "_MOST_LISTED", listed)
    scan = deleted.scan()
    tasks = [replace(task, file=replace(task.file, **wrong)) for task in scan.tasks()[:1]]
    assert any(task.deletes for task in tasks)
    how: Any = {"storage": scan._storage, "metadata": scan._metadata, "schema": scan._wanted}
    frame = read_tasks(spark, tasks, **how, numbered=numbered)
    if listed == 0 and "file_size_in_bytes" in wrong:
        # More files than that are told apart by their names.
        assert frame.count() == 7
        return
    with pytest.raises(Exception, match="an unexpected file"):
        frame.count()


def test_rows_of_unknown_number_are_read(deleted: Written, spark: Any) -> None:
    scan = deleted.scan()
    tasks = [replace(task, file=replace(task.file, record_count=-1)) for task in scan.tasks()]
    how: Any = {"storage": scan._storage, "metadata": scan._metadata, "schema": scan._wanted}
    assert read_tasks(spark, tasks, **how).count() == scan.count()


def test_a_delete_file_of_other_columns_is_no_delete_file(tmp_path: Path, spark: Any, positions_read: str) -> None:
    table = Written(tmp_path, [Schema(ID)])
    data = table.data([{"id": 1}])
    table.commit(data)
    file = table.position_deletes([(data.file_path, 0)])
    pq.write_table(pa.table({"other": [1]}), file.file_path)
    table.commit(file)
    says = "without file or position" if positions_read == "there" else "lacks the column 'file_path'"
    with pytest.raises(Exception, match=says):
        scan_to_spark(table.scan(), spark).collect()


def test_equality_deletes(tmp_path: Path, spark: Any) -> None:
    kinds = Schema(ID, optional(2, "d", DoubleType()), optional(3, "s", StringType()), optional(4, "t", StringType()))
    by_d, by_s, by_both = Schema(kinds.fields[1]), Schema(kinds.fields[2]), Schema(*kinds.fields[1:3])
    table = Written(tmp_path, [kinds])
    numbers = [0.0, -0.0, float("nan"), float("inf"), None, 1.5]
    rows = [{"id": i, "d": d, "s": s} for i, (d, s) in enumerate((d, s) for d in numbers for s in ("a", None, "b"))]
    table.commit(table.data(rows, statistics=False))
    table.commit(table.equality_deletes([{"d": -0.0}, {"d": float("nan")}], by_d))
    table.commit(table.data(rows, statistics=False))
    table.commit(table.equality_deletes([{"d": None, "s": None}, {"d": 1.5, "s": "a"}, {"d": 1.5, "s": "a"}], by_both))
    table.commit(table.data(rows, statistics=False), table.equality_deletes([{"s": "b"}], by_s))
    files = table.scan().files()
    table.commit(table.position_deletes([(files[0].path, 0), (files[1].path, 17)]))
    for where in (None, "id > 5", "d is null", "s = 'a'"):
        for columns in (None, ("id",), ("t",)):
            assert_same(table.scan(where, columns), spark)
    with settings(spark, **HOSTILE):
        assert_same(table.scan(), spark)


def test_equality_deletes_reach_their_partition_only(tmp_path: Path, spark: Any) -> None:
    schema = Schema(ID, optional(2, "p", StringType()))
    specs = [
        UNPARTITIONED_PARTITION_SPEC,
        PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"), spec_id=1),
        PartitionSpec(PartitionField(1, 1001, BucketTransform(4), "b"), spec_id=2),
    ]
    table = Written(tmp_path, [schema], specs)
    rows = [{"id": i, "p": "x"} for i in range(6)]
    data = [
        table.data(rows, spec_id=spec_id, partition=partition)
        for spec_id, partition in ((0, ()), (1, ("x",)), (1, ("y",)), (2, (3,)))
    ]
    table.commit(*data)
    table.commit(table.equality_deletes([{"id": 1}], Schema(ID), spec_id=1, partition=("x",)))
    table.commit(table.equality_deletes([{"id": 2}], Schema(ID), spec_id=0))
    table.commit(table.equality_deletes([{"id": 3}, {"id": 1}], Schema(ID), spec_id=2, partition=(3,)))
    for where in (None, "id < 3"):
        assert_same(table.scan(where), spark)


def test_keys_of_columns_that_were_dropped_renamed_or_widened(tmp_path: Path, spark: Any) -> None:
    old = Schema(optional(1, "k", IntegerType()), optional(2, "z", StringType()), optional(3, "v", LongType()))
    new = Schema(optional(1, "key", LongType()), optional(3, "v", LongType()), optional(4, "z", LongType()))
    table = evolved(tmp_path, old, new)
    rows = [{"k": i % 3, "z": str(i % 2), "v": i} for i in range(12)]
    table.commit(table.data(rows, schema=old))
    table.commit(table.equality_deletes([{"k": 1, "z": "1"}], Schema(*old.fields[:2])))
    table.commit(table.data([{"key": 1 << 40, "v": 99, "z": 5}, {"key": 2, "v": 98}]))
    table.commit(table.equality_deletes([{"key": 2}, {"key": 1 << 40}], Schema(new.fields[0])))
    for where in (None, "v > 5", "z is null"):
        for columns in (None, ("v",)):
            assert_same(table.scan(where, columns), spark)


# Tables of the real engine


@pytest.mark.everywhere
def test_a_table_with_a_life_behind_it(spark: Any, lake: frazil.Lake) -> None:
    table = lake.create_table(
        "shop.sales", "id bigint not null, day date, amount double, note string", partition_by=["day"], keys=["id"]
    )

    def rows(start: int, n: int, **extra: Any) -> pa.Table:
        ids = list(range(start, start + n))
        days = [dt.date(2024, 1, 1 + i % 3) for i in ids]
        return pa.table({"id": ids, "day": days, "amount": [i / 4 for i in ids], **extra})

    table.append(rows(0, 50, note=["a"] * 50))
    table.append(rows(50, 50, note=[None] * 50))
    table.delete("id % 7 = 0", mode="merge-on-read")
    table.upsert(rows(40, 20, note=["up"] * 20))
    table.rename_column("note", "remark")
    table.add_column("note", "bigint")
    table.append(rows(200, 10, note=list(range(10)), remark=["r"] * 10))
    table.delete("id = 201", mode="merge-on-read")
    table.upsert(rows(205, 10, note=[7] * 10, remark=[None] * 10))
    for where in (None, "note is null", "remark = 'up'", "day = '2024-01-02' and amount > 10", "id between 45 and 55"):
        for columns in (None, ["amount"], ["remark", "id"]):
            assert_same(table.scan(where=where, columns=columns), spark)
    assert scan_to_spark(table.scan(), spark).count() == table.scan().count()
    assert scan_to_spark(table.scan(limit=3), spark).count() == 3
    assert scan_to_spark(table.scan(limit=0), spark).count() == 0


def test_an_empty_table_keeps_its_columns(spark: Any, lake: frazil.Lake) -> None:
    table = lake.create_table("shop.none", "id bigint not null, u string, s struct<x: bigint>, li array<int>")
    for _ in range(2):
        frame = assert_same(table.scan(), spark)
        assert [kind for _, kind in frame.dtypes] == ["bigint", "string", "struct<x:bigint>", "array<int>"]
        table.append(pa.table({"id": [1]}))
        table.delete("true")


@pytest.mark.parametrize("name", ["a b", "100% [x]{y,z}*?", "é\u00a0#&+=;,@!~'()$^`|<>\"", "back\\slash", "a:b", "%20"])
def test_trap_4_any_location(tmp_path: Path, spark: Any, name: str) -> None:
    root = tmp_path / name
    root.mkdir()
    for prefix in ("", "file://"):
        table = Written(root, [Schema(ID)])
        files = [table.data([{"id": i}, {"id": i + 10}]) for i in range(2)]
        files = [type(each)(prefix + each.file_path, 2, each.file_size_in_bytes) for each in files]
        table.commit(*files)
        table.commit(table.position_deletes([(files[0].file_path, 1)]))
        assert_same(table.scan(), spark)
        scan = table.scan()
        frame = read_tasks(
            spark, scan.tasks(), storage=scan._storage, metadata=scan._metadata, schema=scan._wanted, numbered="number"
        )
        assert {(row[FILE], row[POSITION]) for row in frame.collect()} == {(0, 0), (1, 0), (1, 1)}
        read = relation(spark, [file.file_path for file in files], "id bigint", Storage())
        said = read.select("_metadata.file_path").distinct()
        spoken = {row[0] for row in said.collect()}
        assert all(any(each in paths.uris(file.file_path) for each in spoken) for file in files)


def test_paths_of_object_stores() -> None:
    assert paths.to_spark("s3://bucket/a b/c=1/f.parquet") == "s3a://bucket/a b/c=1/f.parquet"
    assert paths.uri("s3://bucket/a b/f.parquet") == "s3a://bucket/a%20b/f.parquet"
    assert paths.to_spark("/a/b[1].parquet") == "file:///a/b\\[1\\].parquet"
    with pytest.raises(Unsupported, match="colon"):
        paths.to_spark("/a:b/c*.parquet")


def explained(frame: Any) -> str:
    import io

    with contextlib.redirect_stdout(io.StringIO()) as said:
        frame.explain("formatted")
    return said.getvalue()


def test_filters_reach_parquet_and_only_needed_columns_are_read(tmp_path: Path, spark: Any) -> None:
    old = Schema(ID, optional(2, "a", IntegerType()), optional(3, "c", StringType()))
    new = Schema(ID, optional(2, "b", LongType()), optional(3, "c", StringType()))
    clean, changed = evolved(tmp_path, old), evolved(tmp_path, old, new)
    for table, name in ((clean, "a"), (changed, "b")):
        table.commit(table.data([{"id": i, "a": i} for i in range(10)], schema=old))
        text = explained(scan_to_spark(table.scan(f"{name} > 3", ("id",)), spark))
        assert "GreaterThan(a,3)" in text
        assert "struct<id:bigint,a:int>" in text


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 31, 32, 33, 64, 200])
def test_the_driver_computes_the_hashes_that_spark_computes(spark: Any, length: int) -> None:
    text = ("s3a://bücket/a%20b/" * 20)[:length]
    row = spark.sql(
        f"select xxhash64('{text}') plain, xxhash64('{text}', 3) salted, xxhash64('{text}', -1) negative"
    ).collect()[0]
    unsigned = [each % (1 << 64) for each in row]
    assert unsigned == [hash_string(text), hash_int(3, hash_string(text)), hash_int(-1, hash_string(text))]


def test_hashes_differ_also_with_a_row_number_in_them() -> None:
    names = [f"/data/{number}.parquet" for number in range(2_000)]
    # 23 of 64 bits are left to tell 2,000 names apart: no salt does it at once for sure.
    salt, hashes = distinct_hashes(names, 1 << 41)
    assert hashes.keys() == set(names)
    assert len({each >> 41 for each in hashes.values()}) == len(names)
    assert all(hashes[each] % (1 << 64) == hash_int(salt, hash_string(each)) for each in names)
