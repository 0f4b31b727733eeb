"""Upserts and deletes by columns that the caller names on Spark, beside the same on Arrow."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import functions as F

import frazil
from frazil.commit.context import Phase
from frazil.format.manifests import read_manifest, read_manifest_list
from spark.rows import same_rows
from surface.matrix import files_of, named_files

DDL = "id bigint, ts bigint, v string"
QUICK = frazil.Retry(tries=4, base_ms=0)
UPSERT_MODES = ["position", "copy-on-write"]
Rows = list[tuple[Any, ...]]
Call = Callable[[frazil.Table, Callable[[Rows], Any]], frazil.Commit]


class Beside:
    """Two tables with the same rows. Each call is made on both: with a DataFrame, and with Arrow rows."""

    def __init__(self, lake: frazil.Lake, spark: Any, ddl: str, rows: Rows, **options: Any) -> None:
        self.spark, self.ddl = spark, ddl
        self.tables = {name: lake.create_table(f"shop.{name}", ddl, **options) for name in ("spark", "arrow")}
        # Two files, so that the rows of a key are not all in one.
        for table in self.tables.values():
            table.append(self.dicts(rows[::2]))
            table.append(self.dicts(rows[1::2]))

    def dicts(self, rows: Rows, ddl: str | None = None) -> list[dict[str, Any]]:
        names = [each.split()[0] for each in (ddl or self.ddl).split(", ")]
        return [dict(zip(names, each, strict=True)) for each in rows]

    def frame(self, rows: Rows, ddl: str | None = None) -> Any:
        return self.spark.createDataFrame(rows, (ddl or self.ddl).replace(" not null", "")).coalesce(1)

    def run(self, call: Call, ddl: str | None = None) -> tuple[tuple[int, int, int], Rows]:
        """Inserted, updated and deleted rows, and the rows afterwards; they must be the same on both."""
        by_spark = call(self.tables["spark"], lambda rows: self.frame(rows, ddl))
        by_arrow = call(self.tables["arrow"], lambda rows: self.dicts(rows, ddl))
        assert (by_spark.engine, by_arrow.engine) == ("spark", "arrow")
        assert counts(by_spark) == counts(by_arrow)
        # By their texts: NaN is not equal to itself in Python.
        assert repr(shown(self.tables["spark"])) == repr(shown(self.tables["arrow"]))
        same_rows(self.tables["spark"], self.spark)
        nothing_is_left(self.tables["spark"])
        return counts(by_spark), shown(self.tables["spark"])


def counts(done: frazil.Commit) -> tuple[int, int, int]:
    return done.rows_inserted, done.rows_updated, done.rows_deleted


def shown(table: frazil.Table) -> Rows:
    rows = [tuple(each.values()) for each in table.scan().to_arrow().to_pylist()]
    return sorted(rows, key=lambda row: tuple((part is not None, repr(part)) for part in row))


def nothing_is_left(table: frazil.Table) -> None:
    assert files_of(table) == named_files(table)


def delete_files(table: frazil.Table) -> list[int]:
    metadata = table._metadata()
    snapshot = metadata.head_snapshot("main")
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    manifests = read_manifest_list(table._storage, snapshot.manifest_list)
    files = [each.file.content for manifest in manifests for each in read_manifest(table._storage, manifest)]
    return [each for each in files if each != 0]


def at(*acts: Callable[[], object]) -> Callable[[Phase, int], None]:
    """One of the acts each time that the head has been read."""
    left = list(acts)

    def on_phase(phase: Phase, _attempt: int) -> None:
        if phase is Phase.HEAD_READ and left:
            left.pop(0)()

    return on_phase


@pytest.mark.everywhere
@pytest.mark.parametrize("mode", UPSERT_MODES)
def test_an_upsert_on_columns_that_are_not_declared(lake: frazil.Lake, spark: Any, mode: Any) -> None:
    old = [(1, 1, "old"), (2, 1, "old"), (2, 2, "old"), (None, 1, "old")]
    beside = Beside(lake, spark, DDL, old)
    given = [(2, 9, "new"), (3, 9, "new"), (None, 9, "new"), (None, 9, "new")]
    found = beside.run(lambda table, rows: table.upsert(rows(given), on=["ID"], mode=mode))
    new = [(None, 1, "old"), (None, 9, "new"), (None, 9, "new"), (1, 1, "old"), (2, 9, "new"), (3, 9, "new")]
    assert found == ((3, 1, 1), new)
    both = [(1, 1, "both"), (1, 2, "both")]
    assert beside.run(lambda table, rows: table.upsert(rows(both), on=["id", "ts"], mode=mode))[0] == (1, 1, 0)
    assert beside.run(lambda table, rows: table.upsert(rows([]), on=["id"], mode=mode))[0] == (0, 0, 0)


@pytest.mark.everywhere
@pytest.mark.parametrize("mode", UPSERT_MODES)
def test_the_latest_row_of_a_key_wins(lake: frazil.Lake, spark: Any, mode: Any) -> None:
    old = [
        (1, 5, "old"),
        (2, 5, "old"),
        (3, 5, "old"),
        (4, None, "old"),
        (5, 5, "old"),
        (3, 4, "older"),
        (None, 5, "a"),
    ]
    beside = Beside(lake, spark, DDL, old)
    given = [
        (1, 4, "older"),
        (2, 5, "equal"),
        (3, 7, "newest"),
        (3, 6, "newer"),
        (4, 0, "after null"),
        (5, None, "null"),
        (6, 1, "first"),
        (6, 1, "tie"),
        (7, None, "none"),
        (None, 1, "b"),
    ]
    upsert: Call = lambda table, rows: table.upsert(rows(given), on=["id"], latest_by="ts", mode=mode)  # noqa: E731
    found, rows = beside.run(upsert)
    assert found == (3, 3, 1)
    assert rows == [
        (None, 1, "b"),
        (None, 5, "a"),
        (1, 5, "old"),
        (2, 5, "equal"),
        (3, 7, "newest"),
        (4, 0, "after null"),
        (5, 5, "old"),
        (6, 1, "tie"),
        (7, None, "none"),
    ]
    stale = beside.frame([(1, 4, "older")])
    assert not beside.tables["spark"].upsert(stale, on=["id"], latest_by="ts", mode=mode).changed


def test_the_latest_row_wins_on_declared_keys(lake: frazil.Lake, spark: Any) -> None:
    ddl = DDL.replace("id bigint", "id bigint not null")
    beside = Beside(lake, spark, ddl, [(1, 5, "old"), (2, 5, "old")], keys=["id"], partition_by=["bucket(2, id)"])
    given = [(1, 4, "older"), (2, 6, "newer"), (2, 7, "newest"), (3, 1, "new")]
    assert beside.run(lambda table, rows: table.upsert(rows(given), latest_by="ts"))[0] == (1, 1, 0)


@pytest.mark.parametrize("mode", UPSERT_MODES)
def test_0_and_minus_0_are_one_key_and_nan_is_equal_to_itself(lake: frazil.Lake, spark: Any, mode: Any) -> None:
    old = [(0.0, "a"), (math.nan, "b"), (None, "c"), (1.5, "d"), (2.5, "e")]
    beside = Beside(lake, spark, "d double, v string", old)
    given = [(-0.0, "new"), (math.nan, "new"), (None, "new")]
    assert beside.run(lambda table, rows: table.upsert(rows(given), on=["d"], mode=mode))[0] == (1, 2, 0)
    keys: Rows = [(0.0,), (1.5,)]
    found = beside.run(lambda table, rows: table.delete_keys(rows(keys), on=["d"], mode=mode), "d double")
    assert (found[0], [row[1] for row in found[1]]) == ((0, 0, 2), ["c", "new", "e", "new"])


def test_keys_of_other_types_are_compared_as_on_arrow(lake: frazil.Lake, spark: Any) -> None:
    key = (decimal.Decimal("1.50"), dt.date(2026, 11, 1), dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC), "é")
    ddl = "a decimal(9,2), b date, c timestamp, e string, v string"
    beside = Beside(lake, spark, ddl, [(*key, "old"), (*key[:3], "e", "old")])
    on = ["a", "b", "c", "e"]
    assert beside.run(lambda table, rows: table.upsert(rows([(*key, "new")]), on=on))[0] == (0, 1, 0)
    found = beside.run(
        lambda table, rows: table.delete_keys(rows([key]), on=on), "a decimal(9,2), b date, c timestamp, e string"
    )
    assert (found[0], len(found[1])) == ((0, 0, 1), 1)


def test_a_field_of_a_struct_may_be_a_key(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", "s struct<a: int, b: int>, v string")
    table.append([{"s": {"a": 1, "b": 1}, "v": "old"}, {"s": {"a": 2, "b": 2}, "v": "old"}, {"s": None, "v": "old"}])
    frame = spark.sql("select named_struct('a', 2, 'b', 9) s, 'new' v union all select null, 'new'")
    done = table.upsert(frame, on=["s.a"])
    assert counts(done) == (1, 1, 0)
    assert [row[1] for row in shown(table)] == ["new", "old", "old", "new"]


@pytest.mark.everywhere
@pytest.mark.parametrize("mode", UPSERT_MODES)
def test_an_upsert_is_redone_and_runs_its_source_once(lake: frazil.Lake, spark: Any, mode: Any) -> None:
    table = lake.create_table("shop.t", DDL)
    table.append([{"id": each, "ts": 5, "v": "old"} for each in range(6)])
    moving = spark.range(0, 10, 1, 1).select(
        "id", F.lit(6).cast("bigint").alias("ts"), F.expr("cast(rand() as string)").alias("v")
    )
    theirs = at(
        lambda: table.append([{"id": 8, "ts": 7, "v": "newer"}, {"id": 9, "ts": 1, "v": "older"}]),
        lambda: table.delete("id = 3", mode="merge-on-read"),
    )
    done = table.upsert(moving, on=["id"], latest_by="ts", mode=mode, retry=QUICK, on_phase=theirs)
    assert (done.redone, counts(done)) == (2, (3, 6, 0))
    rows = shown(table)
    assert [row[0] for row in rows] == list(range(10))
    assert [row[0] for row in rows if row[2] == "newer"] == [8]
    nothing_is_left(table)
    with pytest.raises(frazil.ConflictError):
        table.upsert(
            moving, on=["id"], mode=mode, on_conflict="abort", on_phase=at(lambda: table.append([{"id": 4, "v": "x"}]))
        )
    nothing_is_left(table)


@pytest.mark.everywhere
@pytest.mark.parametrize("mode", UPSERT_MODES)
def test_keys_are_deleted(lake: frazil.Lake, spark: Any, mode: Any) -> None:
    old = [(1, 1, "old"), (2, 1, "old"), (2, 2, "old"), (3, 1, "old"), (None, 1, "old")]
    beside = Beside(lake, spark, DDL, old)
    given: Rows = [(2,), (2,), (9,), (None,)]
    found = beside.run(lambda table, rows: table.delete_keys(rows(given), on=["id"], mode=mode), "id bigint")
    assert found == ((0, 0, 2), [(None, 1, "old"), (1, 1, "old"), (3, 1, "old")])
    pairs: Rows = [(2, 1), (1, 9), (1, 1)]
    found = beside.run(
        lambda table, rows: table.delete_keys(rows(pairs), on=["ts", "id"], mode=mode), "ts bigint, id bigint"
    )
    assert found == ((0, 0, 1), [(None, 1, "old"), (3, 1, "old")])
    table = beside.tables["spark"]
    theirs = at(lambda: table.append([{"id": 3, "ts": 9, "v": "late"}, {"id": 4, "ts": 9, "v": "late"}]))
    done = table.delete_keys(beside.frame([(3,)], "id bigint"), on=["id"], mode=mode, retry=QUICK, on_phase=theirs)
    assert (done.redone, counts(done)) == (1, (0, 0, 2))
    assert [row[0] for row in shown(table)] == [None, 4]
    nothing_is_left(table)


def test_by_declared_keys_nothing_is_read(lake: frazil.Lake, spark: Any) -> None:
    ddl = DDL.replace("id bigint", "id bigint not null")
    beside = Beside(lake, spark, ddl, [(1, 1, "old"), (2, 1, "old"), (3, 1, "old")], keys=["id"])
    beside.run(lambda table, rows: table.delete_keys(rows([(2,), (7,)])), "id bigint")
    assert delete_files(beside.tables["spark"]) == [2]
    with pytest.raises(frazil.FrazilError, match="null"):
        beside.tables["spark"].delete_keys(beside.frame([(None,)], "id bigint"))
    nothing_is_left(beside.tables["spark"])


BAD: Sequence[tuple[dict[str, Any], str]] = [
    ({"on": "id"}, "list of column names"),
    ({"on": ["nope"]}, "does not exist"),
    ({"on": ["id"], "mode": "equality"}, "declared keys"),
    ({"on": ["id"], "latest_by": "nope"}, "does not exist"),
    ({"on": ["id"]}, "2 of the rows have the same key id=1"),
]


def test_what_does_not_fit_is_refused(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", DDL)
    frame = spark.createDataFrame([(1, 1, "a"), (1, 2, "b")], DDL)
    for options, words in BAD:
        with pytest.raises(frazil.InvalidInput, match=words):
            table.upsert(frame, **options)
    with pytest.raises(frazil.SchemaMismatch):
        table.upsert(frame.withColumn("more", F.lit(1)), on=["id"], latest_by="ts")
    with pytest.raises(frazil.SchemaMismatch):
        table.delete_keys(frame.select("v"), on=["id"])
    assert table.snapshot() is None
    nothing_is_left(table)
