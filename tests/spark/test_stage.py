"""DataFrames into files: what is in them, what the manifest will say of them, and what is refused."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import random
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import frazil
from frazil.errors import InvalidInput, SchemaMismatch, SparkFailed
from frazil.expr import parse_filter
from frazil.format.schemas import arrow_schema
from frazil.format.storage import Storage, local_path
from frazil.model import Content, DataFile
from frazil.on_spark import stage as staging
from frazil.on_spark.fitting import conform_frame
from frazil.on_spark.stage import stage_keys, stage_rows
from frazil.runtime import SYSTEM
from frazil.stage import arrow as arrow_staging

# PySpark leaves the sockets it moves rows through to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@contextlib.contextmanager
def settled(spark: Any, settings: dict[str, str]) -> Iterator[None]:
    """As a user sets them: not with ``held``, which leaves nested blocks to the last one out."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


UNKNOWN_COMMITTER = "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitter"
HOSTILE = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "Asia/Kathmandu",
    "spark.sql.caseSensitive": "true",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parquet.fieldId.write.enabled": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.compression.codec": "gzip",
    "spark.sql.files.maxRecordsPerFile": "1",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
}
PLAIN = (
    "b boolean, i int, l bigint, f float, d double, s string, y binary, day date, ts timestamp, n timestamp_ntz, "
    "small decimal(7,2), medium decimal(18,6), large decimal(38,10), st struct<x:int,t:struct<name:string,v:double>>"
)
ROW = {
    "b": True, "i": -5, "l": 2**62, "f": 1.5, "d": -0.0, "s": "ß€𝄞", "y": b"\x00\xff", "day": dt.date(1500, 1, 1),
    "ts": dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC), "n": dt.datetime(2020, 3, 8, 2, 30, 0, 1),  # noqa: DTZ001
    "small": Decimal("-1.10"), "medium": Decimal("123456789012.000001"),
    "large": Decimal("1234567890123456789012345678.0123456789"), "st": {"x": 1, "t": {"name": "a", "v": math.inf}},
}  # fmt: skip
# By literals: Python's datetimes would go through the machine's zone and the session's.
AS_SQL = (
    "true b, -5 i, 4611686018427387904L l, 1.5f f, double('-0.0') d, 'ß€𝄞' s, X'00ff' y, date'1500-01-01' day, "
    "timestamp_micros(-1L) ts, timestamp_ntz'2020-03-08 02:30:00.000001' n, cast(-1.1 as decimal(7,2)) small, "
    "cast('123456789012.000001' as decimal(18,6)) medium, "
    "cast('1234567890123456789012345678.0123456789' as decimal(38,10)) large, "
    "named_struct('x', 1, 't', named_struct('name', 'a', 'v', double('infinity'))) st"
)
NESTED = (
    "id bigint, u uuid, x fixed(3), t time, tags array<string>, pairs map<string,array<int>>, "
    "deep array<struct<k:uuid,m:map<int,decimal(20,4)>>>"
)


class Made:
    """A table and a way to stage frames into it."""

    def __init__(self, lake: frazil.Lake, schema: object, **options: Any) -> None:
        self.table = lake.create_table("shop.t", schema, **options)
        self.lake = lake

    def metadata(self) -> Any:
        from frazil.format.metadata import TableMetadata

        folder = sorted(Path(self.folder, "metadata").glob("*.metadata.json"))
        return TableMetadata.parse(folder[-1].read_bytes(), str(folder[-1]))

    @property
    def folder(self) -> str:
        return str(next(Path(self.lake_folder).rglob("*.metadata.json")).parent.parent)

    lake_folder = ""

    def stage(self, frame: Any, where: str | None = None, **options: str) -> arrow_staging.StagedFiles:
        metadata = self.metadata()
        chosen = None if where is None else parse_filter(where, metadata.schema())
        return stage_rows(
            frame,
            metadata=metadata,
            storage=self.storage,
            runtime=SYSTEM,
            options=options,
            where=chosen,
            table="shop.t",
        )

    @property
    def storage(self) -> Any:
        return Storage()

    def files_left(self) -> list[str]:
        return sorted(str(path) for path in Path(self.folder, "data").rglob("*") if path.is_file())

    def folders_left(self) -> list[str]:
        return sorted(str(path) for path in Path(self.folder, "data").rglob("*") if path.is_dir())


