"""Rows that came and went, on Spark: the same as Arrow tells."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.read.changes import DELETE, INSERT, ORDINAL, SNAPSHOT, TYPE
from spark.test_scan import plain
from unit.test_changes import grown, now, rows

# PySpark leaves the sockets that rows came through to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def bag(table: pa.Table) -> Counter[Any]:
    return Counter(plain(tuple(row.values())) for row in table.to_pylist())


def check(changes: frazil.Changes, spark: Any) -> Counter[Any]:
    frame = changes.to_spark(spark)
    assert frame.columns == changes.schema.names
    found = bag(frame.toArrow())
    assert found == bag(changes.to_arrow())
    return found


@pytest.mark.parametrize("seed", range(3))
def test_any_history(lake: frazil.Lake, spark: Any, seed: int) -> None:
    choose = random.Random(1000 + seed)
    table = grown(lake, choose, 7)
    ids = [each.snapshot_id for each in table.history()]
    check(table.changes(None), spark)
    first, last = sorted(choose.sample(range(len(ids)), 2)) if len(ids) > 1 else (0, 0)
    check(table.changes(ids[first], ids[last]), spark)


def test_changes_that_spark_made(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", "id bigint not null, name string", keys=["id"])
    frame = spark.range(0, 1000).selectExpr("id", "concat('u', id) as name")
    table.append(frame)
    first = now(table)
    table.delete("id % 100 = 7", mode="copy-on-write")
    table.upsert(spark.range(5, 8).selectExpr("id", "'up' as name"), mode="copy-on-write")
    table.upsert(spark.range(8, 10).selectExpr("id", "'up' as name"), mode="position")
    table.upsert(spark.range(9, 12).selectExpr("id", "'again' as name"))
    found = check(table.changes(first), spark)
    kinds = Counter((values[2], values[3]) for values in found.elements())
    # Row 7 was deleted before it was upserted.
    assert kinds == {
        (DELETE, 0): 10, (DELETE, 1): 2, (INSERT, 1): 3, (DELETE, 2): 2, (INSERT, 2): 2, (DELETE, 3): 3, (INSERT, 3): 3,
    }  # fmt: skip


def test_nothing_changed(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", "id bigint, name string")
    assert not check(table.changes(None), spark)
    table.append([{"id": 1, "name": "a"}])
    assert not check(table.changes(now(table)), spark)


def test_types_of_the_three_columns(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", "id bigint")
    table.append([{"id": 1}])
    kinds = dict(table.changes(None).to_spark(spark).dtypes)
    assert (kinds[TYPE], kinds[ORDINAL], kinds[SNAPSHOT]) == ("string", "int", "bigint")


def test_rows_that_another_engine_copied_are_no_changes(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", "id bigint, x double, tags array<string>, m map<string, int>")
    same = {"id": 1, "x": -0.0, "tags": ["p", None], "m": {"a": 1, "b": None}}
    nan: dict[str, Any] = {"id": 1, "x": float("nan"), "tags": None, "m": {}}
    table.append([same, same, nan, {"id": 2, "x": 0.0, "tags": None, "m": None}])
    first = now(table)
    table.pyiceberg().delete("id = 2")
    assert [values[4] for values in check(table.changes(first), spark)] == [DELETE]


def test_settings_of_the_session_change_nothing(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", "id bigint, x double, ts timestamp", keys=["id"])
    table.append([{"id": each["id"], "x": each["amount"], "ts": each["ts"]} for each in rows(*range(8))])
    first = now(table)
    table.delete("id = 3", mode="copy-on-write")
    table.pyiceberg().delete("id = 4")
    table.delete("id = 5", mode="merge-on-read")
    settings = {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.caseSensitive": "true",
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
    }
    before = {key: spark.conf.get(key) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        assert len(check(table.changes(first), spark)) == 3
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
