"""One Spark session with two readers and writers of the same tables: Frazil, and Iceberg's own Spark runtime."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyspark.sql import functions as F

import frazil
from frazil.on_spark.types import spark_schema
from frazil.table.table import Table
from interop.iceberg_spark import CATALOG, attach, start_iceberg_spark
from interop.samples import EVERY_ROW, EVERY_TYPE
from spark.rows import canonical

pytestmark = [
    pytest.mark.interop,
    # PySpark leaves sockets to the garbage collector, which tells of it in whatever test it runs.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
MODES = ["merge-on-read", "copy-on-write"]
BY_MODE = "'write.delete.mode'='{0}', 'write.update.mode'='{0}', 'write.merge.mode'='{0}'"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    # The zone and the timestamps are not what Frazil's own session would have.
    conf = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.parquet.outputTimestampType": "INT96",
    }
    with start_iceberg_spark(conf=conf) as session:
        yield session


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path_factory.mktemp("lake")), name=CATALOG, spark=spark) as lake:
        lake.create_namespace("shop")
        attach(spark, lake)
        yield lake


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for the test's own table."""
    return "t" + uuid.uuid5(uuid.NAMESPACE_OID, request.node.name).hex[:12]


@pytest.fixture
def ice(name: str) -> str:
    """The test's table, as Iceberg's catalog calls it."""
    return f"{CATALOG}.shop.{name}"


def rows_of(table: pa.Table) -> list[str]:
    """Comparable rows. The first and the last instants of the calendar are in no other zone than UTC."""
    for i, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            table = table.set_column(i, field.name, table.column(i).cast(pa.timestamp("us", "UTC")))
    return canonical(table)


def agree(table: Table, spark: Any, where: str = "true", **pinned: Any) -> list[str]:
    """The rows by Iceberg, by Frazil on Spark and by Frazil without Spark, which are the same."""
    version = pinned.get("snapshot") or (f"'{pinned['ref']}'" if pinned else None)
    at = f" version as of {version}" if version else ""
    theirs = rows_of(spark.sql(f"select * from {CATALOG}.{table.name}{at} where {where}").toArrow())
    scan = table.scan(where=where, **pinned)
    assert rows_of(scan.to_spark(spark).toArrow()) == theirs
    assert rows_of(scan.to_arrow()) == theirs
    return theirs


def ids(table: Table, spark: Any, where: str = "true", **pinned: Any) -> list[int]:
    agree(table, spark, where, **pinned)
    values: list[Any] = table.scan(where=where, columns=["id"], **pinned).to_arrow()["id"].to_pylist()
    return sorted(values)


def frame(spark: Any, rows: Sequence[tuple[Any, ...]], schema: str) -> Any:
    return spark.createDataFrame(list(rows), schema).coalesce(1)


def run(spark: Any, *statements: str) -> None:
    for each in statements:
        spark.sql(each).collect()


def done(commit: frazil.Commit) -> int:
    """The snapshot of a commit that Spark has made."""
    assert commit.engine == "spark"
    assert commit.snapshot_id is not None
    return commit.snapshot_id


# Types

SHARED = Schema(*(each for each in EVERY_TYPE.fields if each.name != "clock"))
"""Iceberg's Spark runtime has no type for a time of day."""


def _as_spark(value: Any) -> Any:
    match value:
        case uuid.UUID():
            return str(value)
        case list():
            return [_as_spark(each) for each in value]
        case dict():
            return {key: _as_spark(each) for key, each in value.items()}
    return value


def every_row(spark: Any) -> Any:
    rows = [tuple(_as_spark(row[field.name]) for field in SHARED.fields) for row in EVERY_ROW]
    made = spark_schema(SHARED)
    for field in made.fields:
        field.nullable = True
    return spark.createDataFrame(rows, made).coalesce(1)