@pytest.fixture
def make(lake: frazil.Lake, tmp_path: Path) -> Any:
    def made(schema: object, **options: Any) -> Made:
        found = Made(lake, schema, **options)
        found.lake_folder = str(tmp_path / "lake")
        return found

    return made


def read(file: DataFile) -> pa.Table:
    return pq.ParquetFile(local_path(file.file_path)).read()


def rows_of(staged: arrow_staging.StagedFiles) -> list[dict[str, Any]]:
    return [row for file in staged.files for row in read(file).to_pylist()]


# All types


@pytest.mark.parametrize("settings", [{}, HOSTILE], ids=["plain", "hostile"])
@pytest.mark.parametrize("partition_by", [[], ["bucket(4, s)", "day(ts)", "hour(n)"]], ids=["whole", "partitioned"])
def test_spark_and_arrow_write_the_same(
    spark: Any, make: Any, settings: dict[str, str], partition_by: list[str]
) -> None:
    made = make(PLAIN, partition_by=partition_by)
    metadata = made.metadata()
    rows = [ROW, dict.fromkeys(ROW)]
    table = pa.Table.from_pylist(rows, arrow_schema(metadata.schema()))
    with settled(spark, settings):
        frame = spark.sql(f"SELECT {AS_SQL} UNION ALL SELECT {', '.join(['NULL'] * len(ROW))}")
        staged = made.stage(frame)
        assert spark.conf.get("spark.sql.parquet.fieldId.write.enabled") == settings.get(
            "spark.sql.parquet.fieldId.write.enabled", "true"
        )
    by_arrow = arrow_staging.stage(table, metadata=metadata, storage=made.storage)
    assert staged.rows == by_arrow.rows == 2
    key = lambda file: repr(file.partition)  # noqa: E731
    if partition_by:
        for mine, theirs in zip(sorted(staged.files, key=key), sorted(by_arrow.files, key=key), strict=True):
            assert_same(mine, theirs)
    found = sorted(rows_of(staged), key=repr)
    assert repr(found) == repr(sorted(rows_of(by_arrow), key=repr))
    for file in staged.files:
        ids = {(field.metadata or {})[b"PARQUET:field_id"] for field in pq.read_schema(local_path(file.file_path))}
        assert len(ids) == 14
        assert pq.read_metadata(local_path(file.file_path)).row_group(0).column(0).compression == "ZSTD"


def assert_same(mine: DataFile, theirs: DataFile) -> None:
    assert mine.partition == theirs.partition
    assert [type(value) for value in mine.partition] == [type(value) for value in theirs.partition]
    assert mine.record_count == theirs.record_count
    assert mine.value_counts == theirs.value_counts
    assert mine.null_value_counts == theirs.null_value_counts
    assert mine.lower_bounds == theirs.lower_bounds
    assert mine.upper_bounds == theirs.upper_bounds
    assert mine.nan_value_counts == theirs.nan_value_counts
    assert mine.spec_id == theirs.spec_id
    assert mine.sort_order_id == theirs.sort_order_id
    assert mine.file_size_in_bytes == os.path.getsize(local_path(mine.file_path))


