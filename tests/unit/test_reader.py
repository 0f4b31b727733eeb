"""Rows out of real Parquet files: projection by field id, deletes, filters, limits, time travel."""

from __future__ import annotations

import builtins
import datetime as dt
import pickle
import threading
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import DayTransform, IdentityTransform
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

from frazil.errors import CorruptMetadata, InvalidInput, StorageError, Unsupported
from frazil.expr import parse_filter
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.read.arrow import ReadContext, read_task
from frazil.read.prefetch import in_order
from frazil.read.scan import Scan, resolve_snapshot
from unit.written import Row, Written


def optional(field_id: int, name: str, kind: Any) -> NestedField:
    return NestedField(field_id, name, kind, required=False)


IDS = Schema(optional(1, "id", LongType()), optional(2, "name", StringType()), schema_id=0)


def numbered(*ids: int | None) -> list[Row]:
    return [{"id": each, "name": None if each is None else f"n{each}"} for each in ids]


@pytest.fixture
def table(tmp_path: Path) -> Written:
    return Written(tmp_path, [IDS])


def ids(rows: list[Row]) -> list[Any]:
    return [row["id"] for row in rows]


# Reading at all


def test_an_empty_table_reads_as_no_rows_with_the_right_schema(table: Written) -> None:
    scan = table.scan()
    assert scan.to_arrow().schema == schema_to_pyarrow(IDS, include_field_ids=False)
    assert (scan.to_arrow().num_rows, scan.count(), scan.files(), scan.snapshot_id) == (0, 0, [], None)
    assert "empty" in scan.explain()


def test_every_type_reads_as_pyicebergs_schema_says(tmp_path: Path) -> None:
    schema = Schema(
        optional(1, "b", BooleanType()),
        optional(2, "i", IntegerType()),
        optional(3, "l", LongType()),
        optional(4, "f", FloatType()),
        optional(5, "d", DoubleType()),
        optional(6, "dec", DecimalType(20, 4)),
        optional(7, "day", DateType()),
        optional(8, "t", TimeType()),
        optional(9, "ntz", TimestampType()),
        optional(10, "ts", TimestamptzType()),
        optional(11, "s", StringType()),
        optional(12, "u", UUIDType()),
        optional(13, "fx", FixedType(3)),
        optional(14, "bin", BinaryType()),
        optional(15, "st", StructType(optional(16, "x", IntegerType()), optional(17, "y", StringType()))),
        optional(18, "li", ListType(19, StructType(optional(20, "q", IntegerType())), element_required=False)),
        optional(21, "m", MapType(22, StringType(), 23, DoubleType(), value_required=False)),
    )
    full: Row = {
        "b": True, "i": 1, "l": 2**40, "f": 0.5, "d": 0.25, "dec": Decimal("1.2345"), "day": dt.date(2026, 11, 1),
        "t": dt.time(1, 2, 3, 4), "ntz": dt.datetime.fromisoformat("2026-11-01T01:02:03.000004"),
        "ts": dt.datetime(2026, 11, 1, 1, 2, 3, 4, tzinfo=dt.UTC), "s": "é", "u": uuid.uuid4(), "fx": b"abc",
        "bin": b"\x00\xff", "st": {"x": 1, "y": None}, "li": [{"q": 1}, None], "m": [("k", 1.5), ("n", None)],
    }  # fmt: skip
    rows = [full, dict.fromkeys(full), {**full, "st": None, "li": [], "m": []}]
    table = Written(tmp_path, [schema])
    table.commit(table.data(rows, statistics=False))
    read = table.scan().to_arrow()
    assert read.schema == schema_to_pyarrow(schema, include_field_ids=False)
    assert read.to_pylist() == rows


def in_key_order(table: pa.Table) -> list[Row]:
    return list(table.sort_by([("day", "ascending"), ("id", "ascending")]).to_pylist())


