"""The Arrow writer: real files on a real disk, read back with pyarrow; and no file left behind when anything fails."""

from __future__ import annotations

import datetime as dt
import errno
import itertools
import math
import os
import random
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.transforms import Transform, parse_transform
from pyiceberg.types import PrimitiveType

from frazil.errors import FrazilError, InvalidInput, PermissionDenied, SchemaMismatch, StorageError, Unsupported
from frazil.format.metadata import TableMetadata
from frazil.format.partitions import arrow_transform, parse_partitioning, parse_sort
from frazil.format.schemas import arrow_schema, to_schema
from frazil.format.storage import Storage
from frazil.model import DataFile
from frazil.stage import arrow
from frazil.stage.arrow import StagedFiles, stage

UTC = dt.UTC


def table(
    location: Path | str,
    ddl: str,
    partition_by: Sequence[str] = (),
    sort_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    version: int = 2,
) -> TableMetadata:
    schema = to_schema(ddl)
    order = parse_sort(sort_by, schema)
    return TableMetadata(
        {
            "format-version": version,
            "table-uuid": str(uuid.uuid4()),
            "location": str(location),
            "last-updated-ms": 0,
            "last-column-id": schema.highest_field_id,
            "schemas": [schema.model_dump(by_alias=True, mode="json")],
            "current-schema-id": 0,
            "partition-specs": [parse_partitioning(partition_by, schema).model_dump(by_alias=True, mode="json")],
            "default-spec-id": 0,
            "sort-orders": [order.model_dump(by_alias=True, mode="json")],
            "default-sort-order-id": order.order_id,
            "properties": dict(properties or {}),
        }
    )


def files_under(location: Path) -> list[str]:
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(location) for name in names)


def rows_of(file: DataFile) -> list[dict[str, Any]]:
    return pq.read_table(file.file_path, partitioning=None).to_pylist()


def all_rows(staged: StagedFiles) -> list[dict[str, Any]]:
    return [row for file in staged.files for row in rows_of(file)]


# Types

EVERY = (
    "b boolean, i int not null, l bigint, f float, d double, d9 decimal(9,2), d18 decimal(18,4), d38 decimal(38,10),"
    " st string, da date, ti time, ts timestamp_ntz, tz timestamp, u uuid, fx fixed(3), bi binary,"
    " ls array<struct<x:int,y:array<string>>>, m map<string,array<int>>, s struct<u:uuid,in:struct<d:decimal(20,3)>>"
)
ROW = {
    "b": True,
    "i": -5,
    "l": 2**60,
    "f": 1.5,
    "d": -2.5,
    "d9": Decimal("-1234567.89"),
    "d18": Decimal("12345678901234.5678"),
    "d38": Decimal("-1234567890123456789012345678.0123456789"),
    "st": "äö€𝄞",
    "da": dt.date(1969, 12, 31),
    "ti": dt.time(23, 59, 59, 999999),
    "ts": dt.datetime(1900, 1, 1, 1, tzinfo=UTC).replace(tzinfo=None),
    "tz": dt.datetime(2026, 11, 1, 12, tzinfo=UTC),
    "u": uuid.UUID(int=2**127 + 5),
    "fx": b"\xff\x00a",
    "bi": b"\x00\xff",
    "ls": [{"x": 1, "y": ["a", None]}, None, {"x": None, "y": []}],
    "m": [("k", [1, None]), ("j", None)],
    "s": {"u": uuid.UUID(int=9), "in": {"d": Decimal("-5.125")}},
}
NULLS: dict[str, Any] = dict.fromkeys(ROW) | {"i": 7}


def _parquet_ids(kind: Any) -> Iterator[int]:
    """Field ids in a Parquet file, in the order of its schema."""
    for each in kind:
        yield int(each.metadata[b"PARQUET:field_id"])
        yield from _inner_ids(each.type)