def test_every_type_written_by_frazil(lake: frazil.Lake, spark: Any, name: str) -> None:
    table = lake.create_table(f"shop.{name}", SHARED)
    done(table.append(every_row(spark)))
    assert len(agree(table, spark)) == len(EVERY_ROW)
    for where in (
        "big > 0",
        "text = ''",
        "day < date'1970-01-01'",
        "dec_wide < 0",
        "place.name is null",
        "id in (2, 3)",
    ):
        agree(table, spark, where)


def test_every_type_written_by_iceberg(lake: frazil.Lake, spark: Any, name: str, ice: str) -> None:
    table = lake.create_table(f"shop.{name}", SHARED)
    every_row(spark).writeTo(ice).append()
    assert len(agree(table, spark)) == len(EVERY_ROW)
    # Iceberg's rows are taken apart and put together again by Frazil.
    done(table.update({"small": "7"}, where="id = 2", mode="copy-on-write"))
    done(table.delete("id = 1", mode="merge-on-read"))
    done(table.compact())
    assert ids(table, spark) == [2, 3, 4]


def test_bounds_and_counts_are_those_that_iceberg_writes(lake: frazil.Lake, spark: Any, name: str, ice: str) -> None:
    # Not the nested columns, of which engines keep the bounds they like. Iceberg fails to show those of a UUID.
    flat = Schema(*(each for each in SHARED.fields if each.field_type.is_primitive and each.name != "token"))
    table = lake.create_table(f"shop.{name}", flat)
    lake.create_table(f"shop.{name}_twin", flat)
    rows = every_row(spark).select(*(each.name for each in flat.fields))
    done(table.append(rows))
    rows.writeTo(f"{ice}_twin").append()
    # As texts, because Python has no words for all of the instants in other zones.
    to_text = {"hash": "hex({})", "blob": "hex({})"}
    measures = ("value_count", "null_value_count", "lower_bound", "upper_bound")
    shown = [
        to_text.get(each.name, "cast({} as string)").format(f"readable_metrics.{each.name}.{measure}")
        for each in flat.fields
        for measure in measures
    ]
    ours, theirs = (spark.table(f"{each}.files").selectExpr(*shown).first().asDict() for each in (ice, f"{ice}_twin"))
    assert ours == theirs


# Partitions

PARTED = "id bigint, n int, text string, price decimal(9, 2), day date, at timestamp, local timestamp_ntz, blob binary"
TRANSFORMS = {
    "identity": ["n", "text", "price", "day"],
    "identity of times": ["at", "local", "id"],
    "bucket": ["bucket(4, id)", "bucket(3, text)", "bucket(5, price)", "bucket(3, at)", "bucket(4, blob)"],
    "more buckets": ["bucket(4, n)", "bucket(3, day)", "bucket(5, local)"],
    "truncate": ["truncate(10, id)", "truncate(3, text)", "truncate(50, price)", "truncate(2, blob)", "truncate(7, n)"],
    "years": ["year(day)", "month(at)", "hour(local)"],
    "months": ["month(day)", "day(at)", "year(local)"],
    "days": ["day(day)", "hour(at)", "month(local)"],
}


def parted_rows(spark: Any) -> Any:
    rows: list[tuple[Any, ...]] = [
        (i, i * 7 - 20, text, Decimal(f"{i - 3}.{i}5"), day, moment, moment.replace(tzinfo=None), text.encode()[:3])
        for i, (text, day, moment) in enumerate(
            [
                ("", dt.date(1969, 12, 31), dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)),
                ("iceberg", dt.date(2017, 11, 16), dt.datetime(2017, 11, 16, 22, 31, 8, tzinfo=dt.UTC)),
                ("zażółć", dt.date(1, 1, 1), dt.datetime(1600, 1, 1, tzinfo=dt.UTC)),
                ("a/b=c %41", dt.date(9999, 12, 31), dt.datetime(9999, 12, 31, 23, 0, tzinfo=dt.UTC)),
                ("\U0001f9ca\U0010ffff😀x", dt.date(1970, 1, 1), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
            ]
        )
    ]
    rows.append((9, *[None] * 7))
    return frame(spark, rows, PARTED)


