"""Every verb on Spark does what it does on Arrow: the same rows, the same counts, the same conflicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import frazil
from spark.rows import canonical, same_rows

DDL = (
    "id bigint not null, k int, name string, amount double, price decimal(10,2), ts timestamp, seen timestamp_ntz, "
    "day date"
)
LAYOUTS: dict[str, list[str]] = {"plain": [], "partitioned": ["bucket(3, id)", "day"]}


@pytest.fixture(params=LAYOUTS)
def pair(lake: frazil.Lake, spark: Any, request: pytest.FixtureRequest) -> tuple[frazil.Table, frazil.Table, Any]:
    """The same table twice with the same rows, of which some are deleted by position and some by key."""
    made = []
    frame = rows(spark, 0, 200)
    for name in ("shop.on_arrow", "shop.on_spark"):
        table = lake.create_table(name, DDL, keys=["id"], partition_by=LAYOUTS[request.param])
        table.append(frame.toArrow())
        table.append(rows(spark, 200, 260).toArrow())
        table.delete("k = 9 and id < 100", mode="merge-on-read")
        table.upsert(rows(spark, 40, 45).withColumn("name", F.lit("by key")).toArrow())
        made.append(table)
    return made[0], made[1], spark


def rows(spark: Any, start: int, end: int) -> Any:
    i = F.col("id")
    return spark.range(start, end).select(
        "id",
        F.when(i % 7 == 0, None).otherwise(i % 10).cast("int").alias("k"),
        F.when(i % 11 == 0, None).otherwise(F.concat(F.lit("n"), i % 13)).alias("name"),
        F.when(i % 17 == 0, F.lit(float("nan"))).otherwise(i * 1.5).alias("amount"),
        (i * 3).cast("decimal(10,2)").alias("price"),
        F.timestamp_seconds(i * 7200).alias("ts"),
        F.lit("2026-03-08 02:30:00").cast("timestamp_ntz").alias("seen"),
        F.date_add(F.lit("2026-01-01").cast("date"), (i % 5).cast("int")).alias("day"),
    )


Verb = Callable[[frazil.Table, Any, Any], frazil.Commit]


def given(frame: Any, engine: str) -> Any:
    return frame if engine == "spark" else frame.toArrow()


VERBS: dict[str, Verb] = {
    "append": lambda table, spark, engine: table.append(given(rows(spark, 300, 320), engine)),
    "append nothing": lambda table, spark, engine: table.append(given(rows(spark, 0, 0), engine)),
    "delete, marked": lambda table, _, engine: table.delete("k = 3", mode="merge-on-read", engine=engine),
    "delete, copied": lambda table, _, engine: table.delete("k = 3 or name is null", engine=engine),
    "delete all": lambda table, _, engine: table.delete("true", engine=engine),
    "delete none": lambda table, _, engine: table.delete("id = 5000", engine=engine),
    "delete by time": lambda table, _, engine: table.delete(
        "ts >= '1970-01-05' and seen < '2027-01-01'", mode="merge-on-read", engine=engine
    ),
    "update, marked": lambda table, _, engine: table.update(
        {"amount": "amount + 1", "name": "'new'", "k": 7}, where="id < 60", mode="merge-on-read", engine=engine
    ),
    "update, copied": lambda table, _, engine: table.update(
        {"k": "k + 1", "price": "price * 2", "ts": "'2026-05-05 10:00:00'"},
        where="id between 50 and 150",
        engine=engine,
    ),
    "update all": lambda table, _, engine: table.update({"name": "concat(name, '!')"}, engine=engine),
    "upsert": lambda table, spark, engine: table.upsert(
        given(rows(spark, 30, 50).withColumn("name", F.lit("up")), engine)
    ),
    "upsert, marked": lambda table, spark, engine: table.upsert(
        given(rows(spark, 190, 270).withColumn("name", F.lit("up")), engine), mode="position"
    ),
    "upsert, copied": lambda table, spark, engine: table.upsert(
        given(rows(spark, 190, 270).withColumn("name", F.lit("up")), engine), mode="copy-on-write"
    ),
    "overwrite": lambda table, spark, engine: table.overwrite(given(rows(spark, 0, 20), engine), where="id < 100"),
    "overwrite all": lambda table, spark, engine: table.overwrite(given(rows(spark, 0, 20), engine), where="true"),
    "compact": lambda table, _, engine: table.compact(engine=engine),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_does_the_same_on_both_engines(pair: Any, verb: str) -> None:
    on_arrow, on_spark, spark = pair
    expected, done = VERBS[verb](on_arrow, spark, "arrow"), VERBS[verb](on_spark, spark, "spark")
    assert (expected.engine, done.engine) == ("arrow", "spark")
    counts = ("changed", "rows_inserted", "rows_updated", "rows_deleted")
    assert [getattr(done, each) for each in counts] == [getattr(expected, each) for each in counts]
    assert same_rows(on_spark, spark) == same_rows(on_arrow, spark)


@pytest.mark.everywhere
@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_two_writers_of_different_rows_of_one_file_both_land(lake: frazil.Lake, spark: Any, mode: Any) -> None:
    table = lake.create_table("shop.t", DDL, keys=["id"])
    table.append(rows(spark, 0, 100).coalesce(1))
    with lake.transaction() as first:
        first.table("shop.t").update({"name": "'a'"}, where="id = 1", mode=mode, engine="spark")
        table.update({"name": "'b'"}, where="id = 2", mode=mode, engine="spark", isolation="snapshot")
        table.delete("id = 3", mode=mode, engine="spark")
        table.compact(engine="spark", options={"min-input-files": "1"})
    found = {row["id"]: row["name"] for row in table.scan(where="id < 5").to_arrow().to_pylist()}
    assert (found[1], found[2], 3 in found) == ("a", "b", False)
    assert len(same_rows(table, spark)) == 99


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_two_writers_of_one_row_conflict(lake: frazil.Lake, spark: Any, mode: Any) -> None:
    table = lake.create_table("shop.t", DDL, keys=["id"])
    table.append(rows(spark, 0, 100).coalesce(1))
    transaction = lake.transaction()
    transaction.table("shop.t").update({"name": "'a'"}, where="id = 1", mode=mode, engine="spark")
    table.update({"name": "'b'"}, where="id = 1", mode=mode, engine="arrow")
    with pytest.raises(frazil.ConflictError):
        transaction.commit()
    assert len(same_rows(table, spark)) == 100


@pytest.mark.everywhere
def test_replace_partitions_is_the_same_on_both_engines(lake: frazil.Lake, spark: Any) -> None:
    tables = []
    for name in ("shop.a", "shop.b"):
        table = lake.create_table(name, DDL, partition_by=["k"])
        table.append(rows(spark, 0, 100).toArrow())
        table.set_partitioning(["day", "k"])
        table.append(rows(spark, 100, 150).toArrow())
        tables.append(table)
    new = rows(spark, 500, 540).where("k in (1, 2)")
    counts = [tables[0].replace_partitions(new.toArrow()), tables[1].replace_partitions(new)]
    assert counts[0].rows_deleted == counts[1].rows_deleted
    assert same_rows(tables[0], spark) == same_rows(tables[1], spark)


def test_a_bound_lake_runs_verbs_without_rows_on_spark(tmp_path: Any, spark: Any) -> None:
    with frazil.connect(str(tmp_path / "bound"), spark=spark) as lake:
        lake.create_namespace("shop")
        table = lake.create_table("shop.t", DDL)
        assert table.append(rows(spark, 0, 10)).engine == "spark"
        assert table.append(rows(spark, 10, 20).toArrow()).engine == "arrow"
        assert table.delete("id = 3").engine == "spark"
        assert table.delete("id = 4", engine="arrow").engine == "arrow"
        assert len(same_rows(table, spark)) == 18


def test_new_columns_of_a_frame_grow_the_table(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", "id bigint, name string")
    table.append(spark.sql("select 1L id, 'a' name"))
    table.append(spark.sql("select 2L id, 'b' name, cast(1.5 as double) score, null as void_one"), merge_schema=True)
    assert [each.name for each in table.schema.fields] == ["id", "name", "score"]
    assert same_rows(table, spark) == ["(1, 'a', None)", "(2, 'b', 1.5)"]
    with pytest.raises(frazil.SchemaMismatch):
        table.append(spark.sql("select 3L id, 'c' name, 1.0D score, 5 other"))


def test_a_dry_run_writes_nothing(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", "id bigint, name string")
    frame = spark.range(5).select("id", F.lit("x").alias("name"))
    assert table.append(frame, dry_run=True).rows_inserted == 5
    assert table.snapshot() is None


@pytest.mark.everywhere
def test_a_spark_write_inside_a_transaction_reads_its_own_rows(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", "id bigint, name string", keys=["id"])
    with lake.transaction() as transaction:
        mine = transaction.table("shop.t")
        mine.append(spark.range(5).select("id", F.lit("x").alias("name")))
        mine.update({"name": "'y'"}, where="id = 2", engine="spark")
        assert mine.scan(where="name = 'y'").to_spark(spark).count() == 1
        assert table.scan().count() == 0
    assert len(same_rows(table, spark)) == 5
    assert len(table.history()) == 2


# Tables made of frames


def test_a_table_is_created_from_a_frame(lake: frazil.Lake, spark: Any) -> None:
    frame = rows(spark, 0, 20)
    table = lake.create_table("shop.made", as_=frame, partition_by=["day"], keys=["id"])
    assert [each.name for each in table.schema.fields if each.required] == ["id"]
    assert [str(each.name) for each in table.spec.fields] == ["day"]
    assert len(table.history()) == 1
    assert same_rows(table, spark) == canonical(frame.toArrow())
    assert lake.create_table("shop.made", as_=spark.range(5), exists_ok=True).scan().count() == 20
    spark_made = lake.create_table("shop.numbers", as_=spark.range(3))
    assert sorted(row["id"] for row in spark_made.scan().to_arrow().to_pylist()) == [0, 1, 2]


def test_a_frame_that_cannot_be_written_leaves_no_table(lake: frazil.Lake, spark: Any) -> None:
    failing = spark.range(3).withColumn("n", F.raise_error(F.lit("broken row")).cast("int"))
    with pytest.raises(Exception, match="broken row"):
        lake.create_table("shop.made", as_=failing)
    assert not lake.exists("shop.made")
    with pytest.raises(frazil.InvalidInput, match="n"):
        lake.create_table("shop.made", as_=spark.range(3).withColumn("n", F.lit(None)))
    assert not lake.exists("shop.made")


# Files of others


def test_files_that_spark_wrote_are_added_in_place(lake: frazil.Lake, spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    frame = spark.range(0, 20).selectExpr(
        "id", "concat('n', id) as name", "array(id, 2) as tags", "named_struct('x', id) as s"
    )
    frame.coalesce(2).write.parquet(str(folder))
    table = lake.create_table("shop.taken", "id bigint, name string, tags array<bigint>, s struct<x: bigint>, more int")
    table.add_files([str(each) for each in sorted(folder.glob("*.parquet"))])
    assert len(same_rows(table, spark)) == 20
    assert table.scan(where="id >= 18").to_spark(spark).count() == 2
    table.update({"more": "1"}, "id < 3", engine="spark")
    table.delete("id = 5", mode="merge-on-read", engine="spark")
    assert len(same_rows(table, spark)) == 19
    table.compact(engine="spark")
    assert len(same_rows(table, spark)) == 19
    assert sorted(folder.glob("*.parquet")), "the files stay where they are"