def test_a_scan_equals_pyicebergs(tmp_path: Path) -> None:
    catalog = InMemoryCatalog("c", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    schema = Schema(
        optional(1, "id", LongType()), optional(2, "day", DateType()), optional(3, "v", DoubleType()),
        optional(4, "s", StructType(optional(5, "x", IntegerType()))),
    )  # fmt: skip
    peer = catalog.create_table(
        "n.t",
        schema,
        partition_spec=PartitionSpec(PartitionField(2, 1000, DayTransform(), "d")),
    )
    for day in (1, 2, 3):
        rows = [
            {"id": i, "day": dt.date(2026, 11, day), "v": i / 2, "s": {"x": i} if i % 2 else None} for i in range(10)
        ]
        peer.append(pa.Table.from_pylist(rows, schema_to_pyarrow(peer.schema(), include_field_ids=False)))
    metadata = TableMetadata.parse(Storage().read(peer.metadata_location), peer.metadata_location)
    for text, expression in (
        (None, "id >= 0"),
        ("day = '2026-11-02' and id > 3", "day = '2026-11-02' and id > 3"),
        ("s.x = 3 or v < 1", "s.x = 3 or v < 1"),
        ("day > '2026-11-09'", "day > '2026-11-09'"),
    ):
        snapshot, found = resolve_snapshot(metadata)
        scan = Scan(Storage(), metadata, snapshot, found, parse_filter(text, found), None, None, False, "n.t")
        expected = peer.scan(row_filter=expression).to_arrow()
        assert in_key_order(scan.to_arrow()) == in_key_order(expected)
        assert scan.count() == expected.num_rows


# Evolution: by field id, never by name


def test_renamed_reordered_dropped_and_added_columns_follow_their_ids(tmp_path: Path) -> None:
    old = Schema(optional(1, "a", LongType()), optional(2, "b", StringType()), optional(3, "c", LongType()))
    new = Schema(
        optional(2, "a", StringType()), optional(1, "b", LongType()), optional(4, "c", DoubleType()), schema_id=1
    )
    table = Written(tmp_path, [old, new])
    table.commit(table.data([{"a": 1, "b": "x", "c": 9}], schema=old))
    assert table.rows() == [{"a": "x", "b": 1, "c": None}]
    # The name c means another column now: the old file's c must not be looked at.
    assert table.rows("c is null") == [{"a": "x", "b": 1, "c": None}]
    assert table.rows("a = 'x' and b = 1", ("b",)) == [{"b": 1}]


def test_types_widen_on_reading(tmp_path: Path) -> None:
    old = Schema(
        optional(1, "i", IntegerType()), optional(2, "f", FloatType()), optional(3, "d", DecimalType(5, 2)),
        optional(4, "li", ListType(5, IntegerType(), element_required=False)),
    )  # fmt: skip
    new = Schema(
        optional(1, "i", LongType()), optional(2, "f", DoubleType()), optional(3, "d", DecimalType(20, 2)),
        optional(4, "li", ListType(5, LongType(), element_required=False)), schema_id=1,
    )  # fmt: skip
    table = Written(tmp_path, [old, new])
    table.commit(table.data([{"i": 1, "f": 0.5, "d": Decimal("1.25"), "li": [1, None]}], schema=old))
    read = table.scan("i < 2 and f = 0.5 and d = 1.25").to_arrow()
    assert read.schema == schema_to_pyarrow(new, include_field_ids=False)
    assert read.to_pylist() == [{"i": 1, "f": 0.5, "d": Decimal("1.25"), "li": [1, None]}]
    assert table.rows("i > 1") == []


def test_nested_fields_are_renamed_added_and_dropped_too(tmp_path: Path) -> None:
    def moved(inner: tuple[NestedField, ...], by: int) -> StructType:
        return StructType(*(optional(field.field_id + by, field.name, field.field_type) for field in inner))

    def schema(schema_id: int, *inner: NestedField) -> Schema:
        return Schema(
            optional(1, "s", StructType(*inner)),
            optional(2, "li", ListType(3, moved(inner, 10), element_required=False)),
            optional(4, "m", MapType(5, StringType(), 6, moved(inner, 20), value_required=False)),
            schema_id=schema_id,
        )

    old = schema(0, optional(7, "x", IntegerType()), optional(8, "y", StringType()))
    new = schema(1, optional(9, "x", StringType()), optional(7, "z", LongType()))
    table = Written(tmp_path, [old, new])
    one = {"x": 1, "y": "q"}
    empty: Row = {"s": one, "li": [], "m": []}
    nothing: Row = {"s": None, "li": None, "m": None}
    full: Row = {"s": one, "li": [one, None], "m": [("k", one)]}
    table.commit(table.data([full, nothing, empty], schema=old, statistics=False))
    now = {"x": None, "z": 1}
    assert table.rows() == [
        {"s": now, "li": [now, None], "m": [("k", now)]},
        {"s": None, "li": None, "m": None},
        {"s": now, "li": [], "m": []},
    ]
    assert table.rows("s.z = 1", ("s.z",)) == [{"s": {"z": 1}}, {"s": {"z": 1}}]
    assert table.rows("s is null", ("li",)) == [{"li": None}]
    # Only a field that the file lacks: the struct's own NULLs still show.
    assert table.rows(None, ("s.x",)) == [{"s": {"x": None}}, {"s": None}, {"s": {"x": None}}]


def test_files_without_ids_are_read_by_name_mapping_or_refused(tmp_path: Path) -> None:
    schema = Schema(
        optional(1, "id", LongType()),
        optional(2, "s", StructType(optional(3, "x", LongType()))),
        optional(4, "li", ListType(5, LongType(), element_required=False)),
        optional(6, "m", MapType(7, StringType(), 8, LongType(), value_required=False)),
    )
    plain = schema_to_pyarrow(schema, include_field_ids=False)
    row: Row = {"id": 1, "s": {"x": 2}, "li": [3], "m": [("k", 4)]}
    table = Written(tmp_path, [schema])
    table.commit(table.data([row], arrow=plain))
    with pytest.raises(InvalidInput, match="name mapping"):
        table.rows()
    mapping = create_mapping_from_schema(schema).model_dump_json()
    table.properties["schema.name-mapping.default"] = mapping.replace('"names":["id"]', '"names":["ID","id"]')
    assert table.rows("s.x = 2") == [row]
    table.schemas.append(Schema(optional(1, "key", LongType()), schema_id=1))
    assert table.rows("key = 1") == [{"key": 1}]


def test_a_column_missing_in_a_file_is_its_identity_partition_value_else_null(tmp_path: Path) -> None:
    schema = Schema(optional(1, "id", LongType()), optional(2, "day", DateType()), optional(3, "u", UUIDType()))
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "day"),
        PartitionField(3, 1001, IdentityTransform(), "u"),
    )
    table = Written(tmp_path, [schema], [spec])
    key = uuid.uuid4()
    file = table.data(
        [{"id": 1}], schema=Schema(optional(1, "id", LongType())), partition=(20_000, key.bytes), statistics=False
    )
    table.commit(file)
    day = dt.date(1970, 1, 1) + dt.timedelta(days=20_000)
    assert table.rows() == [{"id": 1, "day": day, "u": key}]
    assert table.rows(f"day = '{day}'", ("id",)) == [{"id": 1}]
    assert table.rows(f"day <> '{day}'", ("id",)) == []
    assert table.scan().files()[0].partition["day"] == day