def _inner_ids(kind: Any) -> Iterator[int]:
    if pa.types.is_struct(kind):
        yield from _parquet_ids(kind)
    elif pa.types.is_map(kind):
        yield from _parquet_ids([kind.key_field, kind.item_field])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _parquet_ids([kind.value_field])


def test_every_type_is_written_with_field_ids_at_all_levels(tmp_path: Path) -> None:
    metadata = table(tmp_path, EVERY)
    staged = stage([ROW, NULLS, ROW], metadata=metadata, storage=Storage())
    (file,) = staged.files
    assert rows_of(file) == [ROW, NULLS, ROW]
    found = pq.read_schema(file.file_path)
    assert list(_parquet_ids(found)) == list(_parquet_ids(arrow_schema(metadata.schema())))
    assert len(list(_parquet_ids(found))) == metadata.schema().highest_field_id
    assert pyarrow_to_schema(found).as_struct() == metadata.schema().as_struct()
    assert file.record_count == staged.rows == 3
    assert file.file_size_in_bytes == staged.bytes == os.path.getsize(file.file_path)
    assert file.split_offsets == (4,)
    assert file.sort_order_id == 0
    assert (staged.schema_id, staged.spec_id) == (0, 0)


def test_physical_types_are_those_of_the_specification(tmp_path: Path) -> None:
    (file,) = stage([ROW], metadata=table(tmp_path, EVERY), storage=Storage()).files
    schema = pq.ParquetFile(file.file_path).metadata.schema
    found = {
        schema.column(i).path: (schema.column(i).physical_type, str(schema.column(i).logical_type)) for i in range(16)
    }
    assert found["d9"][0] == "INT32"
    assert found["d18"][0] == "INT64"
    assert found["d38"][0] == "FIXED_LEN_BYTE_ARRAY"
    assert found["u"] == ("FIXED_LEN_BYTE_ARRAY", "UUID")
    assert found["ti"][0] == "INT64"
    assert found["ts"][0] == "INT64"
    assert "isAdjustedToUTC=false, timeUnit=microseconds" in found["ts"][1]
    assert "isAdjustedToUTC=true, timeUnit=microseconds" in found["tz"][1]


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    metadata = table(tmp_path, "id bigint", ["bucket(4, id)"])
    empty = pa.table({"id": pa.array([], pa.int64())})
    sources: list[Any] = [[], empty, iter([]), iter([pa.record_batch({"id": pa.array([], pa.int64())})] * 3)]
    for rows in sources:
        staged = stage(rows, metadata=metadata, storage=Storage())
        assert staged.files == ()
        assert staged.rows == staged.bytes == 0
    assert files_under(tmp_path) == []


def test_names_that_other_writers_would_escape_are_escaped_in_files_alone(tmp_path: Path) -> None:
    metadata = table(tmp_path, "`a b` int, `x.y` struct<`1z`:string>", ["bucket(2, `a b`)"])
    (file,) = stage([{"a b": 1, "x.y": {"1z": "q"}}], metadata=metadata, storage=Storage()).files
    assert rows_of(file) == [{"a_x20b": 1, "x_x2Ey": {"_1z": "q"}}]
    assert set(file.lower_bounds) == {1, 3}
    clash = table(tmp_path / "clash", "`a b` int, a_x20b int")
    (file,) = stage([{"a b": 1, "a_x20b": 2}], metadata=clash, storage=Storage()).files
    assert rows_of(file) == [{"a b": 1, "a_x20b": 2}]


# Transforms: the arrays against PyIceberg's own function of one value

