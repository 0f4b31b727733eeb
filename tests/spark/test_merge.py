"""MERGE on Spark, beside a merge of Python dicts."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import frazil
from spark.rows import same_rows

MODES: list[Any] = ["merge-on-read", "copy-on-write"]


@pytest.fixture
def stock(lake: frazil.Lake, spark: Any) -> frazil.Table:
    table = lake.create_table(
        "shop.stock", "id bigint not null, n int, note string", keys=["id"], partition_by=["bucket(2, id)"]
    )
    table.append(spark.range(0, 20).select("id", (F.col("id") * 10).cast("int").alias("n"), F.lit("old").alias("note")))
    return table


def source(spark: Any, *ids: int) -> Any:
    return spark.createDataFrame([(each, each, "new") for each in ids], "id bigint, n int, note string")


def found(table: frazil.Table) -> dict[int, tuple[Any, ...]]:
    return {row["id"]: (row["n"], row["note"]) for row in table.scan().to_arrow().to_pylist()}


@pytest.mark.everywhere
@pytest.mark.parametrize("mode", MODES)
def test_update_and_insert(stock: frazil.Table, spark: Any, mode: Any) -> None:
    before = found(stock)
    done = (
        stock.merge(source(spark, 3, 4, 50), on="target.id = source.id", mode=mode)
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
    assert (done.rows_updated, done.rows_inserted, done.rows_deleted, done.engine) == (2, 1, 0, "spark")
    assert found(stock) == {**before, 3: (3, "new"), 4: (4, "new"), 50: (50, "new")}
    same_rows(stock, spark)


@pytest.mark.parametrize("mode", MODES)
def test_the_first_clause_that_fits_decides(stock: frazil.Table, spark: Any, mode: Any) -> None:
    done = (
        stock.merge(source(spark, 1, 2, 3, 60, 61, 62), on=["id"], mode=mode)
        .when_matched_delete(condition="target.id = 1")
        .when_matched_update({"n": "target.n + source.n", "note": "'second'"}, condition="target.n < 30")
        .when_matched_update({"note": frazil.lit("third")})
        .when_not_matched_insert({"id": "source.id", "n": "-1"}, condition="source.id = 60")
        .when_not_matched_insert_all(condition="source.id = 61")
        .when_not_matched_by_source_update({"note": "'alone'"}, condition="target.id = 10")
        .when_not_matched_by_source_delete(condition="target.id > 17")
        .execute()
    )
    rows = found(stock)
    assert 1 not in rows
    assert rows[2] == (22, "second")
    assert rows[3] == (30, "third")
    assert rows[60] == (-1, None)
    assert rows[61] == (61, "new")
    assert 62 not in rows
    assert rows[10] == (100, "alone")
    assert 18 not in rows
    assert 19 not in rows
    assert (done.rows_updated, done.rows_inserted, done.rows_deleted) == (3, 2, 3)
    same_rows(stock, spark)


def test_aliases_columns_and_names_without_a_table(stock: frazil.Table, spark: Any) -> None:
    more = source(spark, 5).withColumn("extra", F.lit(7))
    done = (
        stock.merge(more, on="t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_update({"t.n": "extra", "note": F.concat(F.col("t.note"), F.lit("-"), F.col("s.note"))})
        .execute()
    )
    assert done.rows_updated == 1
    assert found(stock)[5] == (7, "old-new")


def test_a_row_met_twice_is_refused(stock: frazil.Table, spark: Any) -> None:
    before = stock.metadata_location
    for mode in MODES:
        with pytest.raises(frazil.InvalidInput, match="matches 2 rows of the source"):
            stock.merge(source(spark, 3, 3), on=["id"], mode=mode).when_matched_update_all().execute()
    assert stock.metadata_location == before
    # One that is only deleted is deleted once, whoever meets it.
    done = stock.merge(source(spark, 3, 3), on=["id"], mode="merge-on-read").when_matched_delete().execute()
    assert 3 not in found(stock)
    assert done.rows_deleted >= 1


@pytest.mark.everywhere
def test_p34_a_source_that_changes_from_run_to_run_is_run_once(stock: frazil.Table, spark: Any) -> None:
    """Rule P34. Without it: rows are deleted by one run of the source and inserted by another."""
    moving = spark.range(0, 40).select("id", F.lit(1).alias("n"), F.lit("m").alias("note")).where(F.rand() < 0.5)
    before = found(stock)
    done = stock.merge(moving, on=["id"]).when_matched_update_all().when_not_matched_insert_all().execute()
    rows = found(stock)
    touched = [each for each in rows if rows[each] == (1, "m")]
    assert set(before) <= set(rows)
    assert len(rows) == len(stock.scan().to_arrow())
    assert len(touched) == done.rows_updated + done.rows_inserted


def test_null_keys_meet_nothing(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.n", "id bigint, note string")
    table.append(spark.createDataFrame([(1, "a"), (None, "b")], "id bigint, note string"))
    given = spark.createDataFrame([(1, "x"), (None, "y")], "id bigint, note string")
    done = table.merge(given, on=["id"]).when_matched_update_all().when_not_matched_insert_all().execute()
    assert (done.rows_updated, done.rows_inserted) == (1, 1)
    assert sorted(map(str, table.scan().to_arrow()["note"].to_pylist())) == ["b", "x", "y"]


@pytest.mark.everywhere
def test_schema_evolution(stock: frazil.Table, spark: Any) -> None:
    more = source(spark, 5, 70).withColumn("colour", F.lit("red"))
    (
        stock.merge(more, on=["id"])
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .with_schema_evolution()
        .execute()
    )
    rows = {row["id"]: row["colour"] for row in stock.scan().to_arrow().to_pylist()}
    assert rows[5] == rows[70] == "red"
    assert rows[6] is None


def test_nothing_meets(stock: frazil.Table, spark: Any) -> None:
    before = stock.metadata_location
    done = stock.merge(source(spark, 500), on=["id"]).when_matched_update_all().execute()
    assert not done.changed
    assert stock.metadata_location == before
    empty = source(spark, 1).where("false")
    assert not stock.merge(empty, on=["id"]).when_matched_delete().when_not_matched_insert_all().execute().changed


def test_a_condition_without_equality(stock: frazil.Table, spark: Any) -> None:
    limits = spark.createDataFrame([(5, 8)], "low bigint, high bigint")
    done = (
        stock.merge(limits, on="target.id between source.low and source.high", mode="merge-on-read")
        .when_matched_delete()
        .execute()
    )
    assert done.rows_deleted == 4
    assert set(range(5, 9)).isdisjoint(found(stock))


def test_a_merge_conflicts_on_its_keys_only(lake: frazil.Lake, stock: frazil.Table, spark: Any) -> None:
    def run(others: Any) -> None:
        with lake.transaction() as transaction:
            mine = transaction.table("shop.stock").merge(source(spark, 3, 80), on=["id"], mode="merge-on-read")
            mine.when_matched_update_all().when_not_matched_insert_all().execute()
            others()

    run(lambda: stock.append([{"id": 90, "n": 1, "note": "far"}]))
    run(lambda: stock.update({"n": "n + 1"}, where="id = 4", mode="merge-on-read"))
    with pytest.raises(frazil.ConflictError):
        run(lambda: stock.append([{"id": 80, "n": 1, "note": "near"}]))
    with pytest.raises(frazil.ConflictError):
        run(lambda: stock.update({"n": "n + 1"}, where="id = 3", mode="merge-on-read"))


BAD: dict[str, tuple[Any, str]] = {
    "no clause": (lambda merge: merge.execute(), "The merge has no clauses"),
    "a clause after one that takes all": (
        lambda merge: merge.when_matched_delete().when_matched_update_all().execute(),
        "has no condition, so the clauses after it are never reached",
    ),
    "an unknown column": (lambda merge: merge.when_matched_update({"m": "1"}).execute(), "'m'"),
    "an ambiguous name": (
        lambda merge: merge.when_matched_update({"n": "n + 1"}).execute(),
        "may be target.n or source.n",
    ),
    "a target column for a row that has none": (
        lambda merge: merge.when_not_matched_insert_all(condition="target.n = 1").execute(),
        "has no target row",
    ),
    "chance in a condition": (
        lambda merge: merge.when_matched_delete(condition="rand() < 0.5").execute(),
        "returns a different value each time",
    ),
    "text for a number": (lambda merge: merge.when_matched_update({"n": "'x'"}).execute(), "'n' is int"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_merges_are_refused_before_anything_is_written(stock: frazil.Table, spark: Any, case: str) -> None:
    act, words = BAD[case]
    before = stock.metadata_location
    with pytest.raises(frazil.FrazilError, match=words):
        act(stock.merge(source(spark, 3), on=["id"]))
    assert stock.metadata_location == before


def test_a_source_without_a_column_is_refused(stock: frazil.Table, spark: Any) -> None:
    with pytest.raises(frazil.InvalidInput, match="lacks the column 'note'"):
        stock.merge(source(spark, 3).drop("note"), on=["id"]).when_matched_update_all().execute()
    done = stock.merge(source(spark, 3).drop("note"), on=["id"]).when_matched_update_all(except_cols=["note"]).execute()
    assert done.rows_updated == 1
    assert found(stock)[3] == (3, "old")


def test_explain_says_how_it_would_be_run(stock: frazil.Table, spark: Any) -> None:
    text = stock.merge(source(spark, 3), on=["id"]).when_matched_delete("target.n > 3").explain()
    assert "by key     id" in text
    assert "when matched and target.n > 3 then delete" in text


def test_a_file_that_was_replaced_by_hand_fails_the_merge(spark: Any, lake: frazil.Lake) -> None:
    """Its deleted rows would be taken for live ones, and met by the source."""
    table = lake.create_table("shop.t", "id bigint")
    table.append([{"id": n} for n in range(100)])
    table.append([{"id": 1000}])
    table.delete("id in (5, 6, 7)", mode="merge-on-read")
    path = next(task.file.file_path for task in table.scan().tasks() if task.deletes).removeprefix("file://")
    pq.write_table(pq.read_table(path), path, compression="gzip")
    source = spark.createDataFrame([(5,), (6,), (200,)], "id bigint")
    with pytest.raises(frazil.SparkFailed, match="nothing was committed"):
        table.merge(source, on=["id"]).when_not_matched_insert_all().execute()
    with pytest.raises(frazil.SparkFailed, match="nothing was committed"):
        table.delete("id < 100", engine="spark")