def test_a_missing_required_column_is_an_error_not_nulls(tmp_path: Path) -> None:
    schema = Schema(optional(1, "id", LongType()), NestedField(2, "must", LongType(), required=True))
    table = Written(tmp_path, [schema])
    table.commit(table.data([{"id": 1}], schema=Schema(optional(1, "id", LongType()))))
    with pytest.raises(CorruptMetadata, match="'must'"):
        table.rows()


def test_text_is_never_parsed_into_numbers(tmp_path: Path) -> None:
    table = Written(tmp_path, [Schema(optional(1, "id", LongType()))])
    table.commit(table.data([{"id": "7"}], schema=Schema(optional(1, "id", StringType())), statistics=False))
    with pytest.raises(CorruptMetadata, match="cannot be read as int64"):
        table.rows()


def test_dictionaries_and_other_spellings_of_a_type_are_read(tmp_path: Path) -> None:
    schema = Schema(
        optional(1, "s", StringType()), optional(2, "ts", TimestamptzType()), optional(3, "ntz", TimestampType())
    )
    table = Written(tmp_path, [schema])

    def with_id(name: str, kind: Any, field_id: int) -> Any:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})

    arrow = pa.schema(
        [
            with_id("s", pa.dictionary(pa.int32(), pa.string()), 1),
            with_id("ts", pa.timestamp("ms", "Europe/Berlin"), 2),
            with_id("ntz", pa.timestamp("us"), 3),
        ]
    )
    moment = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
    table.commit(table.data([{"s": "a", "ts": moment, "ntz": moment.replace(tzinfo=None)}], arrow=arrow))
    assert table.rows("ts = '2026-07-01 12:00:00' and s = 'a' and ntz = '2026-07-01 12:00:00'") == [
        {"s": "a", "ts": moment, "ntz": moment.replace(tzinfo=None)}
    ]