_SOURCES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), st.integers(-(2**31) + 100, 2**31 - 1)),
    "bigint": (pa.int64(), st.integers(-(2**63) + 100, 2**63 - 1)),
    "date": (pa.date32(), st.integers(-719162, 2932896)),
    "time": (pa.time64("us"), st.integers(0, 86_399_999_999)),
    "timestamp_ntz": (pa.timestamp("us"), st.integers(-62135596800000000, 253402300799999999)),
    "timestamp": (pa.timestamp("us", "UTC"), st.integers(-62135596800000000, 253402300799999999)),
    "decimal(9,2)": (pa.decimal128(9, 2), st.decimals(-9999999, 9999999, places=2)),
    "decimal(38,10)": (pa.decimal128(38, 10), st.decimals(-(10**20), 10**20, places=10)),
    "string": (pa.large_string(), st.text(alphabet=st.sampled_from("aäß€𝄞\x00\U0010ffff"), max_size=8)),
    "binary": (pa.large_binary(), st.binary(max_size=8)),
    "fixed(4)": (pa.binary(4), st.binary(min_size=4, max_size=4)),
    "uuid": (pa.uuid(), st.binary(min_size=16, max_size=16)),
}
_TRANSFORMS = ["identity", "bucket[1]", "bucket[16]", "bucket[1000]", "truncate[1]", "truncate[3]", "truncate[100]"]
_CASES = [
    (text, kind)
    for text, kind in itertools.product([*_TRANSFORMS, "year", "month", "day", "hour", "void"], _SOURCES)
    if parse_transform(text).can_transform(to_schema(f"c {kind}").find_type("c"))
]


def _source_array(kind: Any, values: list[Any]) -> Any:
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    return pa.array(values, kind)


@pytest.mark.parametrize(("text", "ddl"), _CASES, ids=[f"{text}-{kind}" for text, kind in _CASES])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_transforms_of_arrays_are_those_of_single_values(text: str, ddl: str, data: st.DataObject) -> None:
    arrow_type, strategy = _SOURCES[ddl]
    values = data.draw(st.lists(st.none() | strategy, min_size=1, max_size=8))
    transform: Transform[Any, Any] = parse_transform(text)
    kind = to_schema(f"c {ddl}").find_type("c")
    assert isinstance(kind, PrimitiveType)
    one = transform.transform(kind)
    found = arrow_transform(transform, kind)(_source_array(arrow_type, values))
    assert found.to_pylist() == [one(value) for value in values]


@pytest.mark.parametrize(
    ("by", "ddl", "value"),
    [
        ("truncate(10, c)", "int", -(2**31)),
        ("truncate(10, c)", "bigint", -(2**63)),
        ("truncate(5, c)", "decimal(9,2)", Decimal("-9999999.99")),
        ("truncate(5, c)", "decimal(38,10)", Decimal("-" + "9" * 28 + "." + "9" * 10)),
        ("hour(c)", "timestamp_ntz", -(2**63)),
        ("hour(c)", "timestamp_ntz", 2**63 - 1),
        ("year(c)", "timestamp_ntz", 2**63 - 1),
        ("month(c)", "date", 2**31 - 1),
    ],
)
def test_values_whose_partition_would_overflow_are_refused(tmp_path: Path, by: str, ddl: str, value: Any) -> None:
    rows = pa.table({"c": _source_array(_SOURCES[ddl][0], [value])})
    with pytest.raises(SchemaMismatch, match="too large or too small"):
        stage(rows, metadata=table(tmp_path, f"c {ddl}", [by]), storage=Storage())
    assert files_under(tmp_path) == []


def test_days_beyond_pythons_calendar_are_written(tmp_path: Path) -> None:
    rows = pa.table({"c": _source_array(pa.date32(), [2**31 - 1]), "n": ["a/b"]})
    (file,) = stage(rows, metadata=table(tmp_path, "c date, n string", ["day(c)", "n"]), storage=Storage()).files
    assert file.partition == (2**31 - 1, "a/b")
    assert file.file_path.startswith(f"{tmp_path}/data/c_day=2147483647/n=a%2Fb/")


# Partitions