@pytest.mark.everywhere
@pytest.mark.parametrize("settings", [{}, HOSTILE], ids=["plain", "hostile"])
def test_types_that_spark_lacks_go_through_arrow(spark: Any, make: Any, settings: dict[str, str]) -> None:
    made = make(NESTED, partition_by=["u", "bucket(3, x)"])
    one = uuid.UUID(int=1 << 127 | 5)
    micros = 3_661_000_001
    rows = [
        (
            1,
            str(one),
            b"abc",
            micros,
            ["a", None, ""],
            {"k": [1, None], "z": None},
            [(str(one), {1: Decimal("1.5")}), None],
        ),
        (2, None, None, None, None, None, None),
        (3, str(one).upper(), b"xyz", 0, [], {}, []),
    ]
    ddl = (
        "id long, u string, x binary, t long, tags array<string>, pairs map<string,array<int>>, "
        "deep array<struct<k:string,m:map<int,decimal(20,4)>>>"
    )
    with settled(spark, settings):
        staged = made.stage(spark.createDataFrame(rows, ddl))
    found = {row["id"]: row for row in rows_of(staged)}
    assert found[1]["u"] == found[3]["u"] == one
    assert found[1]["t"] == dt.time(1, 1, 1, 1)
    assert found[1]["tags"] == ["a", None, ""]
    assert dict(found[1]["pairs"]) == {"k": [1, None], "z": None}
    assert found[1]["deep"][0]["k"] == one
    assert dict(found[1]["deep"][0]["m"]) == {1: Decimal("1.5000")}
    assert found[1]["deep"][1] is None
    assert all(value is None for name, value in found[2].items() if name != "id")
    assert (found[3]["tags"], found[3]["deep"]) == ([], [])
    assert {file.partition[0] for file in staged.files} == {one, None}
    assert {type(file.partition[0]) for file in staged.files} == {uuid.UUID, type(None)}
    metadata = made.metadata()
    target = arrow_schema(metadata.schema())
    for file in staged.files:
        assert (
            pq.ParquetFile(local_path(file.file_path)).schema_arrow.field("deep").type.value_field.metadata is not None
        )
        assert list(pq.read_schema(local_path(file.file_path)).names) == target.names
    assert made.files_left() == sorted(local_path(file.file_path) for file in staged.files)


def test_only_the_files_are_left(spark: Any, make: Any) -> None:
    made = make("id bigint, p string", partition_by=["p"])
    staged = made.stage(spark.range(100).selectExpr("id", "cast(id % 3 as string) p"))
    assert staged.rows == 100
    assert made.files_left() == sorted(local_path(file.file_path) for file in staged.files)
    assert {file.partition for file in staged.files} == {("0",), ("1",), ("2",)}
    assert all(row["p"] == file.partition[0] for file in staged.files for row in read(file).to_pylist())


def test_an_empty_frame_leaves_nothing(spark: Any, make: Any) -> None:
    made = make("id bigint, tags array<string>")
    assert made.stage(spark.createDataFrame([], "id long, tags array<string>")).files == ()
    assert not made.files_left()


@pytest.mark.parametrize("frame", ["range(0)", "empty", "filtered"])
def test_p32_an_empty_frame_through_sparks_writer(spark: Any, make: Any, frame: str) -> None:
    made = make("id bigint", partition_by=["bucket(4, id)"] if frame == "empty" else [])
    frames = {
        "range(0)": lambda: spark.range(0),
        "empty": lambda: spark.createDataFrame([], "id long"),
        "filtered": lambda: spark.range(10).where("id > 50"),
    }
    staged = made.stage(frames[frame]())
    assert (staged.files, staged.rows) == ((), 0)
    assert not made.files_left()


def cut(text: str | None) -> str | None:
    return None if text is None else text[:3]


@pytest.mark.everywhere
def test_p32_hard_partition_values(spark: Any, make: Any) -> None:
    made = make("id bigint, p string, q string", partition_by=["p", "truncate(3, q)"])
    texts = ["", None, "__HIVE_DEFAULT_PARTITION__", "a/b=c", "é" * 300, "𝄞" * 500, "%20", " ", ".", ".."]
    rows = [(number, p, q) for number, (p, q) in enumerate((p, q) for p in texts for q in texts)]
    staged = made.stage(spark.createDataFrame(rows, "id long, p string, q string"))
    assert {file.partition for file in staged.files} == {(p, cut(q)) for _, p, q in rows}
    for file in staged.files:
        assert {(row["p"], cut(row["q"])) for row in read(file).to_pylist()} == {file.partition}
    assert staged.rows == len(rows)


# Statistics


def test_nan_never_makes_bounds_too_tight(spark: Any, make: Any) -> None:
    made = make("d double, f float, z double, w double")
    rows = [(1.0, 2.0, -0.0, 1.0), (math.nan, math.nan, 0.0, 9.0), (5.0, 1.0, 0.0, None)]
    staged = made.stage(spark.createDataFrame(rows, "d double, f float, z double, w double").coalesce(1))
    (file,) = staged.files
    assert set(file.lower_bounds) == set(file.upper_bounds) == {3, 4}
    assert file.nan_value_counts == {3: 0, 4: 0}
    assert file.null_value_counts == {1: 0, 2: 0, 3: 0, 4: 1}