# Files that are not what the table says


def test_a_missing_data_file_is_an_error_that_names_it_never_fewer_rows(table: Written) -> None:
    gone, kept = table.data(numbered(1)), table.data(numbered(2))
    table.commit(gone, kept)
    Path(gone.file_path).unlink()
    with pytest.raises(StorageError, match=Path(gone.file_path).name):
        table.rows()
    with pytest.raises(StorageError, match=Path(gone.file_path).name):
        table.scan("id + 0 = 1").count()


def test_a_file_with_another_number_of_rows_is_an_error(table: Written) -> None:
    file = table.data(numbered(1, 2))
    table.commit(file)
    pq.write_table(pa.Table.from_pylist(numbered(1), schema_to_pyarrow(IDS)), file.file_path)
    with pytest.raises(CorruptMetadata, match="holds 1 rows, but the table expects 2"):
        table.rows()


def test_a_file_that_is_no_parquet_is_an_error(table: Written) -> None:
    file = table.data(numbered(1, 2))
    table.commit(file)
    Path(file.file_path).write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(CorruptMetadata, match="not a readable Parquet file"):
        table.rows()


# Deletes


def test_position_deletes_remove_rows_by_their_place_in_the_file(table: Written) -> None:
    file = table.data(numbered(0, 1, 2, 3, 4, 5), row_group=2)
    table.commit(file)
    table.commit(table.position_deletes([(file.file_path, 5), (file.file_path, 0), (file.file_path, 0)]))
    assert ids(table.rows()) == [1, 2, 3, 4]
    assert table.scan().count() == 4
    assert ids(table.rows("id >= 4")) == [4]  # the first row groups are skipped; positions still count from the start
    assert table.scan("id >= 4").count() == 1


def test_position_deletes_of_several_files_add_up_and_leave_newer_files_alone(table: Written) -> None:
    first, second = table.data(numbered(1, 2, 3)), table.data(numbered(4, 5))
    table.commit(first, second)
    table.commit(
        table.position_deletes([(first.file_path, 0), (second.file_path, 1)]),
        table.position_deletes([(first.file_path, 2)], named=True),
    )
    table.commit(table.data(numbered(6)))
    assert ids(table.rows()) == [2, 4, 6]


KEY = Schema(optional(1, "id", LongType()))


def test_equality_deletes_remove_older_rows_with_equal_keys_null_included(table: Written) -> None:
    table.commit(table.data(numbered(1, None, 2, 3)))
    table.commit(table.equality_deletes([{"id": 2}, {"id": None}], KEY), table.data(numbered(2)))
    assert ids(table.rows()) == [1, 3, 2]
    assert table.rows(None, ("name",)) == [{"name": "n1"}, {"name": "n3"}, {"name": "n2"}]
    assert table.scan().count() == 3
    assert ids(table.rows("name like 'n%' and id > 1")) == [3, 2]