def test_each_row_is_in_the_file_of_its_partition(tmp_path: Path) -> None:
    chance = random.Random(7)
    rows = [
        {
            "id": n,
            "ts": None
            if n % 17 == 0
            else dt.datetime(2026, 1, 1, tzinfo=UTC) + dt.timedelta(hours=chance.randrange(90)),
            "name": chance.choice([None, "", "null", "a", "äöü€x", "a/b=c"]),
        }
        for n in range(500)
    ]
    metadata = table(
        tmp_path, "id bigint, ts timestamp, name string", ["day(ts)", "truncate(3, name)", "bucket(2, id)"]
    )
    staged = stage(rows, metadata=metadata, storage=Storage())
    spec, schema = metadata.spec(), metadata.schema()
    functions = [f.transform.transform(schema.find_type(f.source_id)) for f in spec.fields]
    for file in staged.files:
        for row in rows_of(file):
            expected = tuple(f(row[c]) for f, c in zip(functions, ("ts", "name", "id"), strict=True))
            assert file.partition == expected
    assert len({file.partition for file in staged.files}) == len(staged.files)
    assert sorted(row["id"] for row in all_rows(staged)) == list(range(500))
    # '' and null are two partitions.
    assert {file.partition[1] for file in staged.files} == {None, "", "nul", "a", "äöü", "a/b"}


def test_partition_values_are_in_icebergs_internal_form(tmp_path: Path) -> None:
    ddl = "b boolean, d decimal(9,2), da date, ti time, tz timestamp, u uuid, fx fixed(2), f double, s struct<x:int>"
    metadata = table(tmp_path, ddl, ["b", "d", "da", "ti", "tz", "u", "fx", "f", "s.x"])
    row = {
        "b": True,
        "d": Decimal("-1.50"),
        "da": dt.date(1969, 12, 31),
        "ti": dt.time(0, 0, 1),
        "tz": dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        "u": uuid.UUID(int=5),
        "fx": b"ab",
        "f": 0.5,
        "s": {"x": 3},
    }
    staged = stage([row, {}], metadata=metadata, storage=Storage())
    full = (True, Decimal("-1.50"), -1, 1_000_000, -1_000_000, uuid.UUID(int=5), b"ab", 0.5, 3)
    assert [file.partition for file in staged.files] == [full, (None,) * 9]
    assert f"u={uuid.UUID(int=5)}" in staged.files[0].file_path


def test_nan_is_one_partition_and_the_two_zeros_are_two(tmp_path: Path) -> None:
    batches = [pa.record_batch({"f": [0.0, -0.0, math.nan, None]})] * 2
    staged = stage(iter(batches), metadata=table(tmp_path, "f double", ["f"]), storage=Storage())
    assert [file.record_count for file in staged.files] == [2, 2, 2, 2]
    zeros = [math.copysign(1, file.partition[0]) for file in staged.files if file.partition[0] == 0]
    assert sorted(zeros) == [-1.0, 1.0]
    for file in staged.files:
        assert len({repr(row["f"]) for row in rows_of(file)}) == 1


def test_two_transforms_of_one_column_and_a_void_one(tmp_path: Path) -> None:
    metadata = table(tmp_path, "id bigint, x int", ["bucket(4, id)", "truncate(10, id)", "void(x)"])
    (file,) = stage([{"id": 34, "x": 1}], metadata=metadata, storage=Storage()).files
    assert file.partition == (3, 30, None)


def test_a_void_field_of_a_dropped_column_is_null(tmp_path: Path) -> None:
    metadata = table(tmp_path, "id bigint", ["id"])
    raw = dict(metadata.raw)
    gone = {"source-id": 99, "field-id": 1000, "transform": "void", "name": "gone"}
    raw["partition-specs"] = [
        {
            "spec-id": 0,
            "fields": [gone, {**gone, "source-id": 1, "field-id": 1001, "name": "id", "transform": "identity"}],
        }
    ]
    (file,) = stage([{"id": 1}], metadata=TableMetadata(raw), storage=Storage()).files
    assert file.partition == (None, 1)
    raw["partition-specs"] = [{"spec-id": 0, "fields": [{**gone, "transform": "identity"}]}]
    with pytest.raises(Unsupported, match="column id 99"):
        stage([{"id": 1}], metadata=TableMetadata(raw), storage=Storage())


