"""Rows do not depend on the settings of a session: alone or all together they change no row that is read or written.

Each setting here can change rows of plain Spark, or which of its code runs. Traps are those of Spark's Parquet reader
and writer that silently give other rows; each has a test that fails without its cure.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import frazil
from frazil.format.storage import Storage, local_path
from frazil.on_spark import stage
from frazil.on_spark.connector import SHARED_FILES, check_reachable, connector_options
from frazil.on_spark.placing import s3_options
from spark.conftest import KIND
from spark.rows import canonical, same_rows

arrow: Any = pa
PARQUET, FILES, SQL = "spark.sql.parquet", "spark.sql.files", "spark.sql"

HOSTILE: dict[str, dict[str, str]] = {
    "ansi off": {f"{SQL}.ansi.enabled": "false"},
    "ansi words": {
        f"{SQL}.ansi.enabled": "true",
        f"{SQL}.ansi.enforceReservedKeywords": "true",
        f"{SQL}.ansi.doubleQuotedIdentifiers": "true",
    },
    "case counts": {f"{SQL}.caseSensitive": "true"},
    "a zone with odd minutes": {f"{SQL}.session.timeZone": "Asia/Kathmandu"},
    "a zone that jumps a day": {f"{SQL}.session.timeZone": "Pacific/Apia"},
    "timestamps have no zone": {f"{SQL}.timestampType": "TIMESTAMP_NTZ"},
    "old calendar": {
        f"{PARQUET}.datetimeRebaseModeInRead": "LEGACY",
        f"{PARQUET}.datetimeRebaseModeInWrite": "LEGACY",
        f"{PARQUET}.int96RebaseModeInRead": "LEGACY",
        f"{PARQUET}.int96RebaseModeInWrite": "LEGACY",
    },
    "careful calendar": {
        f"{PARQUET}.datetimeRebaseModeInRead": "EXCEPTION",
        f"{PARQUET}.datetimeRebaseModeInWrite": "EXCEPTION",
    },
    "rows one by one": {f"{PARQUET}.enableVectorizedReader": "false"},
    "nested rows one by one": {f"{PARQUET}.enableNestedColumnVectorizedReader": "false"},
    "one row in a batch": {
        f"{PARQUET}.columnarReaderBatchSize": "1",
        f"{SQL}.execution.arrow.maxRecordsPerBatch": "3",
        f"{SQL}.execution.arrow.useLargeVarTypes": "true",
    },
    "columns by id": {
        f"{PARQUET}.fieldId.read.enabled": "true",
        f"{PARQUET}.fieldId.read.ignoreMissing": "true",
        f"{PARQUET}.fieldId.write.enabled": "false",
    },
    "lenient": {f"{FILES}.ignoreMissingFiles": "true", f"{FILES}.ignoreCorruptFiles": "true"},
    "merged schemas": {f"{PARQUET}.mergeSchema": "true", f"{PARQUET}.respectSummaryFiles": "true"},
    "old types": {
        f"{PARQUET}.writeLegacyFormat": "true",
        f"{PARQUET}.outputTimestampType": "INT96",
        f"{PARQUET}.binaryAsString": "true",
        f"{PARQUET}.int96AsTimestamp": "false",
        f"{PARQUET}.inferTimestampNTZ.enabled": "false",
        "spark.sql.legacy.parquet.nanosAsLong": "true",
    },
    "milliseconds": {f"{PARQUET}.outputTimestampType": "TIMESTAMP_MILLIS"},
    "folders": {
        f"{SQL}.sources.partitionColumnTypeInference.enabled": "true",
        f"{SQL}.sources.partitionOverwriteMode": "dynamic",
    },
    "tiny parts": {
        f"{FILES}.maxRecordsPerFile": "2",
        f"{FILES}.maxPartitionBytes": "2000",
        f"{FILES}.openCostInBytes": "0",
        f"{SQL}.shuffle.partitions": "3",
    },
    "listed in parallel": {f"{SQL}.sources.parallelPartitionDiscovery.threshold": "0"},
    "not adaptive": {f"{SQL}.adaptive.enabled": "false", f"{SQL}.autoBroadcastJoinThreshold": "-1"},
    "no code made": {f"{SQL}.codegen.wholeStage": "false", f"{SQL}.codegen.factoryMode": "NO_CODEGEN"},
    "fewer rules": {
        f"{SQL}.optimizer.excludedRules": ",".join(
            f"org.apache.spark.sql.catalyst.optimizer.{rule}"
            for rule in ("ConstantFolding", "PushDownPredicates", "ColumnPruning", "BooleanSimplification")
        ),
        f"{SQL}.optimizer.nestedSchemaPruning.enabled": "false",
        f"{PARQUET}.filterPushdown": "false",
        f"{SQL}.subexpressionElimination.enabled": "false",
    },
    "filters for each row": {f"{PARQUET}.recordLevelFilter.enabled": "true"},
    "names are patterns": {f"{SQL}.parser.quotedRegexColumnNames": "true"},
    "old habits": {
        f"{SQL}.legacy.timeParserPolicy": "LEGACY",
        f"{SQL}.parser.escapedStringLiterals": "true",
        f"{SQL}.legacy.parquet.returnNullStructIfAllFieldsMissing": "true",
        f"{SQL}.storeAssignmentPolicy": "LEGACY",
        f"{SQL}.mapKeyDedupPolicy": "LAST_WIN",
        f"{SQL}.decimalOperations.allowPrecisionLoss": "false",
        f"{SQL}.legacy.sizeOfNull": "true",
        f"{SQL}.crossJoin.enabled": "false",
        f"{SQL}.execution.arrow.pyspark.enabled": "false",
    },
}
TOGETHER = {name: value for each in HOSTILE.values() for name, value in each.items()}


@contextlib.contextmanager
def settings(spark: Any, given: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in given}
    try:
        for name, value in given.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def hostile(name: str) -> dict[str, str]:
    return TOGETHER if name == "all together" else HOSTILE[name]


every_setting = pytest.mark.parametrize(
    "name",
    # One by one they take minutes; together they are as hostile.
    [*(pytest.param(name, marks=pytest.mark.slow) for name in HOSTILE), "all together"],
)


# A table of many types with a life behind it

FLAT = (
    "id bigint not null, i int, f float, d double, n decimal(38,10), s string, b boolean, day date, ts timestamp, "
    "local timestamp_ntz, raw binary, st struct<x: int, y: string>"
)
NESTED = f"{FLAT}, u uuid, fx fixed(3), t time, li array<int>, m map<string, double>"


def row(i: int) -> dict[str, Any]:
    """Values on which calendars, zones, signs and encodings differ."""
    sign = -1 if i % 2 else 1
    some: dict[str, Any] = {
        "id": i,
        "i": sign * i,
        "f": (0.0, -0.0, float("nan"), float("inf"), i / 4)[i % 5],
        "d": (float("nan"), -0.0, 0.0, i / 3, float("-inf"))[i % 5],
        "n": Decimal(sign * i * 10**20 + i).scaleb(-10),
        "s": ("", "é😀", "a%20b c", "NULL", f"s{i}", "__HIVE_DEFAULT_PARTITION__")[i % 6],
        "b": i % 3 == 0,
        "day": (dt.date(1200, 2, 28), dt.date(1582, 10, 10), dt.date(2026, 3, 8), dt.date(9999, 12, 31))[i % 4],
        "ts": (
            dt.datetime(1500, 1, 1, 12, 30, 15, 123456, dt.UTC),
            dt.datetime(1899, 12, 31, 23, 59, 59, 999999, dt.UTC),
            dt.datetime(2026, 3, 8, 7, 30, 0, 1, dt.UTC),
        )[i % 3]
        + dt.timedelta(hours=i),
        # An hour that New York does not have.
        "local": dt.datetime(2026, 3, 8, 2, 30, 0, i) if i % 2 else dt.datetime(1300, 5, 6, 7, 8, 9, i),  # noqa: DTZ001
        "raw": bytes([i % 256, 255, 0]),
        "st": {"x": i, "y": None if i % 3 else "y"},
        "u": uuid.UUID(int=(i << 120) + i).bytes,
        "fx": bytes([255 - i % 256, 0, 1]),
        "t": dt.time(i % 24, 1, 2, i),
        "li": [i, None, -i],
        "m": [("k", i / 2), ("", None)],
    }
    return {
        name: None if name != "id" and (i * 7 + at) % 9 == 0 else value for at, (name, value) in enumerate(some.items())
    }


def rows(start: int, end: int, nested: bool, **fixed: Any) -> pa.Table:
    kinds: dict[str, Any] = {
        "id": pa.int64(),
        "i": pa.int32(),
        "f": pa.float32(),
        "d": pa.float64(),
        "n": arrow.decimal128(38, 10),
        "s": pa.string(),
        "b": pa.bool_(),
        "day": pa.date32(),
        "ts": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "raw": pa.binary(),
        "st": arrow.struct({"x": pa.int32(), "y": pa.string()}),
    }
    if nested:
        kinds |= {
            "u": arrow.binary(16),
            "fx": arrow.binary(3),
            "t": pa.time64("us"),
            "li": arrow.list_(pa.int32()),
            "m": arrow.map_(pa.string(), pa.float64()),
        }
    made = [{**row(i), **fixed} for i in range(start, end)]
    table: pa.Table = arrow.Table.from_pylist(made, schema=arrow.schema(kinds))
    return table


def lived_in(lake: frazil.Lake, name: str, nested: bool) -> frazil.Table:
    """Written by Arrow: several files, deletes by position and by key, renamed, dropped, widened and new columns."""
    table = lake.create_table(name, NESTED if nested else FLAT, keys=["id"], partition_by=["bucket(2, s)"])
    table.append(rows(0, 30, nested))
    table.rename_column("i", "j")
    table.add_column("i", "string")
    table.widen_column("f", "double")
    table.rename_column("st.x", "z")
    table.append(_today(rows(30, 45, nested), "later"))
    table.delete("id % 10 = 3 or s = 'NULL'", mode="merge-on-read", engine="arrow")
    table.upsert(_today(rows(4, 8, nested), "by key"), engine="arrow")
    return table


def _today(made: pa.Table, text: str) -> pa.Table:
    """Rows under the names of the table as it is now."""
    names = ["j" if each == "i" else each for each in made.column_names]
    made = made.rename_columns(names)
    at = names.index("st")
    inner = arrow.struct({"z": pa.int32(), "y": pa.string()})
    column: Any = made.column(at).combine_chunks()
    renamed = arrow.StructArray.from_arrays(column.flatten(), fields=list(inner), mask=column.is_null())
    return made.set_column(at, "st", renamed).append_column("i", arrow.array([text] * made.num_rows, pa.string()))


FILTERS = (
    None,
    "i is null and (ts >= '1899-12-31 00:00:00+00:00' and ts < '2026-03-08 12:00:00' or s = '')",
    "j < -5 or local < '2000-01-01' or day = '1582-10-10' or s like '%20b%' or n > 100000000 and st.z > 3 or f = 0",
)


@pytest.fixture(scope="module", params=["flat", "nested"])
def readable(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[frazil.Table]:
    with frazil.connect(str(tmp_path_factory.mktemp("hostile") / "lake")) as lake:
        lake.create_namespace("shop")
        yield lived_in(lake, "shop.t", request.param == "nested")


@every_setting
def test_p37_reads_are_equal_whatever_the_session_says(readable: frazil.Table, spark: Any, name: str) -> None:
    scans = [readable.scan(where=where) for where in FILTERS]
    expected = [canonical(scan.to_arrow()) for scan in scans]
    before = scans[1].to_spark(spark)
    with settings(spark, hostile(name)):
        # Made elsewhere and run here, made here and run here, and made here and run elsewhere.
        assert canonical(before.toArrow()) == expected[1]
        after = [scan.to_spark(spark) for scan in scans]
        assert canonical(after[0].toArrow()) == expected[0]
        assert canonical(after[2].toArrow()) == expected[2]
    assert canonical(after[1].toArrow()) == expected[1]


# The verbs


def for_spark(made: pa.Table) -> pa.Table:
    """Types that Spark lacks, as it has them instead: text for a uuid, microseconds for a time of day."""
    for at, name in enumerate(made.column_names):
        if name == "u":
            texts = [None if each is None else str(uuid.UUID(bytes=each)) for each in made.column(at).to_pylist()]
            made = made.set_column(at, name, arrow.array(texts, pa.string()))
        elif name == "t":
            made = made.set_column(at, name, made.column(at).cast(pa.int64()))
    return made


def frame(spark: Any, made: pa.Table) -> Any:
    found = for_spark(made)
    return spark.createDataFrame(found, from_arrow_schema(found.schema, prefer_timestamp_ntz=True))


def everything(table: frazil.Table, spark: Any, nested: bool, engine: Any) -> list[tuple[int, ...]]:
    """Every verb once; returns what each said that it did. A merge is run by Spark in any case."""

    def given(made: pa.Table) -> Any:
        return frame(spark, made) if engine == "spark" else made

    inserted = ["id", "n", "s", "ts", "local", "day", "st", *(["li", "m"] if nested else [])]
    done = [
        table.append(given(_today(rows(100, 120, nested), "new"))),
        table.delete("ts < '1600-01-01' and id > 20", mode="merge-on-read", engine=engine),
        table.update(
            {"local": "'1582-10-10 01:02:03'", "n": "n * 2", "i": "concat(s, '!')"},
            where="day <= '1582-10-10' or st.y = 'y'",
            engine=engine,
        ),
        table.delete("local is null or f = 0", engine=engine),
        table.upsert(given(_today(rows(20, 35, nested), "up")), mode="equality"),
        table.upsert(given(_today(rows(95, 110, nested), "up2")), mode="position"),
        table.overwrite(given(_today(rows(0, 5, nested, s="é😀"), "over")), where="s = 'é😀'"),
        table.merge(for_spark(_today(rows(25, 130, nested), "source")), on="target.id = source.id")
        .when_matched_delete("source.id % 5 = 0 and target.ts < '2000-01-01'")
        .when_matched_update({"d": "source.d + 1", "ts": "source.ts", "s": "concat(target.s, 'm')"})
        .when_not_matched_insert({name: f"source.{name}" for name in inserted})
        .execute(),
        table.compact(engine=engine, options={"min-input-files": "2"}),
    ]
    return [(each.rows_inserted, each.rows_updated, each.rows_deleted) for each in done]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> dict[bool, tuple[list[tuple[int, ...]], list[str]]]:
    """What the verbs leave when Arrow runs them."""
    found = {}
    with frazil.connect(str(tmp_path_factory.mktemp("wanted") / "lake")) as lake:
        lake.create_namespace("shop")
        for nested in (False, True):
            table = lived_in(lake, f"shop.t{nested:d}", nested)
            done = everything(table, spark, nested, "arrow")
            found[nested] = (done, canonical(table.scan().to_arrow()))
    return found


def run_everything(lake: frazil.Lake, spark: Any, wanted: Any, nested: bool, given: Mapping[str, str]) -> None:
    table = lived_in(lake, "shop.t", nested)
    with settings(spark, given):
        done = everything(table, spark, nested, "spark")
    counts, expected = wanted[nested]
    found = same_rows(table, spark)
    assert (sorted(set(found) - set(expected)), sorted(set(expected) - set(found))) == ([], [])
    assert (done, found) == (counts, expected)


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_writes_are_equal_under_all_settings_together(lake: frazil.Lake, spark: Any, wanted: Any, nested: bool) -> None:
    run_everything(lake, spark, wanted, nested, TOGETHER)


@pytest.mark.slow
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("name", HOSTILE)
def test_writes_are_equal_under_each_setting(
    lake: frazil.Lake, spark: Any, wanted: Any, nested: bool, name: str
) -> None:
    run_everything(lake, spark, wanted, nested, HOSTILE[name])


# Traps that are not tested beside the code that avoids them


@pytest.mark.skipif(KIND == "connect", reason="a client of Spark Connect cannot ask which tasks were run")
def test_trap_1_many_files_are_listed_by_few_tasks(lake: frazil.Lake, spark: Any) -> None:
    """One task for each path: 10,000 files take 19 s to be listed."""
    table = lake.create_table("shop.t", "id bigint", partition_by=["id"])
    table.append(arrow.table({"id": list(range(40))}))
    context = spark.sparkContext
    context.setJobGroup("frazil-listing", "")
    try:
        assert table.scan().to_spark(spark).columns == ["id"]
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("frazil-listing")]
    tasks = [tracker.getStageInfo(stage).numTasks for job in jobs for stage in job.stageIds]
    assert tasks
    assert max(tasks) <= 8


def test_trap_5_timestamps_are_written_in_microseconds(lake: frazil.Lake, spark: Any) -> None:
    """Spark writes INT96 unless it is told otherwise, which Iceberg does not know."""
    table = lake.create_table("shop.t", "id bigint, ts timestamp, local timestamp_ntz")
    for kind in ("INT96", "TIMESTAMP_MILLIS"):
        with settings(spark, {f"{PARQUET}.outputTimestampType": kind}):
            table.append(
                spark.range(3).selectExpr(
                    "id", "timestamp_micros(id * 1000001) as ts", "timestamp_ntz'1500-01-01 00:00:00.123456' as local"
                )
            )
            assert spark.conf.get(f"{PARQUET}.outputTimestampType") == kind
    for file in table.scan().files():
        footer = pq.read_schema(local_path(file.path))
        assert (footer.field("ts").type, footer.field("local").type) == (pa.timestamp("us", "UTC"), pa.timestamp("us"))
        columns = pq.read_metadata(local_path(file.path)).row_group(0)
        assert {columns.column(at).physical_type for at in range(columns.num_columns)} == {"INT64"}
    same_rows(table, spark)


@pytest.mark.parametrize("made", ["false", "true"])
def test_trap_6_a_flag_flipped_before_the_frame_is_run(lake: frazil.Lake, spark: Any, made: str) -> None:
    """Spark looks at the flag when it reads: a renamed column would be NULL without a word."""
    table = lake.create_table("shop.t", "id bigint, a bigint")
    table.append(arrow.table({"id": [1, 2], "a": [10, 20]}))
    table.rename_column("a", "b")
    table.append(arrow.table({"id": [3], "b": [30]}))
    with settings(spark, {f"{PARQUET}.fieldId.read.enabled": made}):
        frame = table.scan(where="b > 10").to_spark(spark)
    run = "true" if made == "false" else "false"
    with settings(spark, {f"{PARQUET}.fieldId.read.enabled": run, f"{PARQUET}.fieldId.read.ignoreMissing": run}):
        assert canonical(frame.toArrow()) == ["(2, 20)", "(3, 30)"]


def test_trap_10_workers_run_this_python(spark: Any) -> None:
    """Spark takes the Python that it finds on PATH, which need not have pyarrow."""

    def which(batches: Any) -> Any:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    assert {row["python"] for row in spark.range(1).mapInArrow(which, "python string").collect()} == {sys.executable}


# Rules


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_p37_a_file_deleted_behind_our_back_stops_every_verb(lake: frazil.Lake, spark: Any, mode: Any) -> None:
    table = lake.create_table("shop.t", "id bigint not null, n bigint", keys=["id"])
    for start in (0, 3, 6):
        table.append(arrow.table({"id": list(range(start, start + 3)), "n": [start, start + 1, start + 2]}))
    Path(local_path(table.scan(where="id = 4").files()[0].path)).unlink()
    snapshot = table.snapshot()
    source = spark.createDataFrame([(4, 5)], "id bigint, n bigint")
    lenient = {**HOSTILE["lenient"], f"{SQL}.sources.parallelPartitionDiscovery.threshold": "0"}
    with settings(spark, lenient):
        verbs: tuple[Callable[[], object], ...] = (
            lambda: table.delete("n in (1, 4)", mode=mode, engine="spark"),
            lambda: table.update({"n": "n + 1"}, mode=mode, engine="spark"),
            lambda: table.merge(source, on=["id"], mode=mode).when_matched_update_all().execute(),
            lambda: table.upsert(source, mode="position" if mode == "merge-on-read" else mode),
        )
        for verb in verbs:
            with pytest.raises(frazil.StorageError):
                verb()
    assert table.snapshot() == snapshot


def test_p33_a_write_that_does_not_say_it_is_complete_is_refused(
    lake: frazil.Lake, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create_table("shop.t", "id bigint")
    monkeypatch.setitem(stage._COMMIT, "mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    with pytest.raises(frazil.StorageError, match="without the file _SUCCESS"):
        table.append(spark.range(5))
    assert table.snapshot() is None
    assert not list(Path(local_path(table.location)).glob("**/*.parquet"))


def test_p36_pyiceberg_reads_what_was_upserted_by_position(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", "id bigint not null, n bigint", keys=["id"])
    table.append(spark.range(5).selectExpr("id", "id as n"))
    source = spark.range(2, 8).selectExpr("id", "id * 10 as n")
    table.upsert(source, mode="position")
    assert table.pyiceberg().scan().to_arrow().num_rows == 8
    table.upsert(source, mode="equality")
    with pytest.raises(ValueError, match="equality deletes"):
        table.pyiceberg().scan().to_arrow()


# Clusters


@pytest.mark.parametrize(
    ("master", "location", "properties", "refused"),
    [
        ("spark://host:7077", "/lake/t", {}, True),
        ("yarn", "file:///lake/t", {}, True),
        ("yarn", "file:///lake/t", {SHARED_FILES: "true"}, False),
        ("yarn", "s3://lake/t", {}, False),
        ("local[2]", "/lake/t", {}, False),
        ("local-cluster[2,1,1024]", "/lake/t", {}, False),
    ],
)
def test_a_folder_of_this_machine_is_refused_on_other_machines(
    master: str, location: str, properties: dict[str, str], refused: bool
) -> None:
    session: Any = SimpleNamespace(conf={"spark.master": master})
    with pytest.raises(frazil.Unsupported, match=SHARED_FILES) if refused else contextlib.nullcontext():
        check_reachable(session, location, Storage(properties))


def test_the_connector_is_told_what_the_lake_knows() -> None:
    keys = {"s3.access-key-id": "a", "s3.secret-access-key": "b"}
    given = connector_options(["s3://b/f"], Storage({**keys, "s3.endpoint": "http://localhost:9000"}))
    assert given["fs.s3a.endpoint"] == "http://localhost:9000"
    assert (given["fs.s3a.path.style.access"], given["fs.s3a.connection.ssl.enabled"]) == ("true", "false")
    assert (given["fs.s3a.access.key"], given["fs.s3a.secret.key"]) == ("a", "b")
    temporary = connector_options(["s3a://b/f"], Storage({**keys, "client.session-token": "c"}))
    assert temporary["fs.s3a.session.token"] == "c"
    assert temporary["fs.s3a.aws.credentials.provider"].endswith("TemporaryAWSCredentialsProvider")
    # Without keys the cluster's own are right; other stores are none of its business.
    assert connector_options(["s3://b/f"], Storage()) == {}
    assert connector_options(["/a", "gs://b/f"], Storage(keys)) == {}


def test_credentials_that_a_catalog_vends_for_a_table_reach_spark() -> None:
    storage = Storage({"s3.access-key-id": "mine", "s3.secret-access-key": "b", "s3.region": "r"})
    storage.grant("s3://b/t", {"s3.access-key-id": "lent", "s3.session-token": "c"})
    lent = connector_options(["s3://b/t/data/f"], storage)
    assert lent["fs.s3a.access.key"] == s3_options(storage, "s3://b/t/data")["access_key"] == "lent"
    assert lent["fs.s3a.session.token"] == s3_options(storage, "s3://b/t/data")["session_token"] == "c"
    assert lent["fs.s3a.aws.credentials.provider"].endswith("TemporaryAWSCredentialsProvider")
    assert connector_options(["s3://b/tt/data/f"], storage)["fs.s3a.access.key"] == "mine"
    assert s3_options(storage, "s3://b/tt")["access_key"] == "mine"