def test_equality_deletes_on_several_columns_want_all_of_them_equal(table: Written) -> None:
    table.commit(
        table.data([{"id": 1, "name": "a"}, {"id": 1, "name": "b"}, {"id": 2, "name": "a"}, {"id": 1, "name": None}])
    )
    table.commit(table.equality_deletes([{"id": 1, "name": "a"}, {"id": 1, "name": None}, {"id": 3, "name": "b"}], IDS))
    assert table.rows() == [{"id": 1, "name": "b"}, {"id": 2, "name": "a"}]


def test_equality_deletes_by_different_columns_and_positions_work_together(table: Written) -> None:
    names = Schema(optional(2, "name", StringType()))
    file = table.data(numbered(1, 2, 3, 4, 5))
    table.commit(file)
    table.commit(
        table.equality_deletes([{"id": 1}], KEY),
        table.equality_deletes([{"name": "n2"}], names),
        table.position_deletes([(file.file_path, 2)]),
    )
    assert ids(table.rows()) == [4, 5]
    assert table.scan().count() == 2


def test_equality_deletes_outlive_their_column(tmp_path: Path) -> None:
    old, new = IDS, Schema(optional(2, "name", StringType()), schema_id=1)
    table = Written(tmp_path, [old, new])
    table.commit(table.data(numbered(1, 2), schema=old))
    table.commit(table.equality_deletes([{"id": 1}], KEY))
    assert table.rows() == [{"name": "n2"}]


def test_equality_deletes_match_across_a_widened_type(tmp_path: Path) -> None:
    old = Schema(optional(1, "id", IntegerType()), optional(2, "name", StringType()))
    new = Schema(optional(1, "id", LongType()), optional(2, "name", StringType()), schema_id=1)
    table = Written(tmp_path, [old, new])
    table.commit(table.data(numbered(1, 2), schema=old))
    table.commit(table.equality_deletes([{"id": 2}], KEY))
    assert ids(table.rows()) == [1]


def test_equality_deletes_on_a_column_added_later_match_null_in_old_files(tmp_path: Path) -> None:
    old, new = Schema(optional(1, "id", LongType())), IDS
    table = Written(tmp_path, [old, new.model_copy(update={"schema_id": 1})])
    table.commit(table.data([{"id": 1}], schema=old))
    table.commit(table.data(numbered(2)))
    names = Schema(optional(2, "name", StringType()))
    table.commit(table.equality_deletes([{"name": None}], names))
    assert ids(table.rows()) == [2]


def test_a_filter_that_would_fail_on_a_deleted_row_never_sees_it(table: Written) -> None:
    file = table.data(numbered(0, 1, 2))
    table.commit(file)
    with pytest.raises(InvalidInput, match="Division by zero in some row"):
        table.rows("10 / id > 4")
    table.commit(table.position_deletes([(file.file_path, 0)]))
    assert ids(table.rows("10 / id > 4")) == [1, 2]


# Filters, columns, limits


def test_row_groups_that_cannot_match_are_not_read(table: Written) -> None:
    file = table.data(numbered(*range(100)), row_group=10, statistics=False)
    table.commit(file)
    (task,) = table.scan("id = 55").tasks()
    reading = ReadContext.of(table.storage, table.metadata(), IDS)
    assert [batch.to_pylist() for batch in read_task(task, reading)] == [numbered(55)]
    from frazil.read.arrow import FileReader
    from frazil.read.parquet import opened

    with opened(table.storage, file) as parquet:
        assert list(FileReader(task, reading, parquet)._runs()) == [([5], 50)]
        (every,) = table.scan("name like '%5'").tasks()
        assert list(FileReader(every, reading, parquet)._runs()) == [(list(range(10)), 0)]