def test_a_transform_of_the_future_is_refused(tmp_path: Path) -> None:
    raw = dict(table(tmp_path, "id bigint", ["id"]).raw)
    raw["partition-specs"] = [
        {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "transform": "zorder", "name": "z"}]}
    ]
    with pytest.raises(Unsupported, match="transform"):
        stage([{"id": 1}], metadata=TableMetadata(raw), storage=Storage())


def test_long_partition_values_do_not_break_the_path(tmp_path: Path) -> None:
    (file,) = stage([{"n": "é" * 500}], metadata=table(tmp_path, "n string", ["n"]), storage=Storage()).files
    assert file.partition == ("é" * 500,)
    assert rows_of(file) == [{"n": "é" * 500}]


def test_few_files_are_open_at_once_however_many_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "OPEN_FILES", 3)
    monkeypatch.setattr(arrow, "_SPLIT_ROWS", 1)
    storage = _Recording()
    options = {"write.parquet.row-group-limit": "2"}
    batches = (pa.record_batch({"p": list(range(10)), "v": [turn] * 10}) for turn in range(6))
    staged = stage(batches, metadata=table(tmp_path, "p int, v int", ["p"], properties=options), storage=storage)
    assert storage.most_open <= 3
    assert len(staged.files) > 10
    assert sorted((row["p"], row["v"]) for row in all_rows(staged)) == sorted(itertools.product(range(10), range(6)))


def test_memory_is_bounded_over_all_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "BUFFER_BYTES", 10_000)
    monkeypatch.setattr(arrow, "_SPLIT_ROWS", 1)
    batches = [pa.record_batch({"p": [n % 7 for n in range(500)], "v": list(range(500))})] * 4
    metadata = table(tmp_path, "p int, v bigint", ["p"])
    staged = stage(iter(batches), metadata=metadata, storage=Storage())
    groups = [pq.ParquetFile(file.file_path).metadata.num_row_groups for file in staged.files]
    assert len(staged.files) == 7
    assert sum(groups) > 7
    assert staged.rows == 2000


# Rolling and settings


def test_files_roll_by_the_bytes_really_written(tmp_path: Path) -> None:
    chance = random.Random(1)
    rows = pa.table({"v": [chance.randbytes(100) for _ in range(5000)]})
    metadata = table(tmp_path, "v binary", properties={"write.target-file-size-bytes": "100000"})
    staged = stage(rows, metadata=metadata, storage=Storage())
    sizes = [file.file_size_in_bytes for file in staged.files]
    assert 4 <= len(sizes) <= 6
    assert all(100_000 <= size < 130_000 for size in sizes[:-1])
    assert (
        pa.concat_tables(pq.read_table(f.file_path) for f in staged.files).column("v").to_pylist()
        == rows["v"].to_pylist()
    )
    (one,) = stage(rows, metadata=metadata, storage=Storage(), options={"target-file-size-bytes": "100000000"}).files
    assert one.record_count == 5000


def test_well_compressed_rows_fill_a_file_over_several_row_groups(tmp_path: Path) -> None:
    rows = pa.table({"v": pa.array([7] * 100_000, pa.int64())})
    metadata = table(tmp_path, "v bigint", properties={"write.target-file-size-bytes": "100000"})
    (file,) = stage(rows, metadata=metadata, storage=Storage()).files
    assert len(file.split_offsets) > 1
    assert list(file.split_offsets) == sorted(file.split_offsets)


def test_row_groups_are_limited_by_rows_and_by_bytes(tmp_path: Path) -> None:
    rows = pa.table({"v": pa.array(range(10_000), pa.int64())})
    for properties in ({"write.parquet.row-group-limit": "2500"}, {"write.parquet.row-group-size-bytes": "20000"}):
        metadata = table(tmp_path, "v bigint", properties=properties)
        (file,) = stage(rows, metadata=metadata, storage=Storage()).files
        footer = pq.ParquetFile(file.file_path).metadata
        assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [2500] * 4


