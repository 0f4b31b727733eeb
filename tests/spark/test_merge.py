"""MERGE on Spark, beside a merge of Python dicts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import frazil
from merge_cases import BAD, CASES, MODES, Mode, Source, explains, found, refuses, refuses_a_source_without_a_column
from spark.rows import same_rows

EVERYWHERE = ("update_and_insert", "schema_evolution")
BOTH_MODES = ("update_and_insert", "the_first_clause_that_fits_decides", "a_row_met_twice_is_deleted_once")
RUNS = [
    pytest.param(name, mode, marks=[pytest.mark.everywhere] if name in EVERYWHERE else [])
    for name, turn in zip(CASES, itertools.cycle(MODES), strict=False)
    for mode in (MODES if name in BOTH_MODES else (turn,))
]


@pytest.fixture
def stock(lake: frazil.Lake, spark: Any) -> frazil.Table:
    table = lake.create_table(
        "shop.stock", "id bigint not null, n int, note string", keys=["id"], partition_by=["bucket(2, id)"]
    )
    table.append(spark.range(0, 20).select("id", (F.col("id") * 10).cast("int").alias("n"), F.lit("old").alias("note")))
    return table


@pytest.fixture
def source(spark: Any) -> Source:
    def make(rows: Sequence[tuple[Any, ...]], columns: str) -> Any:
        return spark.createDataFrame(list(rows), columns)

    return make


@pytest.mark.parametrize(("name", "mode"), RUNS)
def test_merges(lake: frazil.Lake, stock: frazil.Table, source: Source, spark: Any, name: str, mode: Mode) -> None:
    CASES[name](lake, stock, source, mode)
    same_rows(stock, spark)


@pytest.mark.parametrize("name", BAD)
def test_bad_merges_are_refused_before_anything_is_written(stock: frazil.Table, source: Source, name: str) -> None:
    refuses(stock, source, name)


def test_a_source_without_a_column_is_refused(stock: frazil.Table, source: Source) -> None:
    refuses_a_source_without_a_column(stock, source)


def test_explain_says_how_it_would_be_run(stock: frazil.Table, source: Source) -> None:
    explains(stock, source)


def test_values_may_be_spark_columns(stock: frazil.Table, spark: Any) -> None:
    more = spark.createDataFrame([(5, 5, "new", 7)], "id bigint, n int, note string, extra int")
    done = (
        stock.merge(more, on="t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_update({"t.n": "extra", "note": F.concat(F.col("t.note"), F.lit("-"), F.col("s.note"))})
        .execute()
    )
    assert done.rows_updated == 1
    assert found(stock)[5] == (7, "old-new")


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


def test_python_values_are_merged_on_the_session_that_the_lake_is_bound_to(stock: frazil.Table, spark: Any) -> None:
    """They have the types of the table's columns of that name; other columns have types of their own."""
    stock._lake.spark = spark
    source = [{"id": 3, "n": 1, "extra": "x"}, {"id": 77, "n": None, "extra": "y"}]
    merge = stock.merge(source, on=["id"]).when_matched_update({"n": "source.n", "note": "source.extra"})
    done = merge.when_not_matched_insert({"id": "source.id", "n": "source.n", "note": "source.extra"}).execute()
    assert (done.engine, done.rows_updated, done.rows_inserted) == ("spark", 1, 1)
    assert (found(stock)[3], found(stock)[77]) == ((1, "x"), (None, "y"))
    with pytest.raises(frazil.InvalidInput, match="lacks the column 'note'"):
        stock.merge(source, on=["id"]).when_matched_update_all().execute()


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