def test_columns_come_in_the_order_asked_for_and_bad_ones_are_refused(tmp_path: Path) -> None:
    nested = StructType(optional(4, "x", LongType()), optional(5, "y", LongType()))
    table = Written(tmp_path, [Schema(*IDS.fields, optional(3, "s", nested), optional(6, "a.b", LongType()))])
    table.commit(table.data([{"id": 1, "name": "n", "s": {"x": 2, "y": 3}, "a.b": 4}], statistics=False))
    assert table.scan(None, ("NAME", "id")).to_arrow().column_names == ["name", "id"]
    assert table.rows(None, ("s.y", "id", "s.x")) == [{"s": {"y": 3, "x": 2}, "id": 1}]
    assert table.rows(None, ("a.b",)) == table.rows(None, ("`a.b`",)) == [{"a.b": 4}]
    for columns, words in (
        (("nme",), "Did you mean name"),
        (("s.z",), "x, y"),
        (("id", "ID"), "twice"),
        (("s", "s.x"), "twice"),
        (("s.x", "s"), "twice"),
        ((), "empty"),
        (("",), "not a column name"),
        ("id", r"columns must be a list of names.*columns=\['id'\]"),
        (5, "columns must be a list of names"),
    ):
        with pytest.raises(InvalidInput, match=words):
            table.scan(None, columns)  # type: ignore[arg-type]
    assert table.scan(None, ["id"]).to_arrow().column_names == ["id"]  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="NAME"):
        table.scan(None, ("NAME",), case_sensitive=True)


def test_a_limit_stops_reading(table: Written) -> None:
    first, second = table.data(numbered(1, 2, 3)), table.data(numbered(4, 5))
    table.commit(first, second)
    assert ids(table.scan(limit=2).to_arrow().to_pylist()) == [1, 2]
    assert ids(table.scan(limit=4).to_arrow().to_pylist()) == [1, 2, 3, 4]
    assert [table.scan(limit=limit).count() for limit in (0, 2, 4, 9)] == [0, 2, 4, 5]
    Path(second.file_path).unlink()
    assert ids(table.scan(limit=3).to_arrow().to_pylist()) == [1, 2, 3]
    assert table.scan(limit=0).to_arrow().num_rows == 0
    for bad in (-1, 1.5, True):
        with pytest.raises(InvalidInput, match="limit"):
            table.scan(limit=bad)  # type: ignore[arg-type]


def test_counting_opens_no_file_that_metadata_answers_for(table: Written) -> None:
    whole, deleted = table.data(numbered(5, 6, 7)), table.data(numbered(8, 9))
    table.commit(whole, deleted)
    table.commit(table.position_deletes([(deleted.file_path, 0), (deleted.file_path, 0)]))
    Path(whole.file_path).unlink()
    Path(deleted.file_path).unlink()
    assert table.scan().count() == 4
    assert table.scan("id > 4").count() == 4
    assert table.scan("id > 100").count() == 0


# Ways out


def test_rows_come_out_in_every_promised_form(table: Written) -> None:
    table.commit(table.data(numbered(1, 2)), table.data(numbered(3)))
    scan = table.scan()
    assert list(scan.to_pandas()["id"]) == [1, 2, 3]
    assert scan.to_polars()["id"].to_list() == [1, 2, 3]
    assert pl.DataFrame(scan)["name"].to_list() == ["n1", "n2", "n3"]
    assert ids(pa.table(scan).to_pylist()) == [1, 2, 3]
    assert [batch.num_rows for batch in scan.to_batches()] == [2, 1]
    with pytest.raises(Unsupported, match="to_arrow"):
        scan.to_spark()
    assert ids(pickle.loads(pickle.dumps(scan)).to_arrow().to_pylist()) == [1, 2, 3]
    assert (
        repr(table.scan("id > 1", ("id",), limit=3)) == "Scan(t, snapshot=1, where='id > 1', columns=['id'], limit=3)"
    )