def test_the_sort_order_is_kept(spark: Any, make: Any) -> None:
    made = make("p int, d double, s string", partition_by=["p"], sort_by=["d desc nulls last", "bucket(4, s)"])
    _rng = random.Random(3)
    values = [None, math.nan, -0.0, *(_rng.random() for _ in range(200))]
    rows = [(_rng.randrange(3), _rng.choice(values), str(_rng.random())) for _ in range(500)]
    staged = made.stage(spark.createDataFrame(rows, "p int, d double, s string"))
    assert {file.sort_order_id for file in staged.files} == {1}
    for file in staged.files:
        found = [_rank(value) for value in read(file).column("d").to_pylist()]
        assert found == sorted(found, reverse=True)


def _rank(value: float | None) -> tuple[int, float]:
    if value is None:
        return (0, 0.0)
    return (2, 0.0) if math.isnan(value) else (1, value)


@pytest.mark.parametrize("mode", ["none", "hash", "range"])
def test_distribution_modes(spark: Any, make: Any, mode: str) -> None:
    made = make(
        "id bigint", partition_by=["bucket(8, id)"], sort_by=["id"], properties={"write.distribution-mode": mode}
    )
    staged = made.stage(spark.range(0, 10_000, 1, 4))
    assert staged.rows == 10_000
    per_partition: dict[Any, int] = {}
    for file in staged.files:
        per_partition[file.partition] = per_partition.get(file.partition, 0) + 1
        ids: list[Any] = read(file).column("id").to_pylist()
        assert ids == sorted(ids)
    assert len(per_partition) == 8
    if mode == "hash":
        assert set(per_partition.values()) == {1}


def test_an_unknown_distribution_mode(spark: Any, make: Any) -> None:
    made = make("id bigint", properties={"write.distribution-mode": "hsah"})
    with pytest.raises(InvalidInput, match=r"write\.distribution-mode is 'hsah'"):
        made.stage(spark.range(1))


@pytest.mark.parametrize("kind", ["bigint", "array<bigint>"])
def test_files_keep_near_their_size(spark: Any, make: Any, kind: str) -> None:
    made = make(f"id bigint, x {kind}")
    frame = spark.range(0, 200_000, 1, 1).selectExpr("id", "hash(id) * 1L as x")
    if kind != "bigint":
        frame = frame.selectExpr("id", "array(x) as x")
    staged = made.stage(frame, **{"target-file-size-bytes": "500000"})
    assert staged.rows == 200_000
    assert 2 <= len(staged.files) <= 30


def test_a_million_rows_over_many_partitions(spark: Any, make: Any) -> None:
    made = make("id bigint, p int", partition_by=["p"])
    staged = made.stage(spark.range(1_000_000).selectExpr("id", "cast(id % 200 as int) p"))
    assert staged.rows == 1_000_000
    assert {file.partition for file in staged.files} == {(p,) for p in range(200)}
    assert sum(file.record_count for file in staged.files) == 1_000_000


# What does not fit


def test_names_are_matched_as_for_arrow_rows(spark: Any, make: Any) -> None:
    made = make("id bigint not null, Name string, st struct<x:int,Y:string>")
    rows = [("b", {"y": "t", "X": 3}, 1)]
    frame = spark.createDataFrame(rows, "NAME string, st struct<y:string,X:int>, id int")
    assert rows_of(made.stage(frame)) == [{"id": 1, "Name": "b", "st": {"x": 3, "Y": "t"}}]
    with pytest.raises(SchemaMismatch) as raised:
        made.stage(spark.createDataFrame([("a", "b")], "name string, nmae string"))
    assert "'nmae': the table has no such column (Did you mean 'Name'?" in str(raised.value)
    assert "'id' is long: the rows do not have this required column" in str(raised.value)