@pytest.mark.parametrize(
    ("codec", "name"), [(None, "ZSTD"), ("gzip", "GZIP"), ("snappy", "SNAPPY"), ("uncompressed", "UNCOMPRESSED")]
)
def test_the_compression_codec_is_the_tables(tmp_path: Path, codec: str | None, name: str) -> None:
    properties = {"write.parquet.compression-codec": codec, "write.parquet.compression-level": "3"} if codec else {}
    (file,) = stage([{"v": 1}], metadata=table(tmp_path, "v bigint", properties=properties), storage=Storage()).files
    assert pq.ParquetFile(file.file_path).metadata.row_group(0).column(0).compression == name


@pytest.mark.parametrize(
    ("properties", "options", "words"),
    [
        ({"write.parquet.compression-codec": "zsdt"}, {}, "Did you mean 'zstd'"),
        ({"write.target-file-size-bytes": "big"}, {}, "not a whole number"),
        ({"write.target-file-size-bytes": "0"}, {}, "at least 1"),
        ({"write.parquet.row-group-limit": "-1"}, {}, "at least 1"),
        ({"write.py-location-provider.impl": "nowhere.at.All"}, {}, "location provider"),
        ({}, {"target-file-size": "1"}, "Did you mean 'target-file-size-bytes'"),
    ],
)
def test_bad_settings_are_found_before_anything_is_written(
    tmp_path: Path, properties: dict[str, str], options: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        stage([{"v": 1}], metadata=table(tmp_path, "v int", properties=properties), storage=Storage(), options=options)
    assert words in str(caught.value)
    assert files_under(tmp_path) == []


def test_other_formats_and_versions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="orc"):
        stage(
            [{"v": 1}], metadata=table(tmp_path, "v int", properties={"write.format.default": "orc"}), storage=Storage()
        )
    with pytest.raises(Unsupported, match="Upgrade"):
        stage([{"v": 1}], metadata=table(tmp_path, "v int", version=1), storage=Storage())


def test_paths_follow_the_tables_properties(tmp_path: Path) -> None:
    elsewhere = {"write.data.path": f"{tmp_path}/elsewhere", "write.object-storage.enabled": "true"}
    metadata = table(tmp_path / "t", "p int", ["p"], properties=elsewhere)
    (file,) = stage([{"p": 1}], metadata=metadata, storage=Storage()).files
    assert file.file_path.startswith(f"{tmp_path}/elsewhere/")
    assert "/p=1/" in file.file_path
    hidden = {**elsewhere, "write.object-storage.partitioned-paths": "false"}
    (file,) = stage(
        [{"p": 1}], metadata=table(tmp_path / "t", "p int", ["p"], properties=hidden), storage=Storage()
    ).files
    assert "p=1" not in file.file_path


# Sorting


def test_rows_of_a_file_are_in_the_tables_order(tmp_path: Path) -> None:
    chance = random.Random(3)
    rows = [
        {
            "f": chance.choice([None, math.nan, -1.0, 0.5, 2.0]),
            "n": chance.choice([None, "a", "b"]),
            "u": uuid.UUID(int=n),
        }
        for n in range(200)
    ]
    metadata = table(tmp_path, "f double, n string, u uuid", sort_by=["f desc", "n asc nulls last", "u desc"])
    (file,) = stage(rows, metadata=metadata, storage=Storage()).files
    assert file.sort_order_id == 1

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        f, n = row["f"], row["n"]
        return (
            # desc: nulls last, and NaN above every number
            (2, 0.0) if f is None else (0, 0.0) if math.isnan(f) else (1, -f),
            (n is None, n or ""),
            -row["u"].int,
        )

    found = rows_of(file)
    assert found == sorted(found, key=key)
    assert len(found) == 200