def test_a_missing_library_is_a_sentence(table: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__
    import importlib

    def refuse(name: str, *args: Any) -> Any:
        if name == "polars":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(Unsupported, match="pip install polars"):
        table.scan().to_polars()


def test_explain_says_what_each_step_ruled_out(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    table = Written(tmp_path, [IDS], [spec])
    table.commit(*(table.data(numbered(each), partition=(f"n{each}",)) for each in (1, 2, 3)))
    table.commit(table.data(numbered(9), partition=("n9",)))
    text = table.scan("name in ('n1', 'n2') and id > 1").explain()
    assert "2 of data, 1 ruled out by partition" in text
    assert "3 considered, 1 ruled out by partition, 1 by column bounds, 1 to read" in text
    assert "snapshot   2 (append" in text


# Which snapshot


@pytest.fixture
def history(tmp_path: Path) -> Written:
    old = Schema(optional(1, "key", LongType()), schema_id=0)
    table = Written(tmp_path, [old, IDS.model_copy(update={"schema_id": 1})])
    table.commit(table.data([{"key": 1}], schema=old), schema_id=0)
    table.commit(table.data(numbered(2)))
    table.commit(table.data(numbered(3)))
    table.refs = {
        "v1": {"snapshot-id": 1, "type": "tag"},
        "dev": {"snapshot-id": 1, "type": "branch"},
    }
    return table


def test_time_travel_by_snapshot_time_tag_and_branch(history: Written) -> None:
    assert history.rows() == [{"id": 1, "name": None}, *numbered(2, 3)]
    assert history.rows(snapshot=1) == history.rows(ref="v1") == [{"key": 1}]
    assert history.rows(ref="dev") == [{"id": 1, "name": None}]  # a branch goes on: the table's schema of today
    for moment in (2500, "1970-01-01T00:00:02.5+00:00", dt.datetime(1970, 1, 1, 0, 0, 2, 500000, tzinfo=dt.UTC)):
        assert ids(history.rows(as_of=moment)) == [1, 2]
    assert ids(history.rows(as_of=2000)) == [1, 2]
    assert history.rows(as_of=1999) == [{"key": 1}]


@pytest.mark.parametrize(
    ("travel", "words"),
    [
        ({"snapshot": 99}, "1, 2, 3"),
        ({"ref": "prod"}, "dev, main, v1"),
        ({"as_of": 999}, "1970-01-01T00:00:01"),
        ({"as_of": "2026-11-01"}, "no time zone"),
        ({"as_of": dt.datetime.fromisoformat("2026-11-01")}, "no time zone"),
        ({"as_of": "soon"}, "not a time"),
        ({"as_of": 1.5}, "not a time"),
        ({"snapshot": 1, "ref": "v1"}, "only one"),
        ({"snapshot": "1"}, "not a snapshot id"),
    ],
)  # fmt: skip
def test_a_snapshot_that_is_not_there_is_refused_with_what_is(history: Written, travel: Row, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        history.scan(**travel)


def test_a_scan_stays_on_its_snapshot(table: Written) -> None:
    table.commit(table.data(numbered(1)))
    scan = table.scan()
    table.commit(table.data(numbered(2)))
    assert (ids(scan.to_arrow().to_pylist()), scan.count()) == ([1], 1)


# Reading ahead


def test_batches_of_many_files_come_in_order(table: Written) -> None:
    table.commit(*(table.data(numbered(each, each + 1)) for each in range(0, 40, 2)))
    assert ids(table.rows()) == list(range(40))


def test_closing_the_iterator_stops_the_threads(table: Written) -> None:
    table.commit(*(table.data(numbered(each)) for each in range(20)))
    before = threading.active_count()
    batches: Any = table.scan().to_batches()
    next(batches)
    batches.close()
    assert threading.active_count() == before


def test_only_a_bounded_number_of_pieces_waits() -> None:
    made: list[int] = []
    filled = threading.Semaphore(0)

    def read(task: int) -> Iterator[int]:
        for piece in range(100):
            made.append(task * 100 + piece)
            filled.release()
            yield task * 100 + piece

    pieces = in_order([0, 1, 2, 3, 4, 5], read, ahead=2)
    assert next(pieces) == 0
    # Two tasks run; each may have four pieces waiting and one in its hand, and one was taken.
    for _ in range(11):
        assert filled.acquire(timeout=30)
    assert not filled.acquire(timeout=0.2)
    assert list(pieces) == list(range(1, 600))


def test_an_error_in_a_reading_thread_reaches_the_caller() -> None:
    def read(task: int) -> Iterator[int]:
        yield task
        if task == 1:
            raise ValueError("broken")

    pieces = in_order([0, 1, 2], read, ahead=2)
    assert [next(pieces), next(pieces)] == [0, 1]
    with pytest.raises(ValueError, match="broken"):
        next(pieces)