@pytest.mark.parametrize(
    ("table", "given", "value", "sentence"),
    [
        ("int", "long", 2**31, "'x' is int: the value 2147483648 does not fit (The column holds 32-bit integers)"),
        ("float", "int", 2**24 + 1, "the value 16777217 does not fit"),
        ("double", "long", 2**53 + 1, "the value 9007199254740993 does not fit"),
        ("decimal(4,2)", "long", 100, "the value 100 does not fit (Round to 2 decimal places"),
        ("decimal(4,2)", "decimal(10,3)", Decimal("1.001"), "the value 1.001 does not fit"),
        ("uuid", "string", "nope", "the value nope does not fit"),
        ("fixed(2)", "binary", b"abc", "the value 616263 does not fit (Every value must have 2 bytes)"),
        ("time", "long", -1, "the value -1 does not fit"),
    ],
)
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_values_that_do_not_fit(
    spark: Any, make: Any, table: str, given: str, value: Any, sentence: str, ansi: str
) -> None:
    made = make(f"x {table}")
    with settled(spark, {"spark.sql.ansi.enabled": ansi}):
        with pytest.raises(SchemaMismatch) as raised:
            made.stage(spark.createDataFrame([(value,), (None,)], f"x {given}"))
        assert sentence in str(raised.value)
    assert not made.files_left()


@pytest.mark.parametrize(
    ("table", "given", "value", "stored"),
    [
        ("int", "long", -(2**31), -(2**31)),
        ("bigint", "short", 7, 7),
        ("float", "int", 2**24, float(2**24)),
        ("double", "float", 1.5, 1.5),
        ("decimal(4,2)", "long", 99, Decimal("99.00")),
        ("decimal(38,2)", "decimal(38,10)", Decimal("1.1"), Decimal("1.10")),
        ("uuid", "binary", b"\x01" * 16, uuid.UUID(bytes=b"\x01" * 16)),
        ("uuid", "string", "{01010101010101010101010101010101}", uuid.UUID(bytes=b"\x01" * 16)),
        ("array<bigint>", "array<int>", [1, None], [1, None]),
        ("map<string,double>", "map<string,float>", {"a": 1.5}, [("a", 1.5)]),
        ("string", "void", None, None),
    ],
)
def test_values_that_fit(spark: Any, make: Any, table: str, given: str, value: Any, stored: Any) -> None:
    made = make(f"x {table}")
    rows = rows_of(made.stage(spark.createDataFrame([(value,), (None,)], f"x {given}")))
    assert sorted((row["x"] for row in rows), key=repr) == sorted([stored, None], key=repr)


@pytest.mark.parametrize(
    ("table", "given"),
    [
        ("int", "double"),
        ("timestamp", "timestamp_ntz"),
        ("timestamp_ntz", "timestamp"),
        ("string", "int"),
        ("int", "interval day to second"),
    ],
)
def test_types_that_have_nothing_in_common(spark: Any, make: Any, table: str, given: str) -> None:
    made = make(f"x {table}")
    with pytest.raises(SchemaMismatch, match="The rows do not fit the table"):
        conform_frame(spark.range(1).selectExpr(f"cast(null as {given}) x"), made.metadata().schema())


@pytest.mark.parametrize("extra", ["", ", tags array<string>"])
def test_nulls_in_required_columns(spark: Any, make: Any, extra: str) -> None:
    fields = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("st", pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.int32())])),
    ]
    if extra:
        fields.append(pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))))
    made = make(pa.schema(fields))
    ddl = "id long, st struct<x:int,y:int>" + extra
    more = [["a"]] if extra else []
    good = spark.createDataFrame([(1, (1, None), *more), (2, None, *more)], ddl)
    assert made.stage(good).rows == 2
    with pytest.raises(SchemaMismatch) as raised:
        made.stage(spark.createDataFrame([(None, (None, 1), *more), (None, None, *more)], ddl))
    text = str(raised.value)
    assert (
        "'st.x' is int: 1 value is null, and the column is required" in text
        or "'id' is long: 2 values are null" in text
    )
    if extra:
        with pytest.raises(SchemaMismatch, match=r"'tags.element' is string: 1 value is null"):
            made.stage(spark.createDataFrame([(1, None, [None])], ddl))


def test_a_text_that_is_not_utf8(spark: Any, make: Any) -> None:
    made = make("s string")
    with settled(spark, {"spark.sql.ansi.enabled": "false"}), pytest.raises(SchemaMismatch, match="not valid UTF-8"):
        made.stage(spark.range(1).selectExpr("cast(X'ff00' as string) s"))