def test_a_sort_by_transforms_in_partitions(tmp_path: Path) -> None:
    metadata = table(tmp_path, "p int, s struct<n:string>", ["p"], ["truncate(1, s.n) desc nulls first", "s.n"])
    rows = [{"p": n % 2, "s": None if n % 5 == 0 else {"n": f"{'ab'[n % 3 // 2]}{n}"}} for n in range(40)]
    for file in stage(rows, metadata=metadata, storage=Storage()).files:
        names = [None if row["s"] is None else row["s"]["n"] for row in rows_of(file)]
        blanks = [name for name in names if name is None]
        b, a = (sorted(name for name in names if name and name[0] == c) for c in "ba")
        assert names == blanks + b + a


def test_sorted_files_are_bounded_and_each_one_is_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "SORT_BUFFER_BYTES", 8000)
    values = list(range(5000))
    random.Random(5).shuffle(values)
    staged = stage({"v": values}, metadata=table(tmp_path, "v bigint", sort_by=["v"]), storage=Storage())
    assert len(staged.files) == 5
    for file in staged.files:
        found = [row["v"] for row in rows_of(file)]
        assert found == sorted(found)
    assert sorted(row["v"] for row in all_rows(staged)) == sorted(values)


# Failures


class _Recording(Storage):
    """The real storage, with a note of what was opened and synced."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[str] = []
        self.synced: list[str] = []
        self.most_open = 0
        self._streams: list[Any] = []

    def open_output(self, path: str) -> Any:
        stream = super().open_output(path)
        self.created.append(path)
        self._streams.append(stream)
        self.most_open = max(self.most_open, sum(not each.closed for each in self._streams))
        return stream

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Durable by itself."""
        super().write(path, data, sync=sync)
        self.synced.append(path)

    def sync(self, paths: Iterable[str]) -> None:
        listed = list(paths)
        assert all(each.closed for each in self._streams)
        super().sync(listed)
        self.synced.extend(listed)


@pytest.mark.parametrize("small_bytes", [0, arrow.SMALL_BYTES], ids=["streams", "at once"])
def test_p6_every_file_is_closed_and_synced_before_stage_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr(arrow, "SMALL_BYTES", small_bytes)
    storage = _Recording()
    staged = stage([{"p": n} for n in range(5)], metadata=table(tmp_path, "p int", ["p"]), storage=storage)
    assert sorted(storage.synced) == sorted(file.file_path for file in staged.files) == files_under(tmp_path)


def test_p13_names_are_fresh_randomness_in_every_call(tmp_path: Path) -> None:
    metadata = table(tmp_path, "p int")
    names = {stage([{"p": 1}], metadata=metadata, storage=Storage()).files[0].file_path for _ in range(20)}
    assert len(names) == 20
    for name in names:
        uuid.UUID(os.path.basename(name).removeprefix("00000-").removesuffix(".parquet"))


def test_bad_rows_in_the_first_batch_create_no_file_at_all(tmp_path: Path) -> None:
    storage = _Recording()
    with pytest.raises(SchemaMismatch):
        stage(pa.table({"v": ["x"]}), metadata=table(tmp_path, "v int"), storage=storage)
    assert storage.created == []


def _then(error: BaseException | pa.RecordBatch, batches: int = 7) -> Iterator[pa.RecordBatch]:
    for n in range(batches):
        yield pa.record_batch({"p": pa.array([n] * 10, pa.int64())})
    if isinstance(error, BaseException):
        raise error
    yield error


_TINY = {"write.parquet.row-group-limit": "10", "write.target-file-size-bytes": "150"}