@pytest.mark.parametrize("transforms", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_partitions_are_those_that_iceberg_makes(
    lake: frazil.Lake, spark: Any, name: str, ice: str, transforms: list[str]
) -> None:
    table = lake.create_table(f"shop.{name}", PARTED, partition_by=transforms)
    lake.create_table(f"shop.{name}_twin", PARTED, partition_by=transforms)
    rows = parted_rows(spark)
    done(table.append(rows))
    rows.writeTo(f"{ice}_twin").append()
    ours, theirs = (
        sorted(map(repr, spark.sql(f"select partition, record_count from {each}.partitions").collect()))
        for each in (ice, f"{ice}_twin")
    )
    assert ours == theirs
    assert len(agree(table, spark)) == 6
    for where in (
        "n = -6",
        "text > 'a'",
        "day = date'1969-12-31'",
        "at < timestamp'1970-01-01T00:00:00Z'",
        "price is null",
        "local >= timestamp_ntz'2017-11-16 22:31:08'",
    ):
        assert agree(table, spark, where) == agree(lake.table(f"shop.{name}_twin"), spark, where)


def test_a_spec_that_changes_in_both(lake: frazil.Lake, spark: Any, name: str, ice: str) -> None:
    table = lake.create_table(f"shop.{name}", "id bigint not null, day date, note string", keys=["id"])
    days = spark.range(0, 12).select("id", F.expr("date_add(date'2026-01-01', cast(id as int))").alias("day"))
    done(table.append(days.where("id < 3").withColumn("note", F.lit("unparted"))))
    table.set_partitioning(["bucket(2, id)"])
    done(table.append(days.where("id between 3 and 5").withColumn("note", F.lit("bucket"))))
    run(spark, f"alter table {ice} add partition field days(day)")
    run(spark, f"insert into {ice} select id, date_add(date'2026-01-01', cast(id as int)), 'both' from range(6, 9)")
    run(spark, f"alter table {ice} drop partition field bucket(2, id)")
    done(table.append(days.where("id > 8").withColumn("note", F.lit("day"))))
    assert len({each["spec_id"] for each in spark.sql(f"select spec_id from {ice}.files").collect()}) == 4
    assert ids(table, spark) == list(range(12))
    assert ids(table, spark, "day between date'2026-01-03' and date'2026-01-11'") == list(range(2, 11))
    done(table.delete("id in (1, 4, 7, 10)", mode="merge-on-read"))
    done(table.update({"note": "concat(note, '!')"}, where="id % 2 = 0", mode="copy-on-write"))
    rows = frame(spark, [(i, None, "up") for i in (2, 5, 11, 20)], "id bigint, day date, note string")
    done(table.upsert(rows))
    assert ids(table, spark) == [0, 2, 3, 5, 6, 8, 9, 11, 20]
    done(table.compact())
    assert ids(table, spark) == [0, 2, 3, 5, 6, 8, 9, 11, 20]


# Schemas


def test_a_schema_that_changes_in_both(lake: frazil.Lake, spark: Any, name: str, ice: str) -> None:
    table = lake.create_table(
        f"shop.{name}",
        "id bigint, n int, ratio float, price decimal(5, 2), name string, "
        "place struct<city: string, zip: int>, stops array<struct<town: string, km: int>>, tags map<string, int>",
    )
    row = spark.sql(
        "select 1L as id, 7 as n, 0.1f as ratio, 1.25BD as price, 'ann' as name, "
        "struct('Riga' as city, 1000 as zip) as place, array(struct('Ogre' as town, 34 as km)) as stops, "
        "map('a', 1) as tags"
    ).withColumn("price", F.col("price").cast("decimal(5, 2)"))
    done(table.append(row))
    first = agree(table, spark)
    run(spark, f"insert into {ice} select 2L, 8, 0.2f, 2.25, 'bob', struct('Oslo', 150), array(), map('b', 2)")
    old = table.snapshot()
    table.rename_column("name", "title")
    table.widen_column("n", "bigint")
    table.widen_column("ratio", "double")
    table.drop_column("place.zip")
    table.rename_column("place.city", "town")
    run(
        spark,
        # A name that comes back is another column.
        f"alter table {ice} add columns (name int first, place.zip string)",
        f"alter table {ice} alter column price type decimal(9, 2)",
        f"alter table {ice} rename column stops.element.town to name",
        f"alter table {ice} add column stops.element.at timestamp",
        f"alter table {ice} alter column tags after id",
    )
    agree(table, spark)
    new = spark.sql(
        "select 5 as name, 3L as id, map('c', 3) as tags, 5000000000L as n, 0.1d as ratio, "
        "cast(1234567.5 as decimal(9, 2)) as price, 'cat' as title, "
        "struct('Bonn' as town, '53111' as zip) as place, "
        "array(struct('Ulm' as name, 9 as km, timestamp'2026-01-01' as at)) as stops"
    )
    done(table.append(new))
    assert ids(table, spark) == [1, 2, 3]
    # Old files must not be passed over by what they say of the columns of these names.
    assert ids(table, spark, "name is null") == [1, 2]
    assert ids(table, spark, "place.zip is null") == [1, 2]
    assert ids(table, spark, "n > 7") == [2, 3]
    assert ids(table, spark, "title = 'ann' or title = 'cat'") == [1, 3]
    done(table.update({"name": "id + 100", "n": "n + 1"}, where="id < 3", mode="merge-on-read"))
    done(table.delete("place.zip = '53111'", mode="copy-on-write"))
    assert ids(table, spark, "name > 100") == [1, 2]
    done(table.compact())
    assert ids(table, spark) == [1, 2]
    assert old is not None
    assert len(agree(table, spark, snapshot=old.snapshot_id)) == 2
    parent = old.parent_snapshot_id
    assert agree(table, spark, snapshot=parent) == first


def test_files_without_field_ids(lake: frazil.Lake, spark: Any, name: str, ice: str, tmp_path: Any) -> None:
    rows: dict[str, Any] = {
        "id": [1, 2, 3],
        "name": ["a", "b", "c"],
        "junk": [1, 1, 1],
        "place": [{"x": 1}, None, None],
    }
    plain = pa.table(rows)
    pq.write_table(plain, tmp_path / "plain.parquet")
    run(
        spark,
        f"create table {ice} (id bigint, name string, place struct<x: bigint>) using iceberg",
        f"call ice.system.add_files(table => 'shop.{name}', source_table => '`parquet`.`{tmp_path}`')",
        f"alter table {ice} rename column name to title",
        f"alter table {ice} add column extra string",
        f"insert into {ice} values (4, 'd', struct(4), 'new')",
    )
    table = lake.table(f"shop.{name}")
    assert len(agree(table, spark)) == 4
    assert ids(table, spark, "extra is null") == [1, 2, 3]
    assert ids(table, spark, "title >= 'b'") == [2, 3, 4]
    done(table.delete("id = 2", mode="merge-on-read"))
    done(table.update({"extra": "title"}, where="id = 3", mode="copy-on-write"))
    assert ids(table, spark, "extra is not null") == [3, 4]
    done(table.compact())
    assert ids(table, spark) == [1, 3, 4]


# What Frazil changes

STOCK = "id bigint not null, n int, note string"


def stock_rows(spark: Any, start: int, end: int, note: str = "old") -> Any:
    made = spark.range(start, end, 1, 1)
    return made.select("id", (F.col("id") * 10).cast("int").alias("n"), F.lit(note).alias("note"))


@pytest.mark.parametrize("mode", MODES)
def test_deletes_updates_and_merges_of_frazil(lake: frazil.Lake, spark: Any, name: str, ice: str, mode: Any) -> None:
    table = lake.create_table(f"shop.{name}", STOCK, keys=["id"], partition_by=["bucket(2, id)"])
    done(table.append(stock_rows(spark, 0, 20)))
    done(table.append(stock_rows(spark, 20, 40)))
    done(table.delete("n % 70 = 0", mode=mode))
    assert ids(table, spark) == [i for i in range(40) if i % 7]
    done(table.update({"n": "n + 1", "note": "concat(note, '+')"}, where="id between 10 and 25", mode=mode))
    assert len(agree(table, spark, "note = 'old+'")) == 14
    merge = (
        table.merge(stock_rows(spark, 35, 50, "merged"), on="target.id = source.id", mode=mode)
        .when_matched_delete(condition="source.id = 36")
        .when_matched_update_all()
        .when_not_matched_insert_all(condition="source.id <> 42")
        .when_not_matched_by_source_update({"note": "'alone'"}, condition="target.id = 1")
    )
    before = done(merge.execute())
    assert ids(table, spark, "note = 'merged'") == [35, 37, 38, 39, 40, 41, *range(43, 50)]
    agree(table, spark)
    run(spark, f"update {ice} set n = -n where id % 5 = 1", f"delete from {ice} where id between 30 and 34")
    agree(table, spark)
    done(table.compact())
    kept = agree(table, spark)
    assert agree(table, spark, snapshot=before) != kept
    run(spark, f"call ice.system.rewrite_data_files(table => 'shop.{name}', options => map('rewrite-all', 'true'))")
    assert agree(table, spark) == kept


@pytest.mark.parametrize("mode", ["equality", "position", "copy-on-write"])
def test_upserts_of_frazil(lake: frazil.Lake, spark: Any, name: str, ice: str, mode: Any) -> None:
    table = lake.create_table(f"shop.{name}", STOCK, keys=["id"], partition_by=["bucket(2, id)"])
    done(table.append(stock_rows(spark, 0, 10)))
    done(table.upsert(stock_rows(spark, 5, 15, "first"), mode=mode))
    done(table.upsert(stock_rows(spark, 8, 12, "second"), mode=mode))
    assert ids(table, spark) == list(range(15))
    assert ids(table, spark, "note = 'first'") == [5, 6, 7, 12, 13, 14]
    run(spark, f"insert into {ice} values (100, 1, 'theirs')", f"delete from {ice} where id = 9")
    done(table.upsert(stock_rows(spark, 100, 101, "third"), mode=mode))
    assert ids(table, spark, "note in ('second', 'third')") == [8, 10, 11, 100]
    done(table.compact())
    assert len(agree(table, spark)) == 15


def test_overwrites_of_frazil(lake: frazil.Lake, spark: Any, name: str) -> None:
    table = lake.create_table(f"shop.{name}", STOCK, partition_by=["truncate(10, id)"])
    done(table.append(stock_rows(spark, 0, 40)))
    done(table.overwrite(stock_rows(spark, 15, 18, "over"), where="id between 12 and 22"))
    assert ids(table, spark) == [*range(12), 15, 16, 17, *range(23, 40)]
    done(table.replace_partitions(stock_rows(spark, 31, 33, "part")))
    assert ids(table, spark) == [*range(12), 15, 16, 17, *range(23, 30), 31, 32]


def test_a_sort_order_is_kept_in_files(lake: frazil.Lake, spark: Any, name: str, ice: str) -> None:
    table = lake.create_table(f"shop.{name}", STOCK, sort_by=["note", "n desc"])
    rows = stock_rows(spark, 0, 100).withColumn("note", F.concat(F.lit("k"), F.col("id") % 3))
    done(table.append(rows))
    run(spark, f"insert into {ice} select id, cast(id as int), 'k9' from range(100, 105)")
    assert len(agree(table, spark)) == 105
    found = spark.sql(f"select file_path, sort_order_id from {ice}.files order by record_count desc").first()
    assert found["sort_order_id"] == 1
    written = pq.read_table(found["file_path"].removeprefix("file://"))
    assert written.equals(written.sort_by([("note", "ascending"), ("n", "descending")]))


def test_bounds_prune_and_lose_no_row(lake: frazil.Lake, spark: Any, name: str, ice: str) -> None:
    table = lake.create_table(f"shop.{name}", "id bigint, x double, text string, at timestamp, price decimal(20, 3)")
    made = F.expr("case id % 5 when 0 then double('NaN') when 1 then -0.0d when 2 then 0.0d else id / 7 end")
    for start in range(0, 200, 50):
        rows = spark.range(start, start + 50, 1, 1).select(
            "id",
            made.alias("x"),
            F.concat(F.lit("a text that bounds cut short ".rjust(30, "ż")), F.lpad("id", 4, "0")).alias("text"),
            F.timestamp_seconds((F.col("id") - 100) * 86400).alias("at"),
            (F.col("id") * -12345678901.125).cast("decimal(20, 3)").alias("price"),
        )
        done(table.append(rows))
    counts = {
        "id >= 149": 51,
        "x = 0": 80,
        "x > 20": None,
        "isnan(x)": 40,
        "text < 'a'": 0,
        "text > 'ż'": 200,
        f"text = '{'a text that bounds cut short '.rjust(30, 'ż')}0077'": 1,
        "at < timestamp'1970-01-01T00:00:00Z'": 100,
        "price < -1234567890112.4": 100,
        "price = -1234567890112.500": 1,
    }
    for where, count in counts.items():
        found = len(agree(table, spark, where))
        assert count in (None, found), where
    assert len(table.scan(where="id >= 149").files()) == 2
    bounds = "readable_metrics.id.lower_bound as low, readable_metrics.id.upper_bound as high"
    files = spark.sql(f"select {bounds} from {ice}.files")
    assert sorted((row["low"], row["high"]) for row in files.collect()) == [(0, 49), (50, 99), (100, 149), (150, 199)]


def test_branches_tags_and_earlier_versions(lake: frazil.Lake, spark: Any, name: str, ice: str) -> None:
    table = lake.create_table(f"shop.{name}", STOCK, keys=["id"])
    first = done(table.append(stock_rows(spark, 0, 10)))
    run(spark, f"alter table {ice} create tag v1")
    table.create_branch("audit")
    done(table.append(stock_rows(spark, 10, 15), branch="audit"))
    done(table.delete("id = 3", mode="merge-on-read", branch="audit"))
    run(
        spark,
        f"insert into {ice}.branch_audit values (50, 1, 'theirs')",
        f"delete from {ice}.branch_audit where id = 4",
    )
    done(table.upsert(stock_rows(spark, 0, 2, "main")))
    assert ids(table, spark, ref="audit") == [0, 1, 2, *range(5, 15), 50]
    assert ids(table, spark, ref="v1") == list(range(10))
    assert ids(table, spark, snapshot=first) == list(range(10))
    assert ids(table, spark, "note = 'main'") == [0, 1]
    done(table.compact(branch="audit"))
    assert ids(table, spark, ref="audit") == [0, 1, 2, *range(5, 15), 50]
    run(spark, f"call ice.system.rollback_to_snapshot('shop.{name}', {first})")
    assert ids(table, spark) == list(range(10))


# What Iceberg has written


@pytest.mark.parametrize("mode", MODES)
def test_a_table_that_iceberg_changed(lake: frazil.Lake, spark: Any, name: str, ice: str, mode: Any) -> None:
    run(
        spark,
        f"create table {ice} using iceberg partitioned by (bucket(2, id), kind) "
        f"tblproperties ('format-version'='2', {BY_MODE.format(mode)}) as "
        "select id, concat('k', id % 2) as kind, cast(id as int) as n, array(id, null) as list, "
        "map(concat('m', id), struct(id as a, cast(null as string) as b)) as map from range(30)",
    )
    table = lake.table(f"shop.{name}")
    assert ids(table, spark) == list(range(30))
    run(
        spark,
        f"delete from {ice} where n % 10 = 3",
        f"update {ice} set n = n + 1000, kind = 'k2' where id in (1, 5, 9)",
        f"merge into {ice} t using (select id from range(28, 33)) s on t.id = s.id "
        "when matched and t.id = 28 then delete when matched then update set n = -1 "
        "when not matched then insert (id, kind, n) values (s.id, 'k9', 0)",
    )
    live = [i for i in range(33) if i not in (3, 13, 23, 28)]
    assert ids(table, spark) == live
    assert ids(table, spark, "n >= 1000") == [1, 5, 9]
    assert ids(table, spark, "kind = 'k9'") == [30, 31, 32]
    run(
        spark,
        f"alter table {ice} rename column n to amount",
        f"alter table {ice} drop column list",
        f"alter table {ice} add column list string after id",
        f"alter table {ice} replace partition field kind with truncate(1, kind)",
        f"insert into {ice} values (50, 'new list', 'k3', 5, null)",
    )
    assert ids(table, spark) == [*live, 50]
    assert ids(table, spark, "list is null") == live

    done(table.delete("id in (0, 30, 50)", mode=mode))
    done(table.update({"amount": "amount * 2", "list": "kind"}, where="kind = 'k1'", mode=mode))
    assert ids(table, spark, "list is not null") == [i for i in live if i % 2 and i not in (1, 5, 9) and i < 30]
    source = spark.range(25, 60, 5).select("id", F.lit("m").alias("kind"), F.lit(1).alias("amount"))
    merge = table.merge(source, on=["id"], mode=mode).when_matched_update({"amount": "source.amount"})
    done(merge.when_not_matched_insert({"id": "source.id", "kind": "source.kind", "amount": "0"}).execute())
    run(spark, f"delete from {ice} where id = 40")
    live = sorted({*live, 30, 35, 45, 50, 55} - {0})
    assert ids(table, spark) == live
    done(table.compact())
    assert ids(table, spark) == live


def test_keys_that_iceberg_set_are_for_upserts(lake: frazil.Lake, spark: Any, name: str, ice: str) -> None:
    run(
        spark,
        f"create table {ice} (region string not null, id int not null, v double) using iceberg "
        "partitioned by (region) tblproperties ('format-version'='2')",
        f"alter table {ice} set identifier fields region, id",
        f"insert into {ice} values ('eu', 1, 1.0), ('eu', 2, 2.0), ('us', 1, 3.0)",
    )
    table = lake.table(f"shop.{name}")
    rows = "region string, id int, v double"
    done(table.upsert(frame(spark, [("eu", 1, 10.0), ("us", 9, 9.0)], rows)))
    agree(table, spark)
    # Equality deletes reach rows that Iceberg copies and marks after them.
    run(spark, f"update {ice} set v = v + 1 where id = 1", f"insert into {ice} values ('eu', 3, 0.0)")
    done(table.upsert(frame(spark, [("eu", 3, 30.0), ("eu", 2, None)], rows)))
    found = {(row["region"], row["id"]): row["v"] for row in table.scan().to_arrow().to_pylist()}
    assert found == {("eu", 1): 11.0, ("eu", 2): None, ("eu", 3): 30.0, ("us", 1): 4.0, ("us", 9): 9.0}
    agree(table, spark)
    run(spark, f"call ice.system.rewrite_data_files(table => 'shop.{name}', options => map('rewrite-all', 'true'))")
    assert len(agree(table, spark)) == 5