@pytest.mark.everywhere
def test_every_row_must_match_where(spark: Any, make: Any) -> None:
    made = make("id bigint, p string")
    frame = spark.createDataFrame([(1, "a"), (2, None)], "id long, p string")
    assert made.stage(frame, where="id > 0").rows == 2
    with pytest.raises(InvalidInput, match="A row does not match where=\"p = 'a'\"") as raised:
        made.stage(frame, where="p = 'a'")
    assert '"id":2' in str(raised.value)


# Failures


@pytest.mark.parametrize("extra", ["", ", tags array<string>"])
def test_a_failing_job_leaves_nothing(spark: Any, make: Any, extra: str) -> None:
    made = make(f"id bigint{extra}")
    frame = spark.range(0, 1000, 1, 4).selectExpr(
        "if(id = 999, raise_error('boom'), id) as id", *(["array('a') as tags"] if extra else [])
    )
    with pytest.raises(SparkFailed):
        made.stage(frame)
    assert not made.files_left()
    assert not made.folders_left()


def test_p33_an_unknown_committer_is_not_trusted(spark: Any, make: Any) -> None:
    made = make("id bigint, p int", partition_by=["p"])
    with settled(spark, {"spark.sql.parquet.output.committer.class": UNKNOWN_COMMITTER}):
        staged = made.stage(spark.range(100).selectExpr("id", "cast(id % 2 as int) p"))
    assert staged.rows == 100
    assert {file.partition for file in staged.files} == {(0,), (1,)}


def test_p38_types_are_asserted_on_the_files(spark: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("ts timestamp")
    monkeypatch.setattr(staging, "_HELD", {})
    frame = spark.range(1).selectExpr("timestamp'2020-01-01 00:00:00' ts")
    with (
        settled(spark, {"spark.sql.parquet.outputTimestampType": "INT96"}),
        pytest.raises(frazil.StorageError, match="does not match the requested schema or encoding"),
    ):
        made.stage(frame)
    assert not made.files_left()


def test_many_footers_are_read_on_executors(spark: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_FOOTERS_ON_DRIVER", 1)
    made = make("id bigint", partition_by=["bucket(5, id)"])
    assert made.stage(spark.range(1000)).rows == 1000


def test_p33_files_of_other_attempts_are_not_accepted(spark: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("id bigint, tags array<string>")
    write = staging._write_with_arrow

    def with_another_attempt(frame: Any, folder: Any, job: Any) -> Any:
        written = write(frame, folder, job)
        Path(local_path(folder.path), "of-another-attempt.parquet").write_bytes(b"PAR1")
        return written

    monkeypatch.setattr(staging, "_write_with_arrow", with_another_attempt)
    staged = made.stage(spark.range(10).selectExpr("id", "array('a') as tags"))
    assert staged.rows == 10
    assert made.files_left() == sorted(local_path(file.file_path) for file in staged.files)


def test_p38_a_lost_file_is_noticed(spark: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("id bigint")
    monkeypatch.setattr(staging, "_is_written", lambda inside: inside.startswith("part-00000"))
    with pytest.raises(frazil.StorageError, match="Spark processed 100 rows"):
        made.stage(spark.range(0, 100, 1, 2))
    assert not made.files_left()


# Keys


def test_keys_become_equality_deletes(spark: Any, make: Any) -> None:
    made = make("id bigint not null, k string not null, v double", keys=["id", "k"])
    metadata = made.metadata()
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "id long, k string").repartition(5)
    files = stage_keys(frame, [2, 1], 0, metadata=metadata, storage=made.storage, runtime=SYSTEM)
    assert {file.content for file in files} == {Content.EQUALITY_DELETES}
    assert {file.equality_ids for file in files} == {(1, 2)}
    assert sorted(row["id"] for file in files for row in read(file).to_pylist()) == [1, 2]
    assert all(set(file.lower_bounds) == {1, 2} for file in files)
    assert sum(file.record_count for file in files) == 2


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_long_values_of_a_required_column_are_no_nulls(spark: Any, make: Any, kind: str) -> None:
    made = make(f"v {kind} not null")
    assert made.stage(spark.sql(f"select cast(repeat('x', 70000) as {kind}) v")).rows == 1
    with pytest.raises(SchemaMismatch, match="1 value is null"):
        made.stage(spark.sql(f"select cast(repeat('x', 70000) as {kind}) v union all select null"))
