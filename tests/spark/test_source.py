"""The format "frazil": the same rows as through the first door, and one commit for each write."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import frazil
from spark.test_scan import plain
from unit.test_changes import now, rows

# PySpark leaves the sockets that rows came through to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
DDL = "id bigint not null, k int, name string, amount double, ts timestamp"


@pytest.fixture(autouse=True)
def _registered(spark: Any) -> None:
    frazil.register(spark)


def read(spark: Any, lake: frazil.Lake, name: str = "shop.t", **options: str) -> Any:
    return spark.read.format("frazil").options(**lake.spark_options(), **options).load(name)


def write(frame: Any, lake: frazil.Lake, mode: str = "append", **options: str) -> None:
    frame.write.format("frazil").mode(mode).options(**lake.spark_options(), **options).save("shop.t")


def bag(table: pa.Table) -> Counter[Any]:
    return Counter(plain(tuple(row.values())) for row in table.to_pylist())


def data_files(table: frazil.Table) -> set[str]:
    return {str(each) for each in Path(table.location.removeprefix("file://")).rglob("*.parquet")}


# Reading


def test_rows_are_those_of_a_scan(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", DDL, keys=["id"], partition_by=["bucket(2, id)"])
    table.append(rows(*range(50)))
    first = now(table)
    table.delete("k = 1", mode="merge-on-read")
    table.upsert(rows(3, 4, 99, name="up"))
    frame = read(spark, lake)
    assert frame.dtypes == table.scan().to_spark(spark).dtypes
    assert bag(frame.toArrow()) == bag(table.scan().to_arrow())
    assert bag(read(spark, lake, where="id < 10 and k = 3").toArrow()) == bag(
        table.scan("id < 10 and k = 3").to_arrow()
    )
    assert bag(read(spark, lake, snapshot=str(first)).toArrow()) == bag(table.scan(snapshot=first).to_arrow())
    assert read(spark, lake, columns="name, id").columns == ["name", "id"]
    assert frame.where("id = 3").select("name").collect()[0][0] == "up"
    assert frame.count() == table.scan().count()


def test_every_type(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table(
        "shop.t",
        "b boolean, i int, l bigint, f float, d double, dec decimal(12, 3), s string, y binary, da date, ts timestamp, "
        "tn timestamp_ntz, a array<string>, m map<string, int>, st struct<x: int, y: array<date>>",
    )
    row = {
        "b": True, "i": 1, "l": 2**40, "f": 0.5, "d": float("nan"), "dec": Decimal("1.250"), "s": "é", "y": b"\x00\xff",
        "da": dt.date(1900, 1, 1), "ts": dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC),
        "tn": dt.datetime.fromisoformat("1950-01-01"),
        "a": ["x", None], "m": {"k": 1, "n": None}, "st": {"x": None, "y": [dt.date(2026, 1, 1)]},
    }  # fmt: skip
    table.append([row, dict.fromkeys(row)])
    assert bag(read(spark, lake).toArrow()) == bag(table.scan().to_arrow())
    write(read(spark, lake), lake)
    assert list(bag(table.scan().to_arrow()).values()) == [2, 2]


def test_types_that_spark_lacks(lake: frazil.Lake, spark: Any) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import FixedType, NestedField, TimeType, UUIDType

    columns = [("u", UUIDType()), ("x", FixedType(3)), ("t", TimeType())]
    fields = [NestedField(at, name, kind, required=False) for at, (name, kind) in enumerate(columns, 1)]
    table = lake.create_table("shop.t", Schema(*fields))
    table.append([{"u": UUID(int=7), "x": b"abc", "t": dt.time(1, 2, 3)}, {"u": None, "x": None, "t": None}])
    assert bag(read(spark, lake).toArrow()) == bag(table.scan().to_spark(spark).toArrow())


def test_a_frame_keeps_showing_its_snapshot(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", DDL)
    assert read(spark, lake).count() == 0
    table.append(rows(1, 2))
    frame = read(spark, lake)
    table.append([{**rows(3)[0], "extra": 1}], merge_schema=True)
    assert frame.count() == 2
    assert frame.columns == [field.split()[0] for field in DDL.split(", ")]
    assert read(spark, lake).count() == 3


def test_spark_filters_prune_files_where_asked(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", DDL, partition_by=["day(ts)"])
    table.append(rows(*range(20)))
    broken = table.scan("id = 0").files()[0].path
    Path(broken.removeprefix("file://")).write_bytes(b"nothing")
    if spark.version.startswith("4.0."):
        # This release tells a source no filters, so that every file is read.
        with pytest.raises(Exception, match=Path(broken).name):
            read(spark, lake, pushdown="true").where("id = 5").count()
        return
    before = spark.conf.get("spark.sql.python.filterPushdown.enabled")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, lake, pushdown="true")
        assert frame.where("ts > timestamp'2026-01-05 00:00:00Z' and name = 'new' and k in (1, 2)").count() > 0
        assert frame.where("id = 5 and id is not null").count() == 1
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", before)


def test_wrong_options_are_named(lake: frazil.Lake, spark: Any) -> None:
    lake.create_table("shop.t", DDL)
    with pytest.raises(Exception, match="has no option 'wheer'"):
        read(spark, lake, wheer="id = 1").count()
    with pytest.raises(Exception, match="needs the lake"):
        spark.read.format("frazil").load("shop.t").count()
    with pytest.raises(Exception, match=r"shop\.nothing"):
        read(spark, lake, "shop.nothing").count()
    with pytest.raises(Exception, match="each name a snapshot"):
        read(spark, lake, snapshot="1", ref="main").count()


def test_required_values_at_every_depth(lake: frazil.Lake, spark: Any) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IntegerType, ListType, MapType, NestedField, StringType, StructType

    inner = StructType(NestedField(3, "x", IntegerType(), required=True), NestedField(4, "y", StringType()))
    columns = [
        NestedField(1, "id", IntegerType(), required=True),
        NestedField(2, "st", inner, required=True),
        NestedField(5, "xs", ListType(6, StringType(), element_required=True), required=True),
        NestedField(7, "m", MapType(8, StringType(), 9, IntegerType(), value_required=True), required=False),
    ]
    table = lake.create_table("shop.t", Schema(*columns))
    table.append([{"id": 1, "st": {"x": 1, "y": None}, "xs": ["a"], "m": [("k", 1)]}])
    table.append([{"id": 2, "st": {"x": 2, "y": "y"}, "xs": [], "m": None}])
    assert bag(read(spark, lake).toArrow()) == bag(table.scan().to_arrow())


def test_a_schema_given_to_spark_is_the_tables_but_for_what_may_be_null(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", DDL)
    table.append(rows(1, 2))

    def given(ddl: str) -> Any:
        return spark.read.format("frazil").schema(ddl).options(**lake.spark_options()).load("shop.t")

    assert bag(given(DDL.replace(" not null", "")).toArrow()) == bag(table.scan().to_arrow())
    with pytest.raises(Exception, match=r"has the columns id int, k int, .*the table has id bigint, k int, "):
        given(DDL.replace("bigint", "int")).count()
    with pytest.raises(Exception, match=r"has the columns k int, .*the table has id bigint, k int, "):
        given(DDL.partition(", ")[2]).count()


# Writing


def frame_of(spark: Any, *ids: int, parts: int = 3) -> Any:
    given = rows(*ids)
    return spark.createDataFrame(pa.Table.from_pylist(given)).selectExpr(
        "id", "cast(k as int) as k", "name", "amount", "ts"
    ).repartition(parts)  # fmt: skip


def test_an_append_is_one_commit(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", DDL, keys=["id"], partition_by=["bucket(2, id)"])
    write(frame_of(spark, *range(30)), lake)
    write(frame_of(spark, 30, 31), lake, commit_id="second")
    history = table.history()
    assert [each.operation for each in history] == ["append", "append"]
    assert history[0].summary["added-records"] == "30"
    assert bag(table.scan().to_arrow()) == bag(pa.Table.from_pylist(rows(*range(32))))
    # The same write again, under the same id, is found.
    write(frame_of(spark, 30, 31), lake, commit_id="second")
    assert len(table.history()) == 2
    assert len(data_files(table)) == len(table.files())


def test_an_overwrite_is_one_commit(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", DDL)
    table.append(rows(*range(10)))
    write(frame_of(spark, 1, 2, parts=2), lake, "overwrite", where="id < 5")
    found: list[Any] = table.scan().to_arrow()["id"].to_pylist()
    assert sorted(found) == [1, 2, 5, 6, 7, 8, 9]
    write(frame_of(spark, 77), lake, "overwrite")
    assert table.scan().to_arrow()["id"].to_pylist() == [77]
    assert [each.operation for each in table.history()] == ["append", "overwrite", "overwrite"]


def test_no_rows_make_no_snapshot(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", DDL)
    write(frame_of(spark, 1).where("id > 5"), lake)
    assert table.history() == []


def test_a_write_that_fails_leaves_nothing(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", DDL)
    table.append(rows(*range(10)))
    before = data_files(table)
    with pytest.raises(Exception, match="does not match where"):
        write(frame_of(spark, 1, 2, 70), lake, "overwrite", where="id < 5")
    with pytest.raises(Exception, match="nope"):
        write(frame_of(spark, 1).withColumnRenamed("name", "nope"), lake)
    with pytest.raises(Exception, match="where needs mode"):
        write(frame_of(spark, 1), lake, where="id < 5")
    with pytest.raises(Exception, match="no branch 'other'"):
        write(frame_of(spark, 1), lake, branch="other")
    assert len(table.history()) == 1
    assert data_files(table) == before


def test_a_conflict_leaves_nothing(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", DDL)
    table.append(rows(*range(10)))
    write(frame_of(spark, 50), lake, commit_id="one id")
    with pytest.raises(Exception, match="one id"):
        write(frame_of(spark, 1), lake, "overwrite", commit_id="one id", where="id = 1")
    assert len(data_files(table)) == len(table.files()) == 2