@pytest.mark.parametrize("partition_by", [[], ["p"]])
@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (pa.record_batch({"p": pa.array([2**40], pa.int64())}), SchemaMismatch),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ValueError("the caller's own"), ValueError),
        (OSError(errno.EIO, "the caller's disk"), StorageError),
        (MemoryError(), MemoryError),
    ],
    ids=["bad rows", "interrupt", "caller's error", "caller's disk", "no memory"],
)
def test_whatever_fails_later_removes_every_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partition_by: list[str],
    failure: BaseException | pa.RecordBatch,
    raised: type[BaseException],
) -> None:
    monkeypatch.setattr(arrow, "_SPLIT_ROWS", 1)
    storage = _Recording()
    metadata = table(tmp_path, "p int", partition_by, properties=_TINY)
    with pytest.raises(raised):
        stage(_then(failure), metadata=metadata, storage=storage)
    assert len(storage.created) >= 3
    assert files_under(tmp_path) == []


class _FullDisk(_Recording):
    """A disk with room for so many files; the stream of the next one ends as the kernel's /dev/full does."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def open_output(self, path: str) -> Any:
        stream = super().open_output(path)
        if len(self.created) <= self._room:
            return stream
        stream.close()
        return pa.PythonFile(open("/dev/full", "wb", buffering=0), mode="w")

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self.created.append(path)
        with pytest.MonkeyPatch.context() as patch:
            if len(self.created) > self._room:
                patch.setattr(os, "write", _no_room)
            super().write(path, data, sync=sync)


def _no_room(_fd: int, _data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("small_bytes", [0, arrow.SMALL_BYTES], ids=["streams", "at once"])
@pytest.mark.parametrize("room", [0, 3])
def test_a_full_disk_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, small_bytes: int
) -> None:
    monkeypatch.setattr(arrow, "SMALL_BYTES", small_bytes)
    storage = _FullDisk(room)
    with pytest.raises(StorageError, match="the disk is full"):
        stage([{"p": n} for n in range(5)], metadata=table(tmp_path, "p int", ["p"]), storage=storage)
    assert len(storage.created) == room + 1
    assert files_under(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionDenied):
        stage([{"p": 1}], metadata=table(tmp_path, "p int"), storage=Storage())


class _NoSync(_Recording):
    def sync(self, paths: Iterable[str]) -> None:
        raise StorageError(f"Cannot sync {list(paths)}")


def test_files_that_cannot_be_made_durable_are_removed(tmp_path: Path) -> None:
    with pytest.raises(FrazilError, match="Cannot sync"):
        stage([{"p": 1}], metadata=table(tmp_path, "p int"), storage=_NoSync())
    assert files_under(tmp_path) == []


def test_memory_lakes_are_written_too() -> None:
    storage = Storage()
    staged = stage([{"p": 1}, {"p": 2}], metadata=table("memory://lake/t", "p int", ["p"]), storage=storage)
    found = [pq.read_table(storage.open_input(file.file_path)).to_pylist() for file in staged.files]
    assert found == [[{"p": 1}], [{"p": 2}]]
    with pytest.raises(SchemaMismatch):
        stage(_then(pa.record_batch({"p": ["x"]})), metadata=table("memory://lake/u", "p int"), storage=storage)
    assert list(storage.list("memory://lake/u")) == []


# Bounds of whole files


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.none() | st.text(max_size=20)), min_size=1, max_size=30))
def test_every_row_of_a_file_is_within_its_bounds(pairs: list[tuple[int, str | None]]) -> None:
    storage = Storage()
    metadata = table(
        "memory://lake/t", "i int, t string", ["bucket(3, i)"], properties={"write.parquet.row-group-limit": "4"}
    )
    staged = stage([{"i": i, "t": t} for i, t in pairs], metadata=metadata, storage=storage)
    assert staged.rows == len(pairs)
    for file in staged.files:
        found = pq.read_table(storage.open_input(file.file_path))
        least = pc.min(found["i"]).as_py()
        assert int.from_bytes(file.lower_bounds[1], "little", signed=True) == least
        for text in found["t"].to_pylist():
            if text is not None:
                assert file.lower_bounds[2] <= text.encode()
                assert 2 not in file.upper_bounds or text.encode() <= file.upper_bounds[2]
        assert file.null_value_counts[2] == found["t"].null_count
